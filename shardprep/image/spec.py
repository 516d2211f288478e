"""Size, fit and format of stored images, and the sizes computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Fit = Literal["crop", "pad", "stretch", "within", "none"]
Format = Literal["jpeg", "png", "raw", "keep"]
Truncated = Literal["reject", "recover"]
DepthRange = Literal["full", "auto"] | tuple[float, float]
"""Values that become black and white in an image of more than 8 bits: the range of its type
("full"), its own minimum and maximum ("auto"), or two numbers for all images."""
Window = Literal["auto", "full"] | tuple[float, float]
"""Window of DICOM grey values: the window in the file ("auto"), the range of its type ("full"), or
centre and width in the file's units, such as Hounsfield units."""

MAX_STORED_PIXELS = (1 << 29) // 3
"""Maximum number of pixels of a stored image: 512 MiB of RGB, as in TensorFlow and Pillow."""
MAX_STACK_PIXELS = 1 << 29
"""Maximum number of pixels of all images of a stack: 1.5 GiB of RGB, or 1 GiB of 16-bit grey."""
_JPEG_BYTES_PER_PIXEL = (
    (1, 10, 30, 50, 75, 85, 90, 95, 98, 100),
    (0.02, 0.04, 0.08, 0.11, 0.17, 0.23, 0.29, 0.42, 0.59, 0.82),
)
"""JPEG qualities, and bytes per pixel without header: means of photos in four datasets, 224x224."""
_JPEG_HEADER_BYTES = 620


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """Size, fit and format of all stored images, how inputs are read, and limits for inputs."""

    size: tuple[int, int] | None = (224, 224)
    """Height and width in pixels; None if and only if `fit` is "none"."""
    fit: Fit = "crop"
    """How an image gets `size`: central crop, padding, distortion, or shrinking into it."""
    tile: tuple[int, int] | None = None
    """Height and width of the tiles that are brought to `size`; None without tiles. With padding, a
    smaller tile is enlarged by at most the factor of a whole tile."""
    format: Format = "jpeg"
    quality: int = 90
    """JPEG quality, 1 to 100; chroma is subsampled 4:2:0."""
    depth: int = 8
    """Bits of a stored value, 8 or 16; images of 16 bits are grey and of format "png"."""
    background: tuple[int, int, int] = (255, 255, 255)
    """RGB, 0 to 255, behind transparent pixels and in the bars of a padded image."""
    depth_range: DepthRange = "full"
    window: Window = "auto"
    max_pixels: int = 100_000_000
    """Maximum width times height of an input; a larger one is rejected before it is decoded."""
    min_side: int = 1
    """Minimum of the shorter side of an input in pixels."""
    max_aspect: float = 0.0
    """Maximum ratio of the longer to the shorter side of an input; 0 for no limit."""
    truncated: Truncated = "reject"
    """Whether a truncated file is rejected, or its readable part is stored."""

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width of all stored images; None if they may differ."""
        return self.size if self.fit in ("crop", "pad", "stretch") else None


def fitted_size(height: int, width: int, spec: ImageSpec) -> tuple[int, int]:
    """Return the height and width of the whole scaled image, before it is cropped or padded."""
    if spec.size is None:
        return height, width
    to_height, to_width = spec.size
    if spec.fit == "stretch":
        return to_height, to_width
    ratios = (to_height / height, to_width / width)
    ratio = max(ratios) if spec.fit == "crop" else min(ratios)
    if spec.fit == "within":
        ratio = min(ratio, 1.0)
    if spec.fit == "pad" and spec.tile is not None:
        ratio = min(ratio, to_height / spec.tile[0], to_width / spec.tile[1])
    return max(1, round(height * ratio)), max(1, round(width * ratio))


def estimated_bytes(spec: ImageSpec, original_bytes: int, num_images: int = 1) -> int:
    """Return the estimated bytes of `num_images` stored images, from the bytes of all originals."""
    if spec.size is None or spec.format == "keep" or spec.fit == "within":
        return original_bytes
    height, width = spec.size
    if spec.format == "jpeg":
        per_pixel = float(np.interp(spec.quality, *_JPEG_BYTES_PER_PIXEL))
        return num_images * (_JPEG_HEADER_BYTES + int(height * width * per_pixel))
    return num_images * height * width * (3 if spec.format == "raw" else 2)
