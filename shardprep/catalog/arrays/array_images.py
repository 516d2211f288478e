"""The images in files of arrays, and a table of the other columns."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.arrays.array_file import UNKNOWN, DamagedFileError, reading, rows_at_once
from shardprep.catalog.arrays.number_images import ValueRange, is_scaled, pictures
from shardprep.catalog.arrays.opened_files import ArrayFiles, ChosenColumn, OpenedFile
from shardprep.catalog.objects.mask_files import MaskFiles
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.tables.table import Rows, Table
from shardprep.errors import Choice, OptionName, QuestionError, SourceError, counted, some_of
from shardprep.image.spec import DepthRange
from shardprep.machine import limited_memory
from shardprep.recipe.options import spelled
from shardprep.recipe.recipe import Recipe
from shardprep.recipe.rules import TABLE_SUFFIXES
from shardprep.source.byte_range import RefusedExtent
from shardprep.source.listing import Listing, in_order
from shardprep.source.members import PLACE, PLAIN, Member, Members, MembersBuilder, StackExtent
from shardprep.source.names import clean_key, composed, split_word
from shardprep.source.string_column import Texts
from shardprep.source.unpack import UnpackedFile

_UINT16: DepthRange = (0.0, 65535.0)
"""Black and white levels of uint16 target images, to which `--depth-range` does not apply."""
_DIGITS = re.compile(r"\d+")
_TURNED = re.compile("emnist", re.IGNORECASE)
"""Matches EMNIST files, which store images column by column but do not state this."""
WORK_BYTES = 1 << 30
"""Bytes of memory for blocks, keys and cells, excluding the largest member."""


@dataclass(frozen=True, slots=True)
class ImageListing(Listing):
    """The members of a source, with the images in its files of arrays."""

    columns: Table | None = None
    """Table of item columns, or of the cells in array files; its first column has the keys."""
    proposals: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Option that `shardprep init` proposes → possible values; the listing uses the first value."""
    notes: tuple[str, ...] = ()
    files: MaskFiles | None = None
    """Files of masks or target images that the table of items names, for each image."""


def with_arrays(listing: Listing, recipe: Recipe, *, proposes: bool = False) -> ImageListing:
    """Return the listing with the images of the array files that `--images` names, or of all.

    Without `--images`, array files are opened only if the source has no other image, and TIFF and
    DICOM files become stacks only if most have several images. With `proposes`, unclear columns and
    ranges become proposals instead of errors.
    """
    parts = listing.images, listing.others, listing.skipped, listing.unpacker
    rules = recipe.rules.images
    if listing.unpacker is None:
        return ImageListing(*parts)
    files = ArrayFiles(recipe, listing.unpacker, proposes=proposes)
    with limited_memory(WORK_BYTES + recipe.max_member_size):  # a damaged size may be any number
        if listing.images:
            files.open_volumes(listing.images)
        if rules or not listing.images:
            files.open(listing.others, listing.skipped)
        taken = [*files.named()] if rules else _of_one_set(files)
        if not (taken or files.refused):
            return ImageListing(*parts, notes=files.looked_into() or _unread(listing.others))
        images, columns = read_columns(files, taken)
    if listing.images:
        left = [row for row, key in enumerate(listing.images.keys) if key not in files.used]
        images = Members.joined([listing.images.take(np.array(left, np.int64)), images])
    others = [member for member in listing.others if member.key not in files.used]
    notes = tuple(dict.fromkeys(files.notes))
    parts = in_order(images), others, listing.skipped, listing.unpacker
    return ImageListing(*parts, columns, files.proposals, notes)


def _of_one_set(files: ArrayFiles) -> Sequence[ChosenColumn]:
    """Return the columns of images; QuestionError for tables of several sets, or EMNIST images.

    With `files.proposes`, `files.proposals` are set instead. Tables are one set if their names are
    equal, except for splits and numbers, and their images have one shape. EMNIST images are turned.
    """
    every = (one for opened in files.files for one in opened.candidates)
    columns, sets = [*files.clear(every)], defaultdict[Any, list[str]](list)
    for one in columns:
        key, is_table = one.opened.key, one.opened.key.lower().endswith(TABLE_SUFFIXES)
        if _TURNED.search(key) or (is_table and one.opened.arrays.cells):
            (split, rest), name = split_word(key), key.rpartition("/")[2]
            glob = re.sub(split, "*", name, flags=re.IGNORECASE) if split else name
            sets[_DIGITS.sub("", rest), one.column.shape[1:]].append(glob)
    globs, flags = [tuple(dict.fromkeys(own)) for own in sets.values()], dict[Any, str]()
    if any(map(_TURNED.search, itertools.chain(*globs))):
        flags |= {tuple(f"{x}::NWH" for x in one): "turned, upright" for one in globs}
        flags[tuple(f"{x}::NHW" for x in globs[0])] = "as stored, on their side"
    elif len(globs) > 1:
        flags = dict.fromkeys(globs, "alone") | {("*.csv",): "all files together"}
    if flags and not files.proposes:
        readings = [({"images": one}, why) for one, why in flags.items()]
        choices = [Choice(options, spelled(options), why) for options, why in readings]
        raise QuestionError.of(OptionName("images"), choices)
    if flags:
        files.proposals["images"] = tuple(one[0] for one in flags)
    return columns


