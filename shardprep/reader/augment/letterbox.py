"""Ops that show an image with something beside it: nearer or farther, in a frame, with others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.augment.augmented_annotations import (
    BOXES,
    CLASSES,
    Move,
    clipped,
    each_placed,
    follow,
    parted,
    pick,
    shown,
    sorted_out,
)
from shardprep.reader.augment.batch import between, draw
from shardprep.reader.augment.geometry import resample
from shardprep.reader.tf.python_calls import as_written
from shardprep.reader.validators import Share, Size, number, pair, validated_fields

_Scale = Annotated[
    tuple[float, float],
    pair(number(0.05, 20), "(smallest, largest), two numbers from 0.05 to 20", rising=True),
]
_Middle = Annotated[
    tuple[float, float],
    pair(number(0.1, 0.9), "(smallest, largest), two numbers from 0.1 to 0.9", rising=True),
]

_NUM_PARTS = 4
"""Images that a mosaic joins."""


@validated_fields("augment.Zoom")
@dataclass(frozen=True, slots=True)
class Zoom(Move):
    """Show each image nearer, a part of it, or farther, with a frame about it.

    Its size and aspect stay, it lies anywhere in the frame, or the part anywhere in it. Boxes are
    clipped, masks resized by nearest; beside the image, masks of classes hold the value of no
    class.

    Args:
        scale: the smallest and the largest factor, drawn evenly in its logarithm; 2 shows a half of
            height and width, 0.5 the image on a quarter of the area.
        fill: the frame's share of white.
        min_visible: the share of a box's area below which it is cut away; so is what has a side
            below a pixel.

    """

    scale: _Scale = (0.5, 1.5)
    fill: Share = 0.0
    min_visible: Share = 0.1

    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return the images in their dtype and size."""
        scale, down, across = draw(images, seed, 3)
        low, high = map(math.log, self.scale)
        side = tf.exp(-between(low, high, scale))
        top, left = down * (1.0 - side), across * (1.0 - side)
        windows = tf.stack([top, left, top + side, left + side], axis=1)
        size = _size(images)
        labels = follow(labels, windows, size, self.min_visible)
        most = max(1.0, 1.0 / self.scale[0])
        return resample(images, windows, size, fill=self.fill, most=most), labels


@validated_fields("augment.Letterbox")
@dataclass(frozen=True, slots=True)
class Letterbox(Move):
    """Resize whole images to one size, their aspect kept, with a frame where it is another.

    It draws nothing. Masks are resized by nearest, and hold in the frame the value of no class.

    Args:
        size: height and width of the results.
        fill: the frame's share of white.

    """

    size: Size
    fill: Share = 0.0

    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return the images in their dtype, [batch, *size, 3]."""
        del seed
        return self.whole(images, labels)

    def whole(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Return the images, in inference as in training."""
        shape = tf.cast(tf.shape(images)[1:3], tf.float32)
        wanted = tf.constant(self.size, tf.float32)
        shares = wanted / (shape * tf.reduce_min(wanted / shape))  # of the image, 1 and more
        window = tf.concat([0.5 - shares / 2, 0.5 + shares / 2], 0)
        windows = tf.repeat(window[tf.newaxis], tf.shape(images)[0], axis=0)
        labels = follow(labels, windows, self.size, 0.0)
        height, width = images.shape[1:3]
        most = tf.reduce_max(shares)
        if height is not None and width is not None:  # known to the program before it runs
            down, across = self.size[0] / height, self.size[1] / width
            most = max(down, across) / min(down, across)
        return resample(images, windows, self.size, fill=self.fill, most=most), labels


