"""The features of examples as Python and numpy values, by the dataset's own schema.

An item and a row of a batch hold the same values. What is wrong with a payload is a ValueError of
`Values`, and a RecordError of `Examples`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

from shardprep.dataset import example
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import IMAGE
from shardprep.dataset.stored_size import TooLargeError, check_stored_jpeg, open_stored
from shardprep.errors import RecordError
from shardprep.image.resample import resize
from shardprep.reader.decode.annotations import Annotations
from shardprep.reader.decode.cropping import crop_jpeg, crop_pixels

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.dataset.schema import Feature, Schema
    from shardprep.reader.decode.crop import Crop
    from shardprep.reader.decode.targets import Cut
    from shardprep.reader.records.records import Records

    Pixels = np.ndarray[Any, np.dtype[np.uint8]]
    Columns = dict[str, np.ndarray[Any, Any]]
    """Feature → its values in a batch, a row an example."""

_JPEG_START = b"\xff\xd8\xff"
_DTYPES = {"bytes": np.object_, "int64": np.int64, "float32": np.float32}


class Values:
    """Turns payloads of a dataset's records into values."""

    def __init__(
        self,
        schema: Schema,
        names: tuple[str, ...],
        *,
        decode: bool,
        otherwise: Callable[[bytes], Pixels] | None = None,
        cut: Cut | None = None,
        crop: Crop | None = None,
    ) -> None:
        """Give the features `names`; without `decode`, images stay the bytes they are stored as.

        `otherwise` is asked for the pixels of an image that cannot be decoded here, and raises
        whatever it likes; `cut` is the most boxes of an image; `crop` the part of it that is given.
        """
        self.names = names
        self.image_size = schema.image_size if crop is None else crop.size
        """Height and width of all images as they are given, None where they differ."""
        self.annotations = Annotations(schema, names, decode=decode, cut=cut, crop=crop)
        self._is_annotated = bool(self.annotations.names)
        self.encoding = schema.image.encoding
        self._whole = [one for one in names if one not in self.annotations.names]
        """Features of the image as a whole."""
        self._otherwise = otherwise
        self._schema = schema
        self._decode = decode
        self._crop = crop
        self._shape = (*self.image_size, 3) if self.image_size and decode else None
        self._stored_shape = (*schema.image_size, 3) if schema.image_size else None
        self._features = schema.features
        self._decoder = ExampleDecoder(schema.dtypes, names)

    def columns(self, num_rows: int) -> Columns:
        """Return an array for a batch of each feature, not filled; images of one size have none."""
        found = {name: self._column(name, num_rows) for name in self._whole if name != IMAGE}
        if self.image_shape() is None:
            found[IMAGE] = np.empty(num_rows, object)
        return found | self.annotations.columns(num_rows) if self._is_annotated else found

    def shapes(self) -> dict[str, tuple[tuple[int | None, ...], Any]]:
        """Return shape and dtype of a row of each feature in a padded batch, by name."""
        found: dict[str, tuple[tuple[int | None, ...], Any]] = {
            name: (one.shape[1:], one.dtype) for name, one in self.columns(0).items()
        }
        found[IMAGE] = (self.image_shape() or (None, None, 3), np.uint8)
        found.update(self.annotations.shapes())
        return {name: found[name] for name in self.names}

    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of all images, None where they differ or are not decoded."""
        return self._shape

    def item(self, payload: memoryview) -> dict[str, Any]:
        """Return the values of one example by feature, the image whole."""
        raw = self._raw(payload)
        found = {
            name: self._image(raw) if name == IMAGE else self._value(name, raw)
            for name in self._whole
        }
        if not self._is_annotated:
            return found
        found |= self._annotated(raw, found[IMAGE])
        return {name: found[name] for name in self.names}

    def fill(self, payload: memoryview, columns: Columns, row: int, key: int) -> None:
        """Write the values of one example into a row of each column, the image's among them.

        `key` is what a crop is drawn by.
        """
        raw = self._raw(payload)
        image = None
        for name in self._whole:
            if name != IMAGE:
                columns[name][row] = self._value(name, raw)
            elif self._crop is not None:
                self._fill_crop(self._crop, raw, columns, row, key)
            elif self._shape is not None:
                image = self._image(raw, columns[IMAGE][row])
            elif columns[IMAGE].dtype == object:
                image = columns[IMAGE][row] = self._image(raw)
            else:
                image = columns[IMAGE][row] = _resized(self._image(raw), columns[IMAGE].shape)
        if self._is_annotated and self._crop is None:
            for name, value in self._annotated(raw, image).items():
                columns[name][row] = value

    def _fill_crop(
        self, crop: Crop, raw: dict[str, Any], columns: Columns, row: int, key: int
    ) -> None:
        """Write the part of an image that a key draws into a row, and what is annotated there."""
        data, out = _only(IMAGE, self._features[IMAGE], raw), columns[IMAGE][row]
        found = crop_jpeg(data, crop, key, out) if self._is_jpeg(data) else None
        if found is None:
            found = crop_pixels(self._pixels(data), crop, key, out)
        window, size = found
        _check_shape((*size, 3), self._stored_shape)
        if self._is_annotated:
            values = self.annotations.values(raw, size)
            for name, value in self.annotations.cropped(values, window, size).items():
                columns[name][row] = value

    def fill_decoded(self, found: dict[str, Any], columns: Columns, row: int, key: int) -> None:
        """Write values that are decoded into a row of each column, cropped."""
        if self._crop is None:
            raise ValueError("nothing is to be cropped")
        window, size = crop_pixels(found.pop(IMAGE), self._crop, key, columns[IMAGE][row])
        for name, value in self.annotations.cropped(found, window, size).items():
            columns[name][row] = value

    def _annotated(self, raw: dict[str, Any], image: Any) -> dict[str, Any]:
        return self.annotations.values(raw, image.shape[:2] if self._decode else None)

    def _column(self, name: str, num_rows: int) -> np.ndarray[Any, Any]:
        feature = self._features[name]
        if feature.kind == "labels":
            return np.empty((num_rows, len(self._schema.labels)), np.float32)
        return np.empty(num_rows, _DTYPES[feature.dtype])

    def _raw(self, payload: memoryview) -> dict[str, Any]:
        raw = self._decoder.find(payload)
        return example.decode(bytes(payload)) if raw is None else raw

    def _value(self, name: str, raw: dict[str, Any]) -> Any:
        feature = self._features[name]
        if feature.kind == "labels":
            return self._multi_hot(raw.get(name, []))
        value = _only(name, feature, raw)
        if feature.dtype == "bytes":
            return str(value, "utf-8")
        return np.float32(value) if feature.dtype == "float32" else value

    def _multi_hot(self, labels: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        hot = np.zeros(len(self._schema.labels), np.float32)
        for label in labels:
            if not 0 <= label < len(hot):
                raise ValueError(f"label {label} is none of {len(hot)} classes")
            hot[label] = 1.0
        return hot

    def _image(self, raw: dict[str, Any], out: Pixels | None = None) -> Any:
        """Return an image, which is written to `out` if that is given."""
        data = _only(IMAGE, self._features[IMAGE], raw)
        if not self._decode:
            return bytes(data)
        pixels = self._pixels(data, out)
        if out is None:
            return pixels if pixels.flags.writeable else pixels.copy()
        if not self._is_jpeg(data):
            out[:] = pixels
        return out

    def _pixels(self, data: bytes | memoryview, out: Pixels | None = None) -> Pixels:
        """Return the pixels of an image; those of a JPEG are in `out` then."""
        if self._features[IMAGE].encoding == "raw":
            if self._stored_shape is None:
                raise ValueError("plain pixels, and no size of them in the schema")
            return np.frombuffer(data, np.uint8).reshape(self._stored_shape)
        # Fresh pages for every image would cost half as much again as the decoding.
        pixels = self._decoded(data, out)
        _check_shape(pixels.shape, self._stored_shape)
        return pixels

    def _decoded(self, data: bytes | memoryview, out: Pixels | None = None) -> Pixels:
        """Return the pixels; those of a JPEG are in `out` then, if they fit."""
        try:
            if self._is_jpeg(data):
                if out is None:  # which would bound it
                    check_stored_jpeg(data)
                return simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out)  # type: ignore[no-any-return]
            with open_stored(data, "PNG") as image:
                return np.array(image.convert("RGB"))
        except TooLargeError:
            raise
        except Exception as error:
            if self._otherwise is not None:
                with contextlib.suppress(Exception):
                    pixels = self._otherwise(bytes(data))
                    if out is not None and out.shape == pixels.shape:
                        out[:] = pixels
                    return pixels
            raise ValueError(f"the image cannot be decoded ({error})") from error

    def _is_jpeg(self, data: bytes | memoryview) -> bool:
        encoding = self._features[IMAGE].encoding
        return encoding == "jpeg" or (encoding == "any" and bytes(data[:3]) == _JPEG_START)


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples of a split by number; read from many threads at a time.

    Whatever is wrong with a record, in its frame, its Example or its image, is a RecordError that
    names the file, the record and the offset.
    """

    records: Records
    values: Values

    def __len__(self) -> int:
        return len(self.records)

    def item(self, number: int) -> dict[str, Any]:
        """Return the values of one example by feature. Raises as `Records.payload`."""
        payload = self.records.payload(number)
        try:
            return self.values.item(payload)
        except Exception as error:
            raise self._damaged(number, error) from error

    def fill(self, number: int, columns: Columns, row: int, key: int) -> None:
        """Write the values of one example into a row. Raises as `Records.payload`."""
        payload = self.records.payload(number)
        try:
            self.values.fill(payload, columns, row, key)
        except Exception as error:
            raise self._damaged(number, error) from error

    def _damaged(self, number: int, error: Exception) -> Exception:
        """Decoders raise anything; only what says nothing of the record stays what it is."""
        if isinstance(error, MemoryError):
            return error
        what = error.what if isinstance(error, RecordError) else " ".join(str(error).split())
        return self.records.damaged(number, what or type(error).__name__)


