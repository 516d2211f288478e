"""Objects of all images in flat arrays, a row each, as the formats collect them.

A million boxes take 50 MB here; as Python's lists and dicts they would take ten times as much.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from shardprep.catalog.labels.targets import class_names
from shardprep.image.annotation_types import Annotation, Floats, Outline, Segment

UNKNOWN_CLASS = "unknown class"
MALFORMED = "malformed"
"""Reasons for which objects are left out as they are read."""
MOST_SIDE = 1 << 31
"""Pixels that no side of an image has."""
NO_OBJECT = -2
"""Label of a class of which there are no objects: sky, grass."""
NO_BOX = (np.nan,) * 4
"""Box of an object that has an outline alone."""


class ObjectTable:
    """The objects of a source, in the order in which they are read."""

    def __init__(self, num_images: int) -> None:
        self.classes: dict[str, int] = {}
        """Number of each class name that an object has, in the order of reading."""
        self.has_crowds = False
        self.is_relative = False
        self._num_images = num_images
        self._boxes = array("d")
        self._images = array("q")
        self._classes = array("q")
        self._crowds = bytearray()
        self._outlines: dict[int, Outline] = {}
        self._listed: set[int] = set()
        self._sizes: dict[int, tuple[int, int]] = {}
        self._dropped: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._faults: dict[int, str] = {}

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._images)

    def list_image(self, image: int, size: tuple[int, int] | None = None) -> None:
        """Note that an image is annotated, with or without objects.

        `size` is height and width as stated; one that no image has is not stated.
        """
        self._listed.add(image)
        if size is not None and all(0 < side < MOST_SIDE for side in size):
            self._sizes[image] = size

    def add(
        self,
        image: int,
        box: Sequence[float],
        number: int,
        *,
        is_crowd: bool = False,
        outline: Outline = None,
    ) -> None:
        """Add an object of the class of that number.

        Raises:
            TypeError, ValueError, OverflowError: the box is not four numbers; nothing is added.

        """
        first, second, third, fourth = box
        self._boxes.fromlist([first, second, third, fourth])
        self._images.append(image)
        self._classes.append(number)
        self._crowds.append(is_crowd)
        if outline is not None:
            self._outlines[len(self._images) - 1] = outline

    def extend(
        self,
        images: list[int],
        boxes: Floats,
        numbers: list[int],
        crowds: Iterable[bool] = (),
    ) -> None:
        """Add objects without outlines, with boxes float64[n, 4]; without `crowds` none is one."""
        self._boxes.frombytes(boxes.tobytes())
        self._images.fromlist(images)
        self._classes.fromlist(numbers)
        self._crowds.extend(crowds or bytes(len(images)))

    def number_of(self, name: str) -> int:
        """Return the number of a class."""
        return self.classes.setdefault(name, len(self.classes))

    def numbers_of(self, names: Sequence[str]) -> list[int]:
        """Return the number of the class of each object."""
        numbers = {name: self.number_of(name) for name in dict.fromkeys(names)}
        return [numbers[name] for name in names]

    def drop(self, image: int, reason: str, count: int = 1) -> None:
        """Count objects of an image that are left out."""
        counts = self._dropped[image]
        counts[reason] = counts.get(reason, 0) + count

    def fault(self, image: int, reason: str) -> None:
        """Note that the annotations of an image cannot be read."""
        self._listed.add(image)
        self._faults.setdefault(image, reason)

    def renumber(self, start: int, images: Sequence[int], classes: Sequence[int]) -> None:
        """Replace numbers in the rows from `start` on by what stands at their place in two lists.

        An image of −1 is not in the source; a class of −1 is unknown.
        """
        for column, table in ((self._images, images), (self._classes, classes)):
            numbers = np.frombuffer(column, np.int64)[start:]
            if numbers.size:
                numbers[:] = np.asarray(table, np.int64)[numbers]

    def images_from(self, start: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the images of the rows from `start` on, int64[n]."""
        return np.frombuffer(self._images, np.int64)[start:].copy()

    def natural_names(self) -> tuple[tuple[str, ...], dict[str, int]]:
        """Return the names of all classes in natural order, and the label of each name read."""
        whole = class_names(self.classes.keys() - {""})
        place = {name: i for i, name in enumerate(dict.fromkeys(whole.values()))}
        return tuple(place), {raw: place[name] for raw, name in whole.items()}

    def annotations(
        self, labels_of: Mapping[str, int], areas_of: Mapping[str, int] | None = None
    ) -> list[Annotation | None]:
        """Return the annotation of each image, with the label of each class name.

        An object of a class without a label is dropped and counted, one of the label `NO_OBJECT`
        is left out; or is an area if its class has a label in `areas_of`.
        """
        lookup = np.array([*(labels_of.get(name, -1) for name in self.classes), -1], np.int64)
        labels = lookup[np.frombuffer(self._classes, np.int64)]
        images = np.frombuffer(self._images, np.int64)
        for image in images[(labels == -1) & (images >= 0)].tolist():
            self.drop(image, UNKNOWN_CLASS)
        kept = np.flatnonzero((labels >= 0) & (images >= 0))
        order = kept[np.argsort(images[kept], kind="stable")]
        boxes = np.frombuffer(self._boxes, np.float64).reshape(-1, 4)[order]
        boxes.flags.writeable = False
        starts = np.searchsorted(images[order], np.arange(self._num_images + 1)).tolist()
        areas = self._areas(areas_of) if areas_of else {}
        columns = _Columns(order, labels[order], self._crowds, self._outlines)
        found: list[Annotation | None] = [None] * self._num_images
        listed = self._listed.union(images[order].tolist(), self._dropped)
        for image in listed:
            start, stop = starts[image], starts[image + 1]
            found[image] = Annotation(
                boxes=boxes[start:stop],
                labels=columns.labels(start, stop),
                crowds=columns.crowds(start, stop) if self.has_crowds else (),
                outlines=columns.outlines(start, stop),
                areas=tuple(areas.get(image, ())),
                size=self._sizes.get(image),
                is_relative=self.is_relative,
                dropped=self._dropped.get(image, _NONE),
                fault=self._faults.get(image, ""),
            )
        return found

    def _areas(self, labels_of: Mapping[str, int]) -> dict[int, list[tuple[Segment, int]]]:
        """Return the segments of classes that have no objects, and their labels, by image."""
        lookup = np.array([*(labels_of.get(name, -1) for name in self.classes), -1], np.int64)
        labels = lookup[np.frombuffer(self._classes, np.int64)]
        images = np.frombuffer(self._images, np.int64)
        found: defaultdict[int, list[tuple[Segment, int]]] = defaultdict(list)
        for row in np.flatnonzero((labels >= 0) & (images >= 0)).tolist():
            outline = self._outlines.get(row)
            if isinstance(outline, Segment):
                found[int(images[row])].append((outline, int(labels[row])))
        return found


_NONE: Mapping[str, int] = {}


class _Columns:
    """The columns of a table beside the boxes, by image."""

    def __init__(
        self,
        order: np.ndarray[tuple[int], np.dtype[np.int64]],
        labels: np.ndarray[tuple[int], np.dtype[np.int64]],
        crowds: bytearray,
        outlines: Mapping[int, Outline],
    ) -> None:
        self._order = order
        self._labels = labels
        self._crowds = np.frombuffer(crowds, np.bool_)[order]
        self._outlines = outlines

    def labels(self, start: int, stop: int) -> tuple[int, ...]:
        return tuple(self._labels[start:stop].tolist())

    def crowds(self, start: int, stop: int) -> tuple[bool, ...]:
        return tuple(self._crowds[start:stop].tolist())

    def outlines(self, start: int, stop: int) -> tuple[Outline, ...]:
        if not self._outlines:
            return ()
        return tuple(self._outlines.get(row) for row in self._order[start:stop].tolist())
