"""Find near copies: align the thumbnails of each candidate pair, and compare their pixels.

The outer image is sampled where it shows the inner one, and that window is refined by least
squares, together with contrast and brightness: the inverse compositional method (Baker and
Matthews, Lucas-Kanade 20 Years On, 2004). Samples are whole multiples of 1/16, so that all sums are
exact: every machine finds the same windows.

Pixels that do not fit, such as a watermark, are then left out. Images are of one picture if the
edges of the remaining pixels agree. They are copies if the edges agree nearly everywhere; otherwise
they show the same scene, as frames of a video do.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shardprep.image.near_candidates import WINDOWS, candidates, turned
from shardprep.image.thumbnail import CELL, SIDE, THUMBNAIL
from shardprep.machine import usable_cores

Floats = np.ndarray[Any, np.dtype[np.float64]]

_ITERATIONS = 2
"""Number of steps of the alignment at each resolution."""
_MOST_MOVED = 0.125
"""Maximum distance that an edge of a window moves at each resolution, as a share of the side."""
_GRID = 1 << 13
"""Number of possible positions of a window's edge along a side of the image."""
_DAMPING = 8
"""Addition to the sums of squares of `median_move`: parts without structure are not moved."""
_HIGHEST = (1 << 16) - 1
"""Highest level that is sorted, in sixteenths."""


class Fit(NamedTuple):
    """Linear fit of samples to images: `gain` [n] and `errors` [n, SIDE, SIDE], image minus fit.

    `median` is the median absolute error. `deviation` is the standard deviation of the images,
    over the fitted pixels. `fits` is 1 where the errors are small.
    """

    gain: Floats
    errors: Floats
    median: Floats
    deviation: Floats
    fits: Floats


def halved(images: Floats) -> Floats:
    """Return images of half the height and width; a pixel is the mean of 2 x 2 pixels."""
    wide = images[:, ::2] + images[:, 1::2]
    found: Floats = (wide[:, :, ::2] + wide[:, :, 1::2]) / 4
    return found


def aligned(inner: Floats, outer: Floats, first: Floats) -> Floats:
    """Return windows of `outer` that show `inner`, refined from `first`; [n, 4] as in `PAIR`."""
    size = inner.shape[-1]
    lowest = np.concatenate([first[:, :2], first[:, :2] + first[:, 2:]], axis=1) - _MOST_MOVED
    terms, windows = _terms(inner), first
    products = terms @ terms.copy().transpose(0, 2, 1)  # twice as fast as without a copy
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
    """Return a constant, the derivatives by four moves, and the images: float64[n, 6, size²]."""
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
    """Return normal equations, [n, 6, 7]: the last of `terms` as a sum of `seen` and the others."""
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
    """Return solutions of linear equations, [n, size, size + 1], which are overwritten."""
    # Not by LAPACK: its results differ by machine.
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
    """Return the correlation of edges (differences of neighbouring pixels) where `mask` is 1."""
    one, other = (
        np.concatenate([np.diff(part, axis=1)[:, :, 1:], np.diff(part, axis=2)[:, 1:]], axis=1)
        for part in (inner, seen)
    )
    inside = mask[:, 1:, 1:] * mask[:, :-1, :-1] * mask[:, 1:, :-1] * mask[:, :-1, 1:]
    return _correlation(one, other, np.concatenate([inside, inside], axis=1))[0]


