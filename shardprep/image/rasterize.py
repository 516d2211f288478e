"""Convert outlines (polygons and run lengths) to masks, and masks to run lengths.

The size of a text is checked against its image before memory is allocated for it. Polygons are
filled by pycocotools, so that their pixels equal those in COCO's evaluation. pycocotools crashes on
invalid coordinates and counts, so coordinates are checked first, and run lengths are decoded here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco

from shardprep.image.annotation_types import Counts, Floats, Polygons, Runs
from shardprep.image.masks import MaskError

Ints = NDArray[np.int64]
Drawable = Polygons | Runs | Counts

_MAX_SIDES = 10
"""Maximum coordinate of a corner, positive or negative, in sides of the image."""
_MAX_BOUNDARY = 1_000_000
"""Maximum pixels along the edges of an object's polygons; pycocotools takes 80 bytes each."""
_MIN_CORNERS = 3
_NO_RUNS = re.compile(r"[^0-9\s]|[0-9]{13}", re.ASCII)
"""Matches characters that are invalid in run lengths, and numbers larger than any image."""
_FIRST, _LAST = ord("0"), ord("0") + 63
"""Range of the characters of compressed counts: 6 bits; the highest bit means "continued"."""
_MAX_CHARACTERS = 7
"""Maximum number of characters of one compressed count, with 5 bits each."""
_FEW = 64
"""With more pixels per run than this, it is faster to paint the runs one by one."""


