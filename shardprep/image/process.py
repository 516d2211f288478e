"""Decode an image, resize it with an antialiased bicubic filter, and encode it: `process_image`.

Bytes in, bytes out; a bad image is a `Rejection`, not an exception. docs/images.md has a row for
each kind of input.

Ordinary JPEG, PNG and Netpbm files take a short path, without Pillow. Any other file, and any file
on which the short path fails, takes the long path with Pillow. Both paths give equal results.
Pixels are stored as JPEG, PNG or raw bytes, values of 16 bits as grey PNG.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from shardprep.image.color import Levels, srgb_transform
from shardprep.image.decode import (
    decode,
    decode_deep,
    decode_ordinary,
    is_plain,
    is_truncated,
    open_image,
    recover,
    scalable_size,
)
from shardprep.image.jpeg_header import OrdinaryJpeg, ordinary_jpeg
from shardprep.image.netpbm import SCALED, OrdinaryNetpbm, ordinary_netpbm
from shardprep.image.placement import Placement
from shardprep.image.png import OrdinaryPng, encoded_png, ordinary_png
from shardprep.image.resample import Deep, Pixels, resize, resize_deep
from shardprep.image.signatures import TEXT_BYTES, NotAnImageError, description, is_image
from shardprep.image.spec import MAX_STORED_PIXELS, ImageSpec, fitted_size
from shardprep.profiling import stage

RejectionKind = Literal[
    "not_an_image", "undecodable", "truncated", "too_many_pixels", "too_small", "too_elongated",
    "unreadable", "crashed", "timeout", "bad_annotation", "bad_mask", "bad_stack",
    "bad_target",
]  # fmt: skip

_DCT_SCALES = (8, 4, 2)
"""Divisors of the sides that are fast in libjpeg-turbo; the scales between them are slower."""
_PROOF_SCALE = 8
"""Divisor of the sides in a decode that only checks a file: every bit is read, few pixels made."""
_CUT = {
    "reject": "the file ends before its image does; "
    "give --truncated recover to store its readable part",
    "recover": "the file ends before its image does, and no part of it can be decoded",
}
_GRID = 24
"""Maximum number of rows and of columns that are sampled to decide whether an image is dark."""
_DEEP_MODES = ("I", "F")
"""Prefixes of Pillow's modes with more than 8 bits, to which `--depth-range` applies."""
_BITS_PER_SAMPLE = 258
"""Tag of TIFF."""
_NEARLY_BLACK = 32
"""Levels below this, of 255, are nearly black: 12-bit white read as 16 bits is 16."""
_MEMORY = "the image needs more memory than a worker may use"


@dataclass(frozen=True, slots=True)
class Original:
    """Header of an input image; zeros and "" if it cannot be read."""

    height: int = 0
    width: int = 0
    """Height and width in pixels of the upright image; of one that cannot be decoded, unturned."""
    format: str = ""
    """Pillow's name of the format in lower case: jpeg, png, webp …"""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """An image in the form that a record stores."""

    data: bytes
    """Encoded in `ImageSpec.format`; raw is uint8[height, width, 3], row-major."""
    height: int
    width: int
    original: Original
    placement: Placement
    """Map from the original to the stored pixels, to place boxes and masks."""
    damage: str = ""
    """Damage of the original that was recovered or tolerated; "" if it has none."""
    is_dark: bool = False
    """Whether over 99% of sampled pixels are nearly black. False for 8-bit images stored in 8 bits,
    except DICOM."""
    levels: Levels | None = None
    """Values that became black and white; None for 8-bit and for colour images."""
    losses: tuple[str, ...] = ()
    """Parts of the original that are not stored: "frames" after the first, "bits" above 8."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an item is left out of the dataset."""

    kind: RejectionKind
    reason: str
    original: Original = Original()


def process_image(data: bytes, spec: ImageSpec) -> ProcessedImage | Rejection:
    """Return the image in the form of the spec, or a rejection. Never raises."""
    with contextlib.suppress(Exception):  # the long path finds the error again and describes it
        done = _process_ordinary(data, spec) if spec.depth == 8 else None
        if done is not None:
            return done
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata; only pixels count here
        try:
            image = open_image(data)
        except Exception as error:
            return _unopened(data, error)
        original = Original(image.height, image.width, (image.format or "").lower())
        process = _process if spec.depth == 8 else _process_deep
        if data.startswith(SCALED):
            spec = replace(spec, depth_range="full")
        try:
            return _refused(original, spec) or process(data, image, original, spec)
        except Exception as error:
            if _is_out_of_memory(error):
                return Rejection("crashed", _MEMORY, original)
            return Rejection("undecodable", words_of(error), original)


