"""Fill batches with threads; the main process and worker processes run the same code."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from shardprep.dataset.schema import IMAGE, Schema
from shardprep.errors import RecordError
from shardprep.reader.array_types import Array, Columns, Ints, Pixels
from shardprep.reader.arrays.memory import ALIGNMENT, FreePieces, HostMemory
from shardprep.reader.config import BatchOptions
from shardprep.reader.decode.annotations import array_as
from shardprep.reader.decode.crop import crop_keys
from shardprep.reader.decode.features import DecodedExamples, ExampleReader, FeatureDecoder
from shardprep.reader.decode.targets import FORMATTED, BoxLimit
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Records
from shardprep.reader.records.shards import submitted

BatchName = tuple[int, int] | Ints
"""Epoch and number of a global batch, or the tags of a batch."""
_DECODED = 24
"""Usual maximum ratio of the sizes of a decoded image and its record."""
_VARYING = 16
"""Usual maximum length of a dimension that varies, such as the number of objects."""
_CHANGED = 4
"""Usual growth of a batch by a transform: from uint8 to float32."""
_GROUP = 8
"""Number of rows that a thread parses before it decodes their images. Decoding evicts the code and
data of the interpreter from the core's cache, so that Python then runs at a third of its speed."""
IMAGES_A_TURN = 8
"""Number of images of a batch that justify waking another thread."""

NewArray = Callable[[tuple[int, ...], Any], Array]
"""Returns an uninitialized array of a shape and dtype."""


@dataclass(frozen=True, slots=True)
class BatchSource:
    """Everything that decides the content of the batches of a host. Can be pickled."""

    records: Records
    """The rows of the host (see `Order`)."""
    schema: Schema
    names: tuple[str, ...]
    decode: bool
    order: Order
    options: BatchOptions
    num_rows: int
    """Largest number of rows of a batch."""
    transform: Callable[[dict[str, Any], list[int]], Any] | None = None
    """Returns the element of a batch, from its values and the key of each row (see `crop_keys`)."""

    def tags(self, name: BatchName) -> Ints:
        return self.order.batch(*name) if isinstance(name, tuple) else name

    def decoder(self, fallback: Callable[[bytes], Pixels] | None = None) -> FeatureDecoder:
        options = self.options
        return FeatureDecoder(
            self.schema,
            self.names,
            decode=self.decode,
            fallback=fallback,
            limit=None if options.max_boxes is None else BoxLimit(options.max_boxes),
            options=options,
        )

    def examples(self) -> ExampleReader:
        return ExampleReader(self.records.in_order(self.order), self.decoder())

    def batch_bytes(self) -> int:
        """Return the bytes of a batch in memory, estimated if shapes of its arrays vary."""
        decoder, lengths, size = self.decoder(), self.records.frames.length, 0
        for name, (shape, dtype) in decoder.shapes().items():
            if name == decoder.image_name and None in shape:
                size += _DECODED * int(lengths.sum()) // max(1, len(lengths))
            else:
                known = (_VARYING if length is None else length for length in shape)
                size += np.dtype(dtype).itemsize * prod(known)
        growth = 1 if self.transform is None else _CHANGED
        return growth * size * self.num_rows + ALIGNMENT * len(decoder.names)

    def for_workers(self, num_threads: int, on_error: Literal["raise", "skip"]) -> BatchSource:
        """Return the source for worker processes, which need neither sharding nor weights."""
        options = replace(
            self.options, sharding=None, weights=None, num_threads=num_threads, on_error=on_error
        )
        return replace(self, options=options)


@dataclass(slots=True)
class Filling:
    """A batch in progress: each thread takes the next group of rows until none is left."""

    numbers: list[int]
    keys: list[int]
    """For each row, the key that decides its crop."""
    columns: Columns
    groups: Iterator[range]
    """Iterator over the groups of rows that no thread has taken yet."""
    futures: list[Future[None]] = field(default_factory=list)
    errors: dict[int, RecordError] = field(default_factory=dict)
    """Row of the batch → error of its record; complete when all futures are done."""

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


