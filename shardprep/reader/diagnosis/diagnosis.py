"""Conclude from measured times what limits the speed of training, and which change helps.

The time of an epoch has three parts: the restart, until a new iterator yields its first batch; the
wait for each later batch; and the work, from each batch to the end of its step.

The pipeline has stages. The cost of a stage is the time per image that it adds if the pipeline runs
only up to this stage. A pipeline takes as long as its slowest stage, or if all cores are busy, as
long as all stages together. So the gain of a change cannot be computed. It is measured, and the
advice is always a change that was tried.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from shardprep.dataset.schema import IMAGE

Bound = Literal["restart", "read", "decode", "augment", "transfer", "model"]
Trial = Literal["memory", "folder", "in step", "repeat", "prefetch"]

STALL_COUNTS = 0.1
"""Smallest share of the time, 0 to 1, at which waiting counts; below, the pipeline keeps up."""
RESTART_COUNTS = 0.02
"""Smallest share of the time, 0 to 1, at which restarts are reported."""
_SETTLING_SHARE, _READY, _LEAST = 1 / 3, 5, 3
"""Steps after a restart that do not count as typical: the first third of the time, while tf.data
adapts, and the first 5 steps, which use prefetched batches. At least 3 steps remain."""
_LIMITS: dict[Bound, str] = {
    "restart": "restarts between epochs limit",
    "read": "reading limits",
    "decode": "decoding limits",
    "augment": "augmentation limits",
    "transfer": "the transfer to the device limits",
    "model": "the model limits",
}
_WORTH = 0.05
"""Smallest share of the time at which a stage is worth a change, or a gain counts."""
_RATES = ("model", "model_on_device", "pipeline", "decode", "read")
_SAVES = 0.1
"""Smallest share of processor time that is worth saving if no change is faster."""
_AGREE = 0.1
"""Largest difference between two measurements of the same speed, as a share."""
_FITS = 0.5
"""Largest share of the free memory or disk that a cache may fill."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of an epoch, or of one or more steps, by part."""

    restart_s: float = 0.0
    """Wait for the first batch of an iterator; 0 in steps with later batches."""
    waiting_s: float = 0.0
    working_s: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.restart_s + other.restart_s,
            self.waiting_s + other.waiting_s,
            self.working_s + other.working_s,
        )

    def __truediv__(self, number: float) -> Times:
        return Times(self.restart_s / number, self.waiting_s / number, self.working_s / number)

    @property
    def waited_s(self) -> float:
        return self.restart_s + self.waiting_s

    @property
    def total_s(self) -> float:
        return self.waited_s + self.working_s

    @property
    def stall(self) -> float:
        """Share spent waiting for batches, including restarts, 0 to 1."""
        return self.waited_s / self.total_s if self.total_s else 0.0

    @property
    def restart(self) -> float:
        """Share spent waiting for first batches, 0 to 1; a part of `stall`."""
        return self.restart_s / self.total_s if self.total_s else 0.0


