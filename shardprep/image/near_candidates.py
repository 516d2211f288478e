"""Find pairs of thumbnails of which one may show a part of the other.

The descriptor of a part of a thumbnail has its low frequencies (DCT) divided by their norm. The
descriptors of mirrored and turned images differ in signs and a transposition only. Each whole
thumbnail, in 8 orientations, is compared with windows of all others, so that the copy of a crop
finds the original, and the original finds a copy with a frame.

Not all pairs are compared. Windows are divided into cells, by the nearest of some windows drawn
from them; a thumbnail is compared with the windows in its nearest cells. All sums are of whole
numbers that floats hold exactly: every machine finds the same pairs, as build plans require.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from shardprep.image.thumbnail import SIDE

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Descriptors = np.ndarray[Any, np.dtype[np.int8]]

CANDIDATE = np.dtype([("inner", "<i8"), ("outer", "<i8"), ("turn", "u1"), ("window", "<i2")])
"""The thumbnail `inner`, oriented by `turn`, may look like a window of the thumbnail `outer`."""
_STEPS = {32.0: (0.0,), 29.5: (0.0, 2.5), 27.0: (0.0, 2.5, 5.0)}
"""Length of a window's side in pixels → offsets."""
_MOST_UNEQUAL = 3.0
"""Maximum difference between the sides of these windows, in pixels."""
_CENTRED = (28.0, 25.0, 22.0, 18.0, 16.0)
"""Shorter sides of the windows in the middle; the longer side is whole. A photo fitted by padding
shows more of a side than one fitted by cropping."""

_FRAMED = (30.0, 28.0)
"""Sides of square windows in the middle."""


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
"""Left, top, width and height of each window in pixels of a thumbnail; the first is the whole."""
_LOW = 8
"""Number of frequencies along each side; the constant is not used."""
_SCALE = 160
"""Norm of a descriptor."""
_ORDER = np.arange(_LOW)
_WEIGHTS = np.rint(16 * np.sqrt(np.sqrt(_ORDER[:, None] ** 2 + _ORDER**2)))
"""Weights of the frequencies: high ones are weak in photos."""
_ALIKE = 0.85
"""Minimum cosine of the angle between the descriptors of a candidate."""
_MOST = 4
"""Number of candidates of each thumbnail as `inner`, and as `outer`, that are always kept."""
_MOST_CELLS = 1024
_CELL_SIZE = 2000
"""Number of windows in a cell for which the number of cells is chosen."""
_PROBES = 3
"""Number of cells that are searched for each thumbnail and orientation."""
_AT_ONCE = 1 << 12


def _basis(offset: float, side: float) -> Floats:
    """Return the cosines of a window's side, float64[frequencies, SIDE], as whole numbers."""
    places = np.arange(SIDE)
    starts, ends = np.maximum(places, offset), np.minimum(places + 1, offset + side)
    cover = np.maximum(ends - starts, 0)
    waves = np.cos(np.pi * _ORDER[:, None] * ((starts + ends) / 2 - offset) / side) * cover
    waves[1:] -= cover * (waves[1:].sum(axis=1, keepdims=True) / cover.sum())
    found: Floats = np.rint(256 * waves)
    return found


_BASES = {
    span: _basis(*span) for row in WINDOWS.tolist() for span in (tuple(row[::2]), tuple(row[1::2]))
}


def frequencies(grey: Floats, window: Floats) -> Floats:
    """Return the weighted low frequencies of a window of thumbnails, float64[n, 8, 8]."""
    left, top, width, height = window.tolist()
    low = _BASES[top, height] @ grey @ _BASES[left, width].T
    found: Floats = np.rint(low * _WEIGHTS / (1 << 20))
    return found


def descriptors(low: Floats) -> Descriptors:
    """Return frequencies, float64[n, 8, 8], divided by their norm, int8[n, 64]."""
    flat = low.reshape(len(low), -1)
    norms = np.sqrt(np.square(flat).sum(axis=1, keepdims=True))
    return np.rint(flat * (_SCALE / np.maximum(norms, 1))).clip(-127, 127).astype(np.int8)


def oriented(low: Floats, turn: int) -> Floats:
    """Return the frequencies of thumbnails after `turned`."""
    low = low.transpose(0, 2, 1) if turn & 4 else low
    signs = 1 - 2 * (_ORDER & 1)
    low = low * signs[:, None] if turn & 2 else low
    return low * signs if turn & 1 else low