def outline_mask(outline: Drawable, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the mask of an outline, uint8[height, width] of 0 and 1. `size` is height and width.

    Polygons give the mask of pycocotools' `annToMask`; parts with less than three corners are
    ignored. MaskError for coordinates, counts or runs that do not fit an image of this size.
    """
    height, width = size
    flat = np.zeros(height * width, np.uint8)
    for starts, stops in _parts(outline, size):
        _paint(flat, starts, stops)
    return flat.reshape(size) if _is_by_row(outline) else flat.reshape(width, height).T


def _is_by_row(outline: Drawable) -> bool:
    return isinstance(outline, Runs) and outline.order == "row"


def _parts(outline: Drawable, size: tuple[int, int]) -> Iterator[tuple[Ints, Ints]]:
    """Yield starts and stops of runs of pixels, down the columns unless `_is_by_row`."""
    height, width = size
    if isinstance(outline, Runs):
        yield _runs(outline, height * width)
    elif isinstance(outline, Counts):
        if tuple(outline.size) != size:
            sides = "{1}x{0}".format(*outline.size)
            raise MaskError(f"has run lengths of {sides} pixels, but the image is {width}x{height}")
        yield _inside(_counts(outline.counts, height * width))
    else:
        for ring in _rings(outline, size):
            (found,) = coco.frPyObjects([ring.ravel()], height, width)
            yield _inside(_counts(found["counts"].decode(), height * width))


class Columns(NamedTuple):
    """The pixels of an object, counted down the columns. A part of them can be drawn alone."""

    height: int
    starts: Ints
    stops: Ints
    """First pixel of each run, and the pixel after its last; runs may overlap."""

    @classmethod
    def of(cls, outline: Drawable, size: tuple[int, int]) -> Columns | None:
        """Return an outline's pixels, or None for runs along rows; errors as in `outline_mask`."""
        if _is_by_row(outline):
            return None
        parts = [np.empty((2, 0), np.int64), *map(np.stack, _parts(outline, size))]
        starts, stops = np.concatenate(parts, axis=1)
        return cls(size[0], starts[starts < stops], stops[starts < stops])

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the pixels; zeros if the object has none."""
        if not len(self.starts):
            return 0, 0, 0, 0
        (left, top), (right, bottom) = (
            divmod(edges, self.height) for edges in (self.starts, self.stops - 1)
        )
        if (left < right).any():  # a run that continues in the next column
            return int(left.min()), 0, int(right.max()) + 1, self.height
        return int(left.min()), int(top.min()), int(right.max()) + 1, int(bottom.max()) + 1

    def mask(self, top: int, left: int, height: int, width: int) -> NDArray[np.uint8]:
        """Return the part of the mask at `top` and `left`, uint8[height, width] of 0 and 1."""
        first, last = left * self.height, (left + width) * self.height
        starts, stops = (edges.clip(first, last) - first for edges in (self.starts, self.stops))
        flat = np.zeros(last - first, np.uint8)
        _paint(flat, starts[starts < stops], stops[starts < stops])
        return flat.reshape(width, self.height).T[top : top + height]


def runs_of(mask: NDArray[np.uint8]) -> Runs:
    """Return a mask of 0 and 1 as run lengths down its columns."""
    _, starts, stops = columns_of(mask)
    numbers = np.stack((starts + 1, stops - starts), axis=1)
    return Runs(" ".join(map(str, numbers.ravel().tolist())), "column")


def columns_of(mask: NDArray[Any]) -> Columns:
    """Return the pixels of a mask that are not 0."""
    edges = np.flatnonzero(np.diff((mask != 0).T.ravel(), prepend=False, append=False))
    return Columns(len(mask), edges[::2], edges[1::2])


def _rings(polygons: Polygons, size: tuple[int, int]) -> list[Floats]:
    limit = np.array(size[::-1], np.float64) * _MAX_SIDES
    rings = []
    boundary = 0.0
    for ring in polygons.rings:
        if ring.ndim != 2 or ring.shape[1] != 2:
            raise MaskError("has a polygon whose numbers are not pairs of x and y")
        if not np.isfinite(ring).all():
            raise MaskError("has a polygon with a corner that is not a number")
        if (np.abs(ring) > limit).any():
            raise MaskError(f"has a polygon that leaves the image by {_MAX_SIDES} times its side")
        if len(ring) >= _MIN_CORNERS:
            rings.append(ring)
            boundary += float(np.abs(ring - np.roll(ring, 1, axis=0)).max(axis=1).sum())
    if boundary > _MAX_BOUNDARY:
        raise MaskError(f"has polygons with edges of more than {_MAX_BOUNDARY:,} pixels")
    return rings


def _runs(runs: Runs, num_pixels: int) -> tuple[Ints, Ints]:
    """Return the first pixel of each run, counted from 0, and the pixel after its last."""
    numbers = _numbers(runs.text, num_pixels)
    if len(numbers) % 2:
        raise MaskError(f"has {len(numbers):,} numbers, but runs are pairs of start and length")
    starts, lengths = numbers[::2], numbers[1::2]
    if (lengths < 1).any():
        raise MaskError("has a run length below 1; each run needs a pixel")
    if runs.order == "relative":
        stops = np.cumsum(starts + lengths)
        starts = stops - lengths
    else:
        if (starts < 1).any():
            raise MaskError("has a run that starts at 0, but the first pixel is 1")
        starts = starts - 1
        stops = starts + lengths
    if stops.size and int(stops.max()) > num_pixels:
        raise MaskError(f"has a run to pixel {int(stops.max()):,}, but only {num_pixels:,} pixels")
    if int(lengths.sum()) > 2 * num_pixels:
        raise MaskError("has runs that cover the image more than twice")
    return starts, stops


def _numbers(text: str, num_pixels: int) -> Ints:
    if _NO_RUNS.search(text):
        raise MaskError("has run lengths that are not whole numbers")
    most = num_pixels + 2  # start and length of each run, with gaps between runs
    if len(text) > 14 * most:
        raise MaskError(f"has more run lengths than its {num_pixels:,} pixels can have")
    numbers = np.fromstring(text, np.int64, sep=" ")
    if len(numbers) > most:
        raise MaskError(f"has more run lengths than its {num_pixels:,} pixels can have")
    if (numbers > num_pixels).any():
        raise MaskError(f"has run lengths up to {numbers.max():,}, but only {num_pixels:,} pixels")
    return numbers


def _counts(counts: str | tuple[int, ...], num_pixels: int) -> Ints:
    """Return COCO's counts of pixels outside, inside, outside …, which must sum to `num_pixels`."""
    if len(counts) > 2 * num_pixels * (_MAX_CHARACTERS if isinstance(counts, str) else 1):
        raise MaskError(f"has more run lengths than its {num_pixels:,} pixels can have")
    try:
        numbers = _decompressed(counts) if isinstance(counts, str) else np.array(counts, np.int64)
    except MaskError:
        raise
    except (TypeError, ValueError, OverflowError):
        raise MaskError("has run lengths that are not whole numbers") from None
    if len(numbers) > 2 * num_pixels:
        raise MaskError(f"has more run lengths than its {num_pixels:,} pixels can have")
    if ((numbers < 0) | (numbers > num_pixels)).any():
        raise MaskError(f"has a run length below 0 or above its {num_pixels:,} pixels")
    if int(numbers.sum()) != num_pixels:
        raise MaskError(f"has run lengths for {int(numbers.sum()):,} pixels, not {num_pixels:,}")
    return numbers


def _decompressed(text: str) -> Ints:
    """Return the counts of compressed text (pycocotools, common/maskApi.c, rleFrString).

    A count is signed LEB128 in groups of 5 bits, the lowest first. From the fourth on, the number
    stored is the difference to the count two places before.
    """
    codes = np.frombuffer(text.encode("ascii"), np.uint8)
    if codes.size and not (codes.min() >= _FIRST and codes.max() <= _LAST):
        raise MaskError("has compressed run lengths with invalid characters")
    codes = codes - np.uint8(_FIRST)
    ends = np.flatnonzero(codes < 32)
    if codes.size and (not ends.size or ends[-1] != codes.size - 1):
        raise MaskError("has compressed run lengths that end early")
    if not ends.size:
        return np.empty(0, np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _MAX_CHARACTERS:
        raise MaskError("has a run length that is too large for any image")
    shifts = (np.arange(codes.size) - np.repeat(starts, lengths)) * 5
    numbers = np.add.reduceat((codes & 31).astype(np.int64) << shifts, starts)
    numbers -= (codes[ends] >= 16).astype(np.int64) << (lengths * 5)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def _inside(counts: Ints) -> tuple[Ints, Ints]:
    edges = np.cumsum(counts)
    return edges[: len(edges) // 2 * 2 : 2], edges[1::2]


def _paint(flat: NDArray[np.uint8], starts: Ints, stops: Ints) -> None:
    if len(starts) * _FEW < flat.size:
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            flat[start:stop] = 1
        return
    depth = np.zeros(flat.size + 1, np.int32)
    np.add.at(depth, starts, 1)
    np.subtract.at(depth, stops, 1)
    flat |= (np.cumsum(depth, out=depth)[:-1] > 0).view(np.uint8)
