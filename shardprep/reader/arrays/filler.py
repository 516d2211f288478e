"""Threads that fill the rows of batches, in memory that is reused.

The images of a batch are not overwritten while anybody holds their array or a view of it.
Afterwards, a later batch uses their memory.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardprep.dataset.schema import IMAGE
from shardprep.errors import RecordError
from shardprep.reader.array_types import Array, Columns
from shardprep.reader.arrays.memory import FreePieces, HostMemory
from shardprep.reader.decode.features import DecodedExamples, ExampleReader
from shardprep.reader.records.shards import submitted

_GROUP = 8
"""Rows that a thread takes together, and parses before it decodes their images. Decoding evicts the
interpreter's code and data from the cache of the core, so it then runs at a third of its speed."""
IMAGES_A_TURN = 8
"""Number of images of a batch that justify waking another thread."""

NewArray = Callable[[tuple[int, ...], Any], Array]
"""Returns an uninitialized array of a shape and dtype."""


@dataclass(slots=True)
class Filling:
    """A batch that is being filled: each thread takes the next rows of it until none is left."""

    numbers: list[int]
    keys: list[int]
    """For each row, the key that decides its crop."""
    columns: Columns
    groups: Iterator[range]
    """Rows that a thread takes together."""
    futures: list[Future[None]] = field(default_factory=list)
    errors: dict[int, RecordError] = field(default_factory=dict)
    """Row of the batch → its error; complete when all futures are done."""

    def run(self, examples: ExampleReader | DecodedExamples) -> None:
        for rows in self.groups:  # `next` of an iterator is atomic: no two threads get the same
            steps = [
                (row, examples.steps(self.numbers[row], self.columns, row, self.keys[row]))
                for row in rows
            ]
            for row, step in steps * 2:
                try:
                    next(step, None)
                except RecordError as error:
                    self.errors[row] = error

    @property
    def is_complete(self) -> bool:
        """Whether every row is filled, without an error."""
        return all(future.done() for future in self.futures) and not self.errors

    def wait(self) -> None:
        """Block until every row is filled or has an entry in `errors`."""
        for future in self.futures:
            future.result()


class Filler:
    """Threads that fill batches of examples."""

    def __init__(
        self,
        examples: ExampleReader | DecodedExamples,
        *,
        batch_size: int,
        num_threads: int,
        num_kept: int = 0,
        memory: HostMemory | None = None,
    ) -> None:
        """Create a filler of batches of at most `batch_size` rows, whose images are in `memory`.

        The memory of at most `num_kept` batches is kept for reuse.
        """
        self._examples = examples
        self._batch_size = batch_size
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._memory = memory or HostMemory()
        self._free = FreePieces[memoryview](self._memory, num_kept)

    def begin(
        self,
        numbers: list[int],
        keys: list[int],
        image_size: tuple[int, int] | None = None,
        new_images: NewArray | None = None,
    ) -> Filling:
        """Start to fill a batch with the examples `numbers`, and return the unfinished batch.

        `keys` decide the crops. Images that differ in size are resized to `image_size` if given.
        `new_images` returns the memory of images of one size, uninitialized.
        """
        decoder = self._examples.decoder
        columns = decoder.columns(len(numbers))
        shape = decoder.image_shape
        if shape is not None:
            memory = (new_images or self._array)((self._batch_size, *shape), decoder.dtype)
            columns[decoder.image_name] = memory[: len(numbers)]
        elif image_size is not None:
            columns[IMAGE] = (new_images or np.empty)((len(numbers), *image_size, 3), np.uint8)
        rows = range(len(numbers))
        groups = iter([rows[start : start + _GROUP] for start in rows[::_GROUP]])
        filling = Filling(numbers, keys, columns, groups)
        for _ in range(min(self._num_threads, -(-len(numbers) // IMAGES_A_TURN))):
            filling.futures.append(submitted(self._threads(), filling.run, self._examples))
        return filling

    def close(self) -> None:
        """Stop the threads. `begin` starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, "shardprep-batches")
            # The work of the threads holds no reference to this filler. So when the filler is
            # garbage, the finalizer runs and stops them. At exit they finish the work they have.
            end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            end.atexit = False
        return self._pool

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialized array; its memory returns to the filler after the last use."""
        memory = self._free.take()
        if memory is None:
            num_bytes = math.prod(shape) * dtype.itemsize
            memory = self._memory.allocate(num_bytes).view(dtype).reshape(shape).data
        # NumPy sets `base` of a view to `array`, because `memory` is a memoryview. So the finalizer
        # runs after the last view is gone. If `memory` were an array, views would have it as base.
        array = np.asarray(memory)
        weakref.finalize(array, self._free.add, memory).atexit = False
        return array