@dataclass(frozen=True, slots=True)
class DecodedExamples:
    """Examples that are decoded, whole, in memory; `values` crops them."""

    arrays: Columns
    """Feature → its values by number, of objects where they differ in shape."""
    values: Values

    def __len__(self) -> int:
        return len(self.arrays[IMAGE])

    def fill(self, number: int, columns: Columns, row: int, key: int) -> None:
        """Write the values of one example into a row, the part of its image that a key draws."""
        found = {name: one[number] for name, one in self.arrays.items()}
        self.values.fill_decoded(found, columns, row, key)


def _only(name: str, feature: Feature, raw: dict[str, Any]) -> Any:
    values = raw.get(name, [])
    if len(values) != 1:
        raise ValueError(f"feature {name!r} holds {len(values)} values, not 1 {feature.dtype}")
    return values[0]


def _resized(pixels: Pixels, shape: tuple[int, ...]) -> Pixels:
    """Return an image stretched to the height and width of a batch of that shape, antialiased."""
    _, height, width, _ = shape
    if pixels.shape[:2] == (height, width):
        return pixels
    return resize(pixels, (height, width))


def _check_shape(shape: tuple[int, ...], stored: tuple[int, ...] | None) -> None:
    if stored is not None and shape != stored:
        found, wanted = ("x".join(map(str, one[:2])) for one in (shape, stored))
        raise ValueError(f"the image is {found} (height x width), the schema says {wanted}")
