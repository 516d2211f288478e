"""The images in files of arrays, and the table of the columns beside them."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.arrays.array_file import UNKNOWN, ArrayFile, ImageColumn, reading
from shardprep.catalog.arrays.arrow_file import open_parquet, open_pixel_csv
from shardprep.catalog.arrays.flat_array import IDX_TYPES, open_idx, open_npy
from shardprep.catalog.arrays.hdf5_file import open_hdf5
from shardprep.catalog.arrays.layout import Layout, given_layout, possible_layouts
from shardprep.catalog.arrays.number_images import ValueRange, is_scaled, pictures
from shardprep.catalog.arrays.tfrecord_file import open_tfrecord
from shardprep.catalog.tables.table import Rows, Table
from shardprep.dataset.tfrecord import HEADER_BYTES, payload_bytes
from shardprep.errors import OptionError, OptionName, SourceError, some_of
from shardprep.image.signatures import HEAD_BYTES, archive_type, array_type
from shardprep.image.spec import DepthRange
from shardprep.machine import limited_memory
from shardprep.recipe.recipe import Recipe
from shardprep.recipe.rules import TABLE_SUFFIXES, ArrayRule
from shardprep.source.byte_range import PlainExtent, RefusedExtent, StoredExtent
from shardprep.source.listing import Listing, in_order
from shardprep.source.members import PLACE, PLAIN, Member, Members, MembersBuilder
from shardprep.source.names import clean_key, split_word
from shardprep.source.string_column import Texts
from shardprep.source.unpack import UnpackedFile, Unpacker, decompressed, member_stream

_OPTION = OptionName("images")
_DIGITS = re.compile(r"\d+")
_ENDING = re.compile(r"[-_.]idx\d-ubyte|\.(npy|gz)$")
_MOST_SHOWN = 8
_WORK_BYTES = 1 << 30
"""Memory for blocks, keys and cells, in addition to one member."""


@dataclass(frozen=True, slots=True)
class ImageListing(Listing):
    """The members of a source, with the images in its files of arrays."""

    columns: Table | None = None
    """The columns beside the images; the first one has the keys of the images."""
    proposals: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Option that `shardprep init` proposes → its possible values; the first one was used."""
    notes: tuple[str, ...] = ()


