"""Limit on the size of stored images and masks, because a record may be hostile.

The size in the header is checked before memory is allocated. TensorFlow has a limit of its own.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Literal

from shardprep.image.spec import MAX_STACK_PIXELS, MAX_STORED_PIXELS

if TYPE_CHECKING:
    from PIL import Image

_JPEG_START, _PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_PNG_SIZE, _PNG_SIZE_AT = struct.Struct(">II"), 16


class TooLargeError(ValueError):
    """An image or stack of a record is too large to decode."""


def check_stored_size(height: int, width: int) -> None:
    """Raise TooLargeError if an image has more than `MAX_STORED_PIXELS`."""
    if height * width > MAX_STORED_PIXELS:
        size = f"{width:,}x{height:,} pixels"
        raise TooLargeError(f"it has {size}, more than the limit of {MAX_STORED_PIXELS:,}")


def check_stack_size(number: int, height: int, width: int) -> None:
    """Raise TooLargeError if `number` images have more than `MAX_STACK_PIXELS` together."""
    if number * height * width > MAX_STACK_PIXELS:
        size = f"{number:,} images of {width:,}x{height:,} pixels"
        raise TooLargeError(f"it has {size}, more than the limit of {MAX_STACK_PIXELS:,}")


def stored_codec(data: bytes | memoryview) -> Literal["jpeg", "png"] | None:
    """Return the codec of an image by its first bytes; None for other bytes."""
    head = bytes(data[: len(_PNG_START)])
    return "jpeg" if head.startswith(_JPEG_START) else "png" if head == _PNG_START else None


def open_stored(data: bytes | memoryview, *formats: str) -> Image.Image:
    """Return an image of a record, with only its header read; TooLargeError if it is too large."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except Image.DecompressionBombError as error:
        what = f"it has more pixels than the limit of {MAX_STORED_PIXELS:,}"
        raise TooLargeError(what) from error
    check_stored_size(image.height, image.width)
    return image


def check_stored_png(data: bytes | memoryview) -> None:
    """Raise TooLargeError if the header of a PNG states too large a size; accept other bytes."""
    if stored_codec(data) == "png" and len(data) >= _PNG_SIZE.size + _PNG_SIZE_AT:
        width, height = _PNG_SIZE.unpack_from(data, _PNG_SIZE_AT)
        check_stored_size(height, width)


def check_stored(data: bytes | memoryview) -> None:
    """Raise TooLargeError for a JPEG or PNG that is too large, another error for other bytes."""
    if stored_codec(data) == "jpeg":
        check_stored_jpeg(data)
    else:
        open_stored(data, "PNG", "JPEG").close()


def check_stored_jpeg(data: bytes | memoryview) -> None:
    """Raise TooLargeError for a JPEG that is too large, ValueError for a damaged header."""
    import simplejpeg

    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    check_stored_size(height, width)
