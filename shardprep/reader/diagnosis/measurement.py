"""The runs of `reader.diagnose`: training, parts of the pipeline, and changes that may help.

Filling the cache of a whole dataset takes minutes. So a trial of a cache decodes only as many
records as it has time for, and reads these repeatedly.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.machine import free_bytes
from shardprep.reader.config import Request
from shardprep.reader.decode.targets import target_of
from shardprep.reader.diagnosis.diagnosis import (
    Candidate,
    Change,
    Circumstances,
    Diagnosis,
    Measured,
    Stopwatch,
    Times,
    candidates,
    conclude,
    epoch_of,
    images_of,
    reading_counts,
)
from shardprep.reader.records.subset import Subset, open_request
from shardprep.reader.tf.finish import Finisher
from shardprep.reader.tf.pipeline import cached_sample, load, make_dataset, undecoded
from shardprep.reader.validators import parameters, short_repr

_NUM_TURNS = 10
"""Number of turns into which the time of a diagnosis is divided. Training takes two or three turns,
each part of the pipeline one, and each trial one, or four if it alternates with training. Rounds
that disagree are repeated."""
_AGREE, _MOST_ROUNDS = 1.1, 6
"""Largest ratio of the rates of two rounds that agree, and maximum number of rounds."""
_PAIRS = 5
"""Number of pairs of alternating runs, without and with a change."""
_LEAST_STEPS, _ENOUGH_STEPS = 3, 12
"""Minimum steps of a run, and steps below which a run goes on up to twice its time."""
_FILL = 4
"""Rough ratio of the time per image to fill a cache and the time per image of a pipeline."""
_REST_S = 0.01
"""Seconds between two measurements of the processor time until the process is idle."""
_AT_REST = 0.2
"""Processor seconds per second below which the process is idle."""
_LONGEST_S = 30
"""Largest `seconds` that a diagnosis advises."""
_READ_BLOCK = 256
_WHERE = "reader.diagnose"
_SAMPLE_BYTES = 1 << 29
"""Largest decoded size of a sample in bytes."""
_SAMPLE_BATCHES = 4
"""Smallest number of batches of a sample."""

_Train = Callable[[Any], None]
"""Trains on a batch, and returns when the accelerator has finished."""


def diagnose(dataset: Any, step: Any, seconds: float) -> Diagnosis:
    """Return the diagnosis of a dataset from `reader.load`; see `reader.diagnose`."""
    request = getattr(dataset, "loaded", None)
    if not isinstance(request, Request):
        hint = "pass the result of load itself, and mapped functions as its augment"
        hint += "; in a loop of PyTorch, time next(batches): its share of an epoch is the stall"
        raise DatasetError(_WHERE, "this dataset is not the result of reader.load", hint)
    if not request.batch_size:
        raise DatasetError(_WHERE, "the dataset yields single images", "give load a batch_size")
    if request.config.pad_batches:
        raise DatasetError(_WHERE, "pad_batches is for evaluation", "pass the training dataset")
    _check_step(step, dataset)
    subset = open_request(request)
    begun = iter(dataset)  # fills a cache
    batch = next(begun, None)
    if batch is None:
        raise DatasetError(_WHERE, "the dataset has no batch", "use a smaller batch_size")
    with _train_on(step, batch) as train:
        turn = seconds / _NUM_TURNS
        return _Measurement(dataset, request, subset, train, turn).diagnosis(begun, batch)


class _Timed(NamedTuple):
    steps: list[Times]
    num_images: int
    cpu_s: float

    def plus(self, other: _Timed) -> _Timed:
        return _Timed(
            self.steps + other.steps, self.num_images + other.num_images, self.cpu_s + other.cpu_s
        )

    @property
    def rate(self) -> float:
        """Images per second, without the time of restarts."""
        return self.num_images / len(self.steps) / epoch_of(self.steps, None).total_s

    @property
    def image_cpu_s(self) -> float:
        return self.cpu_s / self.num_images


def _agree(*rates: float) -> bool:
    return max(rates) <= _AGREE * min(rates)


class _Measurement:
    """The runs of one diagnosis; a turn (see `_NUM_TURNS`) takes `turn` seconds."""

    def __init__(
        self, dataset: Any, request: Request, subset: Subset, train: _Train, turn: float
    ) -> None:
        self.dataset = dataset
        self.request = request
        self.subset = subset
        self.train = train
        self.turn = turn
        self.is_sure = True  # whether the rounds of training agree
        self.spread = 0.0
        """Largest difference between rounds of the same run, as a share."""
        self.unsure = set[str]()
        """Advice of changes whose rounds do not agree; "" for the model or the pipeline alone."""
        number = None if request.num_epochs is None else subset.epoch_records * request.num_epochs
        size = request.batch_size or 1
        cut = 0 if request.drop_remainder else size - 1
        self.num_steps = None if number is None else (number + cut) // size

    def diagnosis(self, begun: Iterator[Any], batch: Any) -> Diagnosis:
        """Return the diagnosis; `begun` is an iterator of the dataset, `batch` its first batch.

        The load of the machine changes within seconds. So training is measured several times,
        between other runs. A change of an endless dataset alternates with training, and the median
        of the gains is used. The gain of any other change is relative to all runs of training, the
        last of them after the trials.
        """
        self._compile(batch)
        rounds = [_run(self.dataset, self.turn, self.train, begun=begun)]
        alone = self._alone(batch, rounds[0].rate)
        training = self._more(rounds)
        measured = self._measured(alone, training)
        if not self.request.cache and reading_counts(measured):
            alone |= self._stages(measured.pipeline)
            measured = self._measured(alone, training)
        here = self._circumstances()
        tried = [self._tried(candidate, measured) for candidate in candidates(measured, here)]
        if any(gain is None for _, gain in tried):
            measured = self._measured(alone, self._more(rounds))
        changes = [
            change if gain is None else change._replace(images_s=gain * measured.training)
            for change, gain in tried
        ]
        is_sure = self.is_sure and "" not in self.unsure
        unsure, seconds = self.unsure if is_sure else None, self.turn * _NUM_TURNS
        longer_s = min(4 * seconds, _LONGEST_S) if seconds < _LONGEST_S else 0.0
        return conclude(measured, here, changes, unsure, spread=self.spread, longer_s=longer_s)

    def _more(self, rounds: list[_Timed]) -> _Timed:
        """Train once more, and again until rounds agree; return the agreeing rounds as one."""
        run = functools.partial(_run, self.dataset, self.turn, self.train)
        rounds.append(run())
        training, self.is_sure = self._repeated(rounds, run, self._rate)
        return training

    def _agreed(self, run: Callable[[float], _Timed], name: str = "") -> _Timed:
        """Return rounds of `run` as one, each of half a turn, repeated until rounds agree."""
        part = functools.partial(run, self.turn / 2)
        found, is_sure = self._repeated([part()], part, lambda one: one.rate)
        if not is_sure:
            self.unsure.add(name)
        return found

    def _repeated(
        self, rounds: list[_Timed], run: Callable[[], _Timed], rate: Callable[[_Timed], float]
    ) -> tuple[_Timed, bool]:
        """Run until most rounds agree, or a limit; return their sum, and whether they agree."""
        while True:  # two of six rounds agree by chance on a noisy machine
            near = [one for one in rounds if _agree(rate(one), rate(rounds[-1]))]
            is_sure = len(near) > max(1, len(rounds) / 2) and _agree(*map(rate, rounds[-2:]))
            if is_sure or len(rounds) >= _MOST_ROUNDS:
                break
            rounds.append(run())
        used = near if is_sure else rounds
        rates = [*map(rate, used)]
        self.spread = max(self.spread, max(rates) / min(rates) - 1)
        return functools.reduce(_Timed.plus, used), is_sure

    def _alone(self, batch: Any, training: float) -> dict[str, Any]:
        _rest(self.turn)
        model = self._agreed(lambda seconds: _run(itertools.repeat(batch), seconds, self.train))
        endless = _pipeline(replace(self.request, repeat=True), training * self.turn / _FILL)
        return {
            "model": model.rate,
            "model_cpu_s": model.image_cpu_s,
            "model_on_device": self._on_device(batch),
            "pipeline": self._read(endless),
        }

    def _stages(self, pipeline: float) -> dict[str, Any]:
        endless = replace(self.request, repeat=True)
        plain = replace(endless, augment=None, dtype="uint8")
        decode = pipeline if plain == endless else self._read(load(plain))
        return {"decode": decode, "read": self._read(undecoded(plain, _READ_BLOCK))}

    def _measured(self, alone: dict[str, Any], training: _Timed) -> Measured:
        epoch = epoch_of(training.steps, self.num_steps)
        return Measured(
            waiting=epoch.stall,
            restart=epoch.restart,
            training=self._rate(training),
            training_cpu_s=training.image_cpu_s,
            **alone,
        )

    def _compile(self, batch: Any) -> None:
        """Train on a full and a short last batch, so that the step is compiled for both."""
        self.train(batch)
        size, number = self.request.batch_size or 1, self.subset.epoch_records
        rest = number * (self.request.num_epochs or 0) % size
        if rest and number >= size and not self.request.drop_remainder:
            self.train(tf.nest.map_structure(lambda tensor: tensor[:rest], batch))

    def _on_device(self, batch: Any) -> float | None:
        devices = tf.config.list_logical_devices("GPU")
        if not devices:
            return None
        with tf.device(devices[0].name):
            on_device = tf.nest.map_structure(
                lambda tensor: tensor if tensor.dtype == tf.string else tf.identity(tensor), batch
            )
        return _run(itertools.repeat(on_device), self.turn, self.train).rate

    def _read(self, dataset: Any) -> float:
        _rest(self.turn)
        begun = iter(dataset)
        next(begun)
        return self._agreed(lambda seconds: _run(dataset, seconds, begun=begun)).rate

    def _rate(self, run: _Timed) -> float:
        if self.num_steps is None:
            return run.rate
        seconds = epoch_of(run.steps, self.num_steps).total_s
        number = self.subset.epoch_records * (self.request.num_epochs or 1)
        if self.request.drop_remainder:
            number = self.num_steps * (self.request.batch_size or 1)
        return number / seconds

    def _tried(self, candidate: Candidate, measured: Measured) -> tuple[Change, float | None]:
        """Return a change with its figures, and its gain, or None if its runs did not alternate."""
        number = measured.pipeline * self.turn / _FILL
        restarts = self.num_steps is not None and candidate.trial != "repeat"
        gain, advice = None, candidate.advice
        with _trial(candidate, self.request, self.train, number) as changed:
            begun = iter(changed.dataset)
            changed.train(next(begun))  # fills and compiles
            changed.evict()
            if self.num_steps is None and changed.num_images is None:
                del begun
                run, gain = self._alternated(changed, advice)
            else:
                source, most = None if restarts else begun, changed.num_images
                part = functools.partial(_run, changed.dataset, train=changed.train, begun=source)
                # The files of a cache are read from the disk only once.
                run = self._agreed(part, advice) if most is None else part(self.turn, most=most)
        rate = self._rate(run) if restarts else run.rate
        return Change(advice, candidate.options, rate, run.image_cpu_s), gain

    def _alternated(self, changed: _Changed, name: str) -> tuple[_Timed, float]:
        """Alternate training without and with a change; return its runs as one, and median gain."""
        part = self.turn / _PAIRS
        runs, gains = list[_Timed](), list[float]()
        for _ in range(_PAIRS):
            before = _settled(self.dataset, part, self.train)
            runs.append(_settled(changed.dataset, part, changed.train))
            gains.append(runs[-1].rate / before.rate)
        if not _agree(*(sorted(gains)[1:-1] or gains)):
            self.unsure.add(name)
        return functools.reduce(_Timed.plus, runs), statistics.median(gains)

    def _circumstances(self) -> Circumstances:
        request, disk = self.request, tempfile.gettempdir()
        size = _image_bytes(self.subset, request)
        return Circumstances(
            num_steps=self.num_steps,
            decoded_bytes=None if size is None else size * self.subset.num_records,
            cache=str(request.cache or ""),
            dtype=request.dtype,
            augments=request.augment is not None,
            free_bytes=free_bytes(),
            disk=disk,
            # A mix cannot be cached in a folder.
            free_disk_bytes=0 if self.subset.datasets.mix else shutil.disk_usage(disk).free,
        )


def _run(
    batches: Iterable[Any],
    seconds: float,
    train: _Train = lambda _: None,
    *,
    begun: Iterator[Any] | None = None,
    most: int | None = None,
) -> _Timed:
    """Return the times of training for `seconds`, or longer if there are few steps.

    The run ends after `most` images, if given. It starts with the iterator `begun`, if given.
    """
    watch, steps, num_images = Stopwatch(), list[Times](), 0
    source, is_restart = begun, begun is None
    begin, cpu = time.perf_counter(), time.process_time()
    while True:
        wanted = seconds if len(steps) >= _ENOUGH_STEPS else 2 * seconds
        if time.perf_counter() - begin >= wanted and len(steps) >= _LEAST_STEPS:
            break
        watch.ask()
        source = iter(batches) if source is None else source
        batch = next(source, None)
        if batch is None:
            source, is_restart = None, True
            continue
        watch.drawn(is_restart=is_restart)
        is_restart = False
        train(batch)
        steps.append(watch.done())
        num_images += len(images_of(batch))
        if most is not None and num_images >= most:
            break
    return _Timed(steps, num_images, time.process_time() - cpu)


def _settled(batches: Iterable[Any], seconds: float, train: _Train) -> _Timed:
    """Return the second of two runs of a new iterator; the first one is warm-up.

    Paused iterators first get time to fill their buffers, because this occupies the cores.
    """
    _rest(2 * seconds)
    begun = iter(batches)
    train(next(begun))
    _run((), seconds, train, begun=begun)
    return _run((), seconds, train, begun=begun)


def _rest(most: float) -> None:
    """Wait until the process is idle (buffers are full), at most `most` seconds."""
    end = time.perf_counter() + most
    is_busy = True
    while is_busy and time.perf_counter() < end:
        cpu, begin = time.process_time(), time.perf_counter()
        time.sleep(_REST_S)
        is_busy = time.process_time() - cpu > _AT_REST * (time.perf_counter() - begin)


def _check_step(step: Any, dataset: Any) -> None:
    if not hasattr(step, "train_on_batch"):
        named = parameters(step)
        needed = [
            x for x in (named or {}).values() if x.default is x.empty and x.kind < x.VAR_POSITIONAL
        ]
        if len(needed) > 1:
            what = (
                f"{short_repr(step)} needs {len(needed)} arguments, but a step gets one, the batch"
            )
            raise DatasetError(_WHERE, what, "take images and targets from the batch in it")
        return
    if not getattr(step, "compiled", False):
        raise DatasetError(_WHERE, "the model is not compiled", "call model.compile")
    if not isinstance(dataset.element_spec, tuple):
        what = "batches without a target cannot train a model"
        raise DatasetError(_WHERE, what, "pass a function instead of the model")


@contextmanager
def _train_on(step: Any, batch: Any) -> Iterator[_Train]:
    """Yield a function that trains on a batch and waits for the accelerator.

    At the end, a Keras model has its old weights, optimizer, random seeds and metrics.
    """

    def finished(run: Callable[[Any], Any]) -> _Train:
        def train(batch: Any) -> None:
            run(batch)
            tf.test.experimental.sync_devices()  # a GPU is still busy when the call returns

        return train

    if not hasattr(step, "train_on_batch"):
        yield finished(step)
        return
    step(batch[0][:1], training=False)  # creates the variables
    step.optimizer.build(step.trainable_variables)
    every = (*step.variables, *step.metrics_variables, *step.optimizer.variables)
    before = {id(variable): (variable, variable.numpy()) for variable in every}
    try:
        yield finished(lambda batch: step.train_on_batch(*batch))
    finally:
        step.reset_metrics()  # also metrics that the first step creates
        for variable, value in before.values():
            variable.assign(value)


class _Changed(NamedTuple):
    dataset: Any
    train: _Train
    evict: Callable[[], None] = lambda: None
    """Removes the files of a cache from the page cache."""
    num_images: int | None = None
    """Number of images after which a run ends, for a sample cached in files; otherwise None."""


@contextmanager
def _trial(
    candidate: Candidate, request: Request, train: _Train, num_images: float
) -> Iterator[_Changed]:
    """Yield the pipeline and step of a candidate; a cached sample has about `num_images`."""
    if candidate.trial == "folder":
        with tempfile.TemporaryDirectory(prefix="shardprep-", dir=candidate.options["cache"]) as at:
            cached = cached_sample(_sample(request, num_images), Path(at))
            dataset = make_dataset(cached, replace(request, cache=False, repeat=True))
            yield _Changed(dataset, train, lambda: _evict(Path(at)), cached.subset.num_records)
        return
    dataset = _pipeline(replace(request, **candidate.options), num_images)
    if candidate.trial == "in step":
        yield _Changed(dataset, _finishing(request, train))
    elif candidate.trial == "prefetch":
        (device, *_) = tf.config.list_logical_devices("GPU")
        to_device = tf.data.experimental.prefetch_to_device(device.name)
        yield _Changed(dataset.apply(to_device), train)
    else:
        yield _Changed(dataset, train)


def _pipeline(request: Request, num_images: float) -> Any:
    """Return the pipeline of a request, of a repeated sample if its cache is in memory."""
    sampled = _sample(request, num_images) if request.cache == "memory" else request
    return load(request if sampled == request else replace(sampled, repeat=True))


def _sample(request: Request, num_images: float) -> Request:
    """Return the request for a sample of about `num_images` records, or `request` if all fit."""
    subset = open_request(request)
    least = _SAMPLE_BATCHES * (request.batch_size or 1)
    most = min(num_images, _SAMPLE_BYTES / (_image_bytes(subset, request) or 1))
    parts = int(subset.num_records / max(least, most))
    if parts <= 1:
        return request
    index, readers = request.config.shard_of
    config = replace(
        request.config, num_shards=readers * parts, shard_index=index * parts, input_context=None
    )
    return replace(request, read_config=config)


def _image_bytes(subset: Subset, request: Request) -> int | None:
    size = subset.image_size(request)
    return None if size is None else 3 * size[0] * size[1]


def _finishing(request: Request, train: _Train) -> _Train:
    """Return a step that first applies `augment` and `dtype`, as layers of the model would."""
    schema = open_request(request).schema
    finish = tf.function(Finisher(request, target_of(schema), 0, schema))
    return lambda batch: train(finish(batch, tf.zeros(1, tf.int64)))


def _evict(folder: Path) -> None:
    """Remove the files of a folder from the page cache, so that they are read from the disk."""
    for path in folder.iterdir():
        if path.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
