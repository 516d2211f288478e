"""Boxes, masks and keypoints of examples as NumPy arrays, and their padding to batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import BOX, IMAGES, TARGET_IMAGE, Feature, Schema
from shardprep.dataset.stored_size import open_stored
from shardprep.errors import counted
from shardprep.image.png import encoded_png, stored_png
from shardprep.reader.array_types import Array
from shardprep.reader.config import BoxFormat, Crop, CropWindow, StackPart
from shardprep.reader.decode.crop import boxes_in, moved, nearest_pixels
from shardprep.reader.decode.targets import FORMATTED, PADDING, BoxLimit

_MODES = {"uint8": "L", "uint16": "I;16"}
"""Pixel dtype of a mask → mode of its PNG in Pillow."""


class _Form(NamedTuple):
    shape: tuple[int, ...]
    """Shape of the values of an image, or of each of its objects."""
    number: int
    dtype: Any
    is_pixels: bool


def _form(feature: Feature) -> _Form:
    kind = KINDS[feature.kind]
    is_pixels = kind.moves == "pixels"
    dtype = feature.pixel_dtype if is_pixels else kind.decoded or feature.dtype
    return _Form(feature.value_shape, feature.num_values, np.dtype(dtype).type, is_pixels)


class AnnotationDecoder:
    """Decoder of the annotations of an example into arrays.

    Boxes are float32[n, 4], labels int64[n], crowds bool[n], object masks uint8[n, height, width].
    A class mask is uint8[height, width, 1], or uint16 with more than 254 classes; masks of a stack
    are [length, height, width, 1]. K keypoints are float32[n, K, 2] of objects and float32[K, 2] of
    images, and their visibility is int64[n, K] and int64[K]. A target image is uint8[height, width,
    3], or uint16[height, width, 1] if it has 16 bits.
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
        self._forms = {name: _form(one) for name, one in self._features.items()}
        self._stored = schema.image_size
        self._size = self._stored if crop is None else crop.size
        self._decode = decode
        self._limit = limit
        self._crop = crop
        self._part = part

    def columns(self, num_rows: int) -> dict[str, Array]:
        """Return uninitialized arrays by feature; object[num_rows] if rows may differ in shape."""
        columns: dict[str, Array] = {}
        for name, (shape, dtype) in self.shapes().items():
            is_one = name not in PADDING and (self._decode or not self._forms[name].is_pixels)
            lengths = [length for length in shape if length is not None]
            is_known = is_one and len(lengths) == len(shape)
            row, of = (lengths, dtype) if is_known else ([], object)
            columns[name] = np.empty((num_rows, *row), of)
        return columns

    def shapes(self) -> dict[str, tuple[tuple[int | None, ...], Any]]:
        shapes: dict[str, tuple[tuple[int | None, ...], Any]] = {}
        for name, feature in self._features.items():
            form = self._forms[name]
            inner: tuple[int | None, ...] = form.shape
            if form.is_pixels:
                channels = () if name in PADDING else feature.shape[2:]
                inner = (*(self._size or (None, None)), *channels)
            if name in PADDING:
                inner = (self._limit.max_boxes if self._limit else None, *inner)
            elif feature.repeated:
                inner = (self._part.max_length, *inner)
            shapes[name] = inner, form.dtype
        return shapes

    def values(self, raw: Mapping[str, Any], size: tuple[int, ...] | None) -> dict[str, Any]:
        """Return the arrays of an example by feature. ValueError if a value is damaged.

        `size` is height and width of the image, or None if masks are not decoded. With a crop, the
        arrays still describe the whole image: call `cropped` next.
        """
        values: dict[str, Any] = {}
        number, rows = 1, None
        for name, form in self._forms.items():
            data = raw.get(name, [])
            if name == BOX:  # the first feature of objects
                number = len(data) // form.number
                boxes = self._array(name, data, number)
                rows = None if self._crop is not None else self._largest(boxes)
                values[name] = boxes if rows is None else boxes[rows]
            elif name in PADDING and form.is_pixels:
                if len(data) != number:
                    what = f"{counted(len(data), 'mask')} for {counted(number, 'box')}"
                    raise ValueError(f"feature {name!r} holds {what}")
                data = data if rows is None else [data[row] for row in rows]
                masks = [self._mask(name, one, size) for one in data]
                values[name] = masks
                if self._decode and size is not None:
                    values[name] = np.array(masks, form.dtype).reshape(-1, *size)
            elif name in PADDING:
                every = self._array(name, data, number)
                values[name] = every if rows is None else every[rows]
            elif form.is_pixels:
                own = self._stored if name == TARGET_IMAGE else size
                values[name] = self._pixels(name, data, own, len(raw.get(IMAGES, ())))
            else:
                (values[name],) = self._array(name, data, 1)
        return values

    def _array(self, name: str, data: Sequence[float], number: int) -> Array:
        """Return the values of `number` objects (1 for the whole image) as one array."""
        form = self._forms[name]
        if len(data) != number * form.number:
            what = f"holds {counted(len(data), 'value')}, not {number} x {form.number}"
            raise ValueError(f"feature {name!r} {what}")
        return np.array(data, form.dtype).reshape(number, *form.shape)

    def _pixels(
        self, name: str, data: Sequence[Any], size: tuple[int, ...] | None, num_images: int
    ) -> Any:
        """Return a mask or a target image, or the masks of all images of a stack."""
        feature = self._features[name]
        number = num_images if feature.repeated else 1
        if len(data) != number:
            values = counted(len(data), "value")
            raise ValueError(f"feature {name!r} holds {values}, not {number}")
        if not feature.repeated:
            return self._mask(name, data[0], size)
        pixels = [self._mask(name, one, size) for one in self._part.of(data)]
        if not self._decode:
            return pixels
        (padded,) = stacked([np.array(pixels)], feature.ignored, self._part.max_length)
        return padded

    def cropped(
        self, values: dict[str, Any], window: CropWindow, size: tuple[int, int]
    ) -> dict[str, Any]:
        """Return the part of `values` in a window of the image, at the size of the crop.

        `size` is height and width of the whole image. Objects are dropped if too little is visible.
        """
        if self._crop is None:
            return values
        values = dict(values)
        if BOX in values:
            values[BOX], is_visible = boxes_in(values[BOX], window, size, self._crop)
            rows = np.flatnonzero(is_visible)
            chosen = self._largest(values[BOX][rows])
            rows = rows if chosen is None else rows[chosen]
            for name in PADDING.keys() & values.keys():
                values[name] = values[name][rows]
        return moved(values, self._features, window, size, self._crop.size)

    def padded(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch whose objects, and masks of stacks, are padded to one length."""
        length = self._limit.max_boxes if self._limit else None
        padded = {**columns}
        for name, feature in self._features.items():
            if not self._decode and self._forms[name].is_pixels:
                continue
            if name in PADDING:
                padded[name] = stacked(columns[name], PADDING[name], length)
            elif feature.repeated and columns[name].dtype == object:
                padded[name] = stacked(columns[name], feature.ignored)
        return padded

    def _largest(self, boxes: Array) -> Array | None:
        """Return the sorted indices of the largest boxes, or None if `max_boxes` allows all."""
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
    """Return arrays as one array, each padded with `value` to `length` or to the longest."""
    length = max((len(row) for row in rows), default=0) if length is None else length
    inner = rows[0].shape[1:] if len(rows) else ()
    padded = np.full((len(rows), length, *inner), value, rows[0].dtype)
    for row, out in zip(rows, padded, strict=True):
        out[: len(row)] = row
    return padded


def resized_mask(data: bytes, size: tuple[int, int] | None) -> bytes:
    """Return a mask's PNG, resized to (height, width) by nearest pixel centers; None: unchanged."""
    with open_stored(data, "PNG") as image:
        if size is None or (image.height, image.width) == size:
            return data
        pixels = np.array(image)
    rows, columns = map(nearest_pixels, pixels.shape, size)
    return encoded_png(pixels[np.ix_(rows, columns)])


def array_as(name: str, places: Array, box_format: BoxFormat, size: tuple[int, ...]) -> Array:
    """Return a feature of `FORMATTED` in `box_format`; `size` is height and width in pixels."""
    changed: Array = FORMATTED[name](places, box_format, np.array(size, np.float32), np)
    return changed
