"""Numbers of pixels: what tells a dark, blurred or empty picture, beside its perceptual hash.

They are of the same small squares as the hashes, so that the numbers of two images compare and
those of a batch are made at once. Pure: arrays in, arrays out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from shardprep.image.phash import LEAST_SIDE, PHASH, TILE, grey_levels, phashes

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, np.dtype[np.uint8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

MEASURES = np.dtype(
    [
        *PHASH.descr,
        ("brightness", "<f4"),
        ("darkest", "<f4"),
        ("lightest", "<f4"),
        ("entropy", "<f4"),
        ("sharpness", "<f4"),
        ("colour", "<f4"),
    ]
)
"""Numbers of one image: those of a `PHASH`, and others. `brightness` (mean), `darkest` (5th
percentile) and `lightest` (99th) are perceived brightness in 0..1; `entropy` bits of the grey
levels; `sharpness` the strength of edges relative to contrast; `colour` the mean distance between
the channels, 0..1."""

_SQUARES = (np.square(np.arange(256) / 255)[None] * np.array([[0.241], [0.691], [0.068]])).astype(
    np.float32
)
"""Part of red, green and blue, by level, in the square of perceived brightness."""


def sharpness(pixels: Pixels) -> float:
    """Return the strength of the edges of an image uint8[height, width, 3] by its contrast.

    The standard deviation of the Laplacian of grey over that of grey, so that mist is not taken for
    blur. It depends on the resolution, so images are brought to one (`LEAST_SIDE`). 0 for an image
    without contrast.
    """
    image = Image.fromarray(pixels).convert("L")
    ratio = LEAST_SIDE / min(image.size)
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
    if not len(tiles):
        return found
    grey = grey_levels(tiles)
    hashed = phashes(tiles, grey)
    for name in PHASH.names or ():
        found[name] = hashed[name]
    red, green, blue = (np.ascontiguousarray(tiles[..., i]) for i in range(3))
    perceived = _SQUARES[0][red] + _SQUARES[1][green] + _SQUARES[2][blue]
    perceived = np.sqrt(perceived, out=perceived)
    tones = _histograms((perceived * 255 + 0.5).astype(np.uint8))
    found["brightness"] = perceived.mean(axis=(1, 2), dtype=np.float64)
    found["darkest"] = _percentile(tones, 0.05)
    found["lightest"] = _percentile(tones, 0.99)
    shares = _histograms(grey) / TILE**2
    found["entropy"] = -(shares * np.log2(shares, where=shares > 0, out=shares * 0)).sum(axis=1)
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    found["colour"] = spread.mean(axis=(1, 2), dtype=np.float64) / 255
    return found


def _histograms(levels: Pixels) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return int64[n, 256]: how many values of each image are of each level."""
    return np.stack([np.bincount(one.ravel(), minlength=256) for one in levels])


def _percentile(histograms: np.ndarray[Any, Any], share: float) -> Floats:
    """Return the level, 0..1, up to which a share of the values of each row lies."""
    sums = histograms.cumsum(axis=1)
    levels: Floats = (sums >= share * sums[:, -1:]).argmax(axis=1).astype(np.float32)
    return levels / np.float32(255)
