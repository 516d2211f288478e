"""Resize with Pillow's bicubic filter, and flatten transparent pixels, byte-equal to Pillow.

The extension `_resample` is several times as fast as Pillow. It is built if a C compiler is found
at installation. Without the extension, Pillow resizes, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

_fill: Callable[..., None] | None
try:
    from shardprep.image import _resample

    _fill = _resample.resize
except ImportError:  # no compiler at installation, or its result does not load here
    _fill = None

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
"""uint8[height, width, channels], row-major."""

Deep = np.ndarray[tuple[int, int, int], np.dtype[np.uint16]]
"""uint16[height, width, 1], row-major."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels; may be fractions."""

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
BACKEND: Final[Literal["c", "pillow"]] = "pillow" if _fill is None else "c"
"""Implementation of `resize` on this machine."""


def resize(
    pixels: Pixels,
    size: tuple[int, int],
    box: Box | None = None,
    out: Pixels | None = None,
    *,
    mirrored: bool = False,
) -> Pixels:
    """Return the pixels in a box, by default all, scaled to `size` (height and width).

    The 1 to 4 channels are filtered separately, alpha like the others. As in Pillow, the filter
    reads beyond the edges of the box where the image continues. The result is `out` if given, which
    must be C-contiguous. `mirrored` exchanges left and right of the result.

    Raises ValueError for pixels of another type or shape, a size below 1, an `out` of another shape
    or a box that is not within the image.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or not 1 <= pixels.shape[2] <= 4:
        shape = f"{pixels.dtype}{list(pixels.shape)}"
        raise ValueError(f"{shape} is not uint8[height, width, 1 to 4 channels]")
    height, width, channels = pixels.shape
    if min(height, width, *size) < 1:
        raise ValueError(f"{height}x{width} pixels cannot become {size[0]}x{size[1]}")
    box = (0.0, 0.0, float(width), float(height)) if box is None else box
    out = np.empty((*size, channels), np.uint8) if out is None else out
    if out.shape != (*size, channels):
        raise ValueError(f"{list(out.shape)} is not {size[0]}x{size[1]} with {channels} channels")
    if _fill is not None:  # the extension checks the box
        simd = True
        _fill(np.ascontiguousarray(pixels), out, box, down_first(pixels, size), simd, mirrored)
        return out
    left, top, right, bottom = np.array(box, np.float32).tolist()  # as Pillow reads it
    if not (0.0 <= left <= right <= width and 0.0 <= top <= bottom <= height):
        raise ValueError(f"the box {box} is not within {height}x{width} pixels")
    out[:] = resize_by_pillow(pixels, size, box)[:, :: -1 if mirrored else 1]
    return out


def resize_by_pillow(pixels: Pixels, size: tuple[int, int], box: Box) -> Pixels:
    """Return the same pixels as `resize`, computed by Pillow instead of the extension."""
    down = down_first(pixels, size)
    if pixels.shape[2] == 3:
        return _by_pillow(pixels, size, box, down=down)
    # Pillow would treat the last of two or four channels as alpha and weight the others by it.
    channels = [pixels[:, :, i] for i in range(pixels.shape[2])]
    return np.stack([_by_pillow(one, size, box, down=down) for one in channels], axis=2)


def resize_deep(
    pixels: Deep,
    size: tuple[int, int],
    box: Box | None = None,
    out: Deep | None = None,
    *,
    mirrored: bool = False,
) -> Deep:
    """Return grey of 16 bits, resized as by `resize`, with Pillow's bicubic filter for floats."""
    from PIL import Image

    grey = Image.fromarray(pixels[:, :, 0].astype(np.float32))
    scaled = np.asarray(grey.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=box))
    out = np.empty((*size, 1), np.uint16) if out is None else out
    out[:, :, 0] = np.rint(scaled).clip(0, 65535)[:, :: -1 if mirrored else 1]
    return out


def down_first(pixels: Pixels, size: tuple[int, int]) -> bool:
    """Return whether the vertical pass is first, as in Pillow 13: each pass rounds its values."""
    less_height, less_width = pixels.shape[0] - size[0], pixels.shape[1] - size[1]
    return less_height > max(0, 2 * less_width)


def _by_pillow(pixels: _Bytes, size: tuple[int, int], box: Box, *, down: bool) -> _Bytes:
    from PIL import Image

    image, (left, top, right, bottom) = Image.fromarray(pixels), box
    height, width = size
    if down:  # a separate call, because Pillow 12 always begins with the horizontal pass
        rows = (0, top, image.width, bottom)
        image = image.resize((image.width, height), Image.Resampling.BICUBIC, box=rows)
        top, bottom = 0, height
    box = (left, top, right, bottom)
    return np.array(image.resize((width, height), Image.Resampling.BICUBIC, box=box))


_pixels: Any
try:
    from shardprep.image import _pixels
except ImportError:  # no compiler at installation, or its result does not load here
    _pixels = None


def flattened(pixels: Pixels, background: tuple[int, int, int] | None) -> Pixels:
    """Return RGBA or grey-alpha pixels as RGB over a background, byte-equal to Pillow's result.

    Takes and returns uint8[height, width, channels], C-contiguous. No background: alpha is ignored.
    """
    out = np.empty((*pixels.shape[:2], 3), np.uint8)
    if _pixels is not None:
        _pixels.flatten(pixels, out, background)
        return out
    if background is None:
        out[:] = pixels[..., :-1]
        return out
    alpha = pixels[..., -1:].astype(np.uint16)
    sums = pixels[..., :-1] * alpha + np.array(background, np.uint16) * (255 - alpha) + 128
    out[:] = ((sums >> 8) + sums) >> 8
    return out
