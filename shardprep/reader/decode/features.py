"""Decode examples by the schema of the dataset, to single items or into the rows of a batch.

For a damaged payload, `FeatureDecoder` raises ValueError, or RecordError without the location of
the record. `ExampleReader` knows the record, and raises RecordError with its location.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg

from shardprep.dataset import example
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import IMAGE, IMAGES, MISSING, NUM_IMAGES, Feature, Schema
from shardprep.dataset.stored_size import (
    TooLargeError,
    check_stack_size,
    check_stored_jpeg,
    open_stored,
)
from shardprep.errors import RecordError, counted
from shardprep.image.png import stored_png
from shardprep.reader.array_types import Array, Columns, Ints, Pixels
from shardprep.reader.config import Crop, CropWindow, EpochOptions, StackPart
from shardprep.reader.decode.annotations import AnnotationDecoder, stacked
from shardprep.reader.decode.crop import JpegCrop, crop_pixels, fill_jpeg, jpeg_crop
from shardprep.reader.decode.targets import BoxLimit
from shardprep.reader.order.epoch import Size
from shardprep.reader.records.records import Records

_JPEG_START = b"\xff\xd8\xff"
_DTYPES = {"bytes": np.object_, "int64": np.int64, "float32": np.float32}


class FeatureDecoder:
    """Decoder of the payloads of records to values by feature."""

    def __init__(
        self,
        schema: Schema,
        names: tuple[str, ...],
        *,
        decode: bool,
        fallback: Callable[[bytes], Pixels] | None = None,
        limit: BoxLimit | None = None,
        options: EpochOptions | None = None,
    ) -> None:
        """Decode the features `names`; without `decode`, images and masks stay bytes.

        `fallback` decodes images that Pillow and simplejpeg cannot decode; it may raise any error.
        Without `options`, images and stacks are whole.
        """
        crop = None if options is None else options.crop
        self.names = names
        self.image_name = schema.image_name
        self._part = StackPart() if options is None else options.part
        self.image_size = schema.image_size if crop is None else crop.size
        """Height and width of the decoded or cropped images, or None if images differ in size."""
        self.annotations = AnnotationDecoder(
            schema, names, decode=decode, limit=limit, crop=crop, part=self._part
        )
        self._is_annotated = bool(self.annotations.names)
        self.encoding = schema.image.encoding
        others = self.annotations.names | {self.image_name}
        self._plain_features = [name for name in names if name not in others]
        self._fallback = fallback
        self._schema = schema
        self._decode = decode
        self._crop = crop
        self._is_stack, self._is_deep = schema.is_stack, schema.image.is_deep
        self.dtype = np.dtype(np.uint16 if self._is_deep else np.uint8)
        self._num_channels = 1 if self._is_deep else 3
        lengths = [length for length in self._shape if length is not None]
        is_known = decode and len(lengths) == len(self._shape)
        self.image_shape = tuple(lengths) if is_known else None
        """Shape of all images; None if shapes differ or images are not decoded."""
        self._stored_shape = None
        if schema.image_size:
            self._stored_shape = (*schema.image_size, self._num_channels)
        self._features = schema.features
        self._rows = {name: one for name, one in schema.rows.items() if name in names}
        self._decoder = ExampleDecoder(schema.dtypes, names)

    @property
    def _shape(self) -> tuple[int | None, ...]:
        """Shape of a decoded image or stack; None for a length that varies."""
        length = (self._part.max_length,) if self._is_stack else ()
        return (*length, *(self.image_size or (None, None)), self._num_channels)

    def columns(self, num_rows: int) -> Columns:
        """Return uninitialized arrays by feature; the caller adds images of `image_shape`."""
        columns = {name: self._column(name, num_rows) for name in self._plain_features}
        if self.image_shape is None:
            columns[self.image_name] = np.empty(num_rows, object)
        return columns | self.annotations.columns(num_rows) if self._is_annotated else columns

    def shapes(self) -> dict[str, tuple[tuple[int | None, ...], Any]]:
        """Return feature → (shape, dtype) of a row of a padded batch; None is a varying length."""
        shapes: dict[str, tuple[tuple[int | None, ...], Any]] = {
            name: (column.shape[1:], column.dtype) for name, column in self.columns(0).items()
        }
        shapes[self.image_name] = (self._shape, self.dtype.type)
        shapes.update(self.annotations.shapes())
        shapes |= {name: ((None,), _DTYPES[one.dtype]) for name, one in self._rows.items()}
        return {name: shapes[name] for name in self.names}

    def item(self, payload: memoryview, out: Pixels | None = None) -> dict[str, Any]:
        """Return the values by feature without a crop; `out`, of `image_shape`, gets the pixels."""
        raw = self._raw(payload)
        values = {name: self._value(name, raw) for name in self._plain_features}
        if self.image_name in self.names:
            values[self.image_name] = self._image(raw, out)
        if self._is_annotated:
            values |= self._annotated(raw, values[self.image_name])
        return {name: values[name] for name in self.names}

    def fill(self, payload: memoryview, columns: Columns, row: int, key: int) -> None:
        """Write the values of one example into a row of each column; `key` decides the crop."""
        for _ in self.steps(payload, columns, row, key):
            pass

    def steps(self, payload: memoryview, columns: Columns, row: int, key: int) -> Iterator[None]:
        """Write one example like `fill`, with a yield between parsing and decoding images."""
        raw, rows, crop = self._raw(payload), columns[self.image_name], self._crop
        for name in self._plain_features:
            columns[name][row] = self._value(name, raw)
        if self._is_stack:
            yield
            self._fill_images(crop, raw, columns, row, key)
        elif crop is not None:
            data = _only(IMAGE, self._features[IMAGE], raw)
            part = self._jpeg_crop(data, crop, key)
            yield
            window, size = self._cropped(data, crop, key, rows[row], part)
            if self._is_annotated:
                values = self.annotations.values(raw, size)
                self._fill_annotations(values, window, size, columns, row)
        else:
            yield
            image = self._image(raw, rows[row] if self.image_shape else None)
            if self.image_shape is None:
                rows[row] = image
        if self._is_annotated and crop is None:
            for name, value in self._annotated(raw, rows[row]).items():
                columns[name][row] = value

    def fill_crop(self, values: dict[str, Any], columns: Columns, row: int, key: int) -> None:
        """Write the crop of decoded values to a row, and remove the image from `values`."""
        assert self._crop is not None  # noqa: S101 - without a crop, values are copied
        image, rows = values.pop(self.image_name), columns[self.image_name]
        pairs = [(image, rows[row])]
        if self._is_stack:
            out = self._stack_row(rows, row, (len(image), *self._crop.size))
            pairs = list(zip(image, out, strict=True))
        (window, size), *_ = [crop_pixels(one, self._crop, key, into) for one, into in pairs]
        self._fill_annotations(values, window, size, columns, row)

    def _fill_annotations(
        self, values: dict[str, Any], window: CropWindow, size: Size, columns: Columns, row: int
    ) -> None:
        for name, value in self.annotations.cropped(values, window, size).items():
            columns[name][row] = value

    def _annotated(self, raw: dict[str, Any], image: Any) -> dict[str, Any]:
        return self.annotations.values(raw, image.shape[-3:-1] if self._decode else None)

    def _column(self, name: str, num_rows: int) -> np.ndarray[Any, Any]:
        feature = self._features[name]
        if feature.kind == "rows":
            return np.empty(num_rows, object)
        if feature.kind == "labels":
            return np.empty((num_rows, len(self._schema.labels)), np.float32)
        return np.empty((num_rows, *feature.value_shape), _DTYPES[feature.dtype])

    def _raw(self, payload: memoryview) -> dict[str, Any]:
        raw = self._decoder.find(payload)
        return example.decode(bytes(payload)) if raw is None else raw

    def _value(self, name: str, raw: dict[str, Any]) -> Any:
        feature = self._features[name]
        if feature.kind == "labels":
            return self._multi_hot(raw.get(name, []))
        if feature.kind in ("vector", "texts", "rows"):
            return _several(name, feature, raw.get(name, []))
        value = _only(name, feature, raw)
        if name == NUM_IMAGES and self._is_stack:
            return len(self._part.of(raw.get(IMAGES, ())))
        if feature.dtype == "bytes":
            return str(value, "utf-8")
        return np.float32(value) if feature.dtype == "float32" else value

    def _multi_hot(self, labels: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        hot = np.zeros(len(self._schema.labels), np.float32)
        for label in labels:
            if not 0 <= label < len(hot):
                raise ValueError(f"label {label} is not below {len(hot)}, the number of classes")
            hot[label] = 1.0
        return hot

    @property
    def needs_padding(self) -> bool:
        return self._is_annotated or self._is_stack or bool(self._rows)

    def padded(self, columns: Columns) -> dict[str, Any]:
        """Return a batch, padded to its longest row; objects to `max_boxes` rows, if given."""
        values = self.annotations.padded(columns)
        values |= {n: stacked(values[n], MISSING[one.dtype]) for n, one in self._rows.items()}
        images = values[self.image_name]
        if self._is_stack and self._decode and images.dtype == object:
            values[self.image_name] = stacked(images, 0)
        return values

    def _fill_images(
        self, crop: Crop | None, raw: dict[str, Any], columns: Columns, row: int, key: int
    ) -> None:
        """Write the images of a stack to a row. A crop has one window for all images and masks."""
        rows = columns[IMAGES]
        stored = self._part.of(raw.get(IMAGES, []))
        if not self._decode:
            rows[row] = [bytes(data) for data in stored]
            return
        if not stored:
            raise ValueError(f"feature {IMAGES!r} holds no image")
        sizes: set[tuple[int, ...]] = set()
        window, size = CropWindow(0, 0, 0, 0), (0, 0)
        out = np.empty(0, self.dtype)
        for number, data in enumerate(stored):
            pixels = self._pixels(data) if crop is None else np.empty((*crop.size, 0))
            if not number:
                check_stack_size(len(stored), *pixels.shape[:2])
                out = self._stack_row(rows, row, (len(stored), *pixels.shape[:2]))
            if crop is None:
                sizes.add(pixels.shape[:2])
            else:
                part = self._jpeg_crop(data, crop, key)
                window, size = self._cropped(data, crop, key, out[number], part)
                sizes.add(size)
            if len(sizes) > 1:
                raise ValueError("the images of the stack differ in size")
            if crop is None:
                out[number] = pixels
        if self._is_annotated and crop is not None:
            self._fill_annotations(self.annotations.values(raw, size), window, size, columns, row)

    def _stack_row(self, rows: Array, row: int, shape: tuple[int, ...]) -> Array:
        """Return a row's part for a stack of `shape` without channels, and set its padding to 0."""
        if rows.dtype == object:
            rows[row] = images = np.empty((*shape, self._num_channels), self.dtype)
            return images
        rows[row, shape[0] :] = 0
        padded: Array = rows[row, : shape[0]]
        return padded

    def _jpeg_crop(self, data: bytes | memoryview, crop: Crop, key: int) -> JpegCrop | None:
        return jpeg_crop(data, crop, key) if self._is_jpeg(data) else None

    def _cropped(
        self, data: bytes | memoryview, crop: Crop, key: int, out: Pixels, part: JpegCrop | None
    ) -> tuple[CropWindow, Size]:
        """Fill `out` with the crop; return the window and the size of the whole image."""
        if part is not None and fill_jpeg(data, part, out):
            window, size = part.window, part.size
        else:
            window, size = crop_pixels(self._pixels(data), crop, key, out)
        _check_shape((*size, self._num_channels), self._stored_shape)
        return window, size

    def _image(self, raw: dict[str, Any], out: Pixels | None = None) -> Any:
        if self._is_stack:
            rows = np.empty(1, object)
            self._fill_images(None, raw, {IMAGES: rows}, 0, 0)
            return rows[0]
        data = _only(IMAGE, self._features[IMAGE], raw)
        if not self._decode:
            return bytes(data)
        pixels = self._pixels(data, out)
        if out is None:
            return pixels if pixels.flags.writeable else pixels.copy()
        if pixels is not out and not self._is_jpeg(data):
            out[:] = pixels
        return out

    def _pixels(self, data: bytes | memoryview, out: Pixels | None = None) -> Pixels:
        """Return the pixels of an image; a JPEG or PNG may be decoded into `out`."""
        if self.encoding == "raw":
            if self._stored_shape is None:
                raise ValueError("the image has raw pixels, but the schema has no image size")
            return np.frombuffer(data, np.uint8).reshape(self._stored_shape)
        # `out` avoids fresh pages of memory, which would add half of the time of decoding.
        pixels = self._decoded(data, out)
        _check_shape(pixels.shape, self._stored_shape)
        return pixels

    def _decoded(self, data: bytes | memoryview, out: Pixels | None = None) -> Pixels:
        try:
            if self._is_jpeg(data):
                if out is None:  # `out` bounds the size
                    check_stored_jpeg(data)
                return simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out)  # type: ignore[no-any-return]
            pixels = stored_png(data, "I;16" if self._is_deep else "RGB", out)
            if pixels is not None:
                return pixels
            with open_stored(data, "PNG") as image:
                if not self._is_deep:
                    return np.array(image.convert("RGB"))
                if image.mode != "I;16":
                    raise ValueError(f"it is a PNG of mode {image.mode}, not of 16 bits")
                return np.array(image)[..., np.newaxis]
        except TooLargeError:
            raise
        except Exception as error:
            if self._fallback is not None and not self._is_deep:
                with contextlib.suppress(Exception):
                    pixels = self._fallback(bytes(data))
                    if out is not None and out.shape == pixels.shape:
                        out[:] = pixels
                    return pixels
            raise ValueError(f"the image cannot be decoded ({error})") from error

    def _is_jpeg(self, data: bytes | memoryview) -> bool:
        encoding = self.encoding
        return encoding == "jpeg" or (encoding == "any" and bytes(data[:3]) == _JPEG_START)


