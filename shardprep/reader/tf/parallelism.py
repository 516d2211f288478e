"""Parallel calls and read-ahead, computed from this machine instead of tf.data's autotuning.

Autotuning finds similar numbers, but a dropped iterator waits for its thread: sometimes until its
next turn, and turns become a minute apart. (TensorFlow wakes that thread before it sets the
cancellation that the thread looks for.) Workers of a tf.data service have other cores, so there
autotuning stays on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from shardprep.machine import free_bytes, usable_cores
from shardprep.reader.config import ReadConfig

_SHARE = 1 / 16
"""Largest share of the free memory for the results of the parallel calls of one stage."""
_LEAST_CALLS = 2
"""Parallel calls even if batches are large: one batch is made while another one is taken."""
_BATCHES_AHEAD = 2
_IMAGES_AHEAD = 64


class Calls(NamedTuple):
    """Numbers of parallel calls of the stages of a pipeline."""

    images: int
    """Calls that decode one image each, and may wait for a file."""
    batches: int
    """Calls that decode a batch each."""
    finish: int
    """Calls that change decoded batches or images."""


def parallel_calls(config: ReadConfig, batch_bytes: int | None) -> Calls:
    """Return the parallel calls of a pipeline.

    tf.data keeps a result for each call, so few calls make batches if memory is small.

    Args:
        config: the user's numbers, which win.
        batch_bytes: bytes of the images of a batch, 0 if unknown; None for single images.

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
    """Return a dataset that prepares the next elements while the accelerator works."""
    return dataset.prefetch(_BATCHES_AHEAD if is_batched else _IMAGES_AHEAD)


def untuned() -> Any:
    """Return `tf.data.Options` without autotuning, with parallel calls for the user's maps."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.autotune.initial_parallelism = usable_cores()
    return options
