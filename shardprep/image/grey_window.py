"""Stored grey values of DICOM to shades of 0 to 255: rescaled, then seen through a window.

The rules are those of PS3.3, C.11; what they leave open is said in docs/images.md.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pydicom import Dataset

    from shardprep.image.spec import Window

    Values = NDArray[Any]

_BAND_PIXELS: Final = 1 << 18
"""Pixels that are worked on at a time, with numbers of 8 bytes."""
_TAILS: Final = (0.005, 0.995)
"""Shares of the pixels below black and not above white, where no window is known."""


def in_8_bits(values: Values, about: Dataset, window: Window) -> Values:
    """Return stored grey values, [height, width], as shades of 0 to 255, uint8."""
    share = _share_of_white(values, about, window)

    def shades(stored: Values) -> Values:
        found = np.nan_to_num(share(_rescaled(stored, about)), nan=0.0)
        shade: Values = np.rint(np.clip(found, 0, 1) * 255).astype(np.uint8)
        return shade

    num_bytes = values.dtype.itemsize
    table = None
    if num_bytes <= 2 and values.dtype.kind != "f":  # a table of all values that the type has
        unsigned = np.dtype(f"u{num_bytes}")
        table = shades(np.arange(1 << 8 * num_bytes).astype(unsigned).view(values.dtype))
        values = values.view(unsigned)
    grey = np.empty(values.shape, np.uint8)
    height, width = values.shape
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        band = values[top : top + rows]
        grey[top : top + rows] = shades(band) if table is None else table[band]
    return grey


def _share_of_white(values: Values, about: Dataset, window: Window) -> Callable[[Values], Values]:
    """Return the function of rescaled values that is 0 at black and 1 at white, or beyond them."""
    if window == "auto":
        table = _first(about.get("VOILUTSequence"))
        if table is not None:
            return lambda rescaled: _looked_up(rescaled, table) / _white(table)
        found = _own_window(about)
    else:
        found = (*window, "LINEAR") if isinstance(window, tuple) else None
    if found is not None:
        return functools.partial(_windowed, *found)
    bits = int(about.get("BitsStored") or 32)
    if values.dtype.kind in "iu" and (window == "full" or bits <= 8):
        low = -(1 << bits - 1) if values.dtype.kind == "i" else 0
        ends = np.array([low, low + (1 << bits) - 1])
    else:
        ends = _tails(values, about)
    black, white = sorted(_rescaled(ends, about).tolist())
    return lambda rescaled: (rescaled - black) / ((white - black) or 1)


def _own_window(about: Dataset) -> tuple[float, float, str] | None:
    """Return centre, width and function of the first window in a file, None where it has none."""
    center, width = (_first(about.get(name)) for name in ("WindowCenter", "WindowWidth"))
    function = str(about.get("VOILUTFunction") or "LINEAR")
    if center is None or width is None:
        return None
    is_usable = float(width) >= 1 if function == "LINEAR" else float(width) > 0
    return (float(center), float(width), function) if is_usable else None


def _windowed(center: float, width: float, function: str, rescaled: Values) -> Values:
    """Return the shares of white by a window (PS3.3, C.11.2.1.2 and C.11.2.1.3)."""
    if function == "SIGMOID":
        return 1 / (1 + np.exp(np.clip(-4 * (rescaled - center) / width, -60, 60)))
    if function == "LINEAR_EXACT":
        return (rescaled - center) / width + 0.5
    if width == 1:
        return (rescaled > center - 0.5).astype(np.float64)
    return (rescaled - (center - 0.5)) / (width - 1) + 0.5


def _tails(values: Values, about: Dataset) -> Values:
    """Return the stored values at `_TAILS`, of those that are no padding."""
    padding = about.get("PixelPaddingValue")
    is_meant = np.isfinite(values)
    if padding is not None:
        other = about.get("PixelPaddingRangeLimit")
        low, high = sorted((padding, padding if other is None else other))
        is_meant &= (values < low) | (values > high)
    found = values[is_meant]
    return np.quantile(found if found.size else values, _TAILS, method="nearest")


def _rescaled(stored: Values, about: Dataset) -> Values:
    """Return the values that stored ones mean, Hounsfield units say (PS3.3, C.11.1)."""
    table = _first(about.get("ModalityLUTSequence"))
    if table is not None:
        return _looked_up(stored, table)
    slope, intercept = about.get("RescaleSlope"), about.get("RescaleIntercept")
    return stored * np.float64(1 if slope is None else slope) + np.float64(intercept or 0)


def _looked_up(values: Values, table: Dataset) -> Values:
    """Return the entries of a table for whole numbers; the first and the last go on beyond it."""
    number, first, _ = table.LUTDescriptor
    entries = table.LUTData
    if isinstance(entries, bytes):
        entries = np.frombuffer(entries, "<u2" if len(entries) > (number or 1 << 16) else "u1")
    entries = np.asarray(entries)
    places = np.clip(np.rint(values).astype(np.int64) - first, 0, len(entries) - 1)
    found: Values = entries[places].astype(np.float64)
    return found


def _white(table: Dataset) -> int:
    return (1 << int(table.LUTDescriptor[2])) - 1


def _first(found: Any) -> Any:
    """Return the first of several values, or the only one; None for none."""
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        return found[0] if len(found) else None
    return found
