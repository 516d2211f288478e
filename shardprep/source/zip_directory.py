"""Checks of a zip's directory: no byte belongs to two members, and no member is missing from it.

Libraries read a zip by the directory at its end. Members that it does not name (the first of two
zips in one file) would be left out silently, and a directory that names the same bytes many times
unpacks to any size.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import SourceError, shown

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Sequence

    from shardprep.source.extent import PlainExtent

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
_END64 = struct.Struct("<4s28x2Q8x")
_END64_LOCATOR_BYTES = 20
_MAX_COMMENT_BYTES = 0xFFFF
_ENTRY_BYTES = 46
_ENTRY_LENGTHS = struct.Struct("<3H")
"""Lengths of name, extra field and comment, at byte 28 of an entry (APPNOTE 4.3.12)."""
_MAX_EXTRA_BYTES = 1 << 14
_SPARE_BYTES = 100
"""Bytes that may follow a member for good reasons; an image is larger."""
_SCAN_BYTES = 1 << 20
_PACK_IT_AGAIN = "download or pack it again"


class End(NamedTuple):
    """The record at the end of a zip."""

    directory: int
    """Offset of the directory, in bytes."""
    stop: int
    """Offset of the end of the zip, after its comment."""
    num_stated: int
    """Members, as it says itself."""
    num_listed: int
    """Entries of the directory, as far as it can be read."""
    longest_extra: int
    """Bytes of the longest extra field in it."""


def read_end(place: PlainExtent) -> End | None:
    """Return the end of a zip as zipfile finds it, None where there is none."""
    tail_bytes = min(place.num_bytes, _MAX_COMMENT_BYTES + _END.size + 100)
    start = place.num_bytes - tail_bytes
    tail = place.read_range(start, tail_bytes)
    at = len(tail) - _END.size
    if tail[at : at + 4] != b"PK\5\6" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        return None
    _, _, _, _, num_stated, directory_bytes, _, comment_bytes = _END.unpack_from(tail, at)
    stop = start + at + _END.size + comment_bytes
    at64 = at - _END64_LOCATOR_BYTES - _END64.size
    if at64 >= 0 and tail[at - _END64_LOCATOR_BYTES :][:4] == b"PK\6\7":
        mark, count, size = _END64.unpack_from(tail, at64)
        if mark == b"PK\6\6":
            at, num_stated, directory_bytes = at64, count, size
    directory = max(0, start + at - directory_bytes)
    return End(directory, stop, num_stated, *_measure(place, directory, start + at))


def _measure(place: PlainExtent, at: int, stop: int) -> tuple[int, int]:
    """Return the number of entries in a directory, and the length of the longest extra field."""
    num_entries = longest = 0
    while at < stop:
        block = place.read_range(at, min(_SCAN_BYTES, stop - at))
        reached = 0
        while block.startswith(b"PK\1\2", reached) and reached + _ENTRY_BYTES <= len(block):
            name_bytes, extra_bytes, comment_bytes = _ENTRY_LENGTHS.unpack_from(block, reached + 28)
            reached += _ENTRY_BYTES + name_bytes + extra_bytes + comment_bytes
            longest = max(longest, extra_bytes)
            num_entries += 1
        if reached == 0:
            break
        at += reached
    return num_entries, longest


def check_end(end: End | None, name: str) -> End:
    """Check that a zip has a directory, and one that can be read in time linear in its size."""
    if end is None:
        raise SourceError(
            name, "is cut: the directory at the end of a zip is not there", _PACK_IT_AGAIN
        )
    if end.longest_extra > _MAX_EXTRA_BYTES:  # zipfile's time is the square of it
        raise SourceError(
            name,
            f"is damaged, or a bomb: an extra field has {end.longest_extra:,} bytes",
            _PACK_IT_AGAIN,
        )
    return end


def check_directory(archive: zipfile.ZipFile, place: PlainExtent, end: End, name: str) -> None:
    """Check that the members of an opened zip do not overlap, and that no member lies between."""
    infos = archive.infolist()
    # Some programs count in 16 bits, however many there are.
    if (end.num_stated ^ len(infos)) & 0xFFFF:
        raise SourceError(
            name,
            f"is damaged: its directory names {len(infos):,} members, its end {end.num_stated:,}",
            _PACK_IT_AGAIN,
        )
    stop = archive.start_dir
    ordered = sorted(infos, key=attrgetter("header_offset"))
    for one, two in pairwise(ordered):
        if two.header_offset < _end_of(one) <= stop:  # else it is cut, which reading it will say
            names = f"{shown(one.filename, 40)!r} and {shown(two.filename, 40)!r}"
            raise SourceError(
                name, f"its members {names} lie in the same bytes", "it is damaged, or a bomb"
            )
    if ordered and not 0 <= ordered[-1].header_offset < stop:
        return  # a member out of place leaves a gap, and is an error of its own when it is read
    for start, gap_stop in (*_gaps(ordered, place, stop), (end.stop, place.num_bytes)):
        if _holds_member(place, start, gap_stop):
            raise SourceError(
                name,
                f"{gap_stop - start:,} bytes at offset {start:,} hold members that its directory "
                "does not name",
                "it is damaged, or several zips in one file: pack it again",
            )


def _end_of(info: zipfile.ZipInfo) -> int:
    """Return the least offset at which a member can end: it has a name as well."""
    return info.header_offset + _LOCAL.size + info.compress_size


def _gaps(
    ordered: Sequence[zipfile.ZipInfo], place: PlainExtent, stop: int
) -> list[tuple[int, int]]:
    """Return the parts of a zip that no member takes, where they could hold one."""
    gaps = []
    reached = 0
    for i, info in enumerate(ordered):
        if info.header_offset - reached >= _LOCAL.size:
            gaps.append((reached, info.header_offset))
        following = ordered[i + 1].header_offset if i + 1 < len(ordered) else stop
        reached = _end_of(info)
        if following - reached > 4 * len(info.filename) + _SPARE_BYTES:
            reached += _name_and_extra_bytes(place, info.header_offset)
        else:
            reached = following
        reached = min(reached, following)
    if stop - reached >= _LOCAL.size:
        gaps.append((reached, stop))
    return gaps


def _name_and_extra_bytes(place: PlainExtent, at: int) -> int:
    header = place.read_range(at, _LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        return 0
    fields = _LOCAL.unpack(header)
    return int(fields[-2]) + int(fields[-1])


def _holds_member(place: PlainExtent, start: int, stop: int) -> bool:
    """Tell whether there is a member between two offsets."""
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
