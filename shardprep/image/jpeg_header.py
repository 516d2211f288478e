"""The header of an ordinary JPEG, read in a few steps; Pillow reads all others.

An ordinary file has nothing but coded pixels: no EXIF orientation, no profile, no second image.
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

_START, _MARKER = b"\xff\xd8\xff", b"\xff"
_SCAN = 0xDA
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
"""Baseline, extended and progressive, all of Huffman codes (ITU T.81, table B.1)."""
_PASSED_OVER = frozenset((0xC4, 0xDB, 0xDD, 0xFE))
"""Huffman and quantization tables, the restart interval, a comment: the decoder's to check."""
_MARKED = {0xE0: (b"JFIF\0", 16), 0xEE: (b"Adobe", 14)}
"""Application segments that the decoder itself understands: how they start, their least size."""
_FRAME = struct.Struct(">HBHHB")
"""Bytes of the segment, bits of a sample, height, width, components."""


class OrdinaryJpeg(NamedTuple):
    """Size and components of an ordinary JPEG."""

    height: int
    width: int
    is_grey: bool


def ordinary_jpeg(data: bytes) -> OrdinaryJpeg | None:
    """Return the header of an ordinary JPEG, None for any other file, sound or not.

    Where the decoder accepts the file, Pillow accepts every header that is returned here.
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


def _says_nothing(marker: int, data: bytes, at: int, num_bytes: int) -> bool:
    """Tell whether a segment other than the frame's is sound and does not change the picture."""
    if marker in _PASSED_OVER:
        return True
    start, least = _MARKED.get(marker, (b"", sys.maxsize))
    return num_bytes >= least and data.startswith(start, at + 2)


def _frame(data: bytes, at: int, num_bytes: int) -> OrdinaryJpeg | None:
    """Return the size in a frame header, None unless it is of 8 bits in grey or three colours."""
    if num_bytes < _FRAME.size:
        return None
    _, bits, height, width, components = _FRAME.unpack_from(data, at)
    if bits != 8 or components not in (1, 3) or num_bytes != 8 + 3 * components:
        return None
    return OrdinaryJpeg(height, width, components == 1) if height and width else None
