"""Ops that move pixels; colours are only averaged, and floats may have any range.

All is gathering by index along one axis, with indices of their own for each image: it keeps uint8,
and XLA compiles it, unlike `tf.image.crop_and_resize` and `ImageProjectiveTransformV3`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tensorflow as tf

from shardprep.reader.argument_kinds import Share, Size, number, pair
from shardprep.reader.augment.batch import Op, between, draw, like, on_batch

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Flip(Op):
    """Mirror images, each by chance.

    Args:
        horizontal: the probability of left for right.
        vertical: the probability of top for bottom.

    """

    horizontal: Share = 0.5
    vertical: Share = 0.0

    def __call__(self, images: Any, *, seed: Any) -> Any:
        """Return the images, uint8 or floats, some of them mirrored."""

        def change(images: Any) -> Any:
            across, down = draw(images, seed, 2)
            if self.vertical:
                images = mirror(images, down < self.vertical, axis=1)
            if self.horizontal:
                images = mirror(images, across < self.horizontal, axis=2)
            return images

        return on_batch(change, images)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Op):
    """Cut a box out of each image and resize it, as torchvision's op of that name.

    The box has a share of the image's area, drawn evenly from `scale`, and an aspect (width to
    height) drawn from `ratio`, evenly in its logarithm, among those with which it fits. Where none
    does, it has the nearest aspect of `ratio`, and is as large as fits. It lies anywhere in the
    image, between pixels as well.

    Args:
        size: height and width of the results.
        scale: the smallest and the largest share of the area.
        ratio: the smallest and the largest aspect.

    """

    size: Size
    scale: Annotated[
        tuple[float, float],
        pair(number(1e-6, 1), "(smallest, largest), two numbers above 0 up to 1", rising=True),
    ] = (0.08, 1.0)
    ratio: Annotated[
        tuple[float, float],
        pair(number(1e-6), "(smallest, largest), two numbers above 0", rising=True),
    ] = (3 / 4, 4 / 3)

    def __call__(self, images: Any, *, seed: Any) -> Any:
        """Return the images in their dtype, [batch, *size, 3]."""
        return on_batch(
            lambda images: resample(images, self.boxes(images, seed), self.size), images
        )

    def boxes(self, images: Any, seed: Any) -> Any:
        """Return float32[batch, 4]: top, left, bottom, right of a box for each image, in 0..1."""
        area, aspect, down, across = draw(images, seed, 4)
        area = between(*self.scale, area)
        shape = tf.cast(tf.shape(images), tf.float32)
        of_image = shape[2] / shape[1]
        low, high = (
            tf.math.log(tf.clip_by_value(fits, *self.ratio))
            for fits in (area * of_image, of_image / area)
        )
        aspect = tf.exp(between(low, high, aspect)) / of_image
        height, width = tf.sqrt(area / aspect), tf.sqrt(area * aspect)
        too_large = tf.maximum(1.0, tf.maximum(height, width))
        height, width = height / too_large, width / too_large
        top, left = down * (1.0 - height), across * (1.0 - width)
        return tf.stack([top, left, top + height, left + width], axis=1)


def mirror(images: Any, flipped: Any, axis: int) -> Any:
    """Mirror those images of a batch for which `flipped`, bool[batch], says so; axis 1 or 2."""
    length = tf.shape(images)[axis]
    places = tf.range(length)
    places = tf.where(flipped[:, tf.newaxis], length - 1 - places, places)
    return tf.gather(images, places, axis=axis, batch_dims=1)


def resample(images: Any, boxes: Any, size: tuple[int, int]) -> Any:
    """Resize a box of each image to one size: bilinear, with antialiasing where it gets smaller.

    This is Pillow's `Image.resize(size, BILINEAR, box)`: a triangle filter, as wide as an output
    pixel where that covers more than one input pixel.

    Args:
        images: uint8 or floats, [batch, height, width, channels].
        boxes: float32[batch, 4]: top, left, bottom, right as shares of the image, in 0..1.
        size: height and width of the results.

    """
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    rows = _resample_axis(images, 1, (top, bottom), size[0])
    return like(images, _resample_axis(rows, 2, (left, right), size[1]))


def _resample_axis(images: Any, axis: int, box: tuple[Any, Any], size: int) -> Any:
    length = images.shape[axis] or tf.shape(images)[axis]
    pixels = tf.cast(length, tf.float32)
    covered = (box[1] - box[0])[:, tf.newaxis] * pixels / size  # input pixels by an output pixel
    center = box[0][:, tf.newaxis] * pixels + (tf.range(size, dtype=tf.float32) + 0.5) * covered
    reach = tf.maximum(covered, 1.0)
    first = tf.floor(center - reach + 0.5)

    def weight(tap: Any) -> Any:
        at = first + tf.cast(tap, tf.float32)
        triangle = tf.maximum(0.0, 1.0 - tf.abs(at + 0.5 - center) / reach)
        return tf.where((at >= 0.0) & (at < pixels), triangle, 0.0)

    num_taps = _num_taps(length, size)
    total = _sum(weight, num_taps)

    def term(tap: Any) -> Any:
        at = tf.clip_by_value(tf.cast(first, tf.int32) + tap, 0, length - 1)
        taken = tf.cast(tf.gather(images, at, axis=axis, batch_dims=1), tf.float32)
        share = weight(tap) / total
        return taken * tf.expand_dims(tf.expand_dims(share, 3 - axis), 3)

    return _sum(term, num_taps)


def _num_taps(length: Any, size: int) -> Any:
    """Return how many input pixels an output pixel may touch, for a box that is all the image."""
    if isinstance(length, int):
        return math.ceil(2 * max(1.0, length / size))
    covered = tf.cast(length, tf.float32) / size
    return tf.cast(tf.math.ceil(2.0 * tf.maximum(1.0, covered)), tf.int32)


def _sum(term: Callable[[Any], Any], num: Any) -> Any:
    """Add up terms; where their number is known, without a loop in the graph."""
    if isinstance(num, int):
        return sum((term(tap) for tap in range(1, num)), start=term(0))
    return tf.foldl(lambda done, tap: done + term(tap), tf.range(1, num), initializer=term(0))
