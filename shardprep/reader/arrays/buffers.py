"""Batches filled by threads, row by row, in memory that is reused.

An array that was handed out is not written again while anyone holds it or a view of it. Then its
memory serves a later batch. The content of a row does not depend on threads.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.schema import IMAGE
from shardprep.errors import RecordError
from shardprep.reader.array_types import Columns
from shardprep.reader.decode.features import DecodedExamples, ExampleReader

if TYPE_CHECKING:
    from concurrent.futures import Future

IMAGES_A_TURN = 8
"""Number of images in a batch that justify waking another thread."""
_ALIGNMENT = 64
"""Multiple of bytes at which TensorFlow uses an array without a copy."""


@dataclass(slots=True)
class Filling:
    """A batch that is being filled: each thread takes the next row until none is left."""

    numbers: list[int]
    """Record number of each row."""
    keys: list[int]
    """Key that decides the crop of each row."""
    columns: Columns
    futures: list[Future[None]] = field(default_factory=list)
    errors: dict[int, RecordError] = field(default_factory=dict)
    """Errors by row, complete when the futures are done."""
    rows: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = iter(range(len(self.numbers)))

    def run(self, examples: ExampleReader | DecodedExamples) -> None:
        """Fill rows until none is left."""
        for row in self.rows:  # `next` of an iterator is atomic: no two threads get one row
            try:
                examples.fill(self.numbers[row], self.columns, row, self.keys[row])
            except RecordError as error:
                self.errors[row] = error

    def wait(self) -> None:
        """Block until every row is filled or has an entry in `errors`."""
        for future in self.futures:
            future.result()


class Filler:
    """Starts to fill batches of examples in its threads."""

    def __init__(
        self,
        examples: ExampleReader | DecodedExamples,
        *,
        batch_size: int,
        num_threads: int,
        num_kept: int,
    ) -> None:
        """Keep at most `num_kept` free buffers of batches for reuse."""
        self._examples = examples
        self._batch_size = batch_size
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._buffers = _Buffers(num_kept)

    def begin(
        self, numbers: list[int], keys: list[int], image_size: tuple[int, int] | None = None
    ) -> Filling:
        """Start a batch of the records with these numbers, at most `batch_size`.

        `keys` decide the crops. Images are resized to `image_size` if given.
        """
        decoder = self._examples.decoder
        columns = decoder.columns(len(numbers))
        shape = decoder.image_shape
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
        except RuntimeError:  # the interpreter shuts down, and pools take no more work
            filling.run(self._examples)
        return filling

    def close(self) -> None:
        """Stop the threads; a batch that is started later has new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, "shardprep-batches")
            # The work of the threads holds no reference to this filler, so that the finalizer runs
            # and ends them when the filler is garbage. At exit they finish the work they have.
            end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            end.atexit = False
        return self._pool


class _Buffers:
    """Reusable memory for images. It returns when the last view of its array is garbage."""

    def __init__(self, num_kept: int) -> None:
        self._free: deque[memoryview] = deque(maxlen=num_kept)

    def take(self, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an array with arbitrary content that nobody else uses."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _aligned(math.prod(shape)).reshape(shape).data
        # NumPy makes `base` of a view the owner of the memory. Over a memoryview that is `array`,
        # so the finalizer runs when the last view is gone; over another array it would be that.
        array = np.asarray(memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array


def _aligned(num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + num_bytes]
