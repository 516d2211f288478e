"""The runs of `reader.diagnose`."""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import tensorflow as tf

from shardprep.dataset.schema import IMAGE
from shardprep.errors import DatasetError
from shardprep.machine import free_bytes
from shardprep.reader.config import Request
from shardprep.reader.diagnosis.diagnosis import (
    Candidate,
    Change,
    Circumstances,
    Diagnosis,
    Measured,
    candidates,
    conclude,
    reading_counts,
)
from shardprep.reader.diagnosis.experiments import (
    Changed,
    Train,
    check_step,
    image_bytes,
    pipeline,
    train_on,
    trial,
)
from shardprep.reader.diagnosis.timing import Step, Stopwatch, epoch_of
from shardprep.reader.records.open import Subset, open_request
from shardprep.reader.tf.pipeline import load, undecoded

_NUM_TURNS = 10
"""Turns into which `seconds` is divided: two or three for training, one for each part, one for each
trial, and four for a trial that alternates with training."""
_PAIRS = 5
"""Alternations of training with and without a change."""
_LEAST_STEPS, _ENOUGH_STEPS = 3, 12
"""A run has at least 3 steps, and goes on up to twice its time for 12."""
_FILL = 4
"""About how many times longer an image takes to fill a cache than to pass a pipeline."""
_REST_S = 0.01
"""Seconds between two looks at the processor time of an idle process."""
_AT_REST = 0.2
"""Processor seconds per second below which the process is idle."""
_READ_BLOCK = 256
_WHERE = "reader.diagnose"


def diagnose(dataset: Any, step: Any, seconds: float) -> Diagnosis:
    """Return the diagnosis of a dataset of `reader.load`; see `reader.diagnose`."""
    request = getattr(dataset, "loaded", None)
    if not isinstance(request, Request):
        raise DatasetError(
            _WHERE,
            "this dataset is not the result of reader.load",
            "pass that result; give functions that you map over it to load as augment",
        )
    if not request.batch_size:
        raise DatasetError(_WHERE, "the dataset yields single images", "give load a batch_size")
    if request.config.pad_batches:
        raise DatasetError(_WHERE, "pad_batches is for evaluation", "pass the dataset of training")
    check_step(_WHERE, step, dataset)
    subset = open_request(request)
    begun = iter(dataset)  # fills a cache
    batch = next(begun, None)
    if batch is None:
        raise DatasetError(_WHERE, "the dataset has no batch", "use a smaller batch_size")
    with train_on(step, batch) as train:
        turn = seconds / _NUM_TURNS
        return _Measurement(dataset, request, subset, train, turn).diagnosis(begun, batch)


class _Timed(NamedTuple):
    """Measurements of a run."""

    steps: list[Step]
    num_images: int
    cpu_s: float
    """Processor seconds of this process."""

    def plus(self, other: _Timed) -> _Timed:
        """Return both runs as one."""
        return _Timed(
            self.steps + other.steps,
            self.num_images + other.num_images,
            self.cpu_s + other.cpu_s,
        )

    @property
    def rate(self) -> float:
        """Images per second between restarts."""
        return self.num_images / len(self.steps) / epoch_of(self.steps, None).total_s

    @property
    def image_cpu_s(self) -> float:
        """Processor seconds per image."""
        return self.cpu_s / self.num_images


