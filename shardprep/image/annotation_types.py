"""Types of the annotations of one image, as the source gives them, and options for storing them.

Coordinates refer to the annotated image: x to the right, y down, in pixels from the outer
corner of the first pixel, or as shares of width and height.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RunOrder = Literal["column", "row", "relative"]
"""Pixel order of run lengths. `column` (down) and `row` (across) count pixels from 1. `relative`
goes down the columns, and counts each start from the end of the previous run (0 for the first)."""
Frame = Literal["upright", "stored"]
"""Orientation of the annotated image: turned upright by its EXIF tag, or as stored."""
FRAMES: Final[tuple[Frame, ...]] = ("upright", "stored")
IS_CROWD: Final = "is_crowd"
"""Attribute of an object: 1 for a crowd (many objects under one box), otherwise 0."""
IGNORE = 255
"""Value of 8-bit mask pixels without a class; training ignores them."""
IGNORE_16 = 65_535
"""`IGNORE` for 16-bit masks, which are used for more than 254 classes."""
NO_OUTLINE: Final = "no outline"
"""Reason for dropping an object that has only a box, or an outline without a pixel in it."""
NO_NUMBERS = (0, IGNORE, IGNORE_16)
"""Values that mean "no object" in masks of numbered objects."""


class Polygons(NamedTuple):
    """An object as the union of the areas of polygons, without holes."""

    rings: tuple[Floats, ...]
    """x, y of the corners of each part, float64[n, 2]."""


class Runs(NamedTuple):
    """A mask as text: pairs of start and length, as in Kaggle's CSV files."""

    text: str
    order: RunOrder


class Counts(NamedTuple):
    """A mask as COCO's run lengths down the columns. The first run is outside the object."""

    counts: str | tuple[int, ...]
    """COCO's compressed text, or the numbers themselves."""
    size: tuple[int, int]
    """Height and width in pixels."""


class Segment(NamedTuple):
    """An object or area of a panoptic mask file, identified by the value of its pixels."""

    id: int
    """R + 256 G + 65536 B of its pixels, or the pixel value in a mask without colours."""


class StoredMask(NamedTuple):
    """An object as the mask of 0 and 1 that a record stores."""

    png: bytes


Outline = Polygons | Runs | Counts | Segment | StoredMask | None
"""Shape of an object; None if only its box is known."""


class Skeleton(NamedTuple):
    """Names, connections and mirror images of the keypoints of every object, or every image."""

    names: tuple[str, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    """Pairs of keypoints to connect in drawings, by index."""
    mirrored: tuple[int, ...] = ()
    """For each keypoint, the index of its counterpart in a mirrored image; () without pairs."""


Points = NDArray[np.float32]
"""x, y and visibility of keypoints, float32[…, 3]. Visibility is 0 (not labelled), 1 (labelled but
hidden) or 2 (visible)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The objects, in source order, and the areas and keypoints of one image."""

    boxes: Floats = field(default_factory=lambda: np.empty((0, 4)))
    """float64[n, 4]: left, top, right, bottom; NaN for an object that has only an outline."""
    labels: tuple[int, ...] = ()
    """Class index of each object, or of each mask file in an annotation without boxes."""
    attributes: Mapping[str, Floats] = field(default_factory=dict)
    """Name → further number or numbers of each object, float64[n, …]."""
    outlines: tuple[Outline, ...] = ()
    """Outline of each object; () if the source has only boxes."""
    areas: tuple[tuple[Segment, int], ...] = ()
    """Areas that are not objects, such as sky or grass, with their class index."""
    keypoints: Points | None = None
    """float32[n, K, 3]: keypoints of each object, in the unit of the boxes; None if unknown."""
    points: Points | None = None
    """float32[K, 3]: keypoints of the image; None if the image has none."""
    has_relative_points: bool = False
    """Whether `points` are shares of width and height, 0 to 1."""
    lost_points: Mapping[str, int] = field(default_factory=dict)
    """Number of keypoints that were already left out, by reason."""
    size: tuple[int, int] | None = None
    """Height and width in pixels of the annotated image; None if the source does not say."""
    is_relative: bool = False
    """Whether coordinates are shares of width and height, 0 to 1."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of objects that were already dropped, by reason."""
    fault: str = ""
    """Why the annotations of this image cannot be read; "" if they can."""
    are_distinct: bool = False
    """Whether equal objects are all stored, because different objects may be equal in a tile."""

    @property
    def crowds(self) -> tuple[bool, ...]:
        """Whether each object is a crowd; () if the source does not say."""
        return tuple((self.attributes.get(IS_CROWD, np.empty(0)) != 0).tolist())

    def of(self, are_kept: Sequence[bool], reason: str) -> Annotation:
        """Return the annotation of the flagged objects; count others as dropped for `reason`."""
        number, kept = len(self.labels) - sum(are_kept), np.array(are_kept, np.bool_)
        return replace(
            self,
            boxes=self.boxes[kept],
            labels=tuple(itertools.compress(self.labels, are_kept)),
            attributes={name: values[kept] for name, values in self.attributes.items()},
            outlines=tuple(itertools.compress(self.outlines, are_kept)),
            keypoints=None if self.keypoints is None else self.keypoints[kept],
            dropped={**self.dropped, reason: self.dropped.get(reason, 0) + number},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationSpec:
    """How the annotations of all images are read and stored."""

    boxes: bool = False
    masks: Literal["none", "classes", "instances"] = "none"
    """No masks, one mask of class indices per image, or one mask of 0 and 1 per object."""
    attributes: tuple[str, ...] = ()
    """Names of the stored `Annotation.attributes`; an object without a value gets 0."""
    keypoints: Skeleton | None = None
    """Keypoints of each object; None if they are not stored."""
    points: Skeleton | None = None
    """Keypoints of each image; None if they are not stored."""
    num_classes: int = 1
    values: Mapping[int, int] | Mapping[tuple[int, int, int], int] | None = None
    """Pixel value or RGB colour in a mask file → class index or `ignore`. None if the values are
    class indices or `ignore` already. A mask with any other value is invalid."""
    is_binary: bool = False
    """Whether mask files have two values, the higher one for the object."""
    is_panoptic: bool = False
    """Whether the mask file of an image holds segment ids of objects and areas."""
    ids_are_values: bool = False
    """Whether the segment ids are object numbers; `NO_NUMBERS` are not objects."""
    background: int = 0
    """Class index of pixels outside all objects, or `ignore`. Padding always gets `ignore`."""
    min_visible: float = 0.1
    """An object is dropped if a crop leaves less than this share of its box's area."""
    frames: tuple[Frame, ...] = FRAMES
    """Possible frames of annotations; the first one is used if the annotated size fits several."""

    @property
    def has_points(self) -> bool:
        return self.keypoints is not None or self.points is not None

    @property
    def has_objects(self) -> bool:
        """Whether records have lists of objects, with boxes, masks or both."""
        return self.boxes or self.masks == "instances"

    @property
    def ignore(self) -> int:
        """Value of mask pixels without a class: `IGNORE` or `IGNORE_16`."""
        return IGNORE_16 if self.num_classes > 254 else IGNORE

    @property
    def mask_type(self) -> type[np.uint8 | np.uint16]:
        return np.uint8 if self.ignore == IGNORE else np.uint16
