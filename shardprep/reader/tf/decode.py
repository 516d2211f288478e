"""Decode records outside of the graph, or in it, with the same results as `decode/`.

Threads or worker processes decode each image into its row of the batch, and the graph gets only
tags. The graph would allocate every image and copy it into its batch. But only one thread of a
process at a time runs Python, and a switch to another thread costs as much as a small image. So the
graph decodes whole images without annotations if they are small, if cores are many, or if they are
not batched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import IMAGE, LABELS, MISSING, TEXTS, Feature
from shardprep.errors import DatasetError, RecordError
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Ints
from shardprep.reader.arrays.team import Team
from shardprep.reader.decode.features import DecodedExamples, FeatureDecoder
from shardprep.reader.decode.targets import Elements
from shardprep.reader.order.order import Order
from shardprep.reader.tf.python_calls import in_python

_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
_PIXELS_A_CORE = 8192
"""Smallest size of an image, in pixels per core, at which threads are faster than the graph."""
_MOST_CORES: dict[str | None, int] = {"jpeg": 8, "png": 8, "any": 8, "raw": 3}
"""Largest number of cores at which threads are faster than the graph, by encoding."""


class Decoder:
    """Parser of records without annotations and decoder of their images, in the graph."""

    def __init__(self, elements: Elements) -> None:
        self._elements = elements
        self._schema = schema = elements.schema
        self._specs = {
            name: _spec(feature)
            for name, feature in schema.features.items()
            if name in elements.names
        }

    def one(self, record: Any) -> Any:
        features = tf.io.parse_single_example(record, self._specs)
        features[IMAGE] = self._pixels(features[IMAGE])
        return self._packed(features)

    def raw_batch(self, records: Any) -> Any:
        features = tf.io.parse_example(records, self._specs)
        height, width = self._stored_size()
        flat = tf.io.decode_raw(features[IMAGE], tf.uint8, fixed_length=height * width * 3)
        features[IMAGE] = tf.reshape(flat, (-1, height, width, 3))
        return self._packed(features)

    def pixels(self, data: bytes) -> Any:
        """Return the pixels of an encoded image, uint8[height, width, 3]."""
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
            what = "its schema has no image_size, which raw images need"
            raise DatasetError(self._schema.name, what, "build again with --size WIDTHxHEIGHT")
        return self._schema.image_size

    def _packed(self, features: dict[str, Any]) -> Any:
        if LABELS in features:
            indicator = tf.sparse.to_indicator(features[LABELS], len(self._schema.labels))
            features[LABELS] = tf.cast(indicator, tf.float32)
        if TEXTS in features:
            features[TEXTS] = _dense(features[TEXTS], self._schema.features[TEXTS].num_values)
        for name in self._schema.rows.keys() & features.keys():
            features[name] = tf.sparse.to_dense(features[name], MISSING[self._schema.dtypes[name]])
        return self._elements.pack(features)


def _spec(feature: Feature) -> Any:
    dtype = _DTYPES[feature.dtype]
    if KINDS[feature.kind].is_list:
        return tf.io.VarLenFeature(dtype)
    if feature.repeated:
        return tf.io.FixedLenSequenceFeature(feature.value_shape, dtype, allow_missing=True)
    return tf.io.FixedLenFeature(feature.value_shape, dtype)


def _dense(texts: Any, length: int) -> Any:
    """Return a sparse tensor of texts as dense: [batch, length] or [length], padded with ""."""
    shape = tf.concat([tf.shape(texts, tf.int64)[:-1], [length]], 0)
    dense = tf.sparse.to_dense(tf.sparse.reset_shape(texts, shape), "")
    return tf.ensure_shape(dense, (*texts.shape[:-1], length))


def largest(boxes: Any, number: int) -> Any:
    """Return the sorted indices of the `number` largest boxes, [n, 4] or [batch, n, 4].

    Among boxes with equal areas, the first are taken. Padding rows (−1) count as the smallest.
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
    """Return True if threads fill batches of uncropped images faster than the graph."""
    cores = usable_cores()
    return (
        image_size is not None
        and cores <= _MOST_CORES.get(encoding, 0)
        and cores * _PIXELS_A_CORE <= image_size[0] * image_size[1]
    )


class BatchDecoder:
    """Function from tags to decoded batches or elements, run by threads or worker processes."""

    def __init__(self, team: Team, decoder: FeatureDecoder, elements: Elements) -> None:
        self._decoder = decoder
        self._elements = elements
        self._team = team
        self.num_calls = team.prefetch
        """Number of parallel calls: enough that no thread waits until others finish a batch."""

    def __call__(self, tags: Any) -> Any:
        """Return the elements of tags, int64[batch], or of a single tag, as tensors of a graph."""
        return _in_python(self._filled, tags, self._decoder, self._elements)

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
    """Return a graph function that copies the elements of tags from `examples`."""

    def copied(tags: Ints) -> list[Any]:
        rows = order.rows(tags.reshape(-1))
        if not (tags.ndim or examples.decoder.needs_padding):
            return [examples.arrays[name][rows[0]] for name in examples.decoder.names]
        columns = examples.batch(rows)
        values = [columns[name] for name in examples.decoder.names]
        return values if tags.ndim else [value[0] for value in values]

    return lambda tags: _in_python(copied, tags, examples.decoder, elements)


def _in_python(
    function: Callable[..., list[Any]], tags: Any, decoder: FeatureDecoder, elements: Elements
) -> Any:
    shapes = decoder.shapes()
    specs = [tf.TensorSpec((*tags.shape, *row), dtype) for row, dtype in shapes.values()]
    return elements.pack(dict(zip(shapes, in_python(function, [tags], specs), strict=True)))