@dataclass(frozen=True, slots=True)
class ExampleReader:
    """Reader of decoded examples by their numbers in `records`. Thread-safe.

    RecordError with file, record number and offset if a record, Example or image is damaged.
    """

    records: Records
    decoder: FeatureDecoder

    def item(self, number: int, out: Pixels | None = None) -> dict[str, Any]:
        payload = self.records.payload(number)
        try:
            return self.decoder.item(payload, out)
        except Exception as error:
            raise self.error_of(number, error) from error

    def steps(self, number: int, columns: Columns, row: int, key: int) -> Iterator[None]:
        payload = self.records.payload(number)
        try:
            yield from self.decoder.steps(payload, columns, row, key)
        except Exception as error:
            raise self.error_of(number, error) from error

    def error_of(self, number: int, error: Exception) -> Exception:
        """Return the RecordError for record `number` after `error`, or a MemoryError unchanged."""
        # Decoders may raise any error. Only MemoryError is not a problem of the record.
        if isinstance(error, MemoryError):
            return error
        what = error.what if isinstance(error, RecordError) else " ".join(str(error).split())
        return self.records.damaged(number, what or type(error).__name__)


@dataclass(frozen=True, slots=True)
class DecodedExamples:
    """Decoded examples with whole images in memory; `decoder` crops and pads them."""

    arrays: Columns
    """Feature → array of values by example; an object array if their shapes differ."""
    decoder: FeatureDecoder

    def steps(self, number: int, columns: Columns, row: int, key: int) -> Iterator[None]:
        yield
        values = {name: column[number] for name, column in self.arrays.items()}
        self.decoder.fill_crop(values, columns, row, key)

    def batch(self, numbers: Ints) -> dict[str, Any]:
        columns = {name: column[numbers] for name, column in self.arrays.items()}
        return self.decoder.padded(columns) if self.decoder.needs_padding else columns


