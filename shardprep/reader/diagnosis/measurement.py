"""The runs of `reader.diagnose`; a model is put back as it was."""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from shardprep.dataset.schema import IMAGE
from shardprep.errors import DatasetError
from shardprep.machine import free_bytes
from shardprep.reader.config import Request
from shardprep.reader.diagnosis.analysis import Circumstances, candidates, conclude, reading_counts
from shardprep.reader.diagnosis.diagnosis import Change, Diagnosis, Measured
from shardprep.reader.diagnosis.experiments import image_bytes, pipeline, trial
from shardprep.reader.diagnosis.timing import Step, Stopwatch, epoch_of
from shardprep.reader.diagnosis.train_step import as_step, check_step
from shardprep.reader.records.open import open_request
from shardprep.reader.tf.parallelism import ahead, untuned
from shardprep.reader.tf.pipeline import load
from shardprep.reader.tf.python_calls import one_pipeline
from shardprep.reader.tf.records import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardprep.reader.diagnosis.analysis import Candidate
    from shardprep.reader.diagnosis.experiments import Tried
    from shardprep.reader.diagnosis.train_step import Take
    from shardprep.reader.records.open import Subset

_NUM_TURNS = 10
"""Turns that the seconds are for: two of training or three, one of each part and one of each trial;
four of a trial that training is measured in turn with."""
_PAIRS = 5
"""Times that a change and training without it are measured in turn."""
_LEAST_STEPS, _ENOUGH_STEPS = 3, 12
"""Steps of a run: at least so many, and in up to twice its time as many as tell it well."""
_FILL = 4
"""Times that an image takes longer to get into a cache than through a pipeline, about."""
_REST_S = 0.01
"""Seconds of a nap, after which is looked whether the process rests."""
_AT_REST = 0.2
"""Processor seconds a second of a process that rests, of one core."""
_READ_BLOCK = 256
_WHERE = "reader.diagnose"


def diagnose(dataset: Any, step: Any, seconds: float) -> Diagnosis:
    """Return the diagnosis of a dataset of `reader.load`, as `reader.diagnose` says."""
    request = getattr(dataset, "loaded", None)
    if not isinstance(request, Request):
        raise DatasetError(
            _WHERE,
            "this is not what reader.load returned",
            "pass that; what you map over it can be given to load as augment",
        )
    if not request.batch_size:
        raise DatasetError(_WHERE, "the dataset yields single images", "give load a batch_size")
    if request.config.pad_batches:
        raise DatasetError(
            _WHERE, "pad_batches is for evaluation", "pass the dataset that is trained on"
        )
    check_step(_WHERE, step, dataset)
    subset = open_request(request)
    begun = iter(dataset)  # fills a cache
    batch = next(begun, None)
    if batch is None:
        raise DatasetError(_WHERE, "the dataset has no batch", "use a smaller batch_size")
    with as_step(step, batch) as take:
        return _Runs(dataset, request, subset, take, seconds / _NUM_TURNS).diagnosis(begun, batch)


class _Run(NamedTuple):
    """Measurements of some time of a run."""

    steps: list[Step]
    num_images: int
    cpu_s: float
    """Processor seconds of this process."""

    def plus(self, other: _Run) -> _Run:
        """Return this run and another as one."""
        return _Run(
            self.steps + other.steps,
            self.num_images + other.num_images,
            self.cpu_s + other.cpu_s,
        )

    @property
    def rate(self) -> float:
        """Images a second between restarts."""
        return self.num_images / len(self.steps) / epoch_of(self.steps, None).total_s

    @property
    def image_cpu_s(self) -> float:
        """Processor seconds of an image."""
        return self.cpu_s / self.num_images


