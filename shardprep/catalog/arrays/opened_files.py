"""Open the files of arrays of a source, and choose the columns that have its images."""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from shardprep.catalog.arrays.array_file import ArrayFile, DamagedFileError, ImageColumn, reading
from shardprep.catalog.arrays.arrow_file import open_parquet, open_pixel_csv
from shardprep.catalog.arrays.flat_array import IDX_TYPES, open_idx, open_nifti, open_npy
from shardprep.catalog.arrays.hdf5_file import open_hdf5
from shardprep.catalog.arrays.layout import Layout, given_layout, possible_layouts
from shardprep.catalog.arrays.number_images import is_scaled
from shardprep.catalog.arrays.paged_file import open_frames, open_tiff, single_image
from shardprep.catalog.arrays.tfrecord_file import open_tfrecord
from shardprep.catalog.arrays.zarr_file import ZarrFiles, open_zarr, zarr_folders
from shardprep.dataset.tfrecord import HEADER_BYTES, payload_bytes
from shardprep.errors import OptionError, OptionName, ShardprepError, SourceError, some_of
from shardprep.image.signatures import array_type
from shardprep.recipe.recipe import Recipe
from shardprep.recipe.rules import TABLE_SUFFIXES, ArrayRule
from shardprep.source.byte_range import PlainExtent, RefusedExtent, StoredExtent
from shardprep.source.listing import Skipped, inner_head
from shardprep.source.members import Member, Members
from shardprep.source.names import split_word
from shardprep.source.unpack import Unpacker, decompressed, member_stream

_OPTION = OptionName("images")
_DIGITS = re.compile(r"\d+")
_ENDING = re.compile(r"([-_.]idx\d-ubyte|\.npy)?(\.gz)?$")
PAGED = re.compile(r"\.((?P<tiff>tiff?)|dcm|dicom)$", re.IGNORECASE)
_FILE_END = re.compile(r"(\.[^.]*)?$")
_MOST_SHOWN, _MOST_TRIED = 8, 9
_SAMPLES = ("nifti", "zarr")
"""Kinds of files that are one sample, unless a layout states several."""
_PARTNERS = ("npy", "idx", "hdf5")
"""Kinds of files that may have the labels of another file, row by row."""


