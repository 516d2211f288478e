"""Detect the form of the four numbers of a box, check boxes, and compute outlines of shapes.

A box is two corners, or a corner or center with a size, in pixels or as shares of the image sides.
Titles usually show the form. If not, the data do: in a wrong form, most boxes leave the image.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.objects.object_table import Found
from shardprep.errors import OptionName, SourceError, shown
from shardprep.image.annotation_types import Floats, Polygons, Runs
from shardprep.recipe.object_rules import BoxForm
from shardprep.source.members import Extent

SizeOf = Callable[[int], tuple[int, int] | None]
"""Returns height and width of the image at a position, or None if unknown."""
TextOf = Callable[[int], str]
WORDS: dict[BoxForm, str] = {
    "xyxy": "two corners (xyxy)",
    "xywh": "corner, width and height (xywh)",
    "center": "center, width and height (center)",
    "yxyx": "two corners, y first (yxyx)",
}
_MOST_RELATIVE = 1.0001
"""Maximum coordinate of boxes in shares; above 1, because decimals may be rounded up."""
_BAD = 0.01
"""Maximum share of wrong boxes in a detected form, and in a form that an error proposes."""
_FAR = 10
"""If all forms have wrong boxes, the best form must have this many times fewer."""
_TOLERANCE = 1.01, 1.0
"""Limits of a box: side of the image times the first number, plus the second number in pixels."""
_HEAD_BYTES = 256 << 10
_UNBOUNDED = np.errstate(over="ignore", invalid="ignore")
_TURNED = (5, 6, 7, 8)
_ORIENTATION = 0x0112
_MOST_HEADS = 256
"""Maximum number of images whose size is read. It is enough: a wrong form fails for most boxes."""
_NUM_SHOWN = 3
_MOST = 1e100
_NUM_CORNERS = 64
_MOST_RUNS = 1 << 20


def is_relative(boxes: Floats) -> bool:
    """Return whether boxes, float64[n, 4], look like shares of the image sides: at most about 1."""
    finite = boxes[np.isfinite(boxes)]
    return bool(finite.size) and bool(np.abs(finite).max() <= _MOST_RELATIVE)


def are_shares(boxes: Floats) -> NDArray[np.bool_]:
    """Return whether each row, float64[n, k], has only numbers from 0 to 1, and not all whole.

    Such a box in pixels would be smaller than the first pixel of its image.
    """
    are_small = ((boxes >= 0) & (boxes <= _MOST_RELATIVE)).all(1)
    found: NDArray[np.bool_] = are_small & (boxes % 1 != 0).any(1)
    return found


def unit_notes(where: str, nouns: str, are_shares: NDArray[np.bool_], text: TextOf) -> list[str]:
    """Return a note if a few rows of a table in pixels look like shares of the image sides.

    `nouns` says what the rows are, such as "{} boxes"; `text` describes one. SourceError if over 1%
    of the rows look so.
    """
    number = int(np.count_nonzero(are_shares))
    if not number:
        return []
    one, other = (text(int(np.argmax(are_shares == value))) for value in (True, False))
    what = nouns.format(f"{number:,} of {len(are_shares):,}")
    what = f"{what} look like shares of the image sides, such as {one}"
    if number > _BAD * len(are_shares):
        what = f"{what}, and others like pixels, such as {other}"
        raise SourceError(where, what, "give all in pixels, or all in shares")
    return [f"{where}: {what}; they are read as pixels, like the others"]


def detected_form(boxes: Floats, sizes: Floats) -> BoxForm | None:
    """Return "xyxy" or "xywh", whichever makes boxes, float64[n, 4], valid; None if unclear.

    `sizes` are heights and widths of the images of the boxes, float64[n, 2], NaN if unknown.
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
    """Return whether each box, x, y, x, y, is empty or exceeds its image beyond the tolerance.

    `sizes` are heights and widths of the images in the unit of the boxes, float64[n, 2].
    """
    factor, pixels = _TOLERANCE
    more = sizes * (factor - 1) + pixels * (sizes > _MOST_RELATIVE)
    low, high = corners[:, :2], corners[:, 2:]
    are_wrong = (high <= low) | (low < -more[:, ::-1]) | (high > (sizes + more)[:, ::-1])
    found: NDArray[np.bool_] = np.logical_or.reduce(are_wrong, axis=1)
    return found


@_UNBOUNDED
def numbers(corners: Floats, form: BoxForm) -> Floats:
    """Return boxes x, y, x, y, float64[n, 4], in another form; the inverse of `corners`."""
    if form == "xyxy":
        return corners
    if form == "yxyx":
        return corners[:, [1, 0, 3, 2]]
    first, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    return np.concatenate((first + size / 2 if form == "center" else first, size), axis=1)


@_UNBOUNDED
def corners(boxes: Floats, form: BoxForm) -> Floats:
    """Return boxes, float64[n, 4], as x, y, x, y of two opposite corners."""
    if form == "xyxy":
        return boxes
    if form == "yxyx":
        return boxes[:, [1, 0, 3, 2]]
    first, size = boxes[:, :2], boxes[:, 2:]
    if form == "center":
        return np.concatenate((first - size / 2, first + size / 2), axis=1)
    return np.concatenate((first, first + size), axis=1)


