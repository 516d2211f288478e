"""Find pairs of thumbnails that may show one picture, or a part of it.

The descriptor of a part of a thumbnail is its low frequencies (DCT), divided by their norm. The
descriptors of mirrored and turned images differ in signs and a transposition only. Each whole
thumbnail, in 8 orientations, is compared with windows of all others. So a crop matches a window of
its original, and an original matches a window of its copy with a frame.

Not all pairs are compared. Windows are divided into cells, by the nearest window of a sample; a
thumbnail is compared with the windows in its nearest cells. All sums are of whole numbers that
floats hold exactly: every machine finds the same pairs, as build plans require.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from shardprep.image.thumbnail import SIDE, Pixels
from shardprep.machine import usable_cores

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Descriptors = np.ndarray[Any, np.dtype[np.int8]]
Cells = np.ndarray[Any, np.dtype[np.uint16]]

CANDIDATE = np.dtype(
    [("inner", "<i8"), ("outer", "<i8"), ("turn", "u1"), ("window", "<i2"), ("apart", "<i8")]
)
"""The thumbnail `inner`, oriented by `turn`, may look like window number `window` of the thumbnail
`outer`. `apart` is lower if the two are more alike."""
_STEPS = {32.0: (0.0,), 29.5: (0.0, 2.5), 27.0: (0.0, 2.5, 5.0)}
"""Length of a window's side → possible offsets of the side, in pixels."""
_MOST_UNEQUAL = 3.0
"""Maximum difference between the sides of a window of `_STEPS`, in pixels."""
_CENTRED = (28.0, 26.0, 24.0, 21.5, 18.0, 16.0)
"""Shorter sides, in pixels, of centred windows whose longer side is the whole side. They match a
cropped copy of a photo with a padded copy, which shows more."""

_FRAMED = (30.0, 28.0)
"""Sides, in pixels, of centred square windows."""


def _windows() -> Floats:
    spans = [(offset, side) for side, offsets in _STEPS.items() for offset in offsets]
    found = [
        (left, top, width, height)
        for (left, width), (top, height) in product(spans, spans)
        if abs(width - height) <= _MOST_UNEQUAL
    ]
    middle = [((SIDE - side) / 2, side) for side in _CENTRED]
    found += [(left, 0, width, SIDE) for left, width in middle]
    found += [(0, top, SIDE, height) for top, height in middle]
    found += [((SIDE - side) / 2,) * 2 + (side, side) for side in _FRAMED]
    return np.array(found, np.float64)


WINDOWS = _windows()
"""Left, top, width and height of each window in pixels of a thumbnail; the first shows it all."""
_ARE_WHOLE = WINDOWS[:, 2] * WINDOWS[:, 3] >= 0.9 * SIDE**2
"""Whether each window shows nearly the whole thumbnail."""
_LOW = 8
"""Number of frequencies along each side; the constant frequency is not used."""
_SCALE = 127
"""Norm of a descriptor; the largest for which a single frequency fits into int8."""
_ORDER = np.arange(_LOW)
_WEIGHTS = np.rint(16 * np.sqrt(np.sqrt(_ORDER[:, None] ** 2 + _ORDER**2)))
"""Weights of the frequencies: high ones are weak in photos."""
_SIGNS = 1 - 2 * (_ORDER & 1)
_ACROSS = np.sign(_ORDER - _ORDER[:, None])
_MOST_WRONG, _MOST_DOWN = 0.12, 0.22
"""Tolerances of `_may_stand`, as shares of the norm and of its square."""
_USED = np.flatnonzero((_ORDER[:, None] + _ORDER > 0) & (_ORDER[:, None] + _ORDER < 10))
"""Positions, among the 8 x 8 frequencies, of the 48 in a descriptor."""
_FIRST = [_USED.tolist().index(one) for one in (1, _LOW)]
"""Positions in a descriptor of the lowest frequencies across and down."""
_ALIKE = 0.84
"""Minimum cosine of the angle between the descriptors of a candidate."""
_MOST = 4
"""Number of best candidates to keep for each thumbnail as `inner`, and as `outer`."""
_MOST_ALIKE = 64
"""Maximum number of windows of a cell that one thumbnail matches; more if the last are tied."""
_MOST_CELLS = 1024
_CELL_SIZE = 2000
"""Mean number of windows in a cell, unless there are `_MOST_CELLS`."""
_PROBES = 6
"""Number of cells that are searched for each thumbnail and orientation."""
_AT_ONCE = 1 << 8
"""Number of thumbnails or descriptors in one step of a thread."""
_MOST_PRODUCTS = 1 << 21
"""Maximum number of products of descriptors in one step; limits the memory for a large cell."""


