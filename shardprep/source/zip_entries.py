"""Read the directory of an ordinary zip as columns; unusual directories are left to `zipfile`.

Entries are found by their signature, one block of the directory at a time. They must follow each
other to the end without a gap. A size or offset of 32 bits that is `_FULL` has its value in the
ZIP64 extra field, which contains only the full ones, in the order size, stored size, offset.
For the fields, see APPNOTE 4.3.12 and 4.5.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
_BLOCK_BYTES = 1 << 20
_MAX_VERSION = 63
"""Highest version that `zipfile` reads."""
_UTF8_FLAG = 0x800
_FULL = 0xFFFFFFFF
"""Value of a size or offset that is in the extra field instead."""
_ZIP64, _UNICODE_PATH = 1, 0x7075
_MOST_EXTRAS = 16
"""Maximum number of extra fields of an ordinary entry."""


class ZipEntries(NamedTuple):
    """The entries of a directory, in its order."""

    names: Texts
    places: Places
    """A `PLACE` for each, without `file`; offsets are relative to the zip."""
    modes: NDArray[np.uint16]
    """Unix mode of each file; 0 if unknown."""


class _OddError(Exception):
    """The directory is unusual and must be read by `zipfile`."""


def measured_entries(place: PlainExtent, at: int, stop: int) -> tuple[int, int]:
    """Return the number of entries in a directory, and the length of the longest extra field."""
    num_entries = longest = 0
    for _, _, entries in _blocks(place, at, stop):
        num_entries += len(entries)
        longest = max(longest, int(entries["extra_bytes"].max()))
    return num_entries, longest


def read_entries(place: PlainExtent, at: int, stop: int, number: int) -> ZipEntries | None:
    """Return the entries of a directory between two offsets, or None if it is unusual.

    `number` is the expected number of entries.
    """
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
    """Yield blocks of a directory, the starts of entries in them, and the `_ENTRY` of each.

    Stops where no entry follows. Only the last entry may be truncated.
    """
    while at < stop:
        block = np.frombuffer(place.read_range(at, min(_BLOCK_BYTES, stop - at)), np.uint8)
        starts, entries = _chain(block)
        if not len(starts):
            return
        ends = starts + _lengths(entries)
        is_last = at + len(block) == stop or ends[0] > len(block)
        whole = len(starts) if is_last else int(np.searchsorted(ends, len(block), side="right"))
        yield block, starts[:whole], entries[:whole]
        at += int(ends[whole - 1])


def _chain(block: Bytes) -> tuple[Ints, NDArray[Any]]:
    """Return starts and fields of the consecutive entries from the first byte on."""
    last = len(block) - _ENTRY.itemsize + 1
    none = np.empty(0, np.int64), np.empty(0, _ENTRY)
    if last <= 0:
        return none
    places = np.flatnonzero(block[:last] == _SIGNATURE & 0xFF)
    for i in range(1, 4):
        places = places[block[places + i] == _SIGNATURE >> 8 * i & 0xFF]
    if not len(places) or places[0]:
        return none
    entries = _gathered(block, places)
    ends = places + _lengths(entries)
    if not (ends[:-1] == places[1:]).all():  # the signature is part of a name, or the entries end
        following = np.searchsorted(places, ends).tolist()
        starts, way, i = places.tolist(), [0], 0
        while (i := following[i]) < len(starts) and starts[i] == ends[way[-1]]:
            way.append(i)
        places, entries = places[way], entries[way]
    return places, entries


def _gathered(block: Bytes, starts: Ints) -> NDArray[Any]:
    windows = np.lib.stride_tricks.sliding_window_view(block, _ENTRY.itemsize)
    return np.ascontiguousarray(windows[starts]).view(_ENTRY)[:, 0]


def _fill(places: Places, block: Bytes, starts: Ints, entries: NDArray[Any]) -> None:
    """Fill places from entries; `_OddError` if one is unusual."""
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
        """Add the names of a block, which must be ASCII or flagged as UTF-8."""
        lengths = entries["name_bytes"].astype(np.int64)
        ends = np.cumsum(lengths)
        places = np.repeat(starts + _ENTRY.itemsize - ends + lengths, lengths)
        data = block[places + np.arange(len(places))]
        is_high = data >= 0x80
        if is_high.any():
            owners = np.searchsorted(ends, np.flatnonzero(is_high), side="right")
            if not (entries["flags"][owners] & _UTF8_FLAG).all():
                raise _OddError
        if not data.all():  # zipfile ends a name at a null byte
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