class _Runs:
    """The runs of one diagnosis, each of a turn of so many seconds."""

    def __init__(
        self, dataset: Any, request: Request, subset: Subset, take: Take, turn: float
    ) -> None:
        self.dataset = dataset
        self.request = request
        self.subset = subset
        self.take = take
        self.turn = turn
        number = None if request.num_epochs is None else subset.epoch_records * request.num_epochs
        size = request.batch_size or 1
        cut = 0 if request.drop_remainder else size - 1
        self.num_steps = None if number is None else (number + cut) // size

    def diagnosis(self, begun: Iterator[Any], batch: Any) -> Diagnosis:
        """Return the diagnosis; `begun` is an iterator of the dataset, `batch` its first.

        Training has its turns before the others and between them: what else the machine does
        changes by the second. For the same reason a change of a dataset without an end is measured
        in turn with training, and its gain is the median of the gains; of any other change it is
        that over all of training, which then has a turn after the trials as well.
        """
        self._compile(batch)
        training = _run(self.dataset, self.turn, self.take, begun=begun)
        found = self._measured(batch, training.rate)
        training = training.plus(_run(self.dataset, self.turn, self.take))
        found = self._trained(found, training)
        if not self.request.cache and reading_counts(found):
            found = self._stages(found)
        here = self._circumstances()
        tried = [self._tried(one, found) for one in candidates(found, here)]
        if any(gain is None for _, gain in tried):
            training = training.plus(_run(self.dataset, self.turn, self.take))
        found = self._trained(found, training)
        changes = [
            change if gain is None else change._replace(images_s=gain * found.training)
            for change, gain in tried
        ]
        return conclude(found, here, changes)

    def _measured(self, batch: Any, training: float) -> Measured:
        """Return the figures of model and pipeline, each alone."""
        _rest(self.turn)
        model = _run(itertools.repeat(batch), self.turn, self.take)
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

    def _trained(self, found: Measured, training: _Run) -> Measured:
        """Return figures with those of training."""
        epoch = epoch_of(training.steps, self.num_steps)
        return replace(
            found,
            waiting=epoch.stall,
            restart=epoch.restart,
            training=self._rate(training),
            training_cpu_s=training.image_cpu_s,
        )

    def _stages(self, found: Measured) -> Measured:
        """Return figures with those of the pipeline up to each stage."""
        endless = replace(self.request, repeat=True)
        plain = replace(endless, augment=None, dtype="uint8")
        decode = found.pipeline if plain == endless else self._alone(load(plain))
        return replace(found, decode=decode, read=self._alone(_records(plain)))

    def _compile(self, batch: Any) -> None:
        """Train on a batch, and on one of the size of a last batch that is not full."""
        self.take(batch)
        size, number = self.request.batch_size or 1, self.subset.epoch_records
        rest = number * (self.request.num_epochs or 0) % size
        if rest and number >= size and not self.request.drop_remainder:
            self.take(tf.nest.map_structure(lambda one: one[:rest], batch))

    def _on_device(self, batch: Any) -> float | None:
        devices = tf.config.list_logical_devices("GPU")
        if not devices:
            return None
        with tf.device(devices[0].name):
            there = tf.nest.map_structure(_moved, batch)
        return _run(itertools.repeat(there), self.turn, self.take).rate

    def _alone(self, dataset: Any) -> float:
        """Return the rate of a pipeline without end and without a step."""
        _rest(self.turn)
        begun = iter(dataset)
        next(begun)
        return _run(dataset, self.turn, begun=begun).rate

    def _rate(self, run: _Run) -> float:
        """Return the images a second of epochs, restarts included."""
        if self.num_steps is None:
            return run.rate
        seconds = epoch_of(run.steps, self.num_steps).total_s
        number = self.subset.epoch_records * (self.request.num_epochs or 1)
        if self.request.drop_remainder:
            number = self.num_steps * (self.request.batch_size or 1)
        return number / seconds

    def _tried(self, candidate: Candidate, found: Measured) -> tuple[Change, float | None]:
        """Return the figures of a change in training, and its gain where that was measured."""
        number = found.pipeline * self.turn / _FILL
        restarts = self.num_steps is not None and candidate.trial != "repeat"
        gain = None
        with trial(candidate, self.request, self.take, number) as tried:
            begun = iter(tried.dataset)
            tried.take(next(begun))  # fills and compiles
            tried.evict()
            if self.num_steps is None and tried.num_images is None:
                del begun
                run, gain = self._in_turn(tried)
            else:
                source, most = None if restarts else begun, tried.num_images
                run = _run(tried.dataset, self.turn, tried.take, begun=source, most=most)
        rate = self._rate(run) if restarts else run.rate
        what = candidate.name, candidate.advice, candidate.options
        return Change(*what, rate, run.image_cpu_s), gain

    def _in_turn(self, tried: Tried) -> tuple[_Run, float]:
        """Return a run with a change, and its gain over training in turn with it."""
        part = self.turn / _PAIRS
        runs, gains = list[_Run](), list[float]()
        for _ in range(_PAIRS):
            before = _settled(self.dataset, part, self.take)
            runs.append(_settled(tried.dataset, part, tried.take))
            gains.append(runs[-1].rate / before.rate)
        return reduce(_Run.plus, runs), statistics.median(gains)

    def _circumstances(self) -> Circumstances:
        request, disk = self.request, tempfile.gettempdir()
        each = image_bytes(self.subset, request)
        return Circumstances(
            num_steps=self.num_steps,
            decoded_bytes=None if each is None else each * self.subset.num_records,
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
    take: Take = lambda _: None,
    *,
    begun: Iterator[Any] | None = None,
    most: int | None = None,
) -> _Run:
    """Draw batches for so many seconds, epoch after epoch, and do something with each.

    Args:
        batches: a dataset.
        seconds: time of it, at least 3 batches.
        take: called with each batch.
        begun: an iterator of it, of which the first batch has been drawn, to go on with.
        most: images to stop after.

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
        take(batch)
        steps.append(watch.done())
        num_images += _num_images(batch)
        if most is not None and num_images >= most:
            break
    return _Run(steps, num_images, time.process_time() - cpu)


def _settled(batches: Iterable[Any], seconds: float, take: Take) -> _Run:
    """Return the run of an iterator of its own, of which the first seconds do not count.

    An iterator that has paused has full buffers, and one that pauses fills them beside the other.
    """
    _rest(2 * seconds)
    begun = iter(batches)
    take(next(begun))
    _run((), seconds, take, begun=begun)
    return _run((), seconds, take, begun=begun)


def _rest(most: float) -> None:
    """Wait, at most so many seconds, until no pipeline prepares batches for later any more."""
    end = time.perf_counter() + most
    is_busy = True
    while is_busy and time.perf_counter() < end:
        cpu, begin = time.process_time(), time.perf_counter()
        time.sleep(_REST_S)
        is_busy = time.process_time() - cpu > _AT_REST * (time.perf_counter() - begin)


@one_pipeline()
def _records(request: Request) -> Any:
    """Return the records in batches, read as the pipeline reads them, undecoded."""
    subset = open_request(request)
    reading = Reading(subset, subset.order(request), request)
    read = reading.batches(_READ_BLOCK).map(lambda data, _: data)
    return ahead(read.with_options(untuned()), request)


def _num_images(batch: Any) -> int:
    images = batch[IMAGE] if isinstance(batch, dict) else batch
    return len(images[0] if isinstance(images, tuple) else images)


def _moved(tensor: Any) -> Any:
    return tensor if tensor.dtype == tf.string else tf.identity(tensor)
