"""Write numbers of arrays as Netpbm images.

uint8 and one-channel uint16 stay, booleans become 0 and 255, others are scaled to 8 or 16 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.arrays.layout import Layout
from shardprep.image.netpbm import SCALED, netpbm_start
from shardprep.image.spec import DepthRange

Array = NDArray[Any]
_MIN_WHITE = 128
"""If the largest whole number is smaller, white may be another number than 255."""
_WHITE = 65535


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
        """Return black and white: (0, 1) or (0, 255) if the values show these, else None."""
        if self.low >= 0 and self.high <= 1:
            return 0.0, 1.0
        is_byte = self.is_whole and self.low >= 0 and _MIN_WHITE <= self.high <= 255
        return (0.0, 255.0) if is_byte or self.low > self.high else None


def is_scaled(dtype: np.dtype[Any], channels: int) -> bool:
    """Return whether numbers of a type need black and white levels."""
    return dtype.kind != "b" and dtype != np.uint8 and not (_is_deep(dtype) and channels == 1)


def _is_deep(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "u" and dtype.itemsize == np.uint16().itemsize


def pictures(rows: Array, layout: Layout, levels: DepthRange, depth: int = 8) -> Array:
    """Return uint8[n, m]: the bytes of `n` image files of `m` bytes, from rows of `layout`.

    `levels` are the values of black and white. "auto" takes them from each row, "full" keeps uint16
    of one channel. Except uint8 and booleans, grey is scaled to `depth` bits, colours to 8.
    """
    if layout.size != (0, 0):
        rows = rows.reshape(len(rows), *layout.size, -1)
        rows = rows.swapaxes(1, 2) if layout.is_by_columns else rows
    else:
        rows = rows.transpose(0, *(axis + 1 for axis in layout.order))
        rows = rows if "C" in layout.axes else rows[..., np.newaxis]
    height, width, channels = rows.shape[-3:]
    start = netpbm_start(height, width, channels, 255)
    if rows.dtype.kind == "b":
        images = rows.astype(np.uint8) * np.uint8(255)
    elif _is_deep(rows.dtype) and channels == 1 and levels == "full":
        images = rows.astype(">u2", copy=False)
        start = netpbm_start(height, width, channels, _WHITE)
    elif rows.dtype != np.uint8:
        images = _scaled(rows, levels, _WHITE if depth == 16 and channels == 1 else 255)
        if images.dtype != np.uint8:
            start = SCALED + netpbm_start(height, width, channels, _WHITE)[3:]
    else:
        images = rows
    num_images = images.size // (height * width * channels)
    data = np.ascontiguousarray(images).view(np.uint8).reshape(num_images, -1)
    files = np.empty((num_images, len(start) + data.shape[1]), np.uint8)
    files[:, : len(start)] = np.frombuffer(start, np.uint8)
    files[:, len(start) :] = data
    return files


def _scaled(rows: Array, levels: DepthRange, white: int) -> Array:
    """Return the rows scaled to 0 to `white`, as uint8 or big-endian uint16.

    NaN becomes black; values beyond `levels` are clipped.
    """
    values = rows.astype(np.float64)
    low, high = levels if isinstance(levels, tuple) else (np.empty(0), np.empty(0))
    if not isinstance(levels, tuple):
        finite, axes = np.isfinite(values), tuple(range(1, values.ndim))
        low = np.where(finite, values, np.inf).min(axes, keepdims=True)
        high = np.where(finite, values, -np.inf).max(axes, keepdims=True)
        low, high = np.where(low > high, 0.0, low), np.where(low > high, 1.0, high)
    values = np.where(np.isnan(values), low, values.clip(low, high))
    span = np.subtract(high, low)
    shares = (values - low) / np.where(span, span, 1.0)
    return np.rint(shares * white).astype(np.uint8 if white == 255 else ">u2")
