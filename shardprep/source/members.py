"""Members of a source as columns: keys in one buffer, extents (see `PLACE`) as integers.

Most members are images with ordinary names: safe, not junk, and valid keys without changes. One
pattern finds them in all names, a hundred times as fast as calls of `unsafe_name`, `clean_key` and
`is_junk` for each name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.source.byte_range import (
    MOST_BYTES,
    HeldExtent,
    PlainExtent,
    RefusedExtent,
    StoredExtent,
    ZipExtent,
)
from shardprep.source.file_listing import FoundFile
from shardprep.source.names import MAX_KEY_LENGTH, ORDINARY_IMAGE
from shardprep.source.string_column import ColumnView, Texts, booleans, integers

Places = NDArray[Any]

PLACE = np.dtype(
    [
        ("kind", "u1"), ("method", "<u2"), ("flags", "<u2"), ("file", "<i4"), ("crc32", "<u4"),
        ("offset", "<i8"), ("stored_bytes", "<i8"), ("num_bytes", "<i8"),
    ]
)  # fmt: skip
"""An extent as integers. `file` is an index into `Members.files`; for `ODD`, into `Members.odd`."""
PLAIN, BELOW, ZIP, ODD = range(4)
"""Kinds of extents: part of a file, whole file whose path ends with its key, zip member, other."""
_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True)
class StackExtent:
    """The files of a sample of several images, in order."""

    members: Members
    has_channels: bool = False
    """Whether each file is a channel, so that their order is fixed."""
    spacing: tuple[float, ...] = ()
    """Distance between images, rows and columns, in the unit of the source; () if unknown."""
    directions: tuple[str, ...] = ()
    """Letters of LRPAIS: directions of images, rows and columns; () if unknown."""
    is_scaled: bool = False
    """Whether the images were scaled from the smallest to the largest value of the sample."""

    @property
    def num_bytes(self) -> int:
        return int(self.members.num_bytes.sum())

    @property
    def span(self) -> PlainExtent:
        return self.members[0].extent.span

    def read(self) -> bytes:
        """Return the bytes of all files, joined."""
        return b"".join(member.extent.read() for member in self.members)

    def read_head(self, num_bytes: int) -> bytes:
        return self.members[0].extent.read_head(num_bytes)


FileExtent = StoredExtent | RefusedExtent | HeldExtent
Extent = FileExtent | StackExtent


class Member(NamedTuple):
    """One entry of an archive, one file of a folder, or a sample of several files."""

    key: str
    """Full path from the root of the source, through all archives. Unique among images."""
    extent: Extent


class Entry(NamedTuple):
    """An entry of an archive, as the archive lists it. Folders are left out."""

    name: str
    num_bytes: int
    extent: StoredExtent | None
    """Location of the bytes; None if the member has a problem."""
    problem: str
    """Reason not to use the member; "" for a good member."""


class Members(ColumnView[Member]):
    """A sequence of members; each becomes a Python object only on access."""

    __slots__ = ("files", "keys", "odd", "places")

    def __init__(
        self, keys: Texts, places: Places, files: Sequence[str], odd: Sequence[Extent] = ()
    ) -> None:
        self.keys = keys
        self.places = places
        self.files = files
        self.odd = odd

    @classmethod
    def of(cls, members: Iterable[Member]) -> Members:
        if isinstance(members, Members):
            return members
        builder = MembersBuilder()
        for member in members:
            builder.add(member.key, member.extent)
        return builder.members()

    @classmethod
    def joined(cls, parts: Sequence[Members]) -> Members:
        places = [part.places.copy() for part in parts]
        files, odd = list[str](), list[Extent]()
        for part, own in zip(parts, places, strict=True):
            own["file"] += np.where(own["kind"] == ODD, len(odd), len(files)).astype(np.int32)
            files += part.files
            odd += part.odd
        return cls(Texts.joined([part.keys for part in parts]), np.concatenate(places), files, odd)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> Member: ...
    @overload
    def __getitem__(self, at: slice) -> Members: ...
    def __getitem__(self, at: int | slice) -> Member | Members:
        if isinstance(at, slice):
            return Members(self.keys[at], self.places[at], self.files, self.odd)
        return self[at : at + 1 or None].listed()[0] if at < len(self) else self.listed()[at]

    def __iter__(self) -> Iterator[Member]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE].listed()

    def __reduce__(self) -> tuple[Any, ...]:
        places = self.places.copy()
        is_odd = places["kind"] == ODD
        files, places["file"][~is_odd] = np.unique(places["file"][~is_odd], return_inverse=True)
        odd, places["file"][is_odd] = np.unique(places["file"][is_odd], return_inverse=True)
        own = [self.files[i] for i in files], [self.odd[i] for i in odd]
        return Members, (self.keys, places, *own)

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = self.places["num_bytes"]
        return sizes

    @property
    def num_files(self) -> NDArray[np.int64]:
        """Number of files of each member, int64[members]: more than 1 only for stacks."""
        numbers = np.ones(len(self), np.int64)
        is_odd = self.places["kind"] == ODD
        of_odd = [len(one.members) if isinstance(one, StackExtent) else 1 for one in self.odd]
        numbers[is_odd] = np.array(of_odd, np.int64)[self.places["file"][is_odd]]
        return numbers

    @property
    def are_refused(self) -> NDArray[np.bool_]:
        return self._are(RefusedExtent)

    @property
    def are_stacks(self) -> NDArray[np.bool_]:
        return self._are(StackExtent)

    def _are(self, kind: type) -> NDArray[np.bool_]:
        fits = [isinstance(one, kind) for one in self.odd]
        found: NDArray[np.bool_] = self.places["kind"] == ODD
        found[found] = np.array(fits, bool)[self.places["file"][found]]
        return found

    def take(self, rows: NDArray[Any]) -> Members:
        return Members(self.keys.take(rows), self.places[rows], self.files, self.odd)

    def listed(self) -> list[Member]:
        return list(map(self._member, self.keys, self.places.tolist()))

    def _member(self, key: str, place: tuple[int, ...]) -> Member:
        kind, method, flags, file, crc32, offset, stored_bytes, num_bytes = place
        if kind == ZIP:
            numbers = offset, stored_bytes, num_bytes, crc32, method, flags
            return Member(key, ZipExtent(self.files[file], *numbers))
        if kind == ODD:
            return Member(key, self.odd[file])
        path = self.files[file] + key if kind == BELOW else self.files[file]
        return Member(key, PlainExtent(path, offset, num_bytes))


class MembersBuilder:
    """A list of members under construction; they are added one by one or in batches."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._odd: list[Extent] = []
        self._parts: list[tuple[Texts, Places]] = []
        self._waiting: list[tuple[str, tuple[int, ...]]] = []

    def add(self, key: str, extent: Extent) -> None:
        self._waiting.append((key, self._place(key, extent)))
        if len(self._waiting) == _AT_ONCE:
            self._pack()

    def add_all(self, keys: Texts, places: Places, file: str) -> None:
        """Add members with the same `file` (see `OrdinaryImages`); sets `file` in `places`."""
        self._pack()
        places["file"] = self._number(file)
        self._parts.append((keys, places))

    def members(self) -> Members:
        """Return all added members in order of addition. The builder cannot be used again."""
        self._pack()
        if not self._parts:
            self._parts.append((Texts.of([]), np.empty(0, PLACE)))
        keys = Texts.joined([keys for keys, _ in self._parts])
        places = self._parts[0][1]
        if len(self._parts) > 1:
            places = np.concatenate([places for _, places in self._parts])
        self._parts.clear()
        return Members(keys, places, tuple(self._files), tuple(self._odd))

    def _pack(self) -> None:
        if self._waiting:
            keys, places = zip(*self._waiting, strict=True)
            self._parts.append((Texts.of(keys), np.array(list(places), PLACE)))
            self._waiting.clear()

    def _number(self, file: str) -> int:
        return self._files.setdefault(file, len(self._files))

    def _place(self, key: str, extent: Extent) -> tuple[int, ...]:
        if isinstance(extent, PlainExtent) and 0 <= extent.offset <= MOST_BYTES >= extent.num_bytes:
            kind, file = PLAIN, extent.file
            if key and file.endswith(key):
                kind, file = BELOW, file[: -len(key)]
            return kind, 0, 0, self._number(file), 0, extent.offset, 0, extent.num_bytes
        if isinstance(extent, ZipExtent):
            numbers = extent.header_offset, extent.stored_bytes, extent.num_bytes
            if all(-MOST_BYTES <= number <= MOST_BYTES for number in numbers):
                number = self._number(extent.file)
                return ZIP, extent.method, extent.flags, number, extent.crc32, *numbers
        self._odd.append(extent)
        return ODD, 0, 0, len(self._odd) - 1, 0, 0, 0, min(extent.num_bytes, MOST_BYTES)


