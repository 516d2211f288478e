"""Parse the headers of ordinary JPEG files, and recognize the coding process of any JPEG.

An ordinary file has nothing that changes its pixels: no EXIF orientation, no profile, no second
image. Pillow reads the headers of all other files.
"""

from __future__ import annotations

import re
import struct
import sys
from typing import NamedTuple

_START, _MARKER = b"\xff\xd8\xff", b"\xff"
_SCAN = 0xDA
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
"""Baseline, extended and progressive frames with Huffman codes (ITU T.81, table B.1)."""
_ARITHMETIC_FRAMES = frozenset((0xC9, 0xCA))
"""Extended and progressive frames with arithmetic codes."""
_ALL_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""All frames, also lossless (0xC3, 0xCB) and hierarchical ones (0xC5 to 0xC7, 0xCD to 0xCF)."""
_END = 0xD9
_BARE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers without a segment."""
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xff]", re.DOTALL)
_PASSED_OVER = frozenset((0xC4, 0xDB, 0xDD, 0xFE))
"""Segments that only the decoder reads: Huffman and quantization tables, restarts, comments."""
_MARKED = {0xE0: (b"JFIF\0", 16), 0xEE: (b"Adobe", 14)}
"""Application segment that the decoder reads → its first bytes and its least size in bytes."""
_FRAME = struct.Struct(">HBHHB")
"""Length of the segment, bits per sample, height, width, number of components."""


class OrdinaryJpeg(NamedTuple):
    """Size and components of an ordinary JPEG."""

    height: int
    width: int
    is_grey: bool


def ordinary_jpeg(data: bytes) -> OrdinaryJpeg | None:
    """Return the size and components of an ordinary JPEG; None for any other file.

    Pillow accepts every header that is accepted here, if the decoder accepts the file.
    """
    found = None
    at = 2 if data.startswith(_START) else len(data)
    while data.startswith(_MARKER, at) and at + 4 <= len(data):
        marker = data[at + 1]
        num_bytes = data[at + 2] << 8 | data[at + 3]
        if num_bytes < 2 or at + 2 + num_bytes > len(data):
            break
        if marker == _SCAN:
            return found
        if marker in _FRAMES and found is None:
            found = _frame(data, at + 2, num_bytes)
            if found is None:
                break
        elif not _says_nothing(marker, data, at + 2, num_bytes):
            break
        at += 2 + num_bytes
    return None


def is_scalable(data: bytes | memoryview) -> bool:
    """Return whether libjpeg-turbo can decode a JPEG at a fraction of its size.

    The scaled decoder needs a discrete cosine transform. On a lossless frame, libjpeg-turbo writes
    outside its memory, which ends the process. Hierarchical frames are not supported.
    """
    frame = _first_frame(data)
    return frame in _FRAMES or frame in _ARITHMETIC_FRAMES


def is_common(data: bytes | memoryview) -> bool:
    """Return whether every decoder can read this kind of JPEG; browsers cannot read other kinds."""
    return _first_frame(data) in _FRAMES


def _first_frame(data: bytes | memoryview) -> int:
    """Return the marker of the first frame header, or 0 if the JPEG has none.

    Skips bytes between segments as libjpeg does (`next_marker`), so that both find the same frame.
    """
    at = 2
    while (found := _NEXT_MARKER.search(data, at)) and found.end() + 2 <= len(data):
        at = found.end()
        marker = data[at - 1]
        if marker in _ALL_FRAMES:
            return marker
        if marker in (_SCAN, _END):
            break
        at += 0 if marker in _BARE else data[at] << 8 | data[at + 1]
    return 0


def _says_nothing(marker: int, data: bytes, at: int, num_bytes: int) -> bool:
    """Return whether a segment can be skipped here, because only the decoder uses it."""
    if marker in _PASSED_OVER:
        return True
    start, least = _MARKED.get(marker, (b"", sys.maxsize))
    return num_bytes >= least and data.startswith(start, at + 2)


def _frame(data: bytes, at: int, num_bytes: int) -> OrdinaryJpeg | None:
    """Return the content of a frame header; None unless it has 8 bits and 1 or 3 components."""
    if num_bytes < _FRAME.size:
        return None
    _, bits, height, width, components = _FRAME.unpack_from(data, at)
    if bits != 8 or components not in (1, 3) or num_bytes != 8 + 3 * components:
        return None
    return OrdinaryJpeg(height, width, components == 1) if height and width else None
