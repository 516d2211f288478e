"""Limit on the size of stored images: an untrusted record may state a false size.

The size in the header is checked before memory is allocated, wherever an image or a mask of a
record is decoded. TensorFlow's decoders have their own limit.
"""

from __future__ import annotations

import io
import struct

import simplejpeg
from PIL import Image

from shardprep.image.spec import MAX_STORED_PIXELS

_JPEG_START, _PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_PNG_SIZE, _PNG_SIZE_AT = struct.Struct(">II"), 16


class TooLargeError(ValueError):
    """The image of a record has more pixels than the limit."""


def check_stored_size(height: int, width: int) -> None:
    """Raise TooLargeError if an image of this size is too large to decode."""
    if height * width > MAX_STORED_PIXELS:
        size = f"{width:,}x{height:,} pixels"
        raise TooLargeError(f"it has {size}, more than the {MAX_STORED_PIXELS:,} that are decoded")


def open_stored(data: bytes | memoryview, *formats: str) -> Image.Image:
    """Open an image of a record; only its header is read, and checked as in `check_stored_size`."""
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except Image.DecompressionBombError as error:
        what = f"it has more than the {MAX_STORED_PIXELS:,} pixels that are decoded"
        raise TooLargeError(what) from error
    check_stored_size(image.height, image.width)
    return image


def check_stored_png(data: bytes | memoryview) -> None:
    """Check the size in the header of a PNG; other bytes pass."""
    if data[: len(_PNG_START)] == _PNG_START and len(data) >= _PNG_SIZE.size + _PNG_SIZE_AT:
        width, height = _PNG_SIZE.unpack_from(data, _PNG_SIZE_AT)
        check_stored_size(height, width)


def check_stored(data: bytes | memoryview) -> None:
    """Check the size in the header of a JPEG or PNG; errors as `open_stored`."""
    if bytes(data[:3]) == _JPEG_START:
        check_stored_jpeg(data)
    else:
        open_stored(data, "PNG", "JPEG").close()


def check_stored_jpeg(data: bytes | memoryview) -> None:
    """Check the size in the header of a JPEG; ValueError if the header is damaged."""
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    check_stored_size(height, width)
