"""Boxes and masks follow the pixels when an op moves them.

Labels are what `reader.load` yields: a dict of `boxes`, `labels` and maybe `crowds` and `masks` of
objects, maybe with `segmentation_mask`; or a mask alone. Boxes are ymin, xmin, ymax, xmax, 0 to 1.
An object that is cut away becomes a padding row; padding rows come last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shardprep.dataset.schema import BOX, MASK, OBJECT_MASK
from shardprep.reader.augment.batch import on_batch
from shardprep.reader.decode.targets import KEYS, PADDING
from shardprep.reader.tf.python_calls import as_written

BOXES, MASKS, CLASSES = KEYS[BOX], KEYS[OBJECT_MASK], KEYS[MASK]
_PADDING = {KEYS[name]: value for name, value in PADDING.items()}
_SPATIAL = {*_PADDING, CLASSES}
_WHOLE = (0.0, 0.0, 1.0, 1.0)
_LEAST_PIXELS = 0.999
"""Smallest side of a box in pixels: one, less the rounding error of a float."""


class Move(ABC):
    """Base of the ops that move pixels, and boxes and masks with them."""

    __slots__ = ()

    @as_written
    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        """Return the images in their dtype; with labels, (images, labels).

        Labels that are not boxes or masks are returned unchanged.
        """
        if labels is None:
            return on_batch(lambda batch: self._moved(batch, None, seed)[0], images)
        spatial, others = split_labels(labels)
        if spatial is None:
            return on_batch(lambda batch: self._moved(batch, None, seed)[0], images), labels
        images = on_batch(lambda batch: batch, images)  # checks them
        is_single = images.shape.rank == 3
        if is_single:
            images, spatial = tf.nest.map_structure(lambda x: x[tf.newaxis], (images, spatial))
        moved = self._moved(images, spatial, seed)
        if is_single:
            moved = tf.nest.map_structure(lambda x: x[0], moved)
        return moved[0], join_labels(moved[1], others)

    @abstractmethod
    def _moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return a batch of images, and its boxes and masks or None."""


def split_labels(labels: Any) -> tuple[Any, dict[str, Any]]:
    """Return (boxes and masks, or None; the other labels by name)."""
    if not isinstance(labels, dict):
        labels = tf.convert_to_tensor(labels)
        is_mask = labels.shape.rank is not None and labels.shape.rank > 2
        return (labels if is_mask else None), {}
    spatial = {name: tf.convert_to_tensor(labels[name]) for name in labels if name in _SPATIAL}
    others = {name: value for name, value in labels.items() if name not in _SPATIAL}
    return (spatial if BOXES in spatial or CLASSES in spatial else None), others


def join_labels(spatial: Any, others: dict[str, Any]) -> Any:
    """Undo `split_labels`."""
    return {**spatial, **others} if isinstance(spatial, dict) else spatial


def map_labels(labels: Any, boxes: Callable[[Any], Any], pixels: Callable[[Any, int], Any]) -> Any:
    """Return labels with their boxes and their masks changed.

    `pixels` is called with masks and the axis of their rows; columns are the next axis.
    """
    if not isinstance(labels, dict):
        return None if labels is None else pixels(labels, 1)
    changes: dict[str, Callable[[Any], Any]] = {
        BOXES: boxes,
        MASKS: lambda masks: pixels(masks, 2),
        CLASSES: lambda mask: pixels(mask, 1),
    }
    return {
        name: changes[name](value) if name in changes else value for name, value in labels.items()
    }


def follow(
    labels: Any, windows: Any, size: tuple[Any, Any], min_visible: float, frames: Any = None
) -> Any:
    """Return the labels of images after each was replaced by a window of itself.

    Args:
        labels: boxes and masks of a batch, or None.
        windows: float32[batch, 4]: top, left, bottom, right as shares of the image; below 0 and
            above 1 is outside the image.
        size: height and width of the results.
        min_visible: smallest visible share of a box's area; below it the box is cut away.
        frames: float32[batch, 4]: part of the result that the image fills; None for all of it.

    """
    moved = map_labels(
        labels,
        lambda boxes: in_window(boxes, windows),
        lambda masks, axis: resample_masks(masks, windows, size, axis),
    )
    has_boxes = isinstance(labels, dict) and BOXES in labels
    return clip_objects(moved, labels, size, min_visible, frames) if has_boxes else moved


