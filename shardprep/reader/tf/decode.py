"""From serialized Examples to what `load` yields, by the dataset's own schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.dataset.schema import BOX, IMAGE, LABELS
from shardprep.errors import DatasetError
from shardprep.reader.decode.crop import crop_keys
from shardprep.reader.decode.features import FeatureDecoder
from shardprep.reader.decode.targets import KEYS, BoxLimit, target_of
from shardprep.reader.order.permutation import mix
from shardprep.reader.tf.graph_annotations import Annotations, boxes_as, trimmed
from shardprep.reader.tf.python_calls import as_written, in_python
from shardprep.reader.validators import AUGMENT_OPTIONS, parameters, short_repr

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.dataset.schema import Schema
    from shardprep.reader.config import Request
    from shardprep.reader.decode.targets import Target

_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
_WHITE = 255.0


class Decoder:
    """Parses records and decodes their images."""

    def __init__(self, schema: Schema, request: Request) -> None:
        self.schema = schema
        self.request = request
        size = request.config.image_size
        self.resize = None if size == schema.image_size else size
        self.target = target_of(schema)
        wanted = (IMAGE, *self.target.names) if request.as_supervised else tuple(schema.features)
        self.wanted = wanted
        """Features of an element."""
        self._annotations = Annotations(schema, wanted, request)
        self.has_annotations = bool(self._annotations.specs)
        self.features = {
            name: (
                tf.io.VarLenFeature(tf.int64)
                if feature.kind == "labels"
                else tf.io.FixedLenFeature((), _DTYPES[feature.dtype])
            )
            for name, feature in schema.features.items()
            if name in wanted
        } | self._annotations.specs

    def one(self, record: Any, pixels: Any = None) -> Any:
        """Parse one record and decode its image, unless its pixels are given."""
        features = tf.io.parse_single_example(record, self.features)
        features[IMAGE] = self.image(features[IMAGE]) if pixels is None else pixels
        if self.has_annotations:
            features |= self._annotations.decoded(features, features[IMAGE])
        return self._as_asked(features)

    def cropped(self, key: int) -> Callable[[Any, Any], Any]:
        """Return the function of a record and its tag that decodes a part of its image.

        In Python: TensorFlow's own resize takes twice as long as all of this. `key` is that of the
        order.
        """
        values = self.values()
        shapes = values.shapes()
        specs = [tf.TensorSpec(shape, dtype) for shape, dtype in shapes.values()]

        def filled(record: bytes, tag: Any) -> list[Any]:
            columns = values.columns(1)
            columns[IMAGE] = np.empty((1, *(values.image_shape or ())), np.uint8)
            values.fill(memoryview(record), columns, 0, *crop_keys(key, tag[np.newaxis]))
            columns = values.annotations.padded(columns)
            return [columns[name][0] for name in values.names]

        def one(record: Any, tag: Any) -> Any:
            found = in_python(filled, [record, tag], specs)
            return self.asked(dict(zip(shapes, found, strict=True)))

        return one

    def values(self) -> FeatureDecoder:
        """Return what makes arrays of records, where these are not decoded by the graph."""
        most, crop = self.request.max_boxes, self.request.crop
        limit = None if most is None else BoxLimit(most)
        return FeatureDecoder(
            self.schema, self.wanted, decode=True, fallback=self.pixels, limit=limit, crop=crop
        )

    @as_written
    def record_and_image(self, record: Any, _: Any) -> Any:
        """Return a record that comes with its tag, and its pixels."""
        image = {IMAGE: self.features[IMAGE]}
        return record, self.image(tf.io.parse_single_example(record, image)[IMAGE])

    def batch(self, records: Any) -> Any:
        """Parse a batch of records whose images are raw pixels."""
        features = tf.io.parse_example(records, self.features)
        height, width = self._size()
        flat = tf.io.decode_raw(features[IMAGE], tf.uint8, fixed_length=height * width * 3)
        features[IMAGE] = self._resized(tf.reshape(flat, (-1, height, width, 3)))
        return self._as_asked(features)

    def image(self, data: Any) -> Any:
        """Return the pixels of an encoded image, uint8[height, width, 3], resized if asked."""
        return self._resized(self._pixels(data))

    def pixels(self, data: bytes) -> Any:
        """Return the pixels of an encoded image as an array, not resized. Raises as TensorFlow."""
        return self._pixels(tf.constant(data)).numpy()

    def _pixels(self, data: Any) -> Any:
        encoding = self.schema.image.encoding
        if encoding == "raw":
            height, width = self._size()
            return tf.reshape(tf.io.decode_raw(data, tf.uint8), (height, width, 3))
        if encoding == "jpeg":
            # The accurate transform is as fast as any here, and is what the writer used.
            pixels = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
        elif encoding == "png":
            pixels = tf.io.decode_png(data, channels=3)
        else:
            pixels = tf.cond(
                tf.io.is_jpeg(data),
                lambda: tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE"),
                lambda: tf.io.decode_png(data, channels=3),
            )
        return tf.ensure_shape(pixels, (*(self.schema.image_size or (None, None)), 3))

    def _size(self) -> tuple[int, int]:
        if self.schema.image_size is None:
            raise DatasetError(self.schema.name, "raw images without a size cannot be read")
        return self.schema.image_size

    def _resized(self, pixels: Any) -> Any:
        if self.resize is None:
            return pixels
        resized = tf.image.resize(pixels, self.resize, antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, _WHITE), tf.uint8)

    def _as_asked(self, features: dict[str, Any]) -> Any:
        """Return the features or the supervised pair, with labels as float32[…, classes]."""
        if LABELS in features:
            indicator = tf.sparse.to_indicator(features[LABELS], len(self.schema.labels))
            features[LABELS] = tf.cast(indicator, tf.float32)
        return self.asked(features)

    def features_of(self, element: Any) -> dict[str, Any]:
        """Return the features of what `asked` has returned."""
        if isinstance(element, dict):
            return element
        image, *labels = element if isinstance(element, tuple) else (element,)
        return {IMAGE: image, **(self.target.unpacked(labels[0]) if labels else {})}

    def asked(self, features: dict[str, Any]) -> Any:
        """Return all features, or the supervised pair."""
        if not self.request.as_supervised:
            return features
        return self.target.pair(features[IMAGE], features)


class Finisher:
    """Applies dtype and augmentation to what is decoded, batch by batch."""

    def __init__(self, request: Request, target: Target, key: int) -> None:
        """`target` is what is to be learnt, `key` what the seeds of augmentation are made of."""
        self.request = request
        self.target = target
        self.key = key
        named = parameters(request.augment) if request.augment is not None else None
        self.takes = frozenset(AUGMENT_OPTIONS).intersection(named or ())
        self._fault: DatasetError | None = None

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        request = self.request
        return (
            request.dtype != "uint8"
            or request.augment is not None
            or request.box_format != "rel_yxyx"
        )

    @property
    def wants_seed(self) -> bool:
        """Whether the augmentation takes a seed, so that it is a function of its records."""
        return "seed" in self.takes

    def __call__(self, element: Any, tag: Any = None) -> Any:
        """Return an element with its images, and what augmentation does to labels, changed."""
        if isinstance(element, dict):
            images, labels = self._finished(element[IMAGE], self.target.packed(element), tag)
            return {**element, IMAGE: images, **self.target.unpacked(labels)}
        if isinstance(element, tuple):
            images, labels = element
            return self._finished(images, labels, tag)
        return self._finished(element, None, tag)[0]

    def _finished(self, images: Any, labels: Any, tag: Any) -> tuple[Any, Any]:
        """Return images and labels augmented, and boxes in the format that is asked for."""
        images, labels = self._augmented(images, labels, tag)
        if isinstance(labels, dict) and KEYS[BOX] in labels:
            if self.request.augment is not None:
                labels = trimmed(labels, self.request.max_boxes)
            boxes = boxes_as(labels[KEYS[BOX]], self.request.box_format, images)
            labels = {**labels, KEYS[BOX]: boxes}
        return images, labels

    def _augmented(self, images: Any, labels: Any, tag: Any) -> tuple[Any, Any]:
        if self.request.dtype == "float32":
            images = tf.cast(images, tf.float32) / _WHITE
        augment = self.request.augment
        if augment is None:
            return images, labels
        given = {"labels": labels, "training": True}
        if self.wants_seed:
            given["seed"] = self._seed(tag)
        # What is raised in here would come out in the trace of a graph.
        try:
            found = augment(images, **{name: given[name] for name in self.takes})
        except DatasetError as error:
            self._fault = error
            return images, labels
        changed = found if isinstance(found, (tuple, list)) else (found, labels)
        if len(changed) != len(("images", "labels")) or changed[0] is None:
            what = "None" if found is None else f"a {type(found).__name__} of {len(changed)}"
            self._fault = DatasetError(
                f"augment={short_repr(augment)}",
                f"returned {what}",
                "let it return images, or (images, labels)",
            )
            return images, labels
        return changed[0], changed[1]

    def check(self) -> None:
        """Raise DatasetError where an augmentation that was called refuses or returns no images."""
        if self._fault is not None:
            raise self._fault

    def _seed(self, tag: Any) -> Any:
        """Return int32[2] made of the first record of a batch and its epoch."""
        first = tf.reshape(tag, (-1,))[0]
        pair = [mix(self.key, first, 1), mix(self.key, first, 2)]
        return tf.cast(tf.stack(pair), tf.int32)
