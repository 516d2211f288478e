"""Pixels: bytes in, bytes out. No file is opened here, and a bad image is a value, not an error.

`process_image` decodes, turns the image as its EXIF orientation says, converts it to RGB, fits it
to the asked size with an antialiased bicubic filter, and encodes it.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    from shardprep.schema import Encoding

Fit = Literal["crop", "pad", "stretch", "within", "none"]
Format = Literal["jpeg", "png", "raw", "keep"]
RejectionKind = Literal[
    "not_an_image", "undecodable", "too_many_pixels", "unreadable", "crashed", "timeout"
]

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]
"""uint8[height, width, 3], RGB, row-major."""

DECODERS: Final = (
    "JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "JPEG2000", "PPM",
    "TGA", "PCX", "PSD", "SGI", "DDS", "QOI", "XBM", "XPM",
)  # fmt: skip
"""Pillow's decoders that may see the bytes. Others are left out: EPS starts Ghostscript, and an
icon holds images whose size its header does not tell."""

Image.MAX_IMAGE_PIXELS = None  # the limit is ImageSpec.max_pixels, checked on the header

_ORIENTATION_UPRIGHT = 1
_MAX_UINT16 = 65535
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_DCT_SCALES = (8, 4, 2)
"""1/8, 1/4 and 1/2 have fast paths in libjpeg-turbo; the sevenths between them are slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """What every stored image must be."""

    size: tuple[int, int] | None = (224, 224)
    """Height and width in pixels; None exactly where `fit` is "none"."""
    fit: Fit = "crop"
    """How an image comes to `size`: cut centrally, letterboxed, distorted, or shrunk to within."""
    format: Format = "jpeg"
    quality: int = 90
    """JPEG quality, 1 to 100; chroma is subsampled 4:2:0."""
    background: tuple[int, int, int] = (255, 255, 255)
    """RGB, 0..255: behind transparent pixels and beside letterboxed ones."""
    max_pixels: int = 100_000_000
    """Width times height above which an image is rejected before its pixels are allocated."""

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width that all stored images share, None where they differ."""
        return self.size if self.fit in ("crop", "pad", "stretch") else None

    @property
    def encoding(self) -> Encoding:
        """How the dataset's schema calls the stored bytes."""
        return "any" if self.format == "keep" else self.format


@dataclass(frozen=True, slots=True)
class Original:
    """What the header of an input image says; zeros and "" where nothing could be read."""

    height: int = 0
    width: int = 0
    """Pixels, as stored: before the EXIF orientation is applied."""
    format: str = ""
    """Pillow's name, lower case: jpeg, png, webp …"""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """An image as it goes into a record."""

    data: bytes
    """Encoded as `ImageSpec.format` says; raw is uint8[height, width, 3], row-major."""
    height: int
    width: int
    original: Original


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an item was left out."""

    kind: RejectionKind
    reason: str
    original: Original = Original()


def process_image(data: bytes, spec: ImageSpec) -> ProcessedImage | Rejection:
    """Return the image as the spec wants it, or why it is left out.

    Never raises, whatever the bytes hold.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata; the pixels decide
        try:
            image = Image.open(io.BytesIO(data), formats=DECODERS)
        except Exception as error:
            return Rejection("not_an_image", _reason(data, error))
        original = Original(image.height, image.width, (image.format or "").lower())
        if image.width * image.height > spec.max_pixels:
            reason = f"{image.width}x{image.height} pixels, the limit is {spec.max_pixels:,}"
            return Rejection("too_many_pixels", reason, original)
        try:
            return _process(data, image, original, spec)
        except Exception as error:
            return Rejection("undecodable", _reason(data, error), original)


def estimated_bytes(spec: ImageSpec, original_bytes: int) -> int:
    """Return about how many bytes an image takes in a record, for planning shards and space.

    Bits per pixel are those of photographs: JPEG at quality 90 measured 0.27 bytes a pixel at
    224x224, and PNG about 2.
    """
    if spec.size is None or spec.format == "keep" or spec.fit == "within":
        return original_bytes
    height, width = spec.size
    per_pixel = {"raw": 3.0, "png": 2.0}.get(spec.format, 0.1 + spec.quality**4 * 2.6e-9)
    return int(height * width * per_pixel)


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"the bytes are no image that Pillow knows (they start with {data[:16]!r})"
    text = " ".join(str(error).split())
    if not text or not isinstance(error, OSError | SyntaxError):  # Pillow's own say what is broken
        text = f"{type(error).__name__} {text}".strip()
    return text[:200]


def _process(
    data: bytes, image: Image.Image, original: Original, spec: ImageSpec
) -> ProcessedImage:
    turn = image.getexif().get(ExifTags.Base.Orientation, _ORIENTATION_UPRIGHT)
    pixels, is_sound = _decode(data, image, turn, spec)
    fitted = _fit(pixels, spec)
    height, width = fitted.shape[:2]
    untouched = fitted is pixels and (height, width) == (original.height, original.width)
    if spec.format == "keep" and untouched and is_sound and _is_plain(data, image, turn):
        return ProcessedImage(data, height, width, original)
    return ProcessedImage(_encode(fitted, original, spec), height, width, original)


