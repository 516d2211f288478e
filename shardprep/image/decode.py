"""Decode image files to upright pixels, and tell truncated files from other damaged ones.

Errors of decoders are raised unchanged. A file is truncated if a length in it exceeds its size, if
its end is missing, or if a decoder says so. A truncated file is not reported as corrupt, because
another copy of it may be complete.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageFile, PngImagePlugin

from shardprep.image.color import (
    Levels,
    convert_in_place,
    deep_levels,
    eight_bit_pixels,
    sixteen_bit_pixels,
    srgb_transform,
)
from shardprep.image.jpeg_header import is_scalable
from shardprep.image.placement import UPRIGHT, turned
from shardprep.image.resample import Deep, Pixels, flattened
from shardprep.image.signatures import NotAnImageError, is_dicom, is_heif
from shardprep.image.spec import ImageSpec
from shardprep.profiling import stage

if TYPE_CHECKING:
    from shardprep.image.dicom import DicomImage

DECODERS: Final = (
    "JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "PPM",
    "TGA", "PCX", "PSD", "SGI", "DDS", "QOI", "XBM", "XPM",
)  # fmt: skip
"""Pillow's decoders that may read the bytes. Others are unsafe: EPS starts Ghostscript, and the
header of an icon does not state the size of its images."""

Image.MAX_IMAGE_PIXELS = None  # ImageSpec.max_pixels is the limit, checked on the header
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY  # a long comment is not an error

_JPEGS = ("JPEG", "MPO")
_FAST_MODES = ("RGB", "L")
_JPEG_START = b"\xff\xd8\xff"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


class Decoded(NamedTuple):
    """A decoded image, upright."""

    pixels: Pixels
    """uint8[height, width, 3], or [height, width, 1] for grey."""
    is_srgb: bool
    """True if no colour profile was applied."""
    orientation: int = UPRIGHT
    """EXIF orientation that was applied, 1 to 8."""
    damage: str = ""
    """Damage that the decoder tolerated, or ""."""
    scale: int = 1
    """Divisor of the sides in the file: 1, 2, 4 or 8. Quotients are rounded up."""
    levels: Levels | None = None
    """Values that became black and white; None for 8-bit and for colour images."""


@stage("decode")
def open_image(data: bytes) -> Image.Image:
    """Return an image with its header read and no pixels decoded.

    Raises NotAnImageError for a DICOM file without an image or if an extra is not installed, and
    any Exception for a broken header.
    """
    extra = "dicom" if is_dicom(data) else "heic" if is_heif(data) else ""
    if not extra:
        return Image.open(io.BytesIO(data), formats=DECODERS)
    try:
        if extra == "dicom":
            from shardprep.image.dicom import DicomImage

            return DicomImage(data)
        from pillow_heif import HeifImageFile, options
    except ModuleNotFoundError as error:
        what = f"a {extra.upper()} image: pip install 'shardprep[{extra}]'"
        raise NotAnImageError(what) from error
    options.DECODE_THREADS = 1  # a worker has one core
    image: Image.Image = HeifImageFile(io.BytesIO(data))
    return image


def scalable_size(image: Image.Image) -> tuple[int, int] | None:
    """Return the upright height and width of an RGB or grey JPEG; None for other images."""
    if image.format not in _JPEGS or image.mode not in _FAST_MODES:
        return None
    size = image.height, image.width
    return size if _orientation(image) < 5 else (size[1], size[0])


@stage("decode")
def decode(data: bytes, image: Image.Image, scale: int, spec: ImageSpec) -> Decoded:
    """Return the first frame of `data`, upright. `image` is the result of `open_image(data)`.

    A sound RGB or grey JPEG is decoded `scale` (1, 2, 4 or 8) times smaller, with sides rounded up,
    unless it is lossless. Uses background, `depth_range` and `window` of the spec. May close
    `image`.
    """
    transform = srgb_transform(image)
    damage = ""
    is_jpeg = image.format in _JPEGS and image.mode in _FAST_MODES
    is_lossless = is_jpeg and not is_scalable(data)
    # Grey with a profile is decoded to RGB, which libjpeg cannot do with lossless grey.
    if is_jpeg and not (is_lossless and transform is not None):
        try:
            scale = 1 if is_lossless else scale
            is_grey = image.mode == "L" and transform is None
            pixels = decode_jpeg(data, image.height, image.width, scale, is_grey=is_grey)
        except ValueError as error:
            damage = f"damaged: {' '.join(str(error).split())}"
        else:
            if transform is not None:
                convert_in_place(pixels, transform)
            turn = _orientation(image)
            pixels = np.ascontiguousarray(turned(pixels, turn))
            return Decoded(pixels, transform is None, turn, scale=scale)
    if image.format == "DICOM":
        dicom = cast("DicomImage", image)
        pixels = dicom.pixels(spec.window)
        if transform is not None:
            convert_in_place(pixels, transform)
        return Decoded(pixels, transform is None, levels=dicom.levels)
    return _decode_by_pillow(image, spec)._replace(is_srgb=transform is None, damage=damage)


@stage("decode")
def decode_deep(
    data: bytes, image: Image.Image, spec: ImageSpec
) -> tuple[Deep, int, Levels | None]:
    """Return the upright first frame as 16-bit grey, its EXIF orientation in the file, and levels.

    Images of 8 bits are multiplied by 257; colours become their luma. Levels are None for both. A
    profile is not applied to deep images.
    """
    before = _orientation(image) if image.format == "TIFF" else None
    deep: Deep | None = None
    if image.format == "DICOM":
        dicom = cast("DicomImage", image)
        deep, levels = dicom.deep_pixels(spec.window), dicom.levels
    else:
        image.load()
        levels = deep_levels(image, spec.depth_range)
        deep = None if levels is None else sixteen_bit_pixels(image, levels)
    turn = _orientation(image)
    if deep is None:
        pixels = decode(data, open_image(data), 1, spec).pixels
        grey = pixels if pixels.shape[2] == 1 else np.asarray(Image.fromarray(pixels).convert("L"))
        deep = grey.reshape(*pixels.shape[:2], 1).astype(np.uint16) * np.uint16(257)
    elif turn != UPRIGHT:
        deep = np.ascontiguousarray(turned(deep, turn))
    return deep, before or turn, levels


@stage("decode")
def recover(data: bytes, spec: ImageSpec) -> Decoded | None:
    """Return the readable part of a truncated file; None if nothing or only one colour was decoded.

    Missing pixels are grey in a JPEG, the background in an image with transparency, else black.
    """
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        image = open_image(data)
        if image.format in _JPEGS:
            image = open_image(without_cut_segment(data))
        decoded = _decode_by_pillow(image, spec)
    except MemoryError:
        raise
    except Exception:  # decoders raise anything; the first error is reported
        return None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
    pixels = decoded.pixels
    return None if (pixels == pixels[0, 0]).all() else decoded


def decode_jpeg(
    data: bytes, height: int, width: int, scale: int, *, is_grey: bool = False
) -> Pixels:
    """Return the pixels of a JPEG, its `height` and `width` divided by `scale` and rounded up.

    The result has 3 channels, or 1 if `is_grey`. The pixels equal Pillow's. Raises ValueError for
    damaged data; all scales find the same errors, because every bit is read.
    """
    return simplejpeg.decode_jpeg(  # type: ignore[no-any-return]
        data,
        colorspace="GRAY" if is_grey else "RGB",
        min_height=-(-height // scale) if scale > 1 else 0,
        min_width=-(-width // scale) if scale > 1 else 0,
        min_factor=scale,
    )


decode_ordinary = stage("decode")(decode_jpeg)
"""`decode_jpeg`, timed as a part of the stage "decode"."""


def stored_pixels(data: bytes, raw_size: tuple[int, int] | None, least_side: int = 0) -> Pixels:
    """Return the pixels of a stored image, uint8[height, width, 3].

    `raw_size` is the height and width of raw pixels; None for an image file. A JPEG may be decoded
    smaller, with sides of at least `least_side` pixels; 0 keeps its size.
    """
    if raw_size is not None:
        return np.frombuffer(data, np.uint8).reshape(*raw_size, 3)
    if data.startswith(_JPEG_START) and is_scalable(data):
        found: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=least_side, min_width=least_side
        )
        return found
    with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        return rgb_pixels(image)


def rgb_pixels(image: Image.Image) -> Pixels:
    """Return a stored image as RGB; for 16-bit grey, its high bytes."""
    if image.mode.startswith("I;16"):
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
    return np.asarray(image.convert("RGB"))


def _decode_by_pillow(image: Image.Image, spec: ImageSpec) -> Decoded:
    if image.format == "PNG":
        _scale_colour_key(image)
    before = _orientation(image) if image.format == "TIFF" else None
    pixels, levels = _webp_pixels(image, spec) if image.format == "WEBP" else None, None
    if pixels is None:
        image.load()
        levels = deep_levels(image, spec.depth_range)
        pixels = eight_bit_pixels(image, spec, levels)
    # The orientation is known only now: a PNG may state it after its pixels, and Pillow rotates a
    # TIFF while loading.
    turn = _orientation(image)
    image.close()
    pixels = np.ascontiguousarray(turned(pixels, turn))
    return Decoded(pixels, is_srgb=False, orientation=before or turn, levels=levels)


def _webp_pixels(image: Image.Image, spec: ImageSpec) -> Pixels | None:
    """Return the first frame without `load`, which makes three copies; None if `load` is needed."""
    decoder = getattr(image, "_decoder", None)
    if decoder is None or srgb_transform(image) is not None:
        return None
    found = decoder.get_next()
    if found is None or len(found[0]) != image.height * image.width * 4:
        decoder.reset()
        return None
    frame = np.frombuffer(found[0], np.uint8).reshape(image.height, image.width, 4)
    return flattened(frame, spec.background if image.mode == "RGBA" else None)


def is_plain(data: bytes, image: Image.Image) -> bool:
    """Return whether every reader, even a strict one, decodes the file to the same pixels.

    Precondition: the file is sound and no profile was applied. The image may be closed.
    """
    if image.mode != "RGB" or "transparency" in image.info or _orientation(image) != UPRIGHT:
        return False
    if image.format == "PNG":  # unlike TensorFlow, Pillow accepts a missing end and bad checksums
        if not data.endswith(_PNG_END):
            return False
        try:
            Image.open(io.BytesIO(data), formats=("PNG",)).verify()
        except Exception:
            return False
        return True
    return image.format == "JPEG" and is_scalable(data)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation (EXIF 2.32, tag 0x0112), 1 to 8; 1 if it is missing."""
    try:
        turn = image.getexif().get(ExifTags.Base.Orientation)
    except MemoryError:
        raise
    except Exception:  # broken metadata does not make the picture bad
        return UPRIGHT
    return turn if isinstance(turn, int) and 1 <= turn <= 8 else UPRIGHT


