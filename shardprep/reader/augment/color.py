"""Brightness, contrast, saturation and hue as one 3 × 4 matrix for all pixels of an image.

Brightness, contrast and saturation mean what they mean in Pillow's `ImageEnhance` and torchvision's
`ColorJitter`. Hue is a rotation around the grey axis in YIQ, which keeps luma: a linear
approximation of the rotation in HSV of `tf.image.adjust_hue`, after `adjust_hsv_in_yiq` of
TensorFlow 1's `contrib.image`. These changes commute, so their order does not matter. Only the
final result is clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from shardprep.reader.augment.op import between, checked, draw, each, like, white
from shardprep.reader.tf.python_calls import as_written
from shardprep.reader.validators import number, validated_fields

_YIQ = np.array(  # of NTSC, FCC 1953; the first row is the luma of ITU-R BT.601
    [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5226, 0.3111]]
)
_LUMA = _YIQ[0].astype(np.float32)
Strength = Annotated[float, number(0)]


def _on_yiq(matrix: list[list[int]]) -> Any:
    return (np.linalg.inv(_YIQ) @ np.array(matrix) @ _YIQ).astype(np.float32)


_GREY = _on_yiq([[1, 0, 0], [0, 0, 0], [0, 0, 0]])
_CHROMA = _on_yiq([[0, 0, 0], [0, 1, 0], [0, 0, 1]])
_TURNED = _on_yiq([[0, 0, 0], [0, 0, 1], [0, -1, 0]])


@validated_fields("augment.Color")
@dataclass(frozen=True, slots=True)
class Color:
    """Change brightness, contrast, saturation and hue of each image by random factors.

    Args:
        brightness: 0.2 draws a factor from 0.8 to 1.2. The factor 0 gives black.
        contrast: drawn like brightness. The factor 0 gives the mean grey of the image everywhere.
        saturation: drawn like brightness. The factor 0 gives a greyscale image.
        hue: 0.05 turns the hue by up to 0.05 of the circle in either direction; at most 0.5.
    """

    brightness: Strength = 0.0
    contrast: Strength = 0.0
    saturation: Strength = 0.0
    hue: Annotated[float, number(0, 0.5)] = 0.0

    @as_written
    def __call__(self, images: Any, *, seed: Any) -> Any:
        """Return changed images of the same dtype and range: uint8, or floats of 0 to 1.

        Images are [batch, height, width, 3] or [height, width, 3], `seed` is a pair of integers.
        """
        images = checked(images)
        if images.shape.rank == 3:
            return self._changed(images[tf.newaxis], seed)[0]
        return self._changed(images, seed)

    def _changed(self, images: Any, seed: Any) -> Any:
        *drawn, turn = draw(images, seed, 4)
        strengths = (self.brightness, self.contrast, self.saturation)
        brightness, contrast, saturation = (
            between(max(0.0, 1 - strength), 1 + strength, share) if strength else None
            for strength, share in zip(strengths, drawn, strict=True)
        )
        hue = between(-self.hue, self.hue, turn) if self.hue else None
        return adjust(images, brightness, contrast, saturation, hue)


def adjust(images: Any, brightness: Any, contrast: Any, saturation: Any, hue: Any) -> Any:
    """Return a batch of adjusted images; each adjustment is float32[batch], or None for no change.

    `brightness` is a factor of all values, `contrast` of the distance from the mean luma of the
    image, and `saturation` of the distance from the luma of each pixel. `hue` is a share of the
    circle; positive values turn red towards green, as in `tf.image.adjust_hue`.
    """
    pixels = tf.cast(images, tf.float32)
    ones, zeros = tf.ones(tf.shape(images)[:1]), tf.zeros(tf.shape(images)[:1])
    brightness = ones if brightness is None else brightness
    factor = brightness if contrast is None else brightness * contrast
    if saturation is None and hue is None:
        changed = pixels * each(factor)
    else:
        angle = 2 * math.pi * each(zeros if hue is None else hue)[..., 0]
        chroma = tf.cos(angle) * _CHROMA + tf.sin(angle) * _TURNED
        chroma *= each(ones if saturation is None else saturation)[..., 0]
        changed = _product(each(factor)[..., 0] * (_GREY + chroma), pixels)
    if contrast is not None:
        # One axis at a time: XLA on a CPU is twice as fast as with both at once.
        mean = tf.reduce_mean(tf.reduce_mean(pixels, axis=1), axis=1)
        changed += each((brightness - factor) * tf.linalg.matvec(mean, _LUMA))
    return like(images, tf.clip_by_value(changed, 0.0, white(images)))


def _product(matrix: Any, pixels: Any) -> Any:
    """Return pixels times each image's matrix, as a sum of products that XLA fuses."""
    columns = tf.unstack(matrix[:, tf.newaxis, tf.newaxis], axis=-1)
    channels = tf.split(pixels, 3, axis=-1)
    return tf.add_n([channel * column for channel, column in zip(channels, columns, strict=True)])
