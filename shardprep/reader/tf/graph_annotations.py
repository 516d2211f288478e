"""Boxes and masks in the graph: from the values of a record to tensors, and these into batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASK, OBJECT_MASK
from shardprep.reader.decode.targets import KEYS, PADDING, BoxLimit, formatted, padding
from shardprep.reader.tf.python_calls import in_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardprep.dataset.schema import Schema
    from shardprep.reader.config import BoxFormat, Request


class Annotations:
    """Decodes the boxes and masks of records; what they become, `arrays.annotations` says."""

    def __init__(self, schema: Schema, names: Sequence[str], request: Request) -> None:
        """Give those of the features `names`."""
        self._features = {name: one for name, one in schema.annotations.items() if name in names}
        self._resizes = request.config.image_size not in (None, schema.image_size)
        self._max_boxes = request.max_boxes
        # The workers of a service run a graph without Python.
        told = request.max_boxes is not None and request.config.service is None
        self._cut = BoxLimit(request.max_boxes) if told and request.max_boxes is not None else None

    @property
    def specs(self) -> dict[str, Any]:
        """Features that TensorFlow is to parse."""
        dtypes = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
        return {
            name: tf.io.FixedLenSequenceFeature(
                (4,) if name == BOX else (), dtypes[feature.dtype], allow_missing=True
            )
            if feature.repeated
            else tf.io.FixedLenFeature((), dtypes[feature.dtype])
            for name, feature in self._features.items()
        }

    def decoded(self, features: Mapping[str, Any], image: Any) -> dict[str, Any]:
        """Return the annotations among parsed features as tensors, for the decoded image."""
        found = {name: features[name] for name in self._features}
        if BOX in found:
            found = self._cut_down(self._checked(found))
        if CROWD in found:
            found[CROWD] = tf.cast(found[CROWD], tf.bool)
        if OBJECT_MASK in found:
            found[OBJECT_MASK] = self._masks(found[OBJECT_MASK], image)
        if MASK in found:
            found[MASK] = self._mask(MASK, found[MASK], image)
        if self._max_boxes is not None:
            for name in PADDING.keys() & found.keys():
                found[name] = resized(found[name], self._max_boxes, PADDING[name])
        return found

    def _checked(self, found: dict[str, Any]) -> dict[str, Any]:
        number = tf.shape(found[BOX])[0]
        checks = [
            tf.debugging.assert_equal(tf.shape(found[name])[0], number, f"{name}: not one a box")
            for name in found
            if name in PADDING and name != BOX
        ]
        with tf.control_dependencies([one for one in checks if one is not None]):
            return {**found, BOX: tf.identity(found[BOX])}

    def _cut_down(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the largest boxes, and what goes with them, in their order."""
        most = self._max_boxes
        if most is None:
            return found
        number = tf.shape(found[BOX])[0]
        if self._cut is not None:
            tell = self._cut.warn

            def told(number: Any) -> list[Any]:
                tell(int(number))
                return [number]

            number = tf.cond(
                number > most,
                lambda: in_python(told, [number], [tf.TensorSpec((), tf.int32)])[0],
                lambda: number,
            )
        with tf.control_dependencies([number]):
            chosen = largest(found[BOX], most)
        return {
            name: tf.gather(one, chosen) if name in PADDING else one for name, one in found.items()
        }

    def _masks(self, encoded: Any, image: Any) -> Any:
        """Return uint8[n, height, width] of n PNGs."""
        size = tf.shape(image)[:2]
        shape = tf.TensorShape((None, *image.shape[:2]))
        masks = tf.cond(
            tf.size(encoded) > 0,
            lambda: tf.map_fn(
                lambda one: self._mask(OBJECT_MASK, one, image)[..., 0],
                encoded,
                fn_output_signature=tf.TensorSpec(shape[1:], tf.uint8),
            ),
            lambda: tf.zeros(tf.concat([[0], size], 0), tf.uint8),
        )
        return tf.ensure_shape(masks, shape)

    def _mask(self, name: str, encoded: Any, image: Any) -> Any:
        """Return the pixels of a PNG, [height, width, 1], as large as the image."""
        dtype = tf.as_dtype(self._features[name].mask_dtype)
        pixels = tf.io.decode_png(encoded, channels=1, dtype=dtype)
        if self._resizes:
            pixels = nearest(pixels, tf.shape(image)[:2])
        else:
            same = tf.debugging.assert_equal(
                tf.shape(pixels)[:2], tf.shape(image)[:2], f"{name}: not as large as its image"
            )
            with tf.control_dependencies([] if same is None else [same]):
                pixels = tf.identity(pixels)
        return tf.ensure_shape(pixels, (*image.shape[:2], 1))


