"""Batches decoded ahead of use: threads fill arrays while the one before is trained on.

Order and content do not depend on threads.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from shardprep.errors import DatasetError, RecordError
from shardprep.reader.arguments import checked_state
from shardprep.reader.arrays.buffers import Filler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardprep.reader.arrays.buffers import Filling
    from shardprep.reader.arrays.epochs import Epochs
    from shardprep.reader.arrays.examples import Columns, Examples

_STATE = "Dataset.batches.load_state_dict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far ahead batches are made, and what becomes of bad records."""

    num_threads: int
    prefetch: int
    """Batches made or being made that nobody has asked for yet."""
    on_error: Literal["raise", "skip"]
    num_epochs: int | None
    """None for ever."""


class Batches:
    """An iterator over batches; `Dataset.batches` makes it and says what it yields."""

    _place: tuple[int, int]
    """Epoch and number of the batch to be handed out next."""
    _upcoming: Iterator[tuple[int, int]]
    """The places whose batches nobody has begun to make."""
    _begun: deque[tuple[tuple[int, int], Filling]]
    """Batches being made or made, by place, in order."""

    def __init__(
        self, examples: Examples, epochs: Epochs, ahead: Ahead, *, supervised: bool
    ) -> None:
        self._examples = examples
        self._epochs = epochs
        self._ahead = ahead
        self._supervised = supervised
        self._filler = Filler(
            examples,
            batch_size=min(epochs.batch_size, epochs.num_records),
            num_threads=ahead.num_threads,
            num_kept=ahead.prefetch + 2,
        )
        self._bad: dict[int, RecordError] = {}
        self._seek(0, 0)

    @property
    def steps_per_epoch(self) -> int:
        """Batches an epoch."""
        return self._epochs.num_batches

    @property
    def skipped(self) -> tuple[RecordError, ...]:
        """The bad records left out so far, each once: file, record, offset and what is wrong."""
        return tuple(self._bad.values())

    def __len__(self) -> int:
        """Return the batches of all epochs, wherever this iterator is: what a progress bar asks.

        Raises:
            TypeError: there is no end of epochs.

        """
        if self._ahead.num_epochs is None:
            raise TypeError(
                "epochs=None has batches without end; steps_per_epoch counts those of one"
            )
        return self._epochs.num_batches * self._ahead.num_epochs

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while True:
            self._begin()
            if not self._begun:
                self.close()
                raise StopIteration
            place, filling = self._begun.popleft()
            try:
                columns = self._finished(filling)
            except BaseException:
                self._seek(*self._place)  # an error leaves the iterator where it was
                raise
            self._place = self._following(place)
            if columns is not None:
                return self._as_asked(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next batch, as values that JSON takes."""
        epoch, batch = self._place
        return {"epoch": epoch, "batch": batch, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place that another iterator of the same options was at.

        Raises:
            DatasetError: it is no state, it was over other records, or its options gave other
                batches.

        """
        given = checked_state(_STATE, state)
        expected = self._identity()
        other = [name for name, value in expected.items() if given[name] != value]
        if other:
            differing = ", ".join(f"{name} {given[name]!r}" for name in other)
            raise DatasetError(
                _STATE,
                f"the state is of an iterator with {differing}",
                "make the iterator with the same dataset, split and options",
            )
        epoch, batch, num_epochs = given["epoch"], given["batch"], self._ahead.num_epochs
        if batch >= max(1, self.steps_per_epoch):
            what = f"batch={batch} of an epoch of {self.steps_per_epoch}"
            raise DatasetError(_STATE, what, "batches count from 0")
        if num_epochs is not None and epoch > num_epochs:
            what = f"epoch={epoch} of {num_epochs}"
            raise DatasetError(_STATE, what, "make the iterator with as many epochs")
        self._seek(epoch, batch)

    def close(self) -> None:
        """Stop the threads and let go of what is made ahead; the iterator is at its end."""
        self._filler.close()
        self._begun.clear()
        self._upcoming = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _identity(self) -> dict[str, Any]:
        return {**asdict(self._epochs), "records": self._examples.records.digest}

    def _seek(self, epoch: int, batch: int) -> None:
        self._place = (epoch, batch)
        self._upcoming = self._places(epoch, batch)
        self._begun = deque()

    def _places(self, epoch: int, batch: int) -> Iterator[tuple[int, int]]:
        num_batches, last = self._epochs.num_batches, self._ahead.num_epochs
        numbers = itertools.count(epoch) if last is None else range(epoch, last)
        for one in numbers if num_batches else ():
            yield from ((one, number) for number in range(batch, num_batches))
            batch = 0

    def _following(self, place: tuple[int, int]) -> tuple[int, int]:
        epoch, batch = place
        return (epoch, batch + 1) if batch + 1 < self._epochs.num_batches else (epoch + 1, 0)

    def _begin(self) -> None:
        """See to it that `prefetch` batches are being made besides the one to be handed out."""
        while len(self._begun) <= self._ahead.prefetch:
            place = next(self._upcoming, None)
            if place is None:
                return
            filling = self._filler.begin(self._epochs.batch(*place).tolist())
            self._begun.append((place, filling))

    def _finished(self, filling: Filling) -> Columns | None:
        """Wait for a batch; return it without its bad records, None if no record is left."""
        filling.wait()
        if not filling.errors:
            return filling.columns
        for row in sorted(filling.errors):
            error = filling.errors[row]
            if self._ahead.on_error == "raise":
                raise error
            number = filling.numbers[row]
            if number not in self._bad:
                self._bad[number] = error
                warnings.warn(f"skipped: {error}", RuntimeWarning, stacklevel=3)
        good = np.delete(np.arange(len(filling.numbers)), list(filling.errors))
        columns = {name: column[good] for name, column in filling.columns.items()}
        return columns if len(good) else None

    def _as_asked(self, columns: Columns) -> Any:
        names = self._examples.values.names
        if not self._supervised:
            return {name: columns[name] for name in names}
        values = tuple(columns[name] for name in names)
        return values if len(values) > 1 else values[0]
