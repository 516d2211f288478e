"""Check a zip's directory: members do not share bytes, and no member is unlisted.

A zip is read from its end. The last record (`_END`) has the size and offset of the directory, which
lists the members. Above 65,534 members or 4 GiB, the fields of that record are full. Then a ZIP64
record (`_END64`) with 64-bit fields and a locator of 20 bytes precede it. Offsets count from the
start of the zip, not of the file: the position of the end record shows how many bytes precede the
zip (`End.shift`).

Libraries trust the directory. They silently leave out members that it does not list, such as those
of the first of two zips in one file. A directory that lists the same bytes many times unpacks to
any size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.errors import SourceError, shown
from shardprep.source.byte_range import PlainExtent
from shardprep.source.zip_entries import measured_entries

_LOCAL = struct.Struct("<4s5H3L2H")
"""Signature, version, flags, method, time, date, CRC-32, sizes, length of name and extra field
(APPNOTE 4.3.7)."""
_MAX_VERSION = 63
_METHODS = frozenset((0, 1, 2, 3, 4, 5, 6, 8, 9, 12, 14, 93, 95, 96, 97, 98, 99))
_LATE_SIZE = 0x8
_MAX_NAME_BYTES = 4096
_END = struct.Struct("<4s4H2LH")
"""Signature, disks, entries here and in all, bytes and offset of the directory, bytes of comment
(APPNOTE 4.3.16)."""
_END64 = struct.Struct("<4s28x3Q")
_END64_LOCATOR_BYTES = 20
_MAX_COMMENT_BYTES = 0xFFFF
_MAX_EXTRA_BYTES = 1 << 14
_SPARE_BYTES = 100
"""Bytes that may legitimately follow a member; an image is larger."""
_SCAN_BYTES = 1 << 20
_PACK_IT_AGAIN = "download or pack it again"


class End(NamedTuple):
    """The record at the end of a zip."""

    directory: int
    """Offset of the directory in bytes."""
    directory_stop: int
    """Offset of the directory's end according to this record."""
    shift: int
    """Bytes before the zip, not counted in its offsets; negative if the zip is damaged."""
    stop: int
    """Offset of the end of the zip, comment included."""
    num_stated: int
    """Number of members according to this record."""
    num_listed: int
    """Number of readable entries of the directory."""
    longest_extra: int
    """Length of the longest extra field in bytes."""


def read_end(place: PlainExtent) -> End | None:
    """Return the end record as zipfile finds it, or None."""
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
    """Check that a zip has a directory that can be read in linear time."""
    if end is None:
        raise SourceError(
            name, "is truncated: the directory at the end of the zip is missing", _PACK_IT_AGAIN
        )
    if end.longest_extra > _MAX_EXTRA_BYTES:  # zipfile needs quadratic time for it
        raise SourceError(
            name,
            f"is damaged, or a bomb: an extra field has {end.longest_extra:,} bytes",
            _PACK_IT_AGAIN,
        )
    return end


class Directory(NamedTuple):
    """Places of the members of a zip according to its directory."""

    start: int
    """Offset of the directory."""
    names: Sequence[str]
    offsets: NDArray[np.int64]
    """Offset of each local header."""
    stored_bytes: NDArray[np.int64]


def check_directory(found: Directory, place: PlainExtent, end: End, name: str) -> None:
    """Check that members do not overlap, and that no unlisted member is between them."""
    # Some programs write only 16 bits of the number.
    num_found = len(found.offsets)
    if (end.num_stated ^ num_found) & 0xFFFF:
        raise SourceError(
            name,
            f"is damaged: its directory lists {num_found:,} members, "
            f"its end record {end.num_stated:,}",
            _PACK_IT_AGAIN,
        )
    stop = found.start
    order = np.argsort(found.offsets, kind="stable")
    starts = found.offsets[order]
    ends = starts + found.stored_bytes[order] + _LOCAL.size
    """The smallest offsets at which members can end; their names need bytes too."""
    overlap = np.flatnonzero((starts[1:] < ends[:-1]) & (ends[:-1] <= stop))
    if len(overlap):  # a member that ends after the stop is truncated; reading it reports that
        one, two = (found.names[i] for i in order[overlap[0] : overlap[0] + 2].tolist())
        names = f"{shown(one, 40)!r} and {shown(two, 40)!r}"
        raise SourceError(
            name, f"its members {names} share the same bytes", "it is damaged, or a bomb"
        )
    if num_found and not 0 <= starts[-1] < stop:
        return  # a misplaced member leaves a gap, and is an error when it is read
    reached = _reached(found, place, order, (starts, ends))
    for start, gap_stop in (*_gaps(starts, reached, stop), (end.stop, place.num_bytes)):
        if _holds_member(place, start, gap_stop):
            raise SourceError(
                name,
                f"{gap_stop - start:,} bytes at offset {start:,} contain members that "
                "its directory does not list",
                "it is damaged, or several zips in one file: pack it again",
            )


def _reached(
    found: Directory,
    place: PlainExtent,
    order: NDArray[np.int64],
    bounds: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Return the end offset of each member, at most the start of the next one.

    Local headers are read only if many bytes follow a member; otherwise these bytes are its name
    and extra field.
    """
    starts, ends = bounds
    following = np.append(starts[1:], found.start)[: len(starts)]
    reached = following.copy()
    spare = following - ends
    for i in np.flatnonzero(spare > _SPARE_BYTES).tolist():
        if spare[i] > 4 * len(found.names[order[i]]) + _SPARE_BYTES:
            own = ends[i] + _name_and_extra_bytes(place, int(starts[i]))
            reached[i] = min(own, following[i])
    return reached


def _gaps(
    starts: NDArray[np.int64], reached: NDArray[np.int64], stop: int
) -> list[tuple[int, int]]:
    """Return the unused parts of a zip that are large enough for a member."""
    before, after = np.append(0, reached), np.append(starts, stop)
    is_wide = after - before >= _LOCAL.size
    return list(zip(before[is_wide].tolist(), after[is_wide].tolist(), strict=True))


def _name_and_extra_bytes(place: PlainExtent, at: int) -> int:
    header = place.read_range(at, _LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        return 0
    fields = _LOCAL.unpack(header)
    return int(fields[-2]) + int(fields[-1])


def _holds_member(place: PlainExtent, start: int, stop: int) -> bool:
    while start + _LOCAL.size < stop:
        block = place.read_range(start, min(_SCAN_BYTES, stop - start))
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
    if not (flags & _LATE_SIZE or packed == 0xFFFFFFFF):
        after += packed
    return (
        version & 0xFF <= _MAX_VERSION
        and method in _METHODS
        and 0 < name_bytes <= _MAX_NAME_BYTES
        and after <= stop
        and b"\0" not in place.read_range(at + _LOCAL.size, name_bytes)
    )
