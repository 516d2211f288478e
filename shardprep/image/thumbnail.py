"""Thumbnails: pixels to a small WebP."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from typing import Any

    import numpy as np

SIDE = 112
"""Longest side of a thumbnail in pixels."""
_QUALITY = 45


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small WebP image."""

    data: bytes
    width: int
    height: int


def thumbnail(
    pixels: np.ndarray[Any, np.dtype[np.uint8]], side: int = SIDE, quality: int = _QUALITY
) -> Thumbnail:
    """Return an image, uint8[height, width, 3], as a small WebP; small ones keep their size."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.BOX)
    out = io.BytesIO()
    image.save(out, "WEBP", quality=quality, method=0)
    return Thumbnail(out.getvalue(), image.width, image.height)
