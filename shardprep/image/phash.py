"""Compute perceptual hashes, and find near copies with them.

A hash is 64 bits that describe the shapes in a picture; coarse colours are stored with it. Images
are reduced to squares of one size first, so that a batch is hashed at once. All sums are of whole
numbers that floats hold exactly: every machine computes the same bits, as build plans require.

Near copies are images whose hashes differ in at most 4 bits and whose coarse colours agree. Two
hashes that differ in 4 bits or fewer are equal in at least one of 5 bands (pigeonhole principle),
so hashes without an equal band need not be compared. The search is exact and independent of the
order of the images. Colours are compared because two drawings of one shape may have the same hash;
a slightly different brightness is allowed, and a grey image is compared by brightness alone. An
image without contrast has no shapes and is never a near copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Phashes = np.ndarray[Any, Any]
"""Array with the fields of `PHASH`, and possibly others."""

TILE = 56
"""Side in pixels of the square that is hashed."""
LEAST_SIDE = 112
"""Minimum of the shorter side, in pixels, when a stored JPEG is decoded at a smaller scale."""
CELLS = 4
"""Number of cells with a coarse colour along each side."""
PHASH = np.dtype(
    [("hash", "<u8"), ("cells", "u1", (CELLS * CELLS, 3)), ("contrast", "<f4"), ("decoded", "?")]
)
"""Perceptual hash and coarse colours of one image. `hash` has 64 bits; `cells` are the mean red,
green and blue of each cell, row by row; `contrast` is the standard deviation of grey, 0 to 255;
`decoded` is False if the image could not be decoded."""
_LUMA = np.array((77, 150, 29), np.uint16)
"""Weights of red, green and blue in grey, in 256ths (ITU-R BT.601)."""
_LOW = 8
"""Number of frequencies along each side that give the bits of a hash; frequency 0 is not used."""
_ONE = 1 << 16
"""Scale of the whole numbers to which cosines are rounded: sums stay exact, below 2^53."""


_ANGLES = np.pi * np.arange(_LOW + 1)[:, None] * (2 * np.arange(TILE // 2) + 1) / TILE
_DCT = np.rint(_ONE * np.cos(_ANGLES))
"""Rows 0 to 8 of the discrete cosine transform (DCT-II) of 28 points, times `_ONE`."""


def tile(pixels: Pixels) -> Pixels:
    """Reduce an image, uint8[height, width, 3], to a tile of area means, uint8[56, 56, 3]."""
    image = Image.fromarray(pixels)
    if image.width % TILE == image.height % TILE == 0:  # takes a third of the time
        return np.asarray(image.reduce((image.width // TILE, image.height // TILE)))
    return np.asarray(image.resize((TILE, TILE), Image.Resampling.BOX))


def grey_levels(tiles: Pixels) -> Pixels:
    """Return the grey levels, uint8[n, 56, 56], of tiles, uint8[n, 56, 56, 3]."""
    red, green, blue = (tiles[..., i] * _LUMA[i] for i in range(3))
    grey: Pixels = ((red + green + blue) >> 8).astype(np.uint8)
    return grey


def phashes(tiles: Pixels, grey: Pixels) -> np.ndarray[Any, Any]:
    """Return the `PHASH` of each tile, [n], from tiles, uint8[n, 56, 56, 3], and `grey_levels`."""
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
    """Return the perceptual hashes (pHash) of grey tiles, from their low frequencies.

    A bit is 1 if its frequency is above the median. Frequencies that are constant along one side
    are not used, because light from one side changes them.
    """
    tall = grey[:, ::2] + grey[:, 1::2]
    half = tall[:, :, ::2] + tall[:, :, 1::2]
    low = (_DCT @ half @ _DCT.T)[:, 1:, 1:].reshape(len(grey), -1)
    bits = low > np.median(low, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8").astype("<u8").ravel()


NEAR_BITS = 4
"""Maximum number of bits in which the hashes of near copies differ."""
METHOD = f"perceptual hashes 1: {NEAR_BITS} of 64 bits, and coarse colours"
"""The search for near copies with its version, as datasets record it."""
_EDGES = (0, 13, 26, 39, 52, 64)
"""First bit of each of the `NEAR_BITS` + 1 bands, and the end of the last band."""
_LEAST_CONTRAST = 2.0
"""Minimum standard deviation of grey, 0 to 255, of an image that can have near copies."""
_LIKE = 10
"""Maximum mean difference between the coarse colours of near copies, in levels of 255."""
_GREY = 3
"""Mean spread of the three channels, in levels of 255, below which an image counts as grey."""
_LIGHT = 1.25
"""Maximum factor by which the darker of two images is brightened to compare colours."""
_AT_ONCE = 1 << 22
"""Number of pairs compared at once; takes 100 MB."""
_COLOURS_AT_ONCE = 1 << 16
"""Number of pairs whose colours are compared at once; takes 40 MB."""


def near_groups(images: Phashes) -> Ints:
    """Return the group of each image, int64[n]. A chain of near copies is one group.

    A group is numbered by the position of its first image. An image without a near copy is a group
    of its own.
    """
    groups = np.arange(len(images))
    tells = np.flatnonzero(images["decoded"] & (images["contrast"] >= _LEAST_CONTRAST))
    hashes, colours = images["hash"][tells], _Colours(images["cells"][tells])
    root = np.arange(len(tells))

    def join(one: Ints, two: Ints) -> Ints:
        apart = np.bitwise_count(hashes[one] ^ hashes[two])
        near, groups = np.flatnonzero(apart <= NEAR_BITS), root
        for start in range(0, len(near), _COLOURS_AT_ONCE):
            some = near[start : start + _COLOURS_AT_ONCE]
            some = some[groups[one[some]] != groups[two[some]]]
            alike = some[colours.agree(one[some], two[some])]
            groups = joined(groups, np.stack([one[alike], two[alike]], axis=1))
        return groups

    for start, stop in pairwise(_EDGES):
        bits = (hashes >> np.uint64(start)) & np.uint64((1 << (stop - start)) - 1)
        bands = bits.astype(np.uint16)
        # The frames of a film have billions of near pairs. First compare each image with the images
        # 1, 2, 4 … places further: this joins most pairs, and the pairs below exclude equal groups.
        order = np.lexsort((colours.light, hashes, bands))
        for power in range(len(order).bit_length() - 1):
            root = join(order[: -(1 << power)], order[1 << power :])
        for one, two in _pairs_in_bands(bands, root):
            root = join(one, two)
    groups[tells] = tells[root]
    return groups


def _pairs_in_bands(bands: np.ndarray[Any, Any], groups: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield pairs of positions with equal bands and different groups, `_AT_ONCE` at a time."""
    order = np.lexsort((groups, bands))
    values, groups = bands[order], groups[order]
    is_other = values[1:] != values[:-1]
    ends = _ends(is_other)  # the end of the band's run, and of the group's run in it
    starts = _ends(is_other | (groups[1:] != groups[:-1]))
    sums = np.concatenate([[0], (ends - starts).cumsum()])
    first = 0
    while first < len(values):
        last = int(np.searchsorted(sums, sums[first] + _AT_ONCE, "right")) - 1
        last = min(max(last, first + 1), len(values))
        counts = (ends - starts)[first:last]
        left = np.repeat(np.arange(first, last), counts)
        within = np.arange(len(left)) - np.repeat(sums[first:last] - sums[first], counts)
        yield order[left], order[np.repeat(starts[first:last], counts) + within]
        first = last