def turned(images: Any, turn: int) -> Any:
    """Return images, [n, side, side], in one of 8 orientations.

    Bit 2 transposes them, then bit 1 mirrors them top to bottom and bit 0 left to right.
    """
    images = images.swapaxes(-1, -2) if turn & 4 else images
    images = images[..., ::-1, :] if turn & 2 else images
    return images[..., ::-1] if turn & 1 else images


def candidates(grey: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, Any]:
    """Return the `CANDIDATE` pairs of thumbnails, uint8[n, SIDE, SIDE]; `_MOST` per `inner`."""
    windows = np.empty((len(grey), len(WINDOWS), _LOW**2), np.int8)
    wholes = np.empty((len(grey), 8, _LOW**2), np.int8)
    for start in range(0, len(grey), _AT_ONCE):
        some = grey[start : start + _AT_ONCE].astype(np.float64)
        for i, window in enumerate(WINDOWS):
            low = frequencies(some, window)
            windows[start : start + len(some), i] = descriptors(low)
            if i == 0:
                for turn in range(8):
                    wholes[start : start + len(some), turn] = descriptors(oriented(low, turn))
    found = [np.empty((0, 5), np.int64)]
    for inner, outer, alike in _alike(wholes.reshape(-1, _LOW**2), windows.reshape(-1, _LOW**2)):
        one, other = inner // 8, outer // len(WINDOWS)
        is_pair = one != other
        parts = (one, other, inner % 8, outer % len(WINDOWS), -alike)
        found.append(_best(np.stack(parts, axis=1)[is_pair]))
    rows = _best(np.concatenate(found))
    is_kept = _are_first(rows[:, 0], rows[:, 4]) | _are_first(rows[:, 1], rows[:, 4])
    rows = rows[is_kept]
    result = np.empty(len(rows), CANDIDATE)
    for i, name in enumerate(CANDIDATE.names or ()):
        result[name] = rows[:, i]
    return result


def _best(rows: Ints) -> Ints:
    """Return the row with the lowest last column for each pair in the first two columns."""
    rows = rows[np.lexsort(rows.T[[3, 2, 4, 1, 0]])]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    return rows[is_first]


def _are_first(groups: Ints, ranks: Ints) -> Flags:
    """Return whether each element has one of the `_MOST` lowest ranks of its group."""
    order = np.lexsort((ranks, groups))
    starts = np.searchsorted(groups[order], groups[order])
    are_first = np.empty(len(groups), bool)
    are_first[order] = np.arange(len(groups)) - starts < _MOST
    return are_first


def _alike(wholes: Descriptors, windows: Descriptors) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield positions in both whose descriptors are alike, and their products."""
    number = max(1, min(_MOST_CELLS, len(windows) // _CELL_SIZE))
    centres = _drawn(windows, number)
    cells = np.concatenate([one[:, 0] for one in _nearest(windows, centres, 1)] or [[]])
    near = np.concatenate(list(_nearest(wholes, centres, min(_PROBES, number))) or [[]])
    order, probes = np.argsort(cells, kind="stable"), np.argsort(near.ravel(), kind="stable")
    ends = np.searchsorted(cells[order], np.arange(number + 1))
    stops = np.searchsorted(near.ravel()[probes], np.arange(number + 1))
    for cell in range(number):
        there = order[ends[cell] : ends[cell + 1]]
        theirs = windows[there].astype(np.float32).T
        asked = probes[stops[cell] : stops[cell + 1]] // max(near.shape[1], 1)
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            alike = wholes[some].astype(np.float32) @ theirs
            one, other = np.nonzero(alike >= _ALIKE * _SCALE**2)
            yield some[one], there[other], alike[one, other].astype(np.int64)


def _drawn(windows: Descriptors, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return some windows, the same in any order of the images."""
    words = np.ascontiguousarray(windows).view("<u8")
    mixed = np.bitwise_xor.reduce(
        words * (2 * np.arange(1, 9, dtype=np.uint64) + 0x9E3779B97F4A7C15), axis=1
    )
    picked = np.unique(mixed, return_index=True)[1][:number]
    return windows[picked].astype(np.float32).T


def _nearest(some: Descriptors, centres: Any, number: int) -> Iterator[Ints]:
    """Yield the positions of the `number` nearest centres, int64[n, number]."""
    for start in range(0, len(some), _AT_ONCE):
        alike = some[start : start + _AT_ONCE].astype(np.float32) @ centres
        found = []
        for _ in range(number):
            found.append(alike.argmax(axis=1))
            alike[np.arange(len(alike)), found[-1]] = -np.inf
        yield np.stack(found, axis=1)
