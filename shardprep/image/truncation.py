"""Detect truncated files by lengths that they state, by missing ends and by errors of decoders.

A truncated file is not reported as corrupt, because another copy of it may be complete.
"""

from __future__ import annotations

import re
import struct

_PILLOW_SAYS = (
    "image file is truncated", "Truncated File Read", "not enough image data", "Incomplete header",
    "Reached EOF while reading header",
)  # fmt: skip
_JPEG_MARKER = re.compile(rb"\xff[\x02-\xcf\xda-\xfe]")
"""Marker of a segment that has a length, unlike the markers inside a scan."""
_STRIPS, _TILES = (273, 279), (324, 325)
"""TIFF tags of offsets and of byte counts."""
_TIFF_TYPES = {3: "H", 4: "I", 5: "Q", 8: "h", 9: "i", 10: "q", 11: "f", 12: "d"}
"""Field types (TIFF 6.0, section 2) → letters of `struct`; all other types count as bytes."""


def is_cut(data: bytes, error: Exception) -> bool:
    """Return whether a file is truncated; `error` is the error of its decoder."""
    if str(error).startswith(_PILLOW_SAYS):
        return True
    try:
        return any(tell(data) for pattern, tell in _FORMATS if re.match(pattern, data, re.DOTALL))
    except (struct.error, IndexError):
        return True  # a length itself is cut


def without_cut_segment(data: bytes) -> bytes:
    """Return a truncated JPEG without a cut last segment, so that a decoder accepts it."""
    at = 2
    while marker := _JPEG_MARKER.search(data, at):
        at = marker.start()
        length = data[at + 2 : at + 4]
        if at + 2 + int.from_bytes(length, "big") > len(data) or len(length) < 2:
            return data[:at]
        at += 2 + int.from_bytes(length, "big")
    return data


def _png_is_cut(data: bytes) -> bool:
    at = len(b"\x89PNG\r\n\x1a\n")
    while at < len(data):
        num_bytes, kind = struct.unpack_from(">I4s", data, at)
        at += 12 + num_bytes
        if kind == b"IEND" or not kind.isalpha():
            return False
    return True


def _jpeg_header_is_cut(data: bytes) -> bool:
    """Return whether a segment before the scans is cut; the decoder checks the scans."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        (num_bytes,) = struct.unpack_from(">H", data, at + 2)
        if marker == 0xDA:
            return False
        at += 2 + num_bytes
    return False


def _boxes_are_cut(data: bytes) -> bool:
    # ISO/IEC 14496-12, 4.2: after size 1 comes a 64-bit size; a box of size 0 ends with the file.
    at = 0
    has_pixels = False
    while at < len(data):
        num_bytes, kind = struct.unpack_from(">I4s", data, at)
        start = at
        if num_bytes == 1:
            (num_bytes,) = struct.unpack_from(">Q", data, at + 8)
        if num_bytes == 0:
            return kind == b"jp2c" and _codestream_is_cut(data[start:])
        if num_bytes < 8:
            return False
        at += num_bytes
        has_pixels |= kind in (b"mdat", b"jp2c")
    return at > len(data) or not has_pixels


def _codestream_is_cut(data: bytes) -> bool:
    return not data.rstrip(b"\0").endswith(b"\xff\xd9")


def _gif_header_is_cut(data: bytes) -> bool:
    """Return whether a block before the pixels is cut; the decoder checks the pixels."""
    flags = data[10]
    num_colours = 2 << (flags & 7) if flags & 0x80 else 0
    return len(data) < 13 + 3 * num_colours + 8 + 10


def _tiff_is_cut(data: bytes) -> bool:
    order = "<" if data.startswith(b"II") else ">"
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    (num_entries,) = struct.unpack_from(f"{order}H", data, start)
    places: dict[int, tuple[int, ...]] = {}
    for at in range(start + 2, start + 2 + 12 * num_entries, 12):
        tag, kind, count = struct.unpack_from(f"{order}HHI", data, at)
        letter = _TIFF_TYPES.get(kind, "B")
        num_bytes = count * struct.calcsize(f"{order}{letter}")
        (place,) = struct.unpack_from(f"{order}I", data, at + 8)
        if num_bytes > 4 and place + num_bytes > len(data):
            return True
        if tag in _STRIPS + _TILES:
            place = place if num_bytes > 4 else at + 8
            places[tag] = struct.unpack_from(f"{order}{count}{letter}", data, place)
    for offsets, counts in (_STRIPS, _TILES):
        pairs = zip(places.get(offsets, ()), places.get(counts, ()), strict=False)
        if any(offset + count > len(data) for offset, count in pairs):
            return True
    return False


_FORMATS = (
    (rb"\x89PNG", _png_is_cut),
    (rb"\xff\xd8\xff", _jpeg_header_is_cut),
    (rb"GIF8", _gif_header_is_cut),
    (rb"RIFF....WEBP", lambda data: 8 + int.from_bytes(data[4:8], "little") > len(data)),
    (rb"....(ftyp|jP  )", _boxes_are_cut),
    (rb"\xff\x4f\xff\x51", _codestream_is_cut),
    (rb"II\*\0|MM\0\*", _tiff_is_cut),
    (rb"DDS |\x0a[\0-\5]\x01", lambda data: len(data) < 128),
    (rb"\x01\xda", lambda data: len(data) < 512),
    (rb"qoif", lambda data: len(data) < 14),
    (rb"\s*#define|/\* XPM", lambda data: b"}" not in data),
)
"""Pattern of the first bytes of each format, and its test for truncated files."""
