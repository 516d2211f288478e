"""Read Netpbm images of 8 bits without a decoder, and write headers of Netpbm images.

Arrays of a source become Netpbm images. Pillow decodes images with 16 bits, alpha or comments.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from shardprep.image.resample import Pixels

SCALED = b"P5\n# scaled\n"
"""First bytes of grey images whose levels are final: `--depth-range` does not apply to them."""
_HEADER = re.compile(rb"P([56])\n([1-9]\d{0,8}) ([1-9]\d{0,8})\n255\n")
_MAGIC = {1: b"P5", 3: b"P6", 4: b"PyRGBA"}
"""Number of channels → first bytes. Only Pillow knows the form with 4 channels."""


class OrdinaryNetpbm(NamedTuple):
    """An image whose bytes after the header are its pixels."""

    height: int
    width: int
    data: bytes
    start: int

    def pixels(self, background: tuple[int, int, int]) -> Pixels:
        """Return the pixels, uint8[height, width, 3], or [height, width, 1] for grey; read-only."""
        del background
        return np.frombuffer(self.data, np.uint8, -1, self.start).reshape(
            self.height, self.width, -1
        )


def ordinary_netpbm(data: bytes) -> OrdinaryNetpbm | None:
    """Return the image of an 8-bit file without comments and of exactly the right size, or None."""
    match = _HEADER.match(data)
    if match is None:
        return None
    height, width, start = int(match[3]), int(match[2]), match.end()
    channels = 1 if match[1] == b"5" else 3
    if len(data) != start + height * width * channels:
        return None
    return OrdinaryNetpbm(height, width, data, start)


def netpbm_start(height: int, width: int, channels: int, maximum: int) -> bytes:
    """Return the header of an image with values up to `maximum`; 4 channels are RGB and alpha."""
    return b"%s\n%d %d\n%d\n" % (_MAGIC[channels], width, height, maximum)