def in_window(boxes: Any, windows: Any) -> Any:
    """Return boxes, float32[batch, n, 4], as shares of windows, float32[batch, 4]."""
    begin = tf.concat([windows[:, :2]] * 2, axis=1)[:, tf.newaxis]
    length = tf.concat([windows[:, 2:] - windows[:, :2]] * 2, axis=1)[:, tf.newaxis]
    return (boxes - begin) / length


def clip_objects(
    moved: dict[str, Any], before: Any, size: tuple[Any, Any], min_visible: float, frames: Any
) -> dict[str, Any]:
    """Return objects with clipped boxes; boxes of which too little is visible are cut away."""
    boxes = moved[BOXES]
    frames = tf.constant([_WHOLE]) if frames is None else frames
    top, left, bottom, right = tf.unstack(frames[:, tf.newaxis], axis=-1)
    inside = tf.stack(
        [
            tf.clip_by_value(side, low, high)
            for side, low, high in zip(
                tf.unstack(boxes, axis=-1),
                (top, left, top, left),
                (bottom, right, bottom, right),
                strict=True,
            )
        ],
        axis=-1,
    )
    whole, part = boxes[..., 2:] - boxes[..., :2], inside[..., 2:] - inside[..., :2]
    pixels = part * tf.cast(tf.stack(size), tf.float32)
    is_left = tf.reduce_prod(part, -1) >= min_visible * tf.reduce_prod(whole, -1)
    is_left &= tf.reduce_all(pixels >= _LEAST_PIXELS, -1) & (before[BOXES][..., 0] >= 0)
    return keep_objects({**moved, BOXES: inside}, is_left)


def keep_objects(labels: dict[str, Any], is_left: Any) -> dict[str, Any]:
    """Return the objects that `is_left`, bool[batch, n], in their order, then padding rows."""
    number = tf.shape(is_left)[1]
    rows = tf.range(number)
    order = tf.argsort(tf.where(is_left, rows, rows + number))
    is_left = tf.gather(is_left, order, batch_dims=1)

    def sort(name: str, values: Any) -> Any:
        values = tf.gather(values, order, batch_dims=1)
        shape = tf.concat([tf.shape(is_left), [1] * (values.shape.rank - 2)], 0)
        padding = tf.cast(_PADDING[name], values.dtype)
        return tf.where(tf.reshape(is_left, shape), values, padding)

    return {
        name: sort(name, value) if name in _PADDING else value for name, value in labels.items()
    }


def resample_masks(values: Any, windows: Any, size: tuple[Any, Any], axis: int) -> Any:
    """Return a window of masks by nearest pixel centres.

    Outside the image, masks of objects are 0, and a mask of classes has the highest value of its
    dtype, which means "no class".

    Args:
        values: [batch, n, height, width] with `axis` 2, or [batch, height, width, 1] with 1.
        windows: float32[batch, 4], as for `follow`.
        size: height and width of the results.
        axis: axis of the rows.

    """
    insides = []
    sides = tf.split(windows, 4, axis=1)  # grappler would turn [:, i, newaxis] into [:, i]
    for i in (0, 1):
        length = tf.shape(values)[axis + i]
        pixels = tf.cast(length, tf.float32)
        begin, share = sides[i], sides[i + 2] - sides[i]
        centers = (tf.range(size[i], dtype=tf.float32) + 0.5) / tf.cast(size[i], tf.float32)
        at = tf.cast(tf.floor((begin + centers * share) * pixels), tf.int32)
        insides.append((at >= 0) & (at < length))
        at = tf.clip_by_value(at, 0, length - 1)
        values = tf.gather(values, at, axis=axis + i, batch_dims=1)
    inside = insides[0][:, :, tf.newaxis] & insides[1][:, tf.newaxis]
    inside = inside[:, tf.newaxis] if axis == 2 else inside[..., tf.newaxis]
    outside = 0 if axis == 2 else int(values.dtype.max)
    return tf.where(inside, values, tf.cast(outside, values.dtype))
