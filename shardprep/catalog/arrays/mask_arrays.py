"""Masks in array files and multi-page TIFF files: their numbers are stored unchanged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from shardprep.catalog.arrays.array_file import Block
from shardprep.catalog.arrays.array_images import WORK_BYTES, ImageListing, read_columns
from shardprep.catalog.arrays.layout import Layout, given_layout, possible_layouts
from shardprep.catalog.arrays.opened_files import PAGED, ArrayFiles, ChosenColumn, OpenedFile
from shardprep.catalog.names import masks_by_folder
from shardprep.catalog.objects.mask_files import fits_all, matching
from shardprep.errors import SourceError
from shardprep.machine import limited_memory
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Listing, in_order
from shardprep.source.members import Member, Members
from shardprep.source.names import is_array_name

Rest = TypeVar("Rest", bound=Listing)


def masks_apart(
    listing: Rest, recipe: Recipe, mask_paths: Callable[[], Iterable[str]] = list
) -> tuple[Rest, list[Member]]:
    """Return the listing without masks, and the masks.

    Masks are only taken out if the source may have arrays or volumes, or with `--stack`.
    `mask_paths` returns the paths of masks in a table of items. SourceError if no image is left.
    """
    rule, keys = recipe.rules.masks, listing.images.keys
    arrays = [one.key for one in listing.others if is_array_name(one.key.rpartition("/")[2])]
    several = [*filter(PAGED.search, keys), *arrays] if recipe.items else []
    if several:
        found = _named_by(several, mask_paths())
    elif rule.kind == "pattern" and (arrays or recipe.stack or any(map(PAGED.search, keys[:1]))):
        found = set(matching([*keys, *arrays], rule.pattern))
    elif rule.kind == "auto" and recipe.stack:
        found = set[str]().union(*masks_by_folder(list(keys)).values())
    else:
        return listing, []
    if not found:
        return listing, []
    if len(keys) and len(found) == len(keys) + len(arrays):
        raise fits_all(rule.pattern)
    is_mask = np.array([key in found for key in keys], bool)
    masks = [*listing.images.take(np.flatnonzero(is_mask)), *listing.others]
    others = [one for one in listing.others if one.key not in found]
    rest = replace(listing, images=listing.images.take(np.flatnonzero(~is_mask)), others=others)
    return rest, [one for one in masks if one.key in found]


def _named_by(keys: Sequence[str], paths: Iterable[str]) -> set[str]:
    """Return the keys that end with one of `paths`, or with which one of `paths` ends."""
    of_name = defaultdict[str, set[str]](set)
    for path in paths:
        of_name[path.rpartition("/")[2]].add(f"/{path}")
    return {
        key
        for key in keys
        for path in of_name.get(key.rpartition("/")[2], ())
        if f"/{key}".endswith(path) or path.endswith(f"/{key}")
    }


def with_masks(listing: ImageListing, masks: Sequence[Member], recipe: Recipe) -> ImageListing:
    """Return the listing with `masks` as images, or as stacks if an array has over two axes.

    A layout of `--images` also applies to masks whose names match its FILE. SourceError unless a
    file is one array of whole numbers.
    """
    if listing.unpacker is None or not masks:
        return listing
    recipe = replace(recipe.with_rules(images=(*recipe.images, "*")), depth_range="full")
    files = ArrayFiles(recipe, listing.unpacker, proposes=False)
    with limited_memory(WORK_BYTES + recipe.max_member_size):  # a damaged size may be any number
        if listing.images.are_stacks.any() and len(masks) < 2 * len(listing.images):
            files.open_volumes(Members.of(masks))  # otherwise each image has its own mask file
            is_tiff = ((one, PAGED.search(one.key)) for one in files.files)
            files.files = [one for one, found in is_tiff if found and found["tiff"]]
        if arrays := [one for one in masks if is_array_name(one.key.rpartition("/")[2])]:
            files.open(arrays)
        made, _ = read_columns(files, [_exact(opened, files) for opened in files.files])
    left = Members.of(one for one in masks if one.key not in files.used)
    return replace(listing, images=in_order(Members.joined([listing.images, left, made])))


def _exact(opened: OpenedFile, files: ArrayFiles) -> ChosenColumn:
    """Return the only column of a mask file, with numbers as uint8 or uint16, and its layout."""
    key, columns = opened.key, opened.columns
    if len(columns) != 1:
        what = f"has {len(columns)} arrays of pixels, but a mask is one array"
        raise SourceError(key, what, "save each array in a file of its own")
    column = columns[0].column
    if column.dtype is None:
        return columns[0]
    is_byte = column.dtype.kind == "b" or column.dtype == np.uint8
    exact = replace(
        column,
        dtype=np.dtype(np.uint8 if is_byte else np.uint16),
        blocks=lambda axis: (_whole(key, block) for block in column.blocks(axis)),
    )
    chosen = columns[0]._replace(column=exact, layouts=[_layout(columns[0], files)])
    if chosen.is_scaled:
        what = f"is a mask of {column.dtype} in colours"
        raise SourceError(key, what, "save it as an array of classes, without an axis of colours")
    return chosen


def _layout(one: ChosenColumn, files: ArrayFiles) -> Layout:
    key, column, shape = one.opened.key, one.column, one.column.shape
    axes, found = next(files.rules(key)).layout, list(column.layouts[:1])
    if axes:
        given = given_layout(axes, shape, has_rows=column.has_rows)
        found = [] if given is None else [given]
    elif not found and 0 not in shape:
        found = [Layout("HW")] if len(shape) == 2 else possible_layouts(shape, has_rows=False)
    if not found:
        what = f"is a mask of the shape {shape}" + (f", not {axes}" if axes else "")
        hint = "save it as an array of height and width, or of slices, height and width"
        raise SourceError(key, what, hint)
    return Layout(found[-1].axes.replace("N", "T"))


def _whole(key: str, block: Block) -> Block:
    if isinstance(block, list):
        return [None if part is None else _whole(key, part) for part in block]
    if block.dtype.kind == "b" or (block.dtype.kind == "u" and block.dtype.itemsize <= 2):
        return block.astype(np.uint8) if block.dtype.kind == "b" else block
    is_held = (block >= 0) & (block <= 65_535) & (block == np.trunc(block))
    if not is_held.all():
        what = "is a mask whose values are not whole numbers from 0 to 65535"
        raise SourceError(key, what, "save class numbers as array.astype(numpy.uint16)")
    return block.astype(np.uint16)