def _scale_colour_key(image: Image.Image) -> None:
    """Scale the transparent colour of a PNG to 8 bits, as Pillow scales its pixels."""
    key = image.info.get("transparency")
    tiles = cast("ImageFile.ImageFile", image).tile
    raw = tiles[0].args if tiles else ""
    to_8_bits: dict[object, Callable[[int], int]] = {
        "RGB;16B": lambda value: value >> 8,
        "L;2": lambda value: value * 85,
        "L;4": lambda value: value * 17,
    }
    if raw in to_8_bits and isinstance(key, int | tuple):
        values = key if isinstance(key, tuple) else (key,)
        scaled = tuple(to_8_bits[raw](value) for value in values)
        image.info["transparency"] = scaled if isinstance(key, tuple) else scaled[0]


_PILLOW_SAYS = (
    "image file is truncated", "Truncated File Read", "not enough image data", "Incomplete header",
    "Reached EOF while reading header",
)  # fmt: skip
_JPEG_MARKER = re.compile(rb"\xff[\x02-\xcf\xda-\xfe]")
"""Marker of a segment that has a length, unlike the markers inside a scan."""
_STRIPS, _TILES = (273, 279), (324, 325)
"""TIFF tags of offsets and of byte counts."""
_TIFF_TYPES = {3: "H", 4: "I", 5: "Q", 8: "h", 9: "i", 10: "q", 11: "f", 12: "d"}
"""Field types (TIFF 6.0, section 2) → letters of `struct`; all other types count as bytes."""


