"""A Keras callback that measures how long training waits for data.

Keras draws a batch inside of its compiled training function, where no callback sees it. The meter
draws it just before, the same batches in the same order, and so knows how long that took.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from typing import TYPE_CHECKING, Any

import keras

from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Iterator

_HINT_FROM = 0.1
_NEEDED = (3, 8)


class StallMeter(keras.callbacks.Callback):  # type: ignore[misc]  # keras carries no types
    """Put the share of each step spent waiting for data into the logs of `fit`, as `stall`.

    0 is a model that never waits, 1 one that only waits. For each step it goes to the callbacks
    that come after this one and to the progress bar; for each epoch, over all its steps, into
    `history.history["stall"]`. The very first step, which compiles, does not count; an epoch of
    which nothing counts has NaN.

    The time of a step runs from the batch being there to its loss being known, so that work on an
    accelerator counts although it goes on after the call. With `steps_per_execution=n`, a step is
    n batches, all drawn before the first of them is used.
    """

    def __init__(self, *, verbose: bool = True) -> None:
        """Print a line on stderr for each epoch, with `verbose`."""
        super().__init__()
        self._verbose = verbose
        self._is_first = True
        self._drawn = self._began = 0.0
        self._waited = self._total = 0.0

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
        self._is_first = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Give Keras its own training function back."""
        del logs
        self.model.train_function = self._train

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the sums of an epoch."""
        del epoch, logs
        self._waited = self._total = 0.0

    def drawn(self, began: float) -> None:
        """Note that drawing began at `began`, by `perf_counter`, and is done now."""
        self._began, self._drawn = began, time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Add a step; Keras fetches the loss for this method, so the step is over."""
        del batch
        total = time.perf_counter() - self._began
        waited = self._drawn - self._began
        if self._is_first:
            self._is_first = False
            return
        self._waited += waited
        self._total += total
        if logs is not None:
            logs["stall"] = waited / total

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the share of the epoch into the logs, and print it."""
        stall = self._waited / self._total if self._total else math.nan
        if logs is not None:
            logs["stall"] = stall
        if self._verbose and self._total:
            why = "; reader.diagnose says why" if stall >= _HINT_FROM else ""
            line = f"epoch {epoch + 1}: {stall:.0%} of the time was spent waiting for data{why}"
            sys.stderr.write(f"\n{line}\n")


class _Drawing:
    """A training function of Keras that is given batches instead of an iterator of them."""

    def __init__(self, train: Any, meter: StallMeter) -> None:
        self.train = train
        self._meter = meter

    def __call__(self, iterator: Iterator[Any]) -> Any:
        began = time.perf_counter()
        batches = list(itertools.islice(iterator, self._meter.model.steps_per_execution))
        self._meter.drawn(began)
        if not batches:
            raise StopIteration
        return self.train(iter(batches))
