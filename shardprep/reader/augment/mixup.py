"""Each image is mixed with the one before it in the batch, and its label by the same share."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.augment.augmented_annotations import parted
from shardprep.reader.augment.batch import draw, each, like, on_batch
from shardprep.reader.tf.python_calls import as_written
from shardprep.reader.validators import Count, Share, number, validated_fields

_NUM_QUANTILES = 1025
Alpha = Annotated[float, number(0.01, 100)]


@dataclass(frozen=True, slots=True)
class _Mix:
    """An op that mixes images of a batch, each with probability."""

    alpha: Alpha
    num_classes: Count | None = None
    probability: Share = 1.0

    def _pairs(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Return the images of a batch, and their labels as numbers that can be mixed."""
        where = f"augment.{type(self).__name__}"
        images = on_batch(lambda batch: batch, images)
        if images.shape.rank == 3:
            raise DatasetError(where, "one image has no neighbour", "give load a batch_size")
        if labels is None:
            raise DatasetError(where, "there are no labels to mix", "leave it out of the recipe")
        if parted(labels)[0] is not None or isinstance(labels, dict):
            raise DatasetError(
                where, "boxes and masks cannot be mixed", "leave it out, augment.Mosaic joins them"
            )
        labels = tf.convert_to_tensor(labels)
        if labels.dtype.is_integer and labels.shape.rank == 1:
            if self.num_classes is None:
                raise DatasetError(where, "labels are class indices", "give num_classes")
            return images, tf.one_hot(labels, self.num_classes)
        if not (labels.dtype.is_integer or labels.dtype.is_floating):
            raise DatasetError(where, f"labels are {labels.dtype.name}", "give numbers")
        return images, tf.cast(labels, tf.float32)

    def _share(self, drawn: Any, chance: Any) -> Any:
        """Return the share λ that each image keeps, float32[batch]; 1 where it is left alone."""
        return tf.where(chance < self.probability, beta(drawn, self.alpha), 1.0)


@validated_fields("augment.MixUp")
@dataclass(frozen=True, slots=True)
class MixUp(_Mix):
    """Blend images with their neighbours (Zhang and others, 2018).

    An image keeps a share λ drawn from Beta(alpha, alpha), which is 1 for those left alone. Labels
    become λ of their own and 1 − λ of the neighbour's, so they come out as float32.

    Args:
        alpha: above 0; small ones mostly leave one of the two images, 1 makes all shares alike.
        num_classes: needed for labels of class indices, which become one-hot; −1 becomes zeros.
        probability: that an image is blended.

    """

    alpha: Alpha = 0.2

    @as_written
    def __call__(self, images: Any, labels: Any, *, seed: Any) -> tuple[Any, Any]:
        """Return images in their dtype, and soft labels, float32[batch, …]."""
        images, labels = self._pairs(images, labels)
        share = self._share(*draw(images, seed, 2))
        pixels = tf.cast(images, tf.float32)
        return like(images, _blend(pixels, each(share))), _blend_labels(labels, share)


@validated_fields("augment.CutMix")
@dataclass(frozen=True, slots=True)
class CutMix(_Mix):
    """Paste a box of the neighbour over each image (Yun and others, 2019).

    The box has a share 1 − λ of the image, λ drawn from Beta(alpha, alpha), and its centre lies
    anywhere, so that a part may fall outside. Labels are mixed by the pixels that are left.

    Args:
        alpha: above 0; 1 makes all shares alike.
        num_classes: needed for labels of class indices, which become one-hot; −1 becomes zeros.
        probability: that an image gets a box.

    """

    alpha: Alpha = 1.0

    @as_written
    def __call__(self, images: Any, labels: Any, *, seed: Any) -> tuple[Any, Any]:
        """Return images in their dtype, and soft labels, float32[batch, …]."""
        images, labels = self._pairs(images, labels)
        share, down, across, chance = draw(images, seed, 4)
        side = tf.sqrt(1.0 - self._share(share, chance))
        rows = _span(tf.shape(images)[1], side, down)
        columns = _span(tf.shape(images)[2], side, across)
        pasted = rows[:, :, tf.newaxis] & columns[:, tf.newaxis]
        left = 1.0 - tf.reduce_mean(tf.cast(pasted, tf.float32), axis=(1, 2))
        mixed = tf.where(pasted[..., tf.newaxis], tf.roll(images, 1, axis=0), images)
        return mixed, _blend_labels(labels, left)


def beta(drawn: Any, alpha: float) -> Any:
    """Turn even draws of 0..1 into draws of Beta(alpha, alpha), by its quantiles in a table.

    TensorFlow's own way, by two draws of `stateless_gamma`, is none that XLA compiles, and how
    many numbers it takes depends on what it draws.
    """
    table = tf.constant(_quantiles(alpha), tf.float32)
    place = tf.minimum(drawn, 1.0 - drawn) * (2 * (_NUM_QUANTILES - 1))
    below = tf.minimum(tf.floor(place), _NUM_QUANTILES - 2.0)
    index = tf.cast(below, tf.int32)
    low, high = tf.gather(table, index), tf.gather(table, index + 1)
    half = (low + (high - low) * (place - below)) ** (1 / min(alpha, 1.0))
    return tf.where(drawn < 0.5, half, 1.0 - half)


@functools.cache
def _quantiles(alpha: float) -> Any:
    """Return the quantiles of Beta(alpha, alpha) from 0 to 0.5, to the power of min(alpha, 1).

    Below 1 the density has a pole at 0. In s = x^alpha it has none, ∫ x^(alpha−1) (1−x)^(alpha−1)
    dx being ∫ (1−x)^(alpha−1) ds / alpha, so that sums over even steps of s will do.
    """
    power = min(alpha, 1.0)
    steps = np.linspace(0.0, 0.5**power, 1 << 16)
    x = steps ** (1 / power)
    density = x ** (alpha - power) * (1.0 - x) ** (alpha - 1.0)
    reached = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(np.linspace(0.0, 1.0, _NUM_QUANTILES), reached / reached[-1], steps)


def _span(length: Any, side: Any, center: Any) -> Any:
    """Return bool[batch, length]: a stretch of that share of the length, about a drawn centre."""
    pixels = tf.cast(length, tf.float32)
    half = tf.floor(tf.floor(pixels * side) / 2.0)[:, tf.newaxis]
    middle = tf.floor(center * pixels)[:, tf.newaxis]
    place = tf.range(pixels)
    return (place >= middle - half) & (place < middle + half)


def _blend(values: Any, share: Any) -> Any:
    return values * share + tf.roll(values, 1, axis=0) * (1.0 - share)


def _blend_labels(labels: Any, share: Any) -> Any:
    shape = tf.concat([tf.shape(share), tf.ones(labels.shape.rank - 1, tf.int32)], axis=0)
    return _blend(labels, tf.reshape(share, shape))
