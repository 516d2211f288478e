"""Thumbnails of 32x32 pixels, which are compared to find near copies.

A thumbnail shows an image without uniform borders. It has grey levels and coarse colours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

LEAST_SIDE = 112
"""Minimum of the shorter side, in pixels, when a stored JPEG is decoded at a smaller scale."""
SIDE = 32
"""Side of a thumbnail in pixels."""
CELL = 4
"""Side in pixels of the square of a thumbnail that has one colour."""
THUMBNAIL = np.dtype(
    [
        ("grey", "u1", (SIDE, SIDE)),
        ("colours", "i2", (2, SIDE // CELL, SIDE // CELL)),
        ("box", "<f4", (4,)),
        ("decoded", "?"),
    ]
)
"""Thumbnail of one image. `colours` are the differences of red and blue from grey in each cell.
`box` is the part of the image that is shown: left, top, width and height as shares (0..1).
`decoded` is False if the image could not be decoded."""
LUMA = np.array((77, 150, 29), np.uint16)
"""Weights of red, green and blue in grey, in 256ths (ITU-R BT.601)."""
_NOISE = 16
"""Maximum difference between the levels of a uniform row or column."""
_LEAST_SHOWN = 0.25
"""Minimum share of each side that is left after borders are cut off."""


def thumbnail(pixels: Pixels) -> Any:
    """Return the `THUMBNAIL` of an image, uint8[height, width, 3]."""
    height, width = pixels.shape[:2]
    from PIL import Image

    top, bottom, left, right = _shown(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    box = (left, top, right, bottom)
    image = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BOX, box)
    red, green, blue = np.asarray(image).astype(np.uint16).transpose(2, 0, 1)
    found = np.zeros((), THUMBNAIL)
    found["grey"] = grey = (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]) >> 8
    number = SIDE // CELL
    cells = np.stack([grey, red, blue]).reshape(3, number, CELL, number, CELL)
    grey, red, blue = cells.sum(axis=(2, 4), dtype=np.int16)
    found["colours"] = np.stack([red - grey, blue - grey]) // CELL**2
    shares = (left / width, top / height, (right - left) / width, (bottom - top) / height)
    found["box"], found["decoded"] = shares, True
    return found


def _shown(planes: Pixels) -> tuple[int, int, int, int]:
    """Return top, bottom, left and right of an image, [3, height, width], without borders."""
    height, width = planes.shape[1:]
    top, bottom = _busy(planes, 2)
    left, right = _busy(planes[:, top:bottom], 1)
    # Borders at the sides hide that the rows above and below are uniform.
    inner_top, inner_bottom = _busy(planes[:, top:bottom, left:right], 2)
    top, bottom = top + inner_top, top + inner_bottom
    if bottom - top < _LEAST_SHOWN * height or right - left < _LEAST_SHOWN * width:
        return 0, height, 0, width
    return top, bottom, left, right


def _busy(planes: Pixels, along: int) -> tuple[int, int]:
    """Return start and stop of the lines that are not uniform, of all lines if all are uniform."""
    busy = np.flatnonzero((planes.max(axis=along) - planes.min(axis=along)).max(axis=0) > _NOISE)
    return (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, planes.shape[3 - along])
