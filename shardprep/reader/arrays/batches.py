"""Batches that threads decode ahead of use, row by row, in memory that is reused.

Order and content do not depend on threads. The images of a batch are not overwritten while anybody
holds their array or a view of it. Afterwards, a later batch uses their memory.
"""

from __future__ import annotations

import math
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np

from shardprep.dataset.schema import BOX, IMAGE, KEYPOINTS, POINTS
from shardprep.errors import DatasetError, RecordError
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Array, Bytes, Columns
from shardprep.reader.config import BatchOptions
from shardprep.reader.decode.annotations import boxes_as, points_as
from shardprep.reader.decode.crop import crop_keys
from shardprep.reader.decode.features import DecodedExamples, ExampleReader
from shardprep.reader.decode.targets import Target
from shardprep.reader.order.order import Order, State, check_state, identity
from shardprep.reader.records.shards import NUM_READS, submitted

IMAGES_A_TURN = 8
"""Number of images of a batch that justify waking another thread."""
_ALIGNMENT = 64
"""Alignment in bytes of the arrays that TensorFlow uses without a copy."""
_STATE = "Dataset.batches.load_state_dict"


@dataclass(slots=True)
class Filling:
    """A batch that is being filled: each thread takes the next row of it until none is left."""

    numbers: list[int]
    keys: list[int]
    """For each row, the key that decides its crop."""
    columns: Columns
    rows: Iterator[int]
    futures: list[Future[None]] = field(default_factory=list)
    errors: dict[int, RecordError] = field(default_factory=dict)
    """Row of the batch → its error; complete when all futures are done."""

    def run(self, examples: ExampleReader | DecodedExamples) -> None:
        for row in self.rows:  # `next` of an iterator is atomic: no two threads get the same row
            try:
                examples.fill(self.numbers[row], self.columns, row, self.keys[row])
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
        num_kept: int,
    ) -> None:
        """Create a filler of batches of at most `batch_size` rows.

        The memory of at most `num_kept` batches is kept for reuse.
        """
        self._examples = examples
        self._batch_size = batch_size
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None
        self._free: deque[memoryview] = deque(maxlen=num_kept)

    def begin(
        self, numbers: list[int], keys: list[int], image_size: tuple[int, int] | None = None
    ) -> Filling:
        """Start to fill a batch with the examples `numbers`, and return the unfinished batch.

        `keys` decide the crops. Images that differ in size are resized to `image_size` if given.
        """
        decoder = self._examples.decoder
        columns = decoder.columns(len(numbers))
        shape = decoder.image_shape
        if shape is not None:
            memory = self._array((self._batch_size, *shape), decoder.dtype)
            columns[decoder.image_name] = memory[: len(numbers)]
        elif image_size is not None:
            columns[IMAGE] = np.empty((len(numbers), *image_size, 3), np.uint8)
        filling = Filling(numbers, keys, columns, rows=iter(range(len(numbers))))
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
        try:
            memory = self._free.pop()
        except IndexError:
            num_bytes = math.prod(shape) * dtype.itemsize
            memory = _aligned(num_bytes).view(dtype).reshape(shape).data
        # NumPy sets `base` of a view to `array`, because `memory` is a memoryview. So the finalizer
        # runs after the last view is gone. If `memory` were an array, views would have it as base.
        array = np.asarray(memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array


def _aligned(num_bytes: int) -> Bytes:
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + num_bytes]


