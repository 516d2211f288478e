"""Parallel calls and elements read ahead: numbers of this machine, without tf.data's autotuning.

Autotuning comes to much the same numbers, and an iterator that is dropped waits for its thread: at
times until its next turn, and turns come to be a minute apart. TensorFlow wakes that thread before
it marks the cancellation that the thread looks for.

The workers of a tf.data service have other cores, so what they run is tuned there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.machine import usable_cores

if TYPE_CHECKING:
    from shardprep.reader.config import Request

_BATCHES_AHEAD = 2
"""Batches that are ready before they are asked for."""
_IMAGES_AHEAD = 64
"""Images that are ready before they are asked for, where there are no batches."""


def image_calls(request: Request) -> int:
    """Return the calls at the same time where each decodes one image."""
    config = request.config
    return config.num_parallel_calls_for_decode or _own(request, config.threads)


def batch_calls(request: Request) -> int:
    """Return the calls at the same time where each decodes a batch."""
    return request.config.num_parallel_calls_for_decode or finish_calls(request)


def finish_calls(request: Request) -> int:
    """Return the calls at the same time where each changes what is decoded."""
    return _own(request, usable_cores())


def _own(request: Request, calls: int) -> int:
    return tf.data.AUTOTUNE if request.config.service else calls


def ahead(dataset: Any, request: Request) -> Any:
    """Return a dataset that works on what comes next while the accelerator does."""
    return dataset.prefetch(_IMAGES_AHEAD if request.batch_size is None else _BATCHES_AHEAD)


def untuned() -> Any:
    """Return the `tf.data.Options` that turn autotuning off, with calls for maps of others."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.autotune.initial_parallelism = usable_cores()
    return options
