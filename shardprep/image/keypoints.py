"""Skeletons, and keypoints from the annotated image to the stored one.

A keypoint that the stored image does not show becomes 0, 0 with visibility 0, as COCO writes a
keypoint that is not labelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.image.annotation_types import Frame, Points, Skeleton
from shardprep.image.placement import Placement

_SIDES = (
    re.compile("left|right", re.IGNORECASE),
    re.compile("(?<![A-Za-z])[lr](?![A-Za-z])", re.IGNORECASE),
)
"""The words for a side in names of keypoints: left_eye, R_Eye, eye.l."""
_OTHER = {"left": "right", "right": "left", "l": "r", "r": "l"}
_TOLERANCE_PX = 1e-3
"""A keypoint may be outside by this many pixels, a rounding error."""


class PlacedPoints(NamedTuple):
    """Keypoints as a record stores them."""

    places: NDArray[np.float32]
    """float32[…, 2]: y, x as shares of the stored image, 0 to 1."""
    visible: NDArray[np.uint8]
    """uint8[…]: 0, 1 or 2; places of 0 are 0, 0."""
    num_outside: int
    """Number of keypoints outside the annotated image."""
    num_cut: int
    """Number of keypoints in a part of the image that is not stored."""


def place_points(
    points: Points, size: tuple[int, int], frame: Frame, placement: Placement
) -> PlacedPoints:
    """Return keypoints in their stored form.

    `size` is the height and width of the annotated image in the unit of the points.
    """
    places, visible = points[..., :2].astype(np.float64), points[..., 2].astype(np.uint8)
    sides = np.array(size[::-1], np.float64)
    margin = sides / placement.frame_size(frame)[::-1] * _TOLERANCE_PX
    is_labelled = visible > 0
    is_inside = np.logical_and(_are_within(places, sides, margin), is_labelled)
    places[~is_inside] = 0.0
    moved = placement.points(places, size, frame)
    stored = np.array(placement.size[::-1], np.float64)
    is_left = np.logical_and(_are_within(moved, stored, np.full(2, _TOLERANCE_PX)), is_inside)
    shares = (moved / stored).clip(0.0, 1.0)[..., ::-1]
    return PlacedPoints(
        np.where(is_left[..., np.newaxis], shares, 0.0).astype(np.float32),
        np.where(is_left, visible, 0).astype(np.uint8),
        int(np.count_nonzero(is_labelled & ~is_inside)),
        int(np.count_nonzero(is_inside & ~is_left)),
    )


def _are_within(
    places: NDArray[np.float64], sides: NDArray[np.float64], margin: NDArray[np.float64]
) -> NDArray[np.bool_]:
    is_within = (places >= -margin) & (places <= sides + margin)  # False for NaN
    found: NDArray[np.bool_] = np.logical_and.reduce(is_within, axis=-1)
    return found


def united(skeletons: Iterable[Skeleton]) -> Skeleton:
    """Return a skeleton with all keypoints, matched by name; pairs of sides are found by name.

    A `mirrored` that one of the skeletons states wins over the names.
    """
    several = list(skeletons)
    names = tuple(dict.fromkeys(name for one in several for name in one.names))
    place = {name: i for i, name in enumerate(names)}
    mirrored = list(mirrored_by_name(names) or range(len(names)))
    for one in several:
        for name, other in zip(one.names, one.mirrored, strict=False):
            mirrored[place[name]] = place[one.names[other]]
    edges = [(place[one.names[a]], place[one.names[b]]) for one in several for a, b in one.edges]
    is_mirrored = mirrored != list(range(len(names))) and sorted(mirrored) == sorted(place.values())
    return Skeleton(names, tuple(dict.fromkeys(edges)), tuple(mirrored) if is_mirrored else ())


def mirrored_by_name(names: Sequence[str]) -> tuple[int, ...]:
    """Return `Skeleton.mirrored` of keypoints that are named left_… and right_…, L_… and R_…."""
    place = {name.lower(): i for i, name in enumerate(names)}
    mirrored = []
    for i, name in enumerate(names):
        others = (side.sub(lambda match: _OTHER[match[0].lower()], name.lower()) for side in _SIDES)
        found = (place[other] for other in others if place.get(other, i) != i)
        mirrored.append(next(found, i))
    # Each of a pair must name the other one.
    if mirrored == list(range(len(names))) or any(mirrored[j] != i for i, j in enumerate(mirrored)):
        return ()
    return tuple(mirrored)