class Stopwatch:
    """Stopwatch of training steps: call `ask`, `drawn` and `done` in this order for each step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asked = self._drawn = 0.0
        self._is_pending = self._is_restart = False

    def ask(self) -> None:
        """Start the wait for a batch, unless it has started."""
        if not self._is_pending:
            self._asked, self._is_pending = self._clock(), True

    def drawn(self, *, is_restart: bool) -> None:
        """End the wait for a batch; `is_restart` if the batch is the first of its iterator."""
        self._drawn = self._clock()
        self._is_restart, self._is_pending = is_restart, False

    def done(self) -> Times:
        """Return the times of the step, which ends now."""
        waited, worked = self._drawn - self._asked, self._clock() - self._drawn
        return Times(waited, 0.0, worked) if self._is_restart else Times(0.0, waited, worked)


def epoch_of(steps: Sequence[Times], num_steps: int | None) -> Times:
    """Return the times of an epoch of `num_steps` steps, estimated from consecutive steps.

    The result is the mean of the whole epochs in `steps`. Without a whole epoch, the result is a
    median restart and `num_steps` typical steps; with `num_steps=None` (no end), one typical step.
    """
    starts = [i for i, step in enumerate(steps) if i == 0 or step.restart_s]
    runs = [steps[i:j] for i, j in zip(starts, [*starts[1:], len(steps)], strict=True)]
    whole = [run for run in runs if run[0].restart_s and len(run) == num_steps]
    if whole:
        return sum((step for run in whole for step in run), Times()) / len(whole)
    restarts = [step.restart_s for step in steps if step.restart_s]
    settled = [step for run in runs for step in _settled(run)] or steps
    waited = statistics.fmean(step.waited_s for step in settled)
    worked = statistics.fmean(step.working_s for step in settled)
    if num_steps is None:
        return Times(0.0, waited, worked)
    restart = statistics.median(restarts) if restarts else waited
    return Times(restart, waited * (num_steps - 1), worked * num_steps)


def _settled(run: Sequence[Times]) -> Sequence[Times]:
    ends = list(itertools.accumulate(step.total_s for step in run))
    adapting = sum(end < _SETTLING_SHARE * ends[-1] for end in ends)
    return run[max(1, adapting, min(_READY, len(run) - _LEAST)) :]


def images_of(batch: Any) -> Any:
    """Return the images of a batch, which is a dict, (images, targets) or images alone."""
    if isinstance(batch, dict):
        return batch[IMAGE]
    return batch[0] if isinstance(batch, tuple) else batch


def restart_advice(num_steps: int) -> str:
    """Return the options that avoid restarts between epochs, as text."""
    return f"repeat=True in load, steps_per_epoch={num_steps} in fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of all runs. Rates are in images per second."""

    waiting: float
    """Share of the training time spent waiting for batches, 0 to 1."""
    restart: float
    """Share spent waiting for first batches of epochs, 0 to 1; a part of `waiting`."""
    training: float
    """Rate of training, including restarts and waiting."""
    training_cpu_s: float
    """Processor seconds of training, per image."""
    model: float
    """Rate of steps on the same batch in host memory, without the pipeline."""
    model_cpu_s: float
    """Processor seconds of the steps of `model`, per image."""
    model_on_device: float | None = None
    """Like `model`, with the batch in the memory of a GPU; None without a GPU."""
    pipeline: float
    """Rate of the pipeline without training and restarts."""
    decode: float | None = None
    """Rate of the pipeline without `augment` and `dtype`; None with a cache, or if a faster
    pipeline would not help."""
    read: float | None = None
    """Rate of reading records without decoding; None in the same cases as `decode`."""


class Change(NamedTuple):
    """A change that was tried, with its measured speed."""

    advice: str
    options: dict[str, Any]
    """The changed arguments of `load`; empty if no argument changes."""
    images_s: float
    """Measured rate of training, in images per second."""
    cpu_s: float
    """Measured processor seconds per image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts that decide which changes are tried."""

    num_steps: int | None
    """Number of steps of an epoch, or None if the dataset is endless."""
    decoded_bytes: int | None
    """Size of all decoded images, or None if they differ in size."""
    cache: str
    """The cache in use: "" for none, "memory", or a folder."""
    dtype: str
    augments: bool
    free_bytes: int
    disk: str
    """Folder for temporary files, where a cache on disk is tried."""
    free_disk_bytes: int

    @property
    def finishes(self) -> bool:
        """Whether `augment` or `dtype` change the batches."""
        return self.augments or self.dtype != "uint8"


