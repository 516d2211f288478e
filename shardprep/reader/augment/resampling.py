"""Resize a window of each image of a batch, which may reach beyond the image.

A triangle filter, as in Pillow, along one axis at a time. It gathers the input pixels of each tap,
so that XLA compiles it, and every image may have a window of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shardprep.reader.augment.op import centers, like, white

_LEAST_WEIGHT = 1e-6
"""Smallest divisor, because the sum of weights is 0 outside the image."""


def resample(
    images: Any,
    boxes: Any,
    size: tuple[Any, Any],
    *,
    fill: float | None = None,
    most: float = 1.0,
) -> Any:
    """Return a box of each image, resized to one size: bilinear, antialiased if it shrinks.

    The result equals Pillow's `Image.resize(size, BILINEAR, box)`: a triangle filter, scaled to the
    output pixels if these cover more than one input pixel. `boxes` are float32[batch, 4]: top,
    left, bottom, right as shares of the image. They may be outside 0 to 1 with `fill`, the colour
    there as a share of white. `size` is height and width, integers or int32[]. `most` is the
    largest share of an axis that a box covers.
    """
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    rows = _resample_axis(images, 1, (top, bottom), size[0], most)
    pixels = _resample_axis(rows, 2, (left, right), size[1], most)
    if fill is None:
        return like(images, pixels)
    inside = _inside(top, bottom, size[0])[:, :, None] & _inside(left, right, size[1])[:, None]
    return like(images, tf.where(inside[..., None], pixels, fill * white(images)))


def _inside(low: Any, high: Any, size: Any) -> Any:
    """Return bool[batch, size]: true for pixels of an axis whose centre is in the image."""
    at = low[:, tf.newaxis] + centers(size) * (high - low)[:, tf.newaxis]
    return (at >= 0.0) & (at < 1.0)


def _resample_axis(images: Any, axis: int, box: tuple[Any, Any], size: Any, most: float) -> Any:
    length = images.shape[axis] or tf.shape(images)[axis]
    pixels, outputs = tf.cast(length, tf.float32), tf.cast(size, tf.float32)
    covered = (box[1] - box[0])[:, tf.newaxis] * pixels / outputs  # input pixels per output pixel
    steps = tf.cast(tf.range(size), tf.float32) + 0.5
    center = box[0][:, tf.newaxis] * pixels + steps * covered
    reach = tf.maximum(covered, 1.0)
    first = tf.floor(center - reach + 0.5)

    def weight(tap: Any) -> Any:
        at = first + tf.cast(tap, tf.float32)
        triangle = tf.maximum(0.0, 1.0 - tf.abs(at + 0.5 - center) / reach)
        return tf.where((at >= 0.0) & (at < pixels), triangle, 0.0)

    num_taps = _num_taps(length, size, most)
    if isinstance(num_taps, int):
        weight = functools.cache(weight)  # shared by `total` and `term`, for a shorter program
    total = tf.maximum(_sum(weight, num_taps), _LEAST_WEIGHT)

    def term(tap: Any) -> Any:
        at = tf.clip_by_value(tf.cast(first, tf.int32) + tap, 0, length - 1)
        taken = tf.cast(tf.gather(images, at, axis=axis, batch_dims=1), tf.float32)
        share = weight(tap) / total
        return taken * tf.expand_dims(tf.expand_dims(share, 3 - axis), 3)

    return _sum(term, num_taps)


def _num_taps(length: Any, size: Any, most: float) -> Any:
    """Return the largest number of input pixels that an output pixel depends on."""
    if isinstance(length, int) and isinstance(size, int):
        return math.ceil(2 * max(1.0, most * length / size))
    covered = most * tf.cast(length, tf.float32) / tf.cast(size, tf.float32)
    return tf.cast(tf.math.ceil(2.0 * tf.maximum(1.0, covered)), tf.int32)


def _sum(term: Callable[[Any], Any], num: Any) -> Any:
    """Return the sum of terms 0 to `num` − 1, without a loop in the graph if `num` is known."""
    if isinstance(num, int):
        return sum((term(tap) for tap in range(1, num)), start=term(0))
    return tf.foldl(lambda done, tap: done + term(tap), tf.range(1, num), initializer=term(0))