class OpenedFile(NamedTuple):
    """An opened file of arrays, with its columns."""

    member: Member
    place: PlainExtent
    arrays: ArrayFile
    root: str
    """Last component of the source's path, which names an .npz that is the source itself."""

    @property
    def key(self) -> str:
        return self.member.key

    @property
    def folder(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def set_name(self) -> tuple[str, str | None]:
        """Folder of the file, and the split that its key states or None."""
        return self.folder, split_word(self.key)[0]

    @property
    def file(self) -> str:
        """Key of the file; for a member of an .npz, key of the .npz."""
        folder = self.folder or self.root
        return folder if folder.lower().endswith(".npz") else self.key

    def title(self, column: str) -> str:
        """Return the name of a column; for a .npy, the name of the file without its suffix."""
        return column or _ENDING.sub("", self.key.rpartition("/")[2])

    @property
    def columns(self) -> list[ChosenColumn]:
        images = self.arrays.images.items()
        return [ChosenColumn(self, name, column, _layouts(column)) for name, column in images]

    @property
    def candidates(self) -> list[ChosenColumn]:
        return [one for one in self.columns if one.layouts]


class ChosenColumn(NamedTuple):
    """A column of images with its possible layouts; the first layout is used."""

    opened: OpenedFile
    name: str
    column: ImageColumn
    layouts: list[Layout]

    @property
    def title(self) -> str:
        return self.opened.title(self.name)

    @property
    def flag(self) -> str:
        """Value of `--images` that names the column."""
        is_whole = self.opened.file == self.opened.key and not self.name
        return self.opened.file if is_whole else f"{self.opened.file}:{self.title}"

    @property
    def layout(self) -> Layout:
        return self.layouts[0] if self.layouts else Layout("")

    @property
    def num_rows(self) -> int:
        return self.column.shape[self.layout.rows] if self.layout.rows >= 0 else 0

    @property
    def images_per_item(self) -> int:
        pairs = zip(self.layout.axes, self.column.shape, strict=False)
        return math.prod(number for letter, number in pairs if letter == "T")

    @property
    def is_scaled(self) -> bool:
        dtype, axes = self.column.dtype, self.layout.axes
        if dtype is None:
            return False
        row = self.layout.row_shape(self.column.shape)
        channels = row[self.layout.row_axes.index("C")] if "C" in axes else 1
        if axes == "N":
            channels = row[0] // (self.layout.size[0] * self.layout.size[1])
        return is_scaled(dtype, channels)


def _layouts(column: ImageColumn) -> list[Layout]:
    if column.dtype is None:
        return [*column.layouts] or [Layout("N")]
    if 0 in column.shape:
        return []
    return [*column.layouts] or possible_layouts(column.shape, has_rows=column.has_rows)


def _kind(member: Member) -> str | None:
    """Return the kind of an array file, such as "npy" or "gz:npy"; None for another file."""
    if not isinstance(member.extent, StoredExtent):
        return None
    with reading(member.key):
        head, packed = inner_head(member.extent)
    kind = array_type(head)
    if kind == "tfrecord" and payload_bytes(head[:HEADER_BYTES]) is None:
        return None
    if kind == "idx" and head[2] not in IDX_TYPES:
        return None
    if kind is None and member.key.lower().endswith(TABLE_SUFFIXES):
        kind = "csv"
    return kind and (f"{packed}:{kind}" if packed else kind)


PICKLE = "is a Python pickle, which is never read"
OWN_DATASET = "a dataset of shardprep, which shardprep repack reads"


class ArrayFiles:
    """The files of arrays of one source."""

    def __init__(self, recipe: Recipe, unpacker: Unpacker, *, proposes: bool) -> None:
        self.recipe = recipe
        self.unpacker = unpacker
        self.proposes = proposes
        self.files: list[OpenedFile] = []
        self.used: set[str] = set()
        self.refused: dict[str, ShardprepError] = {}
        """Key of each rejected file that contains one sample → reason."""
        self.notes: list[str] = []
        self.proposals: dict[str, tuple[str, ...]] = {}
        self._datasets: list[str] = []
        self._zarrs: dict[str, ZarrFiles] = {}
        self._root = recipe.source.rpartition("/")[2]
        most_bytes = recipe.max_member_size
        self._open: dict[str, Callable[[PlainExtent, str], ArrayFile | None]] = {
            "npy": open_npy,
            "idx": open_idx,
            "nifti": open_nifti,
            "hdf5": partial(open_hdf5, most_bytes=most_bytes),
            "tfrecord": partial(open_tfrecord, most_bytes=most_bytes),
            "parquet": open_parquet,
            "csv": open_pixel_csv,
            "zarr": lambda _, name: open_zarr(self._zarrs[name], name, most_bytes),
        }

    def open(self, others: Sequence[Member], lost: Sequence[Skipped] = ()) -> None:
        """Open all array files, or those that `--images` names and possible labels next to them.

        Results are in `files`, `refused` and `notes`. OptionError if `--images` names no file.
        """
        others, self._zarrs = zarr_folders(others, self._root, lost)
        keys = {member.key for member in others}
        manifests = [key for key in keys if key.rpartition("/")[2] == "manifest.json"]
        folders = [key.removesuffix("manifest.json") for key in manifests]
        self._datasets = [one for one in folders if f"{one}items.parquet" in keys]
        wanted = [one for one in others if not one.key.startswith(tuple(self._datasets) or ("\0",))]
        rules = self.recipe.rules.images
        if rules:
            named = [one.key for one in wanted if any(self.rules(one.key))]
            if not (named or self.files):
                there = [some_of([one.key for one in wanted], _MOST_SHOWN)] if wanted else []
                there += [OWN_DATASET] if self._datasets else []
                what = f"no array file is called {some_of([rule.file for rule in rules])}"
                hint = f"use a file of the source: {', and '.join(there)}"
                raise OptionError(_OPTION, what, hint if there else "leave this option out")
            near = {key.rpartition("/")[0] for key in named}
            wanted = [one for one in wanted if one.key.rpartition("/")[0] in near]
        for member in wanted:
            kind = "zarr" if member.key in self._zarrs else _kind(member)
            is_named = any(self.rules(member.key))
            if kind == "pickle":  # it can run any code
                self.notes.append(f"{member.key} {PICKLE}")
            elif kind and (not rules or is_named or kind.rpartition(":")[2] in _PARTNERS):
                self._add(member, kind, is_named=is_named)

    def _add(self, member: Member, kind: str, *, is_named: bool) -> None:
        key, form = member.key, kind.rpartition(":")[2]
        is_sample = self._is_sample(key, form)
        try:
            place = self._place(key, cast("StoredExtent", member.extent), kind)
            arrays = self._open[form](place, key)
            if is_sample and arrays is not None:
                arrays.check_sample(key)
        except SourceError as error:
            if is_sample and isinstance(error, DamagedFileError):
                self.refused[key] = error
            elif "pickled" not in error.what or is_named:
                raise
            else:  # arrays of objects, such as names, may accompany images
                self.notes.append(f"{key} {error.what}")
            return
        if arrays is not None:
            self.files.append(OpenedFile(member, place, arrays, self._root))

    def open_volumes(self, images: Members) -> None:
        """Open the TIFF and DICOM files that `--images` names; SourceError if a file fails.

        Without `--images`, files become stacks if most have several images; others are rejected.
        """
        is_named, last = bool(self.recipe.rules.images), len(images) - 1
        opened, refused = list[OpenedFile](), dict[str, SourceError]()
        parts = [np.arange(len(images))]
        if is_named:
            keys = enumerate(images.keys)
            rows = [i for i, key in keys if PAGED.search(key) and any(self.rules(key))]
            parts = [np.array(rows, np.int64)]
        elif self.recipe.is_annotated and self.recipe.rules.masks.kind != "pattern":
            return
        elif last >= _MOST_TRIED:  # a sample shows whether to open all
            parts.insert(0, np.linspace(0, last, _MOST_TRIED).astype(np.int64))
        for part in parts:
            try:
                opened, refused = self._volumes(images.take(part), are_named=is_named)
            except SourceError:
                if is_named:
                    raise
                return
            if not is_named and len(opened) <= len(refused):
                if opened:
                    first, names = opened[0].key, some_of([one.key for one in opened], 2)
                    one, alone = OptionName("images", first), OptionName("include", first)
                    how = f"{one} {alone} stores all of {first} as a stack"
                    self.notes.append(f"{names}: only the first image is used; {how}")
                return
        self.files += opened
        self.refused |= refused

    def _volumes(
        self, images: Members, *, are_named: bool
    ) -> tuple[list[OpenedFile], dict[str, SourceError]]:
        """Return the opened volumes and the error of each other file, such as a single image."""
        opened, refused = list[OpenedFile](), dict[str, SourceError]()
        for member in images:
            key, suffix = member.key, PAGED.search(member.key)
            if not isinstance(member.extent, StoredExtent):
                continue
            refused[key] = SourceError(key, "has one image, but most files have several")
            if suffix is None:
                continue
            try:
                place = self._place(key, member.extent, "")
                arrays = (open_tiff if suffix["tiff"] else open_frames)(place, key)
            except DamagedFileError as error:
                refused[key] = error
                continue
            if arrays is not None or are_named:
                del refused[key]
                arrays = arrays or single_image(place)
                opened.append(OpenedFile(member, place, arrays, self._root))
        return opened, refused

    def _is_sample(self, key: str, kind: str = "") -> bool:
        """Return whether a damaged file is a rejected sample instead of an error."""
        layouts = [one.layout for one in self.rules(key) if one.layout]
        if not layouts:
            return kind in _SAMPLES
        return all(one.isalpha() and "N" not in one for one in layouts)

    def _place(self, key: str, extent: StoredExtent, kind: str) -> PlainExtent:
        if kind == "zarr":
            return cast("PlainExtent", extent)
        packed = kind.rpartition(":")[0]
        with reading(key), member_stream(extent) as stream:
            if not packed:
                return self.unpacker.in_place(extent, key)
            return self.unpacker.unpack(decompressed(stream, packed), extent.num_bytes, key)

    def rules(self, key: str) -> Iterator[ArrayRule]:
        """Yield the rules of `--images` that name a file, or the .npz that contains it."""
        folder = key.rpartition("/")[0] or self._root
        for rule in self.recipe.rules.images:
            if is_named_by(rule.file, key):
                yield rule
                continue
            stem = _ENDING.sub("", key.rpartition("/")[2])
            in_npz = folder.lower().endswith(".npz") and stem == (rule.column or stem)
            if in_npz and is_named_by(rule.file, folder):
                yield rule._replace(column="")

    def named(self) -> Iterator[ChosenColumn]:
        """Yield the columns that the recipe names, each once; OptionError for unknown columns."""
        for opened in self.files:
            rules = self.rules(opened.key)
            try:
                found = {one.name: one for rule in rules for one in self._named(opened, rule)}
            except OptionError as error:
                if not self._is_sample(opened.key):
                    raise
                self.refused[opened.key] = error
            else:
                yield from found.values()

    def _named(self, opened: OpenedFile, rule: ArrayRule) -> Iterator[ChosenColumn]:
        matrix = opened.arrays.matrix
        if matrix is not None and not rule.column and sorted(rule.layout) == ["H", "W"]:
            yield ChosenColumn(opened, "", matrix, [Layout(rule.layout)])
            return
        columns = opened.candidates
        if rule.column or rule.layout or not columns:
            columns = opened.columns
        chosen = [one for one in columns if one.name == rule.column]
        if not rule.column:
            chosen = columns if len(columns) < 2 else [*self.clear(columns)]
        if not chosen:
            there = some_of([one.name for one in columns if one.name], _MOST_SHOWN)
            what = f"images in column {rule.column!r}" if there and rule.column else "images"
            hint = f"use one of its columns: {there}" if there else "name another file"
            raise OptionError(_OPTION, f"{opened.key} has no {what}", hint)
        for one in chosen:
            if not rule.layout or one.column.dtype is None:
                yield self._with_layout(one)
                continue
            shape = one.column.shape
            layout = given_layout(rule.layout, shape, has_rows=one.column.has_rows)
            if layout is None:
                what = f"{rule.layout} does not fit {one.flag}, which has the shape {shape}"
                raise OptionError(_OPTION, what, "give a letter for each axis, or WIDTHxHEIGHT")
            yield one._replace(layouts=[layout])

    def clear(self, columns: Iterable[ChosenColumn]) -> Iterator[ChosenColumn]:
        """Yield the columns; OptionError or proposals if it is unclear which have the images.

        Columns of one file, or .npy files of one folder with equal numbers of rows, are taken
        together only if their names differ in the split or in numbers.
        """
        alike: dict[Any, list[ChosenColumn]] = defaultdict(list)
        for one in columns:
            opened = one.opened
            is_loose = opened.file == opened.key and not one.name and one.layout.has_samples
            group = (opened.folder, one.num_rows) if is_loose else opened.file
            alike[group, split_word(one.title)[0]].append(one)
        for several in alike.values():
            names = {_DIGITS.sub("", one.title) for one in several}
            is_loose = len({one.opened.key for one in several}) == len(several)
            if len(several) > 1 and not (is_loose and len(names) == 1):
                # Columns with colours come first: others may be depths or masks.
                several.sort(key=lambda one: "C" not in one.layout.axes)
                flags = [self._flag(one) for one in several]
                if not self.proposes:
                    what = f"several columns may have the images: {some_of(flags, _MOST_SHOWN)}"
                    hint = f"give {OptionName('images', flags[0])}"
                    dtype = several[0].column.dtype
                    is_float = dtype is not None and dtype.kind == "f"
                    if is_float and self.recipe.depth_range == "full":
                        hint += f" {OptionName('depth_range', 'auto')}"
                    raise OptionError(_OPTION, what, hint)
                self.proposals["images"] = tuple(flags)
                yield self._with_layout(several[0])
            else:
                yield from map(self._with_layout, several)

    def _flag(self, one: ChosenColumn) -> str:
        """Return the value of `--images` that names the column in all files of its kind."""
        file, _, column = one.flag.partition(":")
        own = {file, *(o.file for o in self.files for c in o.candidates if c.title == one.title)}
        names = {name.rpartition("/")[2] for name in own}
        ends = {_FILE_END.search(name)[0] for name in names}  # type: ignore[index]
        if len(own) > 1 and column and len(ends) == 1:
            file = names.pop() if len(names) == 1 else f"*{ends.pop()}"
        return f"{file}:{column}" if column else file

    def _with_layout(self, one: ChosenColumn) -> ChosenColumn:
        axes = [layout.axes for layout in one.layouts]
        if len(axes) == 1:
            return one
        shape, flag = one.column.shape, self._flag(one)
        flag = flag if ":" in flag else f"{flag}:{one.name}"
        if not axes:
            size = OptionName("images", f"{flag}:WIDTHxHEIGHT")
            hint = f"give the image size or the axes: {size}, or NCHW instead of the size"
            raise OptionError(_OPTION, f"{one.flag} has the unusual shape {shape}", hint)
        if self.proposes:
            others = [f for f in self.proposals.get("images", ()) if not f.startswith(flag)]
            self.proposals["images"] = (*(f"{flag}:{one}" for one in axes), *others)
            return one._replace(layouts=one.layouts[:1])
        what = f"{one.flag} has the shape {shape}, which may be {' or '.join(axes)}"
        raise OptionError(_OPTION, what, f"give {OptionName('images', f'{flag}:{axes[0]}')}")

    def with_refused(self, images: Members) -> Members:
        """Return `images` with the refused files; raise the first refusal if `images` is empty."""
        if not self.refused:
            return images
        if not images:
            raise next(iter(self.refused.values()))
        self.use(self.refused)
        extents = {key: RefusedExtent(0, error.what) for key, error in self.refused.items()}
        return Members.joined([images, Members.of(map(Member, extents, extents.values()))])

    def use(self, keys: Iterable[str]) -> None:
        """Mark array files, and all members of zarr folders, as used."""
        for key in keys:
            self.used.update((key, *(one.key for one in self._zarrs.get(key, {}).values())))

    def looked_into(self) -> tuple[str, ...]:
        found = [
            f"{one.file} ({some_of([*one.arrays.cells, *one.arrays.left_out]) or 'no image'})"
            for one in self.files
        ]
        return (*found, *self.notes, *([OWN_DATASET] if self._datasets else ()))


def is_named_by(pattern: str, key: str) -> bool:
    """Return whether FILE of `--images` matches a key or its last components, ignoring case."""
    return fnmatch.fnmatchcase(f"/{key}".lower(), f"*/{pattern.lower()}")
