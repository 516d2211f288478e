"""Labels that have a place in the image, boxes and masks: they follow the pixels.

They are what `reader.load` yields: a dict of `boxes`, `labels`, and maybe `crowds` and `masks`, of
objects; `segmentation_mask` in it; or a mask alone. Boxes are ymin, xmin, ymax, xmax, 0 to 1. What
is cut away becomes a row without an object, behind all that have one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.dataset.schema import BOX, MASK, OBJECT_MASK
from shardprep.reader.augment.batch import on_batch
from shardprep.reader.decode.targets import KEYS, PADDING
from shardprep.reader.tf.python_calls import as_written

if TYPE_CHECKING:
    from collections.abc import Callable

BOXES, MASKS, CLASSES = KEYS[BOX], KEYS[OBJECT_MASK], KEYS[MASK]
_FILLS = {KEYS[name]: value for name, value in PADDING.items()}
_PLACED = {*_FILLS, CLASSES}
_WHOLE = (0.0, 0.0, 1.0, 1.0)
_LEAST_PIXELS = 0.999
"""Pixels of a side below which a box is cut away: one, less the error of a float."""


class Move(ABC):
    """Base of the ops that move pixels, and with them what has a place among them."""

    __slots__ = ()

    @as_written
    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        """Return the images in their dtype; with labels, (images, labels).

        Labels that have no place in the image are returned as they are.
        """
        if labels is None:
            return on_batch(lambda batch: self.moved(batch, None, seed)[0], images)
        follows, others = parted(labels)
        if follows is None:
            return on_batch(lambda batch: self.moved(batch, None, seed)[0], images), labels
        images = on_batch(lambda batch: batch, images)  # checked
        is_one = images.shape.rank == 3
        if is_one:
            images, follows = tf.nest.map_structure(lambda one: one[tf.newaxis], (images, follows))
        moved = self.moved(images, follows, seed)
        if is_one:
            moved = tf.nest.map_structure(lambda one: one[0], moved)
        return moved[0], joined(moved[1], others)

    @abstractmethod
    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return a batch of images, and what follows them, None where there is nothing."""


def parted(labels: Any) -> tuple[Any, dict[str, Any]]:
    """Return those labels that have a place, None where none has, and the others by name."""
    if not isinstance(labels, dict):
        labels = tf.convert_to_tensor(labels)
        return (
            (labels, {}) if labels.shape.rank is not None and labels.shape.rank > 2 else (None, {})
        )
    follows = {name: tf.convert_to_tensor(labels[name]) for name in labels if name in _PLACED}
    others = {name: one for name, one in labels.items() if name not in _PLACED}
    return (follows if BOXES in follows or CLASSES in follows else None), others


def joined(follows: Any, others: dict[str, Any]) -> Any:
    """Return labels that were parted, together again."""
    return {**follows, **others} if isinstance(follows, dict) else follows


def each_placed(
    labels: Any,
    boxes: Callable[[Any], Any],
    pixels: Callable[[Any, int], Any],
) -> Any:
    """Return labels with their boxes and their masks changed.

    `pixels` is called with masks and the axis of their rows; the next one is that of columns.
    """
    if not isinstance(labels, dict):
        return None if labels is None else pixels(labels, 1)
    changes: dict[str, Callable[[Any], Any]] = {
        BOXES: boxes,
        MASKS: lambda masks: pixels(masks, 2),
        CLASSES: lambda mask: pixels(mask, 1),
    }
    return {name: changes.get(name, _same)(one) for name, one in labels.items()}


def follow(
    labels: Any, windows: Any, size: tuple[Any, Any], min_visible: float, frames: Any = None
) -> Any:
    """Return the labels of images of which a window is shown.

    Args:
        labels: boxes and masks of a batch; None stays None.
        windows: float32[batch, 4]: top, left, bottom, right of what is shown, as shares of the
            image; what is beyond 0 and 1 shows no image.
        size: height and width of the results.
        min_visible: share of a box's area that must be shown, else it is cut away.
        frames: float32[batch, 4]: part of the result that the image fills; by default all of it.

    """
    if labels is None:
        return None
    moved = each_placed(
        labels,
        lambda boxes: shown(boxes, windows),
        lambda masks, axis: pick(masks, windows, size, axis),
    )
    return clipped(moved, labels, size, min_visible, frames) if _has_boxes(labels) else moved


def shown(boxes: Any, windows: Any) -> Any:
    """Return boxes, float32[batch, n, 4], as shares of windows, float32[batch, 4]."""
    begin = tf.concat([windows[:, :2]] * 2, axis=1)[:, tf.newaxis]
    length = tf.concat([windows[:, 2:] - windows[:, :2]] * 2, axis=1)[:, tf.newaxis]
    return (boxes - begin) / length


def clipped(
    moved: dict[str, Any], before: Any, size: tuple[Any, Any], min_visible: float, frames: Any
) -> dict[str, Any]:
    """Return objects with their boxes clipped; those of which too little is left are cut away."""
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
    return sorted_out({**moved, BOXES: inside}, is_left)


def sorted_out(labels: dict[str, Any], is_left: Any) -> dict[str, Any]:
    """Return the objects that are left, bool[batch, n], in their order, and behind them nothing."""
    number = tf.shape(is_left)[1]
    places = tf.range(number)
    order = tf.argsort(tf.where(is_left, places, places + number))
    is_left = tf.gather(is_left, order, batch_dims=1)

    def sort(name: str, values: Any) -> Any:
        values = tf.gather(values, order, batch_dims=1)
        there = tf.reshape(
            is_left, tf.concat([tf.shape(is_left), [1] * (values.shape.rank - 2)], 0)
        )
        return tf.where(there, values, tf.cast(_FILLS[name], values.dtype))

    return {name: sort(name, one) if name in _FILLS else one for name, one in labels.items()}


def pick(values: Any, windows: Any, size: tuple[Any, Any], axis: int) -> Any:
    """Return a window of masks by the nearest pixel centres.

    What is outside the image is 0 of the masks of objects, and of a mask of classes the highest
    value of its type, which stands for no class.

    Args:
        values: [batch, n, height, width] with `axis` 2, or [batch, height, width, 1] with 1.
        windows: float32[batch, 4], as of `follow`.
        size: height and width of the results.
        axis: that of the rows.

    """
    insides = []
    sides = tf.split(windows, 4, axis=1)  # of [:, i, newaxis] the optimizer of graphs makes [:, i]
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
    return tf.where(inside, values, tf.cast(outside(values, axis), values.dtype))


def outside(values: Any, axis: int) -> int:
    """Return the value of masks where there is no image; `axis` as of `pick`."""
    return 0 if axis == 2 else int(values.dtype.max)


def _has_boxes(labels: Any) -> bool:
    return isinstance(labels, dict) and BOXES in labels


def _same(values: Any) -> Any:
    return values