def image_size(extent: Extent) -> tuple[int, int] | None:
    """Return height and width of an image as displayed; None if its first bytes have no size."""
    head = image_head(extent)
    return None if head is None else head.upright


class ImageHead(NamedTuple):
    """Height and width of an image as displayed, and its EXIF orientation."""

    upright: tuple[int, int]
    orientation: int


def image_head(extent: Extent) -> ImageHead | None:
    """Return size and orientation from the first bytes of an image file; None without a size."""
    from PIL import Image  # noqa: PLC0415 - most sources never need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of metadata after the first bytes
            with Image.open(io.BytesIO(extent.read_head(_HEAD_BYTES))) as image:
                width, height = image.size
                turn = image.getexif().get(_ORIENTATION, 1)
                is_swapped = turn in _TURNED and image.format != "TIFF"  # Pillow turns TIFF sizes
    except Exception:  # decoders can raise any exception
        return None
    return ImageHead((width, height) if is_swapped else (height, width), turn)


class _Boxes(NamedTuple):
    corners: Floats
    """x, y, x, y as read, float64[n, 4]."""
    images: NDArray[np.int64]
    sizes: Floats
    """Height and width of the image of each box, in the unit of the boxes, float64[n, 2]."""
    is_relative: bool


class _Reading(NamedTuple):
    form: BoxForm
    is_relative: bool

    def __str__(self) -> str:
        unit = "shares of the sides" if self.is_relative else "pixels"
        return f"{WORDS[self.form]} in {unit}"


def check_boxes(
    found: Found, option: OptionName, keys: Sequence[str], size_of: SizeOf, most: float
) -> None:
    """Raise a SourceError if a larger share of boxes than `most` exceeds its image or is empty.

    If boxes in pixels look like shares, all of them count as wrong. `size_of` is called for some
    images whose size is not stated. The error names `option`.
    """
    boxes = _boxes(found, size_of)
    are_wrong = are_outside(boxes.corners, boxes.sizes)
    is_tiny = not boxes.is_relative and is_relative(boxes.corners)
    if is_tiny:
        are_wrong[:] = True
    if are_wrong.sum() <= most * len(are_wrong):
        return
    form = found.notation.form if found.notation else None
    read = f", read as {_Reading(form, boxes.is_relative)}" if form else ""
    fault = "are below one pixel" if is_tiny else "are not inside their images"
    what = f"{are_wrong.sum():,} of {len(are_wrong):,} boxes {fault}{read}"
    values = numbers(boxes.corners, form or "xyxy")
    some = []
    for i in np.flatnonzero(are_wrong)[:_NUM_SHOWN].tolist():
        texts = ", ".join(f"{value:.6g}" for value in values[i])
        height, width = boxes.sizes[i]
        size = "" if boxes.is_relative else f" of {width:g}x{height:g} pixels"
        some.append(f"[{texts}] in {shown(keys[int(boxes.images[i])])}{size}")
    better = _better(found, boxes, values, size_of) if form else None
    hint = "correct the boxes" if better is None else _hint(found, better)
    hint = f"{hint}, or accept them with {OptionName('max_clipped', '1')}"
    raise SourceError(option, f"{what}, such as {', '.join(some)}", hint)


