"""Where the time of training goes, for `StallMeter` and `diagnose`. Pure functions.

An epoch has three stages: its restart, until the first batch of a new iterator is there; waiting
for each later batch; and working, from each batch to the end of its step.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

STALL_COUNTS = 0.1
"""Share of the time spent waiting below which the pipeline keeps up, 0 to 1."""
RESTART_COUNTS = 0.02
"""Share of an epoch from which its restart is mentioned, 0 to 1."""
_SETTLING_SHARE, _READY, _LEAST = 1 / 3, 5, 3
"""Steps after a restart that are not typical: those in the first third of a run, while tf.data
adapts; or 5 steps that use batches made ahead, if 3 steps remain."""


class Step(NamedTuple):
    """One step of training."""

    is_restart: bool
    """Whether its batch is the first of an iterator."""
    waited_s: float
    worked_s: float

    @property
    def times(self) -> Times:
        """The times of this step alone."""
        if self.is_restart:
            return Times(restart_s=self.waited_s, working_s=self.worked_s)
        return Times(waiting_s=self.waited_s, working_s=self.worked_s)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of an epoch, or of a part of one, by stage."""

    restart_s: float = 0.0
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
    def total_s(self) -> float:
        """Seconds of all stages."""
        return self.restart_s + self.waiting_s + self.working_s

    @property
    def stall(self) -> float:
        """Share spent waiting for batches, restart included, 0 to 1."""
        return (self.restart_s + self.waiting_s) / self.total_s if self.total_s else 0.0

    @property
    def restart(self) -> float:
        """Share spent waiting for the first batch, 0 to 1; part of `stall`."""
        return self.restart_s / self.total_s if self.total_s else 0.0


class Stopwatch:
    """Measures steps: for each, call `ask`, `drawn` and `done`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asked = self._drawn = 0.0
        self._is_pending = self._is_restart = False

    def ask(self) -> None:
        """Start to wait for a batch, unless that has started before."""
        if not self._is_pending:
            self._asked, self._is_pending = self._clock(), True

    def drawn(self, *, is_restart: bool) -> None:
        """Record that the batch is there; a restart is the first batch of an iterator."""
        self._drawn = self._clock()
        self._is_restart, self._is_pending = is_restart, False

    def done(self) -> Step:
        """Return the times of the step, which ends now."""
        waited, worked = self._drawn - self._asked, self._clock() - self._drawn
        return Step(self._is_restart, waited, worked)


def epoch_of(steps: Sequence[Step], num_steps: int | None) -> Times:
    """Return the times of an epoch of `num_steps`, estimated from some steps of training.

    If there are whole epochs, this is their mean. Else it is a restart and the mean of later steps,
    without those soon after a restart. Without an end (None), it is the time of one later step.

    Args:
        steps: steps in order, at least one, of any number of iterators.
        num_steps: steps of an epoch.

    """
    starts = [i for i, step in enumerate(steps) if i == 0 or step.is_restart]
    runs = [steps[i:j] for i, j in zip(starts, [*starts[1:], len(steps)], strict=True)]
    whole = [run for run in runs if run[0].is_restart and len(run) == num_steps]
    if whole:
        return sum((step.times for run in whole for step in run), Times()) / len(whole)
    restarts = [step.waited_s for step in steps if step.is_restart]
    settled = [step for run in runs for step in _settled(run)] or steps
    waited = statistics.fmean(step.waited_s for step in settled)
    worked = statistics.fmean(step.worked_s for step in settled)
    if num_steps is None:
        return Times(0.0, waited, worked)
    restart = statistics.median(restarts) if restarts else waited
    return Times(restart, waited * (num_steps - 1), worked * num_steps)


def _settled(run: Sequence[Step]) -> Sequence[Step]:
    """Return the steps of an iterator that are typical of later ones."""
    ends = list(itertools.accumulate(step.waited_s + step.worked_s for step in run))
    adapting = sum(end < _SETTLING_SHARE * ends[-1] for end in ends)
    return run[max(1, adapting, min(_READY, len(run) - _LEAST)) :]


def restart_advice(num_steps: int) -> str:
    """Return the options that save the restart of each epoch."""
    return f"repeat=True in load, steps_per_epoch={num_steps} in fit"
