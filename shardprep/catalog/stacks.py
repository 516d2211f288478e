"""Stacks: samples of several images, which `--stack` finds by the names of their files."""

from __future__ import annotations

import math
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np
import pyarrow.compute as pc

from shardprep.catalog.arrays.array_images import ImageListing
from shardprep.catalog.names import MASK_ENDING, given_split, masks_by_folder, natural_order
from shardprep.catalog.objects.mask_files import skipped
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.tables.columns import Column, Value
from shardprep.catalog.tables.table import Table
from shardprep.dataset.schema import NUM_IMAGES
from shardprep.errors import OptionName, RecipeError, SourceError, counted, shown
from shardprep.recipe.recipe import Recipe
from shardprep.recipe.rules import parse_stack_rule
from shardprep.source.members import Member, Members, StackExtent
from shardprep.source.string_column import Coded, Texts, booleans, positions

_OPTION = OptionName("stack")
_DIFFER = "channels differ in their number of planes"
_TURNED = "volumes differ in the directions of their axes"
_MOST_SHOWN = 160
_MOST_OF_THEM = 0.9
"""Minimum share of images or folders that a detected pattern must fit; files may be missing."""
_DIFFERENT = 0.5
"""Minimum share of ids in one row only, and size of a channel relative to the largest channel."""
_MOST_LOOKED_AT = 10_000
_MOST_COLUMNS, _MOST_ROWS = 12, 300_000
"""Maximum number of columns and of rows to search for ids."""
_LEAST_FOLDERS, _LEAST_IMAGES = 2, 2
"""Minimum number of samples, and of images per sample, to detect stacks."""
_MOST_CHANNELS = 16
_SPACING = ("spacing/t", "spacing/y", "spacing/x")
"""Features with the distances of planes, rows and columns, in the unit of the file."""
_UNKNOWN = (math.nan,) * 3
_DICOM = (".dcm", ".dicom")
_COLOURS = ("red", "green", "blue")


def stacked(recipe: Recipe, listing: ImageListing) -> ImageListing:
    """Return the listing with a `StackExtent` for each sample; unchanged without `--stack`.

    Files are in natural order of their names, channels in the order of `--stack`. Files that do not
    match are skipped, like samples without one file for each channel. SourceError without stacks.
    """
    rule = recipe.rules.stack
    if not (rule.text and listing.images):
        return listing
    images, names = listing.images, list(listing.images.keys)

    def found(group: str) -> list[str | None]:
        return Pattern(rule.pattern, _OPTION, rule.text, group, is_whole=True).search(names)

    order = [name.lower() for name in rule.channels]
    channels = [(name or "").lower() for name in found("channel")] if order else []
    rows_of: defaultdict[str | None, list[int]] = defaultdict(list)
    for row, sample in enumerate(found("key")):
        rows_of[sample].append(row)
    unmatched = np.array(rows_of.pop(None, []), np.int64)
    lost = [skipped(member, "not matched by --stack") for member in images.take(unmatched)]
    made: list[Member] = []
    for sample, rows in rows_of.items():
        rows.sort(key=lambda row: natural_order(names[row]))
        rows.sort(key=lambda row: order.index(channels[row]) if order else 0)
        extent = stack_of(images, rows, order)
        member = Member(str(sample), extent)
        there = [channels[row] for row in rows] if order else []
        if not extent.members:
            lost.append(skipped(member, _TURNED if len(_turns(images, rows)) > 1 else _DIFFER))
        elif there == order:
            made.append(member)
        elif lacking := [name for name in rule.channels if name.lower() not in there]:
            lost.append(skipped(member, "a channel is missing", ", ".join(lacking)))
        else:
            lost.append(skipped(member, "a channel has several files"))
    if not made:
        what = f"{shown(rule.text)} finds no stack among {counted(len(names), 'image')}"
        if rows_of:
            what += f" ({counted(len(rows_of), 'sample')} without a file for each channel)"
        raise SourceError(_OPTION, what, f"use a pattern that fits {shown(names[0], _MOST_SHOWN)}")
    every = sorted([*listing.skipped, *lost], key=lambda one: one.key)
    made.sort(key=lambda one: one.key)
    return replace(listing, images=Members.of(made), skipped=every)


def stack_of(
    images: Members, rows: Sequence[int], channels: Sequence[str] = (), *, is_ordered: bool = False
) -> StackExtent:
    """Return the stack of the images at `rows`, without members if volumes do not fit together.

    DICOM slices are later sorted by position, except with channels or `is_ordered`.
    """
    files = _single(images.take(np.array(rows)), channels, _turns(images, rows))
    first = images[rows[0]].extent
    own = first if isinstance(first, StackExtent) else StackExtent(files)
    spacing = own.spacing if len(spacings(images[row] for row in rows)) < 2 else _UNKNOWN
    return replace(own, members=files, has_channels=bool(channels) or is_ordered, spacing=spacing)


def _turns(images: Members, rows: Sequence[int]) -> set[tuple[str, ...]]:
    """Return the different directions of axes that the volumes in `rows` state."""
    extents = (images[row].extent for row in rows)
    return {one.directions for one in extents if isinstance(one, StackExtent)} - {()}


