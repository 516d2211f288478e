"""Targets of an example in both readers: a value or, with boxes or several features, a dict.

Boxes are (ymin, xmin, ymax, xmax) in 0 to 1, and are converted to the format of the user last.
Keypoints are (y, x) in 0 to 1, and (0, 0) if their visibility is 0. Padding rows follow the rows of
objects: label −1, box −1, crowd False, mask 0, keypoints −1, visibility 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import (
    ANNOTATIONS,
    BOX,
    CLASS_PREFIX,
    KEYPOINTS,
    OF_OBJECTS,
    POINTS,
    PROVIDED,
    TARGET_IMAGE,
    TARGETS,
    TEXTS,
    Schema,
)
from shardprep.errors import DatasetError
from shardprep.reader.config import BoxFormat, ReadOptions, warn

T = TypeVar("T")

KEYS = {name: one.key for name, one in PROVIDED.items() if one.key}
"""Feature → its key in the dict of the target."""
_RESERVED = {KEYS[name] for name in (*ANNOTATIONS, TARGET_IMAGE, TARGETS, TEXTS)}
PADDING = {name: KINDS[PROVIDED[name].kind].padding for name in OF_OBJECTS}
"""Feature of objects → its value in padding rows."""
MIRRORED = {KEYPOINTS: "mirrored", POINTS: "mirrored_points"}
"""Feature of keypoints → the field of `augment.Flip` that has its pairs."""


class Target(NamedTuple):
    """The features that form the target of training."""

    names: tuple[str, ...]

    @property
    def keys(self) -> dict[str, str]:
        """Feature → its key in the dict: as in `KEYS`; for `label/NAME`, NAME if it is free."""
        keys = {name: KEYS[name] for name in self.names if name in KEYS}
        taken = _RESERVED.union(keys.values())
        for name in self.names:
            short = name.removeprefix(CLASS_PREFIX)
            keys.setdefault(name, name if short in taken else short)
        return keys

    @property
    def _is_dict(self) -> bool:
        return len(self.names) > 1 or any(name not in KEYS or name == BOX for name in self.names)

    def packed(self, values: Mapping[str, T]) -> T | dict[str, T] | None:
        """Return the target: a single value, a dict with `keys`, or None if it has no features."""
        if self._is_dict:
            return {key: values[name] for name, key in self.keys.items()}
        return values[self.names[0]] if self.names else None

    def unpacked(self, packed: Any) -> dict[str, Any]:
        """Return the values of a target by feature: the inverse of `packed`."""
        if self._is_dict:
            return {name: packed[key] for name, key in self.keys.items() if key in packed}
        return dict.fromkeys(self.names, packed)

    def pair(self, image: Any, values: Mapping[str, Any]) -> Any:
        """Return (image, target), or the image alone if the dataset has no target."""
        return (image, self.packed(values)) if self.names else image


def target_of(schema: Schema) -> Target:
    """Return the target of a schema: annotations, its own target, class features, then rows."""
    own = () if schema.target is None else (schema.target,)
    return Target((*schema.annotations, *own, *schema.class_features, *schema.rows))


def element_names(schema: Schema, *, as_supervised: bool) -> tuple[str, ...]:
    """Return the names of image and target features; without `as_supervised`, of all features."""
    names = (schema.image_name, *target_of(schema).names)
    return names if as_supervised else tuple(schema.features)


class Elements:
    """Converter of features to elements of a dataset: (image, target), or all features."""

    def __init__(self, schema: Schema, *, as_supervised: bool) -> None:
        self.schema = schema
        self.target = target_of(schema)
        self._as_supervised = as_supervised
        self.names = element_names(schema, as_supervised=as_supervised)

    def pack(self, features: dict[str, Any]) -> Any:
        """Return (image, target), or the image alone; without `as_supervised`, all features."""
        if not self._as_supervised:
            return {name: features[name] for name in self.names}
        return self.target.pair(features[self.schema.image_name], features)


def padding(values: Mapping[str, Any]) -> dict[str, int]:
    """Return name → padding value of object features, named as in `values`; {} without boxes."""
    if BOX in values:
        return PADDING
    return {KEYS[name]: value for name, value in PADDING.items()} if KEYS[BOX] in values else {}


def check_options(schema: Schema, options: ReadOptions) -> None:
    """Raise DatasetError for options of absent boxes or stacks; warn of flips without pairs."""
    has_boxes, is_stack = BOX in schema.features, schema.is_stack
    for name, default, has_any, noun in (
        ("max_boxes", None, has_boxes, "boxes"),
        ("box_format", "rel_yxyx", has_boxes or POINTS in schema.features, "boxes"),
        ("every", 1, is_stack, "stacks"),
        ("max_length", None, is_stack, "stacks"),
    ):
        value = getattr(options, name)
        if value != default and not has_any:
            what = f"{name}={value!r}, but the dataset has no {noun}"
            raise DatasetError(options.where, what, f"leave out {name}")

    if getattr(options.random_resized_crop, "flip", 0):
        for name, field in MIRRORED.items():
            advise_pairs(schema, name, f"augment.Flip({field}=…) instead of the crop's flip")


def advise_pairs(schema: Schema, name: str, flip: str) -> None:
    """Warn that a flip does not swap left and right of keypoints that have numbers and no pairs.

    `name` is the feature, `flip` says which flip to give instead.
    """
    feature = schema.features.get(name)
    if feature is None or feature.mirrored or len(feature.points) < 2:
        return
    if all(map(str.isdecimal, feature.points)):
        what = f"a flip does not swap left and right of {name!r}, which has numbers and no names"
        warn(f"{what}; build with names such as left_eye, or give {flip}")


class BoxLimit:
    """Limit of boxes per image that warns once if boxes are left out. Thread-safe."""

    def __init__(self, max_boxes: int) -> None:
        self.max_boxes = max_boxes
        self._has_warned = False
        self._lock = threading.Lock()

    def warn(self, num_boxes: int) -> None:
        with self._lock:
            if self._has_warned:
                return
            self._has_warned = True
        line = f"an image has {num_boxes:,} boxes, but max_boxes={self.max_boxes} keeps the largest"
        warn(f"{line}; raise max_boxes to keep all")


_SIDES: dict[str, Callable[[Any, Any, Any, Any], list[Any]]] = {
    "yxyx": lambda top, left, bottom, right: [top, left, bottom, right],
    "xyxy": lambda top, left, bottom, right: [left, top, right, bottom],
    "xywh": lambda top, left, bottom, right: [left, top, right - left, bottom - top],
    "center_xywh": lambda top, left, bottom, right: [
        (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
    ],
    "center_yxhw": lambda top, left, bottom, right: [
        (top + bottom) / 2, (left + right) / 2, bottom - top, right - left
    ],
}  # fmt: skip
"""Format without "rel_" → function of the sides that returns the four numbers of a box."""


def formatted_points(points: Any, box_format: BoxFormat, size: Any, library: Any) -> Any:
    """Return keypoints, float32[…, 2] as y, x in 0 to 1, in the order and unit of `box_format`.

    Padding rows (−1) are unchanged; for `size` and `library` see `formatted`.
    """
    changed = points
    if not box_format.startswith("rel_"):
        changed = points * library.stack(list(size))
    if "xy" in box_format and "yxyx" not in box_format:
        changed = changed[..., ::-1]
    return library.where(points < 0, points, changed)


def formatted(boxes: Any, box_format: BoxFormat, size: Any, library: Any) -> Any:
    """Return boxes in the format `box_format`; padding rows (−1) are unchanged.

    `boxes` are float32[…, 4] as ymin, xmin, ymax, xmax in 0 to 1, of `library`: numpy or
    tensorflow. `size` is height and width of the image as float32, for formats in pixels.
    """
    if box_format == "rel_yxyx":
        return boxes
    sides = [boxes[..., place] for place in range(4)]
    if not box_format.startswith("rel_"):
        sides = [side * length for side, length in zip(sides, (*size, *size), strict=True)]
    changed = library.stack(_SIDES[box_format.removeprefix("rel_")](*sides), axis=-1)
    return library.where(boxes[..., :1] < 0, boxes, changed)


FORMATTED = {BOX: formatted, KEYPOINTS: formatted_points, POINTS: formatted_points}
"""Feature with places in the image → function that converts them to a box format."""
