"""The dialects of four numbers: two corners, or a corner and a size; pixels, or shares of sides.

Names of columns tell it where they are of the usual ones; else the boxes do, for the wrong reading
leaves the image or turns boxes inside out: most of real boxes, against one in a hundred.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardprep.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardprep.image.annotation_types import Floats
    from shardprep.source.byte_range import Extent

Form = Literal["xyxy", "xywh", "center"]
"""Two corners; the first corner, width and height; or the center, width and height."""
WORDS: dict[Form, str] = {
    "xyxy": "two corners (xyxy)",
    "xywh": "corner, width and height (xywh)",
    "center": "center, width and height (center)",
}
_NAMES: dict[Form, tuple[str, ...]] = {
    "xyxy": (
        "xmin ymin xmax ymax", "x1 y1 x2 y2", "x0 y0 x1 y1", "left top right bottom",
        "xtl ytl xbr ybr", "minx miny maxx maxy", "x y x2 y2", "x y xmax ymax",
        "startx starty endx endy", "xstart ystart xend yend",
    ),
    "xywh": (
        "x y w h", "x y width height", "xmin ymin w h", "xmin ymin width height",
        "left top width height", "left top w h", "x1 y1 w h", "x1 y1 width height",
    ),
    "center": (
        "xcenter ycenter width height", "xcenter ycenter w h", "centerx centery width height",
        "cx cy w h", "cx cy width height", "xc yc w h",
    ),
}  # fmt: skip
"""Names of four columns as `plain` gives them."""
_PREFIX = re.compile(r"^(bbox|bndbox|box|bb|roi|rect|region)(?=.)")
_FORCED = re.compile(r"(?P<form>\w+)\((?P<columns>.*)\)", re.DOTALL)
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


class Columns(NamedTuple):
    """Meaning of four numbers by the names of their columns or keys."""

    names: tuple[str, ...]
    """The four in the order x, y, x or width, y or height; one for all of them in a cell."""
    form: Form | None = None
    """None: the boxes must tell it."""


def parse_columns(text: str, option: str) -> Columns:
    """Return the columns of a BOX: one or four, alone or in `xywh(…)`, `xyxy(…)` or `center(…)`.

    Raises:
        RecipeError: it is none of these.

    """
    match = _FORCED.fullmatch(text.strip())
    form = match["form"] if match else None
    if match and form not in WORDS:
        hint = "use xywh(…), xyxy(…) or center(…)"
        raise RecipeError(option, f"{form}(…) is not a form of boxes", hint)
    names = tuple(name.strip() for name in (match["columns"] if match else text).split(","))
    if len(names) not in (1, 4) or not all(names):
        raise RecipeError(option, f"{text!r} is neither one column nor four", "BOX is x,y,w,h")
    named = named_columns(names)
    if named is None:
        return Columns(names, form)  # type: ignore[arg-type]
    if form is not None and named.form != form:
        return Columns(names, form)  # type: ignore[arg-type]
    return named


def plain(name: str) -> str:
    """Return a name of a column without case, signs and words for a box: "Roi.X1" is x1."""
    return _PREFIX.sub("", letters(name))


def letters(name: str) -> str:
    """Return a name of a column without case and signs: "Roi.X1" is roix1."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def named_columns(names: Sequence[str]) -> Columns | None:
    """Return which of all these columns hold boxes, by their names alone; None where none do."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(plain(name), name)
    for form, variants in _NAMES.items():
        for variant in variants:
            wanted = variant.split()
            if all(part in found for part in wanted):
                return Columns(tuple(found[part] for part in wanted), form)
    return None


def is_relative(boxes: Floats) -> bool:
    """Tell whether boxes, float64[n, 4], are shares of the sides of their images."""
    finite = boxes[np.isfinite(boxes)]
    return bool(finite.size) and bool(np.abs(finite).max() <= _MOST_RELATIVE)


def told_form(boxes: Floats, sizes: Floats) -> Form | None:
    """Return the reading of boxes, float64[n, 4], that leaves them sound; None if it is open.

    `sizes` are heights and widths of their images, float64[n, 2], NaN where they are not known.
    """
    known = np.isfinite(boxes).all(1)
    if (with_size := known & np.isfinite(sizes).all(1)).any():
        known = with_size
    boxes, sizes = boxes[known], sizes[known]
    if not len(boxes):
        return None
    wrong: dict[Form, float] = {}
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
def numbers(corners: Floats, form: Form) -> Floats:
    """Return boxes, x, y, x, y, as the four numbers that `corners` reads."""
    if form == "xyxy":
        return corners
    first, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    return np.concatenate((first + size / 2 if form == "center" else first, size), axis=1)


@_UNBOUNDED
def corners(boxes: Floats, form: Form) -> Floats:
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
