"""Mask files: the numbers that their pixels hold, which are classes and no colours.

No profile, gamma, alpha or palette is applied: what `decode` does for pictures would change them.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from shardprep.image.annotation_types import AnnotationSpec
    from shardprep.image.placement import Labels

MAX_PIXELS = 1 << 25
"""Pixels of a mask file, or of its image where that has more, above which it is not decoded."""

_DECODERS = ("PNG", "GIF", "JPEG", "TIFF", "BMP", "WEBP", "PPM", "TGA", "PCX")
_STRETCHED = re.compile(r"L;([24])")
"""Raw modes in which Pillow spreads values of so many bits over 0 to 255."""
_HALF = 128
_NAMED = 3
"""Number of values or colours that a reason names."""


class MaskError(ValueError):
    """A mask that cannot be used; its text is the reason."""


class MaskFile(NamedTuple):
    """The decoded pixels of a mask file."""

    pixels: Labels
    """Values or palette indices, [height, width]; or colours, uint8[height, width, 3]."""
    is_lossy: bool = False
    """Whether values are only near to those that were meant."""
    palette: NDArray[np.uint8] | None = None
    """Colours of palette indices, uint8[256, 3]; None without a palette."""


def decode_mask(data: bytes, max_pixels: int = MAX_PIXELS) -> MaskFile:
    """Return the values of a mask file: an image of one channel, a palette, or colours.

    Equal channels are one. Of several frames the first counts.

    Raises:
        MaskError: No such image, more than `max_pixels`, or values that 16 bits cannot hold.
    """
    image, pixels = _decoded(data, max_pixels, _values)
    return MaskFile(pixels, image.format == "JPEG", _palette(image))


def decode_ids(data: bytes, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint32]:
    """Return the id of the segment of each pixel, R + 256 G + 65536 B, [height, width].

    Without colours, values are ids.

    Raises:
        MaskError: As `decode_mask`; or a format or a palette that keeps no exact colours.
    """
    image, ids = _decoded(data, max_pixels, _ids)
    if image.format == "JPEG":
        raise MaskError("is a JPEG, which keeps no exact ids of segments")
    return ids


def decode_numbers(data: bytes, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint32]:
    """Return the number of the object of each pixel, [height, width]; 0 and `IGNORE` are of none.

    Values are numbers, and colours are those of Pascal VOC's palette (VOClabelcolormap.m of its
    development kit): the bits of a number go to the highest bits of red, green, blue, red, green …

    Raises:
        MaskError: As `decode_mask`; or a JPEG, which keeps no exact values.
    """
    pixels, is_lossy, _ = decode_mask(data, max_pixels)
    if is_lossy:
        raise MaskError("is a JPEG, which keeps no exact numbers of objects")
    found = pixels.astype(np.uint32)
    if pixels.ndim == 2:
        return found
    numbers = np.zeros(pixels.shape[:2], np.uint32)
    for bit in range(8):
        for channel in range(3):
            numbers |= (found[..., channel] >> np.uint32(7 - bit) & 1) << np.uint32(
                3 * bit + channel
            )
    return numbers


def mask_classes(mask: MaskFile, spec: AnnotationSpec) -> Labels:
    """Return the class of each pixel, [height, width]; of a binary mask 0, and 1 for the object.

    Raises:
        MaskError: A value or a colour that is no class.
    """
    pixels = mask.pixels
    if spec.is_binary:
        return _binary(mask)
    if mask.is_lossy:
        raise MaskError("is a JPEG, which keeps no exact values: only black and white can be told")
    if spec.values is None:
        if pixels.ndim == 3:
            raise MaskError("has colours, and nothing says which classes they mean")
        return _checked(pixels, spec)
    is_colours = any(isinstance(value, tuple) for value in spec.values)
    if is_colours and mask.palette is not None:
        pixels = mask.palette[pixels]
    if is_colours:
        return _looked_up(_codes(pixels), {_code(key): to for key, to in spec.values.items()}, spec)
    if pixels.ndim == 3:
        raise MaskError("has colours, and its classes are given by values of one channel")
    return _looked_up(pixels, {_code(key): to for key, to in spec.values.items()}, spec)


def value_counts(pixels: Labels) -> NDArray[np.int64]:
    """Return the number of pixels of each value, int64[256 or 65536]."""
    if pixels.dtype == np.uint8:
        return np.array(Image.fromarray(pixels).histogram(), np.int64)
    counts = np.zeros(1 << 16, np.int64)
    for row in range(0, len(pixels), 256):  # bincount makes 64 bits of every value
        counts += np.bincount(pixels[row : row + 256].ravel(), minlength=1 << 16)
    return counts


def encode_mask(pixels: Labels) -> bytes:
    """Return a grey PNG of 8 or 16 bits that holds the values as they are."""
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return out.getvalue()


def segment_classes(
    ids: NDArray[np.uint32], classes: Mapping[int, int], spec: AnnotationSpec
) -> Labels:
    """Return the class of each pixel, [height, width]; segments without one are ignored."""
    values, lengths = _run_lengths(ids)
    keys = np.array(sorted(classes), np.int64)
    found = np.full(len(values), spec.ignore, np.uint16 if spec.is_wide else np.uint8)
    if keys.size:
        at = np.searchsorted(keys, values).clip(max=len(keys) - 1)
        is_known = keys[at] == values
        found[is_known] = np.array([classes[key] for key in keys.tolist()])[at[is_known]]
    return np.repeat(found, lengths).reshape(ids.shape)


def _decoded(
    data: bytes, max_pixels: int, take: Callable[[Image.Image, str], NDArray[Any]]
) -> tuple[Image.Image, NDArray[Any]]:
    """Return a loaded image, and what is taken of it and of its raw mode."""
    image = _open(data)
    if image.width * image.height > max_pixels:
        size = f"{image.width}x{image.height} pixels"
        raise MaskError(f"has {size}, the limit is {max_pixels:,} pixels")
    raw = _raw_mode(image)
    try:
        image.load()
        return image, take(image, raw)
    except (MaskError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything
        raise MaskError(f"cannot be decoded: {' '.join(str(error).split())[:200]}") from None


def _ids(image: Image.Image, raw: str) -> NDArray[np.uint32]:
    """Return R + 256 G + 65536 B of a loaded image, or the values of one without colours."""
    if image.mode not in ("RGB", "RGBA", "RGBX", "P"):
        return _values(image, raw).astype(np.uint32)
    if ";16" in raw:
        raise MaskError("has colours of 16 bits, which are not read")
    colours = np.asarray(image.convert("RGB"))
    return _codes(colours[..., ::-1])


def _open(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=_DECODERS)
    except MemoryError:
        raise
    except Exception:
        raise MaskError("is no image that can be read") from None


def _raw_mode(image: Image.Image) -> str:
    """Return the form of the values in the file, as Pillow calls it, "" for one of its own."""
    tiles: Any = getattr(image, "tile", None) or [None]
    args = getattr(tiles[0], "args", "")
    if image.format == "PPM" and isinstance(args, tuple) and len(args) > 1:
        raise MaskError(f"has values of 0 to {args[1]}, which are not read: save it as PNG")
    raw = args[0] if isinstance(args, tuple) and args else args
    return raw if isinstance(raw, str) else ""


def _values(image: Image.Image, raw: str) -> NDArray[Any]:
    """Return what a loaded image holds, [height, width] or [height, width, 3]."""
    if image.mode in ("1", "P", "L", "I;16"):
        pixels = np.asarray(image)
        if image.mode == "1":
            return pixels.view(np.uint8)
        stretched = _STRETCHED.match(raw)
        if image.mode == "L" and stretched:
            return pixels // (85 if stretched[1] == "2" else 17)
        return pixels
    if ";16" in raw and not image.mode.startswith(("I", "F")):
        raise MaskError("has colours or transparency of 16 bits, which are not read")
    if image.mode in ("LA", "La", "PA"):
        return np.asarray(image.getchannel(0))
    if image.mode.startswith(("I", "F")):
        return _whole_numbers(np.asarray(image))
    colours = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    first = colours[..., 0]
    is_grey = all(np.array_equal(first, colours[..., i]) for i in (1, 2))
    return np.ascontiguousarray(first) if is_grey else colours


def _palette(image: Image.Image) -> NDArray[np.uint8] | None:
    """Return the colours of a loaded image's palette, uint8[256, 3]; unused ones are black."""
    if image.mode not in ("P", "PA"):
        return None
    colours = np.zeros(256 * 3, np.uint8)
    found = (image.getpalette("RGB") or [])[: colours.size]
    colours[: len(found)] = found
    return colours.reshape(256, 3)


