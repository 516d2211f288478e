"""A check that boxes are inside of their images, which a wrong reading of four numbers breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardprep.catalog.objects.formats import box_format
from shardprep.errors import SourceError, shown
from shardprep.image.annotation_types import Floats
from shardprep.recipe.object_rules import BoxForm

if TYPE_CHECKING:
    from shardprep.catalog.objects.parsed import Found

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
SizeOf = Callable[[int], tuple[int, int] | None]
"""Returns height and width of an image by its position, None where they are not known."""

_MOST_HEADS = 256
"""Images whose heads are read for their size where annotations do not state it: a wrong reading is
wrong for most of them."""
_NUM_SHOWN = 3
"""Boxes in an error."""
_MOST_SHOWN = 80
"""Characters of a key in an error."""
_LONG = 1 << 31
"""Pixels that no side of an image has."""
_FITS = 0.01
"""Share of boxes that may be wrong in a reading that is proposed."""


class _Boxes(NamedTuple):
    """The boxes of some images."""

    corners: Floats
    """x, y, x, y as they are read, float64[n, 4]."""
    images: Ints
    """Position of the image of each."""
    sizes: Floats
    """Height and width of that image in the unit of the boxes, float64[n, 2]."""
    is_relative: bool


class _Reading(NamedTuple):
    """One meaning of four numbers."""

    form: BoxForm
    is_relative: bool

    def __str__(self) -> str:
        unit = "shares of the sides" if self.is_relative else "pixels"
        return f"{box_format.WORDS[self.form]} in {unit}"


def check_boxes(
    found: Found, option: str, keys: Sequence[str], size_of: SizeOf, most: float
) -> None:
    """Check that few enough boxes pass an edge of their image, or have no inside.

    Args:
        found: the objects of all images.
        option: the one that asks for them, for the error.
        keys: those of the images.
        size_of: asked for some images whose size is not stated.
        most: share of the boxes that may be so.

    Raises:
        SourceError: more boxes are; it shows three, and names the reading that would fit.

    """
    boxes = _boxes(found, size_of)
    are_wrong = box_format.are_outside(boxes.corners, boxes.sizes)
    is_tiny = not boxes.is_relative and box_format.is_relative(boxes.corners)
    if is_tiny:
        are_wrong[:] = True
    if are_wrong.sum() <= most * len(are_wrong):
        return
    form = found.notation.form if found.notation else None
    read = f", read as {_Reading(form, boxes.is_relative)}" if form else ""
    fault = "are below one pixel" if is_tiny else "are not inside of their images"
    what = f"{are_wrong.sum():,} of {len(are_wrong):,} boxes {fault}{read}"
    numbers = box_format.numbers(boxes.corners, form or "xyxy")
    some = []
    for i in np.flatnonzero(are_wrong)[:_NUM_SHOWN].tolist():
        values = ", ".join(f"{value:.6g}" for value in numbers[i])
        height, width = boxes.sizes[i]
        size = "" if boxes.is_relative else f" of {width:g}x{height:g} pixels"
        some.append(f"[{values}] in {shown(keys[int(boxes.images[i])], _MOST_SHOWN)}{size}")
    better = _better(found, boxes, numbers, size_of) if form else None
    hint = "correct the boxes" if better is None else _hint(found, better)
    hint = f"{hint}, or accept them with --max-clipped 1"
    raise SourceError(option, f"{what}, such as {', '.join(some)}", hint)


def _boxes(found: Found, size_of: SizeOf) -> _Boxes:
    """Return the boxes of all images whose size is stated, or else of some."""
    listed = [
        (i, one) for i, one in enumerate(found.annotations) if one is not None and len(one.boxes)
    ]
    is_relative = any(one.is_relative for _, one in listed)
    sizes = {i: (1, 1) if is_relative else one.size for i, one in listed}
    unknown = [i for i, size in sizes.items() if size is None or not _is_size(size)]
    for i in unknown[:: -(-len(unknown) // _MOST_HEADS) or 1]:
        sizes[i] = size_of(i)
    known = [(i, one.boxes, size) for i, one in listed if (size := sizes[i]) and _is_size(size)]
    numbers = [len(boxes) for _, boxes, _ in known]
    images = np.repeat(np.array([i for i, _, _ in known], np.int64), numbers)
    each = np.array([size for _, _, size in known], np.float64).reshape(-1, 2)
    corners = np.concatenate([np.empty((0, 4)), *(boxes for _, boxes, _ in known)])
    are_boxes = np.isfinite(corners).all(axis=1)  # NaN: an outline alone
    return _Boxes(
        corners[are_boxes], images[are_boxes], each.repeat(numbers, 0)[are_boxes], is_relative
    )


def _is_size(size: tuple[int, int]) -> bool:
    return min(size) >= 1 and max(size) < _LONG


def _better(found: Found, boxes: _Boxes, numbers: Floats, size_of: SizeOf) -> _Reading | None:
    """Return the reading by which nearly all boxes are inside of their images, None without one."""
    ways = [(boxes.is_relative, boxes.sizes)]
    if boxes.is_relative:
        some = np.unique(boxes.images)
        some = some[:: -(-len(some) // _MOST_HEADS)]
        known = {i: found.annotations[i] for i in some.tolist()}
        sizes = {i: (one and one.size) or size_of(i) for i, one in known.items()}
        nothing = (np.nan, np.nan)
        each = [sizes.get(i) or nothing for i in boxes.images.tolist()]
        ways.append((False, np.array(each, np.float64)))
    elif box_format.is_relative(numbers):
        ways = [(True, np.ones_like(boxes.sizes))]
    best, least = None, _FITS
    for is_relative, sizes_ in ways:
        has_size = np.isfinite(sizes_).all(axis=1)
        for form in box_format.WORDS:
            corners = box_format.corners(numbers, form)[has_size]
            if not len(corners):
                continue
            share = float(box_format.are_outside(corners, sizes_[has_size]).mean())
            if share <= least and (best is None or share < least):
                best, least = _Reading(form, is_relative), share
    return best


def _hint(found: Found, better: _Reading) -> str:
    columns = ",".join(found.notation.names) if found.notation else ""
    hint = f"they fit as {better}"
    if found.is_table:
        return f"{hint}: write {better.form}({columns}) instead of {columns}"
    return f"{hint}, which is not how the format has them: convert them"
