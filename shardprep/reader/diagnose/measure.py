"""The runs of `reader.diagnose`; a model is put back as it was."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.dataset.locate import locate
from shardprep.dataset.remote import described
from shardprep.dataset.schema import IMAGE
from shardprep.errors import DatasetError
from shardprep.machine import free_bytes
from shardprep.reader.diagnose.conclude import Circumstances, Diagnosis, Measured, conclude
from shardprep.reader.options import Request
from shardprep.reader.splits import select
from shardprep.reader.subset import open_request
from shardprep.reader.tf.pipeline import load
from shardprep.reader.tf.records import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROUNDS, _TRAINING_TURNS = 2, 2
"""Turns of every run, and the turns of others that training as it is takes as long as."""
_LEAST_STEPS = 3
_CACHED = 1.5
"""Ratio of the rates of pipeline and decoding from which the pipeline does not decode."""
_READ_BLOCK = 256


def diagnose(dataset: Any, step: Any, seconds: float) -> Diagnosis:
    """Return the diagnosis of a dataset of `reader.load`, as `reader.diagnose` says."""
    loaded = getattr(dataset, "loaded", None)
    if not isinstance(loaded, Request):
        raise DatasetError(
            "reader.diagnose",
            "this is not what reader.load returned",
            "pass that; what you map over it can be given to load as augment",
        )
    if not loaded.batch_size:
        raise DatasetError(
            "reader.diagnose", "the dataset yields single images", "give load a batch_size"
        )
    with _as_step(step, dataset) as take:
        return conclude(_measure(dataset, loaded, take, seconds), _circumstances(loaded))


def _measure(dataset: Any, loaded: Request, take: Callable[[Any], Any], seconds: float) -> Measured:
    endless = _endless(dataset, loaded)
    batch = next(iter(endless))
    take(batch)  # compiles
    runs: dict[str, Callable[[float], float]] = {
        "model": lambda limit: _rate(itertools.repeat(batch), limit, take),
        "pipeline": lambda limit: _rate(iter(endless), limit),
    }
    devices = tf.config.list_logical_devices("GPU")
    if devices:
        with tf.device(devices[0].name):
            there = tf.nest.map_structure(_moved, batch)
        runs["model_on_device"] = lambda limit: _rate(itertools.repeat(there), limit, take)
    if loaded.cache in (False, "auto"):  # "auto" may have come to no cache
        undressed = load(replace(loaded, repeat=True, augment=None, dtype="uint8", cache=False))
        records = _records(loaded)
        runs["decode"] = lambda limit: _rate(iter(undressed), limit)
        runs["read"] = lambda limit: _rate(iter(records), limit)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    waited = trained = elapsed = 0.0
    turn = seconds / (_ROUNDS * (len(runs) + _TRAINING_TURNS))
    for _ in range(_ROUNDS):
        one = _train(endless, take, turn * _TRAINING_TURNS)
        waited, trained, elapsed = waited + one[0], trained + one[1], elapsed + one[2]
        for name, run in runs.items():
            rates[name].append(run(turn))
    # What else the machine does makes a part slower, never faster.
    best = {name: max(found) for name, found in rates.items()}
    if loaded.cache and best["pipeline"] > _CACHED * best.get("decode", 0.0):
        best.pop("decode", None)
        best.pop("read", None)
    return Measured(
        waiting=waited / elapsed,
        training=trained / elapsed,
        model=best["model"],
        model_on_device=best.get("model_on_device"),
        pipeline=best["pipeline"],
        decode=best.get("decode"),
        read=best.get("read"),
    )


def _endless(dataset: Any, loaded: Request) -> Any:
    """Return the pipeline without the gaps between epochs."""
    if not loaded.cache:
        return load(replace(loaded, repeat=True))
    # The cache belongs to this dataset. Its first epoch fills it; the others are what counts.
    left = _num_records(loaded)
    for batch in dataset:
        left -= _num_images(batch)
        if left <= 0:
            break
    return dataset if loaded.repeat is True else dataset.repeat()


def _records(loaded: Request) -> Any:
    """Return the records in batches, read as the pipeline reads them, undecoded."""
    request = replace(loaded, repeat=True, augment=None, cache=False)
    subset = open_request(request)
    reading = Reading(subset, subset.order(request), request)
    return reading.records().batch(_READ_BLOCK).prefetch(tf.data.AUTOTUNE)


def _train(dataset: Any, take: Callable[[Any], Any], seconds: float) -> tuple[float, int, float]:
    """Return seconds spent waiting for batches, images trained on, and seconds in all."""
    batches = iter(dataset)
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
    return waited, num_images, now - begin


def _rate(
    batches: Iterator[Any], seconds: float, take: Callable[[Any], Any] | None = None
) -> float:
    """Return images a second after the first batch."""
    first = next(batches)
    if take is not None:
        take(first)
    num_images, num_steps = 0, 0
    begin = now = time.perf_counter()
    while now - begin < seconds or num_steps < _LEAST_STEPS:
        batch = next(batches)
        if take is not None:
            take(batch)
        num_images += _num_images(batch)
        num_steps += 1
        now = time.perf_counter()
    return num_images / (now - begin)


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


def _num_records(loaded: Request) -> int:
    manifest, _ = described(locate(loaded.path))
    return sum(one.take for one in select(manifest, loaded.split))


def _circumstances(loaded: Request) -> Circumstances:
    manifest, schema = described(locate(loaded.path))
    splits = manifest.splits.values()
    size = schema.image_size
    return Circumstances(
        num_records=_num_records(loaded),
        record_bytes=sum(one.num_bytes for one in splits) / sum(one.num_records for one in splits),
        encoding=schema.image.encoding or "any",
        stored_pixels=size[0] * size[1] if size else None,
        asked_size=loaded.config.image_size,
        dtype=loaded.dtype,
        augments=loaded.augment is not None,
        free_bytes=free_bytes(),
    )