class _Opened(NamedTuple):
    """A file of arrays."""

    member: Member
    place: PlainExtent
    arrays: ArrayFile
    root: str
    """Name of the source if it is a file, which is a folder of keys if it is an .npz."""

    @property
    def key(self) -> str:
        return self.member.key

    @property
    def folder(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def file(self) -> str:
        """The file as users name it: for a member of an .npz, the .npz."""
        folder = self.folder or self.root
        return folder if folder.lower().endswith(".npz") else self.key

    def title(self, column: str) -> str:
        """Return the name of a column, for a .npy the name of the file without its suffix."""
        return column or _ENDING.sub("", self.key.rpartition("/")[2])

    @property
    def candidates(self) -> list[_Column]:
        return [
            _Column(self, name, column, layouts)
            for name, column in self.arrays.images.items()
            if (layouts := _layouts(column))
        ]


class _Column(NamedTuple):
    """A column of images, with the layouts that it may have."""

    opened: _Opened
    name: str
    column: ImageColumn
    layouts: list[Layout]

    @property
    def title(self) -> str:
        return self.opened.title(self.name)

    @property
    def flag(self) -> str:
        """The value of `--images` that names the column."""
        is_whole = self.opened.file == self.opened.key and not self.name
        return self.opened.file if is_whole else f"{self.opened.file}:{self.title}"

    @property
    def layout(self) -> Layout:
        return self.layouts[0]

    @property
    def num_rows(self) -> int:
        return self.column.shape[self.layout.rows] if self.layout.rows >= 0 else 0

    @property
    def is_scaled(self) -> bool:
        dtype, axes = self.column.dtype, self.layout.axes
        if dtype is None:
            return False
        row = self.layout.row_shape(self.column.shape)
        channels = row[axes.replace("N", "").index("C")] if "C" in axes else 1
        if axes == "N":
            channels = row[0] // (self.layout.size[0] * self.layout.size[1])
        return is_scaled(dtype, channels)


def _layouts(column: ImageColumn) -> list[Layout]:
    if column.dtype is None:
        return [Layout("N")]
    if 0 in column.shape:
        return []
    return possible_layouts(column.shape, has_rows=column.has_rows)


def with_arrays(listing: Listing, recipe: Recipe, *, proposes: bool = False) -> ImageListing:
    """Return the listing with the images of array files that the recipe names, or of all.

    Without `--images`, files are opened only if the source has no other image. With `proposes`,
    unclear columns and ranges are decided and returned as proposals instead of being an error.
    """
    parts = listing.images, listing.others, listing.skipped, listing.unpacker
    rules = recipe.rules.images
    if listing.unpacker is None or (not rules and listing.images):
        return ImageListing(*parts)
    found = _Arrays(recipe, listing.unpacker, proposes=proposes)
    with limited_memory(_WORK_BYTES + recipe.max_member_size):  # a damaged size may be any number
        found.open(listing.others)
        taken = [*found.named()] if rules else [*found.clear(found.all())]
        if not taken:
            return ImageListing(*parts, notes=found.looked_into())
        images, columns = found.read(taken)
    used = {*found.used}
    others = [member for member in listing.others if member.key not in used]
    images = in_order(Members.joined([listing.images, images]) if listing.images else images)
    return ImageListing(
        images, others, listing.skipped, listing.unpacker, columns, found.proposals,
        tuple(found.notes),
    )  # fmt: skip


def _kind(member: Member) -> str | None:
    """Return the kind of an array file, with "gz:" before it if it is compressed."""
    if isinstance(member.extent, RefusedExtent):
        return None
    with reading(member.key):
        head, before = member.extent.read_head(HEAD_BYTES), ""
    if (packed := archive_type(head)) in ("gz", "bz2", "xz"):
        with reading(member.key), member_stream(member.extent) as stream:
            head, before = decompressed(stream, packed).read(HEAD_BYTES), f"{packed}:"
    kind = array_type(head)
    if kind == "tfrecord" and payload_bytes(head[:HEADER_BYTES]) is None:
        return None
    if kind == "idx" and head[2] not in IDX_TYPES:
        return None
    if kind is None and member.key.lower().endswith(TABLE_SUFFIXES):
        kind = "csv"
    return kind and before + kind


class _Arrays:
    """The array files of one source."""

    def __init__(self, recipe: Recipe, unpacker: Unpacker, *, proposes: bool) -> None:
        self.recipe = recipe
        self.unpacker = unpacker
        self.proposes = proposes
        self.files: list[_Opened] = []
        self.used: set[str] = set()
        self.notes: list[str] = []
        self.proposals: dict[str, tuple[str, ...]] = {}
        self._datasets: list[str] = []
        self._root = recipe.source.rpartition("/")[2]

    def open(self, others: Sequence[Member]) -> None:
        """Open all array files; with rules, those that a rule names and the others beside them."""
        keys = {member.key for member in others}
        manifests = [key for key in keys if key.rpartition("/")[2] == "manifest.json"]
        folders = [key.removesuffix("manifest.json") for key in manifests]
        self._datasets = [one for one in folders if f"{one}items.parquet" in keys]
        wanted = [one for one in others if not one.key.startswith(tuple(self._datasets) or ("\0",))]
        rules = self.recipe.rules.images
        if rules:
            named = [one.key for one in wanted if self._rule(one.key) is not None]
            if not named:
                there = some_of([one.key for one in wanted], _MOST_SHOWN) or "none"
                what = f"no file of arrays is called {some_of([rule.file for rule in rules])}"
                raise OptionError(_OPTION, what, f"the source has {there}{self._own()}")
            near = {key.rpartition("/")[0] for key in named}
            wanted = [one for one in wanted if one.key.rpartition("/")[0] in near]
        for member in wanted:
            kind = _kind(member)
            if kind is None or isinstance(member.extent, RefusedExtent):
                continue
            try:
                place = self._place(member.key, member.extent, kind)
                arrays = self._open(place, member.key, kind.rpartition(":")[2])
            except SourceError as error:
                # Arrays of objects, such as names, may lie beside images.
                if "pickled" not in error.what or self._rule(member.key) is not None:
                    raise
                self.notes.append(f"{member.key} {error.what}")
                continue
            if arrays is not None:
                self.files.append(_Opened(member, place, arrays, self._root))

    def _place(self, key: str, extent: StoredExtent, kind: str) -> PlainExtent:
        packed = kind.rpartition(":")[0]
        with reading(key), member_stream(extent) as stream:
            if not packed:
                return self.unpacker.in_place(extent, key)
            return self.unpacker.unpack(decompressed(stream, packed), extent.num_bytes, key)

    def _open(self, place: PlainExtent, key: str, kind: str) -> ArrayFile | None:
        most_bytes = self.recipe.max_member_size
        if kind == "npy":
            return open_npy(place, key)
        if kind == "idx":
            return open_idx(place, key)
        if kind == "hdf5":
            return open_hdf5(place, key, most_bytes)
        if kind == "tfrecord":
            return open_tfrecord(place, key, most_bytes)
        return open_parquet(place, key) if kind == "parquet" else open_pixel_csv(place, key)

    def _rule(self, key: str) -> ArrayRule | None:
        """Return the first rule that names a file, or the .npz that holds it."""
        folder = key.rpartition("/")[0]
        folder = folder or self._root
        for rule in self.recipe.rules.images:
            if _is_named(rule.file, key):
                return rule
            stem = _ENDING.sub("", key.rpartition("/")[2])
            in_npz = folder.lower().endswith(".npz") and stem == (rule.column or stem)
            if in_npz and _is_named(rule.file, folder):
                return rule._replace(column="")
        return None

    def named(self) -> Iterator[_Column]:
        """Yield the columns that the rules of the recipe name."""
        for opened in self.files:
            rule = self._rule(opened.key)
            if rule is None:
                continue
            columns = opened.candidates
            if rule.column or rule.layout or not columns:
                images = opened.arrays.images.items()
                columns = [_Column(opened, name, one, _layouts(one)) for name, one in images]
            chosen = [one for one in columns if one.name == rule.column]
            if not rule.column:
                chosen = columns if len(columns) < 2 else [*self.clear(columns)]
            if not chosen:
                there = some_of([one.name or "one" for one in columns], _MOST_SHOWN) or "none"
                what = f"{opened.key} has no images in column {rule.column!r}"
                what = what if rule.column else f"{opened.key} has no images"
                raise OptionError(_OPTION, what, f"its columns of images are {there}")
            for one in chosen:
                if not rule.layout or one.column.dtype is None:
                    yield self._with_layout(one)
                    continue
                shape = one.column.shape
                layout = given_layout(rule.layout, shape, has_rows=one.column.has_rows)
                if layout is None:
                    raise OptionError(_OPTION, f"{rule.layout} does not fit {one.flag}, {shape}")
                yield one._replace(layouts=[layout])

    def all(self) -> list[_Column]:
        return [column for opened in self.files for column in opened.candidates]

    def clear(self, columns: Iterable[_Column]) -> Iterator[_Column]:
        """Yield the columns; OptionError if it is not clear which of several has the images.

        Columns of one file, or .npy files of one folder with equal numbers of rows, are only taken
        together if they are splits, or numbered parts.
        """
        alike: dict[Any, list[_Column]] = defaultdict(list)
        for one in columns:
            opened = one.opened
            is_loose = opened.file == opened.key and not one.name and one.layout.rows >= 0
            group = (opened.folder, one.num_rows) if is_loose else opened.file
            alike[group, split_word(one.title)[0]].append(one)
        for several in alike.values():
            names = {_DIGITS.sub("", one.title) for one in several}
            is_loose = len({one.opened.key for one in several}) == len(several)
            if len(several) > 1 and not (is_loose and len(names) == 1):
                flags = [one.flag for one in several]
                if not self.proposes:
                    what = f"several columns may have the images: {some_of(flags, _MOST_SHOWN)}"
                    raise OptionError(_OPTION, what, f"give {_OPTION} {flags[0]}")
                self.proposals["images"] = tuple(flags)
                yield self._with_layout(several[0])
            else:
                yield from map(self._with_layout, several)

    def _with_layout(self, one: _Column) -> _Column:
        axes = [layout.axes for layout in one.layouts]
        if len(axes) == 1:
            return one
        shape = one.column.shape
        flag = one.flag if ":" in one.flag else f"{one.flag}:{one.name}"
        if not axes:
            hint = f"state its size or its axes: {_OPTION} {flag}:WIDTHxHEIGHT, or {flag}:NCHW"
            raise OptionError(_OPTION, f"{one.flag} has the shape {shape}", hint)
        if self.proposes:
            self.proposals["images"] = tuple(f"{flag}:{one}" for one in axes)
            return one._replace(layouts=one.layouts[:1])
        what = f"{one.flag} has the shape {shape}, which may be {' or '.join(axes)}"
        raise OptionError(_OPTION, what, f"give {_OPTION} {flag}:{axes[0]}")

    def looked_into(self) -> tuple[str, ...]:
        found = [
            f"{one.file} ({some_of([*one.arrays.cells, *one.arrays.left_out]) or 'no image'})"
            for one in self.files
        ]
        return (*found, *self.notes, *([self._own()] if self._datasets else ()))

    def _own(self) -> str:
        return "; shardprep repack reads datasets of shardprep" if self._datasets else ""

    def read(self, taken: Sequence[_Column]) -> tuple[Members, Table | None]:
        """Return the images of some columns, and the table of the cells beside them."""
        levels = self._levels(taken)
        packed = sum({one.opened.key: one.opened.place.num_bytes for one in taken}.values())
        out: UnpackedFile | None = None
        builder = MembersBuilder()
        tables: list[tuple[Texts, dict[str, Texts]]] = []
        per_file: dict[str, int] = defaultdict(int)
        for one in taken:
            per_file[one.opened.key] += 1
        for one in taken:
            opened, column = one.opened, one.column
            self.used.add(opened.key)
            prefix = opened.key if per_file[opened.key] == 1 else f"{opened.key}:{one.name}"
            if column.placed is not None:
                file, offsets, sizes = column.placed
            else:
                out = out or self.unpacker.new_file(opened.key, packed)
                start = out.place.num_bytes
                sizes = self._write(one, levels, out)
                file, offsets = out.place.file, start + np.cumsum(np.maximum(sizes, 0))
                offsets -= np.maximum(sizes, 0)
            keys = _keys(prefix, one, len(sizes))
            self.unpacker.budget.add_members(len(sizes), opened.key)
            _add(builder, (keys, file, offsets, sizes), one.title)
            if one.layout.rows >= 0:
                tables.append((keys, self._cells(one, taken, len(sizes))))
        if out is not None:
            out.close()
        return builder.members(), _table(tables, list(per_file))

    def _levels(self, taken: Sequence[_Column]) -> DepthRange:
        """Return black and white of all numbers that are scaled, of all files together."""
        scaled = [one for one in taken if one.is_scaled]
        wanted = self.recipe.depth_range
        if not scaled or wanted != "full":
            return wanted
        found = ValueRange()
        for one in scaled:
            with reading(one.opened.key):
                for block in one.column.blocks(one.layout.rows):
                    for values in block if isinstance(block, list) else [block]:
                        found = found if values is None else found.with_values(values)
        names = some_of([one.flag for one in scaled], 2)
        types = f"{names}: {scaled[0].column.dtype} from {found.low:g} to {found.high:g}"
        levels = found.levels()
        if levels is None:
            option = OptionName("depth_range")
            if not self.proposes:
                hint = f"give {option} MIN,MAX, or {option} auto for the range of each image"
                what = f"{types}: it is not clear which values are black and white"
                raise SourceError(option, what, hint)
            levels = found.low, found.high
            self.proposals["depth_range"] = (f"{found.low:g},{found.high:g}",)
        self.notes.append(f"{types}; black is {levels[0]:g}, white is {levels[1]:g}")
        return levels

    def _write(self, one: _Column, levels: DepthRange, out: UnpackedFile) -> NDArray[np.int64]:
        """Write all rows as image files; return their sizes, −1 for rows without an image."""
        column, layout, key = one.column, one.layout, one.opened.key
        if column.dtype is not None:
            size = (
                int(np.prod(layout.row_shape(column.shape), dtype=object)) * column.dtype.itemsize
            )
            if size > self.recipe.max_member_size:
                hint = f"raise {OptionName('max_member_size')} if this is intended"
                raise SourceError(key, f"an image of {one.title} has {size:,} bytes", hint)
        sizes: list[NDArray[np.int64]] = []
        with reading(key):
            for block in column.blocks(layout.rows):
                for part in _parts(block, layout, levels):
                    sizes.append(part[1])
                    out.write(part[0])
        return np.concatenate([np.empty(0, np.int64), *sizes])

    def _cells(self, one: _Column, taken: Sequence[_Column], num_rows: int) -> dict[str, Texts]:
        """Return the columns of cells that belong to a column of images."""
        own, word = one.opened, split_word(one.title)[0] or split_word(one.opened.key)[0]
        found: dict[str, Texts] = {}
        names = []
        for name, number in own.arrays.cells.items():
            if number in (num_rows, UNKNOWN) and split_word(name)[0] in (None, word):
                names.append(name)
            else:
                self.notes.append(f"{own.key}: {name} has {number:,} rows and is not used")
        found.update(zip(map(_plain, names), own.arrays.read_cells(names), strict=True))
        if own.arrays.left_out:
            self.notes.append(f"{own.key}: left out {some_of(own.arrays.left_out)}")
        rivals = [
            other
            for other in taken
            if other.opened.folder == own.folder
            and other.num_rows == num_rows
            and split_word(other.opened.key)[0] == split_word(own.key)[0]
        ]
        for other in self.files if len(rivals) == 1 else ():
            is_same = split_word(other.key)[0] == split_word(own.key)[0]
            if other.folder != own.folder or not is_same or other.arrays.images:
                continue
            names = [name for name, number in other.arrays.cells.items() if number == num_rows]
            if names:
                self.used.add(other.key)
                titles = [_plain(other.title(name)) for name in names]
                found.update(zip(titles, other.arrays.read_cells(names), strict=True))
        for title, texts in found.items():
            if len(texts) != num_rows:
                what = f"has {len(texts):,} rows in {title!r}, and {num_rows:,} images"
                raise SourceError(own.key, what, "download or write it again")
        return found


def _is_named(pattern: str, key: str) -> bool:
    return fnmatch.fnmatchcase(f"/{key}".lower(), f"*/{pattern.lower()}")


def _plain(title: str) -> str:
    """Return a title without the name of a split: "y" for "y_train"."""
    word, rest = split_word(title)
    return rest if word and rest else title


def _keys(prefix: str, one: _Column, number: int) -> Texts:
    if one.layout.rows < 0:
        return Texts.of([prefix])
    if one.column.names:
        return Texts.of(f"{prefix}/{clean_key(name)}" for name in one.column.names)
    numbers = pa.py_buffer(np.arange(number, dtype=np.int64))
    texts = pa.Array.from_buffers(pa.int64(), number, [None, numbers]).cast(pa.string())
    return Texts(pc.utf8_lpad(texts, max(6, len(str(number - 1))), "0")).after(f"{prefix}/")


def _parts(
    block: Any, layout: Layout, levels: DepthRange
) -> Iterator[tuple[Any, NDArray[np.int64]]]:
    """Yield the bytes of some images, and their sizes; −1 for a row without an image."""
    if isinstance(block, np.ndarray):
        files = pictures(block, layout, levels)
        yield files.reshape(-1).data, np.full(len(files), files.shape[1], np.int64)
    elif isinstance(block, list):
        for one in block:
            if one is None or (isinstance(one, np.ndarray) and not layout.fits(one.shape)):
                yield b"", np.array([-1])
            elif isinstance(one, bytes):
                yield one, np.array([len(one)])
            else:
                yield from _parts(one[np.newaxis], layout, levels)
    else:
        block = block.cast(pa.large_binary())
        offsets = np.frombuffer(block.buffers()[1], np.int64)[block.offset :][: len(block) + 1]
        data = memoryview(block.buffers()[2] or b"")[offsets[0] : offsets[-1]]
        is_valid = np.array(block.is_valid().to_pylist(), bool)
        yield data, np.where(is_valid, np.diff(offsets), -1)


def _add(
    builder: MembersBuilder,
    rows: tuple[Texts, str, NDArray[np.int64], NDArray[np.int64]],
    title: str,
) -> None:
    keys, file, offsets, sizes = rows
    good = np.flatnonzero(sizes >= 0)
    places = np.zeros(len(good), PLACE)
    places["kind"], places["offset"], places["num_bytes"] = PLAIN, offsets[good], sizes[good]
    builder.add_all(keys.take(good), places, file)
    for row in np.flatnonzero(sizes < 0).tolist():
        reason = f"has no image: {title!r} is empty in this row, or of another shape"
        builder.add(keys[row], RefusedExtent(0, reason))


def _table(tables: Sequence[tuple[Texts, dict[str, Texts]]], files: list[str]) -> Table | None:
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