def _basis(offset: float, side: float) -> Floats:
    """Return the cosines of a window's side, float64[frequencies, SIDE], as whole numbers."""
    places = np.arange(SIDE)
    starts, ends = np.maximum(places, offset), np.minimum(places + 1, offset + side)
    cover = np.maximum(ends - starts, 0)
    waves = np.cos(np.pi * _ORDER[:, None] * ((starts + ends) / 2 - offset) / side) * cover
    waves[1:] -= cover * (waves[1:].sum(axis=1, keepdims=True) / cover.sum())
    found: Floats = np.rint(256 * waves)
    return found


_SPANS = [*dict.fromkeys(span for x, y, w, h in WINDOWS.tolist() for span in ((x, w), (y, h)))]
_BASES = np.stack([_basis(*span) for span in _SPANS])
_IN_SPANS = [(_SPANS.index((x, w)), _SPANS.index((y, h))) for x, y, w, h in WINDOWS.tolist()]


def _frequencies(grey: Pixels) -> Iterator[Floats]:
    """Yield for each of `WINDOWS` the weighted low frequencies of thumbnails, float64[n, 8, 8]."""
    down = _BASES.reshape(-1, SIDE) @ grey.astype(np.float64)
    down = down.reshape(len(grey), len(_BASES), _LOW, SIDE)
    for column, row in _IN_SPANS:
        yield np.rint(down[:, row] @ _BASES[column].T * (_WEIGHTS / (1 << 20)))


def _descriptors(low: Floats) -> Descriptors:
    """Return frequencies, float64[n, 8, 8], divided by their norm, int8[n, 48]."""
    flat = low.reshape(len(low), _LOW**2)[:, _USED]
    norms = np.sqrt(np.square(flat).sum(axis=1, keepdims=True))
    return np.asarray(np.rint(flat * (_SCALE / np.maximum(norms, 1))), np.int8)


def _oriented(low: Floats, turn: int) -> Floats:
    """Return the frequencies of thumbnails that are turned as by `turned`."""
    low = low.transpose(0, 2, 1) if turn & 4 else low
    low = low * _SIGNS[:, None] if turn & 2 else low
    return low * _SIGNS if turn & 1 else low


def _standing(low: Floats) -> tuple[Floats, Ints]:
    """Return the frequencies of thumbnails in a standard orientation, and the turn of each.

    In this orientation, left and upper parts are brighter, and contrast is higher across than down.
    """
    is_turned = (np.square(low) * _ACROSS).sum(axis=(1, 2)) < 0
    low = np.where(is_turned[:, None, None], low.transpose(0, 2, 1), low)
    right, down = low[:, 0, 1] < 0, low[:, 1, 0] < 0
    low = low * np.where(down[:, None], _SIGNS, 1)[:, :, None]
    return low * np.where(right[:, None], _SIGNS, 1)[:, None], 4 * is_turned + 2 * down + right


def _may_stand(found: Descriptors) -> Flags:
    """Return whether images are nearly in the orientation of `_standing`."""
    low = found.astype(np.int64)
    across = low * low @ _ACROSS.ravel()[_USED] >= -_MOST_DOWN * _SCALE**2
    return np.asarray(across & (low[:, _FIRST] >= -_MOST_WRONG * _SCALE).all(axis=1))


def turned(images: Any, turn: int) -> Any:
    """Return images, [n, side, side], in one of 8 orientations.

    Bit 2 of `turn` transposes, then bit 1 mirrors top to bottom and bit 0 left to right.
    """
    images = images.swapaxes(-1, -2) if turn & 4 else images
    images = images[..., ::-1, :] if turn & 2 else images
    return images[..., ::-1] if turn & 1 else images


