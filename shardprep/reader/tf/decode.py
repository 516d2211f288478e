"""Decode records outside of the graph, or in it, with the same results as `decode/`.

Threads or worker processes of this package decode each image into its row of the batch, and the
graph gets only tags. If the graph decodes records, every image is allocated and then copied into
its batch; raw images are copied four times. But only one thread of a process at a time runs Python,
and a switch to another thread costs as much as a small image. So on many cores the graph is faster
than threads for small whole images without annotations, and everywhere for single whole images. It
is also used by the workers of a tf.data service, which cannot call Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import (
    BOX,
    IMAGE,
    LABELS,
    MASK,
    MISSING,
    OBJECT_MASK,
    TARGET_IMAGE,
    TEXTS,
    Feature,
    Schema,
)
from shardprep.errors import DatasetError, RecordError
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Ints
from shardprep.reader.arrays.team import Team
from shardprep.reader.decode.features import DecodedExamples, FeatureDecoder
from shardprep.reader.decode.targets import PADDING, BoxLimit, element_names, target_of
from shardprep.reader.order.order import Order
from shardprep.reader.tf.python_calls import in_python

_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
_WHITE = 255.0
_PIXELS_A_CORE = 8192
"""Size of an image, in pixels per core, from which threads are faster than the graph."""
_MOST_CORES: dict[str | None, int] = {"jpeg": 8, "png": 8, "any": 8, "raw": 3}
"""Largest number of cores with which threads are faster, by encoding."""


class Elements:
    """Converts features of records to elements of a dataset: (image, target), or all features."""

    def __init__(self, schema: Schema, *, as_supervised: bool) -> None:
        self.schema = schema
        self.target = target_of(schema)
        self._as_supervised = as_supervised
        self.names = element_names(schema, as_supervised=as_supervised)
        self.ignored = schema.features[MASK].ignored if MASK in schema.features else 0

    def pack(self, features: dict[str, Any]) -> Any:
        """Return (image, target) or only the image, or without `as_supervised` all features."""
        if not self._as_supervised:
            return {name: features[name] for name in self.names}
        return self.target.pair(features[self.schema.image_name], features)


class Decoder:
    """Parses records and decodes their images and annotations."""

    def __init__(
        self,
        elements: Elements,
        *,
        resize: tuple[int, int] | None = None,
        max_boxes: int | None = None,
        limit: BoxLimit | None = None,
    ) -> None:
        """Decode the features of `elements`, and resize images to `resize` if given.

        `max_boxes` is the number of rows for boxes, or None to keep all boxes of an image. `limit`
        warns about images with more boxes; workers that cannot call Python get None.
        """
        self._elements = elements
        self._schema = schema = elements.schema
        self._resize = None if resize == schema.image_size else resize
        self._max_boxes = max_boxes
        self._limit = limit
        self._annotations = {
            name: feature for name, feature in schema.annotations.items() if name in elements.names
        }
        self._specs = {
            name: _spec(feature)
            for name, feature in schema.features.items()
            if name in elements.names
        }

    @property
    def is_batched(self) -> bool:
        """Whether `batch` can decode the records: raw images without annotations."""
        image = self._schema.image
        return image.encoding == "raw" and not self._annotations and not image.repeated

    def one(self, record: Any) -> Any:
        features = tf.io.parse_single_example(record, self._specs)
        features[IMAGE] = self._resized(self._pixels(features[IMAGE]))
        if self._annotations:
            features |= self._annotated(features, features[IMAGE])
        return self._packed(features)

    def batch(self, records: Any) -> Any:
        features = tf.io.parse_example(records, self._specs)
        height, width = self._stored_size()
        flat = tf.io.decode_raw(features[IMAGE], tf.uint8, fixed_length=height * width * 3)
        features[IMAGE] = self._resized(tf.reshape(flat, (-1, height, width, 3)))
        return self._packed(features)

    def pixels(self, data: bytes) -> Any:
        """Return the pixels of an encoded image, uint8[height, width, 3], not resized."""
        return self._pixels(tf.constant(data)).numpy()

    def _pixels(self, data: Any) -> Any:
        encoding = self._schema.image.encoding
        if encoding == "raw":
            return tf.reshape(tf.io.decode_raw(data, tf.uint8), (*self._stored_size(), 3))
        if encoding == "jpeg":
            # The accurate transform is as fast as the others here, and the writer uses it too.
            pixels = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
        elif encoding == "png":
            pixels = tf.io.decode_png(data, channels=3)
        else:
            pixels = tf.cond(
                tf.io.is_jpeg(data),
                lambda: tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE"),
                lambda: tf.io.decode_png(data, channels=3),
            )
        return tf.ensure_shape(pixels, (*(self._schema.image_size or (None, None)), 3))

    def _stored_size(self) -> tuple[int, int]:
        if self._schema.image_size is None:
            raise DatasetError(self._schema.name, "raw images without a size cannot be read")
        return self._schema.image_size

    def _resized(self, pixels: Any) -> Any:
        if self._resize is None:
            return pixels
        resized = tf.image.resize(pixels, self._resize, antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, _WHITE), tf.uint8)

    def _packed(self, features: dict[str, Any]) -> Any:
        if LABELS in features:
            indicator = tf.sparse.to_indicator(features[LABELS], len(self._schema.labels))
            features[LABELS] = tf.cast(indicator, tf.float32)
        if TEXTS in features:
            features[TEXTS] = _dense(features[TEXTS], self._schema.features[TEXTS].num_values)
        for name in self._schema.rows.keys() & features.keys():
            features[name] = tf.sparse.to_dense(features[name], MISSING[self._schema.dtypes[name]])
        return self._elements.pack(features)

    def _annotated(self, features: Mapping[str, Any], image: Any) -> dict[str, Any]:
        values = {name: features[name] for name in self._annotations}
        if BOX in values:
            values = self._largest(self._counted(values))
        for name, value in values.items():
            kind = KINDS[self._annotations[name].kind]
            if kind.decoded:
                values[name] = tf.cast(value, kind.decoded)
            elif name == OBJECT_MASK:
                values[name] = self._masks(value, image)
            elif kind.moves == "pixels":
                values[name] = self._mask(name, value, image)
        if self._max_boxes is not None:
            for name in PADDING.keys() & values.keys():
                values[name] = pad_rows(values[name], self._max_boxes, PADDING[name])
        return values

    def _counted(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return `values`; the graph checks that each feature of objects has a value per box."""
        number = tf.shape(values[BOX])[0]
        checks = [
            tf.debugging.assert_equal(tf.shape(values[name])[0], number, f"{name}: not one a box")
            for name in values
            if name in PADDING and name != BOX
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return {**values, BOX: tf.identity(values[BOX])}

    def _largest(self, values: dict[str, Any]) -> dict[str, Any]:
        if self._max_boxes is None:
            return values
        number = tf.shape(values[BOX])[0]
        if self._limit is not None:
            number = self._warned(number, self._limit)
        with tf.control_dependencies([number]):
            rows = largest(values[BOX], self._max_boxes)
        return {
            name: tf.gather(value, rows) if name in PADDING else value
            for name, value in values.items()
        }

    def _warned(self, number: Any, limit: BoxLimit) -> Any:
        def warned(number: Any) -> list[Any]:
            limit.warn(int(number))
            return [number]

        spec = [tf.TensorSpec((), tf.int32)]
        is_more = number > limit.max_boxes
        return tf.cond(is_more, lambda: in_python(warned, [number], spec)[0], lambda: number)

    def _masks(self, encoded: Any, image: Any) -> Any:
        """Return n PNGs decoded to uint8[n, height, width]."""
        size = tf.shape(image)[:2]
        shape = tf.TensorShape((None, *image.shape[:2]))
        masks = tf.cond(
            tf.size(encoded) > 0,
            lambda: tf.map_fn(
                lambda data: self._mask(OBJECT_MASK, data, image)[..., 0],
                encoded,
                fn_output_signature=tf.TensorSpec(shape[1:], tf.uint8),
            ),
            lambda: tf.zeros(tf.concat([[0], size], 0), tf.uint8),
        )
        return tf.ensure_shape(masks, shape)

    def _mask(self, name: str, encoded: Any, image: Any) -> Any:
        """Return the pixels of a PNG, masks of [height, width, 1] resized like the image."""
        feature = self._annotations[name]
        pixels = tf.io.decode_png(encoded, feature.shape[2], tf.as_dtype(feature.pixel_dtype))
        if name == TARGET_IMAGE:
            return tf.ensure_shape(pixels, feature.shape)
        if self._resize is not None:
            pixels = nearest(pixels, tf.shape(image)[:2])
        else:
            same = tf.debugging.assert_equal(
                tf.shape(pixels)[:2], tf.shape(image)[:2], f"{name}: not as large as its image"
            )
            with tf.control_dependencies([] if same is None else [same]):
                pixels = tf.identity(pixels)
        return tf.ensure_shape(pixels, (*image.shape[:2], 1))


def _spec(feature: Feature) -> Any:
    dtype = _DTYPES[feature.dtype]
    if KINDS[feature.kind].is_list:
        return tf.io.VarLenFeature(dtype)
    if feature.repeated:
        return tf.io.FixedLenSequenceFeature(feature.value_shape, dtype, allow_missing=True)
    return tf.io.FixedLenFeature(feature.value_shape, dtype)


def _dense(texts: Any, length: int) -> Any:
    """Return sparse texts, [texts] or [batch, texts], padded with "" to a fixed length."""
    shape = tf.concat([tf.shape(texts, tf.int64)[:-1], [length]], 0)
    dense = tf.sparse.to_dense(tf.sparse.reset_shape(texts, shape), "")
    return tf.ensure_shape(dense, (*texts.shape[:-1], length))


def nearest(pixels: Any, size: Any) -> Any:
    """Return [height, width, …] resized to `size` by the nearest pixel centers, as in `decode`."""
    for axis in (0, 1):
        length, wanted = tf.shape(pixels)[axis], size[axis]
        indices = (2 * tf.range(wanted) + 1) * length // (2 * wanted)
        pixels = tf.gather(pixels, indices, axis=axis)
    return pixels


def largest(boxes: Any, number: int) -> Any:
    """Return the indices of the `number` largest boxes of [n, 4] or [batch, n, 4], increasing.

    Of boxes with equal areas, the first is taken. Padding rows (−1) are the smallest.
    """
    areas = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    areas = tf.where(boxes[..., 0] < 0, -1.0, areas)
    return tf.sort(tf.argsort(-areas, stable=True)[..., :number])


def pad_rows(rows: Any, number: int, value: int, axis: int = 0) -> Any:
    """Return rows of objects, at most `number`, padded to `number` along axis 0 or 1."""
    missing = number - tf.shape(rows)[axis]
    paddings = [[0, missing if i == axis else 0] for i in range(rows.shape.rank)]
    padded = tf.pad(rows, paddings, constant_values=tf.cast(value, rows.dtype))
    shape = rows.shape.as_list()
    shape[axis] = number
    return tf.ensure_shape(padded, shape)


def threads_are_faster(image_size: tuple[int, int] | None, encoding: str | None) -> bool:
    """Return whether threads fill batches of uncropped images faster than the graph."""
    cores = usable_cores()
    return (
        image_size is not None
        and cores <= _MOST_CORES.get(encoding, 0)
        and cores * _PIXELS_A_CORE <= image_size[0] * image_size[1]
    )


class BatchDecoder:
    """Decodes batches, or single elements, given their tags, in threads or worker processes."""

    def __init__(self, team: Team, decoder: FeatureDecoder, elements: Elements) -> None:
        """`decoder` is the one of the threads of the team."""
        self._decoder = decoder
        self._elements = elements
        self._team = team
        self.num_calls = team.prefetch
        """Number of parallel calls: enough that no thread waits for others to end a batch."""

    def __call__(self, tags: Any) -> Any:
        """Return the elements of tags, int64[batch], or of a single tag, as tensors of a graph.

        The error for a bad record names its shard, number and offset.
        """
        return _in_python(self._filled, [tags], self._decoder, self._elements, tags.shape)

    def _filled(self, tags: Ints) -> list[Any]:
        every = tags.reshape(-1)
        begun, columns = self._team.begin(every), None
        with contextlib.suppress(RecordError):
            columns = begun.result()
        if columns is None:
            # Workers lack TensorFlow, which decodes images that simplejpeg and Pillow cannot.
            columns = self._team.begin_in_threads(every).result()
        values = [columns[name] for name in self._decoder.names]
        return values if tags.ndim else [value[0] for value in values]


def from_memory(
    examples: DecodedExamples, order: Order, elements: Elements
) -> Callable[[Any], Any]:
    """Return a function for a graph that copies the elements of tags, like a `BatchDecoder`."""

    def copied(tags: Ints) -> list[Any]:
        rows = order.rows(tags.reshape(-1))
        if not (tags.ndim or examples.decoder.needs_padding):
            return [examples.arrays[name][rows[0]] for name in examples.decoder.names]
        columns = examples.batch(rows)
        values = [columns[name] for name in examples.decoder.names]
        return values if tags.ndim else [value[0] for value in values]

    return lambda tags: _in_python(copied, [tags], examples.decoder, elements, tags.shape)


def _in_python(
    function: Callable[..., list[Any]],
    inputs: list[Any],
    decoder: FeatureDecoder,
    elements: Elements,
    shape: Any,
) -> Any:
    shapes = decoder.shapes()
    specs = [tf.TensorSpec((*shape, *row), dtype) for row, dtype in shapes.values()]
    return elements.pack(dict(zip(shapes, in_python(function, inputs, specs), strict=True)))
