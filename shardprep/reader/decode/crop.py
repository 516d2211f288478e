"""Parts of images and of what is annotated in them, at the size of a crop.

A JPEG is decoded at a half, a quarter or an eighth of its size where the part still has as many
pixels as the result: by smaller inverse transforms, which take less time and see every pixel. The
part is resized by Pillow's bicubic filter, which reaches over its edges where the image goes on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg

from shardprep.dataset.stored_size import check_stored_size
from shardprep.image.jpeg_header import is_scalable
from shardprep.image.resample import resize
from shardprep.reader.array_types import Array, Ints, Pixels
from shardprep.reader.config import Crop, Window
from shardprep.reader.order.epoch import Size
from shardprep.reader.order.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Iterator


_CROP = 3
"""Tells the keys of crops from those of augmentation, which are made of the same tags."""
_UINT64 = (1 << 64) - 1
_SCALES = (8, 4, 2)
"""Parts of a size that a JPEG is decoded at; others have no fast inverse transform."""
_KEPT_BYTES = 64 << 20
"""Pixels of decoded pixels whose memory a thread keeps for its next image, at most."""
_LEAST_PIXELS = 0.999
"""Pixels of a side below which a box is cut away: one, less the error of a float."""
_kept = threading.local()


def crop_keys(key: int, tags: Ints) -> list[int]:
    """Return what the crops of records are drawn by; `key` is that of the order, `Order.tags`."""
    return mix(key, tags, _CROP).tolist()  # type: ignore[attr-defined, no-any-return]


def draws(key: int) -> Iterator[float]:
    """Yield the random numbers of a key, 0 to below 1, without end.

    SplitMix64 (Steele and others, 2014), from the key on: a generator of NumPy's takes longer to be
    made than a crop needs numbers.
    """
    while True:
        key = (key + 0x9E3779B97F4A7C15) & _UINT64
        found = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
        found = ((found ^ (found >> 27)) * 0x94D049BB133111EB) & _UINT64
        yield ((found ^ (found >> 31)) >> 11) * 2.0**-53


def crop_jpeg(
    data: bytes | memoryview, crop: Crop, key: int, out: Pixels
) -> tuple[Window, Size] | None:
    """Fill `out` with the part of a JPEG that a key draws; return which, and its height and width.

    None where simplejpeg cannot decode it at every scale.
    """
    if not is_scalable(data):
        return None
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        check_stored_size(height, width)
        window = crop.window(height, width, draws(key))
        scale = scale_of(window, crop.size)
        rows, columns = -(-height // scale), -(-width // scale)
        pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=rows, min_width=columns, min_factor=scale,
            buffer=_memory(rows * columns * 3),
        )  # fmt: skip
    except ValueError:
        return None
    _fill(out, pixels, window, scale)
    return window, (height, width)


def crop_pixels(pixels: Pixels, crop: Crop, key: int, out: Pixels) -> tuple[Window, Size]:
    """Fill `out` with the part of an image that a key draws; return as `crop_jpeg`."""
    height, width, _ = pixels.shape
    window = crop.window(height, width, draws(key))
    _fill(out, pixels, window, 1)
    return window, (height, width)


def scale_of(window: Window, size: Size) -> int:
    """Return by how much a JPEG may be smaller than it is, so that its part is not enlarged."""
    fits = min(window.height // size[0], window.width // size[1])
    return next((scale for scale in _SCALES if scale <= fits), 1)


def _fill(out: Pixels, pixels: Pixels, window: Window, scale: int) -> None:
    """Fill `out` with a part of an image that is decoded at 1 / `scale` of its size."""
    top, left, height, width = window
    bottom = min((top + height) / scale, pixels.shape[0])  # sides are rounded up
    right = min((left + width) / scale, pixels.shape[1])
    resize(pixels, (out.shape[0], out.shape[1]), (left / scale, top / scale, right, bottom), out)


def clipped(boxes: Array, window: Window, size: Size, crop: Crop) -> tuple[Array, Array]:
    """Return boxes as shares of a part of an image, and which of them are left, bool[n]."""
    top, left, height, width = window
    begin = np.array([top, left] * 2, np.float64) / (size * 2)
    length = np.array([height, width] * 2, np.float64) / (size * 2)
    moved = (boxes - begin) / length
    inside = moved.clip(0.0, 1.0)
    whole, part = moved[:, 2:] - moved[:, :2], inside[:, 2:] - inside[:, :2]
    is_left = part.prod(axis=1) >= crop.min_visible * whole.prod(axis=1)
    is_left &= (part * crop.size >= _LEAST_PIXELS).all(axis=1)
    return inside.astype(np.float32), is_left


def nearest(masks: Array, window: Window, size: Size, axis: int) -> Array:
    """Return a part of masks by the nearest pixel centres; `axis` is that of rows."""
    begins, lengths = window[:2], window[2:]
    for i, (begin, length, wanted) in enumerate(zip(begins, lengths, size, strict=True)):
        places = begin + (2 * np.arange(wanted) + 1) * length // (2 * wanted)
        masks = masks.take(places, axis + i)
    return masks


def _memory(num_bytes: int) -> bytearray:
    """Return memory of this thread: fresh pages would cost half as much again as decoding."""
    found: bytearray = getattr(_kept, "memory", bytearray())
    if len(found) < num_bytes:
        found = bytearray(num_bytes)
        if num_bytes <= _KEPT_BYTES:
            _kept.memory = found
    return found
