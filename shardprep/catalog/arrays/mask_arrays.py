"""Masks in files of arrays, and in TIFF files of several pages: their numbers are kept exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from shardprep.catalog.arrays.array_file import Block
from shardprep.catalog.arrays.array_images import WORK_BYTES, ImageListing, read_columns
from shardprep.catalog.arrays.layout import Layout, given_layout, possible_layouts
from shardprep.catalog.arrays.opened_files import PAGED, ArrayFiles, ChosenColumn
from shardprep.catalog.names import masks_by_folder
from shardprep.catalog.objects.mask_files import fits_all, matching
from shardprep.errors import OptionName, SourceError
from shardprep.machine import limited_memory
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Listing, in_order
from shardprep.source.members import Member, Members
from shardprep.source.names import is_array_name

_MOST_VALUE = 65_535


class FoundMasks(NamedTuple):
    """The members of a source that `--masks` names."""

    images: Members
    arrays: list[Member]


def masks_apart(listing: Listing, recipe: Recipe) -> tuple[Listing, FoundMasks]:
    """Return the listing without masks, and the masks.

    Masks in images stay in the listing if there are neither stacks nor arrays.
    """
    rule, keys = recipe.rules.masks, list(listing.images.keys)
    arrays = [one for one in listing.others if is_array_name(one.key.rpartition("/")[2])]
    found: set[str] = set()
    if rule.kind == "pattern" and (arrays or recipe.stack or any(map(PAGED.search, keys[:1]))):
        found.update(matching([*keys, *(one.key for one in arrays)], rule.pattern))
    elif rule.kind == "auto" and recipe.stack:
        found.update(key for several in masks_by_folder(keys).values() for key in several)
    if keys and len(found) == len(keys) + len(arrays):
        raise fits_all(rule.pattern)
    is_mask = np.array([key in found for key in keys], bool)
    masks = [one for one in arrays if one.key in found]
    rest = replace(
        listing,
        images=listing.images.take(np.flatnonzero(~is_mask)),
        others=[one for one in listing.others if one.key not in found],
    )
    return rest, FoundMasks(listing.images.take(np.flatnonzero(is_mask)), masks)


def with_masks(listing: ImageListing, masks: FoundMasks, recipe: Recipe) -> ImageListing:
    """Return the listing of stacks or images with their masks.

    A mask in an array is one image, or a stack of images if the array has more than two axes. A
    layout of `--images` also applies to masks whose names fit its FILE.
    """
    if listing.unpacker is None or not (len(masks.images) or masks.arrays):
        return listing
    named = ArrayFiles(recipe, listing.unpacker, proposes=False)
    exact = replace(recipe.with_rules(images=("*",)), depth_range="full")
    files = ArrayFiles(exact, listing.unpacker, proposes=False)
    images = masks.images
    with limited_memory(WORK_BYTES + recipe.max_member_size):  # a damaged size may be any number
        if listing.images.are_stacks.any():
            files.open_images(images, single=False)
        if masks.arrays:
            files.open(masks.arrays)
        columns = [_exact(one, named) for opened in files.files for one in opened.columns]
        made, _ = read_columns(files, columns)
    left = [row for row, key in enumerate(images.keys) if key not in files.used]
    parts = [listing.images, images.take(np.array(left, np.int64)), made]
    others = [*listing.others, *(one for one in masks.arrays if one.key not in files.used)]
    others.sort(key=lambda one: one.key)
    return replace(listing, images=in_order(Members.joined(parts)), others=others)


def _exact(one: ChosenColumn, named: ArrayFiles) -> ChosenColumn:
    """Return the column with whole numbers, and with the layout of a mask."""
    key, column = one.opened.key, one.column
    if len(one.opened.columns) > 1:
        raise SourceError(key, "has several arrays, and a mask is one", "save it in its own file")
    if column.dtype is None:
        return one
    is_byte = column.dtype.kind == "b" or column.dtype == np.uint8
    changed = replace(
        column, dtype=np.dtype(np.uint8 if is_byte else np.uint16), blocks=partial(_blocks, one)
    )
    exact = one._replace(column=changed, layouts=[_layout(one, named)])
    if exact.is_scaled:
        what = f"is a mask of {column.dtype} in colours"
        raise SourceError(key, what, "save it as an array of classes, without an axis of colours")
    return exact


def _layout(one: ChosenColumn, named: ArrayFiles) -> Layout:
    key, column, shape = one.opened.key, one.column, one.column.shape
    rule, found = named.rule(key), list(column.layouts[:1])
    if rule is not None and rule.layout:
        given = given_layout(rule.layout, shape, has_rows=column.has_rows)
        found = [given] if given is not None else []
    elif not found and 0 not in shape:
        found = [Layout("HW")] if len(shape) == 2 else possible_layouts(shape, has_rows=False)
    if not found:
        hint = f"state its axes: {OptionName('images')} 'FILE::THW'"
        raise SourceError(key, f"is a mask of the shape {shape}", hint)
    return found[-1]._replace(axes=found[-1].axes.replace("N", "T"))


def _blocks(one: ChosenColumn, axis: int) -> Iterator[Block]:
    for block in one.column.blocks(axis):
        if isinstance(block, list):
            yield [None if part is None else _whole(one, part) for part in block]
        else:
            yield _whole(one, block)


def _whole(one: ChosenColumn, values: Block) -> Block:
    if values.dtype.kind in "bu" and values.dtype.itemsize <= 2:
        return values.astype(np.uint8) if values.dtype.kind == "b" else values
    is_held = (values >= 0) & (values <= _MOST_VALUE) & (values == np.trunc(values))
    if not is_held.all():
        what = "is a mask whose values are not whole numbers from 0 to 65535"
        raise SourceError(one.opened.key, what, "save it as array.astype(numpy.uint16)")
    return values.astype(np.uint16)
