"""The masks of objects as polygons, one for each, as YOLO writes them.

A polygon runs along edges of pixels, so that drawing it gives the mask again. Parts and holes of a
mask are joined by lines that the polygon follows there and back.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.exporter.coco import mask_pixels
from shardprep.exporter.samples import ExportSample


def outlines(sample: ExportSample) -> list[list[float]]:
    """Return x and y in turn of the corners of each mask, as shares of the sides.

    An object without pixels gets the corners of its box.
    """
    height, width = sample.size
    found = []
    for pixels, (top, left, bottom, right) in zip(
        mask_pixels(sample), sample.objects.boxes, strict=True
    ):
        corners = (_corners(pixels) / (width, height)).ravel().tolist()
        found.append(corners or [left, top, right, top, right, bottom, left, bottom])
    return found


def _corners(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the corners of a polygon that encloses the pixels, int64[n, 2]: x and y."""
    padded = np.pad(pixels, 1)
    parts = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    is_corner = np.bitwise_xor.reduce(parts)
    are_two = (parts[0] == parts[3]) & (parts[1] == parts[2]) & (parts[0] != parts[1])
    y, x = np.nonzero(numbers := is_corner + 2 * are_two)
    corners = np.repeat(np.stack([x, y], 1), numbers[y, x], 0)
    rings = _rings(corners)
    closed = chain.from_iterable((*ring, ring[0]) for ring in rings)
    back = (ring[0] for ring in rings[-2::-1])
    places = [*closed, *back]
    places += places[:1] * (len(places) % 3 == 2)  # or its numbers could be a box and keypoints
    return corners[places]


def _rings(corners: NDArray[Any]) -> list[list[int]]:
    """Return the corners of each ring, by their number.

    In each row, two corners in turn are the ends of an edge, and so in each column.
    """
    order = np.lexsort((corners[:, 1], corners[:, 0])).reshape(-1, 2)
    ends = np.empty(len(corners), np.int64)
    ends[order] = order[:, ::-1]
    above, is_seen, rings = ends.tolist(), bytearray(len(corners)), []
    for first in range(0, len(corners), 2):
        ring, at = list[int](), first
        while not is_seen[at]:
            ring += (at, at ^ 1)
            is_seen[at] = is_seen[at ^ 1] = True
            at = above[at ^ 1]
        if ring:
            rings.append(ring)
    return rings
