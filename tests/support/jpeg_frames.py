"""A JPEG of each kind of frame (ITU T.81, table B.1), most of which no Python library writes."""

import struct
from typing import Any

import numpy as np

from tests.support.builders import jpeg, pixels
from tests.support.odd_images import ARITHMETIC_JPEG
from tests.support.paths import DATA

Array = np.ndarray[Any, np.dtype[Any]]

_NUM_SIZES = 9
"""Sizes of a difference of 8 bits, 0 to 8 bits; each has a code of 4 bits, its number."""


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(body)) + body


def lossless_jpeg(picture: Array) -> bytes:
    """Return a lossless JPEG (SOF3) of uint8[height, width, 3], or of grey [height, width].

    Each sample is predicted by its left neighbour, and the first of a row by the one above it
    (annex H). RGB is named so by its component numbers, as libjpeg has it.
    """
    planes = picture.reshape(*picture.shape[:2], -1).astype(int)
    height, width, num = planes.shape
    before = np.empty_like(planes)
    before[:, 1:] = planes[:, :-1]
    before[1:, 0] = planes[:-1, 0]
    before[0, 0] = 128
    codes = []
    for difference in (planes - before).ravel().tolist():
        size = abs(difference).bit_length()
        value = difference if difference > 0 else difference + (1 << size) - 1
        codes.append(f"{size:04b}" + (f"{value:0{size}b}" if size else ""))
    stream = "".join(codes)
    stream += "1" * (-len(stream) % 8)
    scan = int(stream, 2).to_bytes(len(stream) // 8, "big").replace(b"\xff", b"\xff\0")
    names = b"RGB" if num == 3 else b"\1"
    frame = struct.pack(">BHHB", 8, height, width, num)
    frame += b"".join(bytes((name, 0x11, 0)) for name in names)
    lengths = bytes(_NUM_SIZES if length == 4 else 0 for length in range(1, 17))
    starts = bytes((num,)) + b"".join(bytes((name, 0)) for name in names)
    return (
        b"\xff\xd8"
        + _segment(0xC3, frame)
        + _segment(0xC4, b"\0" + lengths + bytes(range(_NUM_SIZES)))
        + _segment(0xDA, starts + b"\1\0\0")
        + scan
        + b"\xff\xd9"
    )


PROGRESSIVE_ARITHMETIC_JPEG = (DATA / "progressive_arithmetic.jpg").read_bytes()
"""Made by libjpeg-turbo's `jpeg_simple_progression` of `ARITHMETIC_JPEG`."""

_LOSSLESS = lossless_jpeg(pixels())
_FRAME = _LOSSLESS.index(b"\xff\xc3")


def renamed(marker: int, bits: int = 8, data: bytes = jpeg()) -> bytes:
    at = min(found for name in (b"\xff\xc0", b"\xff\xc3") if (found := data.find(name)) > 0)
    return (
        data[: at + 1] + bytes((marker,)) + data[at + 2 : at + 4] + bytes((bits,)) + data[at + 5 :]
    )


READ = {
    "baseline": jpeg(),
    "extended": renamed(0xC1),
    "progressive": jpeg(progressive=True),
    "arithmetic": ARITHMETIC_JPEG,
    "arithmetic, progressive": PROGRESSIVE_ARITHMETIC_JPEG,
    "lossless": _LOSSLESS,
    "lossless, grey": lossless_jpeg(pixels()[..., 0]),
    "lossless, behind fill bytes": _LOSSLESS[:_FRAME] + b"\xff\xff" + _LOSSLESS[_FRAME:],
    "lossless, behind a thumbnail": _LOSSLESS[:2] + _segment(0xE0, jpeg()) + _LOSSLESS[2:],
    "baseline, behind a lossless thumbnail": jpeg()[:2] + _segment(0xE0, _LOSSLESS) + jpeg()[2:],
}
UNREAD = {
    "12 bits": renamed(0xC1, 12),
    "lossless, 12 bits": renamed(0xC3, 12, _LOSSLESS),
    "lossless, of a baseline scan": renamed(0xC3),
    "baseline, of a lossless scan": renamed(0xC0, 8, _LOSSLESS),
    "lossless, arithmetic": renamed(0xCB),
    "baseline, then lossless": jpeg()[: jpeg().index(b"\xff\xda")] + _LOSSLESS[2:],
    "hierarchical": jpeg()[:2]
    + _segment(0xDE, struct.pack(">BHHB", 8, 48, 64, 3) + bytes((1, 17, 0, 2, 17, 0, 3, 17, 0)))
    + renamed(0xC5)[2:],
    **{
        f"frame {marker:#x}": renamed(marker) for marker in (*range(0xC5, 0xC8), *range(0xCD, 0xD0))
    },
}
LOSSLESS = {name: data for name, data in READ.items() if name.startswith("lossless")}
