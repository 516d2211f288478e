"""Convert decoded pixels to sRGB of 8 bits, or to grey of 8 or 16 bits.

Images of any mode or ICC profile become sRGB. Grey without a profile or transparency keeps one
channel. Values of more than 8 bits are scaled by `Levels`. The work is done tile by tile, so that
memory holds only the decoded image and the result.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from PIL import Image, ImageCms

from shardprep.image.resample import Deep, Pixels, flattened
from shardprep.image.spec import DepthRange, ImageSpec

_TILE_PIXELS: Final = 1 << 18
_MODES = {
    "RGB": ("RGB", ("RGB", "RGBA", "RGBa", "RGBX", "P", "PA", "L", "LA", "La", "1")),
    "GRAY": ("L", ("L", "LA", "La", "1", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")),
    "CMYK": ("CMYK", ("CMYK",)),
}
"""Colour space of an ICC profile → Pillow mode of the transform, and modes of images with it."""
_GREYS = ("1", "L")
_SRGB_TOLERANCE = 2
"""A profile that changes no level by more than this counts as sRGB: sRGB profiles are rounded."""
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO = 0


class SrgbTransform(NamedTuple):
    """Transform from the colors of an ICC profile to sRGB."""

    mode: str
    """Pillow mode of the input: RGB, L or CMYK. The output is RGB."""
    apply: Callable[[Image.Image], Image.Image]


class Levels(NamedTuple):
    """Pixel values that become black and white, for an image of more than 8 bits."""

    black: float
    white: float
    dtype: str = ""
    """numpy type to view Pillow's values as; "" to keep their type."""
    is_own: bool = False
    """Whether black and white come from this image itself, not from its type or an option."""
    curve: str = ""
    """Curve of DICOM values: "SIGMOID", or SHA-256 of a lookup table; "" for a straight line."""


def eight_bit_pixels(image: Image.Image, spec: ImageSpec, levels: Levels | None) -> Pixels:
    """Return the pixels of a loaded image of any mode in sRGB, over the background of the spec.

    The result is uint8[height, width, 3], or [height, width, 1] for grey without transparency or
    `srgb_transform`. `levels` is the result of `deep_levels`; if None, Pillow clips values at 255.
    """
    transform = srgb_transform(image)
    is_grey = levels is not None or image.mode in _GREYS
    is_grey &= transform is None and not image.has_transparency_data
    pixels = np.empty((image.height, image.width, 1 if is_grey else 3), np.uint8)
    for rows, columns in _tiles(image.height, image.width):
        tile = _tile(image, rows, columns)
        if levels is not None:
            tile = _to_8_bits(tile, levels)
        if tile.has_transparency_data:
            rgba = (tile.convert("LA") if tile.mode == "La" else tile).convert("RGBA")
            if transform is not None:
                colour = _in_srgb(rgba.convert("RGB"), transform)
                colour.putalpha(rgba.getchannel("A"))
                rgba = colour
            pixels[rows, columns] = flattened(np.asarray(rgba), spec.background)
        elif is_grey:
            pixels[rows, columns, 0] = np.asarray(tile.convert("L"))
        else:
            pixels[rows, columns] = np.asarray(_in_srgb(tile, transform))
    return pixels


def convert_in_place(pixels: Pixels, transform: SrgbTransform) -> None:
    """Convert RGB pixels, uint8[height, width, 3], to sRGB by the transform of their profile."""
    for rows, columns in _tiles(*pixels.shape[:2]):
        tile = Image.fromarray(np.ascontiguousarray(pixels[rows, columns]))
        pixels[rows, columns] = np.asarray(_in_srgb(tile, transform))


def srgb_transform(image: Image.Image) -> SrgbTransform | None:
    """Return the transform from the colour profile of an image to sRGB.

    None if the profile is missing, is sRGB, is broken or is made for another kind of pixels.
    """
    profile = image.info.get("icc_profile")
    if not isinstance(profile, bytes) or not profile:
        return None
    return _transform(profile, image.mode)


@lru_cache(maxsize=16)
def _transform(profile: bytes, mode: str) -> SrgbTransform | None:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        applied_in, modes = _MODES.get(source.profile.xcolor_space.strip(), ("", ()))
        if mode not in modes:
            return None
        flags = ImageCms.Flags.BLACKPOINTCOMPENSATION
        if applied_in == "L":
            flags |= ImageCms.Flags.NOOPTIMIZE  # the optimization costs 9 levels of dark grey
        apply = ImageCms.ImageCmsTransform(
            source,
            ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")),
            applied_in,
            "RGB",
            ImageCms.Intent.PERCEPTUAL,
            flags=flags,
        ).apply
    except (OSError, ValueError, TypeError, ImageCms.PyCMSError):
        return None
    if applied_in == "L":
        greys = np.arange(256, dtype=np.uint8).reshape(1, 256)
        colours = np.asarray(apply(Image.fromarray(greys)))
        if _is_near(colours, greys[..., None]):
            return None
        return SrgbTransform("L", lambda image: Image.fromarray(colours[0][np.asarray(image)]))
    if applied_in == "RGB":  # profile names vary too much, so a grid of colours is compared
        steps = np.arange(0, 256, 15, dtype=np.uint8)
        grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(1, -1, 3)
        if _is_near(np.asarray(apply(Image.fromarray(grid))), grid):
            return None
    return SrgbTransform(applied_in, apply)


