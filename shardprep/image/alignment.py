"""Align thumbnails of 32x32 with windows of others, and compare their edges.

A window is refined by least squares, together with contrast and brightness: the inverse
compositional method (Baker and Matthews, Lucas-Kanade 20 Years On, 2004). Samples are whole
multiples of 1/16, so that all sums are exact: every machine finds the same windows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shardprep.image.thumbnail import SIDE

Floats = np.ndarray[Any, np.dtype[np.float64]]

_ITERATIONS = 2
"""Number of steps of the alignment at each resolution."""
_MOST_MOVED = 0.125
"""Maximum distance that an edge of a window moves at each resolution, as a share."""
_GRID = 1 << 13
"""Number of places of the edge of a window along a side."""
_DAMPING = 8
"""Addition to the sums of squares of `median_move`: parts without structure are not moved."""
_HIGHEST = (1 << 16) - 1
"""Highest level that is sorted, in sixteenths."""


class Fit(NamedTuple):
    """Linear fit of samples to images, [n, SIDE, SIDE].

    `median` is the median absolute error. `deviation` is the standard deviation of the images,
    over the fitted pixels. `fits` is 1 where the errors are small.
    """

    gain: Floats
    errors: Floats
    median: Floats
    deviation: Floats
    fits: Floats


def halved(images: Floats) -> Floats:
    """Return images of half the size."""
    wide = images[:, ::2] + images[:, 1::2]
    found: Floats = (wide[:, :, ::2] + wide[:, :, 1::2]) / 4
    return found


def aligned(inner: Floats, outer: Floats, first: Floats) -> Floats:
    """Return the windows of `outer` that show `inner`, refined from the windows `first`."""
    size = inner.shape[-1]
    lowest = np.concatenate([first[:, :2], first[:, :2] + first[:, 2:]], axis=1) - _MOST_MOVED
    terms, windows = _terms(inner), first
    products = terms @ terms.copy().transpose(0, 2, 1)  # twice as fast as with itself
    for _ in range(_ITERATIONS):
        solved = _solved(_equations(terms, products, *sampled(outer, windows)))
        # In samples: moves of the middle, and of the right or lower edge away from it
        steps = solved[:, 2:].clip(-2, 2) / size
        sides = windows[:, 2:]
        middles = windows[:, :2] + sides / 2 + steps[:, ::2] * sides
        sides = sides * (1 + steps[:, 1::2] * 2)
        ends = np.concatenate([middles - sides / 2, middles + sides / 2], axis=1)
        ends = (np.rint(ends * _GRID) / _GRID).clip(lowest, lowest + 2 * _MOST_MOVED)
        windows = np.concatenate([ends[:, :2], ends[:, 2:] - ends[:, :2]], axis=1)
    return windows


def _terms(inner: Floats) -> Floats:
    """Return a constant, how images change by four moves, and the images: [n, 6, size²]."""
    size = inner.shape[-1]
    from_middle = (np.arange(size) + 0.5 - size / 2) * 2 / size
    terms = np.zeros((len(inner), 6, size, size))
    terms[:, 0], terms[:, 5] = 1, inner
    terms[:, 1, :, 1:-1] = (inner[:, :, 2:] - inner[:, :, :-2]) / 2
    terms[:, 3, 1:-1] = (inner[:, 2:] - inner[:, :-2]) / 2
    np.multiply(terms[:, 1], from_middle, out=terms[:, 2])
    np.multiply(terms[:, 3], from_middle[:, None], out=terms[:, 4])
    return terms.reshape(len(inner), 6, size**2)


def _equations(terms: Floats, products: Floats, seen: Floats, inside: Floats) -> Floats:
    """Return the normal equations of `inner` as a sum of `seen` and the first five terms."""
    seen, inside = (part.reshape(len(seen), 1, terms.shape[2]) for part in (seen * inside, inside))
    some = np.flatnonzero(~inside.all(axis=(1, 2)))
    if len(some):
        masked = terms[some] * inside[some]
        products = products.copy()
        products[some] = masked @ masked.copy().transpose(0, 2, 1)
    by_seen = (terms @ seen.transpose(0, 2, 1))[:, :, 0]
    rows = np.empty((len(seen), 6, 7))
    rows[:, 0, 0], rows[:, 0, 1:] = np.vecdot(seen, seen)[:, 0], by_seen
    rows[:, 1:, 0], rows[:, 1:, 1:] = by_seen[:, :5], products[:, :5]
    return rows


def _solved(rows: Floats) -> Floats:
    """Return the solutions of linear equations, float64[n, size, size + 1], by elimination.

    LAPACK rounds differently on other machines.
    """
    for i in range(rows.shape[1]):
        pivots = rows[:, i, i]
        rows[:, i] /= np.where(np.abs(pivots) < 1e-6, 1e-6, pivots)[:, None]
        others = [j for j in range(rows.shape[1]) if j != i]
        rows[:, others] -= rows[:, others, i, None] * rows[:, None, i]
    return rows[:, :, -1]


def sampled(outer: Floats, windows: Floats) -> tuple[Floats, Floats]:
    """Return samples of images in windows, [n, size, size], and whether each is inside (1 or 0)."""
    size = outer.shape[-1]
    rows = np.arange(len(outer))[:, None]
    found, inside = outer, []
    for axis in (1, 0):
        shares = (np.arange(size) + 0.5) / size
        places = (windows[:, axis, None] + windows[:, axis + 2, None] * shares) * size - 0.5
        places = np.rint(places * 256) / 256
        inside.append(((places > -1) & (places < size)).astype(np.float64))
        places = places.clip(0, size - 1)
        before = np.minimum(places.astype(np.int64), size - 2)
        share = (places - before)[:, :, None]
        found = found[rows, before] * (1 - share) + found[rows, before + 1] * share
        found = found.swapaxes(1, 2)
    return np.rint(found * 16) / 16, inside[0][:, :, None] * inside[1][:, None, :]


def edges(inner: Floats, seen: Floats, mask: Floats) -> Floats:
    """Return the correlation of the differences of neighbours where `mask` is 1."""
    one, other = (
        np.concatenate([np.diff(part, axis=1)[:, :, 1:], np.diff(part, axis=2)[:, 1:]], axis=1)
        for part in (inner, seen)
    )
    inside = mask[:, 1:, 1:] * mask[:, :-1, :-1] * mask[:, 1:, :-1] * mask[:, :-1, 1:]
    return _correlation(one, other, np.concatenate([inside, inside], axis=1))[0]


def _correlation(inner: Floats, seen: Floats, mask: Floats) -> tuple[Floats, ...]:
    """Return correlation, gain, offset and the deviation of `inner`, where `mask` is 1.

    `gain * seen + offset` fits `inner`.
    """
    pixels = mask.shape[1] * mask.shape[2]
    mask, one, other = (
        part.reshape(len(mask), pixels) for part in (mask, inner * mask, seen * mask)
    )
    number = np.maximum(mask.sum(axis=1), 1)
    sum_one, sum_other = one.sum(axis=1), other.sum(axis=1)
    spread = np.maximum(np.vecdot(one, one) * number - sum_one**2, 1)
    other_spread = np.maximum(np.vecdot(other, other) * number - sum_other**2, 1)
    both = np.vecdot(one, other) * number - sum_one * sum_other
    gain = both / other_spread
    offset = (sum_one - gain * sum_other) / number
    return both / (np.sqrt(spread) * np.sqrt(other_spread)), gain, offset, np.sqrt(spread) / number


def fitted(grey: Floats, seen: Floats, inside: Floats, fits: Floats) -> Fit:
    """Return the fit of `seen` to `grey` by the pixels where `fits` is 1."""
    _, gain, offset, deviation = _correlation(grey, seen, fits)
    errors = grey - gain[:, None, None] * seen - offset[:, None, None]
    errors = np.rint(errors * 16) / 16
    # Sixteenths of a level are sorted three times as fast.
    levels = np.where(inside > 0, np.abs(errors * 16), _HIGHEST).clip(max=_HIGHEST)
    ranked = np.sort(levels.astype(np.uint16).reshape(len(grey), SIDE**2), axis=1)
    places = inside.sum(axis=(1, 2)).astype(np.int64) // 2
    median = ranked[np.arange(len(grey)), places] / 16
    fits = inside * (np.abs(errors) <= np.maximum(4 * median, 4)[:, None, None])
    return Fit(gain, errors, median, deviation, fits)


def median_move(grey: Floats, fit: Fit) -> Floats:
    """Return the median distance in pixels that the 16 parts of each image have moved.

    By least squares for each part: Lucas and Kanade, An Iterative Image Registration, 1981.
    """
    across, down = _terms(grey)[:, [1, 3]].reshape(len(grey), 2, SIDE, SIDE).swapaxes(0, 1)
    xx, xy, yy, x, y = (
        (one * other * fit.fits).reshape(len(grey), 4, SIDE // 4, 4, SIDE // 4).sum(axis=(2, 4))
        for one, other in (
            (across, across), (across, down), (down, down), (across, fit.errors), (down, fit.errors)
        )
    )  # fmt: skip
    xx, yy = xx + _DAMPING, yy + _DAMPING
    apart = np.sqrt((yy * x - xy * y) ** 2 + (xx * y - xy * x) ** 2) / (xx * yy - xy * xy)
    found: Floats = np.sort(apart.reshape(len(grey), 16), axis=1)[:, 8]
    return found
