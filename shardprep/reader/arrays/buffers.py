"""Batches filled by threads, a row each, in memory that is used again.

An array that was handed out is never written again while anyone holds it, or a view of it; its
memory is used for a later batch once it is let go. What a row holds does not depend on threads.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.schema import IMAGE
from shardprep.errors import RecordError
from shardprep.reader.array_types import Columns
from shardprep.reader.decode.features import DecodedExamples, Examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

IMAGES_A_TURN = 8
"""Images that make it worth while to wake another thread for a batch."""
_ALIGNMENT = 64
"""Bytes: TensorFlow takes an array as it is if it begins at a multiple of it, else a copy."""


@dataclass(slots=True)
class Filling:
    """A batch in the making. Threads take one row after the other until none is left."""

    numbers: list[int]
    """Numbers of the records, by row."""
    keys: list[int]
    """Keys by which crops are drawn, by row."""
    columns: Columns
    futures: list[Future[None]] = field(default_factory=list)
    errors: dict[int, RecordError] = field(default_factory=dict)
    """By row; of all rows when the futures are done."""
    rows: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = iter(range(len(self.numbers)))

    def run(self, examples: Examples | DecodedExamples) -> None:
        """Take rows and fill them."""
        for row in self.rows:  # the interpreter gives each to one thread only
            try:
                examples.fill(self.numbers[row], self.columns, row, self.keys[row])
            except RecordError as error:
                self.errors[row] = error

    def wait(self) -> None:
        """Return when all rows are filled, or in `errors`."""
        for future in self.futures:
            future.result()


class Filler:
    """Begins batches of examples; its threads take those that are begun in turn."""

    def __init__(
        self,
        examples: Examples | DecodedExamples,
        *,
        batch_size: int,
        num_threads: int,
        num_kept: int,
    ) -> None:
        """Keep the memory of so many batches for later at most, however many are out at a time."""
        self._examples = examples
        self._batch_size = batch_size
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._buffers = _Buffers(num_kept)

    def begin(
        self, numbers: list[int], keys: list[int], image_size: tuple[int, int] | None = None
    ) -> Filling:
        """Return a batch of the records of so many numbers, at most `batch_size`.

        Crops are drawn by `keys`; images are resized to `image_size`, where there is one.
        """
        values = self._examples.values
        columns = values.columns(len(numbers))
        shape = values.image_shape()
        if shape is not None:
            columns[IMAGE] = self._buffers.take((self._batch_size, *shape))[: len(numbers)]
        elif image_size is not None:
            columns[IMAGE] = np.empty((len(numbers), *image_size, 3), np.uint8)
        filling = Filling(numbers, keys, columns)
        turns = min(self._num_threads, -(-len(numbers) // IMAGES_A_TURN))
        pool = self._threads()
        try:
            for _ in range(turns):
                filling.futures.append(pool.submit(filling.run, self._examples))
        except RuntimeError:  # the program ends: threads take no more, and who reads ahead waits
            filling.run(self._examples)
        return filling

    def close(self) -> None:
        """Stop the threads; those of the next batch that is begun are new."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, "shardprep-batches")
            # What the threads run holds no reference to this: forgotten, it ends them. When the
            # program ends they first do what is begun.
            end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            end.atexit = False
        return self._pool


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
            memory = _aligned(math.prod(shape)).reshape(shape).data
        # Made of a memoryview and not of an array, this is what all views of it hold on to.
        array = np.asarray(memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array


def _aligned(num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    begin = -found.ctypes.data % _ALIGNMENT
    return found[begin : begin + num_bytes]
