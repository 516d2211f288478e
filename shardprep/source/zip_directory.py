"""The directory of a zip: find, check and read it.

A zip is read from its end. The last record (`_END`) has the size and offset of the directory, which
lists the members. Above 65,534 members or 4 GiB, the fields of that record are full. Then a ZIP64
record (`_END64`) with 64-bit fields and a locator of 20 bytes precede it. Offsets count from the
start of the zip, which may follow other bytes of the file. The position of the end record shows the
number of these bytes (`End.shift`).

Libraries trust the directory. They silently leave out members that it does not list. If a file
contains two zips, they leave out the members of the first zip. A directory that lists the same
bytes many times unpacks to any size. So members must not share bytes, and all must be listed.

The directory of an ordinary zip is read as columns; unusual ones are left to `zipfile`. Entries are
found by their signature, one block of the directory at a time. They must follow each other to the
end without a gap. A size or offset of 32 bits that is `_FULL` has its value in the ZIP64 extra
field, which has only such values: size, stored size, offset (see APPNOTE 4.3.12 and 4.5.3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.errors import SourceError, shown
from shardprep.source.byte_range import PlainExtent
from shardprep.source.members import PLACE, ZIP, Places
from shardprep.source.string_column import Texts

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_ENTRY = np.dtype(
    [
        ("signature", "<u4"), ("made_by", "<u2"), ("version", "<u2"), ("flags", "<u2"),
        ("method", "<u2"), ("time", "<u2"), ("date", "<u2"), ("crc32", "<u4"),
        ("stored_bytes", "<u4"), ("num_bytes", "<u4"), ("name_bytes", "<u2"),
        ("extra_bytes", "<u2"), ("comment_bytes", "<u2"), ("disk", "<u2"), ("internal", "<u2"),
        ("external", "<u4"), ("offset", "<u4"),
    ]
)  # fmt: skip
_SIGNATURE = 0x02014B50
BLOCK_BYTES = 1 << 20
_MAX_VERSION = 63
"""Highest version that `zipfile` reads."""
UTF8_FLAG = 0x800
WINDOWS = (0, 10, 14)
"""Systems that write "\\" between folders: MS-DOS, NTFS, VFAT (APPNOTE 4.4.2)."""
_FULL = 0xFFFFFFFF
"""Marks a size or offset that is in the ZIP64 extra field instead."""
_ZIP64, _UNICODE_PATH = 1, 0x7075
_MOST_EXTRAS = 16
_LOCAL = struct.Struct("<4s5H3L2H")
"""Signature, version, flags, method, time, date, CRC-32, sizes, two lengths (APPNOTE 4.3.7)."""
_METHODS = frozenset((0, 1, 2, 3, 4, 5, 6, 8, 9, 12, 14, 93, 95, 96, 97, 98, 99))
_LATE_SIZE = 0x8
_MAX_NAME_BYTES = 4096
_END = struct.Struct("<4s4H2LH")
"""Signature, disks, entries, directory size and offset, comment length (APPNOTE 4.3.16)."""
_END64 = struct.Struct("<4s28x3Q")
_END64_LOCATOR_BYTES = 20
_MAX_COMMENT_BYTES = 0xFFFF
_MAX_EXTRA_BYTES = 1 << 14
_SPARE_BYTES = 100
"""Bytes that may legitimately follow a member; an image is larger."""
MOST_OFFSET = 1 << 61
"""Larger than any offset or size in a file. The sum of two such numbers still fits in 64 bits."""
_PACK_IT_AGAIN = "download or pack it again"


class ZipEntries(NamedTuple):
    """The entries of a directory, in its order."""

    names: Texts
    places: Places
    """A `PLACE` for each entry; the field `file` is not set."""
    modes: NDArray[np.uint16]
    """Unix mode of each file; 0 if unknown."""


class _OddError(Exception):
    """The directory is unusual: leave the zip to `zipfile`."""


def measured_entries(place: PlainExtent, at: int, stop: int) -> tuple[int, int]:
    """Return the number of entries in a directory, and the bytes of the longest extra field."""
    num_entries = longest = 0
    for _, _, entries in _blocks(place, at, stop):
        num_entries += len(entries)
        longest = max(longest, int(entries["extra_bytes"].max()))
    return num_entries, longest


def read_entries(place: PlainExtent, at: int, stop: int, number: int) -> ZipEntries | None:
    """Return the entries from `at` to `stop`; None if one is unusual or not `number` are found."""
    names = _Names(number, stop - at)
    places, modes = np.zeros(number, PLACE), np.empty(number, np.uint16)
    places["kind"] = ZIP
    start, reached = 0, at
    try:
        for block, starts, entries in _blocks(place, at, stop):
            some = slice(start, start + len(entries))
            if some.stop > number:
                return None
            _fill(places[some], block, starts, entries)
            names.add(block, starts, entries)
            modes[some] = entries["external"] >> 16
            start, reached = some.stop, reached + int(_lengths(entries).sum())
        if reached != stop or start != number:
            return None
        return ZipEntries(names.texts(), places, modes)
    except (_OddError, pa.ArrowInvalid):
        return None


def _lengths(entries: NDArray[Any]) -> Ints:
    lengths = np.full(len(entries), _ENTRY.itemsize, np.int64)
    for name in ("name_bytes", "extra_bytes", "comment_bytes"):
        lengths += entries[name]
    return lengths


def _blocks(place: PlainExtent, at: int, stop: int) -> Iterator[tuple[Bytes, Ints, NDArray[Any]]]:
    """Yield each block of a directory with the starts of its entries and their `_ENTRY` fields.

    Stops at the first gap between entries. Only the last entry may be truncated.
    """
    while at < stop:
        block = np.frombuffer(place.read_range(at, min(BLOCK_BYTES, stop - at)), np.uint8)
        starts, entries = _chain(block)
        if not len(starts):
            return
        ends = starts + _lengths(entries)
        is_last = at + len(block) == stop or ends[0] > len(block)
        whole = len(starts) if is_last else int(np.searchsorted(ends, len(block), side="right"))
        yield block, starts[:whole], entries[:whole]
        at += int(ends[whole - 1])


def _chain(block: Bytes) -> tuple[Ints, NDArray[Any]]:
    """Return starts and fields of the entries of a block, up to the first gap between entries."""
    last = len(block) - _ENTRY.itemsize + 1
    none = np.empty(0, np.int64), np.empty(0, _ENTRY)
    if last <= 0:
        return none
    places = np.flatnonzero(block[:last] == _SIGNATURE & 0xFF)
    for i in range(1, 4):
        places = places[block[places + i] == _SIGNATURE >> 8 * i & 0xFF]
    if not len(places) or places[0]:
        return none
    windows = np.lib.stride_tricks.sliding_window_view(block, _ENTRY.itemsize)
    entries = np.ascontiguousarray(windows[places]).view(_ENTRY)[:, 0]
    ends = places + _lengths(entries)
    if not (ends[:-1] == places[1:]).all():  # the signature is part of a name, or the entries end
        following = np.searchsorted(places, ends).tolist()
        starts, way, i = places.tolist(), [0], 0
        while (i := following[i]) < len(starts) and starts[i] == ends[way[-1]]:
            way.append(i)
        places, entries = places[way], entries[way]
    return places, entries


def _fill(places: Places, block: Bytes, starts: Ints, entries: NDArray[Any]) -> None:
    lengths = entries["name_bytes"].astype(np.int64)
    if (starts + _lengths(entries) > len(block)).any() or (entries["version"] > _MAX_VERSION).any():
        raise _OddError
    for name in ("method", "flags", "crc32", "num_bytes", "stored_bytes", "offset"):
        places[name] = entries[name]
    wide = places["num_bytes"], places["stored_bytes"], places["offset"]
    _read_extras(block, starts + _ENTRY.itemsize + lengths, entries, wide)


class _Names:
    def __init__(self, number: int, directory_bytes: int) -> None:
        self._offsets = np.zeros(number + 1, np.int64)
        self._data = np.empty(max(0, directory_bytes - number * _ENTRY.itemsize), np.uint8)
        self._number = 0

    def add(self, block: Bytes, starts: Ints, entries: NDArray[Any]) -> None:
        lengths = entries["name_bytes"].astype(np.int64)
        ends = np.cumsum(lengths)
        places = np.repeat(starts + _ENTRY.itemsize - ends + lengths, lengths)
        data = block[places + np.arange(len(places))]
        is_high = data >= 0x80
        if is_high.any():
            owners = np.searchsorted(ends, np.flatnonzero(is_high), side="right")
            if not (entries["flags"][owners] & UTF8_FLAG).all():
                raise _OddError
        if not data.all():  # zipfile ends a name at a null byte
            raise _OddError
        if (data == ord("\\")).any() and np.isin(entries["made_by"] >> 8, WINDOWS).any():
            raise _OddError
        before = int(self._offsets[self._number])
        self._data[before : before + len(data)] = data
        self._offsets[self._number + 1 :][: len(ends)] = before + ends
        self._number += len(ends)

    def texts(self) -> Texts:
        """Return all names; ArrowInvalid if one is not valid UTF-8."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._data)]
        names = pa.Array.from_buffers(pa.large_string(), self._number, buffers)
        names.validate(full=True)
        return Texts(names)


