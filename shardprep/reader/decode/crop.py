"""Crops: decode an image, resize the window that a crop shows, and move boxes and masks to it.

A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if the window is then still as high and wide as the
result. libjpeg uses smaller inverse transforms for that, which are faster and still average every
pixel. The window is resized by Pillow's bicubic filter, which reads pixels beyond its edges. Whole
images are stretched by the bilinear filter, as in TensorFlow's `resize` with `antialias`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import simplejpeg

from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import ALL_POINTS, Feature
from shardprep.dataset.stored_size import check_stored_size
from shardprep.image.jpeg_header import is_scalable
from shardprep.image.resample import resize, resize_deep
from shardprep.reader.array_types import Array, Ints, Pixels
from shardprep.reader.config import Crop, CropWindow, WholeImage
from shardprep.reader.order.epoch import Size
from shardprep.reader.order.permutation import mix

_CROP = 3
"""Separates the keys of crops from the keys of augmentation, which depend on the same tags."""
_FEW_TAGS = 8
"""Smallest number of tags that NumPy mixes faster than Python."""
_UINT64 = (1 << 64) - 1
_SCALES = (8, 4, 2)
"""Divisors of a JPEG's size that have a fast inverse transform."""
_MAX_BUFFER_BYTES = 64 << 20
"""Maximum size of the pixel buffer that a thread keeps for its next image."""
_MIN_PIXELS = 0.999
"""Minimum side of a box in the result: one pixel, less the rounding error of a float."""
_buffers = threading.local()


def crop_keys(key: int, tags: Ints) -> list[int]:
    """Return the keys, one per tag, that decide the crops; `key` is the key of the `Order`."""
    if len(tags) < _FEW_TAGS:
        return [mix(key, tag, _CROP) for tag in tags.tolist()]
    return mix(key, tags, _CROP).tolist()  # type: ignore[attr-defined, no-any-return]