def nearest(pixels: Any, size: Any) -> Any:
    """Resize [height, width, …] to a size by the nearest pixel centres, as Pillow does.

    In whole numbers: ⌊(i + ½) · length / size⌋ has ties that floats would part by chance.
    """
    for axis in (0, 1):
        length, wanted = tf.shape(pixels)[axis], size[axis]
        places = (2 * tf.range(wanted) + 1) * length // (2 * wanted)
        pixels = tf.gather(pixels, places, axis=axis)
    return pixels


def largest(boxes: Any, number: int) -> Any:
    """Return the places of the so many largest boxes, [n, 4] or [batch, n, 4], rising.

    The first of equal ones; rows without an object, of −1, are the smallest.
    """
    areas = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    areas = tf.where(boxes[..., 0] < 0, -1.0, areas)
    places = tf.argsort(-areas, stable=True)[..., :number]
    return tf.sort(places)


def resized(rows: Any, number: int, value: int, axis: int = 0) -> Any:
    """Return rows of objects padded to so many along an axis, at most 1; there are not more."""
    missing = number - tf.shape(rows)[axis]
    paddings = [[0, missing if i == axis else 0] for i in range(rows.shape.rank)]
    padded = tf.pad(rows, paddings, constant_values=tf.cast(value, rows.dtype))
    shape = rows.shape.as_list()
    shape[axis] = number
    return tf.ensure_shape(padded, shape)


def fills(spec: Any, value: int = 0) -> Any:
    """Return the values that fill elements of a spec up, in its structure."""
    if isinstance(spec, dict):
        known = padding(spec)
        return {name: fills(one, known.get(name, 0)) for name, one in spec.items()}
    if isinstance(spec, tuple):
        return tuple(fills(one) for one in spec)
    return "" if spec.dtype == tf.string else spec.dtype.as_numpy_dtype(value)


def batched(dataset: Any, size: int, calls: int, *, drop: bool, in_order: bool | None) -> Any:
    """Return batches of elements; boxes that differ in number are padded to the most."""
    spec = dataset.element_spec
    shapes = tf.nest.map_structure(lambda one: one.shape, spec)
    if all(one.is_fully_defined() for one in tf.nest.flatten(shapes)):
        return dataset.batch(size, drop, calls, deterministic=in_order)
    return dataset.padded_batch(size, shapes, fills(spec), drop)


def trimmed(target: dict[str, Any], max_boxes: int | None) -> dict[str, Any]:
    """Return objects after augmentation in `max_boxes` rows, or in as many as a batch needs.

    `target` is a dict by `KEYS`, of a batch or of one image. The label −1 is the mark of a row
    without an object: layers of Keras's move the box of −1.
    """
    boxes = target[KEYS[BOX]]
    if KEYS[BOX_LABEL] in target:
        boxes = tf.where(target[KEYS[BOX_LABEL]][..., tf.newaxis] < 0, -1.0, boxes)
        target = {**target, KEYS[BOX]: boxes}
    known = {name: value for name, value in padding(target).items() if name in target}
    axis = boxes.shape.rank - 2
    if max_boxes is None:
        places = tf.where(boxes[..., 0] >= 0, tf.range(1, tf.shape(boxes)[axis] + 1), 0)
        last = tf.reduce_max(tf.concat([tf.reshape(places, [-1]), [0]], 0))
        return {
            name: (one[:, :last] if axis else one[:last]) if name in known else one
            for name, one in target.items()
        }
    if boxes.shape[axis] == max_boxes:
        return target
    places = largest(boxes, max_boxes)
    return {
        name: resized(
            tf.gather(one, places, axis=axis, batch_dims=axis), max_boxes, known[name], axis
        )
        if name in known
        else one
        for name, one in target.items()
    }


def boxes_as(boxes: Any, box_format: BoxFormat, images: Any) -> Any:
    """Return boxes, float32[…, n, 4], in another format, of images of any one size.

    Those of −1, which stand where there is no object, stay so.
    """
    if box_format == "rel_yxyx":
        return boxes
    size = tf.cast(tf.shape(images)[-3:-1], tf.float32)
    changed = tf.stack(formatted(boxes, box_format, size[0], size[1]), axis=-1)
    return tf.where(boxes[..., :1] < 0, boxes, changed)