def is_truncated(data: bytes, error: Exception) -> bool:
    """Return whether a file is truncated; `error` is the error of its decoder."""
    if str(error).startswith(_PILLOW_SAYS):
        return True
    try:
        return any(tell(data) for pattern, tell in _FORMATS if re.match(pattern, data, re.DOTALL))
    except (struct.error, IndexError):
        return True  # a length itself is cut


def without_cut_segment(data: bytes) -> bytes:
    """Return a truncated JPEG without a cut last segment, so that a decoder accepts it."""
    at = 2
    while marker := _JPEG_MARKER.search(data, at):
        at = marker.start()
        length = data[at + 2 : at + 4]
        if at + 2 + int.from_bytes(length, "big") > len(data) or len(length) < 2:
            return data[:at]
        at += 2 + int.from_bytes(length, "big")
    return data


def _png_is_cut(data: bytes) -> bool:
    at = len(b"\x89PNG\r\n\x1a\n")
    while at < len(data):
        num_bytes, kind = struct.unpack_from(">I4s", data, at)
        at += 12 + num_bytes
        if kind == b"IEND" or not kind.isalpha():
            return False
    return True


def _jpeg_header_is_cut(data: bytes) -> bool:
    """Return whether a segment before the scans is cut; the decoder checks the scans."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        (num_bytes,) = struct.unpack_from(">H", data, at + 2)
        if marker == 0xDA:
            return False
        at += 2 + num_bytes
    return False


def _boxes_are_cut(data: bytes) -> bool:
    # ISO/IEC 14496-12, 4.2: after size 1 comes a 64-bit size; a box of size 0 ends with the file.
    at = 0
    has_pixels = False
    while at < len(data):
        num_bytes, kind = struct.unpack_from(">I4s", data, at)
        start = at
        if num_bytes == 1:
            (num_bytes,) = struct.unpack_from(">Q", data, at + 8)
        if num_bytes == 0:
            return kind == b"jp2c" and _codestream_is_cut(data[start:])
        if num_bytes < 8:
            return False
        at += num_bytes
        has_pixels |= kind in (b"mdat", b"jp2c")
    return at > len(data) or not has_pixels


def _codestream_is_cut(data: bytes) -> bool:
    return not data.rstrip(b"\0").endswith(b"\xff\xd9")


def _gif_header_is_cut(data: bytes) -> bool:
    """Return whether a block before the pixels is cut; the decoder checks the pixels."""
    flags = data[10]
    num_colours = 2 << (flags & 7) if flags & 0x80 else 0
    return len(data) < 13 + 3 * num_colours + 8 + 10


def _tiff_is_cut(data: bytes) -> bool:
    order = "<" if data.startswith(b"II") else ">"
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    (num_entries,) = struct.unpack_from(f"{order}H", data, start)
    places: dict[int, tuple[int, ...]] = {}
    for at in range(start + 2, start + 2 + 12 * num_entries, 12):
        tag, kind, count = struct.unpack_from(f"{order}HHI", data, at)
        letter = _TIFF_TYPES.get(kind, "B")
        num_bytes = count * struct.calcsize(f"{order}{letter}")
        (place,) = struct.unpack_from(f"{order}I", data, at + 8)
        if num_bytes > 4 and place + num_bytes > len(data):
            return True
        if tag in _STRIPS + _TILES:
            place = place if num_bytes > 4 else at + 8
            places[tag] = struct.unpack_from(f"{order}{count}{letter}", data, place)
    for offsets, counts in (_STRIPS, _TILES):
        pairs = zip(places.get(offsets, ()), places.get(counts, ()), strict=False)
        if any(offset + count > len(data) for offset, count in pairs):
            return True
    return False


_FORMATS = (
    (rb"\x89PNG", _png_is_cut),
    (rb"\xff\xd8\xff", _jpeg_header_is_cut),
    (rb"GIF8", _gif_header_is_cut),
    (rb"RIFF....WEBP", lambda data: 8 + int.from_bytes(data[4:8], "little") > len(data)),
    (rb"....(ftyp|jP  )", _boxes_are_cut),
    (rb"\xff\x4f\xff\x51", _codestream_is_cut),
    (rb"II\*\0|MM\0\*", _tiff_is_cut),
    (rb"DDS |\x0a[\0-\5]\x01", lambda data: len(data) < 128),
    (rb"\x01\xda", lambda data: len(data) < 512),
    (rb"qoif", lambda data: len(data) < 14),
    (rb"\s*#define|/\* XPM", lambda data: b"}" not in data),
)