def _whole_numbers(pixels: NDArray[Any]) -> NDArray[np.uint16]:
    """Return values of 16 or 32 bits and floats as uint16."""
    is_held = (pixels >= 0) & (pixels <= 65_535)
    if not is_held.all() or (pixels.dtype.kind == "f" and (pixels != np.trunc(pixels)).any()):
        raise MaskError("has values that are no whole numbers of 0 to 65535")
    return pixels.astype(np.uint16)


def _binary(mask: MaskFile) -> NDArray[np.uint8]:
    """Return 1 where a mask of two values is above half."""
    pixels = mask.pixels
    if pixels.ndim == 3:
        if not mask.is_lossy:
            raise MaskError("has colours, and other masks of the set are black and white")
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    highest = int(pixels.max())
    if highest <= 1 and not mask.is_lossy:
        return pixels.astype(np.uint8)
    half = _HALF if highest <= 255 else _HALF << 8
    if highest < half and not mask.is_lossy:
        raise MaskError(f"has values up to {highest}, and other masks of the set are of two values")
    return (pixels >= half).view(np.uint8)


def _checked(pixels: Labels, spec: AnnotationSpec) -> Labels:
    """Return values that are class indices, in the bits of the spec."""
    counts = value_counts(pixels)
    highest = spec.num_classes - 1
    others = [v for v in np.flatnonzero(counts).tolist() if v > highest and v != spec.ignore]
    if others:
        values = ", ".join(map(str, others[:_NAMED]))
        raise MaskError(
            f"has the value {values}; classes are 0 to {highest}, {spec.ignore} is none"
        )
    return pixels.astype(np.uint16 if spec.is_wide else np.uint8, copy=False)


