"""Encode stored pixels as JPEG, PNG or raw bytes; values of 16 bits as grey PNG."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from shardprep.image.placement import Placement
from shardprep.image.png import encoded_png
from shardprep.image.resample import Deep, Pixels, resize_deep
from shardprep.image.spec import ImageSpec
from shardprep.profiling import stage

JPEGS = ("jpeg", "mpo")


@stage("encode")
def encode(pixels: Pixels, original_format: str, spec: ImageSpec) -> bytes:
    """Return pixels, uint8[height, width, 3] or [height, width, 1], encoded by `spec.format`.

    "keep" means JPEG for a JPEG original, else PNG. Grey gives the bytes of equal RGB channels.
    """
    is_jpeg = spec.format == "jpeg" or (spec.format == "keep" and original_format in JPEGS)
    if is_jpeg and pixels.shape[2] == 1:
        grey = _encoded_grey(pixels, spec.quality)
        if grey is not None:
            return grey
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    if spec.format == "raw":
        return pixels.tobytes()
    if not is_jpeg:
        return encoded_png(pixels)
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=spec.quality, colorsubsampling="420"
    )
    return data


def _encoded_grey(pixels: Pixels, quality: int) -> bytes | None:
    """Return the JPEG that equal RGB channels give; None if a side is odd, as padding differs."""
    height, width = pixels.shape[:2]
    if height % 2 or width % 2:
        return None
    chroma = _no_colours(height // 2, width // 2)
    data: bytes = simplejpeg.encode_jpeg_yuv_planes(
        np.ascontiguousarray(pixels[:, :, 0]), chroma, chroma, quality=quality
    )
    return data


@lru_cache(maxsize=1)
def _no_colours(height: int, width: int) -> NDArray[np.uint8]:
    return np.full((height, width), 128, np.uint8)


@stage("encode")
def encode_deep(pixels: Deep, placement: Placement, spec: ImageSpec) -> bytes:
    """Return pixels, uint16[height, width, 1], fitted by a placement, as a grey PNG of 16 bits."""
    if pixels.shape[:2] != placement.fitted:
        pixels = resize_deep(pixels, placement.fitted, placement.box)
    if placement.fitted != placement.size:
        (grey,) = Image.new("RGB", (1, 1), spec.background).convert("L").tobytes()
        canvas = np.full((*placement.size, 1), grey * 257, np.uint16)
        canvas[placement.inside] = pixels
        pixels = canvas
    return encoded_png(pixels[:, :, 0])
