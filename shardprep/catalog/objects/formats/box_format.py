"""The dialects of four numbers: two corners, or a corner and a size; pixels, or shares of sides.

Names of columns tell it where they are of the usual ones; else the boxes do, for the wrong reading
leaves the image or turns boxes inside out: most of real boxes, against one in a hundred.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardprep.image.annotation_types import Floats
from shardprep.recipe.object_rules import BoxForm

if TYPE_CHECKING:
    from shardprep.source.byte_range import Extent

WORDS: dict[BoxForm, str] = {
    "xyxy": "two corners (xyxy)",
    "xywh": "corner, width and height (xywh)",
    "center": "center, width and height (center)",
}
_MOST_RELATIVE = 1.0001
"""Largest value of boxes in shares: six decimals may round up."""
_BAD = 0.01
"""Share of boxes that may be wrong in the right reading."""
_FAR = 10
"""Times as many boxes are wrong in the other reading, where none is free of them."""
_TOLERANCE = 1.01, 1.0
"""Factor and pixels by which a sound box may leave its image."""
_HEAD_BYTES = 256 << 10
"""Bytes of a file that hold its size, and its orientation."""
_UNBOUNDED = np.errstate(over="ignore", invalid="ignore")
"""Numbers of strangers may be as large as floats are."""
_TURNED = (5, 6, 7, 8)
"""EXIF orientations that turn an image by a quarter."""
_ORIENTATION = 0x0112


def is_relative(boxes: Floats) -> bool:
    """Tell whether boxes, float64[n, 4], are shares of the sides of their images."""
    finite = boxes[np.isfinite(boxes)]
    return bool(finite.size) and bool(np.abs(finite).max() <= _MOST_RELATIVE)


def told_form(boxes: Floats, sizes: Floats) -> BoxForm | None:
    """Return the reading of boxes, float64[n, 4], that leaves them sound; None if it is open.

    `sizes` are heights and widths of their images, float64[n, 2], NaN where they are not known.
    """
    known = np.isfinite(boxes).all(1)
    if (with_size := known & np.isfinite(sizes).all(1)).any():
        known = with_size
    boxes, sizes = boxes[known], sizes[known]
    if not len(boxes):
        return None
    wrong: dict[BoxForm, float] = {}
    for form in ("xyxy", "xywh"):
        read = np.maximum(corners(boxes, form), 0.0)  # both forms share the first corner
        wrong[form] = float(np.mean(are_outside(read, sizes)))
    best, other = sorted(wrong, key=lambda form: wrong[form])
    is_clear = wrong[best] <= _BAD < wrong[other] or 0 < _FAR * wrong[best] <= wrong[other]
    return best if is_clear else None


@_UNBOUNDED
def are_outside(corners: Floats, sizes: Floats) -> NDArray[np.bool_]:
    """Return whether each box, x, y, x, y, has no inside or passes an edge by more than rounding.

    `sizes` are heights and widths of the images in the unit of the boxes, float64[n, 2]. 1% and a
    pixel are rounding.
    """
    factor, pixels = _TOLERANCE
    more = sizes * (factor - 1) + pixels * (sizes > _MOST_RELATIVE)
    low, high = corners[:, :2], corners[:, 2:]
    are_wrong = (high <= low) | (low < -more[:, ::-1]) | (high > (sizes + more)[:, ::-1])
    found: NDArray[np.bool_] = np.logical_or.reduce(are_wrong, axis=1)
    return found


@_UNBOUNDED
def numbers(corners: Floats, form: BoxForm) -> Floats:
    """Return boxes, x, y, x, y, as the four numbers that `corners` reads."""
    if form == "xyxy":
        return corners
    first, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    return np.concatenate((first + size / 2 if form == "center" else first, size), axis=1)


@_UNBOUNDED
def corners(boxes: Floats, form: BoxForm) -> Floats:
    """Return boxes, float64[n, 4], as x and y of the first corner, x and y of the second."""
    if form == "xyxy":
        return boxes
    first, size = boxes[:, :2], boxes[:, 2:]
    if form == "center":
        return np.concatenate((first - size / 2, first + size / 2), axis=1)
    return np.concatenate((first, first + size), axis=1)


def image_size(extent: Extent) -> tuple[int, int] | None:
    """Return height and width of an image as it is shown, by its head; None without them."""
    from PIL import Image  # noqa: PLC0415 - most sources never need it

    try:
        with Image.open(io.BytesIO(extent.read_head(_HEAD_BYTES))) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION) in _TURNED
    except Exception:  # decoders raise anything for strangers' bytes
        return None
    return (width, height) if turned else (height, width)
