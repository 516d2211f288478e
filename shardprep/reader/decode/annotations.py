"""Boxes and masks of examples as NumPy arrays, and their padding to batches.

The TensorFlow graph has code of its own to resize masks, in `tf/decode`.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    IMAGES,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
    POINTS,
    POINTS_VISIBLE,
    TARGET_IMAGE,
    Schema,
)
from shardprep.dataset.stored_size import open_stored
from shardprep.image.png import stored_png
from shardprep.reader.array_types import Array
from shardprep.reader.config import BoxFormat, Crop, CropWindow, StackPart
from shardprep.reader.decode.crop import (
    clipped,
    moved_points,
    nearest,
    nearest_pixels,
    same_part,
)
from shardprep.reader.decode.targets import PADDING, BoxLimit, formatted, formatted_points

_MODES = {"uint8": "L", "uint16": "I;16"}
"""dtype of the pixels of a mask → mode of its PNG in Pillow."""
_DTYPES = {
    BOX: np.float32,
    BOX_LABEL: np.int64,
    CROWD: np.bool_,
    KEYPOINTS: np.float32,
    KEYPOINTS_VISIBLE: np.int64,
}
_PAIRS = ((KEYPOINTS, KEYPOINTS_VISIBLE), (POINTS, POINTS_VISIBLE))


class AnnotationDecoder:
    """Turns the boxes and masks of an example into arrays.

    Boxes are float32[n, 4], labels int64[n], crowds bool[n], object masks uint8[n, height, width].
    A class mask is uint8[height, width, 1], or uint16 with more than 254 classes. Keypoints are
    float32[n, K, 2] of objects and float32[K, 2] of images, their visibility is int64. A target
    image is uint8[height, width, 3], or uint16[height, width, 1] if it has 16 bits. Masks of the
    images of a stack are uint8[length, height, width, 1], padded with ignored pixels.
    """

    def __init__(
        self,
        schema: Schema,
        names: Sequence[str],
        *,
        decode: bool,
        limit: BoxLimit | None,
        crop: Crop | None,
        part: StackPart,
    ) -> None:
        """Decode the annotations among the features `names`; without `decode`, masks stay bytes."""
        self._features = {name: one for name, one in schema.annotations.items() if name in names}
        self.names = frozenset(self._features)
        self._stored = schema.image_size
        self._size = self._stored if crop is None else crop.size
        self._decode = decode
        self._limit = limit
        self._crop = crop
        self._part = part
        self._has_masks = MASK in self._features and self._features[MASK].repeated

    def columns(self, num_rows: int) -> dict[str, Array]:
        """Return uninitialized arrays by feature for a batch; object[rows] if shapes may differ."""
        columns: dict[str, Array] = {name: np.empty(num_rows, object) for name in self._features}
        for name in columns.keys() & {MASK, TARGET_IMAGE} if self._decode else ():
            shape, dtype = self.shapes()[name]
            if None not in shape:
                columns[name] = np.empty((num_rows, *shape), dtype)
        for name in (POINTS, POINTS_VISIBLE):
            if name in columns:
                shape, dtype = self._points_shape(name)
                columns[name] = np.empty((num_rows, *shape), dtype)
        return columns

    def _points_shape(self, name: str) -> tuple[tuple[int, ...], Any]:
        """Return the shape and dtype of keypoints or visibility, of one object or image."""
        feature = self._features[name]
        is_place = feature.kind == "keypoints"
        number = len(feature.points)
        return ((number, 2), np.float32) if is_place else ((number,), np.int64)

    def shapes(self) -> dict[str, tuple[tuple[int | None, ...], Any]]:
        """Return feature → (shape, dtype) of a row of a padded batch; None is a varying length."""
        length = self._limit.max_boxes if self._limit else None
        size = self._size or (None, None)
        shapes: dict[str, tuple[tuple[int | None, ...], Any]] = {
            BOX: ((length, 4), np.float32),
            BOX_LABEL: ((length,), np.int64),
            CROWD: ((length,), np.bool_),
            OBJECT_MASK: ((length, *size), np.uint8),
        }
        for name in self._features.keys() & {MASK, TARGET_IMAGE}:
            feature = self._features[name]
            part = (self._part.max_length,) if feature.repeated else ()
            shapes[name] = ((*part, *size, feature.shape[2]), feature.pixel_dtype)
        for name in self._features.keys() & {*itertools.chain(*_PAIRS)}:
            shape, dtype = self._points_shape(name)
            shapes[name] = ((length, *shape) if name in PADDING else shape, dtype)
        return {name: shapes[name] for name in self._features}

    def values(self, raw: Mapping[str, Any], size: tuple[int, ...] | None) -> dict[str, Any]:
        """Return the arrays of an example by feature. Raises ValueError if a value is damaged.

        `size` is height and width of the image, or None if masks are not decoded. If there is a
        crop, the arrays still describe the whole image: call `cropped` next.
        """
        values = self._objects(raw, size) if BOX in self._features else {}
        for name, own in ((MASK, size), (TARGET_IMAGE, self._stored)):
            if name not in self._features:
                continue
            feature, data = self._features[name], raw.get(name, [])
            number = len(raw.get(IMAGES, ())) if feature.repeated else 1
            if len(data) != number:
                raise ValueError(f"feature {name!r} holds {len(data)} values, not {number}")
            pixels = [self._mask(name, one, own) for one in self._part.of(data)]
            values[name] = pixels if feature.repeated else pixels[0]
            if feature.repeated and self._decode:
                rows = np.array(pixels)
                (values[name],) = stacked([rows], feature.ignored, self._part.max_length)
        for name in (POINTS, POINTS_VISIBLE):
            if name in self._features:
                (values[name],) = self._points(name, raw.get(name, []), 1)
        return values

    def _points(self, name: str, numbers: Sequence[float], num_rows: int) -> Array:
        shape, dtype = self._points_shape(name)
        if len(numbers) != num_rows * math.prod(shape):
            what = f"holds {len(numbers)} values, not {math.prod(shape)} for each of {num_rows}"
            raise ValueError(f"feature {name!r} {what}")
        return np.array(numbers, dtype).reshape(num_rows, *shape)

    def _objects(self, raw: Mapping[str, Any], size: tuple[int, ...] | None) -> dict[str, Any]:
        numbers = raw.get(BOX, [])
        if len(numbers) % 4:
            raise ValueError(f"feature {BOX!r} holds {len(numbers)} values, not 4 a box")
        boxes: Array = np.array(numbers, np.float32).reshape(-1, 4)
        by_feature = {name: raw.get(name, []) for name in self._features if name in PADDING}
        by_feature[BOX] = boxes
        for name in by_feature.keys() & {KEYPOINTS, KEYPOINTS_VISIBLE}:
            by_feature[name] = self._points(name, by_feature[name], len(boxes))
        for name, column in by_feature.items():
            if len(column) != len(boxes):
                what = f"holds {len(column)} values of {len(boxes)} boxes"
                raise ValueError(f"feature {name!r} {what}")
        chosen = None if self._crop is not None else self._largest(boxes)
        values: dict[str, Any] = {}
        for name, column in by_feature.items():
            rows = column if chosen is None else [column[row] for row in chosen]
            if name != OBJECT_MASK:
                values[name] = np.array(rows, _DTYPES[name])
                if name in (KEYPOINTS, KEYPOINTS_VISIBLE):  # also without a row
                    values[name] = values[name].reshape(-1, *self._points_shape(name)[0])
                continue
            masks = [self._mask(name, data, size) for data in rows]
            if self._decode and size is not None:
                values[name] = np.array(masks, np.uint8).reshape(-1, *size)
            else:
                values[name] = masks
        return values

    def cropped(
        self, values: dict[str, Any], window: CropWindow, size: tuple[int, int]
    ) -> dict[str, Any]:
        """Return the part of `values` in a window of the image, at the size of the crop.

        `size` is height and width of the whole image. Boxes are clipped, and objects that are not
        visible enough are dropped. Masks are resized by the nearest pixel centers.
        """
        if self._crop is None:
            return values
        values = dict(values)
        if BOX in values:
            values[BOX], is_visible = clipped(values[BOX], window, size, self._crop)
            rows = np.flatnonzero(is_visible)
            chosen = self._largest(values[BOX][rows])
            for name in PADDING.keys() & values.keys():
                values[name] = values[name][rows if chosen is None else rows[chosen]]
        for places, visible in _PAIRS:
            if places in values and visible in values:
                pairs = self._features[places].mirrored
                moved = moved_points(values[places], values[visible], window, size, pairs)
                values[places], values[visible] = moved
        for name, axis in ((OBJECT_MASK, 1), (MASK, int(self._has_masks))):
            if name in values:
                values[name] = nearest(values[name], window, self._crop.size, axis)
        if TARGET_IMAGE in values:
            values[TARGET_IMAGE] = same_part(values[TARGET_IMAGE], window, size, self._crop.size)
        return values

    def padded(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch with objects padded to `max_boxes`, or to the longest row."""
        length = self._limit.max_boxes if self._limit else None
        padded = {
            name: stacked(column, PADDING[name], length)
            if name in _DTYPES or (name == OBJECT_MASK and self._decode)
            else column
            for name, column in columns.items()
        }
        if self._has_masks and self._decode and columns[MASK].dtype == object:
            padded[MASK] = stacked(columns[MASK], self._features[MASK].ignored)
        return padded

    def _largest(self, boxes: Array) -> Array | None:
        """Return the sorted indices of the largest boxes, or None if there are not too many."""
        if self._limit is None or len(boxes) <= self._limit.max_boxes:
            return None
        self._limit.warn(len(boxes))
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        chosen: Array = np.sort(np.argsort(-areas, kind="stable")[: self._limit.max_boxes])
        return chosen

    def _mask(self, name: str, data: Any, size: tuple[int, ...] | None) -> Any:
        if not self._decode:
            return bytes(data)
        is_image = name == TARGET_IMAGE
        noun = "the target image" if is_image else f"a mask of {name!r}"
        is_rgb = is_image and not self._features[name].is_deep
        wanted = "RGB" if is_rgb else _MODES[self._features[name].pixel_dtype]
        mode, pixels = wanted, stored_png(data, wanted)
        try:
            if pixels is None:
                with open_stored(data, "PNG") as image:
                    mode, pixels = image.mode, np.atleast_3d(np.array(image))
        except Exception as error:
            raise ValueError(f"{noun} cannot be decoded ({error})") from error
        if mode != wanted:
            raise ValueError(f"{noun} is a PNG of mode {mode}, not {wanted}")
        if size is not None and pixels.shape[:2] != size:
            actual, expected = ("x".join(map(str, shape[:2])) for shape in (pixels.shape, size))
            raise ValueError(f"{noun} is {actual} (height x width), not {expected}")
        return pixels