class Candidate(NamedTuple):
    """A change to try."""

    trial: Trial
    advice: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What limits the speed of training, and advice. `str()` is a sentence."""

    bound: Bound
    measured: Measured
    advice: str
    gain: float
    """Measured speed-up by the advice, as a factor; 1.0 if nothing made training faster."""
    saved: float
    """Share of processor time per image saved by the advice, 0 to 1."""
    changes: tuple[Change, ...]
    """All changes that were tried, the fastest first."""
    is_sure: bool
    """False if repeated measurements vary too much to tell the bound, or the gain."""
    spread: float
    """Largest difference between measurements of one speed, as a share."""
    longer_s: float
    """Value of `seconds` for a measurement that is more precise; 0 if no longer one is advised."""

    def __str__(self) -> str:
        measured, gain, told = self.measured, self.gain, self.advice
        if not self.is_sure:
            longer = f" with seconds={self.longer_s:g}" if self.longer_s else ""
            return (
                f"probably {_LIMITS[self.bound]} you; not sure, because speeds vary by "
                f"{self.spread:.0%} between measurements, you get about "
                f"{measured.training:,.0f} images/s; repeat{longer} without other work on this "
                "machine, or use reader.StallMeter"
            )
        if gain >= 1 + RESTART_COUNTS:
            times = f"{gain - 1:.0%} more" if gain < 2 else f"{gain:.1f} times as many"
            told += f" gives about {times}"
        elif self.saved >= _SAVES:
            told += f" saves {self.saved:.0%} of the processor time"
        most = max(min(measured.pipeline, measured.model), measured.training)
        limit = f"{_LIMITS[self.bound]} you: at most {most:,.0f} images/s"
        return f"{limit}, you get {measured.training:,.0f}; {told}"

    __repr__ = __str__


def reading_counts(measured: Measured) -> bool:
    """Return True if a faster pipeline could save time or processor time in training."""
    spent = 1 - measured.model_cpu_s / measured.training_cpu_s if measured.training_cpu_s else 0.0
    ceiling = max(measured.model, measured.model_on_device or 0.0)
    ahead = ceiling >= (1 + _WORTH) * measured.training
    return measured.waiting >= STALL_COUNTS or ahead or spent >= _SAVES


def candidates(measured: Measured, here: Circumstances) -> list[Candidate]:
    """Return the changes that are worth a try, in the order to try them."""
    chosen = []
    costs = _costs(measured, here)
    if reading_counts(measured):
        least = _WORTH * sum(costs.values())
        if here.cache != "memory" and costs["read"] + costs["decode"] >= least:
            chosen += _caches(here)
        if here.finishes and costs["augment"] >= least:
            chosen.append(_in_step(here))
    if measured.restart >= RESTART_COUNTS and here.num_steps is not None:
        chosen.append(Candidate("repeat", restart_advice(here.num_steps), {"repeat": True}))
    on_device = measured.model_on_device
    if on_device and on_device >= (1 + _WORTH) * measured.model:
        advice = "dataset.apply(tf.data.experimental.prefetch_to_device('/GPU:0'))"
        chosen.append(Candidate("prefetch", advice, {}))
        if here.finishes and all(candidate.trial != "in step" for candidate in chosen):
            chosen.append(_in_step(here))  # uint8 has a quarter of the bytes of float32
    return chosen


def conclude(
    measured: Measured,
    here: Circumstances,
    tried: Sequence[Change],
    unsure: Collection[str] | None = (),
    *,
    spread: float = 0.0,
    longer_s: float = 30.0,
) -> Diagnosis:
    """Return the diagnosis, with the fastest change as advice, or one that saves processor time.

    `unsure` has the advice of changes whose rounds disagree; None if rounds without a change do.
    `spread` is the largest difference between rounds, as a share; the diagnosis is not sure if a
    speed that differs by it gives another bound. If rounds disagree, only the parts are compared:
    the slower one at its best must be slower than the other at its worst.
    """
    bound = _bound(measured, here)
    most = min(measured.pipeline, measured.model)
    spread = max(spread, measured.training / most - 1)  # no part is slower than the whole
    agrees = unsure is not None and measured.training <= (1 + _AGREE) * most
    parts = measured if agrees else replace(measured, waiting=1.0, restart=0.0)
    rates = {one: getattr(measured, one) for one in _RATES if getattr(measured, one) is not None}
    pairs = itertools.product(rates.items(), (1 + spread, 1 / (1 + spread)))
    near = [replace(parts, **{name: rate * factor}) for (name, rate), factor in pairs]
    leads = agrees or max(measured.pipeline, measured.model) > (1 + spread) ** 2 * most
    is_firm = leads and {bound} == {_bound(x, here) for x in near}
    make = partial(Diagnosis, bound, measured, spread=spread, longer_s=longer_s)
    ranked = tuple(sorted(tried, key=lambda change: -change.images_s))
    doubts = {change.advice for change in tried} if unsure is None else {*unsure}
    least = (1 + spread) * measured.training
    clear = [one for one in ranked if one.advice not in doubts or one.images_s >= least]
    is_model = is_firm and bound == "model"  # another reader gives at most the waiting time
    usable = [one for one in clear if one.images_s >= least] if is_model else ranked
    best = next((change for change in usable if _is_faster(change, measured)), None)
    if best is None:
        saving = [change for change in usable if _is_cheaper(change, measured)]
        best = min(saving, key=lambda change: change.cpu_s, default=None)
    if best is None:
        advice = "nothing that was tried helps" if tried else "no change of reading helps"
        return make(advice, 1.0, 0.0, ranked, is_sure=is_model or (is_firm and not doubts))
    gain, before = max(1.0, best.images_s / measured.training), measured.training_cpu_s
    saved = max(0.0, 1 - best.cpu_s / before) if before else 0.0
    return make(best.advice, gain, saved, ranked, is_sure=is_firm and best in clear)


def _is_faster(change: Change, measured: Measured) -> bool:
    least = RESTART_COUNTS if "repeat" in change.options else _WORTH
    return change.images_s >= (1 + least) * measured.training


def _is_cheaper(change: Change, measured: Measured) -> bool:
    as_fast = change.images_s >= (1 - _WORTH) * measured.training
    return as_fast and change.cpu_s <= (1 - _SAVES) * measured.training_cpu_s


def _costs(measured: Measured, here: Circumstances) -> dict[Bound, float]:
    """Return the cost of each stage of the pipeline, in seconds per image."""
    whole = 1 / measured.pipeline
    if measured.read is None or measured.decode is None:  # a cache replaces reading and decoding
        read, decoded = (0.0, 0.0) if here.augments else (whole, whole)
    else:
        read, decoded = 1 / measured.read, 1 / measured.decode
        if not here.finishes:  # then both rates are of the same pipeline
            decoded = whole = min(decoded, whole)
    return {"read": read, "decode": max(0.0, decoded - read), "augment": max(0.0, whole - decoded)}


def _bound(measured: Measured, here: Circumstances) -> Bound:
    if measured.waiting >= STALL_COUNTS:
        if measured.restart > measured.waiting / 2:
            return "restart"
        if measured.pipeline < measured.model:
            costs = _costs(measured, here)
            return max(costs, key=lambda stage: costs[stage])
    if measured.model_on_device is None:
        return "model"
    on_device = 1 / measured.model_on_device
    return "transfer" if 1 / measured.model - on_device > on_device else "model"


def _caches(here: Circumstances) -> list[Candidate]:
    needed = here.decoded_bytes
    if needed is None:
        return []
    if needed < _FITS * here.free_bytes:
        return [Candidate("memory", "cache='memory'", {"cache": "memory"})]
    if here.cache or needed >= _FITS * here.free_disk_bytes:
        return []
    return [Candidate("folder", f"cache='{here.disk}'", {"cache": here.disk})]


def _in_step(here: Circumstances) -> Candidate:
    options: dict[str, Any] = {"augment": None, "dtype": "uint8"}
    if here.augments:
        return Candidate("in step", "to augment in the first layers of the model", options)
    return Candidate("in step", "dtype='uint8' with a Rescaling layer in the model", options)
