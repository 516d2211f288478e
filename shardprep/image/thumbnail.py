"""Thumbnails of one size, from which near copies are found.

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

    top, left, bottom, right = _shown(pixels)
    image = Image.fromarray(pixels)
    small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX, (left, top, right, bottom)))
    found = np.zeros((), THUMBNAIL)
    levels = small.astype(np.uint16)
    grey = (levels @ LUMA) >> 8
    found["grey"] = grey
    number = SIDE // CELL
    cells = np.concatenate([grey[..., None], levels], axis=2)
    cells = cells.reshape(number, CELL, number, CELL, 4).sum(axis=(1, 3)).astype(np.int16)
    found["colours"] = (cells[..., [1, 3]] - cells[..., :1]).transpose(2, 0, 1) // CELL**2
    shares = (left / width, top / height, (right - left) / width, (bottom - top) / height)
    found["box"], found["decoded"] = shares, True
    return found


def _shown(pixels: Pixels) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right of an image without its uniform borders."""
    height, width = pixels.shape[:2]
    edges = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    if all(np.ptp(edge, axis=0).max() > _NOISE for edge in edges):
        return 0, 0, height, width
    top, bottom = _busy(pixels)
    left, right = _busy(pixels[top:bottom].swapaxes(0, 1))
    # Side borders hide that the rows above and below are uniform.
    inner_top, inner_bottom = _busy(pixels[top:bottom, left:right])
    top, bottom = top + inner_top, top + inner_bottom
    if bottom - top < _LEAST_SHOWN * height or right - left < _LEAST_SHOWN * width:
        return 0, 0, height, width
    return top, left, bottom, right


def _busy(rows: Pixels) -> tuple[int, int]:
    """Return the first row that is not uniform, and the end of the last; all rows if none is."""
    busy = np.flatnonzero((rows.max(axis=1) - rows.min(axis=1)).max(axis=1) > _NOISE)
    return (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, len(rows))