def spacings(members: Iterable[Member]) -> set[tuple[float, ...]]:
    """Return the distinct spacings, to three significant digits; () for volumes without spacing."""
    extents = (one.extent for one in members)
    stated = (one.spacing for one in extents if isinstance(one, StackExtent))
    return {tuple(float(f"{value:.3g}") for value in one) for one in stated}


def _single(members: Members, channels: Sequence[str], turns: Collection[object]) -> Members:
    """Return the members with the images of each stack instead of the stack.

    With channels, the first image of each channel is followed by the second images, …. Empty if
    channels differ in length, or if `turns` has several directions of axes.
    """
    if not members.are_stacks.any():
        return members
    if members.are_refused.any():  # the stack is rejected
        return members.take(np.flatnonzero(members.are_refused))
    parts = [
        one.extent.members if isinstance(one.extent, StackExtent) else Members.of([one])
        for one in members
    ]
    joined = Members.joined(parts)
    is_even = not channels or len({*map(len, parts)}) == 1
    rows = np.arange(len(joined) if is_even and len(turns) < 2 else 0)
    return joined.take(rows.reshape(len(parts), -1).T.ravel() if channels else rows)


def check_stacks(recipe: Recipe, members: Members) -> None:
    """Raise RecipeError if options do not fit the images, SourceError if only some are stacks."""
    if not members.are_stacks.any():
        if recipe.image_spec.depth == 16:
            what = "only stacks and target images can have 16 bits"
            raise RecipeError(OptionName("depth"), what, "leave this option out")
        return
    single = np.flatnonzero(~members.are_stacks & ~members.are_refused)
    if len(single):
        what = f"has stacks, but also {counted(len(single), 'single image')}"
        names = [members.keys[i] for i in single.tolist()]
        ends = {f"*{PurePosixPath(name).suffix}" for name in names}
        stacks = (members.keys[i] for i in np.flatnonzero(members.are_stacks).tolist())
        are_apart = ends.isdisjoint(f"*{PurePosixPath(name).suffix}" for name in stacks)
        globs = [str(OptionName("exclude", one)) for one in (sorted(ends) if are_apart else names)]
        hint = f"leave stacks or single images out, as with {' '.join(globs[:3])}"
        raise SourceError(recipe.source, what, hint)
    for key in ("boxes", "points", "target_image", "tile"):
        if getattr(recipe, key) not in ("", "none", None):
            what = "is not supported for stacks"
            raise RecipeError(OptionName(key), what, "leave this option out")
    option = OptionName("instances" if recipe.instances else "masks")
    if recipe.instances or recipe.rules.masks.kind in ("rle", "format"):
        what = "masks of objects are not supported for stacks"
        hint = "give files of class masks, such as '{id}/labels/*.png'"
        raise RecipeError(option, what, "leave this option out" if recipe.instances else hint)


def stack_columns(members: Members) -> dict[Column, Coded[Value]]:
    """Return columns of the number of images in stacks and of their spacing; {} without stacks."""
    if not members.are_stacks.any():
        return {}
    numbers: Coded[Value] = Coded.of(members.num_files.tolist())
    found = {Column(NUM_IMAGES, "int64"): numbers}
    extents = [one.extent for one in members]
    spacing = [one.spacing if isinstance(one, StackExtent) else () for one in extents]
    if any(spacing):
        columns = zip(*(one or _UNKNOWN for one in spacing), strict=True)
        for name, along in zip(_SPACING, columns, strict=True):
            found[Column(name, "float32")] = Coded.of(along)
    return found


