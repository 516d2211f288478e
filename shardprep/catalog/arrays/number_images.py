"""Write numbers of arrays as Netpbm images.

uint8 and booleans are kept, uint16 in one channel as well. Other numbers are scaled to 8 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.arrays.layout import Layout
from shardprep.image.netpbm import netpbm_start
from shardprep.image.spec import DepthRange

Array = NDArray[Any]
_MIN_WHITE = 128
"""Whole numbers of a smaller maximum may have another range than 0 to 255."""
_BYTE_RANGE = (0.0, 255.0)
_UNIT_RANGE = (0.0, 1.0)


class ValueRange(NamedTuple):
    """Smallest and largest value of arrays, and whether all values are whole numbers."""

    low: float = np.inf
    high: float = -np.inf
    is_whole: bool = True

    def with_values(self, values: Array) -> ValueRange:
        finite = values[np.isfinite(values)]
        if not finite.size:
            return self
        is_whole = self.is_whole and bool((finite == np.rint(finite)).all())
        return ValueRange(
            min(self.low, float(finite.min())), max(self.high, float(finite.max())), is_whole
        )

    def levels(self) -> tuple[float, float] | None:
        """Return black and white if the values show them, otherwise None."""
        if self.low >= 0 and self.high <= 1:
            return _UNIT_RANGE
        is_byte = self.is_whole and self.low >= 0 and _MIN_WHITE <= self.high <= _BYTE_RANGE[1]
        return _BYTE_RANGE if is_byte or self.low > self.high else None


def is_scaled(dtype: np.dtype[Any], channels: int) -> bool:
    """Return whether numbers of a type need black and white levels."""
    return dtype.kind != "b" and dtype != np.uint8 and not (_is_deep(dtype) and channels == 1)


def _is_deep(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "u" and dtype.itemsize == np.uint16().itemsize


def pictures(images: Array, layout: Layout, levels: DepthRange, depth: int = 8) -> Array:
    """Return uint8[n, m], a file of `m` bytes for each of `n` images, in the axes of `layout`.

    `levels` are black and white of numbers that `is_scaled`; "auto" takes them from each image.
    They are scaled to `depth` bits if they are grey, otherwise to 8.
    """
    if layout.size == (0, 0):
        images = images.transpose(0, *(axis + 1 for axis in layout.order))
    else:
        images = images.reshape(len(images), *layout.size, -1)
    images = images.reshape(*images.shape[:3], -1)
    num_images, height, width, channels = images.shape
    deepest = 255
    if images.dtype.kind == "b":
        images = images.astype(np.uint8) * np.uint8(255)
    elif _is_deep(images.dtype) and channels == 1:
        images, deepest = images.astype(">u2", copy=False), 65535
    elif images.dtype != np.uint8:
        deepest = 65535 if depth == 16 and channels == 1 else 255
        images = _scaled(images, levels, deepest).astype(">u2" if deepest > 255 else np.uint8)
    start = netpbm_start(height, width, channels, deepest)
    rows = np.ascontiguousarray(images).view(np.uint8).reshape(num_images, -1)
    files = np.empty((num_images, len(start) + rows.shape[1]), np.uint8)
    files[:, : len(start)] = np.frombuffer(start, np.uint8)
    files[:, len(start) :] = rows
    return files


def _scaled(images: Array, levels: DepthRange, white: int) -> Array:
    """Return values from 0 to `white` as `color` does: NaN is black, others are clipped."""
    values = images.astype(np.float64)
    low, high = levels if isinstance(levels, tuple) else (np.empty(0), np.empty(0))
    if not isinstance(levels, tuple):
        finite, axes = np.isfinite(values), tuple(range(1, values.ndim))
        low = np.where(finite, values, np.inf).min(axes, keepdims=True)
        high = np.where(finite, values, -np.inf).max(axes, keepdims=True)
        low, high = np.where(low > high, 0.0, low), np.where(low > high, 1.0, high)
    values = np.where(np.isnan(values), low, values.clip(low, high))
    span = np.subtract(high, low)
    return np.rint((values - low) / np.where(span, span, 1.0) * white)
