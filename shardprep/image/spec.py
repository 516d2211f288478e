"""The size, fit and format of stored images, and the arithmetic that follows from them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

Fit = Literal["crop", "pad", "stretch", "within", "none"]
Format = Literal["jpeg", "png", "raw", "keep"]
Truncated = Literal["reject", "recover"]
DepthRange = Literal["full", "auto"] | tuple[float, float]
"""Values of black and white in an image of more than 8 bits: those of its type ("full"), its own
least and largest value ("auto"), or the same two for every image."""
Window = Literal["auto", "full"] | tuple[float, float]
"""Black to white in DICOM's grey values: the file's own window ("auto"), the range of its type
("full"), or centre and width in its units, Hounsfield say."""

MAX_STORED_PIXELS = (1 << 29) // 3
"""Pixels of a stored image: half a gigabyte in three channels, as TensorFlow and Pillow have it."""
_JPEG_BYTES_PER_PIXEL = (
    (1, 10, 30, 50, 75, 85, 90, 95, 98, 100),
    (0.02, 0.04, 0.08, 0.11, 0.17, 0.23, 0.29, 0.42, 0.59, 0.82),
)
"""JPEG qualities, and the bytes per pixel at each, without the header."""
_JPEG_HEADER_BYTES = 620


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """Size, fit and format of all stored images, and the limits of inputs."""

    size: tuple[int, int] | None = (224, 224)
    """Height and width in pixels; None exactly where `fit` is "none"."""
    fit: Fit = "crop"
    """How an image comes to `size`: cut centrally, letterboxed, distorted, or shrunk to within."""
    format: Format = "jpeg"
    quality: int = 90
    """JPEG quality, 1 to 100; chroma is subsampled 4:2:0."""
    background: tuple[int, int, int] = (255, 255, 255)
    """RGB, 0..255: behind transparent pixels and beside letterboxed ones."""
    depth_range: DepthRange = "full"
    window: Window = "auto"
    max_pixels: int = 100_000_000
    """Width times height above which an image is rejected before its pixels are allocated."""
    min_side: int = 1
    """Pixels of the shorter side below which an image is rejected."""
    max_aspect: float = 0.0
    """Longer by shorter side above which an image is rejected; 0 for no limit."""
    truncated: Truncated = "reject"
    """Treatment of a file that ends before its image does."""

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width that all stored images share, None where they differ."""
        return self.size if self.fit in ("crop", "pad", "stretch") else None


def fitted_size(height: int, width: int, spec: ImageSpec) -> tuple[int, int]:
    """Return the height and width to which the whole image is scaled, before crop or pad."""
    if spec.size is None:
        return height, width
    to_height, to_width = spec.size
    if spec.fit == "stretch":
        return to_height, to_width
    ratios = (to_height / height, to_width / width)
    ratio = max(ratios) if spec.fit == "crop" else min(ratios)
    if spec.fit == "within":
        ratio = min(ratio, 1.0)
    return max(1, round(height * ratio)), max(1, round(width * ratio))


def estimated_bytes(spec: ImageSpec, original_bytes: int, num_images: int = 1) -> int:
    """Return about how many bytes images take in records, for planning shards and space.

    `original_bytes` are those of all of them together.

    Bytes per pixel are those of photographs: means over four sets, measured at 224x224.
    """
    if spec.size is None or spec.format == "keep" or spec.fit == "within":
        return original_bytes
    height, width = spec.size
    if spec.format == "jpeg":
        pixel_bytes = int(height * width * _jpeg_bytes_per_pixel(spec.quality))
        return num_images * (_JPEG_HEADER_BYTES + pixel_bytes)
    return num_images * height * width * (3 if spec.format == "raw" else 2)


@functools.cache
def _jpeg_bytes_per_pixel(quality: int) -> float:
    return float(np.interp(quality, *_JPEG_BYTES_PER_PIXEL))
