"""Objects: the annotation and the masks of one image as they are stored beside it.

Boxes and masks go through the placement of the pixels. A box that cannot be stored is dropped and
counted by reason; a mask that cannot be read rejects the image. Masks are drawn one at a time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardprep.image.annotation_types import NO_NUMBERS, NO_OUTLINE, Counts, Polygons, Segment
from shardprep.image.boxes import Boxes, annotated_size, plain_boxes, size_of_boxes
from shardprep.image.masks import (
    MaskError,
    MaskFiles,
    encode_mask,
    fault_of,
    segment_classes,
    size_mismatch,
    value_counts,
)
from shardprep.image.process import Rejection
from shardprep.image.rasterize import outline_mask

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardprep.image.annotation_types import Annotation, AnnotationSpec, Frame, Outline
    from shardprep.image.placement import Labels, Placement

_NONE = np.empty((0, 4), np.float32)
_MAX_COPY = 16
"""Pixels of the annotated copy of an image for each of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedObjects:
    """The objects of an image as its record holds them: lists of equal length, in their order."""

    boxes: NDArray[np.float32] = field(default_factory=lambda: _NONE)
    """float32[n, 4]: ymin, xmin, ymax, xmax, shares of the stored image; 0 ≤ min < max ≤ 1."""
    labels: tuple[int, ...] = ()
    """Class index of each object."""
    crowds: tuple[bool, ...] = ()
    """Whether each is a crowd; () unless the spec has crowds."""
    masks: tuple[bytes, ...] = ()
    """A grey PNG of 0 and 1 for each object, of the stored size; () unless the spec has them."""
    segmentation_mask: bytes = b""
    """Grey PNG of class indices, of the stored size; b"" unless the spec has one."""
    num_clipped: int = 0
    """Stored boxes that passed the edge of the image by more than rounding does."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Objects that are not stored, by reason, those of the annotation included."""
    pixels: Mapping[int, int] = field(default_factory=dict)
    """Pixels of the segmentation mask by class index, without ignored ones."""
    num_ignored: int = 0
    """Pixels of the segmentation mask that belong to no class, padding included."""


def place_objects(
    annotation: Annotation, mask_files: Sequence[bytes], placement: Placement, spec: AnnotationSpec
) -> PlacedObjects | Rejection:
    """Return the objects of an image as they are stored, or the reason to leave the image out.

    Mask files are the objects where masks of objects are stored, else layers of the class mask, of
    which the later one wins; `annotation.labels` are theirs unless the annotation has boxes. That
    of a panoptic set holds the segments of the annotation. The rejection does not name the
    original. Never raises, whatever annotation and files hold.
    """
    if annotation.fault:
        return Rejection("bad_annotation", annotation.fault)
    frame = placement.frame(annotation.size, spec.frame)
    if frame is None:
        found = size_mismatch(annotation.size or (0, 0), placement)
        return Rejection("bad_annotation", f"the annotation was made for an image {found}")
    has_layers = bool(mask_files) and not spec.is_panoptic
    if spec.masks == "instances" and has_layers and len(annotation.boxes):
        reason = f"{len(mask_files)} masks beside {len(annotation.boxes)} boxes of unknown order"
        return Rejection("bad_annotation", reason)
    labels = () if len(annotation.boxes) else annotation.labels
    files = MaskFiles(mask_files, labels, placement, spec)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is dropped
            plain = _plain(annotation, placement, spec, frame)
            return plain or _Scene(annotation, files, placement, spec, frame).place()
    except MaskError as error:
        return Rejection("bad_mask", str(error))
    except MemoryError:
        return Rejection("crashed", "its masks need more memory than a worker may use")


def _plain(
    annotation: Annotation, placement: Placement, spec: AnnotationSpec, frame: Frame
) -> PlacedObjects | None:
    """Return the objects of an image that has boxes alone, if all are stored as they are."""
    boxes = plain_boxes(annotation, frame, placement, spec)
    if boxes is None:
        return None
    crowds = _crowds(annotation, len(boxes)) if spec.crowds else ()
    dropped = annotation.dropped
    return PlacedObjects(boxes=boxes, labels=annotation.labels, crowds=crowds, dropped=dropped)


