"""Measure what limits the speed of training, and say it in one sentence.

A round has up to six runs: training unchanged, the model alone on one batch, the same batch in the
memory of a GPU, the pipeline alone, the pipeline without `augment` and `dtype`, and the records
alone. The load of a machine changes within seconds, so rounds follow each other until two in a row
agree.

The cost of a stage is the time per image that it adds. The largest of restarts, pipeline and model
limits training, and in it the largest stage. Only runs of one part alone count for that: where
model and pipeline share processors, each slows the other down, so a fast model seems to be slow
while training, and little time is spent waiting for a slow pipeline. Training time that is more
than the sum of restarts, pipeline and model is contention, with each other or other programs.

The advice is a change that usually helps. It is not measured: in a few seconds, the load of the
machine may vary by more than the gain.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.machine import free_bytes
from shardprep.reader.augment.compose import Compose
from shardprep.reader.augment.geometry import Flip, RandomResizedCrop
from shardprep.reader.config import Request
from shardprep.reader.diagnosis.steps import (
    RESTART_COUNTS,
    Stopwatch,
    Times,
    epoch_of,
    images_of,
    restart_advice,
)
from shardprep.reader.tf.image_cache import decoded_bytes
from shardprep.reader.tf.pipeline import Source, make_dataset, undecoded
from shardprep.reader.validators import parameters, short_repr

Bound = Literal["restart", "read", "decode", "augment", "transfer", "model", "contention"]

_NAMES: dict[Bound, str] = {
    "restart": "restarts between epochs",
    "read": "reading",
    "decode": "decoding",
    "augment": "augmentation",
    "transfer": "the transfer to the device",
    "model": "the model",
    "contention": "contention on the processors",
}
_GROUPS: dict[str, tuple[Bound, ...]] = {
    "restarts between epochs": ("restart",),
    "the pipeline": ("read", "decode", "augment"),
    "the model": ("transfer", "model"),
    "contention on the processors": ("contention",),
}
"""Stages that follow each other. Groups may run at the same time."""
_AGREE = 1.1
"""Largest ratio of two measurements of one speed that agree, and of two costs that are close."""
_LEAST_ROUNDS, _MOST_RUNS = 2, 12
"""Minimum number of rounds, and number of runs (about three rounds) that fit in `seconds`."""
_LEAST_STEPS, _ENOUGH_STEPS = 3, 12
"""Minimum steps of a run, and number of steps below which a run takes up to twice its time."""
_READ_BLOCK = 256
_FITS = 0.5
"""Largest share of the free memory or disk that an advised cache fills."""
_WHERE = "reader.diagnose"

_Train = Callable[[Any], None]
"""Trains on a batch, and returns when the accelerator has finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of the rounds that agree, or of all rounds. Rates are in images per second."""

    waiting: float
    """Share of the training time spent waiting for batches, 0 to 1."""
    restart: float
    """Share of the time spent waiting for first batches of epochs, 0 to 1; a part of `waiting`."""
    training: float
    """Rate of training, including restarts and waiting."""
    model: float
    """Rate of steps on the same batch in host memory, without the pipeline."""
    model_on_device: float | None = None
    """Like `model`, with the batch in the memory of a GPU; None without a GPU."""
    pipeline: float
    """Rate of the pipeline without training and restarts."""
    decode: float | None = None
    """Rate of the pipeline without `augment` and `dtype`; None if the pipeline does not limit."""
    read: float | None = None
    """Rate of reading records without decoding; None as for `decode`, and with a cache."""

    @property
    def most(self) -> float:
        """Maximum rate that training can reach."""
        return max(min(self.pipeline, self.model), self.training)

    @property
    def costs(self) -> dict[Bound, float]:
        """Seconds per image of each stage. Unmeasured stages are part of "decode" and "model"."""
        whole, model = 1 / self.pipeline, 1 / self.model
        decoded = whole if self.decode is None else 1 / self.decode
        cached = 0.0 if self.decode is None else decoded  # a cache is only read
        read = cached if self.read is None else 1 / self.read
        on_device = model if self.model_on_device is None else 1 / self.model_on_device
        return {
            "restart": self.restart / self.training,
            "read": read,
            "decode": decoded - read,
            "augment": whole - decoded,
            "transfer": model - on_device,
            "model": on_device,
            "contention": max(0.0, (1 - self.restart) / self.training - whole - model),
        }

    @property
    def pipeline_limits(self) -> bool:
        """Whether the pipeline costs more than the model and more than restarts."""
        return 1 / self.pipeline > max(1 / self.model, self.restart / self.training)

    @property
    def share_cores(self) -> bool:
        """Whether model and pipeline share cores: training is slower than each of them alone."""
        return _AGREE * self.training < min(self.model, self.pipeline)

    @property
    def bound(self) -> Bound:
        """The stage that limits training: the most costly stage of the most costly group."""
        return self._ranked()[1][0]

    def rival(self, margin: float) -> str | None:
        """Return the stage or group whose cost times `margin` reaches the bound's, or None."""
        costs = self.costs
        (first, second, *_), stages = self._ranked()
        if len(stages) > 1 and costs[stages[0]] <= margin * costs[stages[1]]:
            return _NAMES[stages[1]]
        return second if self._cost(first) <= margin * self._cost(second) else None

    def _cost(self, group: str) -> float:
        return sum(self.costs[stage] for stage in _GROUPS[group])

    def _ranked(self) -> tuple[list[str], list[Bound]]:
        """Return the groups, and the stages of the first one, each with the largest cost first."""
        groups = sorted(_GROUPS, key=self._cost, reverse=True)
        costs = self.costs
        return groups, sorted(_GROUPS[groups[0]], key=lambda stage: -costs[stage])


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What limits the speed of training, and what to try. `str()` is a sentence."""

    bound: Bound
    measured: Measured
    advice: str
    """A change to try, or "" if no change of reading helps."""
    doubt: str
    """Why the bound is not sure, or "": it differs between rounds, or costs are too close."""
    spread: float
    """Largest difference between rounds in the speed of training or in its limit, as a share."""

    @property
    def is_sure(self) -> bool:
        """Whether the bound clearly costs more than all other stages."""
        return not self.doubt

    def __str__(self) -> str:
        verb = "limit" if self.bound == "restart" else "limits"
        most = f"{_NAMES[self.bound]} {verb} you: at most {self.measured.most:,.0f} images/s"
        limit = f"{most}, you get {self.measured.training:,.0f}"
        if 1 + self.spread > _AGREE:
            limit += f" (speeds vary by {self.spread:.0%} between rounds)"
        if self.doubt:
            limit = (
                f"probably {limit}; not sure, because {self.doubt}: repeat with more seconds and"
            )
            limit += " without other work on this machine"
        return f"{limit}; " + (
            f"try {self.advice}" if self.advice else "no change of reading helps"
        )

    __repr__ = __str__


def conclude(rounds: Sequence[Measured], advice: Callable[[Bound, Measured], str]) -> Diagnosis:
    """Return the diagnosis: of the last two rounds if these agree, otherwise of all rounds."""
    used = rounds[-_LEAST_ROUNDS:] if agree(rounds) else rounds
    figures = dict[str, Any]()
    for field in fields(Measured):
        values = [getattr(one, field.name) for one in used]
        known = [value for value in values if value is not None]
        figures[field.name] = statistics.median(known) if known else None
    measured, spread = Measured(**figures), _spread(used)
    rival, doubt = measured.rival(max(_AGREE, 1 + spread)), ""
    if rival:
        doubt = f"{rival} cost{'' if rival.startswith('restarts') else 's'} almost as much"
    if {one.bound for one in used} != {measured.bound}:
        doubt = "the largest cost differs between rounds"
    return Diagnosis(measured.bound, measured, advice(measured.bound, measured), doubt, spread)


def agree(rounds: Sequence[Measured]) -> bool:
    """Return True if the last two rounds have the same bound and about the same speeds."""
    last = rounds[-_LEAST_ROUNDS:]
    if len(last) < _LEAST_ROUNDS or len({one.bound for one in last}) > 1:
        return False
    return 1 + _spread(last) <= _AGREE


def _spread(rounds: Sequence[Measured]) -> float:
    """Return the largest difference between rounds in a speed that `str` shows, as a share.

    Counts also by how much training was faster than the pipeline or the model alone, which means
    that the load changed within a round.
    """
    ratios = [one.training / min(one.pipeline, one.model) for one in rounds]
    speeds = [one.training for one in rounds], [one.most for one in rounds]
    ratios += [max(rates) / min(rates) for rates in speeds]
    return max(1.0, *ratios) - 1


def diagnose(dataset: Any, step: Any, seconds: float) -> Diagnosis:
    """Return the diagnosis of a dataset from `reader.load`; see `reader.diagnose`."""
    if not hasattr(dataset, "loaded"):
        hint = "pass the result of load itself, and mapped functions as its augment"
        hint += "; in a loop of PyTorch, time next(batches): its share of an epoch is the stall"
        raise DatasetError(_WHERE, "this dataset is not the result of reader.load", hint)
    source, request = dataset.loaded
    if not request.batch_size:
        raise DatasetError(_WHERE, "the dataset yields single images", "give load a batch_size")
    if request.config.pad_batches:
        what = "the dataset was loaded with pad_batches=True, which is for evaluation"
        raise DatasetError(_WHERE, what, "pass the training dataset")
    _check_step(step, dataset)
    batch = next(iter(dataset), None)
    if batch is None:
        raise DatasetError(_WHERE, "the dataset has no batch", "use a smaller batch_size")
    num_steps = _num_steps(source, request)
    with _train_on(step, batch) as train:
        rounds, begin = list[Measured](), time.perf_counter()
        for measured in _rounds(dataset, train, batch, num_steps, seconds):
            rounds.append(measured)
            is_over = time.perf_counter() - begin >= seconds
            if agree(rounds) or (is_over and len(rounds) >= _LEAST_ROUNDS):
                break
    return conclude(rounds, partial(advice_for, source, request, num_steps))


def _num_steps(source: Source, request: Request) -> int | None:
    """Return the number of steps of an iteration, or None if the dataset is endless."""
    if request.num_epochs is None:
        return None
    full, rest = divmod(source.subset.epoch_records * request.num_epochs, request.batch_size or 1)
    return full + (rest > 0 and not request.drop_remainder)


def _rounds(
    dataset: Any, train: _Train, batch: Any, num_steps: int | None, seconds: float
) -> Iterator[Measured]:
    """Yield the figures of each round, without end."""
    source, request = dataset.loaded
    endless = replace(request, repeat=True)
    plain = replace(endless, augment=None, dtype="uint8")
    pipeline = make_dataset(source, endless)
    undressed = pipeline if plain == endless else make_dataset(source, plain)
    encoded = None if request.cache else undecoded(source, plain, _READ_BLOCK)
    on_device = _on_device(batch)
    run = partial(_run, seconds / _MOST_RUNS)
    train(batch)  # compiles the step, also for the short last batch of an epoch
    rest = source.subset.epoch_records * (request.num_epochs or 0) % request.batch_size
    if rest and not request.drop_remainder:
        train(tf.nest.map_structure(lambda tensor: tensor[:rest], batch))
    while True:
        training, rate = run(dataset, train, num_steps)
        measured = Measured(
            waiting=training.stall,
            restart=training.restart,
            training=rate,
            model=run(itertools.repeat(batch), train)[1],
            model_on_device=None
            if on_device is None
            else run(itertools.repeat(on_device), train)[1],
            pipeline=run(pipeline)[1],
        )
        if measured.pipeline_limits:
            decode = measured.pipeline if undressed is pipeline else run(undressed)[1]
            read = None if encoded is None else run(encoded)[1]
            measured = replace(measured, decode=decode, read=read)
        yield measured


def _run(
    seconds: float,
    batches: Iterable[Any],
    train: _Train = lambda _: None,
    num_steps: int | None = None,
) -> tuple[Times, float]:
    """Return the times of an epoch (of a step if `num_steps` is None), and images per second.

    The run takes `seconds` from the first batch on. It takes longer if it would have few steps,
    because batches that were prepared with the first one do not show the speed of the pipeline.
    """
    watch, steps, num_images, source = Stopwatch(), list[Times](), 0, None
    begin = 0.0
    while True:
        wanted = seconds if len(steps) >= _ENOUGH_STEPS else 2 * seconds
        if len(steps) >= _LEAST_STEPS and time.perf_counter() - begin >= wanted:
            break
        watch.ask()
        is_restart = source is None
        source = iter(batches) if source is None else source
        batch = next(source, None)
        if batch is None:
            source = None
            continue
        watch.drawn(is_restart=is_restart)
        begin = begin or time.perf_counter()
        train(batch)
        steps.append(watch.done())
        num_images += len(images_of(batch))
    times = epoch_of(steps, num_steps)
    return times, num_images / len(steps) * (num_steps or 1) / times.total_s


def _on_device(batch: Any) -> Any:
    """Return the batch in the memory of a GPU, or None without a GPU."""
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return None
    with tf.device(devices[0].name):
        return tf.nest.map_structure(
            lambda tensor: tensor if tensor.dtype == tf.string else tf.identity(tensor), batch
        )


def advice_for(
    source: Source, request: Request, num_steps: int | None, bound: Bound, measured: Measured
) -> str:
    """Return a change to try if `bound` limits training, or "" if no change of reading helps."""
    restarts_count = bound == "model" and measured.restart >= RESTART_COUNTS
    if measured.share_cores:  # what the pipeline costs slows the model down
        restarts_count &= measured.costs["restart"] > 1 / measured.pipeline
    if num_steps is not None and (bound == "restart" or restarts_count):
        return restart_advice(num_steps)
    if bound == "transfer":
        return "dataset.apply(tf.data.experimental.prefetch_to_device('/GPU:0'))"
    if bound == "augment" and request.augment is not None:
        on_device = measured.model_on_device is not None
        layers = "to augment in the first layers of the model, on its device"
        return _crop_advice(request) or (layers if on_device else "fewer or cheaper ops in augment")
    if bound == "augment":
        return "dtype='uint8' with a Rescaling layer in the model"
    if bound == "model" and not measured.share_cores:
        return ""
    smaller = "smaller stored images (shardprep repack --size)"
    is_slow_disk = bound == "read" and request.cache != "memory"
    other = "a copy of the dataset on a faster disk" if is_slow_disk else smaller
    return _cache_advice(source, request) or other


def _crop_advice(request: Request) -> str:
    """Return the crop of `augment`, and the flip after it, as an option of `load`, or ""."""
    ops = request.augment.ops if isinstance(request.augment, Compose) else ()
    is_sized = request.config.image_size or request.random_resized_crop or request.center_crop
    if is_sized or not ops or not isinstance(ops[0], RandomResizedCrop):
        return ""
    crop, flip, replaced = ops[0], "", "RandomResizedCrop"
    if len(ops) > 1 and isinstance(ops[1], Flip) and not ops[1].vertical:
        flip, replaced = f", flip={ops[1].horizontal}", f"{replaced} and Flip"
    option = f"random_resized_crop=reader.RandomResizedCrop({crop.size}, scale={crop.scale}{flip})"
    return f"{option} in load instead of {replaced} in augment"


def _cache_advice(source: Source, request: Request) -> str:
    """Return a cache option with room for the decoded images, as text; "" if none fits."""
    needed, disk = decoded_bytes(source.subset, request), tempfile.gettempdir()
    if needed is None or request.cache == "memory":
        return ""
    places = {"memory": free_bytes()}
    if not (request.cache or source.subset.datasets.mix):
        places[disk] = shutil.disk_usage(disk).free
    for place, free in places.items():
        if needed < _FITS * free:
            return f"cache='{place}' ({needed / 1e9:.2f} GB of {free / 1e9:.2f} GB that are free)"
    return ""


def _check_step(step: Any, dataset: Any) -> None:
    if not hasattr(step, "train_on_batch"):
        named = parameters(step)
        needed = [
            x for x in (named or {}).values() if x.default is x.empty and x.kind < x.VAR_POSITIONAL
        ]
        if len(needed) > 1:
            what = f"{short_repr(step)} needs {len(needed)} arguments, but a step gets the batch"
            raise DatasetError(_WHERE, what, "take images and targets from the batch in the step")
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
