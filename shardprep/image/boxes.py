"""Convert boxes and keypoints from the annotated to the stored image; decide what is dropped.

A keypoint outside the stored image becomes 0, 0 with visibility 0, like an unlabelled keypoint of
COCO. Skeletons are also united here, and left and right keypoints paired by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from shardprep.image.annotation_types import Annotation, Floats, Frame, Points, Skeleton
from shardprep.image.placement import Placement

Flags = NDArray[np.bool_]

Reason = Literal[
    "", "not finite", "reversed", "zero size", "outside", "unknown class", "repeated", "cut away",
    "too small", "no outline",
]  # fmt: skip
"""Why an object is dropped; "" if it is stored."""
SHORTFALLS = ("cut away", "too small")
"""Reasons due to cropping and resizing, not errors of the source: too few pixels are left."""
_CODES: dict[Reason, int] = {reason: code for code, reason in enumerate(get_args(Reason))}

_TOLERANCE_PX, _TOLERANCE = 1e-3, 1e-6
"""How far boxes and keypoints may exceed the edge: the first number in pixels, or for boxes the
second as a share of the side if that is more."""
_MIN_SIDE = 1.0
"""Minimum side, in stored pixels, of a box that a crop has cut."""
_Y_FIRST = np.array((1, 0, 3, 2))
_FEW = 1000
"""Up to this number of boxes, a `set` looks for repeats first: it is faster than a sort."""
_CUT = 1 - 1e-6
"""A box counts as cut if less than this share of its area is left."""


def annotated_size(annotation: Annotation, placement: Placement, frame: Frame) -> tuple[int, int]:
    """Return height and width in pixels that an annotation states, or else those of the image."""
    size = annotation.size
    return size if size and min(size) > 0 else placement.frame_size(frame)


def size_of_boxes(annotation: Annotation, placement: Placement, frame: Frame) -> tuple[int, int]:
    """Return the height and width of the annotated image in units of its boxes; 1, 1 for shares."""
    return (1, 1) if annotation.is_relative else annotated_size(annotation, placement, frame)


@dataclass(slots=True)
class Boxes:
    """The objects of one image in source order, while they are placed and checked."""

    corners: Floats
    """float64[n, 4]: x, y, x, y in pixels of the stored image, not clipped."""
    labels: NDArray[np.int64]
    is_clipped: Flags
    """bool[n]: whether each box exceeded the annotated image by more than a rounding error."""
    reasons: NDArray[np.uint8]
    """Index of the `Reason` of each object; 0 if it is not dropped."""

    @classmethod
    def unplaced(cls, labels: Sequence[int]) -> Boxes:
        number = len(labels)
        return cls(
            np.full((number, 4), np.nan),
            np.array(labels, np.int64),
            np.zeros(number, np.bool_),
            np.zeros(number, np.uint8),
        )

    @property
    def kept(self) -> Flags:
        found: Flags = self.reasons == 0
        return found

    @property
    def dropped(self) -> dict[Reason, int]:
        counts = np.bincount(self.reasons).tolist()
        return {reason: n for reason, n in zip(_CODES, counts, strict=False) if reason and n}

    def drop(self, which: Flags, reason: Reason) -> None:
        """Drop the objects whose flag is True; an object that was dropped keeps its reason."""
        self.reasons[which & self.kept] = _CODES[reason]

    def set_corners(self, i: int, corners: Floats | None) -> None:
        """Set the box of an object and clear its reason; None (an empty mask) drops the object."""
        self.reasons[i] = _CODES["zero size"] if corners is None else 0
        if corners is not None:
            self.corners[i] = corners

    def drop_unknown(self, num_classes: int) -> None:
        is_unknown = (self.labels < 0) | (self.labels >= num_classes)
        if np.count_nonzero(is_unknown):
            self.drop(is_unknown, "unknown class")

    def place(
        self, boxes: Floats, size: tuple[int, int], frame: Frame, placement: Placement
    ) -> None:
        """Clip boxes to the annotated image, drop invalid and empty boxes, and set `corners`.

        `size` is the height and width of the annotated image in the unit of the boxes.
        """
        height, width = size
        edges = (width, height, width, height)
        clipped = np.minimum(np.maximum(boxes, 0.0), np.array(edges, np.float64))
        is_inside = _are_all(clipped == boxes)  # False for NaN
        if not (is_inside and _are_all(clipped[:, 2:] > clipped[:, :2])):
            self.drop(_any(~np.isfinite(boxes)), "not finite")
            self.drop(_any(boxes[:, 2:] < boxes[:, :2]), "reversed")
            self.drop(_any(boxes[:, 2:] == boxes[:, :2]), "zero size")
            self.drop(_any(clipped[:, 2:] <= clipped[:, :2]), "outside")
        if not is_inside:
            sides = placement.frame_size(frame)[::-1] * 2
            tolerance = [
                edge * max(_TOLERANCE, _TOLERANCE_PX / side)
                for edge, side in zip(edges, sides, strict=True)
            ]
            self.is_clipped = _any(np.abs(clipped - boxes) > tolerance)
        self.corners = placement.boxes(clipped, size, frame)

    def drop_repeated(self, shapes: Sequence[int] = ()) -> None:
        """Drop objects with the same box, class and number in `shapes` as an earlier object."""
        if len(self.corners) <= _FEW and len(set(map(tuple, self.corners.tolist()))) == len(
            self.corners
        ):
            return
        kept = np.flatnonzero(self.kept)
        columns = [self.labels, *self.corners.T]
        if shapes:
            columns.append(np.array(shapes, np.int64))
        order = kept[np.lexsort([column[kept] for column in columns])]
        is_repeated = np.ones(max(0, len(order) - 1), np.bool_)
        for column in columns:
            is_repeated &= column[order[1:]] == column[order[:-1]]
        if is_repeated.any():
            self.reasons[order[1:][is_repeated]] = _CODES["repeated"]

    def shares(self, placement: Placement, min_visible: float) -> NDArray[np.float32]:
        """Return all boxes as shares of the stored image: ymin, xmin, ymax, xmax.

        Drops an object if a crop left less than a pixel of a side, or less than `min_visible` of
        the area. Also drops boxes without an area after rounding to float32.
        """
        shares = self.corners.take(_Y_FIRST, axis=1) / np.array(placement.size * 2, np.float64)
        shares = np.minimum(np.maximum(shares, 0.0), 1.0)
        if placement.is_cropped:
            left_over = (shares[:, 2:] - shares[:, :2]) * placement.size
            self.drop(are_cut_away(left_over, self.corners, min_visible), "cut away")
        found = shares.astype(np.float32)
        if not _are_all(found[:, 2:] > found[:, :2]):
            self.drop(_any(found[:, 2:] <= found[:, :2]), "zero size")
        return found


def are_cut_away(
    left_over: Floats, corners: Floats, min_visible: float, min_side: float = _MIN_SIDE
) -> Flags:
    """Return which boxes a cut leaves too small, bool[n].

    `left_over` has the sides of each box after the cut, float[n, 2]; `corners` are the boxes
    before. A box is too small if a side is below `min_side`, or if less than the share
    `min_visible` of its area is left. Boxes that were not cut are never too small.
    """
    area = left_over.prod(axis=1)
    whole = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
    is_little = _any(left_over < min_side) | (area < min_visible * whole)
    found: Flags = is_little & ~(area >= _CUT * whole)
    return found


def _are_all(flags: Flags) -> bool:
    # `flags.all()` takes three times as long for a few flags.
    return bool(np.count_nonzero(flags) == flags.size)


def _any(rows: Flags) -> Flags:
    found: Flags = np.logical_or.reduce(rows, axis=1)
    return found


_SIDES = (
    re.compile("left|right", re.IGNORECASE),
    re.compile("(?<![A-Za-z])[lr](?![A-Za-z])", re.IGNORECASE),
)
"""The words for a side in names of keypoints: left_eye, R_Eye, eye.l."""
_OTHER = {"left": "right", "right": "left", "l": "r", "r": "l"}


class PlacedPoints(NamedTuple):
    """Keypoints as a record stores them."""

    places: NDArray[np.float32]
    """float32[…, 2]: y, x as shares of the stored image, 0 to 1."""
    visible: NDArray[np.uint8]
    """uint8[…]: 0, 1 or 2; y, x is 0, 0 for visibility 0."""
    num_outside: int
    """Number of keypoints outside the annotated image."""
    num_cut: int
    """Number of keypoints in a part of the image that is not stored."""


def place_points(
    points: Points, size: tuple[int, int], frame: Frame, placement: Placement
) -> PlacedPoints:
    """Return keypoints in stored form; `size` is the annotated height and width in their unit."""
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
    """Return a skeleton with the keypoints and edges of all skeletons, matched by name.

    `mirrored` is derived from names with left and right, unless a skeleton states it.
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
    """Return `Skeleton.mirrored` by names: left_… and right_…, L_… and R_…; () without pairs."""
    place = {name.lower(): i for i, name in enumerate(names)}
    mirrored = []
    for i, name in enumerate(names):
        others = (side.sub(lambda match: _OTHER[match[0].lower()], name.lower()) for side in _SIDES)
        found = (place[other] for other in others if place.get(other, i) != i)
        mirrored.append(next(found, i))
    # In a pair, each keypoint must be the mirror image of the other.
    if mirrored == list(range(len(names))) or any(mirrored[j] != i for i, j in enumerate(mirrored)):
        return ()
    return tuple(mirrored)
