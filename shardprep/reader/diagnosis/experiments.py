"""Try a change: build the pipeline with it, and for a cache fill it with a sample of the records.

Filling the cache of a whole dataset takes minutes. So a trial decodes as many records as it can in
its time, and reads those again and again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.config import Request
from shardprep.reader.decode.targets import target_of
from shardprep.reader.diagnosis.diagnosis import Candidate
from shardprep.reader.records.open import Subset, open_request
from shardprep.reader.tf.finish import Finisher
from shardprep.reader.tf.pipeline import cached_sample, load, make_dataset

_SAMPLE_BYTES = 1 << 29
"""Largest number of decoded bytes of a sample."""
_SAMPLE_BATCHES = 4
"""Smallest number of batches of a sample."""

Train = Callable[[Any], None]
"""Trains on a batch, and returns when all of its work is done."""


def check_step(where: str, step: Any, dataset: Any) -> None:
    """Raise DatasetError if a model cannot be trained on a dataset; `where` is the call."""
    if not hasattr(step, "train_on_batch"):
        return
    if not getattr(step, "compiled", False):
        raise DatasetError(where, "the model is not compiled", "call model.compile")
    if not isinstance(dataset.element_spec, tuple):
        what = "batches without a target cannot train a model"
        raise DatasetError(where, what, "pass a step instead")


@contextmanager
def train_on(step: Any, batch: Any) -> Iterator[Train]:
    """Yield a function that trains on a batch and waits for the accelerator.

    At the end, a Keras model has its variables back: weights, optimizer, metrics, random seeds.
    """

    def finished(run: Callable[[Any], Any]) -> Train:
        def train(batch: Any) -> None:
            run(batch)
            tf.test.experimental.sync_devices()  # a GPU is still busy when the call returns

        return train

    if not hasattr(step, "train_on_batch"):
        yield finished(step)
        return
    step(batch[0][:1], training=False)  # creates the variables
    step.optimizer.build(step.trainable_variables)
    every = (*step.variables, *step.optimizer.variables)
    before = {id(variable): (variable, variable.numpy()) for variable in every}
    try:
        yield finished(lambda batch: step.train_on_batch(*batch))
    finally:
        for variable, value in before.values():
            variable.assign(value)
        step.reset_metrics()


class Changed(NamedTuple):
    """The pipeline and the training step with a change applied."""

    dataset: Any
    train: Train
    evict: Callable[[], None] = lambda: None
    """Drops the files of a cache from the page cache."""
    num_images: int | None = None
    """Images that can be read before they come from memory; None if that does not matter."""


@contextmanager
def trial(
    candidate: Candidate, request: Request, train: Train, num_images: float
) -> Iterator[Changed]:
    """Yield a request and a step changed by a candidate; a sample has about `num_images`."""
    if candidate.trial == "folder":
        with tempfile.TemporaryDirectory(prefix="shardprep-", dir=candidate.options["cache"]) as at:
            cached = cached_sample(sample(request, num_images), Path(at))
            dataset = make_dataset(cached, replace(request, cache=False, repeat=True))
            yield Changed(dataset, train, lambda: _evict(Path(at)), cached.subset.num_records)
        return
    dataset = pipeline(replace(request, **candidate.options), num_images)
    if candidate.trial == "in step":
        yield Changed(dataset, _finishing(request, train))
    elif candidate.trial == "prefetch":
        (device, *_) = tf.config.list_logical_devices("GPU")
        to_device = tf.data.experimental.prefetch_to_device(device.name)
        yield Changed(dataset.apply(to_device), train)
    else:
        yield Changed(dataset, train)


def pipeline(request: Request, num_images: float) -> Any:
    """Return the pipeline of a request; with a cache in memory, of an endless sample."""
    sampled = sample(request, num_images) if request.cache == "memory" else request
    return load(request if sampled == request else replace(sampled, repeat=True))


def sample(request: Request, num_images: float) -> Request:
    """Return the request for about `num_images` of its records, or for all if they are few."""
    subset = open_request(request)
    least = _SAMPLE_BATCHES * (request.batch_size or 1)
    most = min(num_images, _SAMPLE_BYTES / (image_bytes(subset, request) or 1))
    parts = int(subset.num_records / max(least, most))
    if parts <= 1:
        return request
    index, readers = request.config.shard_of
    config = replace(
        request.config, num_shards=readers * parts, shard_index=index * parts, input_context=None
    )
    return replace(request, read_config=config)


def image_bytes(subset: Subset, request: Request) -> int | None:
    """Return the bytes of a decoded image; None if images differ in size."""
    size = subset.image_size(request)
    return None if size is None else 3 * size[0] * size[1]


def _finishing(request: Request, train: Train) -> Train:
    """Return a step that first applies `augment` and `dtype`, as layers of a model would."""
    target = target_of(open_request(request).schema)
    finish = tf.function(Finisher(request, target, 0))
    return lambda batch: train(finish(batch, tf.zeros(1, tf.int64)))


def _evict(folder: Path) -> None:
    """Drop the files of a folder from the page cache, so that they are read from the disk."""
    for path in folder.iterdir():
        if path.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
