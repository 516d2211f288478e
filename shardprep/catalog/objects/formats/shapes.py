"""Drawn shapes as polygons: corners, circles, ellipses."""

from __future__ import annotations

import numpy as np

from shardprep.image.annotation_types import Floats

_MOST = 1e100
"""Coordinates that no image has, and whose products are still finite."""
_NUM_CORNERS = 64
"""Number of corners of the polygon that stands for a circle or an ellipse."""


def rectangle(x1: float, y1: float, x2: float, y2: float) -> Floats:
    """Return the corners between two opposite ones, in any order, float64[4, 2]."""
    left, right, top, bottom = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)


def ellipse(x: float, y: float, radius_x: float, radius_y: float, turn: float = 0.0) -> Floats:
    """Return a polygon on an ellipse that is turned by `turn` in radians, float64[64, 2].

    Raises:
        OverflowError: the ellipse is larger than any image.

    """
    if not all(abs(number) < _MOST for number in (x, y, radius_x, radius_y, turn)):
        raise OverflowError("an ellipse beyond all images")
    angles = np.linspace(0, 2 * np.pi, _NUM_CORNERS, endpoint=False)
    across, along = radius_x * np.cos(angles), radius_y * np.sin(angles)
    cos, sin = np.cos(turn), np.sin(turn)
    return np.stack((x + across * cos - along * sin, y + across * sin + along * cos), axis=1)


def turned(ring: Floats, turn: float) -> Floats:
    """Return corners turned clockwise about their middle, by `turn` in radians.

    Raises:
        OverflowError: the corners are farther away than in any image.

    """
    if not turn:
        return ring
    if not (np.abs(ring) < _MOST).all():
        raise OverflowError("corners beyond all images")
    middle = (ring.min(0) + ring.max(0)) / 2
    cos, sin = np.cos(turn), np.sin(turn)
    x, y = (ring - middle).T
    found: Floats = np.stack((x * cos - y * sin, x * sin + y * cos), axis=1) + middle
    return found


def box_of(rings: list[Floats]) -> tuple[float, ...]:
    """Return the box around all corners: x and y of the first corner, x and y of the second."""
    points = np.concatenate(rings)
    return (*points.min(0).tolist(), *points.max(0).tolist())
