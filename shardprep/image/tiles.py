"""Cut an image into tiles: their windows, and the objects of each tile.

Boxes, run lengths, class mask and keypoints of a tile are in its pixels, as in any other image.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shardprep.image.annotation_types import (
    FRAMES,
    NO_OUTLINE,
    Annotation,
    AnnotationSpec,
    Floats,
    Outline,
    Points,
)
from shardprep.image.annotations import Scene, lost_points, numbered
from shardprep.image.boxes import Boxes, Flags, PlacedPoints, are_cut_away, size_of_boxes
from shardprep.image.placement import Labels
from shardprep.image.png import encoded_png
from shardprep.image.rasterize import Columns, runs_of

_UNKNOWN = "unknown class"
_LEAST_SIDE = 1e-3
"""Minimum side of a box in a tile in pixels: as float32 shares, narrower boxes would vanish."""


class Window(NamedTuple):
    """A part of an upright image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def windows(size: tuple[int, int], tile: tuple[int, int], overlap: tuple[int, int]) -> list[Window]:
    """Return the windows of the tiles of an image, row by row. Sizes are height and width.

    The last column and the last row are moved inwards, so that all tiles have one size. An image
    with a shorter side than a tile has smaller tiles.
    """
    height, width = map(min, size, tile)
    tops, lefts = map(_starts, size, tile, overlap)
    return [Window(top, left, height, width) for top in tops for left in lefts]


def _starts(side: int, tile: int, overlap: int) -> list[int]:
    return [*range(0, side - tile, tile - overlap), max(0, side - tile)]


def tile_spec(spec: AnnotationSpec) -> AnnotationSpec:
    """Return the spec for objects of tiles: masks are upright, class masks hold class indices."""
    frames = spec.frames if spec.masks == "none" else FRAMES[:1]
    kinds = replace(spec, is_binary=False, is_panoptic=False, ids_are_values=False)
    return replace(kinds, frames=frames, values=None)