class ArrayBatches:
    """The iterator that `Dataset.batches` returns; its batches are described there."""

    def __init__(
        self,
        examples: ExampleReader,
        target: Target,
        order: Order,
        digest: str,
        options: BatchOptions,
    ) -> None:
        """Begin at the first batch of epoch 0. `digest` is the hash of the records of all hosts."""
        self._examples = examples
        self._order = order
        self._digest = digest
        self._num_batches = order.num_batches(drop=options.drop_remainder)
        """Number of global batches of an epoch."""
        self._num_own_batches = order.num_own_batches(drop=options.drop_remainder)
        self._options = options
        self._target = target
        waiting = NUM_READS if examples.records.waits else 1
        num_threads = options.num_threads or max(usable_cores(), waiting)
        busy = -(-num_threads * IMAGES_A_TURN // options.batch_size) + 1
        self._prefetch = max(2, busy) if options.prefetch is None else options.prefetch
        self._filler = Filler(
            examples,
            batch_size=min(options.batch_size, len(order)),
            num_threads=num_threads,
            num_kept=self._prefetch + 2,
        )
        self._bad: dict[int, RecordError] = {}
        self._next = 0
        self._started = deque[tuple[int, Filling]]()
        self._seek(0)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that this host takes from an epoch."""
        return self._num_own_batches

    @property
    def skipped(self) -> tuple[RecordError, ...]:
        """Error of each bad record that was replaced so far, with file, number and offset."""
        return tuple(self._bad.values())

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
            self.close()
            raise StopIteration
        try:
            number, filling = self._started.popleft()
            columns = self._wait(filling)
        except BaseException:
            self._seek(self._next)  # so that the next call tries the same batch again
            raise
        self._next = number + 1
        return self._element(columns)

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

    def keys(self) -> list[int]:
        """Return a key for each image of the last batch, a hash of seed, epoch and record."""
        tags, _ = self._order.batch(*divmod(self._next - 1, self._num_batches))
        return crop_keys(self._order.key, tags)

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next batch, in values that JSON can store."""
        epoch, batch = divmod(self._next, self._num_batches or 1)
        return State(self._order.seed, epoch, batch, self._identity())._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another iterator or of `reader.iterate`, with its seed.

        Raises:
            DatasetError: the state is malformed, belongs to other records or batches, or its epoch
                is beyond `epochs`.
        """
        saved = check_state(_STATE, state, self._identity(), self._num_batches)
        num_epochs = self._options.epochs
        if num_epochs is not None and saved.epoch > num_epochs:
            what = f"epoch={saved.epoch} of {num_epochs}"
            raise DatasetError(_STATE, what, "give batches() as many epochs")
        self._order = replace(self._order, seed=saved.seed)
        self._seek(saved.epoch * self._num_batches + saved.batch)

    def close(self) -> None:
        """Stop the threads and drop batches decoded ahead. The iterator then has no next batch."""
        self._filler.close()
        self._started.clear()
        self._upcoming = iter(range(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _identity(self) -> str:
        return identity(self._digest, self._order, drop=self._options.drop_remainder)

    def _seek(self, number: int) -> None:
        """Continue with global batch `number`, counted over all epochs."""
        epochs, steps = self._options.epochs, self._num_batches
        self._next = number
        self._started.clear()
        is_endless = epochs is None and steps > 0
        stop = sys.maxsize if is_endless else (epochs or 0) * steps
        self._upcoming = iter(range(number, stop))

    def _start(self) -> None:
        """Start to fill batches: the next one, and `prefetch` batches after it."""
        order, size = self._order, self._options.batch_size
        while len(self._started) <= self._prefetch:
            number = next(self._upcoming, None)
            if number is None:
                return
            epoch, batch = divmod(number, self._num_batches)
            tags, image_size = order.batch(epoch, batch)
            if not len(tags):
                continue  # this host has no part of this batch
            self._examples.records.expect(epoch, batch * size, batch * size + len(tags))
            keys = [0] * len(tags)
            if self._options.crop is not None:
                keys = crop_keys(order.key, tags)
            filling = self._filler.begin(order.rows(tags).tolist(), keys, image_size)
            self._started.append((number, filling))

    def _wait(self, filling: Filling) -> Columns:
        """Return the columns of a filled batch; replace bad records, or raise the first error."""
        filling.wait()
        for row in sorted(filling.errors):
            if self._options.on_error == "raise":
                raise filling.errors[row]
            self._note(filling.numbers[row], filling.errors[row])
            records, columns = self._examples.records, filling.columns
            fill = partial(self._examples.fill, columns=columns, row=row, key=filling.keys[row])
            records.next_good(filling.numbers[row], fill, self._bad, self._note)
        return filling.columns

    def _note(self, number: int, error: RecordError) -> None:
        if number not in self._bad:
            self._bad[number] = error
            warnings.warn(f"skipped: {error}", RuntimeWarning, stacklevel=4)

    def _element(self, columns: Columns) -> Any:
        options, decoder = self._options, self._examples.decoder
        values: dict[str, Any] = columns
        if options.ragged:
            values = {
                name: list(column) if column.dtype == object else column
                for name, column in columns.items()
            }
        elif decoder.needs_padding:
            values = decoder.padded(columns)
        if options.box_format != "rel_yxyx":
            for name, convert in ((BOX, boxes_as), (KEYPOINTS, points_as), (POINTS, points_as)):
                if name in values:
                    values = {**values, name: self._format(convert, values[name], values[IMAGE])}
        if not options.as_supervised:
            return {name: values[name] for name in decoder.names}
        return self._target.pair(values[decoder.image_name], values)

    def _format(self, convert: Callable[..., Any], places: Any, images: Any) -> Any:
        box_format, size = self._options.box_format, self._examples.decoder.image_size
        if not self._options.ragged:
            return convert(places, box_format, size or images.shape[1:3])
        sizes = [size or image.shape[:2] for image in images]
        return [convert(own, box_format, of) for own, of in zip(places, sizes, strict=True)]