class BatchMaker:
    """Threads that fill batches, and reuse the memory of a batch when its last view is deleted."""

    def __init__(
        self,
        source: BatchSource,
        num_threads: int,
        num_kept: int,
        note: Callable[[int, RecordError], None],
        memory: HostMemory | None = None,
        examples: ExampleReader | DecodedExamples | None = None,
    ) -> None:
        """Keep the memory of up to `num_kept` batches; `note` is called for each bad record.

        With 0 threads, the thread that finishes a batch fills it. `examples` replace the examples
        of the source: the same examples with another decoder, or decoded examples.
        """
        self._source = source
        self._examples = examples = source.examples() if examples is None else examples
        self._records = source.records
        if isinstance(examples, ExampleReader):
            self._records = examples.records  # these may read ahead
        self._options = source.options
        self._note = note
        self._bad: dict[int, RecordError] = {}
        self._num_threads, self._num_kept = num_threads, num_kept
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._memory = memory or HostMemory()
        self._free = FreePieces[memoryview](self._memory, num_kept)

    def begin(self, name: BatchName, new_images: NewArray | None = None) -> Filling:
        """Start to fill a batch of at least 1 row; `new_images` allocates images of equal size."""
        order = self._source.order
        tags = self._source.tags(name)
        if isinstance(name, tuple):
            epoch, start = name[0], name[1] * self._options.batch_size
            self._records.expect(epoch, start, start + len(tags))
        keys = [0] * len(tags)
        if self._options.crop is not None or self._source.transform is not None:
            keys = crop_keys(order.key, tags)
        numbers = order.rows(tags).tolist()
        decoder = self._examples.decoder
        columns = decoder.columns(len(numbers))
        shape = decoder.image_shape
        if shape is not None:
            new_images = new_images or (self._array if self._num_kept else np.empty)
            memory = new_images((self._source.num_rows, *shape), decoder.dtype)
            columns[decoder.image_name] = memory[: len(numbers)]
        rows = range(len(numbers))
        groups = iter([rows[start : start + _GROUP] for start in rows[::_GROUP]])
        filling = Filling(numbers, keys, columns, groups)
        for _ in range(min(self._num_threads, -(-len(numbers) // IMAGES_A_TURN))):
            with self._lock:
                pool = self._threads()
            filling.futures.append(submitted(pool, filling.run, self._examples))
        return filling

    def finish(self, filling: Filling) -> dict[str, Any]:
        """Wait until a batch is filled; return its values by feature.

        Values are padded unless the options have `ragged`, and boxes have the format `box_format`.
        The option `on_error` decides whether bad records are replaced or the first error is raised.
        """
        if not self._num_threads:
            filling.run(self._examples)
        filling.wait()
        for row in sorted(filling.errors):
            if self._options.on_error == "raise":
                raise filling.errors[row]
            self._found_bad(filling.numbers[row], filling.errors[row])
            fill = partial(self._fill, columns=filling.columns, row=row, key=filling.keys[row])
            self._records.next_good(filling.numbers[row], fill, self._bad, self._found_bad)
        return self._finished(filling.columns)

    def transformed(self, filling: Filling, values: dict[str, Any]) -> Any:
        transform = self._source.transform
        return values if transform is None else transform(values, filling.keys)

    def close(self) -> None:
        """Stop the threads. `begin` starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _fill(self, number: int, columns: Columns, row: int, key: int) -> None:
        for _ in self._examples.steps(number, columns, row, key):
            pass

    def _found_bad(self, number: int, error: RecordError) -> None:
        if number not in self._bad:
            self._bad[number] = error
            self._note(number, error)

    def _finished(self, columns: dict[str, Any]) -> dict[str, Any]:
        options, decoder = self._options, self._examples.decoder
        values = columns
        if options.ragged:
            values = {
                name: list(column) if column.dtype == object else column
                for name, column in columns.items()
            }
        elif decoder.needs_padding:
            values = decoder.padded(columns)
        if options.box_format != "rel_yxyx":
            for name in FORMATTED.keys() & values.keys():
                values = {**values, name: self._format(name, values[name], values[IMAGE])}
        return values

    def _format(self, name: str, places: Any, images: Any) -> Any:
        box_format, size = self._options.box_format, self._examples.decoder.image_size
        if not self._options.ragged:
            return array_as(name, places, box_format, size or images.shape[1:3])
        sizes = [size or image.shape[:2] for image in images]
        return [array_as(name, own, box_format, of) for own, of in zip(places, sizes, strict=True)]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, "shardprep-batches")
            # The work of the threads holds no reference to this maker. So when the maker is
            # garbage, the finalizer runs and stops them. At exit they finish the work they have.
            end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            end.atexit = False
        return self._pool

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialized array; its memory is reused after the last view is deleted."""
        memory = self._free.take()
        if memory is None:
            num_bytes = prod(shape) * dtype.itemsize
            memory = self._memory.allocate(num_bytes).view(dtype).reshape(shape).data
        # NumPy sets `base` of a view to `array`, because `memory` is a memoryview. So the finalizer
        # runs after the last view is gone. If `memory` were an array, views would have it as base.
        array = np.asarray(memory)
        weakref.finalize(array, self._free.add, memory).atexit = False
        return array
