"""Convert the boxes and masks of one image to the form that its record stores.

Boxes and masks are placed by the same `Placement` as the pixels. A box that cannot be stored is
dropped and counted by reason; an invalid mask rejects the image. Masks are drawn one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shardprep.image.annotation_types import (
    NO_NUMBERS,
    NO_OUTLINE,
    Annotation,
    AnnotationSpec,
    Counts,
    Floats,
    Frame,
    Outline,
    Polygons,
    Segment,
    StoredMask,
)
from shardprep.image.boxes import Boxes, PlacedPoints, annotated_size, place_points, size_of_boxes
from shardprep.image.masks import (
    MaskError,
    MaskFiles,
    decode_mask,
    fault_of,
    look_up_classes,
    size_mismatch,
    value_counts,
)
from shardprep.image.placement import Labels, Placement
from shardprep.image.png import encoded_png
from shardprep.image.process import Rejection
from shardprep.image.rasterize import Columns, Drawable, columns_of, outline_mask
from shardprep.image.spec import MAX_STORED_PIXELS

_Made = TypeVar("_Made")

_NONE = np.empty((0, 4), np.float32)
_MAX_COPY = 16
"""Largest ratio of the pixels of an annotated copy to the pixels of its image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedObjects:
    """The objects and class mask of an image as its record stores them, in source order."""

    boxes: NDArray[np.float32] = field(default_factory=lambda: _NONE)
    """float32[n, 4]: ymin, xmin, ymax, xmax as shares of the stored image; 0 ≤ min < max ≤ 1."""
    labels: tuple[int, ...] = ()
    attributes: Mapping[str, Floats] = field(default_factory=dict)
    """Name → number or numbers of each object, float64[n, …], for each attribute of the spec."""
    masks: tuple[bytes, ...] = ()
    """Grey PNG of 0 and 1 for each object, of the stored size; () unless masks="instances"."""
    segmentation_mask: bytes = b""
    """Grey PNG of class indices, of the stored size; b"" unless masks="classes"."""
    num_clipped: int = 0
    """Number of stored boxes that extend beyond the image in the source (not just by rounding)."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of objects that are not stored, by reason, including `Annotation.dropped`."""
    pixels: Mapping[int, int] = field(default_factory=dict)
    """Number of pixels of each class in the segmentation mask, without ignored pixels."""
    num_ignored: int = 0
    """Number of ignored pixels in the segmentation mask, including padding."""
    keypoints: PlacedPoints | None = None
    """Keypoints of each stored object, [n, K]; None unless the spec has keypoints."""
    points: PlacedPoints | None = None
    """Keypoints of the image, [K]; None unless the spec has points."""
    lost_points: Mapping[str, int] = field(default_factory=dict)
    """Number of keypoints that are not stored, by reason, of stored objects and of the image."""

    @property
    def labelled_points(self) -> tuple[int, ...]:
        """Number of labelled keypoints that are stored, of each object, then of the image."""
        several = (self.keypoints, self.points)
        counts = (np.count_nonzero(one.visible, axis=-1) for one in several if one is not None)
        return tuple(number for count in counts for number in np.ravel(count).tolist())


def place_objects(
    annotation: Annotation, mask_files: Sequence[bytes], placement: Placement, spec: AnnotationSpec
) -> PlacedObjects | Rejection:
    """Return the objects of an image in their stored form, or a rejection without `original`.

    If the spec has masks of objects, mask files hold the objects (`MaskFiles.shapes`). Otherwise
    files are layers of the class mask, and later layers win. `annotation.labels` are the classes of
    the files unless the annotation has boxes. An image of a panoptic dataset has one mask file,
    with the segments of the annotation.
    """
    scene = Scene.of(annotation, mask_files, placement, spec)
    if isinstance(scene, Rejection):
        return scene
    return attempted(scene.place)


