"""Perceptual hashes: 64 bits of the shapes of a picture, and the coarse colours beside them.

Every image is brought to one small square first, whatever its own size, so that those of a batch
are made at once. All sums are of whole numbers that floats hold exactly, so every machine gives the
same bits: plans of a build are made of them. Pure: arrays in, arrays out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, np.dtype[np.uint8]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Hashes = np.ndarray[Any, np.dtype[np.uint64]]

TILE = 56
"""Side in pixels of the square that images are brought to."""
LEAST_SIDE = 112
"""Shorter side in pixels down to which a stored JPEG is decoded at a fraction of its size."""
CELLS = 4
"""Cells a side of the coarse colours of an image."""
PHASH = np.dtype(
    [("hash", "<u8"), ("cells", "u1", (CELLS * CELLS, 3)), ("contrast", "<f4"), ("decoded", "?")]
)
"""Perceptual hash of one image, and what tells it from others of that hash. `hash` is of 64 bits;
`cells` the mean red, green and blue of each cell, row by row; `contrast` the standard deviation of
grey in levels of 255; `decoded` whether there was an image to hash."""
_LUMA = np.array((77, 150, 29), np.uint16)
"""256ths of red, green and blue in grey (ITU-R BT.601)."""
_LOW = 8
"""Frequencies a side, above those of no change, whose signs are the bits of a hash."""
_ONE = 1 << 16
"""Parts of 1 that cosines are rounded to: their sums stay below 2^53, where floats are exact."""


def _cosines() -> Floats:
    """Return the rows 0..8 of the discrete cosine transform (DCT-II) of 28 points."""
    rows, points = np.arange(_LOW + 1)[:, None], np.arange(TILE // 2)[None]
    cosines: Floats = np.rint(_ONE * np.cos(np.pi * rows * (2 * points + 1) / TILE))
    return cosines


_DCT = _cosines()


def tile(pixels: Pixels) -> Pixels:
    """Return uint8[56, 56, 3], means over areas, of an image uint8[height, width, 3]."""
    image = Image.fromarray(pixels)
    if image.width % TILE == image.height % TILE == 0:  # in a third of the time
        return np.asarray(image.reduce((image.width // TILE, image.height // TILE)))
    return np.asarray(image.resize((TILE, TILE), Image.Resampling.BOX))


def grey_levels(tiles: Pixels) -> Pixels:
    """Return the grey, uint8[n, 56, 56], of tiles, uint8[n, 56, 56, 3]."""
    red, green, blue = (tiles[..., i] * _LUMA[i] for i in range(3))
    grey: Pixels = ((red + green + blue) >> 8).astype(np.uint8)
    return grey


def phashes(tiles: Pixels, grey: Pixels) -> np.ndarray[Any, Any]:
    """Return the `PHASH` of tiles, uint8[n, 56, 56, 3], given their grey levels."""
    found = np.zeros(len(tiles), PHASH)
    if not len(tiles):
        return found
    side = TILE // CELLS
    cells = tiles.reshape(-1, CELLS, side, CELLS, side, 3).sum(axis=(2, 4), dtype=np.uint32)
    found["cells"] = (cells // side**2).reshape(-1, CELLS * CELLS, 3)
    levels = grey.reshape(len(grey), -1).astype(np.float64)
    sums, squares = levels.sum(axis=1), np.square(levels).sum(axis=1)
    found["contrast"] = np.sqrt(squares * TILE**2 - sums**2) / TILE**2
    found["hash"] = _hashes(levels.reshape(grey.shape))
    found["decoded"] = True
    return found


def _hashes(grey: Floats) -> Hashes:
    """Return the perceptual hashes (pHash) of grey tiles: signs of low frequencies, 64 bits.

    A bit tells whether a frequency is stronger than the median of all; those that do not change
    along a side are left out, as light that falls from one side is in them.
    """
    tall = grey[:, ::2] + grey[:, 1::2]
    half = tall[:, :, ::2] + tall[:, :, 1::2]
    low = (_DCT @ half @ _DCT.T)[:, 1:, 1:].reshape(len(grey), -1)
    bits = low > np.median(low, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8").astype("<u8").ravel()
