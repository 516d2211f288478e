"""Ops that move pixels within the image: flips, quarter turns and crops.

Every op gathers pixels by index along one axis, with separate indices for each image. This keeps
uint8, and XLA compiles it, unlike `tf.image.crop_and_resize` and `ImageProjectiveTransformV3`.
Colours are only averaged, so floats may have any range.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.augment.augmented_annotations import Move, follow, map_labels
from shardprep.reader.augment.batch import between, draw, like, white
from shardprep.reader.config import Ratio, Scale
from shardprep.reader.validators import Share, Size, validated_fields

_LEAST_WEIGHT = 1e-6
"""Smallest divisor: outside the image the sum of weights is 0."""


@validated_fields("augment.Flip")
@dataclass(frozen=True, slots=True)
class Flip(Move):
    """Mirror each image, with its boxes and masks, at random.

    Args:
        horizontal: probability of exchanging left and right.
        vertical: probability of exchanging top and bottom.

    """

    horizontal: Share = 0.5
    vertical: Share = 0.0

    def _moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        across, down = draw(images, seed, 2)
        for axis, chance, probability in ((1, down, self.vertical), (2, across, self.horizontal)):
            if probability:
                images, labels = _mirrored(images, labels, chance < probability, axis)
        return images, labels


@validated_fields("augment.QuarterTurn")
@dataclass(frozen=True, slots=True)
class QuarterTurn(Move):
    """Turn square images, with their boxes and masks, by one, two or three quarters.

    Args:
        probability: probability that an image is turned.

    """

    probability: Share = 0.75

    def _moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        height, width = images.shape[1:3]
        if height != width and height is not None and width is not None:
            raise DatasetError(
                "augment.QuarterTurn",
                f"images of {width}x{height} are not square",
                "crop them first: augment.RandomResizedCrop((224, 224))",
            )
        chance, which = draw(images, seed, 2)
        turns = tf.where(chance < self.probability, 1 + tf.cast(which * 3, tf.int32), 0)
        images, labels = _transposed(images, labels, turns % 2 == 1)
        images, labels = _mirrored(images, labels, (turns == 1) | (turns == 2), 1)
        return _mirrored(images, labels, turns >= 2, 2)


@validated_fields("augment.RandomResizedCrop")
@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Move):
    """Crop a random window from each image and resize it, like torchvision's op of that name.

    The window's share of the image's area is uniform in `scale`. The logarithm of its aspect ratio
    is uniform in `ratio`, among the ratios that fit into the image; if none fits, the window has
    the nearest ratio and is as large as possible. Its position is uniform, and not rounded to
    pixels. Boxes are clipped at its edges; masks are resized by nearest neighbour.

    Args:
        size: height and width of the results.
        scale: smallest and largest share of the area.
        ratio: smallest and largest aspect ratio, width to height.
        min_visible: an object is cut away when less than this share of its box's area is visible,
            or when a side of its box is shorter than a pixel.

    """

    size: Size
    scale: Scale = (0.08, 1.0)
    ratio: Ratio = (3 / 4, 4 / 3)
    min_visible: Share = 0.1

    def _moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        boxes = self.boxes(images, seed)
        labels = follow(labels, boxes, self.size, self.min_visible)
        return resample(images, boxes, self.size), labels

    def whole(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Return the images resized without a crop, for inference."""
        boxes = tf.repeat(tf.constant([[0.0, 0.0, 1.0, 1.0]]), tf.shape(images)[0], axis=0)
        return resample(images, boxes, self.size), follow(labels, boxes, self.size, 0.0)

    def boxes(self, images: Any, seed: Any) -> Any:
        """Return a window for each image, float32[batch, 4]: top, left, bottom, right, 0 to 1."""
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
    """Return the images, those where `flipped`, bool[batch], is true mirrored; axis 1 or 2."""
    length = tf.shape(images)[axis]
    indices = tf.range(length)
    indices = tf.where(flipped[:, tf.newaxis], length - 1 - indices, indices)
    return tf.gather(images, indices, axis=axis, batch_dims=1)