@dataclass(slots=True)
class _Scene:
    """One image with all that is known of it, and what is drawn of it so far."""

    annotation: Annotation
    files: MaskFiles
    placement: Placement
    spec: AnnotationSpec
    frame: Frame
    """Frame of the boxes, and of outlines without a size of their own."""
    masks: dict[int, bytes] = field(default_factory=dict)
    """Stored mask by place of the object in the list; b"" where no pixel is left of it."""
    ids: tuple[NDArray[np.uint32], Frame] | None = None
    """Decoded mask file of a panoptic set, and its frame; None until it is needed."""

    def place(self) -> PlacedObjects:
        spec = self.spec
        dropped: Counter[str] = Counter()
        if self.annotation.dropped:
            dropped.update(self.annotation.dropped)
        mask, pixels = b"", {}
        if spec.masks == "classes":
            classes = self._class_mask(dropped)
            counts = value_counts(classes)
            pixels = {label: int(counts[label]) for label in np.flatnonzero(counts).tolist()}
            mask = encode_mask(classes)
        has_masks = spec.masks == "instances"
        objects, shares = (
            self._objects() if spec.boxes or has_masks else (Boxes.unplaced(()), _NONE)
        )
        kept = objects.kept
        labels, crowds = objects.labels, _crowds(self.annotation, len(kept))
        if np.count_nonzero(kept) < len(kept):
            dropped.update(objects.dropped)
            shares, labels = shares[kept], labels[kept]
            crowds = tuple(itertools.compress(crowds, kept.tolist()))
        if spec.ids_are_values and self.files.data:
            dropped.update(self._unlisted())
        return PlacedObjects(
            boxes=shares,
            labels=tuple(labels.tolist()),
            crowds=crowds if spec.crowds else (),
            masks=tuple(self.masks[i] for i in np.flatnonzero(kept).tolist()) if has_masks else (),
            segmentation_mask=mask,
            num_clipped=int(np.count_nonzero(objects.is_clipped & kept)),
            dropped=dict(dropped),
            num_ignored=pixels.pop(spec.ignore, 0),
            pixels=pixels,
        )

    def _objects(self) -> tuple[Boxes, NDArray[np.float32]]:
        """Return all objects and their stored boxes, with the masks of those kept drawn."""
        has_masks = self.spec.masks == "instances"
        if has_masks and self.files.data and not self.spec.is_panoptic:
            objects, shapes = self._of_files()
        else:
            objects = self._of_annotation()
            shapes = _numbered(map(_identity, self.annotation.outlines))
        objects.drop_unknown(self.spec.num_classes)
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

    def _unlisted(self) -> dict[str, int]:
        """Return the count of objects in a mask of numbers that the annotation says nothing of."""
        ids, _ = self.ids or self.files.ids()
        number = sum(one not in NO_NUMBERS for one in np.unique(ids).tolist())
        listed = len(self.annotation.labels) + sum(self.annotation.dropped.values())
        return {"unknown class": number - listed} if number > listed else {}

    def _of_annotation(self) -> Boxes:
        """Return the annotated objects; where only an outline is known, the box of its mask."""
        annotation, has_masks = self.annotation, self.spec.masks == "instances"
        objects = Boxes.unplaced(annotation.labels[: len(annotation.boxes)])
        no_box: list[int] = []
        if has_masks and not annotation.outlines:
            objects.drop(np.ones(len(objects.labels), np.bool_), NO_OUTLINE)
        if annotation.outlines:
            has_outline = np.array([o is not None for o in annotation.outlines], np.bool_)
            if has_masks:
                objects.drop(~has_outline, NO_OUTLINE)
            is_open = np.isnan(annotation.boxes).all(axis=1) & has_outline
            no_box = np.flatnonzero(is_open).tolist()
        size = size_of_boxes(annotation, self.placement, self.frame)
        objects.place(annotation.boxes, size, self.frame, self.placement)
        for i in no_box:
            objects.reasons[i] = 0
            mask, frame = self._shape(i)
            self._measure(objects, i, mask, frame)
            if has_masks:
                self._draw(i, mask, frame)
        return objects

    def _of_files(self) -> tuple[Boxes, list[int]]:
        """Return the objects of mask files, and a number for each mask that its equals share."""
        labels: list[int] = []
        boxes: list[Boxes] = []
        for label, mask, frame in self.files.shapes():
            one = Boxes.unplaced((label,))
            self._measure(one, 0, mask, frame)
            self._draw(len(boxes), mask, frame)
            boxes.append(one)
            labels.append(label)
        objects = Boxes.unplaced(labels)
        for i, one in enumerate(boxes):
            objects.corners[i], objects.reasons[i] = one.corners[0], one.reasons[0]
        return objects, _numbered(self.masks[i] for i in range(len(boxes)))

    def _shape(self, i: int) -> tuple[Labels, Frame]:
        """Return the mask of an object that has an outline, 0 and 1, and its frame."""
        outline = self.annotation.outlines[i] or Polygons(())
        if isinstance(outline, Segment):
            ids, frame_of_ids = self._segments()
            return (ids == outline.id).view(np.uint8), frame_of_ids
        frame: Frame | None = self.frame
        size = annotated_size(self.annotation, self.placement, self.frame)
        if isinstance(outline, Counts):
            height, width = outline.size
            size = (height, width)
            frame = self.placement.frame(size, self.spec.frame)
        elif isinstance(outline, Polygons) and self.annotation.is_relative:
            sides = np.array(size[::-1], np.float64)
            outline = Polygons(tuple(ring * sides for ring in outline.rings))
        height, width = self.placement.upright
        is_near = min(size) > 0 and size[0] * size[1] <= _MAX_COPY * height * width
        with fault_of(f"the mask of object {i + 1}"):
            if frame is None or not is_near:
                raise MaskError(f"is {size_mismatch(size, self.placement)}")
            return outline_mask(outline, size), frame

    def _measure(self, objects: Boxes, i: int, mask: Labels, frame: Frame) -> None:
        """Set the box of an object to that of its mask, outer edges of pixels."""
        rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
        if not rows.size:
            objects.drop(np.arange(len(objects.labels)) == i, "zero size")
            return
        box = np.array(((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1),), np.float64)
        height, width = mask.shape
        objects.corners[i] = self.placement.boxes(box, (height, width), frame)[0]

    def _draw(self, i: int, mask: Labels, frame: Frame) -> None:
        """Keep the stored mask of an object."""
        stored = self.placement.mask(mask, frame, 0)
        self.masks[i] = encode_mask(stored) if stored.any() else b""

    def _class_mask(self, dropped: Counter[str]) -> Labels:
        """Return the class of each stored pixel; of objects and files, later ones win.

        Padding beside the image is ignored, whatever masks are made of.
        """
        spec, labels = self.spec, self.annotation.labels
        dtype = np.uint16 if spec.is_wide else np.uint8
        if spec.is_panoptic:
            return self._segment_mask()
        mask = np.full(self.placement.size, spec.ignore, dtype)
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
        """Return the class of each stored pixel of a panoptic set; crowds are of their class."""
        annotation, spec = self.annotation, self.spec
        parts = [*zip(annotation.outlines, annotation.labels, strict=False), *annotation.areas]
        classes = {
            one.id: label
            for one, label in parts
            if isinstance(one, Segment) and 0 <= label < spec.num_classes
        }
        if not classes:
            dtype = np.uint16 if spec.is_wide else np.uint8
            return np.full(self.placement.size, spec.ignore, dtype)
        ids, frame = self._segments()
        return self.placement.mask(segment_classes(ids, classes, spec), frame, spec.ignore)

    def _segments(self) -> tuple[NDArray[np.uint32], Frame]:
        """Return the id of the segment of each pixel, decoded once, and their frame."""
        if self.ids is None:
            ids, frame = self.files.ids()
            parts = [*self.annotation.outlines, *(area for area, _ in self.annotation.areas)]
            if not any((ids == one.id).any() for one in parts if isinstance(one, Segment)):
                raise MaskError("the mask has none of the segments that are listed")
            self.ids = ids, frame
        return self.ids


def _crowds(annotation: Annotation, number: int) -> tuple[bool, ...]:
    """Return whether each object is a crowd, none where the source does not say it of each."""
    crowds = annotation.crowds
    return crowds if len(crowds) == number else (False,) * number


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    """Return a number for each key that its equals share."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _identity(outline: Outline) -> Hashable:
    if isinstance(outline, Polygons):
        return tuple(ring.tobytes() for ring in outline.rings)
    return outline
