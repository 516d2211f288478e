"""Near copies: images whose 64-bit hashes lie within a few bits, and whose colours agree.

Two hashes that differ in 4 bits or fewer are equal in at least one of 5 bands (the pigeonhole
principle), so only hashes that share a band are compared. Exact, not sampled, and the same whatever
the order of the images and the machine: colours are compared in whole numbers.

A hash knows shapes alone: two drawings of one shape may share it. So the coarse colours of near
copies must agree as well, but for light that is a little stronger, or where an image is grey. An
image without contrast has no shapes, and is no near copy of any.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Hashes = np.ndarray[Any, np.dtype[np.uint64]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Bands = np.ndarray[Any, np.dtype[np.uint16]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]
    Phashes = np.ndarray[Any, Any]
    """Array of `phash.PHASH`, or of a type that has its fields."""

NEAR_BITS = 4
"""Bits in which the hashes of near copies differ at most."""
_EDGES = (0, 13, 26, 39, 52, 64)
"""Bits at which the bands start and end, one more of them than `NEAR_BITS`."""
_LEAST_CONTRAST = 2.0
"""Standard deviation of grey, in levels of 255, below which a hash says nothing of a picture."""
_LIKE = 10
"""Levels of 255 by which the coarse colours of near copies differ at most, in the mean."""
_GREY = 3
"""Levels between the channels below which an image counts as grey."""
_LIGHT = 1.25
"""Times that a near copy may be lighter or darker."""
_AT_ONCE = 1 << 22
"""Pairs that are compared at once: 100 MB."""
_COLOURS_AT_ONCE = 1 << 16
"""Pairs whose colours are compared at once: 40 MB."""


def near_groups(images: Phashes) -> Ints:
    """Return a number for each image, int64[n]: equal for those that a chain of near copies joins.

    It is the position of the first image of the group; one without a near copy is its own group.
    """
    groups = np.arange(len(images))
    tells = np.flatnonzero(images["decoded"] & (images["contrast"] >= _LEAST_CONTRAST))
    hashes, colours = images["hash"][tells], _Colours(images["cells"][tells])
    root = np.arange(len(tells))

    def join(one: Ints, two: Ints) -> Ints:
        near, groups = _near(hashes, one, two), root
        for start in range(0, len(near), _COLOURS_AT_ONCE):
            some = near[start : start + _COLOURS_AT_ONCE]
            some = some[groups[one[some]] != groups[two[some]]]
            alike = some[colours.agree(one[some], two[some])]
            groups = joined(groups, np.stack([one[alike], two[alike]], axis=1))
        return groups

    for bands in _bands(hashes):
        # A film has billions of pairs: most of it is joined by some of them, and the rest is quick.
        order = np.lexsort((colours.light, hashes, bands))
        for power in range(len(order).bit_length() - 1):
            root = join(order[: -(1 << power)], order[1 << power :])
        for one, two in _pairs_in_bands(bands, root):
            root = join(one, two)
    groups[tells] = tells[root]
    return groups


def near_pairs(hashes: Hashes) -> Ints:
    """Return the pairs of positions, int64[pairs, 2], of hashes that lie near each other.

    Hashes are uint64[n]. Pairs are in ascending order, the lower position first.
    """
    found = [np.empty((0, 2), np.int64)]
    for bands in _bands(hashes):
        for one, two in _pairs_in_bands(bands, np.arange(len(hashes))):
            near = _near(hashes, one, two)
            found.append(np.stack([one[near], two[near]], axis=1))
    pairs = np.sort(np.concatenate(found), axis=1)
    return np.unique(pairs, axis=0)


def _near(hashes: Hashes, one: Ints, two: Ints) -> Ints:
    """Return the places in two lists of positions where the hashes lie near each other."""
    return np.flatnonzero(np.bitwise_count(hashes[one] ^ hashes[two]) <= NEAR_BITS)


def _bands(hashes: Hashes) -> Iterator[Bands]:
    """Yield each band of the hashes."""
    for start, stop in pairwise(_EDGES):
        bands = (hashes >> np.uint64(start)) & np.uint64((1 << (stop - start)) - 1)
        yield bands.astype(np.uint16)


def _pairs_in_bands(bands: Bands, groups: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the pairs of positions of an equal band and different groups, in parts."""
    order = np.lexsort((groups, bands))
    values, groups = bands[order], groups[order]
    is_other = values[1:] != values[:-1]
    ends = _ends(is_other)  # of those of its band, and of those of its group among them
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
    """Return for each thing where its run ends, given whether each next one begins another."""
    bounds = np.flatnonzero(np.concatenate([[True], is_other, [True]]))
    return np.repeat(bounds[1:], np.diff(bounds))


def joined(groups: Ints, pairs: Ints) -> Ints:
    """Return groups, int64[n], as they are once pairs of members, int64[pairs, 2], are joined.

    A group is known by the position of its first member.
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
    """The coarse colours of images, and which of them agree."""

    def __init__(self, cells: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Take uint8[n, cells, 3]."""
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
        """Tell of pairs of positions whether their colours agree.

        The darker image is brought to the light of the other, as far as a near copy may be darker;
        where one is grey, the light of the cells alone is compared.
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