def turned_back(turn: int) -> int:
    """Return the argument of `turned` that undoes `turn`."""
    return turn if not turn & 4 else 4 | (turn & 1) << 1 | (turn & 2) >> 1


def _relative() -> Ints:
    """Return int64[8, 8]: the turn of `inner` with which it matches an unturned `outer`.

    The indices are the turn of `inner` and the turn of `outer` with which the two match.
    """
    views = [turned(np.arange(4).reshape(2, 2), turn) for turn in range(8)]
    found = np.empty((8, 8), np.int64)
    for one, other, turn in product(range(8), repeat=3):
        if (turned(views[turn], other) == views[one]).all():
            found[one, other] = turn
    return found


_RELATIVE = _relative()


def candidates(grey: Pixels) -> np.ndarray[Any, Any]:
    """Return the `CANDIDATE` pairs of thumbnails, uint8[n, SIDE, SIDE], most alike first."""
    if len(grey) < 2:
        return np.empty(0, CANDIDATE)
    with ThreadPoolExecutor(_num_threads(), "shardprep-near") as pool:
        found = _best(np.concatenate([*_alike(*_views(grey, pool), pool)]))
    found = found[np.argsort(found[:, 4], kind="stable")]
    # Of two images that both show the whole, one direction is enough.
    are_whole = np.flatnonzero(_ARE_WHOLE[found[:, 3]])
    ends = np.sort(found[are_whole, :2], axis=1)
    one_way = np.unique(ends[:, 0] * len(grey) + ends[:, 1], return_index=True)[1]
    found = np.delete(found, np.delete(are_whole, one_way), axis=0)
    result = np.empty(len(found), CANDIDATE)
    for i, name in enumerate(CANDIDATE.names or ()):
        result[name] = found[:, i]
    return result


def _num_threads() -> int:
    """Return the number of usable cores, or 1 if BLAS starts threads of its own."""
    return usable_cores() if os.environ.get("OPENBLAS_NUM_THREADS") == "1" else 1


class _Views(NamedTuple):
    """Descriptors of turned images, int8[n, 48], and the turn of each, [n]."""

    descriptors: Descriptors
    turns: np.ndarray[Any, Any]


def _views(grey: Pixels, pool: ThreadPoolExecutor) -> tuple[_Views, _Views]:
    """Return the views of whole thumbnails, and of all windows of each thumbnail.

    The `turns` of whole thumbnails are turn + 8 x position of the thumbnail.
    """
    windows = np.empty((len(grey), len(WINDOWS), len(_USED)), np.int8)
    turns = np.empty(windows.shape[:2], np.uint8)
    wholes = [*pool.map(partial(_described, grey, windows, turns), range(0, len(grey), _AT_ONCE))]
    joined = (np.concatenate(part) for part in zip(*wholes, strict=True))
    return _Views(*joined), _Views(windows.reshape(-1, len(_USED)), turns.ravel())


def _described(grey: Pixels, windows: Descriptors, turns: Any, start: int) -> _Views:
    """Fill `windows` and `turns` for `_AT_ONCE` thumbnails; return views of whole thumbnails."""
    some = slice(start, start + _AT_ONCE)
    wholes, whole_turns = list[Descriptors](), list[Ints]()
    for i, low in enumerate(_frequencies(grey[some])):
        upright, turns[some, i] = _standing(low)
        windows[some, i] = _descriptors(upright)
        for turn in range(8) if i == 0 else ():
            made = _descriptors(_oriented(low, turn))
            may_stand = np.flatnonzero(_may_stand(made))
            wholes.append(made[may_stand])
            whole_turns.append((start + may_stand) * 8 + turn)
    return _Views(np.concatenate(wholes), np.concatenate(whole_turns))


