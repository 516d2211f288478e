"""The runs of `reader.diagnose`; a model is put back as it was."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from shardprep.dataset.schema import IMAGE
from shardprep.errors import DatasetError
from shardprep.machine import free_bytes
from shardprep.reader.diagnose.conclude import Circumstances, Diagnosis, Measured, conclude
from shardprep.reader.options import Request
from shardprep.reader.subset import open_request, record_bytes
from shardprep.reader.tf.pipeline import load
from shardprep.reader.tf.records import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardprep.reader.subset import Subset

_ROUNDS, _TRAINING_TURNS = 2, 2
"""Turns of every run, and the turns of others that training as it is takes as long as."""
_LEAST_STEPS = 3
_CACHED = 1.5
"""Ratio of the rates of pipeline and decoding from which the pipeline does not decode."""
_READ_BLOCK = 256


def diagnose(dataset: Any, step: Any, seconds: float) -> Diagnosis:
    """Return the diagnosis of a dataset of `reader.load`, as `reader.diagnose` says."""
    request = getattr(dataset, "loaded", None)
    if not isinstance(request, Request):
        raise DatasetError(
            "reader.diagnose",
            "this is not what reader.load returned",
            "pass that; what you map over it can be given to load as augment",
        )
    if not request.batch_size:
        raise DatasetError(
            "reader.diagnose", "the dataset yields single images", "give load a batch_size"
        )
    subset = open_request(request)
    with _as_step(step, dataset) as take:
        measured = _measure(_endless(dataset, request, subset), request, take, seconds)
        return conclude(measured, _circumstances(request, subset))


def _measure(
    endless: Any, request: Request, take: Callable[[Any], Any], seconds: float
) -> Measured:
    batch = next(iter(endless))
    take(batch)  # compiles
    runs: dict[str, Callable[[float], float]] = {
        "model": lambda limit: _run(itertools.repeat(batch), limit, take).rate,
        "pipeline": lambda limit: _run(iter(endless), limit).rate,
    }
    devices = tf.config.list_logical_devices("GPU")
    if devices:
        with tf.device(devices[0].name):
            there = tf.nest.map_structure(_moved, batch)
        runs["model_on_device"] = lambda limit: _run(itertools.repeat(there), limit, take).rate
    if request.cache in (False, "auto"):  # "auto" may have come to no cache
        plain = replace(request, repeat=True, augment=None, dtype="uint8", cache=False)
        undressed, records = load(plain), _records(plain)
        runs["decode"] = lambda limit: _run(iter(undressed), limit).rate
        runs["read"] = lambda limit: _run(iter(records), limit).rate
    rates: dict[str, list[float]] = {name: [] for name in runs}
    trainings = []
    turn = seconds / (_ROUNDS * (len(runs) + _TRAINING_TURNS))
    for _ in range(_ROUNDS):
        trainings.append(_run(iter(endless), turn * _TRAINING_TURNS, take))
        for name, run in runs.items():
            rates[name].append(run(turn))
    # What else the machine does makes a part slower, never faster.
    best = {name: max(found) for name, found in rates.items()}
    if request.cache and best["pipeline"] > _CACHED * best.get("decode", 0.0):
        best.pop("decode", None)
        best.pop("read", None)
    waited, num_images, elapsed = map(sum, zip(*trainings, strict=True))
    return Measured(
        waiting=waited / elapsed,
        training=num_images / elapsed,
        model=best["model"],
        model_on_device=best.get("model_on_device"),
        pipeline=best["pipeline"],
        decode=best.get("decode"),
        read=best.get("read"),
    )


def _endless(dataset: Any, request: Request, subset: Subset) -> Any:
    """Return the pipeline without the gaps between epochs."""
    if not request.cache:
        return load(replace(request, repeat=True))
    # The cache belongs to this dataset. Its first epoch fills it; the others are what counts.
    left = subset.num_records
    for batch in dataset:
        left -= _num_images(batch)
        if left <= 0:
            break
    return dataset if request.repeat is True else dataset.repeat()


def _records(request: Request) -> Any:
    """Return the records in batches, read as the pipeline reads them, undecoded."""
    subset = open_request(request)
    reading = Reading(subset, subset.order(request), request)
    return reading.records().batch(_READ_BLOCK).map(lambda data, _: data).prefetch(tf.data.AUTOTUNE)


class _Run(NamedTuple):
    """Sums over the batches of a run but for the first."""

    waited: float
    """Seconds spent waiting for batches."""
    num_images: int
    elapsed: float
    """Seconds in all."""

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.num_images / self.elapsed


def _run(
    batches: Iterator[Any], seconds: float, take: Callable[[Any], Any] = lambda _: None
) -> _Run:
    """Draw batches for so many seconds, and do something with each."""
    take(next(batches))
    waited, num_images, num_steps = 0.0, 0, 0
    begin = now = time.perf_counter()
    while now - begin < seconds or num_steps < _LEAST_STEPS:
        batch = next(batches)
        waited += time.perf_counter() - now
        take(batch)
        now = time.perf_counter()
        num_images += _num_images(batch)
        num_steps += 1
    return _Run(waited, num_images, now - begin)


def _num_images(batch: Any) -> int:
    images = batch[IMAGE] if isinstance(batch, dict) else batch
    return len(images[0] if isinstance(images, tuple) else images)


def _moved(tensor: Any) -> Any:
    return tensor if tensor.dtype == tf.string else tf.identity(tensor)


@contextmanager
def _as_step(step: Any, dataset: Any) -> Iterator[Callable[[Any], Any]]:
    """Yield a function that takes a batch and returns when all of its work is done."""

    def finished(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def take(batch: Any) -> None:
            run(batch)
            tf.test.experimental.sync_devices()  # a GPU works on after the call has returned

        return take

    if not hasattr(step, "train_on_batch"):
        yield finished(step)
        return
    if not getattr(step, "compiled", False):
        raise DatasetError("reader.diagnose", "the model is not compiled", "call model.compile")
    if not isinstance(dataset.element_spec, tuple):
        raise DatasetError(
            "reader.diagnose", "batches without a target train no model", "pass a step instead"
        )
    with _kept(step, next(iter(dataset))):
        yield finished(lambda batch: step.train_on_batch(*batch))


@contextmanager
def _kept(model: Any, batch: Any) -> Iterator[None]:
    """Restore a model's variables at the end: weights, optimizer, metrics, random seeds."""
    model(batch[0][:1], training=False)  # has its variables then
    model.optimizer.build(model.trainable_variables)
    variables = {id(one): one for one in (*model.variables, *model.optimizer.variables)}.values()
    before = [one.numpy() for one in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        model.reset_metrics()


def _circumstances(request: Request, subset: Subset) -> Circumstances:
    size = subset.schema.image_size
    return Circumstances(
        num_records=subset.num_records,
        record_bytes=record_bytes(subset.manifest),
        encoding=subset.schema.image.encoding or "any",
        stored_pixels=size[0] * size[1] if size else None,
        asked_size=request.config.image_size,
        dtype=request.dtype,
        augments=request.augment is not None,
        free_bytes=free_bytes(),
    )
