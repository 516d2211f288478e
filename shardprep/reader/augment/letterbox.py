"""Ops that place images in a frame: zoom, letterbox and mosaic."""

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
    clip_objects,
    follow,
    in_window,
    keep_objects,
    map_labels,
    resample_masks,
    split_labels,
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


@validated_fields("augment.Zoom")
@dataclass(frozen=True, slots=True)
class Zoom(Move):
    """Zoom into a part of each image, or out, with a frame around it, at a random position.

    Images keep their size and aspect ratio. Boxes are clipped, masks are resized by nearest
    neighbour, and masks of classes have the value of "no class" in the frame.

    Args:
        scale: smallest and largest factor, uniform in its logarithm; 2 shows half of height and
            width, 0.5 shows the image on a quarter of the area.
        fill: colour of the frame as a share of white.
        min_visible: an object is cut away when less than this share of its box's area is visible,
            or when a side of its box is shorter than a pixel.

    """

    scale: _Scale = (0.5, 1.5)
    fill: Share = 0.0
    min_visible: Share = 0.1

    def _moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
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
    """Resize whole images to one size, keep their aspect ratio and pad with a frame.

    Nothing is random. Masks are resized by nearest neighbour; masks of classes have the value of
    "no class" in the frame.

    Args:
        size: height and width of the results.
        fill: colour of the frame as a share of white.

    """

    size: Size
    fill: Share = 0.0

    def _moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        del seed
        return self.whole(images, labels)

    def whole(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Return the images of training, which are also those of inference."""
        shape = tf.cast(tf.shape(images)[1:3], tf.float32)
        wanted = tf.constant(self.size, tf.float32)
        shares = wanted / (shape * tf.reduce_min(wanted / shape))  # of the image, at least 1
        window = tf.concat([0.5 - shares / 2, 0.5 + shares / 2], 0)
        windows = tf.repeat(window[tf.newaxis], tf.shape(images)[0], axis=0)
        labels = follow(labels, windows, self.size, 0.0)
        height, width = images.shape[1:3]
        most = tf.reduce_max(shares)
        if height is not None and width is not None:  # a constant for the graph
            down, across = self.size[0] / height, self.size[1] / width
            most = max(down, across) / min(down, across)
        return resample(images, windows, self.size, fill=self.fill, most=most), labels


@validated_fields("augment.Mosaic")
@dataclass(frozen=True, slots=True)
class Mosaic(Move):
    """Join parts of four images: each image with the three before it in the batch.

    The images meet at a random point. Each is scaled to just fill its quarter, with its aspect
    ratio kept; which part of it is visible is random. Boxes are clipped to their quarter, so a
    batch has four times as many rows of boxes until padding is removed.

    Args:
        middle: smallest and largest share of height and width at which the images meet.
        probability: probability that an image is joined with others.
        min_visible: an object is cut away when less than this share of its box's area is visible,
            or when a side of its box is shorter than a pixel.

    """

    middle: _Middle = (0.3, 0.7)
    probability: Share = 1.0
    min_visible: Share = 0.1

    def _moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        chance, down, across, *offsets = draw(images, seed, 11)
        joins = chance < self.probability
        row, column = (
            tf.where(joins, between(*self.middle, share), 1.0) for share in (down, across)
        )
        zero, one = tf.zeros_like(row), tf.ones_like(row)
        size = _size(images)
        # One batch of four times as many images: the program is a quarter as long.
        quarters = (
            (zero, zero, row, column),
            (zero, column, row, one),
            (row, zero, one, column),
            (row, column, one, one),
        )
        frames = tf.concat([tf.stack(quarter, axis=1) for quarter in quarters], 0)
        offsets = tf.concat([tf.stack(offsets[i : i + 2], axis=1) for i in (0, 2, 4, 6)], 0)
        low = min(self.middle[0], 1.0 - self.middle[1])
        windows = _filling(frames, offsets, low)
        parts = resample(_rolled(images), windows, size, fill=0.0, most=1.0 / low)
        within = _within(frames, size)
        mosaic = _added(tf.where(within[..., tf.newaxis], parts, tf.zeros_like(parts)))
        if labels is None:
            return mosaic, None
        labels = tf.nest.map_structure(_rolled, labels)

        def pixels(masks: Any, axis: int) -> Any:
            masks = resample_masks(masks, windows, size, axis)
            inside = within[:, tf.newaxis] if axis == 2 else within[..., tf.newaxis]
            return tf.where(inside, masks, tf.zeros_like(masks))

        moved = map_labels(labels, lambda boxes: in_window(boxes, windows), pixels)
        if not isinstance(moved, dict):
            return mosaic, _added(moved)
        if BOXES in moved:
            moved = clip_objects(moved, labels, size, self.min_visible, frames)
        return mosaic, _joined(moved)

    @as_written
    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        """Return the images in their dtype; with labels, (images, labels)."""
        spatial, others = (None, {}) if labels is None else split_labels(labels)
        if labels is not None and (spatial is None or others):
            raise DatasetError(
                "augment.Mosaic",
                "labels of whole images cannot be joined",
                "leave it out of the recipe, or read a dataset that has only boxes or masks",
            )
        if tf.convert_to_tensor(images).shape.rank == 3:
            raise DatasetError(
                "augment.Mosaic", "a single image has no neighbour", "give load a batch_size"
            )
        return Move.__call__(self, images, labels, seed=seed)


def _filling(frames: Any, offsets: Any, least: float) -> Any:
    """Return windows that fill frames with as much of an image as its aspect ratio allows.

    Args:
        frames: float32[batch, 4]: top, left, bottom, right, as shares of the result.
        offsets: float32[batch, 2]: visible part of the image, 0 for top or left, 1 for the end.
        least: smallest size of the image, as a share of the result.

    """
    sides = frames[:, 2:] - frames[:, :2]
    scale = tf.maximum(tf.reduce_max(sides, axis=1, keepdims=True), least)
    begin = offsets * (1.0 - sides / scale) - frames[:, :2] / scale
    return tf.concat([begin, begin + 1.0 / scale], axis=1)


def _within(frames: Any, size: tuple[Any, Any]) -> Any:
    """Return which pixels have their centre in a frame, bool[batch, height, width]."""
    inside = []
    sides = tf.split(frames, 4, axis=1)
    for i in (0, 1):
        length = tf.cast(size[i], tf.float32)
        centers = (tf.range(size[i], dtype=tf.float32) + 0.5) / length
        inside.append((centers >= sides[i]) & (centers < sides[i + 2]))
    return inside[0][:, :, tf.newaxis] & inside[1][:, tf.newaxis]


def _rolled(values: Any) -> Any:
    """Return four copies of a batch, rolled by 0, 1, 2 and 3 images."""
    return tf.concat([tf.roll(values, shift, 0) for shift in range(_NUM_PARTS)], 0)


def _added(parts: Any) -> Any:
    """Return the sum of the four parts of each image; a part is 0 outside its frame."""
    return tf.add_n(tf.split(parts, _NUM_PARTS))


def _joined(parts: dict[str, Any]) -> Any:
    """Return the labels of four parts as those of one image."""
    labels = {
        name: _added(value) if name == CLASSES else tf.concat(tf.split(value, _NUM_PARTS), axis=1)
        for name, value in parts.items()
    }
    return keep_objects(labels, labels[BOXES][..., 0] >= 0) if BOXES in labels else labels


def _size(images: Any) -> tuple[Any, Any]:
    height, width = images.shape[1:3]
    shape = tf.shape(images)
    return shape[1] if height is None else height, shape[2] if width is None else width
