"""MixUp and CutMix: mix each image and label with the previous image and label of the batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.augment.op import checked, draw, each, like, spatial_labels
from shardprep.reader.tf.python_calls import as_written
from shardprep.reader.validators import Count, Share, number, validated_fields

_NUM_QUANTILES = 1025
Alpha = Annotated[float, number(0.01, 100)]


@dataclass(frozen=True, slots=True)
class _Mix:
    alpha: Alpha
    num_classes: Count | None = None
    probability: Share = 1.0

    def _pairs(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """Return images, and labels as float32; DatasetError if the labels cannot be mixed."""
        where = f"augment.{type(self).__name__}"
        images = checked(images)
        if images.shape.rank == 3:
            raise DatasetError(where, "needs image batches", "give load a batch_size")
        if labels is None:
            raise DatasetError(where, "there are no labels to mix", "leave this op out")
        if spatial_labels(labels):
            raise DatasetError(where, "boxes and masks cannot be mixed", "use augment.Mosaic")
        if isinstance(labels, dict):
            what = f"several targets cannot be mixed: {', '.join(labels)}"
            raise DatasetError(where, what, "leave this op out")
        labels = tf.convert_to_tensor(labels)
        if labels.dtype.is_integer and labels.shape.rank == 1:
            if self.num_classes is None:
                raise DatasetError(where, "labels are class indices", "give num_classes")
            return images, tf.one_hot(labels, self.num_classes)
        if not (labels.dtype.is_integer or labels.dtype.is_floating):
            raise DatasetError(where, f"labels have the dtype {labels.dtype.name}", "give numbers")
        return images, tf.cast(labels, tf.float32)

    def _share(self, drawn: Any, chance: Any) -> Any:
        """Return the share λ that each image keeps, float32[batch], 1 if it is not mixed."""
        return tf.where(chance < self.probability, beta(drawn, self.alpha), 1.0)


@validated_fields("augment.MixUp")
@dataclass(frozen=True, slots=True)
class MixUp(_Mix):
    """Blend each image with its neighbour, the previous image (Zhang and others, 2018).

    The result is λ of the image and 1 − λ of its neighbour. λ is drawn from Beta(alpha, alpha); it
    is 1 for images that are not blended. Labels are blended in the same way and become float32.

    Args:
        alpha: with a small value, λ is near 0 or 1; with 1, it is uniform.
        num_classes: needed if labels are class indices, which become one-hot; −1 becomes zeros.
        probability: probability that an image is blended.
    """

    alpha: Alpha = 0.2

    @as_written
    def __call__(self, images: Any, labels: Any, *, seed: Any) -> tuple[Any, Any]:
        images, labels = self._pairs(images, labels)
        share = self._share(*draw(images, seed, 2))
        pixels = tf.cast(images, tf.float32)
        return like(images, _blend(pixels, each(share))), _blend_labels(labels, share)


@validated_fields("augment.CutMix")
@dataclass(frozen=True, slots=True)
class CutMix(_Mix):
    """Paste a box of the previous image over each image (Yun and others, 2019).

    The box covers a share 1 − λ of the image, with λ drawn from Beta(alpha, alpha). Its centre is
    uniform in the image, so part of it may be outside. Labels are blended by shares of pixels.

    Args:
        alpha: with 1, λ is uniform.
        num_classes: needed if labels are class indices, which become one-hot; −1 becomes zeros.
        probability: probability that an image gets a box.
    """

    alpha: Alpha = 1.0

    @as_written
    def __call__(self, images: Any, labels: Any, *, seed: Any) -> tuple[Any, Any]:
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
    """Return draws from Beta(alpha, alpha), made from uniform draws in [0, 1) by a quantile table.

    The usual method, two draws of `stateless_gamma`, cannot be compiled by XLA.
    """
    table = tf.constant(_quantiles(alpha), tf.float32)
    position = tf.minimum(drawn, 1.0 - drawn) * (2 * (_NUM_QUANTILES - 1))
    below = tf.minimum(tf.floor(position), _NUM_QUANTILES - 2.0)
    index = tf.cast(below, tf.int32)
    low, high = tf.gather(table, index), tf.gather(table, index + 1)
    half = (low + (high - low) * (position - below)) ** (1 / min(alpha, 1.0))
    return tf.where(drawn < 0.5, half, 1.0 - half)


@functools.cache
def _quantiles(alpha: float) -> Any:
    """Return the quantiles of Beta(alpha, alpha) from 0 to 0.5, to the power of min(alpha, 1).

    For alpha below 1 the density has a pole at 0. Substituting s = x^alpha removes it:
    ∫ x^(alpha−1) (1−x)^(alpha−1) dx = ∫ (1−x)^(alpha−1) ds / alpha. So a sum over equal steps of s
    is accurate.
    """
    power = min(alpha, 1.0)
    steps = np.linspace(0.0, 0.5**power, 1 << 16)
    x = steps ** (1 / power)
    density = x ** (alpha - power) * (1.0 - x) ** (alpha - 1.0)
    reached = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(np.linspace(0.0, 1.0, _NUM_QUANTILES), reached / reached[-1], steps)


def _span(length: Any, side: Any, center: Any) -> Any:
    """Return bool[batch, length], true in a window of an axis; `side` and `center`: 0 to 1."""
    pixels = tf.cast(length, tf.float32)
    half = tf.floor(tf.floor(pixels * side) / 2.0)[:, tf.newaxis]
    middle = tf.floor(center * pixels)[:, tf.newaxis]
    at = tf.range(pixels)
    return (at >= middle - half) & (at < middle + half)


def _blend(values: Any, share: Any) -> Any:
    return values * share + tf.roll(values, 1, axis=0) * (1.0 - share)


def _blend_labels(labels: Any, share: Any) -> Any:
    shape = tf.concat([tf.shape(share), tf.ones(labels.shape.rank - 1, tf.int32)], axis=0)
    return _blend(labels, tf.reshape(share, shape))