def _is_plain(data: bytes, image: Image.Image, turn: int) -> bool:
    """Tell whether any reader would see these pixels in the bytes as they are."""
    if image.mode != "RGB" or "transparency" in image.info:
        return False
    if turn not in (0, _ORIENTATION_UPRIGHT):
        return False
    if image.format == "PNG":  # Pillow forgives a missing end and wrong checksums, TensorFlow not
        if not data.endswith(_PNG_END):
            return False
        try:
            Image.open(io.BytesIO(data), formats=("PNG",)).verify()
        except Exception:
            return False
        return True
    return image.format == "JPEG"


def _decode(data: bytes, image: Image.Image, turn: int, spec: ImageSpec) -> tuple[Pixels, bool]:
    """Return the upright RGB pixels, at a reduced DCT scale where the result is smaller still.

    And whether the strictest decoder takes the bytes: of a JPEG, what it refuses others may too.
    """
    if image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L"):
        scale = _dct_scale(image, turn, spec)
        pixels = _decode_jpeg(data, image, scale)
        if pixels is not None:
            upright = turn in (0, _ORIENTATION_UPRIGHT)
            return (pixels if upright else _turned(pixels, turn)), True
    image.load()
    if turn not in (0, _ORIENTATION_UPRIGHT):
        image = ImageOps.exif_transpose(image)
    return np.asarray(_to_rgb(image, spec.background)), image.format != "JPEG"


def _decode_jpeg(data: bytes, image: Image.Image, scale: int) -> Pixels | None:
    """Return the pixels as libjpeg-turbo decodes them, or None where it finds fault.

    Same library and same settings as Pillow's decoder, so the same pixels (a test holds it),
    in less time; what it refuses is left for Pillow to judge.
    """
    try:
        return simplejpeg.decode_jpeg(  # type: ignore[no-any-return]
            data,
            colorspace="RGB",
            min_height=-(-image.height // scale) if scale > 1 else 0,
            min_width=-(-image.width // scale) if scale > 1 else 0,
            min_factor=scale,
        )
    except ValueError:
        return None


def _dct_scale(image: Image.Image, turn: int, spec: ImageSpec) -> int:
    """Return the largest of 1, 2, 4, 8 that leaves at least the pixels the result needs."""
    if spec.size is None:
        return 1
    height, width = image.height, image.width
    if turn in (5, 6, 7, 8):
        height, width = width, height
    need_height, need_width = fitted_size(height, width, spec)
    for scale in _DCT_SCALES:
        if height >= need_height * scale and width >= need_width * scale:
            return scale
    return 1


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


def _turned(pixels: Pixels, turn: int) -> Pixels:
    """Apply an EXIF orientation of 2 to 8 (EXIF 2.32, tag 0x0112)."""
    if turn in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    rows = slice(None, None, -1) if turn in (3, 4, 7, 8) else slice(None)
    columns = slice(None, None, -1) if turn in (2, 3, 6, 7) else slice(None)
    return np.ascontiguousarray(pixels[rows, columns])


def _to_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.mode in ("I;16", "I;16B", "I;16L", "I", "F"):
        image = _scaled_to_8_bits(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, (*background, 255))
        return Image.alpha_composite(canvas, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _scaled_to_8_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey by its range and float by its own, where Pillow would clip at 255."""
    values = np.asarray(image).astype(np.float64)
    if image.mode == "F":
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
        if low >= 0.0 and high <= 1.0:
            low, high = 0.0, 1.0
    else:
        low, high = 0.0, float(max(_MAX_UINT16, values.max()))
    span = (high - low) or 1.0
    return Image.fromarray(np.rint((values - low) / span * 255.0).clip(0, 255).astype(np.uint8))


def _fit(pixels: Pixels, spec: ImageSpec) -> Pixels:
    """Return the pixels at the size the spec asks for; the very same array if it is that already.

    A central crop is taken from the input, not after the resize: fewer pixels to filter.
    """
    height, width = pixels.shape[:2]
    if spec.size is None:
        return pixels
    to_height, to_width = spec.size if spec.fit == "crop" else fitted_size(height, width, spec)
    if (height, width) != (to_height, to_width):
        box_width, box_height = float(width), float(height)
        if spec.fit == "crop":
            box_width = min(width, height * to_width / to_height)
            box_height = min(height, width * to_height / to_width)
        left, top = (width - box_width) / 2, (height - box_height) / 2
        image = Image.fromarray(pixels).resize(
            (to_width, to_height),
            Image.Resampling.BICUBIC,
            box=(left, top, left + box_width, top + box_height),
        )
        pixels = np.asarray(image)
    if spec.fit == "pad" and pixels.shape[:2] != spec.size:
        canvas = np.empty((*spec.size, 3), np.uint8)
        canvas[:] = spec.background
        top, left = (spec.size[0] - to_height) // 2, (spec.size[1] - to_width) // 2
        canvas[top : top + to_height, left : left + to_width] = pixels
        return canvas
    return pixels


def _encode(pixels: Pixels, original: Original, spec: ImageSpec) -> bytes:
    if spec.format == "raw":
        return pixels.tobytes()
    if spec.format == "png" or (spec.format == "keep" and original.format not in ("jpeg", "mpo")):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return out.getvalue()
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=spec.quality, colorsubsampling="420"
    )
    return data