def stacked(rows: Sequence[Array], value: float | str, length: int | None = None) -> Array:
    """Return arrays as one, each padded with `value` to `length` or to the longest of them."""
    length = max((len(row) for row in rows), default=0) if length is None else length
    inner = rows[0].shape[1:] if len(rows) else ()
    padded = np.full((len(rows), length, *inner), value, rows[0].dtype)
    for row, out in zip(rows, padded, strict=True):
        out[: len(row)] = row
    return padded


def resized_mask(data: bytes, size: tuple[int, int] | None) -> bytes:
    """Return the PNG of a mask, resized to a (height, width) by the nearest pixel centers."""
    from PIL import Image

    with open_stored(data, "PNG") as image:
        if size is None or (image.height, image.width) == size:
            return data
        pixels = np.array(image)
    rows, columns = map(nearest_pixels, pixels.shape, size)
    out = io.BytesIO()
    Image.fromarray(pixels[np.ix_(rows, columns)]).save(out, "PNG")
    return out.getvalue()


def points_as(points: Array, box_format: BoxFormat, size: tuple[int, ...]) -> Array:
    """Return keypoints, float32[…, 2], in the order and unit of a box format; see `boxes_as`."""
    changed: Array = formatted_points(points, box_format, np.array(size, np.float32), np)
    return changed


def boxes_as(boxes: Array, box_format: BoxFormat, size: tuple[int, ...]) -> Array:
    """Return boxes, float32[…, 4], in another format; `size` is (height, width) of the image."""
    changed: Array = formatted(boxes, box_format, np.array(size, np.float32), np)
    return changed
