"""Batches decoded ahead of use: threads fill arrays while the one before is trained on.

An array that was handed out is never written again while anyone holds it, or a view of it; its
memory is used for a later batch once it is let go. Order and content do not depend on threads.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from shardprep.errors import DatasetError, RecordError
from shardprep.reader.epochs import WHERE, check_at_least
from shardprep.schema import IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from shardprep.reader.epochs import Epochs
    from shardprep.reader.examples import Columns, Examples

IMAGES_A_TURN = 8
"""Images that make it worth while to wake another thread for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far ahead batches are made, and what becomes of bad records."""

    num_threads: int
    prefetch: int
    """Batches made or being made that nobody has asked for yet."""
    on_error: Literal["raise", "skip"]
    num_epochs: int | None
    """None for ever."""

    def __post_init__(self) -> None:
        check_at_least(1, num_threads=self.num_threads)
        check_at_least(1, epochs=1 if self.num_epochs is None else self.num_epochs)
        check_at_least(0, prefetch=self.prefetch)
        if self.on_error not in ("raise", "skip"):
            raise DatasetError(WHERE, f"on_error={self.on_error!r}", "use 'raise' or 'skip'")


class Batches:
    """An iterator over batches; `Dataset.batches` makes it and says what it yields."""

    _place: tuple[int, int]
    """Epoch and number of the batch to be handed out next."""
    _upcoming: Iterator[tuple[int, int]]
    """The places whose batches nobody has begun to make."""
    _jobs: deque[_Job]
    """Batches being made or made, in order."""

    def __init__(
        self, examples: Examples, epochs: Epochs, ahead: Ahead, *, supervised: bool
    ) -> None:
        self._examples = examples
        self._epochs = epochs
        self._ahead = ahead
        self._supervised = supervised
        self._pool: ThreadPoolExecutor | None = None
        self._buffers = _Buffers(ahead.prefetch + 2)
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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while True:
            self._issue()
            if not self._jobs:
                self.close()
                raise StopIteration
            job = self._jobs.popleft()
            try:
                columns = self._finished(job)
            except BaseException:
                self._seek(*self._place)  # an error leaves the iterator where it was
                raise
            self._place = self._following(job.place)
            if columns is not None:
                return self._as_asked(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next batch, as values that JSON takes."""
        epoch, batch = self._place
        return {"epoch": epoch, "batch": batch, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place that another iterator of the same options was at.

        Raises:
            DatasetError: it was over other records, or its options gave other batches.

        """
        expected = self._identity()
        other = [key for key in expected if state.get(key) != expected[key]]
        if other:
            differing = ", ".join(f"{key} {state.get(key)!r}" for key in other)
            raise DatasetError(
                "load_state_dict",
                f"the state is of an iterator with {differing}",
                "make the iterator with the same dataset, split and options",
            )
        self._seek(int(state["epoch"]), int(state["batch"]))

    def close(self) -> None:
        """Stop the threads and let go of what is made ahead; the iterator is at its end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._jobs.clear()
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
        self._jobs = deque()

    def _places(self, epoch: int, batch: int) -> Iterator[tuple[int, int]]:
        num_batches, last = self._epochs.num_batches, self._ahead.num_epochs
        numbers = itertools.count(epoch) if last is None else range(epoch, last)
        for one in numbers if num_batches else ():
            yield from ((one, number) for number in range(batch, num_batches))
            batch = 0

    def _following(self, place: tuple[int, int]) -> tuple[int, int]:
        epoch, batch = place
        return (epoch, batch + 1) if batch + 1 < self._epochs.num_batches else (epoch + 1, 0)

    def _issue(self) -> None:
        """See to it that `prefetch` batches are being made besides the one to be handed out."""
        while len(self._jobs) <= self._ahead.prefetch:
            place = next(self._upcoming, None)
            if place is None:
                return
            job = self._job(place)
            turns = min(self._ahead.num_threads, -(-len(job.numbers) // IMAGES_A_TURN))
            pool = self._threads()
            job.futures = [pool.submit(job.run, self._examples) for _ in range(turns)]
            self._jobs.append(job)

    def _job(self, place: tuple[int, int]) -> _Job:
        numbers = self._epochs.batch(*place)
        columns = self._examples.values.columns(len(numbers))
        shape = self._examples.values.image_shape()
        if shape is not None:
            buffer = self._buffers.take((self._epochs.batch_size, *shape))
            columns[IMAGE] = buffer[: len(numbers)]
        return _Job(place, numbers.tolist(), columns)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._ahead.num_threads, "shardprep-batches")
            # What the threads run holds no reference to this iterator: forgotten, it ends them.
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool

    def _finished(self, job: _Job) -> Columns | None:
        """Wait for a batch; return it without its bad records, None if no record is left."""
        for future in job.futures:
            future.result()
        if not job.errors:
            return job.columns
        for row in sorted(job.errors):
            error = job.errors[row]
            if self._ahead.on_error == "raise":
                raise error
            number = job.numbers[row]
            if number not in self._bad:
                self._bad[number] = error
                warnings.warn(f"skipped: {error}", RuntimeWarning, stacklevel=3)
        good = np.delete(np.arange(len(job.numbers)), list(job.errors))
        columns = {name: column[good] for name, column in job.columns.items()}
        return columns if len(good) else None

    def _as_asked(self, columns: Columns) -> Any:
        names = self._examples.values.names
        if not self._supervised:
            return {name: columns[name] for name in names}
        values = tuple(columns[name] for name in names)
        return values if len(values) > 1 else values[0]


@dataclass(slots=True)
class _Job:
    """A batch in the making. Threads take one row after the other until none is left."""

    place: tuple[int, int]
    numbers: list[int]
    """Of the records, by row."""
    columns: Columns
    futures: list[Future[None]] = field(default_factory=list)
    errors: dict[int, RecordError] = field(default_factory=dict)
    """By row."""
    rows: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = iter(range(len(self.numbers)))

    def run(self, examples: Examples) -> None:
        """Take rows and fill them."""
        for row in self.rows:  # the interpreter gives each to one thread only
            try:
                examples.fill(self.numbers[row], self.columns, row)
            except RecordError as error:
                self.errors[row] = error


class _Buffers:
    """Memory for images. It comes back when the last view of the array made of it is gone."""

    def __init__(self, num_kept: int) -> None:
        """Keep so many for later at most, however many were out at a time."""
        self._free: deque[memoryview] = deque(maxlen=num_kept)

    def take(self, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an array that nobody else has; what is in it is left from before."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(shape, np.uint8).data
        # Made of a memoryview and not of an array, this is what all views of it hold on to.
        array = np.asarray(memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array
