"""Times of training steps.

The time of an epoch has three parts: the restart, until a new iterator yields its first batch; the
wait for each later batch; and the work, from each batch to the end of its step.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardprep.dataset.schema import IMAGE, IMAGES

STALL_COUNTS = 0.1
"""Smallest share of the time, 0 to 1, at which waiting counts; below, the pipeline keeps up."""
RESTART_COUNTS = 0.02
"""Smallest share of the time, 0 to 1, at which restarts are reported."""
_SETTLING_SHARE, _READY, _LEAST = 1 / 3, 5, 3
"""Steps after a restart that do not count as typical: the first third of the time, while tf.data
adapts, and the first 5 steps, which use prefetched batches. At least 3 steps remain."""


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
        """Share of the time spent waiting for batches, including restarts, 0 to 1."""
        return self.waited_s / self.total_s if self.total_s else 0.0

    @property
    def restart(self) -> float:
        """Share of the time spent waiting for first batches, 0 to 1; a part of `stall`."""
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
    """Return a run without its first steps, which are not typical (see `_SETTLING_SHARE`)."""
    ends = list(itertools.accumulate(step.total_s for step in run[1:]))
    adapting = 1 + sum(end < _SETTLING_SHARE * ends[-1] for end in ends)
    return run[max(adapting, min(_READY, len(run) - _LEAST)) :]


def images_of(batch: Any) -> Any:
    """Return the images of a batch, which is a dict, (images, targets) or images alone."""
    if isinstance(batch, dict):
        return batch[IMAGE if IMAGE in batch else IMAGES]
    return batch[0] if isinstance(batch, tuple) else batch


def restart_advice(num_steps: int) -> str:
    """Return the options that avoid restarts between epochs, as text."""
    return f"repeat=True in load, steps_per_epoch={num_steps} in fit"