def check_outlines(found: Found, option: OptionName, keys: Sequence[str]) -> None:
    """Raise a SourceError if outlines in pixels look like shares of the image sides."""
    step = -(-len(found.annotations) // _MOST_HEADS) or 1
    some = [*enumerate(found.annotations)][::step]
    boxes = [
        (i, box_of(one.rings))
        for i, every in some
        if every is not None and not every.is_relative
        for one in every.outlines
        if isinstance(one, Polygons)
    ]
    if boxes and is_relative(np.array([box for _, box in boxes], np.float64)):
        what = "outlines must be in pixels, but look like shares of the sides, such as"
        hint = "multiply them by the width and height of the image"
        such = ", ".join(f"{value:.6g}" for value in boxes[0][1])
        raise SourceError(option, f"{what} [{such}] in {shown(keys[boxes[0][0]])}", hint)


def _boxes(found: Found, size_of: SizeOf) -> _Boxes:
    """Return the boxes in images with a stated size, and in some of the other images."""
    listed = [
        (i, one) for i, one in enumerate(found.annotations) if one is not None and len(one.boxes)
    ]
    are_shares = any(one.is_relative for _, one in listed)
    sizes = {i: (1, 1) if are_shares else one.size for i, one in listed}
    unknown = [i for i, size in sizes.items() if size is None]
    for i in unknown[:: -(-len(unknown) // _MOST_HEADS) or 1]:
        sizes[i] = size_of(i)
    known = [(i, one.boxes, size) for i, one in listed if (size := sizes[i])]
    counts = [len(boxes) for _, boxes, _ in known]
    images = np.repeat(np.array([i for i, _, _ in known], np.int64), counts)
    each = np.array([size for _, _, size in known], np.float64).reshape(-1, 2)
    whole = np.concatenate([np.empty((0, 4)), *(boxes for _, boxes, _ in known)])
    are_boxes = np.isfinite(whole).all(axis=1)  # NaN: the object has only an outline
    return _Boxes(
        whole[are_boxes], images[are_boxes], each.repeat(counts, 0)[are_boxes], are_shares
    )


def _better(found: Found, boxes: _Boxes, values: Floats, size_of: SizeOf) -> _Reading | None:
    """Return the form and unit that put nearly all boxes inside their images, or None."""
    ways = [(boxes.is_relative, boxes.sizes)]
    if boxes.is_relative:
        some = np.unique(boxes.images)
        some = some[:: -(-len(some) // _MOST_HEADS)]
        known = {i: found.annotations[i] for i in some.tolist()}
        sizes = {i: (one and one.size) or size_of(i) for i, one in known.items()}
        each = [sizes.get(i) or (np.nan, np.nan) for i in boxes.images.tolist()]
        ways.append((False, np.array(each, np.float64)))
    elif is_relative(values):
        ways = [(True, np.ones_like(boxes.sizes))]
    best, least = None, _BAD
    for are_shares, sizes_ in ways:
        has_size = np.isfinite(sizes_).all(axis=1)
        for form in WORDS:
            read = corners(values, form)[has_size]
            if not len(read):
                continue
            share = float(are_outside(read, sizes_[has_size]).mean())
            if share <= least and (best is None or share < least):
                best, least = _Reading(form, are_shares), share
    return best


def _hint(found: Found, better: _Reading) -> str:
    columns = ",".join(found.notation.names) if found.notation else ""
    hint = f"they fit as {better}"
    if found.has_rows:
        own = f"add a column box_format of {better.form!r} to items"
        return (
            f"{hint}: {own}, or write column:{better.form}({columns}) instead of column:{columns}"
        )
    if found.is_table:
        return f"{hint}: write {better.form}({columns}) instead of {columns}"
    return f"{hint}, which the format does not use: convert the boxes"


def rectangle(x1: float, y1: float, x2: float, y2: float) -> Floats:
    """Return the four corners of a rectangle, float64[4, 2]."""
    left, right, top, bottom = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)


def pasted_runs(
    pixels: NDArray[np.bool_], left: int, top: int, size: tuple[int, int]
) -> tuple[tuple[float, ...], Runs]:
    """Return the box and the runs of a mask, bool[h, w], at a place in an image.

    `size` is the height and width of the image. ValueError for a mask without a pixel, with too
    many runs, or outside of the image.
    """
    bottom, right = top + pixels.shape[0], left + pixels.shape[1]
    if min(left, top) < 0 or bottom > size[0] or right > size[1]:
        raise ValueError("a mask outside of its image")
    edges = np.diff(pixels, axis=1, prepend=False, append=False)
    rows, columns = np.nonzero(edges)
    if not 0 < len(rows) <= 2 * _MOST_RUNS:
        raise ValueError("no pixel, or more runs than a mask has")
    rows, starts, stops = rows[::2] + top, columns[::2] + left, columns[1::2] + left
    runs = np.stack((rows * size[1] + starts + 1, stops - starts), axis=1).ravel().tolist()
    box = starts.min(), rows.min(), stops.max(), rows.max() + 1
    return tuple(map(float, box)), Runs(" ".join(map(str, runs)), "row")


def ellipse(x: float, y: float, radius_x: float, radius_y: float, turn: float = 0.0) -> Floats:
    """Return an ellipse, turned by `turn` radians, as points float64[64, 2].

    OverflowError if a number is too large for an image.
    """
    if not all(abs(number) < _MOST for number in (x, y, radius_x, radius_y, turn)):
        raise OverflowError("an ellipse beyond all images")
    angles = np.linspace(0, 2 * np.pi, _NUM_CORNERS, endpoint=False)
    across, along = radius_x * np.cos(angles), radius_y * np.sin(angles)
    cos, sin = np.cos(turn), np.sin(turn)
    return np.stack((x + across * cos - along * sin, y + across * sin + along * cos), axis=1)


def turned(ring: Floats, turn: float) -> Floats:
    """Return points, float64[n, 2], turned clockwise by `turn` radians about their center.

    OverflowError if a number is too large for an image.
    """
    if not turn:
        return ring
    if not (np.abs(ring) < _MOST).all():
        raise OverflowError("corners beyond all images")
    middle = (ring.min(0) + ring.max(0)) / 2
    cos, sin = np.cos(turn), np.sin(turn)
    x, y = (ring - middle).T
    found: Floats = np.stack((x * cos - y * sin, x * sin + y * cos), axis=1) + middle
    return found


def box_of(rings: Sequence[Floats]) -> tuple[float, ...]:
    """Return the bounding box x, y, x, y of all points of the rings."""
    points = np.concatenate(rings)
    return (*points.min(0).tolist(), *points.max(0).tolist())
