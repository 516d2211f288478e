"""Layouts of arrays: the axes of samples, of the images of a stack, and of the pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

CHANNELS = (1, 3, 4)
MIN_FLAT = 64
"""Minimum number of values of a flat image, which is 8x8 pixels."""
_MAX_ASPECT = 4
_MIN_SIDE = 8
_ORDER = "NTHWC"


class Layout(NamedTuple):
    """The meaning of the axes of an array of numbers."""

    axes: str
    """One letter for each axis: N samples, T images of a stack, H height, W width, C channels.

    "N" alone means flat images. With several T, the first is the outermost."""
    size: tuple[int, int] = (0, 0)
    """Height and width of flat images with interleaved channels, otherwise (0, 0)."""
    is_by_columns: bool = False
    """Whether flat images are stored column by column."""

    @property
    def rows(self) -> int:
        """Axis of the samples, or of the images in a single stack; −1 for a single image."""
        return self.axes.find("N" if self.has_samples else "T")

    @property
    def has_samples(self) -> bool:
        return "N" in self.axes

    @property
    def row_axes(self) -> str:
        return self.axes[: self.rows] + self.axes[self.rows + 1 :] if self.rows >= 0 else self.axes

    @property
    def order(self) -> tuple[int, ...]:
        """Axes of one row in the order: images, height, width, channels."""
        own = self.row_axes
        return tuple(sorted(range(len(own)), key=lambda axis: _ORDER.index(own[axis])))

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for axis, n in enumerate(shape) if axis != self.rows)


def possible_layouts(shape: Sequence[int], *, has_rows: bool) -> list[Layout]:
    """Return the layouts that an array of images may have; [] if the shape fits no image.

    With `has_rows`, the first axis counts images.
    """
    if len(shape) in (4, 5) or (has_rows and len(shape) > 1):
        is_large = min(shape[2:4], default=0) >= _MIN_SIDE
        stacks = [Layout(f"T{one.axes}") for one in _of_image(shape[2:]) if is_large]
        return [one._replace(axes=f"N{one.axes}") for one in _of_image(shape[1:]) or stacks]
    if len(shape) == 3:
        if shape[2] in CHANNELS and shape[0] not in CHANNELS:
            return [Layout("HWC")]
        planes = [Layout(axes) for axes, at in (("HWC", 2), ("CHW", 0)) if shape[at] == 3]
        return [*planes, Layout("NHW")]
    if len(shape) == 2:
        if max(shape) / min(shape) > _MAX_ASPECT:
            return [Layout("N", size) for size in _flat(shape[1])]
        return [Layout("HW")] if min(shape) >= _MIN_SIDE else []
    return []


def _of_image(shape: Sequence[int]) -> list[Layout]:
    if len(shape) == 1:
        return [Layout("", size) for size in _flat(shape[0])]
    if len(shape) == 2:
        return [Layout("HW")]
    if len(shape) != 3:
        return []
    return [Layout(axes) for axes, at in (("HWC", 2), ("CHW", 0)) if shape[at] in CHANNELS]


def _flat(length: int) -> list[tuple[int, int]]:
    side = math.isqrt(length)
    return [(side, side)] if side * side == length >= MIN_FLAT else []


def given_layout(text: str, shape: Sequence[int], *, has_rows: bool) -> Layout | None:
    """Return the layout that a user states, such as NCHW or 236x137; None if the shape differs."""
    if "x" in text:
        width, height = map(int, text.split("x"))
        channels, rest = divmod(shape[-1], width * height)
        return Layout("N", (height, width)) if not rest and channels in CHANNELS else None
    if has_rows and text[:1] != "N":
        return None
    if text in ("N", "NHW", "NWH") and len(shape) == 2:
        sizes = _flat(shape[-1])
        return Layout("N", sizes[0], is_by_columns=text == "NWH") if sizes else None
    if (
        len(text) != len(shape)
        or 0 in shape
        or ("C" in text and shape[text.index("C")] not in CHANNELS)
    ):
        return None
    return Layout(text)