def _mirrored(images: Any, labels: Any, flipped: Any, axis: int) -> tuple[Any, Any]:

    def boxes(boxes: Any) -> Any:
        top, left, bottom, right = tf.unstack(boxes, axis=-1)
        across = [top, 1.0 - right, bottom, 1.0 - left]
        down = [1.0 - bottom, left, 1.0 - top, right]
        other = tf.stack(down if axis == 1 else across, axis=-1)
        return tf.where(flipped[:, tf.newaxis, tf.newaxis] & (boxes >= 0), other, boxes)

    def pixels(masks: Any, rows: int) -> Any:
        return mirror(masks, flipped, axis + rows - 1)

    return mirror(images, flipped, axis), map_labels(labels, boxes, pixels)


def _transposed(images: Any, labels: Any, chosen: Any) -> tuple[Any, Any]:
    """Exchange rows and columns of the chosen images, which are square."""

    def pixels(values: Any, rows: int) -> Any:
        axes = [*range(values.shape.rank)]
        axes[rows], axes[rows + 1] = axes[rows + 1], axes[rows]
        mask = tf.reshape(chosen, [-1] + [1] * (values.shape.rank - 1))
        return tf.where(mask, tf.transpose(values, axes), values)

    def boxes(boxes: Any) -> Any:
        return tf.where(
            chosen[:, tf.newaxis, tf.newaxis], tf.gather(boxes, [1, 0, 3, 2], axis=-1), boxes
        )

    return pixels(images, 1), map_labels(labels, boxes, pixels)


def resample(
    images: Any,
    boxes: Any,
    size: tuple[Any, Any],
    *,
    fill: float | None = None,
    most: float = 1.0,
) -> Any:
    """Resize a box of each image to one size: bilinear, antialiased when it shrinks.

    The result equals Pillow's `Image.resize(size, BILINEAR, box)`: a triangle filter, as wide as an
    output pixel when that covers more than one input pixel.

    Args:
        images: uint8 or floats, [batch, height, width, channels].
        boxes: float32[batch, 4]: top, left, bottom, right as shares of the image; outside 0 to 1
            only with `fill`.
        size: height and width of the results, integers or int32[].
        fill: share of white outside the image.
        most: largest share of an axis that a box covers.

    """
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    rows = _resample_axis(images, 1, (top, bottom), size[0], most)
    pixels = _resample_axis(rows, 2, (left, right), size[1], most)
    if fill is None:
        return like(images, pixels)
    inside = _inside(top, bottom, size[0])[:, :, None] & _inside(left, right, size[1])[:, None]
    return like(images, tf.where(inside[..., None], pixels, fill * white(images)))


def _inside(low: Any, high: Any, size: Any) -> Any:
    """Return which pixels of an axis have their centre in the image, bool[batch, size]."""
    centers = (tf.cast(tf.range(size), tf.float32) + 0.5) / tf.cast(size, tf.float32)
    at = low[:, tf.newaxis] + centers * (high - low)[:, tf.newaxis]
    return (at >= 0.0) & (at < 1.0)


def _resample_axis(images: Any, axis: int, box: tuple[Any, Any], size: Any, most: float) -> Any:
    length = images.shape[axis] or tf.shape(images)[axis]
    pixels, outputs = tf.cast(length, tf.float32), tf.cast(size, tf.float32)
    covered = (box[1] - box[0])[:, tf.newaxis] * pixels / outputs  # input pixels per output
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
        weight = functools.cache(weight)  # used by the sum and the term: a shorter program
    total = tf.maximum(_sum(weight, num_taps), _LEAST_WEIGHT)

    def term(tap: Any) -> Any:
        at = tf.clip_by_value(tf.cast(first, tf.int32) + tap, 0, length - 1)
        taken = tf.cast(tf.gather(images, at, axis=axis, batch_dims=1), tf.float32)
        share = weight(tap) / total
        return taken * tf.expand_dims(tf.expand_dims(share, 3 - axis), 3)

    return _sum(term, num_taps)


def _num_taps(length: Any, size: Any, most: float) -> Any:
    """Return the largest number of input pixels in one output pixel."""
    if isinstance(length, int) and isinstance(size, int):
        return math.ceil(2 * max(1.0, most * length / size))
    covered = most * tf.cast(length, tf.float32) / tf.cast(size, tf.float32)
    return tf.cast(tf.math.ceil(2.0 * tf.maximum(1.0, covered)), tf.int32)


def _sum(term: Callable[[Any], Any], num: Any) -> Any:
    """Return the sum of `num` terms, without a loop in the graph if `num` is known."""
    if isinstance(num, int):
        return sum((term(tap) for tap in range(1, num)), start=term(0))
    return tf.foldl(lambda done, tap: done + term(tap), tf.range(1, num), initializer=term(0))
