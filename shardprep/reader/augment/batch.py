"""What all ops share: a batch or one image in, the same dtype out, draws by position in the batch.

Image `i` of a batch draws from (seed, i) alone, by Philox. Its integers are the same on every
device, compiled by XLA or not, so neither the batch size nor the machine changes the result. (Its
floats are not: XLA makes them from other bits.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shardprep.errors import DatasetError

_WHITE = 255.0


def on_batch(change: Callable[[Any], Any], images: Any) -> Any:
    """Call `change` with a batch of images; one image is a batch of one."""
    images = tf.convert_to_tensor(images)
    if images.shape.rank not in (3, 4) or images.shape[-1] != 3:
        raise DatasetError(
            "augment", f"images have the shape {images.shape}", "give [batch, height, width, 3]"
        )
    if images.dtype != tf.uint8 and not images.dtype.is_floating:
        raise DatasetError("augment", f"images are {images.dtype.name}", "give uint8 or floats")
    return change(images) if images.shape.rank == 4 else change(images[tf.newaxis])[0]


def draw(images: Any, seed: Any, num: int) -> list[Any]:
    """Return `num` random numbers per image, each float32[batch], 0 to below 1."""
    bits = tf.random.stateless_uniform(
        (tf.shape(images)[0], num), as_seed(seed), None, None, tf.uint32, alg="philox"
    )
    drawn = tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) * 2**-24
    return list(tf.unstack(drawn, axis=1))


def fold_in(seed: Any, position: int) -> Any:
    """Return the seed of the op at a position of a recipe."""
    return tf.random.experimental.stateless_fold_in(as_seed(seed), position, alg="philox")


def as_seed(seed: Any) -> Any:
    """Return a pair of integers as a tensor; raise `DatasetError` for anything else."""
    seed = tf.convert_to_tensor(seed)
    if seed.shape != (2,) or not seed.dtype.is_integer:
        raise DatasetError("augment", "a seed is a pair of integers", "give seed=(1, 2)")
    return seed


def between(low: Any, high: Any, share: Any) -> Any:
    """Return the number at `share`, 0 to 1, of the way from `low` to `high`."""
    return low + (high - low) * share


def each(values: Any) -> Any:
    """Reshape [batch] to [batch, 1, 1, 1], to multiply all pixels of each image."""
    return values[:, tf.newaxis, tf.newaxis, tf.newaxis]


def white(images: Any) -> float:
    """Return the value of white: 255 for uint8, 1 for floats."""
    return _WHITE if images.dtype == tf.uint8 else 1.0


def like(images: Any, pixels: Any) -> Any:
    """Return float32 pixels in the dtype of the images; for uint8 rounded and clipped."""
    if images.dtype == tf.uint8:
        pixels = tf.round(tf.clip_by_value(pixels, 0.0, _WHITE))
    return tf.cast(pixels, images.dtype)
