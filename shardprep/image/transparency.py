"""Put images with transparency on a background; this needs no Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardprep.image.resample import Pixels

_pixels: Any
try:
    from shardprep.image import _pixels
except ImportError:  # no compiler at installation, or its result does not load here
    _pixels = None


def flattened(pixels: Pixels, background: tuple[int, int, int] | None) -> Pixels:
    """Return RGBA or grey-alpha pixels as RGB over a background, byte-equal to Pillow's result.

    Takes and returns uint8[height, width, channels], C-contiguous. With None, alpha is ignored.
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
