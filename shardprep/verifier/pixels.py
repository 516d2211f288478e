"""Stored images against their schema: their first and last bytes, or all of their pixels."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import simplejpeg
from PIL import Image

if TYPE_CHECKING:
    from shardprep.dataset.schema import Feature
    from shardprep.image.spec import Encoding

_JPEG = b"\xff\xd8\xff"
_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


def fault_outside(data: bytes, image: Feature, size: tuple[int, int] | None) -> str:
    """Return what is wrong with an image as far as its ends and its length tell, "" for nothing.

    `size` is the height and width, in pixels, that its record says.
    """
    if image.encoding == "raw":
        height, width = size or (0, 0)
        height, width = image.shape[0] or height, image.shape[1] or width
        expected = height * width * (image.shape[2] or 3)
        if len(data) == expected:
            return ""
        return f"has {len(data):,} bytes of pixels, {width}x{height} takes {expected:,}"
    if not data:
        return "is empty"
    found = _codec(data)
    if not found or image.encoding not in (found, "any"):
        wanted = {"jpeg": "JPEG", "png": "PNG"}.get(image.encoding or "", "JPEG or PNG")
        return f"is no {wanted} (it starts with {data[:8]!r})"
    if found == "png" and not data.endswith(_PNG_END):
        return "is a PNG without an end"
    return ""


def fault_inside(data: bytes, image: Feature, size: tuple[int, int] | None) -> str:
    """Return what is wrong with an image when all of it is decoded, "" for nothing."""
    if image.encoding == "raw":
        return ""  # its length is all that can be wrong
    try:
        shape = _jpeg_shape(data) if _codec(data) == "jpeg" else _png_shape(data)
    except Exception as error:
        return f"does not decode ({' '.join(str(error).split())[:200] or type(error).__name__})"
    for side, wanted in zip(shape, image.shape, strict=True):
        if wanted not in (None, side):
            return f"is {_shown(shape)}, the schema says {_shown(image.shape)}"
    if size is not None and shape[:2] != size:
        return f"is {_shown(shape)}, its record says {_shown((*size, shape[2]))}"
    return ""


def _codec(data: bytes) -> Encoding | None:
    if data.startswith(_JPEG):
        return "jpeg"
    return "png" if data.startswith(_PNG) else None


def _jpeg_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of a JPEG that the strictest decoder takes."""
    height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    simplejpeg.decode_jpeg(data)
    return height, width, {"Gray": 1, "CMYK": 4, "YCCK": 4}.get(space, 3)


def _png_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of a PNG of which every checksum and every line is good."""
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        image.verify()
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        image.load()
        return image.height, image.width, _CHANNELS.get(image.mode, 0)


def _shown(shape: tuple[int | None, ...]) -> str:
    height, width, channels = (side or "any" for side in shape)
    return f"{width}x{height} pixels of {channels} channels"
