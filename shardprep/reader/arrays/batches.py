"""The iterator of batches, which threads or worker processes fill ahead of use.

Order and content do not depend on threads and processes.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Self

from shardprep.errors import DatasetError, RecordError
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.arrays.memory import HostMemory
from shardprep.reader.arrays.team import Begun, Team
from shardprep.reader.config import warn
from shardprep.reader.decode.targets import Elements
from shardprep.reader.order.order import State, check_state, identity

_STATE = "Dataset.batches.load_state_dict"


class _Skipped:
    """Errors of replaced records, by record number. Has no reference to the iterator."""

    def __init__(self) -> None:
        self.errors: dict[int, RecordError] = {}

    def add(self, number: int, error: RecordError) -> None:
        if number not in self.errors:
            self.errors[number] = error
            warn(f"skipped: {error}", RuntimeWarning)


class ArrayBatches:
    """The iterator over batches that `Dataset.batches` returns and describes."""

    def __init__(self, source: BatchSource, digest: str, memory: HostMemory | None = None) -> None:
        """Begin at the first batch of epoch 0. `digest` is the hash of the records of all hosts."""
        self._source, self._memory = source, memory
        self._options = options = source.options
        self._digest = digest
        self._num_batches = source.order.num_batches(drop=options.drop_remainder)
        """Number of global batches of an epoch."""
        self._num_own_batches = source.order.num_own_batches(drop=options.drop_remainder)
        self._elements = Elements(source.schema, as_supervised=options.as_supervised)
        self._skipped = _Skipped()
        self._next = 0
        self._started = deque[tuple[int, Begun]]()
        self._team = Team(source, self._skipped.add, memory)
        self._seek(0)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that this host takes from an epoch."""
        return self._num_own_batches

    @property
    def skipped(self) -> tuple[RecordError, ...]:
        """Error of each bad record that was replaced so far, with file, number and offset."""
        return tuple(self._skipped.errors.values())

    def __len__(self) -> int:
        """Return the number of this host's batches in all epochs. TypeError with `epochs=None`."""
        if self._options.epochs is None:
            what = "epochs=None has no end; steps_per_epoch counts the batches of an epoch"
            raise TypeError(what)
        return self.steps_per_epoch * self._options.epochs

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._start()
        if not self._started:
            epoch, batch = divmod(self._next, self._num_batches or 1)
            if batch and not self._source.order.has_part(batch):
                self._next = (epoch + 1) * self._num_batches  # others had the last batch
            self.close()
            raise StopIteration
        with self._again_after_errors():
            number, begun = self._started.popleft()
            values = begun.result()
        self._next = number + 1
        return self._element(values)

    @property
    def epoch(self) -> int:
        """Number of the epoch of the next batch, from 0."""
        return self._next // (self._num_batches or 1)

    def start_epoch(self, epoch: int, batch: int = 0) -> None:
        """Continue with global batch `batch` of `epoch`."""
        number = epoch * self._num_batches + batch
        if not self._started or self._started[0][0] != number:  # else it is the next one already
            self._seek(number)

    def rest_of_epoch(self) -> Iterator[Any]:
        """Yield the batches that are left in the epoch `self.epoch`."""
        stop = (self.epoch + 1) * self._num_batches
        while self._next < stop:
            self._start()
            if not self._started or self._started[0][0] >= stop:
                self._next = stop  # this host has no part of the last batches
                return
            yield next(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next batch, in values that JSON can store."""
        epoch, batch = divmod(self._next, self._num_batches or 1)
        return State(self._source.order.seed, epoch, batch, self._identity())._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another iterator or of `reader.iterate`, with its seed.

        Raises:
            DatasetError: the state is malformed, belongs to other records or batches, or its epoch
                is beyond `epochs`.
        """
        saved = check_state(_STATE, state, self._identity(), self._num_batches)
        num_epochs = self._options.epochs
        if num_epochs is not None and saved.epoch > num_epochs:
            what = f"the state has epoch={saved.epoch}, but the iterator has epochs={num_epochs}"
            raise DatasetError(_STATE, what, f"give batches(epochs={saved.epoch + 1}) or more")
        if saved.seed != self._source.order.seed:
            order = replace(self._source.order, seed=saved.seed)
            self._source = replace(self._source, order=order)
            self._team.close()
            self._team = Team(self._source, self._skipped.add, self._memory)
        self._seek(saved.epoch * self._num_batches + saved.batch)

    def close(self) -> None:
        """Stop threads and processes, and drop batches. The iterator then has no next batch."""
        self._team.close()
        self._started.clear()
        self._upcoming = iter(range(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _identity(self) -> str:
        return identity(self._digest, self._source.order, drop=self._options.drop_remainder)

    def _seek(self, number: int) -> None:
        """Continue with global batch `number`, counted over all epochs."""
        epochs = self._options.epochs
        self._next = number
        self._started.clear()
        stop = (sys.maxsize if epochs is None else epochs) * self._num_batches
        self._upcoming = iter(range(number, stop))

    def _start(self) -> None:
        """Start to fill the next batch, and up to `num_ahead` batches after it."""
        with self._again_after_errors():
            while len(self._started) <= self._team.num_ahead:
                number = next(self._upcoming, None)
                if number is None:
                    return
                epoch, batch = divmod(number, self._num_batches)
                if self._source.order.has_part(batch):
                    self._started.append((number, self._team.begin((epoch, batch))))

    @contextmanager
    def _again_after_errors(self) -> Iterator[None]:
        """If the block raises an error, let the next call try the same batch again."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                self._team.close()  # Ctrl-C may have come in the middle of a message
            self._seek(self._next)
            raise

    def _element(self, values: dict[str, Any]) -> Any:
        return self._elements.pack(values)


class AheadBatches(ArrayBatches):
    """Batches that are copied to a device one batch ahead of use, if filled by then.

    Subclasses define `_moved`, which begins to copy an element to the device and returns the copy.
    """

    _ahead: tuple[Any, Any] | None = None
    """Values of the next batch, and its element on the device; None before the copy has begun."""

    def __next__(self) -> Any:
        element = super().__next__()
        if self._started and (begun := self._started[0][1]).is_complete:
            with suppress(Exception):  # raised when the batch is taken
                self._ahead = begun.result(), self._element(begun.result())
        return element

    def close(self) -> None:
        self._ahead = None
        super().close()

    def _element(self, values: Any) -> Any:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] is values:
            return ahead[1]
        return self._moved(super()._element(values))

    def _moved(self, element: Any) -> Any:
        raise NotImplementedError
