"""Find near copies: align the thumbnails of each candidate pair, and compare their pixels.

The outer image is sampled where it shows the inner one. That window is refined by least squares,
together with contrast and brightness (Gauss-Newton method), first at half resolution. Pixels that
do not fit, such as a watermark, are then left out. Images are of one picture if the edges of the
other pixels agree. They are copies if the edges agree nearly everywhere; otherwise they show the
same scene, as frames of a video do.

Samples are whole multiples of 1/16, and all sums are exact: every machine finds the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from shardprep.image.near_candidates import PLACES, Vectors, candidates, neighbours, placed, turned
from shardprep.image.thumbnail import CELL, SIDE, THUMBNAIL
from shardprep.machine import usable_cores

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
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
_LEAST_ROUGH = 0.3
"""Minimum correlation of edges after the alignment at half resolution."""
_LEAST_EDGES = 0.55
"""Minimum correlation of all edges."""
_LEAST_CLEAR = 0.66
"""Minimum of: correlation of the edges that fit, less the median error per deviation of grey."""
_LEAST_BOTH = 1.28
"""Minimum of the sum of both, which is enough alone."""
_COPY_EDGES, _COPY_SHARP, _COPY_BLUR = 0.68, 0.9, 2.5
"""Minimum correlation of all edges of copies: a floor, and a limit that falls with the error."""
_COPY_HALF = 0.04
"""How much more the edges of one half must agree if all edges do not, as with a watermark."""
_COPY_FITTING = 0.76
"""Minimum correlation of the edges that fit."""
METHOD = f"aligned thumbnails 2: edges {_COPY_EDGES} to {_COPY_SHARP}, that fit {_COPY_FITTING}"
"""The search with its version and thresholds, as datasets record it."""
_MOST_CHANGED = 0.06
"""Maximum share of the middle of a copy that differs by `_CHANGE` deviations of grey."""
_CHANGE = 0.8
_COLOURS_APART, _COLOURS_SHARE = 12, 0.5
"""Maximum mean difference of colours in levels, or as a share of the mean colour."""
_GREY = 3
"""Mean colour in levels below which an image counts as grey."""
_MOST_MOVED = 0.125
"""Maximum distance that an edge of a window moves from its first place, as a share."""
_GRID = 1 << 13
"""Number of places of the edge of a window along a side."""
_AT_ONCE = 1 << 7
"""Number of pairs aligned at once; more do not fit the processor's cache."""
_MOST_FIRST = 2
"""Number of candidates for each image after which images of one group are not compared."""
_MIDDLE = slice(5, 27)
_HALVES = (
    np.s_[:, : SIDE // 2], np.s_[:, SIDE // 2 :],
    np.s_[:, :, : SIDE // 2], np.s_[:, :, SIDE // 2 :],
)  # fmt: skip


def near_pairs(images: Thumbnails, vectors: Vectors | None = None) -> Pairs:
    """Return the near copies and images of the same scene among images, each pair once.

    Not all pairs of a group of copies are found, but enough to connect them. Neighbours by the
    embeddings `vectors` are compared too.
    """
    told = np.flatnonzero(images["decoded"] & (_deviations(images["grey"]) >= _LEAST_CONTRAST))
    views = np.empty(len(told), [(name, THUMBNAIL[name]) for name in ("grey", "colours")])
    for name in views.dtype.names or ():
        views[name] = images[name][told]
    views = views.view(f"V{views.itemsize}")
    _, firsts, places = np.unique(views, return_index=True, return_inverse=True)
    some = candidates(images["grey"][told[firsts]])
    for name in ("inner", "outer"):
        some[name] = told[firsts[some[name]]]
    pairs = _equal(told, told[firsts[places]])
    most = _MOST_FIRST * len(images)
    pairs = _joined_by(images, pairs, some[:most])
    pairs = _joined_by(images, pairs, some[most:])
    if vectors is not None:
        groups = near_groups(len(images), pairs[pairs["is_copy"]])
        named = told[neighbours(vectors[told], groups[told])]
        pairs = _joined_by(images, pairs, placed(images["grey"], named))
    low, high = (pick(pairs["inner"], pairs["outer"]) for pick in (np.minimum, np.maximum))
    # Prefer the direction in which the inner image is a part of the outer one.
    areas = pairs["window"][:, 2] * pairs["window"][:, 3]
    pairs = pairs[np.lexsort((-pairs["edges"], areas, ~pairs["is_copy"], high, low))]
    low, high = (pick(pairs["inner"], pairs["outer"]) for pick in (np.minimum, np.maximum))
    unique: Pairs = pairs[(np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0)]
    return unique


def _joined_by(images: Thumbnails, pairs: Pairs, some: Any) -> Pairs:
    """Return pairs and those among candidates of which the images are not yet in one group."""
    groups = near_groups(len(images), pairs[pairs["is_copy"]])
    part = some[groups[some["inner"]] != groups[some["outer"]]]  # for sets of many copies
    starts = range(0, len(part), _AT_ONCE)
    with ThreadPoolExecutor(usable_cores(), "shardprep-near") as pool:
        found = pool.map(partial(_compared, images, part), starts)
        return np.concatenate([pairs, *found])


def near_groups(number: int, pairs: Pairs) -> Ints:
    """Return the group of each of `number` images. A chain of pairs is one group.

    A group is numbered by the position of its first image. An image without a pair is a group of
    its own.
    """
    return joined(np.arange(number), np.stack([pairs["inner"], pairs["outer"]], axis=1))


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


def changes(images: Thumbnails, pair: Any) -> str:
    """Return in words how the two images of a `PAIR` differ, such as `mirrored, cropped to 82%`."""
    return ", ".join(_changes(images[[pair["inner"], pair["outer"]]], pair)) or "same picture"


def shown_part(images: Thumbnails, pair: Any) -> tuple[float, ...] | None:
    """Return the part of the outer image of a `PAIR` that the inner one shows, if it is cropped.

    Left, top, width and height are shares of the outer image (0..1); None if it shows the whole.
    """
    left, top, width, height = pair["window"].tolist()
    if width * height >= _LEAST_WHOLE:
        return None
    x, y, across, down = images["box"][pair["outer"]].tolist()
    return x + left * across, y + top * down, width * across, height * down


def _changes(two: Thumbnails, pair: Any) -> Iterator[str]:
    if not pair["is_copy"]:
        yield "same scene"
    turn = int(pair["turn"])
    if turn:
        yield _TURNS[turn]
    area = float(np.prod(pair["window"][2:]))
    if min(area, 1 / area) < _LEAST_WHOLE:
        yield f"cropped to {min(area, 1 / area):.0%}"
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
    levels = grey.reshape(len(grey), SIDE**2).astype(np.float64)
    sums, squares = levels.sum(axis=1), np.square(levels).sum(axis=1)
    found: Floats = np.sqrt(squares * SIDE**2 - sums**2) / SIDE**2
    return found


def _equal(images: Ints, firsts: Ints) -> Pairs:
    """Return the pairs of each image and the first image that has the same thumbnail."""
    is_other = images != firsts
    pairs = np.zeros(int(is_other.sum()), PAIR)
    pairs["inner"], pairs["outer"] = images[is_other], firsts[is_other]
    pairs["window"], pairs["gain"], pairs["edges"], pairs["is_copy"] = (0, 0, 1, 1), 1, 1, True
    return pairs


def _compared(images: Thumbnails, some: Any, start: int) -> Pairs:
    """Return the pairs among `_AT_ONCE` candidates."""
    some = some[start : start + _AT_ONCE]
    inner, outer = images[some["inner"]], images[some["outer"]]
    for turn in range(1, 8):
        here = np.flatnonzero(some["turn"] == turn)
        for name in ("grey", "colours"):
            inner[name][here] = turned(inner[name][here], turn)
    grey, outer_grey = (one["grey"].astype(np.float64) for one in (inner, outer))
    windows = PLACES[some["window"]] / SIDE
    windows = _aligned(_halved(grey), _halved(outer_grey), windows, 2)
    near = _edges(grey, *_sampled(outer_grey, windows)) >= _LEAST_ROUGH
    some, inner, outer, grey, outer_grey = (
        one[near] for one in (some, inner, outer, grey, outer_grey)
    )
    pairs = np.zeros(len(some), PAIR)
    if not len(some):
        return pairs
    windows = _aligned(grey, outer_grey, windows[near], 3)
    seen, inside = _sampled(outer_grey, windows)
    _, _, _, _, fits = _fitted(grey, seen, inside, inside)
    gain, errors, median, deviation, fits = _fitted(grey, seen, inside, fits)
    all_edges, clear = _edges(grey, seen, inside), _edges(grey, seen, fits)
    error = median / np.maximum(deviation, 1)
    # Blur weakens edges and makes errors everywhere. Weak edges without errors are a changed scene.
    least = np.maximum(_COPY_EDGES, _COPY_SHARP - _COPY_BLUR * error)
    halves = [_edges(grey[half], seen[half], inside[half]) for half in _HALVES]
    change = np.maximum(np.maximum(6 * median, _CHANGE * deviation), 12)
    changed = (inside & (errors > change[:, None, None]))[:, _MIDDLE, _MIDDLE].mean(axis=(1, 2))
    pairs["is_copy"] = (all_edges >= least) | (np.max(halves, axis=0) >= least + _COPY_HALF)
    pairs["is_copy"] &= (clear >= _COPY_FITTING) & (changed <= _MOST_CHANGED)
    for name, values in (("inner", some["inner"]), ("outer", some["outer"]), ("edges", clear),
                         ("turn", some["turn"]), ("window", windows), ("gain", gain)):  # fmt: skip
        pairs[name] = values
    is_one = (all_edges >= _LEAST_EDGES) & (clear - error >= _LEAST_CLEAR)
    is_one |= all_edges + clear - error >= _LEAST_BOTH
    found: Pairs = pairs[is_one & _colours_agree(inner["colours"], outer["colours"], windows, gain)]
    return found


def _fitted(grey: Floats, seen: Floats, inside: Flags, fits: Flags) -> tuple[Any, ...]:
    """Fit `seen` to `grey` by the pixels in `fits`; return gain, errors and which pixels fit.

    Also the median of the errors inside, and the deviation of grey: gain, errors, median,
    deviation, fits.
    """
    _, gain, offset, deviation = _correlation(grey, seen, fits)
    errors = np.abs(grey - gain[:, None, None] * seen - offset[:, None, None])
    ranked = np.sort(np.where(inside, errors, np.inf).reshape(len(grey), SIDE**2), axis=1)
    median = ranked[np.arange(len(grey)), inside.sum(axis=(1, 2)) // 2]
    fits = inside & (errors <= np.maximum(4 * median, 4)[:, None, None])
    return gain, errors, median, deviation, fits


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
    apart = np.abs(inner - gain[:, None, None, None] * shown).mean(axis=(1, 2, 3))
    limit = np.maximum(_COLOURS_APART, _COLOURS_SHARE * np.abs(inner).mean(axis=(1, 2, 3)))
    found: Flags = _are_grey(inner) | _are_grey(shown) | (apart <= limit)
    return found


def _edges(inner: Floats, seen: Floats, mask: Flags) -> Floats:
    """Return the correlation of the differences of neighbours where `mask` is True."""
    one, other = (
        np.concatenate([np.diff(part, axis=1)[:, :, 1:], np.diff(part, axis=2)[:, 1:]], axis=1)
        for part in (inner, seen)
    )
    inside = mask[:, 1:, 1:] & mask[:, :-1, :-1] & mask[:, 1:, :-1] & mask[:, :-1, 1:]
    return _correlation(one, other, np.concatenate([inside, inside], axis=1))[0]


def _correlation(inner: Floats, seen: Floats, mask: Flags) -> tuple[Floats, ...]:
    """Return, for pixels in `mask`, the correlation and the deviation of `inner`.

    Also the gain and offset that fit `seen` to `inner`: correlation, gain, offset, deviation.
    """
    number = np.maximum(mask.sum(axis=(1, 2)), 1)
    one, other = inner * mask, seen * mask
    sum_one, sum_other = one.sum(axis=(1, 2)), other.sum(axis=(1, 2))
    spread = np.maximum((one * one).sum(axis=(1, 2)) * number - sum_one**2, 1)
    other_spread = np.maximum((other * other).sum(axis=(1, 2)) * number - sum_other**2, 1)
    both = (one * other).sum(axis=(1, 2)) * number - sum_one * sum_other
    gain = both / other_spread
    offset = (sum_one - gain * sum_other) / number
    return both / (np.sqrt(spread) * np.sqrt(other_spread)), gain, offset, np.sqrt(spread) / number


def _halved(images: Floats) -> Floats:
    wide = images[:, ::2] + images[:, 1::2]
    found: Floats = (wide[:, :, ::2] + wide[:, :, 1::2]) / 4
    return found


def _aligned(inner: Floats, outer: Floats, first: Floats, rounds: int) -> Floats:
    """Return the windows of `outer` that show `inner`, refined from the windows `first`."""
    size = inner.shape[-1]
    from_middle = (np.arange(size) + 0.5 - size / 2) * 2 / size
    least = np.concatenate([first[:, :2], first[:, :2] + first[:, 2:]], axis=1) - _MOST_MOVED
    windows = first
    for _ in range(rounds):
        seen, inside = _sampled(outer, windows)
        across, down = np.zeros_like(seen), np.zeros_like(seen)
        across[:, :, 1:-1] = (seen[:, :, 2:] - seen[:, :, :-2]) / 2
        down[:, 1:-1] = (seen[:, 2:] - seen[:, :-2]) / 2
        terms = [seen, np.ones_like(seen), across, across * from_middle]
        terms += [down, down * from_middle[:, None]]
        masked = np.stack(terms, axis=1) * inside[:, None]
        masked = masked.reshape(len(seen), len(terms), size * size)
        goals = masked @ inner.reshape(len(inner), size * size, 1)
        solved = _solved(np.concatenate([masked @ masked.transpose(0, 2, 1), goals], axis=2))
        # In samples: moves of the middle, and of the right or lower edge away from it
        moves = (solved[:, 2:] / np.maximum(solved[:, :1], 0.2)).clip(-2, 2) / size
        sides = windows[:, 2:]
        middles = windows[:, :2] + sides / 2 + moves[:, ::2] * sides
        sides = sides * (1 + moves[:, 1::2] * 2)
        edges = np.concatenate([middles - sides / 2, middles + sides / 2], axis=1)
        edges = (np.rint(edges * _GRID) / _GRID).clip(least, least + 2 * _MOST_MOVED)
        windows = np.concatenate([edges[:, :2], edges[:, 2:] - edges[:, :2]], axis=1)
    return windows


def _sampled(outer: Floats, windows: Floats) -> tuple[Floats, Flags]:
    """Return samples of images in windows, [n, size, size], and whether each is inside."""
    size = outer.shape[-1]
    rows = np.arange(len(outer))[:, None]
    found, inside = outer, []
    for axis in (1, 0):
        shares = (np.arange(size) + 0.5) / size
        places = (windows[:, axis, None] + windows[:, axis + 2, None] * shares) * size - 0.5
        places = np.rint(places * 256) / 256
        inside.append((places > -1) & (places < size))
        places = places.clip(0, size - 1)
        before = np.minimum(places.astype(np.int64), size - 2)
        share = (places - before)[:, :, None]
        found = found[rows, before] * (1 - share) + found[rows, before + 1] * share
        found = found.swapaxes(1, 2)
    return np.rint(found * 16) / 16, inside[0][:, :, None] & inside[1][:, None, :]


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
