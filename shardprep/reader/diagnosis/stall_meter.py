"""A Keras callback that measures how long training waits for data.

Keras draws batches inside its training function, where callbacks cannot measure the wait. So the
meter wraps the function, and draws the same batches in the same order just before each call.
"""

from __future__ import annotations

import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras

from shardprep.errors import DatasetError
from shardprep.reader.diagnosis.steps import (
    RESTART_COUNTS,
    STALL_COUNTS,
    Stopwatch,
    Times,
    restart_advice,
)
from shardprep.reader.validators import validated

_NEEDED = (3, 8)


class StallMeter(keras.callbacks.Callback):  # type: ignore[misc]  # keras carries no types
    """Add `stall`, the share of time spent waiting for data, to the logs of `fit`.

    0 means that the model never waits, 1 that it only waits. The value of each step is shown in the
    progress bar and passed to the callbacks after this one. The value of an epoch is in
    `history.history["stall"]`. `restart` is the share of time spent waiting for the first batch of
    the epoch, a part of `stall`; it is 0 if `fit` continues the iterator of the previous epoch. The
    first step of `fit`, which compiles, is not counted. An epoch without a counted step has NaN.

    A step ends when its loss is known, so it includes work of an accelerator after the call
    returns. With `steps_per_execution=n`, a step is n batches, all drawn before the first is used.
    `fit` raises DatasetError unless Keras is 3.8 or newer and runs on TensorFlow.
    """

    @validated("reader.StallMeter")
    def __init__(self, *, verbose: bool = True) -> None:
        """With `verbose`, print a line to stderr for each epoch."""
        super().__init__()
        self._verbose = verbose
        self._is_first = True
        self._watch = Stopwatch()
        self._iterator: Callable[[], Any] = lambda: None
        self._times, self._num_steps = Times(), 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        del logs
        version = tuple(int(part) for part in keras.__version__.split(".")[:2])
        if keras.backend.backend() != "tensorflow" or version < _NEEDED:
            what = f"cannot measure Keras {keras.__version__} on {keras.backend.backend()}"
            raise DatasetError("reader.StallMeter", what, "use Keras 3.8 or newer on TensorFlow")
        train = self.model.train_function
        # An interrupted `fit` leaves its wrapper in the model.
        self._train = train.train if isinstance(train, _MeteredTraining) else train
        self.model.train_function = _MeteredTraining(self._train, self)
        self._is_first, self._watch = True, Stopwatch()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        del logs
        self.model.train_function = self._train

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        del epoch, logs
        self._times, self._num_steps = Times(), 0
        self._watch.ask()

    def draw(self, iterator: Iterator[Any]) -> list[Any]:
        self._watch.ask()
        batches = list(itertools.islice(iterator, self.model.steps_per_execution))
        self._watch.drawn(is_restart=self._iterator() is not iterator)
        self._iterator = weakref.ref(iterator)  # a strong reference would keep its threads alive
        return batches

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the step, which is over: Keras fetches its loss before calling this method."""
        del batch
        step = self._watch.done()
        if self._is_first:
            self._is_first = False
            return
        self._times += step
        self._num_steps += 1
        if logs is not None:
            logs["stall"] = step.stall

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the shares of the epoch to the logs; with `verbose`, print them."""
        times = self._times
        if logs is not None:
            logs["stall"] = times.stall if self._num_steps else math.nan
            logs["restart"] = times.restart if self._num_steps else math.nan
        if self._verbose and self._num_steps:
            sys.stderr.write(f"\nepoch {epoch + 1}: {self._line()}\n")

    def _line(self) -> str:
        times = self._times
        line = f"{times.stall:.0%} of the time was spent waiting for data"
        if times.restart >= RESTART_COUNTS:
            num_steps = self.params.get("steps") or self._num_steps
            line += f", {times.restart:.0%} until the first batch: {restart_advice(num_steps)}"
        return line + ("; reader.diagnose says why" if times.stall >= STALL_COUNTS else "")


class _MeteredTraining:
    """A training function of Keras that gets its batches from the meter."""

    def __init__(self, train: Any, meter: StallMeter) -> None:
        self.train = train
        self._meter = meter

    def __call__(self, iterator: Iterator[Any]) -> Any:
        batches = self._meter.draw(iterator)
        if not batches:
            raise StopIteration
        return self.train(iter(batches))