def _process_ordinary(data: bytes, spec: ImageSpec) -> ProcessedImage | None:
    """Return the stored image; None if the file is not ordinary, or its header is rejected."""
    image = ordinary_jpeg(data) or ordinary_png(data) or ordinary_netpbm(data)
    if image is None:
        return None
    size = (image.height, image.width)
    form = {OrdinaryPng: "png", OrdinaryNetpbm: "ppm"}.get(type(image), "jpeg")
    original = Original(*size, form)
    if _refused(original, spec) is not None:  # the long path returns the rejection
        return None
    if not isinstance(image, OrdinaryJpeg):
        pixels, scale = image.pixels(spec.background), 1
        is_plain_png = isinstance(image, OrdinaryPng) and image.is_plain
        is_kept = spec.format == "keep" and _is_fitted(size, spec) and is_plain_png
    else:
        is_kept = _is_kept_ordinary(image, spec)
        scale = _PROOF_SCALE if is_kept else _dct_scale(size, spec)
        pixels = decode_ordinary(data, *size, scale, is_grey=image.is_grey)
    if is_kept:
        return ProcessedImage(data, *size, original, Placement.whole(size))
    placement = Placement.fit(size, spec)
    stored = encode(_fit(pixels, placement, spec, scale), original.format, spec)
    return ProcessedImage(stored, *placement.size, original, placement)


def ordinary_placement(data: bytes, spec: ImageSpec) -> Placement | None:
    """Return the placement of an ordinary JPEG from its header; None for any other file.

    If the file is sound and is not rejected, `process_image` returns the same placement.
    """
    jpeg = ordinary_jpeg(data)
    if jpeg is None:
        return None
    size = (jpeg.height, jpeg.width)
    if _is_kept_ordinary(jpeg, spec):
        return Placement.whole(size)
    return Placement.fit(size, spec)


def _is_kept_ordinary(jpeg: OrdinaryJpeg, spec: ImageSpec) -> bool:
    size = (jpeg.height, jpeg.width)
    return spec.format == "keep" and not jpeg.is_grey and _is_fitted(size, spec)


def _unopened(data: bytes, error: Exception) -> Rejection:
    if _is_out_of_memory(error):
        return Rejection("crashed", _MEMORY)
    if isinstance(error, NotAnImageError):
        return Rejection("not_an_image", str(error))
    if not is_image(data[:TEXT_BYTES]):
        return Rejection("not_an_image", description(data))
    if is_truncated(data, error):
        return Rejection("truncated", "the file ends before its image begins")
    said = "" if isinstance(error, UnidentifiedImageError) else f": {words_of(error)}"
    return Rejection(
        "undecodable", f"starts like an image, but its header is broken or not supported{said}"
    )


def _refused(original: Original, spec: ImageSpec) -> Rejection | None:
    height, width = original.height, original.width
    size = f"{width}x{height} pixels"
    short, long = min(height, width), max(height, width)
    if short < 1:
        return Rejection("undecodable", f"its header says {size}", original)
    if height * width > spec.max_pixels:
        reason = f"{size}, above the limit of {spec.max_pixels:,} pixels"
        return Rejection("too_many_pixels", reason, original)
    if height * width > MAX_STORED_PIXELS:
        stored = Placement.fit((height, width), spec).size
        if stored[0] * stored[1] > MAX_STORED_PIXELS:
            reason = f"{size}, but a stored image may have {MAX_STORED_PIXELS:,} pixels"
            return Rejection("too_many_pixels", reason, original)
    if short < spec.min_side:
        reason = f"{size}, but each side must have at least {spec.min_side}"
        return Rejection("too_small", reason, original)
    if spec.max_aspect and long > spec.max_aspect * short:
        reason = f"{size}, but a side may be at most {spec.max_aspect:g} times the other"
        return Rejection("too_elongated", reason, original)
    return None


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or str(error).startswith("out of memory")


def words_of(error: Exception) -> str:
    """Return the error of a decoder as one short line."""
    text = " ".join(str(error).split())
    if not text or not isinstance(error, OSError | SyntaxError):  # others do not name the fault
        text = f"{type(error).__name__} {text}".strip()
    return text[:200]


