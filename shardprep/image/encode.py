"""Encode pixels to the bytes that a record holds."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import simplejpeg
from PIL import Image

from shardprep.image.resample import Pixels
from shardprep.image.spec import ImageSpec
from shardprep.profiling import stage

_JPEGS = ("jpeg", "mpo")
_NO_COLOUR = 128


@stage("encode")
def encode(pixels: Pixels, original_format: str, spec: ImageSpec) -> bytes:
    """Return pixels, uint8[height, width, 3] or [height, width, 1], in the format of the spec.

    RGB is stored in both cases: grey pixels give the same bytes as equal RGB channels.
    """
    is_jpeg = spec.format == "jpeg" or (spec.format == "keep" and original_format in _JPEGS)
    if is_jpeg and pixels.shape[2] == 1:
        grey = _encoded_grey(pixels, spec.quality)
        if grey is not None:
            return grey
    pixels = with_colours(pixels)
    if spec.format == "raw":
        return pixels.tobytes()
    if not is_jpeg:
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return out.getvalue()
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=spec.quality, colorsubsampling="420"
    )
    return data


def with_colours(pixels: Pixels) -> Pixels:
    """Return pixels with three channels; grey is repeated."""
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _encoded_grey(pixels: Pixels, quality: int) -> bytes | None:
    """Return the JPEG that equal RGB channels would give; None if a side is odd.

    The encoder pads planes of odd sides differently from pixels.
    """
    height, width = pixels.shape[:2]
    if height % 2 or width % 2:
        return None
    chroma = _no_colours(height // 2, width // 2)
    data: bytes = simplejpeg.encode_jpeg_yuv_planes(
        np.ascontiguousarray(pixels[:, :, 0]), chroma, chroma, quality=quality
    )
    return data


@lru_cache(maxsize=1)
def _no_colours(height: int, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.full((height, width), _NO_COLOUR, np.uint8)
