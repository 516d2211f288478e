"""Numbers of parallel calls and threads of a pipeline of tf.data.

The numbers of parallel calls are computed from the cores and memory of this machine. Autotuning of
tf.data finds similar numbers, but the deletion of an iterator then waits for the autotuning thread,
sometimes up to a minute. (TensorFlow wakes that thread before it sets the flag that ends it.)
Workers of a tf.data service have other cores, so there autotuning stays on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from shardprep.machine import free_bytes, usable_cores
from shardprep.reader.config import ReadConfig, Request

_SHARE = 1 / 16
"""Largest share of free memory for the results of all parallel calls of one stage."""
_LEAST_CALLS = 2
"""Smallest number of parallel calls, for large batches: one batch is made while another is used."""
_BATCHES_AHEAD, _IMAGES_AHEAD = 2, 64


class Calls(NamedTuple):
    """Numbers of parallel calls that decode images, decode batches, or change batches."""

    images: int
    batches: int
    finish: int


def parallel_calls(config: ReadConfig, batch_bytes: int | None) -> Calls:
    """Return the numbers of parallel calls of a pipeline; a number in `config` has priority.

    tf.data keeps a result for each call, so fewer calls make batches if memory is small.
    `batch_bytes` is the size of the images of a batch, 0 if unknown, or None for single images.
    """
    finish = usable_cores()
    if batch_bytes is None:
        finish = config.threads
    elif batch_bytes and (free := free_bytes()):
        finish = min(finish, max(_LEAST_CALLS, int(free * _SHARE / batch_bytes)))
    images = config.threads
    if config.service:
        images = finish = tf.data.AUTOTUNE
    given = config.num_parallel_calls_for_decode
    return Calls(given or images, given or finish, finish)


def ahead(dataset: Any, *, is_batched: bool) -> Any:
    """Return a dataset that prepares elements of `dataset` ahead, while the accelerator works."""
    return dataset.prefetch(_BATCHES_AHEAD if is_batched else _IMAGES_AHEAD)


def untuned() -> Any:
    """Return `tf.data.Options` without autotuning; maps of the user still run in parallel."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.autotune.initial_parallelism = usable_cores()
    return options


def options_of(request: Request) -> Any:
    """Return the `tf.data.Options` of a request."""
    config = request.config
    options = untuned()
    # If the order need not be fixed, no result waits for a slower call before it.
    options.deterministic = (
        not request.is_shuffled
        or request.seed is not None
        or not config.shuffle_reshuffle_each_iteration
    )
    # Separate threads do not wait behind the model's ops. The map runs many images at once, and
    # threads inside the ops of one image would only compete.
    options.threading.private_threadpool_size = config.threads
    options.threading.max_intra_op_parallelism = 1
    # Each host reads only its share of the records already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options.merge(config.options) if config.options is not None else options