def _is_near(moved: np.ndarray[Any, Any], colours: np.ndarray[Any, Any]) -> bool:
    return bool(np.abs(moved.astype(np.int16) - colours).max() <= _SRGB_TOLERANCE)


def _in_srgb(image: Image.Image, transform: SrgbTransform | None) -> Image.Image:
    if transform is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    if image.mode != transform.mode:
        image = image.convert(transform.mode)
    return transform.apply(image)


def _tiles(height: int, width: int) -> Iterator[tuple[slice, slice]]:
    columns = max(1, min(width, _TILE_PIXELS))
    rows = max(1, _TILE_PIXELS // columns)
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            yield slice(top, min(top + rows, height)), slice(left, min(left + columns, width))


def _tile(image: Image.Image, rows: slice, columns: slice) -> Image.Image:
    box = (columns.start, rows.start, columns.stop, rows.stop)
    return image if box == (0, 0, *image.size) else image.crop(box)


def sixteen_bit_pixels(image: Image.Image, levels: Levels) -> Deep:
    """Return a loaded image scaled from `levels` to 16 bits, uint16[height, width, 1]."""
    pixels = np.empty((image.height, image.width, 1), np.uint16)
    for rows, columns in _tiles(image.height, image.width):
        pixels[rows, columns, 0] = _scaled(_tile(image, rows, columns), levels, 65535)
    return pixels


def deep_levels(image: Image.Image, wanted: DepthRange) -> Levels | None:
    """Return the levels of a loaded image of more than 8 bits; None for other images.

    The full range of floats is 0 to 1, or minimum to maximum if any value is outside. The full
    range of 32-bit integers is 0 to 65535, or 0 to the maximum if this is higher.
    """
    tags: Any = getattr(image, "tag_v2", {})
    low, high, dtype, is_own = 0.0, 1.0, "", wanted == "auto"
    if image.mode.startswith("I;16"):
        (bits, *_) = tags.get(_BITS_PER_SAMPLE, (16,))
        high = (1 << min(bits, 16)) - 1
    elif image.mode == "I":
        # Pillow reads unsigned 32-bit values as signed
        unsigned = tags.get(_BITS_PER_SAMPLE) == (32,) and tags.get(_SAMPLE_FORMAT, (1,)) == (1,)
        dtype = "u4" if unsigned else ""
        high = max(65535, _range(image, dtype)[1])
        is_own |= high > 65535
    elif image.mode == "F":
        found = _range(image, "")
        is_own |= found[0] < 0 or found[1] > 1
        low, high = found if is_own else (0.0, 1.0)
    else:
        return None
    if wanted != "full":
        low, high = _range(image, dtype) if wanted == "auto" else wanted
    ends = (high, low) if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else (low, high)
    return Levels(*ends, dtype, is_own and not isinstance(wanted, tuple))


def _range(image: Image.Image, dtype: str) -> tuple[float, float]:
    low, high = np.inf, -np.inf
    for rows, columns in _tiles(image.height, image.width):
        values = _values(_tile(image, rows, columns), dtype)
        finite = values[np.isfinite(values)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 1.0)


def _values(tile: Image.Image, dtype: str) -> np.ndarray[Any, np.dtype[Any]]:
    values = np.asarray(tile)
    return values.view(dtype) if dtype else values


def _to_8_bits(tile: Image.Image, levels: Levels) -> Image.Image:
    grey = Image.fromarray(_scaled(tile, levels, 255).astype(np.uint8))
    clear = tile.info.get("transparency")
    if isinstance(clear, int):
        values = _values(tile, levels.dtype)
        grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return grey


def _scaled(tile: Image.Image, levels: Levels, white: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    scaled = _values(tile, levels.dtype).astype(np.float64)
    if tile.mode == "F":
        low, high = sorted((levels.black, levels.white))
        scaled = np.nan_to_num(scaled, nan=levels.black, posinf=high, neginf=low)
    span = (levels.white - levels.black) or 1.0
    return np.rint((scaled - levels.black) / span * float(white)).clip(0, white)
