"""Rules of every op: a batch or one image in, the same dtype out, draws by place in the batch.

Image `i` of a batch draws from (seed, i) alone, by Philox, whose integers are the same on every
device, compiled by XLA or not: neither the size of the batch nor the machine changes them. (Its
floats are not: XLA makes them of other bits.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Callable

_WHITE = 255.0


def on_batch(change: Callable[[Any], Any], images: Any) -> Any:
    """Call `change` with a batch of images; one image is a batch of one."""
    images = tf.convert_to_tensor(images)
    if images.shape.rank not in (3, 4) or images.shape[-1] != 3:
        raise DatasetError(
            "augment", f"{images.shape} are no images", "give [batch, height, width, 3]"
        )
    if images.dtype != tf.uint8 and not images.dtype.is_floating:
        raise DatasetError("augment", f"images are {images.dtype.name}", "give uint8 or floats")
    return change(images) if images.shape.rank == 4 else change(images[tf.newaxis])[0]


def draw(images: Any, seed: Any, num: int) -> list[Any]:
    """Return `num` draws for each image, 0 to below 1, each float32[batch]."""
    bits = tf.random.stateless_uniform(
        (tf.shape(images)[0], num), as_seed(seed), None, None, tf.uint32, alg="philox"
    )
    drawn = tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) * 2**-24
    return list(tf.unstack(drawn, axis=1))


def fold_in(seed: Any, place: int) -> Any:
    """Return the seed of the op at a place of a recipe."""
    return tf.random.experimental.stateless_fold_in(as_seed(seed), place, alg="philox")


def as_seed(seed: Any) -> Any:
    """Return a pair of integers as a tensor; raise `DatasetError` for anything else."""
    seed = tf.convert_to_tensor(seed)
    if seed.shape != (2,) or not seed.dtype.is_integer:
        raise DatasetError("augment", "a seed is a pair of integers", "give seed=(1, 2)")
    return seed


def between(low: Any, high: Any, drawn: Any) -> Any:
    """Return the number so far from `low` to `high`."""
    return low + (high - low) * drawn


def each(values: Any) -> Any:
    """Shape a number for each image, [batch], so that it meets all its pixels."""
    return values[:, tf.newaxis, tf.newaxis, tf.newaxis]


def white(images: Any) -> float:
    """Return the number that stands for white: 255 of uint8, 1 of floats."""
    return _WHITE if images.dtype == tf.uint8 else 1.0


def like(images: Any, pixels: Any) -> Any:
    """Return float32 pixels in the dtype of the images; for uint8 rounded and clipped."""
    if images.dtype == tf.uint8:
        pixels = tf.round(tf.clip_by_value(pixels, 0.0, _WHITE))
    return tf.cast(pixels, images.dtype)
