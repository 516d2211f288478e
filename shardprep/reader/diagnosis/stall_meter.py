"""A Keras callback that measures how long training waits for data.

Keras draws a batch inside of its compiled training function, where no callback sees it. The meter
draws it just before, the same batches in the same order, and so knows how long that took.
"""

from __future__ import annotations

import itertools
import math
import sys
import weakref
from typing import TYPE_CHECKING, Any

import keras

from shardprep.errors import DatasetError
from shardprep.reader.diagnosis.timing import (
    RESTART_COUNTS,
    STALL_COUNTS,
    Stopwatch,
    Times,
    restart_advice,
)
from shardprep.reader.validators import validated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NEEDED = (3, 8)


class StallMeter(keras.callbacks.Callback):  # type: ignore[misc]  # keras carries no types
    """Put the share of each step spent waiting for data into the logs of `fit`, as `stall`.

    0 is a model that never waits, 1 one that only waits. For each step it goes to the callbacks
    that come after this one and to the progress bar; for each epoch, over all its steps, into
    `history.history["stall"]`. The share until the first batch of the epoch is there, which is a
    part of it, is `restart`; 0 where `fit` goes on with the iterator of the epoch before. The very
    first step, which compiles, does not count; an epoch of which nothing counts has NaN.

    The time of a step runs from the batch being there to its loss being known, so that work on an
    accelerator counts although it goes on after the call. With `steps_per_execution=n`, a step is
    n batches, all drawn before the first of them is used.
    """

    @validated("reader.StallMeter")
    def __init__(self, *, verbose: bool = True) -> None:
        """Print a line on stderr for each epoch, with `verbose`."""
        super().__init__()
        self._verbose = verbose
        self._is_first = True
        self._watch = Stopwatch()
        self._iterator: Callable[[], Any] = lambda: None
        self._times, self._num_steps = Times(), 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Put the drawing of batches between Keras and its iterator."""
        del logs
        version = tuple(int(part) for part in keras.__version__.split(".")[:2])
        if keras.backend.backend() != "tensorflow" or version < _NEEDED:
            raise DatasetError(
                "reader.StallMeter",
                f"cannot measure Keras {keras.__version__} on {keras.backend.backend()}",
                "it needs Keras 3.8 or newer on TensorFlow",
            )
        train = self.model.train_function
        # A fit that was broken off has left the drawing of its meter behind.
        self._train = train.train if isinstance(train, _Drawing) else train
        self.model.train_function = _Drawing(self._train, self)
        self._is_first, self._watch = True, Stopwatch()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Give Keras its own training function back."""
        del logs
        self.model.train_function = self._train

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begin an epoch: from here on it waits for its first batch."""
        del epoch, logs
        self._times, self._num_steps = Times(), 0
        self._watch.ask()

    def draw(self, iterator: Iterator[Any]) -> list[Any]:
        """Return the batches of a step, drawn now."""
        self._watch.ask()
        batches = list(itertools.islice(iterator, self.model.steps_per_execution))
        self._watch.drawn(is_restart=self._iterator() is not iterator)
        self._iterator = weakref.ref(iterator)  # Keras ends it: that takes until its calls return
        return batches

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Add a step; Keras fetches the loss for this method, so the step is over."""
        del batch
        step = self._watch.done()
        if self._is_first:
            self._is_first = False
            return
        self._times += step.times
        self._num_steps += 1
        if logs is not None:
            logs["stall"] = step.times.stall

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the shares of the epoch into the logs, and print them."""
        times = self._times
        if logs is not None:
            logs["stall"] = times.stall if self._num_steps else math.nan
            logs["restart"] = times.restart if self._num_steps else math.nan
        if self._verbose and self._num_steps:
            sys.stderr.write(f"\nepoch {epoch + 1}: {self._said()}\n")

    def _said(self) -> str:
        times = self._times
        found = f"{times.stall:.0%} of the time was spent waiting for data"
        if times.restart >= RESTART_COUNTS:
            num_steps = self.params.get("steps") or self._num_steps
            found += f", {times.restart:.0%} until the first batch: {restart_advice(num_steps)}"
        return found + ("; reader.diagnose says why" if times.stall >= STALL_COUNTS else "")


class _Drawing:
    """A training function of Keras that is given batches instead of an iterator of them."""

    def __init__(self, train: Any, meter: StallMeter) -> None:
        self.train = train
        self._meter = meter

    def __call__(self, iterator: Iterator[Any]) -> Any:
        batches = self._meter.draw(iterator)
        if not batches:
            raise StopIteration
        return self.train(iter(batches))
