"""Objects of all images: the table that formats fill, and annotations made from the table.

Each object is a row of flat arrays. A million boxes take 50 MB, lists and dicts ten times as much.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.targets import class_names
from shardprep.dataset.manifest import ELSEWHERE, LEFT_OUT
from shardprep.dataset.schema import MOST_POINTS
from shardprep.errors import OptionName, SourceError, shown, some_of
from shardprep.image.annotation_types import (
    IS_CROWD,
    Annotation,
    Floats,
    Outline,
    Points,
    Segment,
    Skeleton,
)
from shardprep.image.boxes import united
from shardprep.recipe.object_rules import BoxColumns

Ints = NDArray[np.int64]
_NONE: Mapping[str, Any] = {}

ONE_CLASS = "object"
UNKNOWN_CLASS = "unknown class"
MALFORMED = "malformed"
NOT_ASKED_FOR = "not among --classes"
WRONG_NUMBER = "wrong number of keypoints"
"""Reasons to drop an object."""
NO_FAULTS = (NOT_ASKED_FOR, LEFT_OUT, ELSEWHERE)
"""Reasons for dropping objects that do not count against `--max-dropped`."""
MOST_SIDE = 1 << 31
NO_OBJECT = -2
"""Label of a class that has only areas and no objects: sky, grass."""
NO_BOX = (np.nan,) * 4
"""Box of an object that only has an outline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The annotations of all images and facts about them, as read from documents of one format."""

    annotations: list[Annotation | None]
    names: tuple[str, ...]
    how: str
    documents: tuple[str, ...] = ()
    without_image: Mapping[str, int] = field(default_factory=dict)
    """Name of each annotated image that the source lacks → number of its objects."""
    num_elsewhere: int = 0
    """Number of objects in documents whose images are all missing; `without_image` omits them."""
    splits: list[str | None] | None = None
    """Split of each image, if the format has splits."""
    are_listed: bool = False
    """Whether `splits` come from lists, so that an image on no list has no split."""
    notation: BoxColumns | None = None
    """Columns and form of the four numbers of a box; None if shapes are not four numbers."""
    is_table: bool = False
    """Whether boxes are columns of a table, so that `--boxes` can state their form."""
    is_complete: bool = False
    """Whether an unlisted image has no objects, as in YOLO."""
    has_rows: bool = False
    """Whether a table has a row for each image, so that a row without boxes is intended."""
    segments: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Position of an image → key of its panoptic document and name of its mask file."""
    findings: list[str] = field(default_factory=list)
    examples: Mapping[str, str] = field(default_factory=dict)
    """Reason to drop objects → the first such line of a document, if the reader names it."""
    skeleton: Skeleton | None = None
    """Keypoints of all objects; None if keypoints are not read."""


def stated_size(height: Any, width: Any) -> tuple[int, int] | None:
    """Return height and width of an image from numbers or texts; None unless 1 to `MOST_SIDE`."""
    try:
        sides = float(height), float(width)
    except (TypeError, ValueError, OverflowError):
        return None
    return (int(sides[0]), int(sides[1])) if all(1 <= x < MOST_SIDE for x in sides) else None