def stack_patterns(keys: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """Return the value of `--stack` that fits the names of images, as a list; or [].

    Channels are files whose names differ in the same few endings. Series are DICOM files in several
    folders, files in folders named by ids of a table, or numbered files next to a folder of masks.
    """
    keys = keys[:_MOST_LOOKED_AT]
    masks = set[str]().union(*masks_by_folder(keys).values())
    paths = [PurePosixPath(key) for key in keys if key not in masks]
    suffixes = Counter(path.suffix for path in paths)
    suffix, number = suffixes.most_common(1)[0] if paths else ("", 0)
    if number < _MOST_OF_THEM * len(paths):
        return []
    channels = _channels([path for path in paths if path.suffix == suffix])
    if channels:
        return [f"{{id}}_{{{','.join(channels)}}}{suffix}"]
    counts = Counter(path.parent for path in paths)
    folders = [folder for folder, count in counts.items() if count >= _LEAST_IMAGES]
    num_there = sum(counts[folder] for folder in folders)
    if len(folders) < _LEAST_FOLDERS or num_there < _MOST_OF_THEM * len(paths):
        return []
    if any(id_column(table, {path.stem for path in paths}) for table in tables):
        return []  # each image has a row
    names = {folder.name for folder in folders if given_split(folder.parts) != "test"}
    inner, is_split = "", any(given_split([folder.parent.name]) for folder in folders)
    if masks and len(names) == 1 and not is_split and all(one.stem.isdigit() for one in paths):
        inner, folders = names.pop(), [folder.parent for folder in folders]
    elif suffix.lower() not in _DICOM and not any(id_column(table, names) for table in tables):
        return []
    return [*filter(None, [series_pattern(folders, f"{inner}/*{suffix}".removeprefix("/"))])]


def series_pattern(folders: Sequence[PurePosixPath], files: str) -> str:
    """Return the value of `--stack` for folders of samples and a pattern of files in them.

    "" unless all folders are on one level, one to three levels below their common folder.
    """
    common = PurePosixPath(posixpath.commonpath(folders))
    depths = {len(folder.parts) - len(common.parts) for folder in folders}
    if all(given_split(folder.parts[len(common.parts) :][:1]) for folder in folders):
        common, depths = PurePosixPath(), {depth - 1 for depth in depths}
    if len(depths) > 1:
        return ""
    fields = {1: "{id}", 2: "{study}/{series}", 3: "{patient}/{study}/{series}"}
    if max(depths) == len(fields):
        uppers = {folder.parts[len(common.parts)] for folder in folders}
        fields[3] = "{id}/*/*" if len(uppers) == len(folders) else fields[3]
    found = fields.get(max(depths), "")
    return str(common / found / files) if found else ""


def stack_masks(masks: Iterable[str]) -> str:
    """Return the only pattern of masks in folders of samples; SourceError for none or several."""
    paths = [PurePosixPath(one) for one in masks]
    found = {f"{{id}}/{path.parent.name}/*{path.suffix}" for path in paths}
    if len(found) != 1:
        hint = f"say where they are, as in {OptionName('masks', '{id}/masks/*.png')}"
        raise SourceError(OptionName("masks", "auto"), "no masks of stacks are recognised", hint)
    return found.pop()


def sample_keys(keys: Iterable[str], pattern: str) -> list[str]:
    """Return the keys of the samples that `pattern`, a value of `--stack`, gives."""
    found = map(re.compile(parse_stack_rule(pattern).pattern).fullmatch, keys)
    return sorted({match["key"] for match in found if match is not None})


def stack_findings(members: Members, patterns: Sequence[str]) -> list[str]:
    """Return remarks on lengths of stacks; for single images, on `patterns` of stacks that fit."""
    if members.are_stacks.any():
        numbers = members.num_files
        median = int(np.quantile(numbers, 0.5, method="inverted_cdf"))
        lengths = f"{numbers.min():,} to {numbers.max():,} images, median {median:,}"
        if numbers.min() == numbers.max():
            lengths = counted(median, "image")
        extents = [one.extent for one in members]
        joined = [one.spacing for one in extents if isinstance(one, StackExtent)].count(_UNKNOWN)
        what = f"{counted(joined, 'stack', 'joins', 'join')} files that state different spacings"
        remark = f"{what}: they may not fit, and no spacing is stored"
        return [f"{counted(len(members), 'stack')} of {lengths}", *[remark] * (joined > 0)]
    what = "would store the images of a sample as one example"
    return [f"{OptionName('stack', one)} {what}" for one in patterns]


def _channels(paths: Sequence[PurePosixPath]) -> list[str]:
    """Return the common endings of names such as `a_red`; red, green and blue come first."""
    parts = [path.stem.rpartition("_") for path in paths]
    counts = Counter(ending for stem, _, ending in parts if stem and not ending.isdigit())
    most = max(counts.values(), default=0)
    endings = sorted(ending for ending in counts if counts[ending] >= _DIFFERENT * most)
    are_few = 2 <= len(endings) <= _MOST_CHANNELS and most >= _LEAST_FOLDERS
    if not are_few or sum(counts[one] for one in endings) < _MOST_OF_THEM * len(paths):
        return []
    samples = {(path.parent, stem) for path, (stem, _, _) in zip(paths, parts, strict=True)}
    is_mask = any(MASK_ENDING.search(f"_{ending}") for ending in endings)
    if is_mask or len(paths) < _MOST_OF_THEM * len(endings) * len(samples):
        return []
    return sorted(endings, key=lambda name: (_COLOURS.index(name) if name in _COLOURS else 9, name))


def id_column(table: Table, names: Collection[str]) -> str:
    """Return the column that has 90% of `names`, if half of `names` are in one row only; or "".

    The result is "" if over 10% of `names` lack a digit, because they may be classes. Cells may be
    paths, and may lack the extension.
    """
    if sum(any(map(str.isdigit, name)) for name in names) < max(1, _MOST_OF_THEM * len(names)):
        return ""
    asked = Texts.of(sorted(names))
    for place, title in enumerate(table.header[:_MOST_COLUMNS]):
        whole = table.cells(place)[:_MOST_ROWS].ends(0)
        for cells in (whole, whole.stems(0)):
            if booleans(pc.is_in(asked.array, cells.array)).mean() >= _MOST_OF_THEM:
                found, is_many = positions(asked, cells)
                if (found[~is_many] >= 0).sum() >= _DIFFERENT * len(names):
                    return title
    return ""