def _ends(is_other: Flags) -> Ints:
    """Return the end of the run of each element; `is_other` is True where a new run begins."""
    bounds = np.flatnonzero(np.concatenate([[True], is_other, [True]]))
    return np.repeat(bounds[1:], np.diff(bounds))


def joined(groups: Ints, pairs: Ints) -> Ints:
    """Return the groups, int64[n], after joining the groups of each pair of positions.

    Pairs are int64[pairs, 2]. A group is numbered by its first member, also in `groups`.
    """
    root = groups
    while True:
        low = root.copy()
        one, two = root[pairs[:, 0]], root[pairs[:, 1]]
        np.minimum.at(low, np.maximum(one, two), np.minimum(one, two))
        while (low != low[low]).any():
            low = low[low]
        if (low == root).all():
            return root
        root = low


class _Colours:
    def __init__(self, cells: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Prepare coarse colours, uint8[n, cells, 3], for comparison."""
        levels = cells.astype(np.float32)
        red, green, blue = (levels[..., i] for i in range(3))
        spread = np.maximum(np.maximum(red, green), blue)
        spread -= np.minimum(np.minimum(red, green), blue)
        self._levels = levels.reshape(len(cells), cells.shape[1] * 3)
        self._greys = red + green + blue
        self.light = self._greys.sum(axis=1)
        """Sum of all levels of each image."""
        self._is_grey = spread.sum(axis=1) < _GREY * cells.shape[1]

    def agree(self, one: Ints, two: Ints) -> Flags:
        """Return whether the colours agree in each pair of positions, bool[pairs].

        The darker image is first scaled to the brightness of the other, at most by `_LIGHT`. If
        either image is grey, only brightness is compared.
        """
        is_lighter = self.light[one] >= self.light[two]
        most, least = np.where(is_lighter, one, two), np.where(is_lighter, two, one)
        ratio = np.minimum(self.light[most] / np.maximum(self.light[least], 1), _LIGHT)
        is_grey = self._is_grey[one] | self._is_grey[two]
        agrees = np.zeros(len(one), bool)
        for values, which in ((self._levels, ~is_grey), (self._greys, is_grey)):
            apart = np.rint(values[least[which]] * ratio[which, None]) - values[most[which]]
            agrees[which] = np.abs(apart).sum(axis=1) <= _LIKE * self._levels.shape[1]
        return agrees