def draws(key: int) -> Iterator[float]:
    """Yield random numbers in [0, 1) without end; equal keys give equal numbers."""
    # SplitMix64 (Steele, Lea and Flood, 2014): the state advances by 2⁶⁴ divided by the golden
    # ratio, and two multiply-xorshift rounds mix it. Creating a NumPy generator would take longer
    # than drawing the few numbers of a crop.
    while True:
        key = (key + 0x9E3779B97F4A7C15) & _UINT64
        mixed = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _UINT64
        yield ((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53  # 53 bits: a float's precision


class JpegCrop(NamedTuple):
    """The part of a JPEG that a crop shows, and how to decode it."""

    window: CropWindow
    size: Size
    """Height and width of the whole image."""
    scale: int
    """Divisor of `size` at which the image is decoded."""
    crop: Crop


def jpeg_crop(data: bytes | memoryview, crop: Crop, key: int) -> JpegCrop | None:
    """Return the part of a JPEG to decode, and its scale; `key` decides a random crop.

    None if the image is too large or simplejpeg cannot decode it.
    """
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        check_stored_size(height, width)
    except ValueError:
        return None
    window = crop.window(height, width, draws(key))
    scale = 1 if isinstance(crop, WholeImage) else scale_of(window, crop.size)
    is_decodable = scale == 1 or is_scalable(data)
    return JpegCrop(window, (height, width), scale, crop) if is_decodable else None


def fill_jpeg(data: bytes | memoryview, crop: JpegCrop, out: Pixels) -> bool:
    """Fill `out` with the crop of a JPEG; return whether simplejpeg could decode the image."""
    window, (height, width), scale, _ = crop
    rows, columns = -(-height // scale), -(-width // scale)
    try:
        pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=rows, min_width=columns, min_factor=scale,
            buffer=_memory(rows * columns * 3),
        )  # fmt: skip
    except ValueError:
        return False
    _fill(out, pixels, window, scale, crop.crop)
    return True


def crop_pixels(pixels: Pixels, crop: Crop, key: int, out: Pixels) -> tuple[CropWindow, Size]:
    """Fill `out` with the crop of an image; return the window and the size of the whole image."""
    height, width, _ = pixels.shape
    window = crop.window(height, width, draws(key))
    _fill(out, pixels, window, 1, crop)
    return window, (height, width)


def scale_of(window: CropWindow, size: Size) -> int:
    """Return the largest divisor of a JPEG's size that leaves the window at least `size`, or 1."""
    fits = min(window.height // size[0], window.width // size[1])
    return next((scale for scale in _SCALES if scale <= fits), 1)


def _fill(
    out: Any, pixels: Any, window: tuple[float, ...], scale: int, crop: Crop | None = None
) -> None:
    if isinstance(crop, WholeImage):
        from PIL import Image

        size = out.shape[1], out.shape[0]
        out[:] = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
        return
    top, left, height, width, mirrored = window
    bottom = min((top + height) / scale, pixels.shape[0])  # decoders round sides up
    right = min((left + width) / scale, pixels.shape[1])
    box = left / scale, top / scale, right, bottom
    resized: Any = resize_deep if pixels.dtype == np.uint16 else resize
    resized(pixels, (out.shape[0], out.shape[1]), box, out, mirrored=bool(mirrored))


def moved(
    values: dict[str, Any],
    features: Mapping[str, Feature],
    window: CropWindow,
    size: Size,
    wanted: Size,
) -> dict[str, Any]:
    """Return values by feature, moved from an image to a window of it; boxes are unchanged.

    `size` is height and width of the whole image, `wanted` of the result.
    """
    changed = dict(values)
    for name, feature in features.items():
        moves = KINDS[feature.kind].moves
        if moves == "points":
            visible = ALL_POINTS[name]
            both = values[name], values[visible]
            changed[name], changed[visible] = moved_points(*both, window, size, feature.mirrored)
        elif feature.kind == "mask":
            axis = int(feature.repeated)  # of objects, or of the images of a stack
            changed[name] = _nearest(values[name], window, wanted, axis)
        elif moves == "pixels":
            changed[name] = _same_part(values[name], window, size, wanted)
    return changed


def _same_part(pixels: Array, window: CropWindow, size: Size, wanted: Size) -> Any:
    """Return the part of a target image that corresponds to a window of an image of `size`."""
    out = np.empty((*wanted, pixels.shape[2]), pixels.dtype)
    ratios = (pixels.shape[0] / size[0], pixels.shape[1] / size[1]) * 2
    sides = (side * ratio for side, ratio in zip(window[:4], ratios, strict=True))
    _fill(out, pixels, (*sides, window.mirrored), 1)
    return out


def boxes_in(boxes: Array, window: CropWindow, size: Size, crop: Crop) -> tuple[Array, Array]:
    """Return boxes as shares of a window and clipped to it, and bool[n]: which boxes to keep."""
    if isinstance(crop, WholeImage):
        return boxes, np.ones(len(boxes), bool)
    top, left, height, width, mirrored = window
    begin = np.array([top, left] * 2, np.float64) / (size * 2)
    length = np.array([height, width] * 2, np.float64) / (size * 2)
    moved = (boxes - begin) / length
    if mirrored:
        moved[:, [1, 3]] = 1.0 - moved[:, [3, 1]]
    inside = moved.clip(0.0, 1.0)
    whole, part = moved[:, 2:] - moved[:, :2], inside[:, 2:] - inside[:, :2]
    is_visible = part.prod(axis=1) >= crop.min_visible * whole.prod(axis=1)
    is_visible &= (part * crop.size >= _MIN_PIXELS).all(axis=1)
    return inside.astype(np.float32), is_visible


def moved_points(
    points: Array, visible: Array, window: CropWindow, size: Size, pairs: Sequence[int]
) -> tuple[Array, Array]:
    """Return keypoints as shares of a window, and their visibility; outside, both are 0.

    In a mirrored window, the keypoints of each pair are exchanged: `pairs[i]` is the index of the
    keypoint that replaces keypoint `i`.
    """
    top, left, height, width, mirrored = window
    moved = (points * size - np.array([top, left], np.float64)) / (height, width)
    if mirrored:
        moved[..., 1] = 1.0 - moved[..., 1]
        if pairs:
            moved, visible = moved[..., list(pairs), :], visible[..., list(pairs)]
    is_left = ((moved >= 0.0) & (moved <= 1.0)).all(axis=-1) & (visible > 0)
    places = np.where(is_left[..., np.newaxis], moved, 0.0).astype(np.float32)
    return places, np.where(is_left, visible, 0)


def _nearest(masks: Array, window: CropWindow, size: Size, axis: int) -> Array:
    """Return a window of masks, resized by the nearest pixel centers; rows are on `axis`."""
    top, left, height, width, mirrored = window
    rows, columns = top + nearest_pixels(height, size[0]), left + nearest_pixels(width, size[1])
    return masks.take(rows, axis).take(columns[:: -1 if mirrored else 1], axis + 1)


def nearest_pixels(length: int, wanted: int) -> Ints:
    """Return int64[wanted]: which of `length` old pixels is at the center of each new pixel."""
    # ⌊(i + ½) · length / wanted⌋ in whole numbers: floats could round whole results down.
    return (2 * np.arange(wanted) + 1) * length // (2 * wanted)


def _memory(num_bytes: int) -> bytearray:
    # Each thread reuses a buffer: fresh pages of memory would add half of the time of decoding.
    memory: bytearray = getattr(_buffers, "memory", bytearray())
    if len(memory) < num_bytes:
        memory = bytearray(num_bytes)
        if num_bytes <= _MAX_BUFFER_BYTES:
            _buffers.memory = memory
    return memory