def _read_extras(
    block: Bytes, starts: Ints, entries: NDArray[Any], wide: tuple[Ints, Ints, Ints]
) -> None:
    """Replace `_FULL` sizes and offsets by the 64-bit values of the extra fields."""
    ends = starts + entries["extra_bytes"]
    rows, at = np.arange(len(starts)), starts
    for _ in range(_MOST_EXTRAS):
        left = ends[rows] - at >= 4
        rows, at = rows[left], at[left]
        if not len(rows):
            return
        kind, size = _number(block, at, 2), _number(block, at + 2, 2)
        after = at + 4 + size
        if (after > ends[rows]).any() or (kind == _UNICODE_PATH).any():
            raise _OddError
        is_wide = kind == _ZIP64
        _read_wide(block, rows[is_wide], at[is_wide] + 4, after[is_wide], wide)
        at = after
    raise _OddError


def _read_wide(
    block: Bytes, rows: Ints, at: Ints, ends: Ints, wide: tuple[Ints, Ints, Ints]
) -> None:
    for values in wide:
        is_there = values[rows] == _FULL
        if (at[is_there] + 8 > ends[is_there]).any():
            raise _OddError
        numbers = _number(block, at[is_there], 8)
        if (numbers < 0).any():  # more than 63 bits
            raise _OddError
        values[rows[is_there]] = numbers
        at = at + 8 * is_there