class ObjectTable:
    """The objects of a source in reading order, and the annotated images that the source lacks."""

    def __init__(self, num_images: int, *, outlines: bool = True) -> None:
        self._has_outlines = outlines
        self.classes: dict[str, int] = {}
        """Class name → number of the class, in reading order."""
        self.is_relative = False
        self.missing: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        """See `Found.examples`."""
        self.listed: set[int] = set()
        self._num_elsewhere = 0
        self._num_images = num_images
        self._boxes = array("d")
        self._images = array("q")
        self._classes = array("q")
        self._attributes: dict[str, array[float]] = {}
        self._outlines: dict[int, Outline] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._dropped: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._faults: dict[int, str] = {}
        self._points = array("f")
        self._points_of: dict[int, tuple[int, int]] = {}
        """Row of an object → start and end of its keypoints in `_points`."""
        self._lost_points: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self._images)

    def list_image(self, image: int, size: tuple[int, int] | None = None) -> None:
        """Record an image as annotated; `size` is a `stated_size`."""
        self.listed.add(image)
        if size is not None:
            self._sizes[image] = size

    def add(
        self,
        image: int,
        box: Sequence[float],
        number: int,
        attributes: Mapping[str, float] = _NONE,
        *,
        outline: Outline = None,
        keypoints: Sequence[float] = (),
    ) -> None:
        """Add an object. `box` is left, top, right, bottom; `number` is the number of its class.

        `keypoints` has x, y, visibility of each keypoint. TypeError, ValueError or OverflowError if
        a value is malformed.
        """
        first, second, third, fourth = box
        if len(keypoints) % 3 or not {0, 1, 2}.issuperset(keypoints[2::3]):
            raise ValueError("not x, y and 0, 1 or 2 for each keypoint")
        points = array("f", keypoints)
        self._boxes.fromlist([first, second, third, fourth])
        self._images.append(image)
        self._classes.append(number)
        for name, value in attributes.items():
            self._padded(name)[-1] = value
        if outline is not None and self._has_outlines:
            self._outlines[len(self._images) - 1] = outline
        if points:
            self.add_points(len(self._images) - 1, points)

    def add_points(self, row: int, values: Sequence[float]) -> None:
        """Add the keypoints of object `row`: x, y and visibility (0, 1, 2) of each keypoint."""
        self._points_of[row] = len(self._points), len(self._points) + len(values)
        self._points.extend(values)

    def add_outline(self, row: int, outline: Outline) -> None:
        self._outlines[row] = outline

    def lose_points(self, image: int, reason: str) -> None:
        self._lost_points[image][reason] += 1

    def extend(
        self,
        images: list[int],
        boxes: Floats,
        numbers: list[int],
        attributes: Mapping[str, Sequence[float]] = _NONE,
    ) -> None:
        """Add objects without outlines; boxes are left, top, right, bottom, float64[n, 4]."""
        self._boxes.frombytes(boxes.tobytes())
        self._images.fromlist(images)
        self._classes.fromlist(numbers)
        for name, values in attributes.items():
            self._padded(name)[len(self) - len(images) :] = array("d", values)

    def _padded(self, name: str) -> array[float]:
        """Return the values of an attribute for all objects; 0 for objects without it."""
        values = self._attributes.setdefault(name, array("d"))
        values.frombytes(bytes(values.itemsize * (len(self) - len(values))))
        return values

    def number_of(self, name: str) -> int:
        return self.classes.setdefault(name, len(self.classes))

    def numbers_of(self, names: Sequence[str]) -> list[int]:
        numbers = {name: self.number_of(name) for name in dict.fromkeys(names)}
        return [numbers[name] for name in names]

    def drop(self, image: int, reason: str, count: int = 1) -> None:
        counts = self._dropped[image]
        counts[reason] = counts.get(reason, 0) + count

    @staticmethod
    def unread(kind: str) -> str:
        """Return the reason for dropping a shape that has no area or is of an unknown kind."""
        return f"shape {shown(kind)!r}"

    def fault(self, image: int, reason: str) -> None:
        self.listed.add(image)
        self._faults.setdefault(image, reason)

    def miss(self, counts: Mapping[str, int], *, is_elsewhere: bool) -> None:
        """Count objects of missing images; `is_elsewhere` if their document has no other images."""
        if is_elsewhere:
            self._num_elsewhere += sum(counts.values())
            counts = dict.fromkeys(counts, 0)
        self.missing.update(counts)

    def check_listed(self, documents: Sequence[str], key: str) -> None:
        """Raise SourceError if no image of `documents` is listed; `key` is an example of a key."""
        if not self.listed:
            missing = next(iter(self.missing), "")
            such = f", such as {shown(missing)}," if missing else ""
            what = f"none of its images{such} is in the source"
            raise SourceError(some_of(documents), what, f"write file names such as {shown(key)}")

    def renumber(self, start: int, images: Sequence[int], classes: Sequence[int]) -> None:
        """Replace image i by `images[i]` and class i by `classes[i]`, in rows from `start` on."""
        for column, table in ((self._images, images), (self._classes, classes)):
            numbers = np.frombuffer(column, np.int64)[start:]
            if numbers.size:
                numbers[:] = np.asarray(table, np.int64)[numbers]

    def images_from(self, start: int) -> Ints:
        return np.frombuffer(self._images, np.int64)[start:].copy()

    @property
    def num_crowds(self) -> tuple[int, int]:
        """Number of crowds, and of all objects, in images that the source has."""
        are_here = np.frombuffer(self._images, np.int64) >= 0
        if IS_CROWD not in self._attributes:
            return 0, int(np.count_nonzero(are_here))
        crowds = np.frombuffer(self._padded(IS_CROWD))[are_here]
        return int(np.count_nonzero(crowds)), len(crowds)

    def found(
        self,
        how: str,
        documents: Iterable[str],
        classes: tuple[tuple[str, ...], Mapping[str, int]] | None = None,
        areas_of: Mapping[str, int] | None = None,
        skeletons: Mapping[str, Skeleton] | None = None,
        **more: Any,
    ) -> Found:
        """Return the annotations of all images.

        `classes` is a pair: all class names, and a map from class names as read to labels. None
        means all classes in natural order. An object whose class has no label is dropped and
        counted. An object with the label `NO_OBJECT` is left out, or becomes an area if its class
        has a label in `areas_of`. `skeletons` maps class names to skeletons; keypoints of other
        classes are called by numbers. None means no keypoints; too many raise SourceError.
        """
        names, labels_of = self._natural_names() if classes is None else classes
        labels, skeleton, points = self._labels(labels_of), None, None
        if skeletons is not None:
            skeletons = {
                name: self._skeleton_of(name, skeletons)
                for name in self.classes
                if labels_of.get(name, -1) >= 0
            }
            skeleton = united(skeletons.values())
            if len(skeleton.names) > MOST_POINTS:
                what = f"objects have {len(skeleton.names):,} keypoints, more than {MOST_POINTS:,}"
                raise SourceError(OptionName("points"), what, "leave this option out")
            points = self._keypoints(labels, skeletons, skeleton)
        return Found(
            annotations=self._annotations(labels, areas_of or {}, points),
            skeleton=skeleton,
            names=names,
            how=how,
            documents=tuple(documents),
            without_image=self.missing,
            num_elsewhere=self._num_elsewhere,
            examples=self.examples,
            **more,
        )

    def _natural_names(self) -> tuple[tuple[str, ...], dict[str, int]]:
        whole = class_names(self.classes.keys() - {""})
        place = {name: i for i, name in enumerate(dict.fromkeys(whole.values()))}
        return tuple(place), {raw: place[name] for raw, name in whole.items()}

    def _skeleton_of(self, name: str, skeletons: Mapping[str, Skeleton]) -> Skeleton:
        """Return the stated skeleton of a class, or a skeleton with numbered keypoints."""
        known = skeletons.get(name)
        if known is not None and known.names:
            return known
        number = self.classes[name]
        lengths = Counter(
            stop - start
            for row, (start, stop) in self._points_of.items()
            if self._classes[row] == number
        )
        usual = max(lengths, key=lambda one: (lengths[one], one), default=0) // 3
        return (known or Skeleton())._replace(names=tuple(map(str, range(usual))))

    def _keypoints(
        self, labels: Ints, skeletons: Mapping[str, Skeleton], skeleton: Skeleton
    ) -> Points:
        """Return keypoints, float32[objects, K, 3]; drop objects with a wrong number of them."""
        places = {name: i for i, name in enumerate(skeleton.names)}
        of_class = [
            [places[name] for name in skeletons.get(one, Skeleton()).names] for one in self.classes
        ]
        points = np.zeros((len(self), len(places), 3), np.float32)
        values = np.frombuffer(self._points, np.float32)
        for row, (start, stop) in self._points_of.items():
            if self._images[row] < 0 or labels[row] < 0:
                continue
            slots = of_class[self._classes[row]]
            if stop - start == 3 * len(slots):
                points[row, slots] = values[start:stop].reshape(-1, 3)
            else:
                self.drop(self._images[row], WRONG_NUMBER)
                labels[row] = NO_OBJECT
        return points

    def _annotations(
        self, labels: Ints, areas_of: Mapping[str, int], points: Points | None
    ) -> list[Annotation | None]:
        images = np.frombuffer(self._images, np.int64)
        for image in images[(labels == -1) & (images >= 0)].tolist():
            self.drop(image, UNKNOWN_CLASS)
        kept = np.flatnonzero((labels >= 0) & (images >= 0))
        order = kept[np.argsort(images[kept], kind="stable")]
        boxes = np.frombuffer(self._boxes, np.float64).reshape(-1, 4)[order]
        boxes.flags.writeable = False
        starts = np.searchsorted(images[order], np.arange(self._num_images + 1)).tolist()
        areas = self._areas(areas_of) if areas_of else {}
        labels = labels[order]
        attributes = {name: np.frombuffer(self._padded(name))[order] for name in self._attributes}
        points = None if points is None else points[order]
        found: list[Annotation | None] = [None] * self._num_images
        for image in self.listed.union(images[order].tolist(), self._dropped):
            rows = slice(starts[image], starts[image + 1])
            found[image] = Annotation(
                boxes=boxes[rows],
                labels=tuple(labels[rows].tolist()),
                attributes={name: values[rows] for name, values in attributes.items()},
                outlines=tuple(map(self._outlines.get, order[rows].tolist()))
                if self._outlines
                else (),
                areas=tuple(areas.get(image, ())),
                keypoints=None if points is None else points[rows],
                lost_points=self._lost_points.get(image, _NONE),
                size=self._sizes.get(image),
                is_relative=self.is_relative,
                dropped=self._dropped.get(image, _NONE),
                fault=self._faults.get(image, ""),
            )
        return found

    def _labels(self, labels_of: Mapping[str, int]) -> Ints:
        lookup = np.array([*(labels_of.get(name, -1) for name in self.classes), -1], np.int64)
        return lookup[np.frombuffer(self._classes, np.int64)]

    def _areas(self, labels_of: Mapping[str, int]) -> dict[int, list[tuple[Segment, int]]]:
        """Return position of an image → its segments that are areas, with their labels."""
        labels, images = self._labels(labels_of), np.frombuffer(self._images, np.int64)
        found: defaultdict[int, list[tuple[Segment, int]]] = defaultdict(list)
        for row in np.flatnonzero((labels >= 0) & (images >= 0)).tolist():
            outline = self._outlines.get(row)
            if isinstance(outline, Segment):
                found[int(images[row])].append((outline, int(labels[row])))
        return found
