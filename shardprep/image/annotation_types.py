"""Annotations: what a source says of one image beside its class. Values, no files and no pixels.

All coordinates are those of the image as it was annotated: x to the right, y down, in pixels, where
0, 0 is the outer corner of the first pixel; or shares of its width and height.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RunOrder = Literal["column", "row", "relative"]
"""Order of the pixels that pairs of run lengths count, from 1: down the columns, along the rows, or
down the columns with each start counted from the end of the run before."""
Frame = Literal["upright", "stored"]
"""The image that was annotated: turned as its EXIF orientation says, or as its bytes have it."""
IGNORE = 255
"""Value of mask pixels that belong to no class and that training leaves out, in 8 bits."""
IGNORE_16 = 65_535
"""The same in the masks of 16 bits that more than 254 classes need."""
NO_OUTLINE: Final = "no outline"
"""Reason to drop an object of which only the box is known, or whose outline has no pixel."""
NO_NUMBERS = (0, IGNORE, IGNORE_16)
"""Values of masks of numbered objects that belong to no object."""
_MAX_CLASSES_8 = 254
"""Number of classes that masks of 8 bits can hold."""


class Polygons(NamedTuple):
    """The parts of one object: the union of their inner areas, without holes."""

    rings: tuple[Floats, ...]
    """x, y of the corners of each part, float64[n, 2]."""


class Runs(NamedTuple):
    """A mask as text: pairs of start and length, as in Kaggle's tables."""

    text: str
    order: RunOrder


class Counts(NamedTuple):
    """A mask as COCO's counts, down the columns, which begin with the pixels outside."""

    counts: str | tuple[int, ...]
    """Compressed text, or numbers of pixels."""
    size: tuple[int, int]
    """Height and width."""


class Segment(NamedTuple):
    """An area of the image's mask file, whose pixels hold its id."""

    id: int
    """R + 256 G + 65536 B."""


Outline = Polygons | Runs | Counts | Segment | None
"""The shape of an object; None where only its box is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The objects of one image, in the order of the source."""

    boxes: Floats = field(default_factory=lambda: np.empty((0, 4)))
    """x and y of the first corner, x and y of the second, float64[n, 4]; NaN where an object has an
    outline alone."""
    labels: tuple[int, ...] = ()
    """Class index of each object; in a set of masks in files, of each file."""
    crowds: tuple[bool, ...] = ()
    """Whether each object is a crowd of several; () where the source does not say it."""
    outlines: tuple[Outline, ...] = ()
    """Outline of each object; () where the source has boxes alone."""
    areas: tuple[tuple[Segment, int], ...] = ()
    """Areas that are no objects, sky or grass, and the class index of each."""
    size: tuple[int, int] | None = None
    """Height and width of the annotated image in pixels; None where the source does not say it."""
    is_relative: bool = False
    """Whether coordinates are shares, 0 to 1, of width and height."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Objects that are left out already, by reason."""
    fault: str = ""
    """Reason for which the annotations of this image cannot be read; "" for none."""

    def of(self, are_kept: Sequence[bool], reason: str) -> Annotation:
        """Return the annotation of some of its objects; the others are dropped for that reason."""
        number = len(self.labels) - sum(are_kept)
        return replace(
            self,
            boxes=self.boxes[np.array(are_kept, np.bool_)],
            labels=tuple(itertools.compress(self.labels, are_kept)),
            crowds=tuple(itertools.compress(self.crowds, are_kept)),
            outlines=tuple(itertools.compress(self.outlines, are_kept)),
            dropped={**self.dropped, reason: self.dropped.get(reason, 0) + number},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel with the boxes as bytes: an array on its own takes twice as long as all else."""
        more = self.crowds, self.outlines, self.areas, self.size, self.is_relative
        boxes = np.asarray(self.boxes, np.float64).tobytes()
        return _arrived, (boxes, self.labels, *more, self.dropped, self.fault)


def _arrived(boxes: bytes, labels: tuple[int, ...], *more: Any) -> Annotation:
    """Return an annotation that has travelled."""
    crowds, outlines, areas, size, is_relative, dropped, fault = more
    return Annotation(
        boxes=np.frombuffer(boxes).reshape(-1, 4),
        labels=labels,
        crowds=crowds,
        outlines=outlines,
        areas=areas,
        size=size,
        is_relative=is_relative,
        dropped=dropped,
        fault=fault,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationSpec:
    """The form in which annotations are stored."""

    boxes: bool = False
    masks: Literal["none", "classes", "instances"] = "none"
    """Nothing, one mask of class indices an image, or one mask of 0 and 1 an object."""
    crowds: bool = False
    num_classes: int = 1
    values: Mapping[int, int] | Mapping[tuple[int, int, int], int] | None = None
    """Value or RGB colour of a pixel in a mask file → class index or `ignore`; None: values are
    class indices or `ignore` already. Other values are a fault of the mask."""
    is_binary: bool = False
    """Mask files hold two values, of which what is above half is the object."""
    is_panoptic: bool = False
    """The mask file of an image holds the ids of segments: of its objects and areas."""
    ids_are_values: bool = False
    """These ids are numbers of objects: values of pixels, but for `NO_NUMBERS`."""
    background: int = 0
    """Class index where no object is; `ignore` where no class means that. Padding is ignored."""
    min_visible: float = 0.1
    """Share of an object's area inside the stored image below which it is dropped."""
    frame: Frame | None = None
    """Frame of all annotations; None to tell it by their size, upright where that is no help."""

    @property
    def has_objects(self) -> bool:
        """Whether objects are stored one by one, with their boxes."""
        return self.boxes or self.masks == "instances"

    @property
    def is_wide(self) -> bool:
        """Whether masks of classes have 16 bits."""
        return self.num_classes > _MAX_CLASSES_8

    @property
    def ignore(self) -> int:
        """Value of mask pixels that belong to no class: `IGNORE` or `IGNORE_16`."""
        return IGNORE_16 if self.is_wide else IGNORE