class ObjectCutter:
    """The objects of an image placed whole, to be cut into tiles. MaskError for an invalid mask."""

    def __init__(self, scene: Scene) -> None:
        annotation, spec = scene.annotation, scene.spec
        self._scene, self._dropped = scene, Counter(annotation.dropped)
        self._class_mask: Labels | None = None
        self._columns, numbers = list[Columns](), scene.outline_numbers()
        self._labels, boxes = annotation.labels, annotation.boxes
        self._is_apart, has_files = spec.masks == "instances", bool(scene.files.data)
        if spec.masks == "classes" and has_files:
            self._class_mask = scene.class_mask(self._dropped)
        if self._is_apart and has_files and not spec.is_panoptic:
            shapes = [(label, scene.columns_of(m, f)) for label, m, f in scene.files.shapes()]
            self._labels = tuple(label for label, _ in shapes)
            self._columns = [columns for _, columns in shapes]
            numbers = numbered((o.starts.tobytes(), o.stops.tobytes()) for o in self._columns)
            boxes = np.full((len(shapes), 4), np.nan)
        elif spec.masks != "none" or np.isnan(boxes).any():
            self._columns = [scene.columns(i) for i in range(len(annotation.outlines))]
        if spec.ids_are_values and has_files:
            self._dropped.update(scene.unlisted())
        if spec.masks == "classes" and not (has_files or spec.boxes):
            self._dropped[NO_OUTLINE] += annotation.outlines.count(None)
            self._dropped[_UNKNOWN] += sum(not self._is_known(i) for i in range(len(self._columns)))
        self._extents = np.array([one.box for one in self._columns], np.float64).reshape(-1, 4)
        self._crowds = annotation.crowds or (False,) * len(self._labels)
        self._objects = self._placed(boxes if spec.has_objects else boxes[:0])
        self._objects.drop_repeated(numbers[: len(self._objects.labels)])
        self._dropped.update(self._objects.dropped)
        points = scene.keypoints(self._objects.kept) if spec.has_objects else None
        self._lost = lost_points(annotation, points, scene.points())

    def _placed(self, boxes: Floats) -> Boxes:
        scene, objects = self._scene, Boxes.unplaced(self._labels[: len(boxes)])
        unit = size_of_boxes(scene.annotation, scene.placement, scene.frame)
        objects.place(boxes, unit, scene.frame, scene.placement)
        has_pixels: Flags = np.zeros(len(boxes), np.bool_)
        if self._columns:
            has_pixels |= self._extents[: len(boxes), 2] > 0
        self._is_open: Flags = np.isnan(boxes[:, 0]) & has_pixels
        for i in np.flatnonzero(self._is_open).tolist():
            objects.set_corners(i, self._extents[i])
        objects.drop_unknown(scene.spec.num_classes)
        if self._is_apart:
            objects.drop(~has_pixels, NO_OUTLINE)
        return objects

    def tile(self, window: Window, *, is_first: bool) -> tuple[Annotation, bytes]:
        """Return the objects of a tile and its class mask, a PNG; b"" without class masks.

        Objects outside of the tile are left out. `is_first` must be True for one tile of the image:
        this tile counts the objects and keypoints that are dropped from the whole image.
        """
        scene, objects, (top, left, *size) = self._scene, self._objects, window
        height, width = size
        parts = (objects.corners - (left, top) * 2).clip(0, (width, height) * 2)
        sides = parts[:, 2:] - parts[:, :2]
        kept = objects.kept & (sides > 0).all(axis=1)
        is_cut = kept & are_cut_away(sides, objects.corners, scene.spec.min_visible, _LEAST_SIDE)
        kept &= ~is_cut
        outlines: list[Outline] = []
        for i in np.flatnonzero(kept).tolist() if self._is_apart else ():
            mask = self._columns[i].mask(*window)
            kept[i] = mask.any()
            outlines += [runs_of(mask)] if kept[i] else []
        if self._is_apart:
            parts[self._is_open] = np.nan  # the outline has the box of the visible pixels
        box = float(left), float(top), float(left + width), float(top + height)
        tile = (height, width)
        place = replace(scene.placement, box=box, corner=(0, 0), fitted=tile, size=tile)
        here = replace(scene, placement=place)
        dropped = self._dropped if is_first else Counter[str]()
        annotation = Annotation(
            boxes=parts[kept],
            labels=tuple(objects.labels[kept].tolist()),
            attributes=here.attributes(kept),
            outlines=tuple(outlines),
            keypoints=_in_pixels(here.keypoints(kept), window),
            points=_in_pixels(here.points(), window),
            lost_points=self._lost if is_first else {},
            size=tile,
            dropped=dropped + Counter({"cut away": int(np.count_nonzero(is_cut))}),
            are_distinct=True,
        )
        return annotation, self._mask(window)

    def _mask(self, window: Window) -> bytes:
        top, left, height, width = window
        spec = self._scene.spec
        if spec.masks != "classes":
            return b""
        if self._class_mask is not None:
            return encoded_png(self._class_mask[top : top + height, left : left + width])
        mask = np.full((height, width), spec.background, spec.mask_type)
        starts, stops = self._extents[:, :2], self._extents[:, 2:]
        is_there = (starts < (left + width, top + height)) & (stops > (left, top))
        for i in np.flatnonzero(is_there.all(axis=1)).tolist():
            if self._is_known(i):
                value = spec.ignore if self._crowds[i] else self._labels[i]
                mask[self._columns[i].mask(*window) != 0] = value
        return encoded_png(mask)

    def _is_known(self, i: int) -> bool:
        return 0 <= self._labels[i] < self._scene.spec.num_classes


def _in_pixels(placed: PlacedPoints | None, window: Window) -> Points | None:
    if placed is None:
        return None
    places = placed.places[..., ::-1] * np.array((window.width, window.height), np.float32)
    return np.concatenate((places, placed.visible[..., np.newaxis]), axis=-1, dtype=np.float32)