def _number(block: Bytes, at: Ints, size: int) -> Ints:
    """Return little-endian numbers of `size` bytes; negative above 63 bits."""
    numbers = np.zeros(len(at), np.int64)
    for i in range(size):
        numbers |= block[at + i].astype(np.int64) << 8 * i
    return numbers


class End(NamedTuple):
    """The end record of a zip, and facts about its directory. Offsets are within the extent."""

    directory: int
    directory_stop: int
    """Offset of the end record, or of its ZIP64 record: the directory ends there."""
    shift: int
    """Bytes before the zip, which its offsets do not count; negative if the zip is damaged."""
    stop: int
    """Offset of the end of the zip, after its comment."""
    num_stated: int
    num_listed: int
    longest_extra: int


def read_end(place: PlainExtent) -> End | None:
    """Return the end record that `zipfile` would use, or None if it is missing."""
    tail_bytes = min(place.num_bytes, _MAX_COMMENT_BYTES + _END.size + 100)
    start = place.num_bytes - tail_bytes
    tail = place.read_range(start, tail_bytes)
    at = len(tail) - _END.size
    if tail[at : at + 4] != b"PK\5\6" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        return None
    *_, num_stated, directory_bytes, stated, comment_bytes = _END.unpack_from(tail, at)
    stop = start + at + _END.size + comment_bytes
    at64 = at - _END64_LOCATOR_BYTES - _END64.size
    if at64 >= 0 and tail[at - _END64_LOCATOR_BYTES :][:4] == b"PK\6\7":
        mark, count, size, offset = _END64.unpack_from(tail, at64)
        if mark == b"PK\6\6":
            at, num_stated, directory_bytes, stated = at64, count, size, offset
    directory = max(0, start + at - directory_bytes)
    shift = start + at - directory_bytes - stated
    measured = measured_entries(place, directory, start + at)
    return End(directory, start + at, shift, stop, num_stated, *measured)