def _process(
    data: bytes, image: Image.Image, original: Original, spec: ImageSpec
) -> ProcessedImage | Rejection:
    is_kept = _is_kept(data, image, original, spec)
    scale = _PROOF_SCALE if is_kept else _dct_scale(scalable_size(image), spec)
    size = original.height, original.width
    try:
        decoded = decode(data, image, scale, spec)
    except Exception as error:
        if _is_out_of_memory(error) or not is_truncated(data, error):
            raise
        found = recover(data, spec) if spec.truncated == "recover" else None
        if found is None:
            return Rejection("truncated", _CUT[spec.truncated], original)
        decoded = found._replace(damage="recovered: the file ends before its image does")
    pixels, damage = decoded.pixels, decoded.damage
    if is_kept and not damage:
        return ProcessedImage(data, *size, original, Placement.whole(size))
    is_turned = decoded.orientation >= 5 and image.format != "TIFF"
    height, width = size[::-1] if is_turned else size
    original = replace(original, height=height, width=width)
    placement = Placement.fit((height, width), spec, decoded.orientation)
    fitted = _fit(pixels, placement, spec, decoded.scale)
    untouched = fitted is pixels and placement.size == size
    is_sound = decoded.is_srgb and not damage
    if spec.format == "keep" and untouched and is_sound and is_plain(data, image):
        return ProcessedImage(data, *size, original, placement)
    stored = encode(fitted, original.format, spec)
    is_deep = image.format == "DICOM" or image.mode.startswith(_DEEP_MODES)
    is_dark = is_deep and _is_dark(pixels)
    return ProcessedImage(
        stored,
        *placement.size,
        original,
        placement,
        damage,
        is_dark,
        decoded.levels,
        (*_lost_frames(image), *_lost_bits(data, image)),
    )


def _process_deep(
    data: bytes, image: Image.Image, original: Original, spec: ImageSpec
) -> ProcessedImage | Rejection:
    is_tiff = image.format == "TIFF"
    try:
        pixels, turn, levels = decode_deep(data, image, spec)
    except Exception as error:
        if _is_out_of_memory(error) or not is_truncated(data, error):
            raise
        return Rejection("truncated", _CUT["recover"], original)
    size = original.height, original.width
    height, width = size[::-1] if turn >= 5 and not is_tiff else size
    original = replace(original, height=height, width=width)
    placement = Placement.fit((height, width), spec, turn)
    stored = encode_deep(pixels, placement, spec)
    is_dark = _is_dark((pixels >> 8).astype(np.uint8))
    lost = _lost_frames(image)
    return ProcessedImage(stored, *placement.size, original, placement, "", is_dark, levels, lost)


def _lost_frames(image: Image.Image) -> tuple[str, ...]:
    with contextlib.suppress(Exception):  # further frames may be damaged
        return ("frames",) if getattr(image, "is_animated", False) else ()
    return ("frames",)


def _lost_bits(data: bytes, image: Image.Image) -> tuple[str, ...]:
    # Pillow reads colours of 16 bits as 8, and its mode does not tell.
    bits = data[24] if image.format == "PNG" else getattr(image, "num_bits", 8)
    if image.format == "TIFF":
        bits = max(image.tag_v2.get(_BITS_PER_SAMPLE, (8,)))  # type: ignore[attr-defined]
    return ("bits",) if bits > 8 or image.mode.startswith(_DEEP_MODES) else ()


def _is_dark(pixels: Pixels) -> bool:
    height, width = pixels.shape[:2]
    grid = pixels[:: height // _GRID + 1, :: width // _GRID + 1]
    return bool(np.count_nonzero(grid >= _NEARLY_BLACK) * 100 < grid.size)


def _is_kept(data: bytes, image: Image.Image, original: Original, spec: ImageSpec) -> bool:
    return (
        spec.format == "keep"
        and image.format == "JPEG"
        and _is_fitted((original.height, original.width), spec)
        and is_plain(data, image)
        and srgb_transform(image) is None
    )


def _dct_scale(size: tuple[int, int] | None, spec: ImageSpec) -> int:
    """Return the largest of 1, 2, 4, 8 that divides the sides to no less than the fitted size."""
    if spec.size is None or size is None:
        return 1
    height, width = size
    need_height, need_width = fitted_size(height, width, spec)
    for scale in _DCT_SCALES:
        if height >= need_height * scale and width >= need_width * scale:
            return scale
    return 1


def _is_fitted(size: tuple[int, int], spec: ImageSpec) -> bool:
    """Return whether `_fit` returns an image of this size unchanged."""
    if spec.fit == "within":
        return fitted_size(*size, spec) == size
    return spec.size in (None, size)


@stage("resize")
def _fit(pixels: Pixels, placement: Placement, spec: ImageSpec, scale: int) -> Pixels:
    """Return the stored pixels, or `pixels` itself if nothing changes."""
    if pixels.shape[:2] != placement.fitted:
        pixels = resize(pixels, placement.fitted, placement.decoded_box(scale))
    if placement.fitted != placement.size:
        canvas = np.empty((*placement.size, 3), np.uint8)
        canvas[:] = spec.background
        canvas[placement.inside] = pixels  # a grey channel is copied to all three
        return canvas
    return pixels


JPEGS = ("jpeg", "mpo")


@stage("encode")
def encode(pixels: Pixels, original_format: str, spec: ImageSpec) -> bytes:
    """Return pixels, uint8[height, width, 3] or [height, width, 1], encoded by `spec.format`.

    "keep" means JPEG for a JPEG original, else PNG. Grey is encoded as three equal channels.
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