class _Measurement:
    """The runs of one diagnosis, each of `turn` seconds."""

    def __init__(
        self, dataset: Any, request: Request, subset: Subset, train: Train, turn: float
    ) -> None:
        self.dataset = dataset
        self.request = request
        self.subset = subset
        self.train = train
        self.turn = turn
        number = None if request.num_epochs is None else subset.epoch_records * request.num_epochs
        size = request.batch_size or 1
        cut = 0 if request.drop_remainder else size - 1
        self.num_steps = None if number is None else (number + cut) // size

    def diagnosis(self, begun: Iterator[Any], batch: Any) -> Diagnosis:
        """Return the diagnosis; `begun` is an iterator of the dataset, `batch` its first batch.

        Training is measured several times, before and between other runs, because the load of the
        machine changes by the second. For the same reason, a change of an endless dataset
        alternates with training, and its gain is the median of the gains. The gain of any other
        change is relative to all turns of training, one of which comes after the trials.
        """
        self._compile(batch)
        training = _run(self.dataset, self.turn, self.train, begun=begun)
        measured = self._measured(batch, training.rate)
        training = training.plus(_run(self.dataset, self.turn, self.train))
        measured = self._trained(measured, training)
        if not self.request.cache and reading_counts(measured):
            measured = self._stages(measured)
        here = self._circumstances()
        tried = [self._tried(candidate, measured) for candidate in candidates(measured, here)]
        if any(gain is None for _, gain in tried):
            training = training.plus(_run(self.dataset, self.turn, self.train))
        measured = self._trained(measured, training)
        changes = [
            change if gain is None else change._replace(images_s=gain * measured.training)
            for change, gain in tried
        ]
        return conclude(measured, here, changes)

    def _measured(self, batch: Any, training: float) -> Measured:
        _rest(self.turn)
        model = _run(itertools.repeat(batch), self.turn, self.train)
        endless = pipeline(replace(self.request, repeat=True), training * self.turn / _FILL)
        return Measured(
            waiting=0.0,
            restart=0.0,
            training=training,
            training_cpu_s=0.0,
            model=model.rate,
            model_cpu_s=model.image_cpu_s,
            model_on_device=self._on_device(batch),
            pipeline=self._alone(endless),
        )

    def _trained(self, measured: Measured, training: _Timed) -> Measured:
        epoch = epoch_of(training.steps, self.num_steps)
        return replace(
            measured,
            waiting=epoch.stall,
            restart=epoch.restart,
            training=self._rate(training),
            training_cpu_s=training.image_cpu_s,
        )

    def _stages(self, measured: Measured) -> Measured:
        """Add the rates of the pipeline up to each stage."""
        endless = replace(self.request, repeat=True)
        plain = replace(endless, augment=None, dtype="uint8")
        decode = measured.pipeline if plain == endless else self._alone(load(plain))
        return replace(measured, decode=decode, read=self._alone(undecoded(plain, _READ_BLOCK)))

    def _compile(self, batch: Any) -> None:
        """Train on a full batch and on one of the size of the last batch, so that both compile."""
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
            on_device = tf.nest.map_structure(_copied, batch)
        return _run(itertools.repeat(on_device), self.turn, self.train).rate

    def _alone(self, dataset: Any) -> float:
        """Return the rate of an endless pipeline without training."""
        _rest(self.turn)
        begun = iter(dataset)
        next(begun)
        return _run(dataset, self.turn, begun=begun).rate

    def _rate(self, run: _Timed) -> float:
        if self.num_steps is None:
            return run.rate
        seconds = epoch_of(run.steps, self.num_steps).total_s
        number = self.subset.epoch_records * (self.request.num_epochs or 1)
        if self.request.drop_remainder:
            number = self.num_steps * (self.request.batch_size or 1)
        return number / seconds

    def _tried(self, candidate: Candidate, measured: Measured) -> tuple[Change, float | None]:
        """Return the figures of a change, and its gain if it alternated with training."""
        number = measured.pipeline * self.turn / _FILL
        restarts = self.num_steps is not None and candidate.trial != "repeat"
        gain = None
        with trial(candidate, self.request, self.train, number) as changed:
            begun = iter(changed.dataset)
            changed.train(next(begun))  # fills and compiles
            changed.evict()
            if self.num_steps is None and changed.num_images is None:
                del begun
                run, gain = self._alternated(changed)
            else:
                source, most = None if restarts else begun, changed.num_images
                run = _run(changed.dataset, self.turn, changed.train, begun=source, most=most)
        rate = self._rate(run) if restarts else run.rate
        what = candidate.name, candidate.advice, candidate.options
        return Change(*what, rate, run.image_cpu_s), gain

    def _alternated(self, changed: Changed) -> tuple[_Timed, float]:
        """Return a run with a change, and its median gain over training that alternated with it."""
        part = self.turn / _PAIRS
        runs, gains = list[_Timed](), list[float]()
        for _ in range(_PAIRS):
            before = _settled(self.dataset, part, self.train)
            runs.append(_settled(changed.dataset, part, changed.train))
            gains.append(runs[-1].rate / before.rate)
        return reduce(_Timed.plus, runs), statistics.median(gains)

    def _circumstances(self) -> Circumstances:
        request, disk = self.request, tempfile.gettempdir()
        size = image_bytes(self.subset, request)
        return Circumstances(
            num_steps=self.num_steps,
            decoded_bytes=None if size is None else size * self.subset.num_records,
            cache=str(request.cache or ""),
            dtype=request.dtype,
            augments=request.augment is not None,
            free_bytes=free_bytes(),
            disk=disk,
            free_disk_bytes=shutil.disk_usage(disk).free,
        )


def _run(
    batches: Iterable[Any],
    seconds: float,
    train: Train = lambda _: None,
    *,
    begun: Iterator[Any] | None = None,
    most: int | None = None,
) -> _Timed:
    """Draw batches, epoch after epoch, and train on each.

    Args:
        batches: a dataset.
        seconds: duration; at least 3 batches are drawn.
        train: called with each batch.
        begun: an iterator to continue, of which the first batch has been drawn.
        most: stop after this number of images.

    """
    watch, steps, num_images = Stopwatch(), list[Step](), 0
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
        num_images += _num_images(batch)
        if most is not None and num_images >= most:
            break
    return _Timed(steps, num_images, time.process_time() - cpu)


def _settled(batches: Iterable[Any], seconds: float, train: Train) -> _Timed:
    """Return the run of a new iterator, after a run that does not count.

    A paused iterator has full buffers, and one that is being paused competes for the cores while it
    fills them.
    """
    _rest(2 * seconds)
    begun = iter(batches)
    train(next(begun))
    _run((), seconds, train, begun=begun)
    return _run((), seconds, train, begun=begun)


def _rest(most: float) -> None:
    """Wait until no pipeline prepares batches any more, at most `most` seconds."""
    end = time.perf_counter() + most
    is_busy = True
    while is_busy and time.perf_counter() < end:
        cpu, begin = time.process_time(), time.perf_counter()
        time.sleep(_REST_S)
        is_busy = time.process_time() - cpu > _AT_REST * (time.perf_counter() - begin)


def _num_images(batch: Any) -> int:
    images = batch[IMAGE] if isinstance(batch, dict) else batch
    return len(images[0] if isinstance(images, tuple) else images)


def _copied(tensor: Any) -> Any:
    return tensor if tensor.dtype == tf.string else tf.identity(tensor)