@validated_fields("augment.Mosaic")
@dataclass(frozen=True, slots=True)
class Mosaic(Move):
    """Join parts of four images into one: each with the three before it in the batch.

    They meet in a point that is drawn. Each fills its quarter as small as it can without a frame,
    its aspect kept; which part of it is seen is drawn, too. The boxes of all four are clipped to
    their quarters, so that a batch has four times as many, until what is empty is cut off.

    Args:
        middle: the smallest and the largest share of height and width at which they meet.
        probability: that an image is joined with others.
        min_visible: the share of a box's area below which it is cut away; so is what has a side
            below a pixel.

    """

    middle: _Middle = (0.3, 0.7)
    probability: Share = 1.0
    min_visible: Share = 0.1

    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return the images in their dtype and size."""
        chance, down, across, *offsets = draw(images, seed, 11)
        joins = chance < self.probability
        row, column = (tf.where(joins, between(*self.middle, one), 1.0) for one in (down, across))
        zero, one = tf.zeros_like(row), tf.ones_like(row)
        size = _size(images)
        # The parts are one batch of four times as many images: a program a fourth as long.
        sides = (
            (zero, zero, row, column),
            (zero, column, row, one),
            (row, zero, one, column),
            (row, column, one, one),
        )
        frames = tf.concat([tf.stack(of_part, axis=1) for of_part in sides], 0)
        offsets = tf.concat([tf.stack(offsets[i : i + 2], axis=1) for i in (0, 2, 4, 6)], 0)
        low = min(self.middle[0], 1.0 - self.middle[1])
        windows = _filling(frames, offsets, low)
        parts = resample(_rolled(images), windows, size, fill=0.0, most=1.0 / low)
        within = _within(frames, size)
        found = _added(tf.where(within[..., tf.newaxis], parts, tf.zeros_like(parts)))
        if labels is None:
            return found, None
        labels = tf.nest.map_structure(_rolled, labels)

        def pixels(masks: Any, axis: int) -> Any:
            picked = pick(masks, windows, size, axis)
            of = within[:, tf.newaxis] if axis == 2 else within[..., tf.newaxis]
            return tf.where(of, picked, tf.zeros_like(picked))

        moved = each_placed(labels, lambda boxes: shown(boxes, windows), pixels)
        if not isinstance(moved, dict):
            return found, _added(moved)
        if BOXES in moved:
            moved = clipped(moved, labels, size, self.min_visible, frames)
        return found, _joined(moved)

    @as_written
    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        """Return the images in their dtype; with labels, (images, labels)."""
        follows, others = (None, {}) if labels is None else parted(labels)
        if labels is not None and (follows is None or others):
            raise DatasetError(
                "augment.Mosaic",
                "labels of whole images cannot be joined",
                "leave it out of the recipe, or read a set of boxes or masks alone",
            )
        if tf.convert_to_tensor(images).shape.rank == 3:
            raise DatasetError(
                "augment.Mosaic", "one image has no neighbour", "give load a batch_size"
            )
        return Move.__call__(self, images, labels, seed=seed)


def _filling(frames: Any, offsets: Any, least: float) -> Any:
    """Return the windows that fill frames with as much of an image as its aspect allows.

    Args:
        frames: float32[batch, 4]: top, left, bottom, right, shares of the result.
        offsets: float32[batch, 2]: which part of the image, 0 for top or left, 1 for the other end.
        least: size of the image below which it is not shrunk, 1 for that of the result.

    """
    sides = frames[:, 2:] - frames[:, :2]
    scale = tf.maximum(tf.reduce_max(sides, axis=1, keepdims=True), least)
    begin = offsets * (1.0 - sides / scale) - frames[:, :2] / scale
    return tf.concat([begin, begin + 1.0 / scale], axis=1)


def _within(frames: Any, size: tuple[Any, Any]) -> Any:
    """Tell which pixels have their centres in frames, bool[batch, height, width]."""
    inside = []
    sides = tf.split(frames, 4, axis=1)
    for i in (0, 1):
        length = tf.cast(size[i], tf.float32)
        centers = (tf.range(size[i], dtype=tf.float32) + 0.5) / length
        inside.append((centers >= sides[i]) & (centers < sides[i + 2]))
    return inside[0][:, :, tf.newaxis] & inside[1][:, tf.newaxis]


def _rolled(values: Any) -> Any:
    """Return a batch four times: as it is, and rolled by one, two and three places."""
    return tf.concat([tf.roll(values, place, 0) for place in range(_NUM_PARTS)], 0)


def _added(parts: Any) -> Any:
    """Return the sum of the four parts of each image, which are 0 beside their frames."""
    return tf.add_n(tf.split(parts, _NUM_PARTS))


def _joined(parts: dict[str, Any]) -> Any:
    """Return the labels of parts of images as those of whole ones; masks are 0 beside a part."""
    found = {
        name: _added(one) if name == CLASSES else tf.concat(tf.split(one, _NUM_PARTS), axis=1)
        for name, one in parts.items()
    }
    return sorted_out(found, found[BOXES][..., 0] >= 0) if BOXES in found else found


def _size(images: Any) -> tuple[Any, Any]:
    """Return height and width, known beforehand or not."""
    height, width = images.shape[1:3]
    shape = tf.shape(images)
    return shape[1] if height is None else height, shape[2] if width is None else width