def _best(rows: Ints) -> Ints:
    """Return the best row of each pair that is among the `_MOST` best pairs of either image.

    The first two columns are the pair, the last is the rank; lower is better.
    """
    rows = rows[np.lexsort(rows.T[[3, 2, 4, 1, 0]])]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    rows = rows[is_first]
    return rows[_are_first(rows[:, 0], rows[:, 4]) | _are_first(rows[:, 1], rows[:, 4])]


def _are_first(groups: Ints, ranks: Ints) -> Flags:
    """Return whether each element has one of the `_MOST` lowest ranks of its group."""
    order = np.lexsort((ranks, groups))
    starts = np.searchsorted(groups[order], groups[order])
    are_first = np.empty(len(groups), bool)
    are_first[order] = np.arange(len(groups)) - starts < _MOST
    return are_first


def _alike(wholes: _Views, windows: _Views, pool: ThreadPoolExecutor) -> Iterator[Ints]:
    """Yield the best pairs of each cell, int64[n, 5], with the fields of `CANDIDATE` as columns."""
    number = max(1, min(_MOST_CELLS, len(windows.turns) // _CELL_SIZE))
    centres = _drawn(windows.descriptors, number)
    there, asked = (
        _members([*pool.map(partial(_nearest, some, centres, most), _starts(some))], number)
        for some, most in ((windows.descriptors, 1), (wholes.descriptors, min(_PROBES, number)))
    )
    yield from pool.map(partial(_alike_in, wholes, windows), asked, there)


def _starts(some: Descriptors) -> range:
    return range(0, len(some), _AT_ONCE)


def _members(nearest: list[Cells], number: int) -> list[Ints]:
    """Return for each of `number` cells the positions of the descriptors near it."""
    cells = np.concatenate(nearest)
    order = np.argsort(cells, axis=None, kind="stable")
    ends = np.searchsorted(cells.ravel()[order], np.arange(1, number))
    return np.split(order // cells.shape[1], ends)


def _alike_in(wholes: _Views, windows: _Views, asked: Ints, there: Ints) -> Ints:
    """Return the best pairs of a view in `asked` and a window in `there`, like `_alike`."""
    theirs, found = windows.descriptors[there].astype(np.float32).T, [np.empty((0, 5), np.int64)]
    step = min(_AT_ONCE, _MOST_PRODUCTS // max(1, len(there)) + 1)
    for start in range(0, len(asked), step):
        some = asked[start : start + step]
        alike = wholes.descriptors[some].astype(np.float32) @ theirs
        is_alike = alike >= _ALIKE * _SCALE**2
        many = np.flatnonzero(np.count_nonzero(is_alike, axis=1) > _MOST_ALIKE)
        if len(many):  # such as frames of a film
            least = np.partition(alike[many], -_MOST_ALIKE, axis=1)[:, -_MOST_ALIKE, None]
            is_alike[many] &= alike[many] >= least
        places = np.flatnonzero(is_alike)
        inner, outer = np.divmod(places, len(there))
        inner, outer = some[inner], there[outer]
        image, turn = np.divmod(wholes.turns[inner], 8)
        other, window = np.divmod(outer, len(WINDOWS))
        turn = _RELATIVE[turn, windows.turns[outer]]
        apart = -alike.ravel()[places].astype(np.int64)
        rows = np.stack([image, other, turn, window, apart], axis=1)
        found.append(_best(rows[image != other]))
    return _best(np.concatenate(found))


def _drawn(windows: Descriptors, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a sample of windows, float32[48, number], independent of the order of the images."""
    words, mixed = windows.view("<u8"), np.zeros(len(windows), np.uint64)
    for i in range(words.shape[1]):
        mixed = (mixed ^ words[:, i]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    picked = np.unique(mixed, return_index=True)[1][:number]
    return windows[picked].astype(np.float32).T


def _nearest(some: Descriptors, centres: Any, number: int, start: int) -> Cells:
    """Return the positions of the nearest centres of `_AT_ONCE` descriptors, uint16[n, number]."""
    alike = some[start : start + _AT_ONCE].astype(np.float32) @ centres
    found = np.empty((len(alike), number), np.uint16)
    for i in range(number):
        found[:, i] = alike.argmax(axis=1)
        alike[np.arange(len(alike)), found[:, i]] = -np.inf
    return found
