"""Thumbnails of 32x32, by which near copies are found, and hashes that find some without images.

A thumbnail shows an image without uniform borders. It has grey levels and coarse colours.

A hash has 16 bytes. A bit is the sign of a low frequency (DCT) of a thumbnail. In a mirrored image,
the signs of odd frequencies change; in a transposed image, frequencies change places. So copies
that are mirrored or turned by 90 degrees are found too. Cropped copies need the thumbnails
themselves: `near_pairs`. All sums are of whole numbers that floats hold exactly, so every machine
computes the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

LEAST_SIDE = 112
"""Minimum of the shorter side, in pixels, when a stored JPEG is decoded at a smaller scale."""
SIDE = 32
"""Side of a thumbnail in pixels."""
CELL = 4
"""Side in pixels of the square of a thumbnail that has one colour."""
THUMBNAIL = np.dtype(
    [
        ("grey", "u1", (SIDE, SIDE)),
        ("colours", "i2", (2, SIDE // CELL, SIDE // CELL)),
        ("box", "<f4", (4,)),
        ("decoded", "?"),
    ]
)
"""Thumbnail of one image. `colours` are the differences of red and blue from grey in each cell.
`box` is the part of the image that is shown: left, top, width and height as shares (0..1).
`decoded` is False if the image could not be decoded."""
LUMA = np.array((77, 150, 29), np.uint16)
"""Weights of red, green and blue in grey, in 256ths (ITU-R BT.601)."""
_NOISE = 16
"""Maximum difference between the levels of a uniform row or column."""
_LEAST_SHOWN = 0.25
"""Minimum share of each side that is left after borders are cut off."""


def thumbnail(pixels: Pixels) -> Any:
    """Return the `THUMBNAIL` of an image, uint8[height, width, 3]."""
    height, width = pixels.shape[:2]
    from PIL import Image

    top, bottom, left, right = _shown(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    box = (left, top, right, bottom)
    image = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BOX, box)
    red, green, blue = np.asarray(image).astype(np.uint16).transpose(2, 0, 1)
    found = np.zeros((), THUMBNAIL)
    found["grey"] = grey = (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]) >> 8
    number = SIDE // CELL
    cells = np.stack([grey, red, blue]).reshape(3, number, CELL, number, CELL)
    grey, red, blue = cells.sum(axis=(2, 4), dtype=np.int16)
    found["colours"] = np.stack([red - grey, blue - grey]) // CELL**2
    shares = (left / width, top / height, (right - left) / width, (bottom - top) / height)
    found["box"], found["decoded"] = shares, True
    return found


def _shown(planes: Pixels) -> tuple[int, int, int, int]:
    """Return top, bottom, left and right of an image, [3, height, width], without borders."""
    height, width = planes.shape[1:]
    top, bottom = _busy(planes, 2)
    left, right = _busy(planes[:, top:bottom], 1)
    # Borders at the sides hide that the rows above and below are uniform.
    inner_top, inner_bottom = _busy(planes[:, top:bottom, left:right], 2)
    top, bottom = top + inner_top, top + inner_bottom
    if bottom - top < _LEAST_SHOWN * height or right - left < _LEAST_SHOWN * width:
        return 0, height, 0, width
    return top, bottom, left, right


def _busy(planes: Pixels, along: int) -> tuple[int, int]:
    """Return the first line that is not uniform, and the end of the last; all if none is."""
    busy = np.flatnonzero((planes.max(axis=along) - planes.min(axis=along)).max(axis=0) > _NOISE)
    return (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, planes.shape[3 - along])


Ints = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
"""Hashes as two words each, uint64[n, 2]; zeros for an image without contrast."""

VERSION = 1
"""Version of the hashes; only hashes of equal version are comparable."""
NUM_BITS = 119
MOST_BITS = 18
"""Maximum number of bits that differ between the hashes of near copies."""
_SIDE, _HIGHEST = 32, 14
"""Side of a thumbnail; frequencies with a larger sum of row and column are not used."""
_ORDER = np.arange(_HIGHEST + 1)
_DCT = np.rint(4096 * np.cos(np.pi * _ORDER[:, None] * (np.arange(_SIDE) + 0.5) / _SIDE))
_ROW, _COLUMN = (
    one[1:] for one in np.nonzero(_ORDER[:, None] + _ORDER <= _HIGHEST)
)  # without the mean
_TRANSPOSED = np.lexsort((_ROW, _COLUMN))
"""Place of each frequency in the transposed image."""
_LEAST_CONTRAST = 2.0
"""Minimum standard deviation of grey, 0 to 255, of an image with a hash."""
_IMAGES_AT_ONCE, _AT_ONCE = 1 << 12, 1 << 22
"""Number of images hashed at once, and of pairs compared at once."""


def picture_hashes(grey: np.ndarray[Any, np.dtype[np.uint8]]) -> Words:
    """Return the hashes of the grey levels of thumbnails, uint8[n, 32, 32]."""
    words = np.zeros((len(grey), 2), np.uint64)
    for start in range(0, len(grey), _IMAGES_AT_ONCE):
        levels = grey[start : start + _IMAGES_AT_ONCE].astype(np.float64)
        some = _packed((_DCT @ levels @ _DCT.T)[:, _ROW, _COLUMN] > 0)
        some[levels.std(axis=(1, 2)) < _LEAST_CONTRAST] = 0
        words[start : start + len(some)] = some
    return words


def orientations(hashes: Words) -> Iterator[Words]:
    """Yield the hashes of the 8 mirrored and turned forms of each image, unchanged first."""
    bits = np.unpackbits(hashes.view(np.uint8), axis=1)[:, :NUM_BITS].astype(bool)
    for turned in (bits, bits[:, _TRANSPOSED]):
        for rows in (False, True):
            for columns in (False, True):
                changed = (rows & (_ROW & 1 == 1)) ^ (columns & (_COLUMN & 1 == 1))
                yield _packed(turned ^ changed)


def near_hashes(one: Words, two: Words) -> Ints:
    """Return the pairs of positions whose hashes are close in any orientation, int64[pairs, 2]."""
    there = [np.flatnonzero(hashes.any(axis=1)) for hashes in (one, two)]
    found = [np.empty((0, 2), np.int64)]
    others = two[there[1]]
    step = max(1, _AT_ONCE // max(len(others), 1))
    for turned in orientations(one[there[0]]):
        for start in range(0, len(turned), step):
            some = turned[start : start + step, None]
            apart = np.bitwise_count(some[..., 0] ^ others[:, 0])
            apart += np.bitwise_count(some[..., 1] ^ others[:, 1])
            pairs = np.argwhere(apart <= MOST_BITS)
            found.append(np.stack([there[0][pairs[:, 0] + start], there[1][pairs[:, 1]]], axis=1))
    return np.unique(np.concatenate(found), axis=0)


def _packed(bits: np.ndarray[Any, np.dtype[np.bool_]]) -> Words:
    whole = np.zeros((len(bits), 128), bool)
    whole[:, :NUM_BITS] = bits
    return np.ascontiguousarray(np.packbits(whole, axis=1)).view(np.uint64)