def middle_image(stack: Any) -> Pixels:
    """Return a decoded stack's middle image as uint8 RGB; 16-bit values keep their upper 8 bits."""
    image = stack[len(stack) // 2]
    if image.dtype == np.uint16:
        return np.repeat((image >> 8).astype(np.uint8), 3, axis=2)
    return image  # type: ignore[no-any-return]


def _only(name: str, feature: Feature, raw: dict[str, Any]) -> Any:
    values = raw.get(name, [])
    if len(values) != 1:
        raise ValueError(f"feature {name!r} holds {len(values)} values, not 1 {feature.dtype}")
    return values[0]


def _several(name: str, feature: Feature, values: list[Any]) -> np.ndarray[Any, Any]:
    """Return the values of a vector, rows or texts as an array; texts are padded with ""."""
    if feature.kind == "vector":
        if len(values) != feature.num_values:
            given = counted(len(values), "value")
            what = f"holds {given}, not {feature.num_values} {feature.dtype}"
            raise ValueError(f"feature {name!r} {what}")
        return np.array(values, np.float32)
    if feature.kind == "rows":
        rows = [str(one, "utf-8") for one in values] if feature.dtype == "bytes" else values
        return np.array(rows, _DTYPES[feature.dtype])
    texts = np.full(feature.num_values, "", np.object_)
    if len(values) > len(texts):
        raise ValueError(f"feature {name!r} holds {len(values)} texts, not up to {len(texts)}")
    texts[: len(values)] = [str(value, "utf-8") for value in values]
    return texts


def _check_shape(shape: tuple[int, ...], stored: tuple[int, ...] | None) -> None:
    if stored is not None and shape != stored:
        actual, expected = ("x".join(map(str, one[:2])) for one in (shape, stored))
        raise ValueError(f"the image is {actual} (height x width), but the schema says {expected}")
