"""Numbers of pixels: a perceptual hash, and what tells a dark, blurred or empty picture.

Every image is brought to one small square first, whatever its own size, so that the numbers of two
images compare and those of a batch are made at once. Pure: arrays in, arrays out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, np.dtype[np.uint8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Hashes = np.ndarray[Any, np.dtype[np.uint64]]

TILE = 56
"""Side in pixels of the square that images are measured on."""
SHARP_SIDE = 112
"""Shorter side in pixels at which sharpness is measured; smaller images keep their own."""
CELLS = 4
"""Cells a side of the coarse colours of an image."""
MEASURES = np.dtype(
    [
        ("hash", "<u8"),
        ("brightness", "<f4"),
        ("darkest", "<f4"),
        ("lightest", "<f4"),
        ("entropy", "<f4"),
        ("sharpness", "<f4"),
        ("colour", "<f4"),
        ("contrast", "<f4"),
        ("cells", "u1", (CELLS * CELLS, 3)),
        ("decoded", "?"),
    ]
)
"""Numbers of one image. `hash` is a perceptual hash of 64 bits; `brightness` (mean), `darkest` (5th
percentile) and `lightest` (99th) are perceived brightness in 0..1; `entropy` bits of the grey
levels; `sharpness` the strength of edges relative to contrast; `colour` the mean distance between
the channels, 0..1; `contrast` the standard deviation of grey in levels of 255; `cells` the mean
red, green and blue of each cell, row by row; `decoded` whether there was an image to measure."""

_SQUARES = (np.square(np.arange(256) / 255)[None] * np.array([[0.241], [0.691], [0.068]])).astype(
    np.float32
)
"""Part of red, green and blue, by level, in the square of perceived brightness."""
_LUMA = np.array((77, 150, 29), np.uint16)
"""256ths of red, green and blue in grey (ITU-R BT.601)."""
_LOW = 8
"""Frequencies a side, above those of no change, whose signs are the bits of a hash."""


def _cosines() -> Floats:
    """Return the rows 0..8 of the discrete cosine transform (DCT-II) of 28 points."""
    rows, points = np.arange(_LOW + 1)[:, None], np.arange(TILE // 2)[None]
    return np.cos(np.pi * rows * (2 * points + 1) / TILE).astype(np.float32)


_DCT = _cosines()


def tile(pixels: Pixels) -> Pixels:
    """Return uint8[56, 56, 3], means over areas, of an image uint8[height, width, 3]."""
    image = Image.fromarray(pixels)
    if image.width % TILE == image.height % TILE == 0:  # in a third of the time
        return np.asarray(image.reduce((image.width // TILE, image.height // TILE)))
    return np.asarray(image.resize((TILE, TILE), Image.Resampling.BOX))


def sharpness(pixels: Pixels) -> float:
    """Return the strength of the edges of an image uint8[height, width, 3] by its contrast.

    The standard deviation of the Laplacian of grey over that of grey, so that mist is not taken for
    blur. It depends on the resolution, so images are brought to one (`SHARP_SIDE`). 0 for an image
    without contrast.
    """
    image = Image.fromarray(pixels).convert("L")
    ratio = SHARP_SIDE / min(image.size)
    if ratio < 1:
        size = (round(image.width * ratio), round(image.height * ratio))
        image = image.resize(size, Image.Resampling.BOX)
    grey = np.asarray(image).astype(np.int16)
    if min(grey.shape) < 3:
        return 0.0
    edges = 4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1]
    edges -= grey[1:-1, :-2] + grey[1:-1, 2:]
    spread = _deviation(grey)
    return _deviation(edges) / spread if spread > 0.5 else 0.0


def _deviation(values: np.ndarray[Any, np.dtype[np.int16]]) -> float:
    """Return the standard deviation of small whole numbers, faster than numpy does."""
    plain = values.astype(np.float32).ravel()
    mean = float(plain.mean())
    return math.sqrt(max(0.0, float(plain @ plain) / len(plain) - mean * mean))


def measured(tiles: Pixels) -> np.ndarray[Any, Any]:
    """Return the `MEASURES` of tiles, uint8[n, 56, 56, 3]; sharpness is left at 0."""
    found = np.zeros(len(tiles), MEASURES)
    found["decoded"] = True
    if not len(tiles):
        return found
    red, green, blue = (np.ascontiguousarray(tiles[..., i]) for i in range(3))
    perceived = _SQUARES[0][red] + _SQUARES[1][green] + _SQUARES[2][blue]
    perceived = np.sqrt(perceived, out=perceived)
    tones = _histograms((perceived * 255 + 0.5).astype(np.uint8))
    found["brightness"] = perceived.mean(axis=(1, 2), dtype=np.float64)
    found["darkest"] = _percentile(tones, 0.05)
    found["lightest"] = _percentile(tones, 0.99)
    grey = red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2]
    grey = (grey >> 8).astype(np.uint8)
    shares = _histograms(grey) / TILE**2
    found["entropy"] = -(shares * np.log2(shares, where=shares > 0, out=shares * 0)).sum(axis=1)
    levels = np.arange(256)
    means = shares @ levels
    found["contrast"] = np.sqrt(np.maximum(shares @ levels**2 - means**2, 0))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    found["colour"] = spread.mean(axis=(1, 2), dtype=np.float64) / 255
    side = TILE // CELLS
    cells = tiles.reshape(-1, CELLS, side, CELLS, side, 3).sum(axis=(2, 4), dtype=np.uint32)
    found["cells"] = (cells // side**2).reshape(-1, CELLS * CELLS, 3)
    found["hash"] = _hashes(grey)
    return found


def _hashes(grey: Pixels) -> Hashes:
    """Return the perceptual hashes (pHash) of grey tiles: signs of low frequencies, 64 bits.

    A bit tells whether a frequency is stronger than the median of all; those that do not change
    along a side are left out, as light that falls from one side is in them.
    """
    wide = grey.astype(np.float32)
    tall = wide[:, ::2] + wide[:, 1::2]
    half = tall[:, :, ::2] + tall[:, :, 1::2]
    low = (_DCT @ half @ _DCT.T)[:, 1:, 1:].reshape(len(grey), -1)
    bits = low > np.median(low, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8").astype("<u8").ravel()


def _histograms(levels: Pixels) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return int64[n, 256]: how many values of each image are of each level."""
    return np.stack([np.bincount(one.ravel(), minlength=256) for one in levels])


def _percentile(histograms: np.ndarray[Any, Any], share: float) -> Floats:
    """Return the level, 0..1, up to which a share of the values of each row lies."""
    sums = histograms.cumsum(axis=1)
    levels: Floats = (sums >= share * sums[:, -1:]).argmax(axis=1).astype(np.float32)
    return levels / np.float32(255)