def read_columns(files: ArrayFiles, taken: Sequence[ChosenColumn]) -> tuple[Members, Table | None]:
    """Return the images of the columns `taken`, and a table of their cells.

    Numbers become image files in the work folder. A damaged file of one sample becomes a refused
    image; other damage is a SourceError.
    """
    taken = [*_within_limits(files, taken)]
    per_file = Counter(one.opened.key for one in taken)
    names = [one.opened.key for one in taken]
    names = [key if per_file[key] == 1 else f"{key}:{taken[i].name}" for i, key in enumerate(names)]
    first = [_keys(name, one, 1)[0] for name, one in zip(names, taken, strict=True)]
    are_targets = _are_targets(files.recipe, first)
    images = [*itertools.compress(taken, map(operator.not_, are_targets))]
    targets = [*itertools.compress(taken, are_targets)]
    levels = [_levels(files, one, is_target=one is targets) for one in (images, targets)]
    own_keys = [*itertools.compress(first, map(operator.not_, are_targets))]
    of_sample = _sample_ranges(files, images, own_keys) if levels[False] == "auto" else {}
    files.use(per_file)
    packed = sum({one.opened.key: one.opened.place.num_bytes for one in taken}.values())
    builder, out = MembersBuilder(), list[UnpackedFile]()
    others = _CellColumns(files, images)
    tables: list[tuple[Texts, dict[str, Texts]]] = []
    with contextlib.ExitStack() as stack:
        for one, name, is_target in zip(taken, names, are_targets, strict=True):
            key, column = one.opened.key, one.column
            if column.placed is not None:
                file, offsets, sizes = column.placed
            else:
                if not out:  # one file for all: a source may have a million arrays
                    new = files.unpacker.new_file(key, packed)
                    out.append(stack.enter_context(contextlib.closing(new)))
                start = out[0].place.num_bytes
                is_deep = is_target or files.recipe.stack or "T" in one.layout.axes
                depth = files.recipe.depth if is_deep else 8
                try:
                    unscaled = _UINT16 if is_target else "full"
                    own = levels[is_target] if one.is_scaled else unscaled
                    sizes = _write(one, of_sample.get(name, own), depth, out[0])
                except DamagedFileError as error:
                    if one.layout.has_samples:
                        raise
                    files.refused[name] = error
                    continue
                ends = start + np.cumsum(np.maximum(sizes, 0))
                file, offsets = out[0].place.file, ends - np.maximum(sizes, 0)
            keys = _keys(name, one, len(sizes) // one.images_per_item)
            files.unpacker.budget.add_members(len(sizes), key)
            is_auto = one.is_scaled and levels[is_target] == "auto"
            _add(builder, (keys, file, offsets, sizes), one, is_own=is_auto or name in of_sample)
            if one.layout.has_samples and not is_target:
                tables.append((keys, others.of(one, len(keys))))
    others.name_unused()
    return files.with_refused(builder.members()), _table(tables, {one.opened.file for one in taken})


def _within_limits(files: ArrayFiles, taken: Sequence[ChosenColumn]) -> Iterator[ChosenColumn]:
    """Yield the columns within the size limits. An oversized file of one sample is rejected."""
    for one in taken:
        try:
            _check_size(files, one)
        except SourceError as error:
            if one.layout.has_samples:
                raise
            files.refused[one.opened.key] = error
        else:
            yield one
    loose = [one for one in taken if one.layout.axes == "NHW" and one.opened.key.endswith(".npy")]
    if len(loose) > 3:  # fewer may be splits
        option = OptionName("images", "*.npy::THW")
        files.notes.append(f"{option} would store each of {len(loose)} arrays as a stack")


def _check_size(files: ArrayFiles, one: ChosenColumn) -> None:
    column, key = one.column, one.opened.key
    if column.dtype is None or column.is_truncated:
        return
    size = math.prod(one.layout.row_shape(column.shape)) * column.dtype.itemsize
    if size > files.recipe.max_member_size:
        hint = f"raise {OptionName('max_member_size')} if you trust the file"
        what = f"an image of {one.title} has {size:,} bytes, above the limit of"
        raise SourceError(key, f"{what} {files.recipe.max_member_size:,}", hint)
    num_bytes = math.prod(column.shape) * column.dtype.itemsize
    files.unpacker.budget.check_ratio(one.opened.place.num_bytes, num_bytes, key)


def _unread(others: Sequence[Member]) -> tuple[str, ...]:
    """Return a note if HDF5 files were not opened because the source has other images."""
    keys = [one.key for one in others if one.key.lower().endswith((".h5", ".hdf5"))]
    hint = f"{OptionName('images', min(keys, default=''))} adds its images"
    return (f"not read: {some_of(keys, 2)}; {hint}",) if keys else ()


def _are_targets(recipe: Recipe, keys: Sequence[str]) -> list[bool]:
    rule = recipe.rules.target_image
    if rule is None:
        return [False] * len(keys)
    pattern = Pattern(rule.expression, rule.option, rule.text, 0, is_whole=True)
    return [found is not None for found in pattern.search([*map(composed, keys)])]


def _levels(files: ArrayFiles, taken: Sequence[ChosenColumn], *, is_target: bool) -> DepthRange:
    """Return the black and white levels for all scaled numbers.

    If the values do not show them, targets get their range, other images a proposal or SourceError.
    """
    scaled = [one for one in taken if one.is_scaled]
    wanted: DepthRange = "full" if is_target else files.recipe.depth_range
    if not scaled or wanted != "full":
        return wanted
    found = ValueRange()
    for one in scaled:
        with contextlib.suppress(*(() if one.layout.has_samples else (DamagedFileError,))):
            found = _range(one, found)
    if found.low > found.high:
        return wanted
    names = some_of([one.flag for one in scaled], 2)
    types = f"{names}: {scaled[0].column.dtype} from {found.low:g} to {found.high:g}"
    levels = found.levels() or ((found.low, found.high) if is_target else None)
    if levels is None:
        option = OptionName("depth_range")
        if not files.proposes:
            given, auto = OptionName("depth_range", "MIN,MAX"), OptionName("depth_range", "auto")
            hint = f"give {given}, or {auto} for the range of each image"
            what = f"{types}: it is not clear which values are black and white"
            raise SourceError(option, what, hint)
        levels = found.low, found.high
        files.proposals["depth_range"] = (f"{found.low:g},{found.high:g}",)
    files.notes.append(f"{types}; black is {levels[0]:g}, white is {levels[1]:g}")
    return levels


def _sample_ranges(
    files: ArrayFiles, taken: Sequence[ChosenColumn], keys: Sequence[str]
) -> dict[str, DepthRange]:
    """Return file key → value range of its sample, which `--stack` may join from several files.

    A sample with only uint16 has no entry: its range is computed when it is stored.
    """
    rule, option = files.recipe.rules.stack, OptionName("depth_range", "auto")
    samples: Sequence[str | None] = keys
    if rule.text:
        pattern = Pattern(rule.pattern, OptionName("stack"), rule.text, "key", is_whole=True)
        samples = pattern.search(keys)
        if rows := [one.flag for one in taken if one.is_scaled and one.layout.has_samples]:
            stack = OptionName("stack")
            what = f"is not possible if {stack} joins rows of an array, such as {rows[0]}"
            raise SourceError(option, what, f"give {OptionName('depth_range', 'MIN,MAX')}")
    ranges = {
        sample: ValueRange()
        for one, sample in zip(taken, samples, strict=True)
        if one.is_scaled and not one.layout.has_samples
    }
    parts = [
        (key, one, sample)
        for key, one, sample in zip(keys, taken, samples, strict=True)
        if sample in ranges and one.column.dtype is not None and is_scaled(one.column.dtype, 3)
    ]
    for _, one, sample in parts:
        with contextlib.suppress(DamagedFileError):  # `_write` rejects it
            ranges[sample] = _range(one, ranges[sample])
    return {
        key: (found.low, found.high) if (found := ranges[sample]).low <= found.high else (0.0, 1.0)
        for key, _, sample in parts
    }


def _range(one: ChosenColumn, found: ValueRange) -> ValueRange:
    with reading(one.opened.key):
        for block in one.column.blocks(one.layout.rows):
            for values in _pieces(block):
                found = found if values is None else found.with_values(values)
    return found


def _write(
    one: ChosenColumn, levels: DepthRange, depth: int, out: UnpackedFile
) -> NDArray[np.int64]:
    """Write all rows as image files; return their sizes in bytes, −1 for a row without an image."""
    sizes = [np.empty(0, np.int64)]
    with reading(one.opened.key):
        for block in one.column.blocks(one.layout.rows):
            for data, some in _parts(block, one, levels, depth):
                out.write(data)
                sizes.append(some)
    return np.concatenate(sizes)


class _CellColumns:
    """The columns of cells that belong to columns of images, in the same or in another file.

    Cells of a file without images belong to the only column of images that has the same folder, the
    same split in its name, and the same number of rows.
    """

    def __init__(self, files: ArrayFiles, taken: Sequence[ChosenColumn]) -> None:
        self._files = files
        self._num_columns = Counter((*one.opened.set_name, one.num_rows) for one in taken)
        self._apart: dict[Any, list[tuple[OpenedFile, str]]] = defaultdict(list)
        for opened in files.files:
            for name, number in opened.arrays.cells.items() if not opened.arrays.images else ():
                self._apart[*opened.set_name, number].append((opened, name))

    def name_unused(self) -> None:
        """Add a note on columns that may be labels but do not fit the images."""
        every = [one for opened in self._files.files for one in opened.columns]
        odd = [f"{one.flag} {one.column.shape}" for one in every if not one.layouts]
        apart = (
            (f"{o.file}:{o.title(name)}", o.key, number)
            for (*_, number), several in self._apart.items()
            for o, name in several
        )
        odd += [
            f"{flag} ({number:,},)" for flag, key, number in apart if key not in self._files.used
        ]
        idle = [one.arrays for one in self._files.files if one.key not in self._files.used]
        if lost := [text for one in idle for text in one.left_out]:
            self._files.notes.append(f"left out {some_of(lost, 3)}")
        if odd:
            what = "not used: a column needs one axis, and a row for each image"
            self._files.notes.append(f"{some_of(odd, 3)} {what}")

    def of(self, one: ChosenColumn, num_rows: int) -> dict[str, Texts]:
        """Return title → cells for the images of `one`; SourceError for another number of rows.

        Segmentations and keypoints need much memory: they are read only for masks and points.
        """
        rules = self._files.recipe.rules
        shapes = {".segmentation": rules.masks.is_given, ".keypoints": rules.points.is_given}
        unread = tuple(name for name, is_wanted in shapes.items() if not is_wanted)
        own, word = one.opened, split_word(one.title)[0] or one.opened.set_name[1]
        chosen = []
        for name, number in own.arrays.cells.items():
            if name.endswith(unread):
                continue
            if number in (num_rows, UNKNOWN) and split_word(name)[0] in (None, word):
                chosen.append((own, name))
            else:
                self._files.notes.append(f"column {name}: {counted(number, 'row')}, not used")
        if own.arrays.left_out:
            self._files.notes.append(f"left out columns {some_of(own.arrays.left_out)}")
        group = (*own.set_name, num_rows)
        chosen += self._apart[group] if self._num_columns[group] == 1 else []
        found: dict[str, Texts] = {}
        for opened, several in itertools.groupby(chosen, key=operator.itemgetter(0)):
            names = [name for _, name in several]
            self._files.used.add(opened.key)
            titles = [_plain(opened.title(name)) for name in names]
            found.update(zip(titles, opened.arrays.read_cells(names), strict=True))
        for title, texts in found.items():
            if len(texts) != num_rows:
                rows, images = counted(len(texts), "row"), counted(num_rows, "image")
                what = f"column {title!r} has {rows} for {images}"
                raise SourceError(own.key, what, "download or write the file again")
        return found


def _plain(title: str) -> str:
    """Return a title without the name of a split: "y" for "y_train"."""
    word, rest = split_word(title)
    return rest if word and rest else title


def _keys(prefix: str, one: ChosenColumn, number: int) -> Texts:
    if not one.layout.has_samples:
        return Texts.of([prefix])
    if one.column.names:
        return Texts.of(
            f"{prefix}/{clean_key(name.replace(chr(92), '/'))}" for name in one.column.names
        )
    return _numbered(prefix, number)


def _numbered(prefix: str, number: int) -> Texts:
    numbers = pa.py_buffer(np.arange(number, dtype=np.int64))
    texts = pa.Array.from_buffers(pa.int64(), number, [None, numbers]).cast(pa.string())
    return Texts(pc.utf8_lpad(texts, max(6, len(str(number - 1))), "0")).after(f"{prefix}/")


def _pieces(block: Any) -> Iterator[Any]:
    """Yield elements of a list or parts of an array; a whole block needs much memory to scale."""
    step = 1 if isinstance(block, list) else rows_at_once(block.nbytes // max(1, len(block)))
    for at in range(0, len(block), step):
        yield block[at] if isinstance(block, list) else block[at : at + step]


def _parts(
    block: Any, column: ChosenColumn, levels: DepthRange, depth: int
) -> Iterator[tuple[Any, NDArray[np.int64]]]:
    """Yield bytes of some images, and the size of each image; −1 if its row has no image."""
    layout = column.layout
    shape = layout.row_shape(column.column.shape)
    if isinstance(block, np.ndarray) and block.shape[1:] != shape:
        block = [None] * len(block)
    if isinstance(block, np.ndarray):
        for rows in _pieces(block):
            files = pictures(rows, layout, levels, depth)
            yield files.reshape(-1).data, np.full(len(files), files.shape[1], np.int64)
    elif isinstance(block, list):
        for one in block:
            if one is None or (isinstance(one, np.ndarray) and one.shape != shape):
                num_rows = 1 if layout.has_samples else column.num_rows
                yield b"", np.full(column.images_per_item // num_rows, -1)
            elif isinstance(one, bytes):
                yield one, np.array([len(one)])
            else:
                yield from _parts(one[np.newaxis], column, levels, depth)
    else:
        block = block.cast(pa.large_binary())
        offsets = np.frombuffer(block.buffers()[1], np.int64)[block.offset :][: len(block) + 1]
        data = memoryview(block.buffers()[2] or b"")[offsets[0] : offsets[-1]]
        is_valid = np.array(block.is_valid().to_pylist(), bool)
        yield data, np.where(is_valid, np.diff(offsets), -1)


def _add(
    builder: MembersBuilder,
    rows: tuple[Texts, str, NDArray[np.int64], NDArray[np.int64]],
    one: ChosenColumn,
    *,
    is_own: bool,
) -> None:
    """Add an image, or a stack of `one.images_per_item` images, for each key."""
    keys, file, offsets, sizes = rows
    places = np.zeros((len(keys), one.images_per_item), PLACE)
    places["kind"], places["offset"] = PLAIN, offsets.reshape(places.shape)
    places["num_bytes"] = sizes.reshape(places.shape)
    lacks = (places["num_bytes"] < 0).any(axis=1)
    good = np.flatnonzero(~lacks)
    if "T" not in one.layout.axes:
        builder.add_all(keys.take(good), places[good, 0], file)
    column, places_of = one.column, [one.layout.axes.find(axis) for axis in "THW"]
    spacing = tuple(column.spacing[place] for place in places_of if column.spacing)
    directions = tuple(column.directions[place] for place in places_of if column.directions)
    for row in good.tolist() if "T" in one.layout.axes else ():
        members = Members(_numbered(keys[row], places.shape[1]), places[row], (file,))
        stack = StackExtent(members, spacing=spacing, directions=directions, is_scaled=is_own)
        builder.add(keys[row], stack)
    for row in np.flatnonzero(lacks).tolist():
        reason = f"has no image: {one.title!r} is empty in this row, or of another shape"
        builder.add(keys[row], RefusedExtent(0, reason))


def _table(tables: Sequence[tuple[Texts, dict[str, Texts]]], files: set[str]) -> Table | None:
    titles = [*dict.fromkeys(title for _, columns in tables for title in columns)]
    if not titles:
        return None
    name = "key"
    while name in titles:
        name += "_"
    nothing = Texts.of([""])
    columns = [Texts.joined([keys for keys, _ in tables])]
    for title in titles:
        parts = [
            own[title] if title in own else nothing.take(np.zeros(len(keys), np.int64))
            for keys, own in tables
        ]
        columns.append(Texts.joined(parts))
    rows = Rows(columns, len(columns[0]))
    return Table(some_of(sorted(files), 2), (name, *titles), rows, is_own=True)
