"""Parallel calls and elements read ahead: numbers of this machine, without tf.data's autotuning.

Autotuning comes to much the same numbers, and an iterator that is dropped waits for its thread: at
times until its next turn, and turns come to be a minute apart. TensorFlow wakes that thread before
it marks the cancellation that the thread looks for.

The workers of a tf.data service have other cores, so what they run is tuned there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.machine import free_bytes, usable_cores

if TYPE_CHECKING:
    from shardprep.reader.config import Request
    from shardprep.reader.records.open import Subset

_SHARE = 1 / 16
"""Share of the free memory that the results of parallel calls of one stage may take."""
_LEAST_CALLS = 2
"""Calls at the same time however large a batch is: one more is made while one is taken."""
_BATCHES_AHEAD = 2
"""Batches that are ready before they are asked for."""
_IMAGES_AHEAD = 64
"""Images that are ready before they are asked for, where there are no batches."""


def image_calls(request: Request) -> int:
    """Return the calls at the same time where each decodes an image, which may wait for a file."""
    config = request.config
    return config.num_parallel_calls_for_decode or _own(request, config.threads)


def batch_calls(subset: Subset, request: Request) -> int:
    """Return the calls at the same time where each decodes a batch."""
    return request.config.num_parallel_calls_for_decode or finish_calls(subset, request)


def finish_calls(subset: Subset, request: Request) -> int:
    """Return the calls at the same time where each changes what is decoded: one for each core.

    tf.data keeps a result for each call, so batches are in fewer where memory is small.
    """
    if request.batch_size is None:
        return _own(request, request.config.threads)
    cores, free, needed = usable_cores(), free_bytes(), _batch_bytes(subset, request)
    if not free or not needed:
        return _own(request, cores)
    return _own(request, min(cores, max(_LEAST_CALLS, int(free * _SHARE / needed))))


def _own(request: Request, calls: int) -> int:
    return tf.data.AUTOTUNE if request.config.service else calls


def _batch_bytes(subset: Subset, request: Request) -> int:
    """Return the bytes of the images of a batch, 0 where their size is not known."""
    crop = request.crop
    height, width = (subset.image_size(request) or (0, 0)) if crop is None else crop.size
    return (request.batch_size or 1) * height * width * 3 * np.dtype(request.dtype).itemsize


def ahead(dataset: Any, request: Request) -> Any:
    """Return a dataset that works on what comes next while the accelerator does."""
    return dataset.prefetch(_IMAGES_AHEAD if request.batch_size is None else _BATCHES_AHEAD)


def untuned() -> Any:
    """Return the `tf.data.Options` that turn autotuning off, with calls for maps of others."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.autotune.initial_parallelism = usable_cores()
    return options
