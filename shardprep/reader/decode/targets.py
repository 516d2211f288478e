"""Targets of an example, for both readers: one value, or boxes and more.

Boxes are ymin, xmin, ymax, xmax, 0 to 1, from the shard to the end of augmentation. A row without
an object has the label −1, boxes of −1 and empty masks, and stands behind those that have one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    LABEL,
    LABELS,
    MASK,
    OBJECT_MASK,
    TARGET,
    TEXT,
    Schema,
)
from shardprep.errors import DatasetError
from shardprep.reader.config import BatchOptions, BoxFormat, Request, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

KEYS = {
    BOX: "boxes",
    BOX_LABEL: "labels",
    CROWD: "crowds",
    OBJECT_MASK: "masks",
    MASK: "segmentation_mask",
    LABEL: "label",
    LABELS: "label",
    TARGET: "target",
    TEXT: "text",
}
"""Feature → its key where there are several things to learn."""
PADDING = {BOX: -1, BOX_LABEL: -1, CROWD: 0, OBJECT_MASK: 0}
"""Feature of objects → the value of a row without an object."""


class Target(NamedTuple):
    """The features to learn, in their order."""

    names: tuple[str, ...]

    @property
    def _is_dict(self) -> bool:
        return len(self.names) > 1 or BOX in self.names

    def packed(self, values: Mapping[str, T]) -> T | dict[str, T] | None:
        """Return one value as it is, several, or boxes, by `KEYS`; None where there is none."""
        if self._is_dict:
            return {KEYS[name]: values[name] for name in self.names}
        return values[self.names[0]] if self.names else None

    def unpacked(self, packed: Any) -> dict[str, Any]:
        """Return the values by feature of what `packed` has returned."""
        if self._is_dict:
            return {name: packed[KEYS[name]] for name in self.names if KEYS[name] in packed}
        return dict.fromkeys(self.names, packed)

    def pair(self, image: Any, values: Mapping[str, Any]) -> Any:
        """Return (image, target), or the image alone."""
        return (image, self.packed(values)) if self.names else image


def target_of(schema: Schema) -> Target:
    """Return what is to be learnt of the examples of a schema."""
    own = () if schema.target is None else (schema.target,)
    return Target((*schema.annotations, *own))


def class_names(schema: Schema) -> list[str]:
    """Return the names of the classes of objects, else of masks, else of images."""
    for name in (BOX_LABEL, MASK):
        if name in schema.features:
            return list(schema.features[name].labels)
    return list(schema.labels)


def padding(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the value of a row without an object by the names in a dict, features or `KEYS`."""
    if BOX in values:
        return PADDING
    return {KEYS[name]: value for name, value in PADDING.items()} if KEYS[BOX] in values else {}


def check_boxes(where: str, schema: Schema, options: Request | BatchOptions) -> None:
    """Raise DatasetError where an option of boxes is given for a set that has none."""
    if BOX in schema.features:
        return
    if options.max_boxes is not None:
        what = f"max_boxes={options.max_boxes}"
    elif options.box_format != "rel_yxyx":
        what = f"box_format={options.box_format!r}"
    else:
        return
    raise DatasetError(where, f"{what}, and it has no boxes", "leave it out")


class Cut:
    """The most boxes of an image. That some are left out is warned of once."""

    def __init__(self, max_boxes: int) -> None:
        """Keep the `max_boxes` largest."""
        self.max_boxes = max_boxes
        self._is_told = False
        self._lock = threading.Lock()

    def tell(self, num_boxes: int) -> None:
        """Warn of an image with so many boxes."""
        with self._lock:
            if self._is_told:
                return
            self._is_told = True
        line = f"an image has {num_boxes:,} boxes, max_boxes={self.max_boxes} keeps the largest"
        warn(f"{line}; raise it to keep all")


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
"""Format, without its scale → the four numbers of a box in it."""


def formatted(boxes: Any, box_format: BoxFormat, height: Any, width: Any) -> list[Any]:
    """Return the four numbers of boxes in a format, to be stacked along the last axis.

    Written with operators alone, for NumPy's arrays and TensorFlow's tensors.

    Args:
        boxes: float32[…, 4], ymin, xmin, ymax, xmax, 0 to 1.
        box_format: one of Keras's names.
        height: float32, of the image in pixels, for formats that are not relative.
        width: likewise.

    """
    sides = [boxes[..., place] for place in range(4)]
    if not box_format.startswith("rel_"):
        sides = [side * length for side, length in zip(sides, (height, width) * 2, strict=True)]
    return _SIDES[box_format.removeprefix("rel_")](*sides)
