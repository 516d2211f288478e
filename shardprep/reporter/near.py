"""Near copies: which 64-bit hashes lie within a few bits of each other, and whose colours agree.

Two hashes that differ in 4 bits or fewer are equal in at least one of 5 bands (the pigeonhole
principle), so only hashes that share a band are compared. Equal hashes count as one: a thousand
copies of a picture cost no more than one. Exact, not sampled.

A hash knows shapes alone: two drawings of one shape may share it. So the coarse colours of a group
must agree as well, but for light that is a little stronger, or where an image is grey.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Hashes = np.ndarray[Any, np.dtype[np.uint64]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Cells = np.ndarray[Any, np.dtype[np.uint8]]

NEAR_BITS = 4
"""Bits in which the hashes of near copies differ at most."""
_EDGES = (0, 13, 26, 39, 52, 64)
"""Bits at which the bands start and end, one more of them than `NEAR_BITS`."""
_LIKE = 10.0
"""Levels of 255 by which the coarse colours of near copies differ at most, in the mean."""
_GREY = 3.0
"""Levels between the channels below which an image counts as grey."""
_LIGHT = 1.25
"""Times that a near copy may be lighter or darker."""
_AT_ONCE = 1 << 22
"""Pairs that are compared at once: 100 MB."""


def near_pairs(hashes: Hashes) -> Ints:
    """Return the pairs of positions, int64[pairs, 2], of hashes that lie near each other.

    The hashes, uint64[n], must differ from each other. Pairs are in ascending order, the lower
    position first.
    """
    found = [np.empty((0, 2), np.int64)]
    for start, stop in pairwise(_EDGES):
        bands = (hashes >> np.uint64(start)) & np.uint64((1 << (stop - start)) - 1)
        order = np.argsort(bands, kind="stable").astype(np.int64)
        for left, right in _pairs_of_equals(bands[order]):
            one, two = order[left], order[right]
            near = np.bitwise_count(hashes[one] ^ hashes[two]) <= NEAR_BITS
            found.append(np.stack([one[near], two[near]], axis=1))
    pairs = np.sort(np.concatenate(found), axis=1)
    return np.unique(pairs, axis=0)


def _pairs_of_equals(values: Hashes) -> Iterator[tuple[Ints, Ints]]:
    """Yield the pairs of positions of equal values, in parts; equal values are neighbours."""
    if not len(values):
        return
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    ends = np.repeat(np.append(starts[1:], len(values)), np.diff(np.append(starts, len(values))))
    later = ends - np.arange(len(values)) - 1  # positions after each that have its value
    sums = np.concatenate([[0], later.cumsum()])
    first = 0
    while first < len(values):
        last = int(np.searchsorted(sums, sums[first] + _AT_ONCE, "right")) - 1
        last = min(max(last, first + 1), len(values))
        counts = later[first:last]
        left = np.repeat(np.arange(first, last), counts)
        within = np.arange(len(left)) - np.repeat(sums[first:last] - sums[first], counts)
        yield left, left + 1 + within
        first = last


def near_groups(hashes: Hashes) -> Ints:
    """Return a number for each hash, int64[n]: equal for those that a chain of near ones joins.

    It is the position of the first hash of the group.
    """
    unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    groups = joined(len(unique), near_pairs(unique))
    least = np.full(len(unique), len(hashes), np.int64)
    np.minimum.at(least, groups, first)
    return least[groups][inverse]


def joined(number: int, pairs: Ints) -> Ints:
    """Return a number for each of `number` things, int64: equal for those that pairs join.

    It is the position of the first of them. `pairs` is int64[pairs, 2].
    """
    root = np.arange(number)
    while True:
        low = root.copy()
        one, two = root[pairs[:, 0]], root[pairs[:, 1]]
        np.minimum.at(low, np.maximum(one, two), np.minimum(one, two))
        while (low != low[low]).any():
            low = low[low]
        if (low == root).all():
            return root
        root = low


def near_copies(hashes: Hashes, cells: Cells) -> Iterator[Ints]:
    """Yield the positions of each group of near copies, two at least, in ascending order.

    Args:
        hashes: uint64[n].
        cells: their coarse colours, uint8[n, cells, 3], red, green and blue.

    """
    for group in _members(near_groups(hashes)):
        for alike in _alike(cells[group]):
            members = group[alike]
            if len(alike) == len(group):
                yield members
            else:  # what joined them may have gone
                yield from (members[one] for one in _members(near_groups(hashes[members])))


def _members(groups: Ints) -> Iterator[Ints]:
    """Yield the positions of equal numbers, two at least."""
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    several = np.flatnonzero(counts[inverse] > 1)
    order = several[np.argsort(groups[several], kind="stable")]
    if len(order):
        yield from np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def _alike(cells: Cells) -> Iterator[Ints]:
    """Yield the positions of images whose colours agree with those of the first of them."""
    colours = cells.astype(np.float32)
    is_grey = np.ptp(colours, axis=2).mean(axis=1) < _GREY
    left = np.arange(len(cells))
    while len(left):
        first, others = colours[left[0]], colours[left]
        light = first.mean() / np.maximum(others.mean(axis=(1, 2)), 1)
        others *= np.clip(light, 1 / _LIGHT, _LIGHT)[:, None, None]
        apart = np.abs(others - first).mean(axis=(1, 2))
        plain = np.abs(others.mean(axis=2) - first.mean(axis=1)).mean(axis=1)
        agrees = np.where(is_grey[left] | is_grey[left[0]], plain, apart) <= _LIKE
        agrees[0] = True
        yield left[agrees]
        left = left[~agrees]