def _correlation(inner: Floats, seen: Floats, mask: Floats) -> tuple[Floats, ...]:
    """Return correlation, gain, offset and the deviation of `inner`, where `mask` is 1.

    `inner` is fitted by `gain * seen + offset`.
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
    # As sixteenths in uint16, errors are sorted three times as fast.
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


Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Thumbnails = np.ndarray[Any, Any]
"""Array with the fields of `THUMBNAIL`, and possibly others."""
Pairs = np.ndarray[Any, Any]
"""Array with the fields of `PAIR`."""

PAIR = np.dtype(
    [
        ("inner", "<i8"),
        ("outer", "<i8"),
        ("turn", "u1"),
        ("window", "<f8", (4,)),
        ("gain", "<f8"),
        ("edges", "<f8"),
        ("is_copy", "?"),
    ]
)
"""Two images of one picture: `inner`, oriented by `turn` (see `turned`), is shown in a window of
`outer`. `window` is left, top, width and height as shares of the thumbnail of `outer`, and can
reach beyond it. `gain` is the contrast of `inner` relative to `outer`. `edges` is the correlation
of their edges, without pixels that do not fit. If `is_copy` is False, the images show the same
scene, but parts differ."""

_LEAST_CONTRAST = 2.0
"""Minimum standard deviation of grey, 0 to 255, of an image that can have near copies."""
_LEAST_ROUGH = 0.45
"""Minimum correlation of edges after the alignment at half resolution."""
_LEAST_EDGES = 0.55
"""Minimum correlation of all edges of two images of one picture."""
_LEAST_CLEAR = 0.66
"""Minimum correlation of the edges that fit, minus the median error per deviation of grey."""
_LEAST_BOTH = 1.28
"""If the values limited by `_LEAST_EDGES` and `_LEAST_CLEAR` have at least this sum, these limits
do not apply."""
_COPY_EDGES, _COPY_SHARP, _COPY_BLUR = 0.68, 0.9, 2.5
"""Minimum correlation of all edges of copies: max(first, second - third * error). The error is the
median error per deviation of grey."""
_COPY_HALF = 0.04
"""Added to the minimum if only the edges of one half of a copy agree, as with a watermark."""
_COPY_FITTING = 0.76
"""Minimum correlation of the edges of copies that fit."""
METHOD = f"aligned thumbnails 3: edges {_COPY_EDGES} to {_COPY_SHARP}, that fit {_COPY_FITTING}"
"""Version and thresholds of the search, as a text that datasets record."""
_MOST_CHANGED = 0.06
"""Maximum share of the middle of a copy that differs by `_CHANGE` deviations of grey."""
_CHANGE = 0.8
_COLOURS_APART, _COLOURS_SHARE = 12, 0.5
"""Maximum mean difference of colours in levels, or as a share of the mean colour."""
_MOST_MOVES, _STILL_EDGES = 0.18, 0.78
"""Maximum `median_move` of copies in pixels, and correlation of edges from which any move is
allowed."""
_GREY = 3
"""Mean colour in levels below which an image counts as grey."""
_AT_ONCE = 1 << 7
"""Number of pairs aligned at once; more do not fit the processor's cache."""
_MOST_FIRST = 2
"""Candidates per image to compare first. Then candidates within a group of copies are skipped."""
_MIDDLE = slice(5, 27)
_HALVES = (
    np.s_[:, : SIDE // 2], np.s_[:, SIDE // 2 :],
    np.s_[:, :, : SIDE // 2], np.s_[:, :, SIDE // 2 :],
)  # fmt: skip


def near_pairs(images: Thumbnails) -> Pairs:
    """Return the near copies and images of the same scene among images, each pair once.

    Not all pairs of a group of copies are found, but enough to connect them.
    """
    usable = np.flatnonzero(images["decoded"] & (_deviations(images["grey"]) >= _LEAST_CONTRAST))
    firsts, places = _distinct(images, usable)
    some = candidates(images["grey"][firsts])
    for name in ("inner", "outer"):
        some[name] = firsts[some[name]]
    pairs = _equal(usable, firsts[places])
    most = _MOST_FIRST * len(images)
    pairs = _joined_by(images, pairs, some[:most])
    pairs = _joined_by(images, pairs, some[most:])
    low, high = (pick(pairs["inner"], pairs["outer"]) for pick in (np.minimum, np.maximum))
    # Prefer the direction that shows the inner image as a part of the outer one.
    areas = pairs["window"][:, 2] * pairs["window"][:, 3]
    pairs = pairs[np.lexsort((-pairs["edges"], areas, ~pairs["is_copy"], high, low))]
    low, high = (pick(pairs["inner"], pairs["outer"]) for pick in (np.minimum, np.maximum))
    unique: Pairs = pairs[(np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0)]
    return unique


def _joined_by(images: Thumbnails, pairs: Pairs, some: Any) -> Pairs:
    """Return `pairs` and the pairs found among the candidates that no group of copies joins yet."""
    groups = near_groups(len(images), pairs[pairs["is_copy"]])
    part = some[groups[some["inner"]] != groups[some["outer"]]]  # saves time with many copies
    starts = range(0, len(part), _AT_ONCE)
    with ThreadPoolExecutor(usable_cores(), "shardprep-near") as pool:
        return np.concatenate([pairs, *pool.map(partial(_compared, images, part), starts)])


def near_groups(number: int, pairs: Pairs) -> Ints:
    """Return the group of each of `number` images. A chain of pairs forms one group.

    A group is numbered by the position of its first image. An image without a pair is also a group.
    """
    return joined(np.arange(number), np.stack([pairs["inner"], pairs["outer"]], axis=1))


def joined(groups: Ints, pairs: Ints) -> Ints:
    """Return the groups, int64[n], after joining the groups of each pair of positions.

    Pairs are int64[pairs, 2]. `groups` must number each group by its first member, as does the
    result.
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


def changes(images: Thumbnails, pair: Any, *, from_inner: bool = False) -> str:
    """Return how `inner` of a `PAIR` differs from `outer`, such as `mirrored, cropped to 82%`.

    With `from_inner`, return how `outer` differs from `inner`.
    """
    two = images[[pair["inner"], pair["outer"]]]
    return ", ".join(_changes(two, pair, from_inner=from_inner)) or "same picture"


def shown_part(images: Thumbnails, pair: Any) -> tuple[float, ...] | None:
    """Return the part of the outer image of a `PAIR` that the inner one shows, if it is cropped.

    Left, top, width and height are shares of the outer image (0..1); None if it shows the whole.
    """
    left, top, width, height = pair["window"].tolist()
    if width * height >= _LEAST_WHOLE:
        return None
    x, y, across, down = images["box"][pair["outer"]].tolist()
    return x + left * across, y + top * down, width * across, height * down


def _changes(two: Thumbnails, pair: Any, *, from_inner: bool) -> Iterator[str]:
    if not pair["is_copy"]:
        yield "same scene"
    turn = int(pair["turn"])
    if turn:
        yield _TURNS[turn]
    area = float(np.prod(pair["window"][2:]))
    if min(area, 1 / area) < _LEAST_WHOLE:
        whose = "" if (area < 1) != from_inner else "the first is "
        yield f"{whose}cropped to {min(area, 1 / area):.0%}"
    shown = two["box"][:, 2:].prod(axis=1)
    if abs(shown[0] - shown[1]) > 1 - _LEAST_WHOLE:
        yield "with a border"
    if abs(np.log(pair["gain"])) > _MOST_LOG_GAIN:
        yield f"contrast {max(pair['gain'], 1 / pair['gain']):.2g} times"
    if np.diff(_are_grey(two["colours"])).any():
        yield "grey"


_TURNS = (
    "", "mirrored", "upside down and mirrored", "turned by 180°", "mirrored and turned",
    "turned by 90°", "turned by 90°", "mirrored and turned",
)  # fmt: skip
_LEAST_WHOLE = 0.95
_MOST_LOG_GAIN = 0.1


def _deviations(grey: Any) -> Floats:
    levels = grey.reshape(len(grey), SIDE**2)
    sums = levels.sum(axis=1, dtype=np.int64)
    squares = np.einsum("ij,ij->i", levels, levels, dtype=np.int64)
    found: Floats = np.sqrt(squares * SIDE**2 - sums**2) / SIDE**2
    return found


def _distinct(images: Thumbnails, usable: Ints) -> tuple[Ints, Ints]:
    """Return the first image of each distinct thumbnail, and the index in these of each image."""
    views = np.empty(len(usable), [(name, THUMBNAIL[name]) for name in ("grey", "colours")])
    for name in views.dtype.names or ():
        views[name] = images[name][usable]
    views = views.view(f"V{views.itemsize}")
    _, firsts, places = np.unique(views, return_index=True, return_inverse=True)
    return usable[firsts], places


def _equal(images: Ints, firsts: Ints) -> Pairs:
    """Return the pairs of each image and the first image that has the same thumbnail."""
    is_other = images != firsts
    pairs = np.zeros(int(is_other.sum()), PAIR)
    pairs["inner"], pairs["outer"] = images[is_other], firsts[is_other]
    pairs["window"], pairs["gain"], pairs["edges"], pairs["is_copy"] = (0, 0, 1, 1), 1, 1, True
    return pairs


def _compared(images: Thumbnails, some: Any, start: int) -> Pairs:
    """Align `_AT_ONCE` candidates from index `start`, and return the pairs among them."""
    some = some[start : start + _AT_ONCE]
    inner, outer = images[some["inner"]], images[some["outer"]]
    for turn in range(1, 8):
        here = np.flatnonzero(some["turn"] == turn)
        for name in ("grey", "colours"):
            inner[name][here] = turned(inner[name][here], turn)
    grey, outer_grey = (one["grey"].astype(np.float64) for one in (inner, outer))
    windows = WINDOWS[some["window"]] / SIDE
    windows = aligned(halved(grey), halved(outer_grey), windows)
    near = edges(grey, *sampled(outer_grey, windows)) >= _LEAST_ROUGH
    some, inner, outer, grey, outer_grey = (
        one[near] for one in (some, inner, outer, grey, outer_grey)
    )
    windows = aligned(grey, outer_grey, windows[near])
    seen, inside = sampled(outer_grey, windows)
    fit = fitted(grey, seen, inside, fitted(grey, seen, inside, inside).fits)
    all_edges, clear = edges(grey, seen, inside), edges(grey, seen, fit.fits)
    error = fit.median / np.maximum(fit.deviation, 1)
    is_one = (all_edges >= _LEAST_EDGES) & (clear - error >= _LEAST_CLEAR)
    is_one |= all_edges + clear - error >= _LEAST_BOTH
    is_one &= _colours_agree(inner["colours"], outer["colours"], windows, fit.gain)
    some, windows, grey, seen, inside, all_edges, clear, error = (
        one[is_one] for one in (some, windows, grey, seen, inside, all_edges, clear, error)
    )
    fit = Fit(*(one[is_one] for one in fit))
    pairs = np.zeros(len(some), PAIR)
    for name in ("inner", "outer", "turn"):
        pairs[name] = some[name]
    pairs["window"], pairs["gain"], pairs["edges"] = windows, fit.gain, clear
    # Blur weakens edges and makes errors everywhere. Weak edges without errors are a changed scene.
    least = np.maximum(_COPY_EDGES, _COPY_SHARP - _COPY_BLUR * error)
    halves = [edges(grey[half], seen[half], inside[half]) for half in _HALVES]
    change = np.maximum(np.maximum(6 * fit.median, _CHANGE * fit.deviation), 12)[:, None, None]
    changed = (inside * (np.abs(fit.errors) > change))[:, _MIDDLE, _MIDDLE].mean(axis=(1, 2))
    pairs["is_copy"] = (all_edges >= least) | (np.max(halves, axis=0) >= least + _COPY_HALF)
    pairs["is_copy"] &= (clear >= _COPY_FITTING) & (changed <= _MOST_CHANGED)
    # In frames of a video, near objects move more than far ones.
    pairs["is_copy"] &= (all_edges >= _STILL_EDGES) | (median_move(grey, fit) <= _MOST_MOVES)
    return pairs


def _are_grey(colours: Any) -> Flags:
    found: Flags = np.abs(colours).mean(axis=(1, 2, 3)) < _GREY
    return found


def _colours_agree(inner: Any, outer: Any, windows: Floats, gain: Floats) -> Flags:
    number = SIDE // CELL
    shares = (np.arange(number) + 0.5) / number
    places = windows[:, :2, None] + windows[:, 2:, None] * shares
    cells = (places * number).astype(np.int64).clip(0, number - 1)
    which = np.arange(len(outer))[:, None, None]
    shown = outer.transpose(0, 2, 3, 1)[which, cells[:, 1, :, None], cells[:, 0, None, :]]
    shown = shown.transpose(0, 3, 1, 2)
    levels = np.rint(16 * gain[:, None, None, None] * shown) / 16  # so that sums are exact
    apart = np.abs(inner - levels).mean(axis=(1, 2, 3))
    limit = np.maximum(_COLOURS_APART, _COLOURS_SHARE * np.abs(inner).mean(axis=(1, 2, 3)))
    found: Flags = _are_grey(inner) | _are_grey(shown) | (apart <= limit)
    return found