def check_end(end: End | None, name: str) -> End:
    """Return `end`; SourceError if it is missing, or if reading the directory would be too slow."""
    if end is None:
        what = "is truncated: the directory at the end of the zip is missing"
        raise SourceError(name, what, _PACK_IT_AGAIN)
    if end.longest_extra > _MAX_EXTRA_BYTES:  # zipfile needs quadratic time for it
        what = f"is damaged, or a zip bomb: an extra field has {end.longest_extra:,} bytes"
        raise SourceError(name, what, _PACK_IT_AGAIN)
    return end


def check_directory(found: ZipEntries, stop: int, place: PlainExtent, end: End, name: str) -> None:
    """Raise SourceError if members are miscounted, overlap or are unlisted.

    The bytes of the members end at `stop`, where the directory starts.
    """
    # Some programs write only 16 bits of the number.
    num_found = len(found.names)
    if (end.num_stated ^ num_found) & 0xFFFF:
        what = f"its directory lists {num_found:,} members, but its end record {end.num_stated:,}"
        raise SourceError(name, f"is damaged: {what}", _PACK_IT_AGAIN)
    order = np.argsort(found.places["offset"], kind="stable")
    starts = found.places["offset"][order]
    ends = starts + np.minimum(found.places["stored_bytes"][order], MOST_OFFSET) + _LOCAL.size
    overlap = np.flatnonzero((starts[1:] < ends[:-1]) & (ends[:-1] <= stop))
    if len(overlap):  # a member that ends after the stop is truncated; reading it reports that
        one, two = (found.names[i] for i in order[overlap[0] : overlap[0] + 2].tolist())
        names = f"{shown(one, 40)!r} and {shown(two, 40)!r}"
        what = f"is damaged, or a zip bomb: its members {names} share the same bytes"
        raise SourceError(name, what, _PACK_IT_AGAIN)
    if num_found and not 0 <= starts[-1] < stop:
        return  # a misplaced member leaves a gap, and is an error when it is read
    reached = np.append(starts[1:], stop)[:num_found]
    for i in np.flatnonzero(reached - ends > _SPARE_BYTES).tolist():
        # If many bytes follow a member, they may be more than its name and extra field.
        if reached[i] - ends[i] > 4 * len(found.names[int(order[i])]) + _SPARE_BYTES:
            own = ends[i] + _name_and_extra_bytes(place, int(starts[i]))
            reached[i] = min(own, reached[i])
    # Unused parts of the zip that are large enough for a member.
    before, after = np.append(0, reached), np.append(starts, stop)
    is_wide = after - before >= _LOCAL.size
    gaps = zip(before[is_wide].tolist(), after[is_wide].tolist(), strict=True)
    for start, gap_stop in (*gaps, (end.stop, place.num_bytes)):
        if _holds_member(place, start, gap_stop):
            gap = f"{gap_stop - start:,} bytes at offset {start:,}"
            what = f"its directory does not list members that are stored in {gap}"
            raise SourceError(
                name, f"{what}: it is damaged, or several joined zips", _PACK_IT_AGAIN
            )


def _name_and_extra_bytes(place: PlainExtent, at: int) -> int:
    header = place.read_range(at, _LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        return 0
    fields = _LOCAL.unpack(header)
    return int(fields[-2]) + int(fields[-1])


def _holds_member(place: PlainExtent, start: int, stop: int) -> bool:
    while start + _LOCAL.size < stop:
        block = place.read_range(start, min(BLOCK_BYTES, stop - start))
        at = block.find(b"PK\3\4")
        while at >= 0:
            if _is_member(place, start + at, stop):
                return True
            at = block.find(b"PK\3\4", at + 4)
        start += max(1, len(block) - 3)
    return False


def _is_member(place: PlainExtent, at: int, stop: int) -> bool:
    header = place.read_range(at, _LOCAL.size)
    if len(header) < _LOCAL.size:
        return False
    _, version, flags, method, _, _, _, packed, _, name_bytes, extra_bytes = _LOCAL.unpack(header)
    after = at + _LOCAL.size + name_bytes + extra_bytes
    if not (flags & _LATE_SIZE or packed == _FULL):
        after += packed
    return (
        version & 0xFF <= _MAX_VERSION
        and method in _METHODS
        and 0 < name_bytes <= _MAX_NAME_BYTES
        and after <= stop
        and b"\0" not in place.read_range(at + _LOCAL.size, name_bytes)
    )
