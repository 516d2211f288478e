"""Table of the kinds of features: dtype, shape, padding and bounds of their values.

Schema, readers, augmentation, `verify`, exports and the files for TensorFlow Datasets read this
table. So a new kind needs a row here, a rule for its values if an image is cropped or mirrored, and
code in `image` that makes its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Moves = Literal["", "box", "points", "visibility", "pixels"]
"""How a crop changes values: not at all (""), or as boxes, points, their visibility or pixels."""

KindName = Literal[
    "image", "label", "labels", "text", "scalar", "bbox", "flag", "mask", "vector", "texts",
    "keypoints", "visibility", "rows",
]  # fmt: skip
"""`label`, `labels`: class indices. `scalar`: a number. `text`: UTF-8. `flag`: 0 or 1. `mask`: PNG.
`bbox`: ymin, xmin, ymax, xmax as shares (0 to 1) of the stored image. `vector`: a number for each
name in the feature's `labels`, NaN if missing. `texts`: any number of texts, at most `shape[0]`.
`keypoints`: y, x of each keypoint as shares. `visibility`: 0, 1 or 2 for each keypoint. `rows`: a
value for each row of the image, NaN, -1 or "" if missing."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties that all values of one kind of feature share."""

    dtype: Literal["bytes", "int64", "float32"]
    """Type of the stored values; features from a column of a table have the column's type."""
    shape: tuple[int | Literal["points", "labels", "texts"], ...] = ()
    """Shape of one value; a name means the number of the feature's points, labels or texts."""
    is_list: bool = False
    """Whether a record may have any number of values."""
    decoded: str = ""
    """dtype in arrays and tensors; "" for the dtype of the stored values."""
    padding: int = 0
    """Value in the rows that follow the objects of an image in a batch."""
    bounds: tuple[int, int] | None = None
    """Smallest and largest number; None without a limit, or if the classes are the limit."""
    moves: Moves = ""


KINDS: dict[KindName, Kind] = {
    "image": Kind("bytes", moves="pixels"),
    "mask": Kind("bytes", moves="pixels"),
    "label": Kind("int64", padding=-1),
    "labels": Kind("int64", is_list=True),
    "scalar": Kind("float32"),
    "vector": Kind("float32", ("labels",)),
    "text": Kind("bytes"),
    "texts": Kind("bytes", ("texts",), is_list=True),
    "rows": Kind("float32", is_list=True),
    "bbox": Kind("float32", (4,), padding=-1, bounds=(0, 1), moves="box"),
    "flag": Kind("int64", decoded="bool", bounds=(0, 1)),
    "keypoints": Kind("float32", ("points", 2), padding=-1, bounds=(0, 1), moves="points"),
    "visibility": Kind("int64", ("points",), bounds=(0, 2), moves="visibility"),
}