class OrdinaryImages(NamedTuple):
    """Images of a zip or a folder that have ordinary names, as columns."""

    keys: Texts
    places: Places
    """A `PLACE` for each image; the field `file` is not set."""
    file: str
    """Path or address of the zip; for a folder, the part of each path that precedes the key."""

    @property
    def stored_bytes(self) -> NDArray[np.int64]:
        is_file = self.places["kind"] == BELOW
        return np.where(is_file, self.places["num_bytes"], self.places["stored_bytes"])


def are_ordinary(names: Texts) -> NDArray[np.bool_]:
    """Return which names belong to ordinary images, bool[n]; a few may be missed."""
    fits = names.matching(ORDINARY_IMAGE)
    fits &= integers(pc.binary_length(names.array)) <= MAX_KEY_LENGTH
    return fits & ~booleans(pc.match_substring(names.array, "__MACOSX"))


def ordinary_files(files: Sequence[FoundFile]) -> tuple[OrdinaryImages, list[FoundFile]]:
    """Return the ordinary images of a source, and all other files. `files` must not be empty."""
    last = files[-1]
    folder = last.path.removesuffix(last.relative)
    keys = Texts.of(file.relative for file in files)
    are_below = [not file.problem and file.path == folder + file.relative for file in files]
    fits = are_ordinary(keys) & np.array(are_below, bool)
    rows = np.flatnonzero(fits)
    places = np.zeros(len(rows), PLACE)
    places["kind"] = BELOW
    places["num_bytes"] = np.array([file.num_bytes for file in files], np.int64)[rows]
    others = [files[i] for i in np.flatnonzero(~fits).tolist()]
    return OrdinaryImages(keys.take(rows), places, folder), others