def attempted(make: Callable[[], _Made]) -> _Made | Rejection:
    """Return the result of `make`, or a rejection if a mask is invalid or too large."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # boxes that overflow are dropped
            return make()
    except (ValueError, OverflowError) as error:  # MaskError, and numbers too large for NumPy
        return Rejection("bad_mask", str(error))
    except MemoryError:
        return Rejection("crashed", "its masks need more memory than a worker may use")


@dataclass(slots=True)
class Scene:
    """The annotation and the mask files of one image, while they are placed."""

    annotation: Annotation
    files: MaskFiles
    placement: Placement
    spec: AnnotationSpec
    frame: Frame
    """Frame of the boxes, and of outlines that do not state their size."""
    masks: dict[int, bytes] = field(default_factory=dict)
    """Object index → stored mask; b"" if no pixel of the object is stored."""
    ids: tuple[NDArray[np.uint32], Frame] | None = None

    @classmethod
    def of(
        cls,
        annotation: Annotation,
        mask_files: Sequence[bytes],
        placement: Placement,
        spec: AnnotationSpec,
    ) -> Scene | Rejection:
        if annotation.fault:
            return Rejection("bad_annotation", annotation.fault)
        frame = placement.frame(annotation.size, spec.frames)
        if frame is None:
            found = size_mismatch(annotation.size or (0, 0), placement)
            return Rejection("bad_annotation", f"the annotation was made for an image {found}")
        has_layers = bool(mask_files) and not spec.is_panoptic
        if spec.masks == "instances" and has_layers and len(annotation.boxes):
            reason = "it is unknown to which box each of its masks belongs"
            return Rejection("bad_annotation", reason)
        labels = () if len(annotation.boxes) else annotation.labels
        return cls(
            annotation, MaskFiles(mask_files, labels, placement, spec), placement, spec, frame
        )

    def place(self) -> PlacedObjects:
        spec = self.spec
        dropped = Counter(self.annotation.dropped)
        mask, pixels = b"", {}
        if spec.masks == "classes":
            classes = self.class_mask(dropped)
            counts = value_counts(classes)
            pixels = {label: int(counts[label]) for label in np.flatnonzero(counts).tolist()}
            mask = encoded_png(classes)
        has_masks = spec.masks == "instances"
        objects, shares = self._objects() if spec.has_objects else (Boxes.unplaced(()), _NONE)
        kept = objects.kept
        labels = objects.labels
        if np.count_nonzero(kept) < len(kept):
            dropped.update(objects.dropped)
            shares, labels = shares[kept], labels[kept]
        if spec.ids_are_values and self.files.data:
            dropped.update(self.unlisted())
        keypoints, points = self.keypoints(kept), self.points()
        return PlacedObjects(
            boxes=shares,
            labels=tuple(labels.tolist()),
            attributes=self.attributes(kept),
            masks=tuple(self.masks[i] for i in np.flatnonzero(kept).tolist()) if has_masks else (),
            segmentation_mask=mask,
            num_clipped=int(np.count_nonzero(objects.is_clipped & kept)),
            dropped=dict(dropped),
            num_ignored=pixels.pop(spec.ignore, 0),
            pixels=pixels,
            keypoints=keypoints,
            points=points,
            lost_points=lost_points(self.annotation, keypoints, points),
        )

    def attributes(self, kept: NDArray[np.bool_]) -> dict[str, Floats]:
        """Return the attributes of the kept objects; 0 if the source does not state them."""
        stated, none = self.annotation.attributes, np.zeros(len(kept))
        return {name: stated.get(name, none)[kept] for name in self.spec.attributes}

    def keypoints(self, kept: NDArray[np.bool_]) -> PlacedPoints | None:
        annotation, skeleton = self.annotation, self.spec.keypoints
        if skeleton is None:
            return None
        keypoints = annotation.keypoints
        if keypoints is None:
            keypoints = np.zeros((len(kept), len(skeleton.names), 3), np.float32)
        size = size_of_boxes(annotation, self.placement, self.frame)
        return place_points(keypoints[kept], size, self.frame, self.placement)

    def points(self) -> PlacedPoints | None:
        annotation, skeleton = self.annotation, self.spec.points
        if skeleton is None:
            return None
        points = annotation.points
        if points is None:
            points = np.zeros((len(skeleton.names), 3), np.float32)
        size = annotated_size(annotation, self.placement, self.frame)
        size = (1, 1) if annotation.has_relative_points else size
        return place_points(points, size, self.frame, self.placement)

    def _objects(self) -> tuple[Boxes, NDArray[np.float32]]:
        """Return all objects and their stored boxes, and draw the masks of kept objects."""
        has_masks = self.spec.masks == "instances"
        if has_masks and self.files.data and not self.spec.is_panoptic:
            objects, shapes = self._of_files()
        else:
            objects = self._of_annotation()
            shapes = self.outline_numbers()
        objects.drop_unknown(self.spec.num_classes)
        if not self.annotation.are_distinct:
            objects.drop_repeated(shapes)
        shares = objects.shares(self.placement, self.spec.min_visible)
        if has_masks:
            for i in np.flatnonzero(objects.kept).tolist():
                if i not in self.masks:
                    shape, frame = self._shape(i)
                    if not shape.any():
                        objects.drop(np.arange(len(shares)) == i, NO_OUTLINE)
                    self._draw(i, shape, frame)
            is_lost = np.array([self.masks.get(i) == b"" for i in range(len(shares))], np.bool_)
            objects.drop(is_lost, "cut away" if self.placement.is_cropped else "too small")
        return objects, shares

    def outline_numbers(self) -> list[int]:
        """Return a number for each annotated object, the same for equal outlines."""
        return numbered(map(_identity, self.annotation.outlines))

    def unlisted(self) -> dict[str, int]:
        """Return reason → number of objects in the mask file that no annotation lists; {} if 0."""
        ids, _ = self.ids or self.files.ids()
        number = sum(one not in NO_NUMBERS for one in np.unique(ids).tolist())
        listed = len(self.annotation.labels) + sum(self.annotation.dropped.values())
        return {"unknown class": number - listed} if number > listed else {}

    def _of_annotation(self) -> Boxes:
        """Return the annotated objects; an object without a box gets the box of its outline."""
        annotation, has_masks = self.annotation, self.spec.masks == "instances"
        objects = Boxes.unplaced(annotation.labels[: len(annotation.boxes)])
        no_box: list[int] = []
        if has_masks and not annotation.outlines:
            objects.drop(np.ones(len(objects.labels), np.bool_), NO_OUTLINE)
        if annotation.outlines:
            has_outline = np.array([o is not None for o in annotation.outlines], np.bool_)
            if has_masks:
                objects.drop(~has_outline, NO_OUTLINE)
            no_box = np.flatnonzero(np.isnan(annotation.boxes).all(axis=1) & has_outline).tolist()
        size = size_of_boxes(annotation, self.placement, self.frame)
        objects.place(annotation.boxes, size, self.frame, self.placement)
        for i in no_box:
            mask, frame = self._shape(i)
            objects.set_corners(i, self._extent(mask, frame))
            if has_masks:
                self._draw(i, mask, frame)
        return objects

    def _of_files(self) -> tuple[Boxes, list[int]]:
        """Draw the objects of mask files; return them, and a number each, shared by equal masks."""
        labels: list[int] = []
        extents: list[Floats | None] = []
        for i, (label, mask, frame) in enumerate(self.files.shapes()):
            labels.append(label)
            extents.append(self._extent(mask, frame))
            self._draw(i, mask, frame)
        objects = Boxes.unplaced(labels)
        for i, extent in enumerate(extents):
            objects.set_corners(i, extent)
        return objects, numbered(self.masks[i] for i in range(len(labels)))

    def _shape(self, i: int) -> tuple[Labels, Frame]:
        """Return the mask of an annotated object, 0 and 1, and the frame of the mask."""
        outline = self.annotation.outlines[i]
        if isinstance(outline, Segment):
            ids, frame_of_ids = self._segments()
            return (ids == outline.id).view(np.uint8), frame_of_ids
        if isinstance(outline, StoredMask):
            return decode_mask(outline.png, MAX_STORED_PIXELS).pixels, self.frame
        return self._drawn(i, outline or Polygons(()), outline_mask)

    def columns(self, i: int) -> Columns:
        """Return the pixels of an annotated object. The placement must be `Placement.whole`."""

        def draw(outline: Drawable, size: tuple[int, int]) -> Columns | None:
            return Columns.of(outline, size) if size == self.placement.upright else None

        outline = self.annotation.outlines[i]
        if not isinstance(outline, Segment | StoredMask):
            columns, frame = self._drawn(i, outline or Polygons(()), draw)
            if columns is not None and not self.placement.is_turned(frame):
                return columns
        return self.columns_of(*self._shape(i))

    def columns_of(self, mask: Labels, frame: Frame) -> Columns:
        return columns_of(self.placement.mask(mask, frame, 0))

    def _drawn(
        self, i: int, outline: Drawable, draw: Callable[[Drawable, tuple[int, int]], _Made]
    ) -> tuple[_Made, Frame]:
        frame: Frame | None = self.frame
        size = annotated_size(self.annotation, self.placement, self.frame)
        if isinstance(outline, Counts):
            height, width = outline.size
            size = (height, width)
            frame = self.placement.frame(size, self.spec.frames)
        elif isinstance(outline, Polygons) and self.annotation.is_relative:
            sides = np.array(size[::-1], np.float64)
            outline = Polygons(tuple(ring * sides for ring in outline.rings))
        height, width = self.placement.upright
        is_near = min(size) > 0 and size[0] * size[1] <= _MAX_COPY * height * width
        with fault_of(f"the mask of object {i + 1}"):
            if frame is None or not is_near:
                raise MaskError(f"is {size_mismatch(size, self.placement)}")
            return draw(outline, size), frame

    def _extent(self, mask: Labels, frame: Frame) -> Floats | None:
        """Return the placed box around the pixels of a mask; None if the mask is empty."""
        rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
        if not rows.size:
            return None
        box = np.array(((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1),), np.float64)
        height, width = mask.shape
        found: Floats = self.placement.boxes(box, (height, width), frame)[0]
        return found

    def _draw(self, i: int, mask: Labels, frame: Frame) -> None:
        stored = self.placement.mask(mask, frame, 0)
        self.masks[i] = encoded_png(stored) if stored.any() else b""

    def class_mask(self, dropped: Counter[str]) -> Labels:
        """Return the class of each stored pixel; where objects or files overlap, the last one.

        Unless the spec has boxes, objects without outline or known class are counted in `dropped`.
        """
        spec, labels = self.spec, self.annotation.labels
        if spec.is_panoptic:
            return self._segment_mask()
        mask = np.full(self.placement.size, spec.ignore, spec.mask_type)
        mask[self.placement.inside] = spec.background
        if self.files.data:
            self.files.paint(mask)
            return mask
        crowds = self.annotation.crowds or (False,) * len(labels)
        for i, outline in enumerate(self.annotation.outlines):
            if outline is None:
                dropped[NO_OUTLINE] += not spec.boxes
            elif 0 <= labels[i] < spec.num_classes:
                value = spec.ignore if crowds[i] else labels[i]
                mask[self.placement.mask(*self._shape(i), 0) != 0] = value
            else:
                dropped["unknown class"] += not spec.boxes
        return mask

    def _segment_mask(self) -> Labels:
        """Return the class of each stored pixel in a panoptic dataset; crowds are included."""
        annotation, spec = self.annotation, self.spec
        parts = [*zip(annotation.outlines, annotation.labels, strict=False), *annotation.areas]
        classes = {
            one.id: label
            for one, label in parts
            if isinstance(one, Segment) and 0 <= label < spec.num_classes
        }
        if not classes:
            return np.full(self.placement.size, spec.ignore, spec.mask_type)
        ids, frame = self._segments()
        return self.placement.mask(look_up_classes(ids, classes, spec)[0], frame, spec.ignore)

    def _segments(self) -> tuple[NDArray[np.uint32], Frame]:
        """Return the segment id of each pixel and the frame of the mask, decoded once."""
        if self.ids is None:
            ids, frame = self.files.ids()
            parts = [*self.annotation.outlines, *(area for area, _ in self.annotation.areas)]
            if not any((ids == one.id).any() for one in parts if isinstance(one, Segment)):
                raise MaskError("none of the listed segments is in the mask")
            self.ids = ids, frame
        return self.ids


def lost_points(annotation: Annotation, *several: PlacedPoints | None) -> dict[str, int]:
    """Return the number of keypoints that are not stored, by reason."""
    lost = Counter(annotation.lost_points)
    for one in several:
        if one is not None:
            lost.update({"outside": one.num_outside, "cut away": one.num_cut})
    return dict(sorted((+lost).items()))


def numbered(keys: Iterable[Hashable]) -> list[int]:
    """Return a number for each key, the same for equal keys."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _identity(outline: Outline) -> Hashable:
    if isinstance(outline, Polygons):
        return tuple(ring.tobytes() for ring in outline.rings)
    return outline