def _looked_up(
    values: NDArray[Any], classes: Mapping[int, int], spec: AnnotationSpec
) -> NDArray[Any]:
    """Return the class of each value, run by run: neighbours in a mask are mostly alike."""
    found, lengths = _run_lengths(values)
    keys = np.array(sorted(classes), np.int64)
    at = np.searchsorted(keys, found).clip(max=len(keys) - 1)
    unknown = np.unique(found[keys[at] != found])
    if unknown.size:
        is_colour = values.dtype == np.uint32
        names = [_named(int(value), is_colour=is_colour) for value in unknown[:_NAMED]]
        what = "colour" if is_colour else "value"
        raise MaskError(f"has the {what} {', '.join(names)}, which no class has")
    to = np.array([classes[key] for key in keys.tolist()])
    to = to.astype(np.uint16 if spec.is_wide else np.uint8)[at]
    return np.repeat(to, lengths).reshape(values.shape)


def _run_lengths(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the value of each run of equal pixels, along the rows, and its length."""
    flat = values.ravel()
    starts = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1))
    return flat[starts], np.diff(starts, append=flat.size)


def _codes(pixels: NDArray[Any]) -> NDArray[np.uint32]:
    """Return each colour as one number; a grey value is a colour of equal parts."""
    if pixels.ndim == 2:
        if pixels.dtype != np.uint8:
            raise MaskError("has values of 16 bits, and its classes are given by colours")
        return pixels.astype(np.uint32) * np.uint32(0x010101)
    codes = pixels[..., 0].astype(np.uint32)
    for channel in (1, 2):
        codes <<= np.uint32(8)
        codes |= pixels[..., channel]
    return codes


def _code(key: int | tuple[int, int, int]) -> int:
    return key if isinstance(key, int) else key[0] << 16 | key[1] << 8 | key[2]


def _named(value: int, *, is_colour: bool) -> str:
    return f"({value >> 16}, {value >> 8 & 255}, {value & 255})" if is_colour else str(value)
