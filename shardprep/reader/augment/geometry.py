"""Ops that move pixels; colours are only averaged, and floats may have any range.

All is gathering by index along one axis, with indices of their own for each image: it keeps uint8,
and XLA compiles it, unlike `tf.image.crop_and_resize` and `ImageProjectiveTransformV3`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.augment.augmented_annotations import Move, each_placed, follow
from shardprep.reader.augment.batch import between, draw, like, white
from shardprep.reader.config import Ratio, Scale
from shardprep.reader.validators import Share, Size, validated_fields

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAST_WEIGHT = 1e-6
"""Least sum of weights that is divided by; of a pixel without an image it is 0."""


@validated_fields("augment.Flip")
@dataclass(frozen=True, slots=True)
class Flip(Move):
    """Mirror images, each by chance, and boxes and masks with them.

    Args:
        horizontal: the probability of left for right.
        vertical: the probability of top for bottom.

    """

    horizontal: Share = 0.5
    vertical: Share = 0.0

    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return the images, uint8 or floats, some of them mirrored."""
        across, down = draw(images, seed, 2)
        for axis, chance, probability in ((1, down, self.vertical), (2, across, self.horizontal)):
            if probability:
                images, labels = mirrored(images, labels, chance < probability, axis)
        return images, labels


@validated_fields("augment.QuarterTurn")
@dataclass(frozen=True, slots=True)
class QuarterTurn(Move):
    """Turn square images by one, two or three quarters, and boxes and masks with them.

    Args:
        probability: that an image is turned.

    """

    probability: Share = 0.75

    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return the images, uint8 or floats, some of them turned."""
        height, width = images.shape[1:3]
        if height != width and height is not None and width is not None:
            raise DatasetError(
                "augment.QuarterTurn",
                f"images of {width}x{height} are not square",
                "crop them before: augment.RandomResizedCrop((224, 224))",
            )
        chance, which = draw(images, seed, 2)
        turns = tf.where(chance < self.probability, 1 + tf.cast(which * 3, tf.int32), 0)
        images, labels = _transposed(images, labels, turns % 2 == 1)
        images, labels = mirrored(images, labels, (turns == 1) | (turns == 2), 1)
        return mirrored(images, labels, turns >= 2, 2)


@validated_fields("augment.RandomResizedCrop")
@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Move):
    """Cut a box out of each image and resize it, as torchvision's op of that name.

    Boxes are clipped at its edges, masks resized by nearest.

    The box has a share of the image's area, drawn evenly from `scale`, and an aspect (width to
    height) drawn from `ratio`, evenly in its logarithm, among those with which it fits. Where none
    does, it has the nearest aspect of `ratio`, and is as large as fits. It lies anywhere in the
    image, between pixels as well.

    Args:
        size: height and width of the results.
        scale: the smallest and the largest share of the area.
        ratio: the smallest and the largest aspect.
        min_visible: the share of a box's area below which it is cut away; so is what has a side
            below a pixel.

    """

    size: Size
    scale: Scale = (0.08, 1.0)
    ratio: Ratio = (3 / 4, 4 / 3)
    min_visible: Share = 0.1

    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return the images in their dtype, [batch, *size, 3]."""
        boxes = self.boxes(images, seed)
        labels = follow(labels, boxes, self.size, self.min_visible)
        return resample(images, boxes, self.size), labels

    def whole(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Return the images resized whole, as inference takes them."""
        boxes = tf.repeat(tf.constant([[0.0, 0.0, 1.0, 1.0]]), tf.shape(images)[0], axis=0)
        return resample(images, boxes, self.size), follow(labels, boxes, self.size, 0.0)

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


def mirrored(images: Any, labels: Any, flipped: Any, axis: int) -> tuple[Any, Any]:
    """Mirror those images of a batch for which `flipped` says so, and what follows them."""

    def boxes(boxes: Any) -> Any:
        top, left, bottom, right = tf.unstack(boxes, axis=-1)
        across = [top, 1.0 - right, bottom, 1.0 - left]
        down = [1.0 - bottom, left, 1.0 - top, right]
        other = tf.stack(down if axis == 1 else across, axis=-1)
        return tf.where(flipped[:, tf.newaxis, tf.newaxis] & (boxes >= 0), other, boxes)

    def pixels(masks: Any, rows: int) -> Any:
        return mirror(masks, flipped, axis + rows - 1)

    return mirror(images, flipped, axis), each_placed(labels, boxes, pixels)


def _transposed(images: Any, labels: Any, chosen: Any) -> tuple[Any, Any]:
    """Exchange rows and columns of those images of a batch, which are square."""

    def pixels(values: Any, rows: int) -> Any:
        axes = [*range(values.shape.rank)]
        axes[rows], axes[rows + 1] = axes[rows + 1], axes[rows]
        of = tf.reshape(chosen, [-1] + [1] * (values.shape.rank - 1))
        return tf.where(of, tf.transpose(values, axes), values)

    def boxes(boxes: Any) -> Any:
        return tf.where(
            chosen[:, tf.newaxis, tf.newaxis], tf.gather(boxes, [1, 0, 3, 2], axis=-1), boxes
        )

    return pixels(images, 1), each_placed(labels, boxes, pixels)


def resample(
    images: Any,
    boxes: Any,
    size: tuple[Any, Any],
    *,
    fill: float | None = None,
    most: float = 1.0,
) -> Any:
    """Resize a box of each image to one size: bilinear, with antialiasing where it gets smaller.

    This is Pillow's `Image.resize(size, BILINEAR, box)`: a triangle filter, as wide as an output
    pixel where that covers more than one input pixel.

    Args:
        images: uint8 or floats, [batch, height, width, channels].
        boxes: float32[batch, 4]: top, left, bottom, right as shares of the image, in 0..1; with
            `fill`, beyond them as well.
        size: height and width of the results, integers or int32[].
        fill: share of white that stands where there is no image.
        most: the largest share of an axis that a box covers.

    """
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    rows = _resample_axis(images, 1, (top, bottom), size[0], most)
    found = _resample_axis(rows, 2, (left, right), size[1], most)
    if fill is None:
        return like(images, found)
    inside = _inside(top, bottom, size[0])[:, :, None] & _inside(left, right, size[1])[:, None]
    return like(images, tf.where(inside[..., None], found, fill * white(images)))


def _inside(low: Any, high: Any, size: Any) -> Any:
    """Tell of which pixels of an axis the centres are in the image, bool[batch, size]."""
    centers = (tf.cast(tf.range(size), tf.float32) + 0.5) / tf.cast(size, tf.float32)
    at = low[:, tf.newaxis] + centers * (high - low)[:, tf.newaxis]
    return (at >= 0.0) & (at < 1.0)


def _resample_axis(images: Any, axis: int, box: tuple[Any, Any], size: Any, most: float) -> Any:
    length = images.shape[axis] or tf.shape(images)[axis]
    pixels, outputs = tf.cast(length, tf.float32), tf.cast(size, tf.float32)
    covered = (box[1] - box[0])[:, tf.newaxis] * pixels / outputs  # input pixels by an output pixel
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
        weight = functools.cache(weight)  # for the sum and for the term: a shorter program
    total = tf.maximum(_sum(weight, num_taps), _LEAST_WEIGHT)

    def term(tap: Any) -> Any:
        at = tf.clip_by_value(tf.cast(first, tf.int32) + tap, 0, length - 1)
        taken = tf.cast(tf.gather(images, at, axis=axis, batch_dims=1), tf.float32)
        share = weight(tap) / total
        return taken * tf.expand_dims(tf.expand_dims(share, 3 - axis), 3)

    return _sum(term, num_taps)


def _num_taps(length: Any, size: Any, most: float) -> Any:
    """Return how many input pixels one of `size` output pixels of a box may touch."""
    if isinstance(length, int) and isinstance(size, int):
        return math.ceil(2 * max(1.0, most * length / size))
    covered = most * tf.cast(length, tf.float32) / tf.cast(size, tf.float32)
    return tf.cast(tf.math.ceil(2.0 * tf.maximum(1.0, covered)), tf.int32)


def _sum(term: Callable[[Any], Any], num: Any) -> Any:
    """Add up terms; where their number is known, without a loop in the graph."""
    if isinstance(num, int):
        return sum((term(tap) for tap in range(1, num)), start=term(0))
    return tf.foldl(lambda done, tap: done + term(tap), tf.range(1, num), initializer=term(0))
