"""The records of all epochs in their order: Python finds which, reads them, and the graph decodes.

A tag names one record of one epoch (`Order.tags`). Tags are found in Python, many at a time: an
order written as a graph takes longer to be made ready, in every epoch anew, than the first batch
takes to be decoded. A plain window alone draws its tags in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import IMAGE, MASK, OBJECT_MASK
from shardprep.dataset.stored_size import TooLargeError, check_stored_png
from shardprep.errors import RecordError
from shardprep.reader.order import permutation
from shardprep.reader.tf.python_calls import as_written, first_element, in_python

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardprep.reader.array_types import Ints
    from shardprep.reader.config import Request
    from shardprep.reader.order.order import Order
    from shardprep.reader.records.open import Subset

    Read = Callable[[Ints], list[bytes]]
    """Return the bytes of the records at some positions."""

_FOREVER = (1 << 62) - 1
"""Records of an iteration without end."""
_FILE_BLOCK_LENGTH = _FILE_CYCLE_LENGTH = 16
_NUM_READS = 2
"""Calls that read at a time: one reads while the records of the other are used."""
_WINDOW, _FILES = 2, 3  # what a key is for


class Cursor(NamedTuple):
    """Where an iteration begins."""

    epoch: int = 0
    num_done: int = 0
    """Records of this epoch that have been before."""


class CheckedRecords:
    """The records that were found to be Examples without a huge PNG: a byte for each position.

    TensorFlow's own error quotes the bytes of a record, which Python cannot show as a text, and its
    bound on a PNG is three times that on a JPEG.
    """

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        """Take the dtype of each feature by name."""
        self._decoder = ExampleDecoder(dtypes, {IMAGE, MASK, OBJECT_MASK})
        self._marks = bytearray()

    def __contains__(self, position: int) -> bool:
        return position < len(self._marks) and bool(self._marks[position])

    def check(self, position: int, payload: bytes) -> None:
        """Check a record, and remember that it is sound; raise RecordError or TooLargeError."""
        values = self._decoder.find(payload) or self._decoder.decode(payload)
        for name in (IMAGE, MASK, OBJECT_MASK):
            for data in values.get(name, ()):
                if not isinstance(data, int | float):
                    check_stored_png(data)
        if position >= len(self._marks):
            self._marks.extend(bytes(position + 1 - len(self._marks)))
        self._marks[position] = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """The records of a subset, in the order of a request."""

    subset: Subset
    order: Order
    request: Request
    cursor: Callable[[], Cursor] = Cursor
    """Called when an iteration begins."""
    checked: CheckedRecords = field(init=False)

    def __post_init__(self) -> None:
        """Check nothing yet."""
        object.__setattr__(self, "checked", CheckedRecords(self.subset.schema.dtypes))

    def records(self, read: Read | None = None) -> Any:
        """Return the dataset of (bytes, tag), one by one; by default a bad record is an error."""
        subset = self.subset
        # What is in object storage is asked for a group at a time: much of it lies together.
        blocks = self.order.blocks or subset.blocks(self.request.config, shuffle=True)
        size = blocks.group_records if subset.records.is_remote else subset.block_length
        return self.batches(size, read).unbatch()

    @as_written
    def batches(self, size: int, read: Read | None = None, *, drop: bool = False) -> Any:
        """Return the dataset of batches of (bytes, tag); the last one may have fewer."""
        number, read = self.subset.num_records, read or self.read

        def payloads(tags: Ints) -> Any:
            return [np.array(read(tags % number), object)]

        def call(tags: Any) -> tuple[Any, Any]:
            (found,) = in_python(payloads, [tags], [tf.TensorSpec(tags.shape, tf.string)])
            return found, tags

        calls = self.request.config.num_parallel_calls_for_interleave_files or _NUM_READS
        return self.tags(size, drop=drop).map(call, calls, deterministic=True)

    def read(self, positions: Ints) -> list[bytes]:
        """Return the bytes of the records at some positions. Raises the error of a bad one."""
        found = []
        records = self.subset.records
        for number, one in zip(positions.tolist(), records.read(positions), strict=True):
            if isinstance(one, RecordError):
                raise one
            payload = bytes(one)
            if number not in self.checked:
                try:
                    self.checked.check(number, payload)
                except RecordError as error:
                    raise records.damaged(number, error.what) from error
                except TooLargeError as error:
                    raise records.damaged(number, str(error)) from error
            found.append(payload)
        return found

    @as_written
    def tags(self, size: int, *, drop: bool = False) -> Any:
        """Return the dataset of batches of tags, int64[size]; the last one may have fewer."""
        if self.request.window:
            return self._windowed().batch(size, drop_remainder=drop)
        number, epochs = self.subset.epoch_records, self.request.num_epochs
        cut = size if drop else 1

        def step(state: Ints) -> tuple[Ints, Ints]:
            start, stop = state.tolist()
            if start < 0:
                epoch, num_done = self.cursor()
                start = epoch * number + num_done
                stop = _FOREVER if epochs is None else (epoch + epochs) * number
                stop -= (stop - start) % cut
            end = min(start + size, stop)
            return np.array([end, stop]), self._tags(start, end)

        def call(state: Any, _: Any) -> tuple[Any, Any]:
            shapes = (2,), (size if drop else None,)
            state, tags = in_python(step, [state], [tf.TensorSpec(one, tf.int64) for one in shapes])
            return state, tags

        num_turns = None if epochs is None else (epochs * number + size - cut) // size
        turns = tf.data.Dataset.from_tensors(first_element()).repeat(num_turns)
        batches = turns.scan(tf.constant([-1, -1], tf.int64), call)
        return batches.take_while(
            lambda tags: tf.size(tags) > 0
        )  # begun in the middle, it has less

    def _tags(self, start: int, stop: int) -> Ints:
        """Return the tags at the places from `start` to before `stop`, counted from epoch 0 on."""
        number = len(self.order)
        parts = [np.empty(0, np.int64)]
        while start < stop:
            epoch, place = divmod(start, number)
            end = min(number, place + stop - start)
            self.subset.records.expect(epoch, place, end)
            positions = self.order.positions(epoch, place, end)
            parts.append(self.order.tags(epoch, place, positions))
            start += end - place
        return np.concatenate(parts)

    def _windowed(self) -> Any:
        """Return the dataset of tags drawn from a window that moves over shards side by side."""
        config, number = self.request.config, self.subset.num_records
        epochs = self.request.num_epochs
        frames = self.subset.records.frames
        goes_back = np.diff(frames.record, prepend=-1) <= 0
        first = np.flatnonzero((np.diff(frames.shard, prepend=-1) != 0) | goes_back)
        take = np.diff(first, append=number)

        def one_epoch(epoch: Any, num_done: Any) -> Any:
            key = self.order.epoch_key(epoch)
            places = tf.range(len(take), dtype=tf.int64)
            files = walked(places, len(take), permutation.mix(key, _FILES))
            begin = epoch * number + tf.gather(first, files)
            shards = tf.data.Dataset.from_tensor_slices((begin, begin + tf.gather(take, files)))
            tags = shards.interleave(
                tf.data.Dataset.range,
                cycle_length=min(config.interleave_cycle_length or _FILE_CYCLE_LENGTH, len(take)),
                block_length=config.interleave_block_length or _FILE_BLOCK_LENGTH,
            )
            window = min(self.request.window or 1, number)
            # A window knows its order only by drawing it: going on means drawing again, unread.
            return shuffled(tags, window, permutation.mix(key, _WINDOW)).skip(num_done)

        spec = tf.TensorSpec((2,), tf.int64)

        def begin(turn: Any) -> Any:
            found = in_python(lambda _: [np.array(self.cursor(), np.int64)], [turn], [spec])
            return found[0]

        def all_epochs(begin: Any) -> Any:
            stop = tf.constant(_FOREVER, tf.int64) if epochs is None else begin[0] + epochs
            return tf.data.Dataset.range(begin[0], stop).flat_map(
                lambda epoch: one_epoch(epoch, begin[1] * tf.cast(epoch == begin[0], tf.int64))
            )

        return tf.data.Dataset.from_tensors(first_element()).map(begin).flat_map(all_epochs)


def walked(places: Any, size: int, key: Any) -> Any:
    """Return what `permutation.permute` returns, as a graph."""
    rows, columns = (tf.constant(one, tf.int64) for one in permutation.table_shape(size))
    (found,) = tf.while_loop(
        lambda found: tf.reduce_any(found >= size),
        lambda found: (tf.where(found >= size, _permuted(found, rows, columns, key), found),),
        (_permuted(places, rows, columns, key),),
    )
    return found


_NUMBER = tf.TensorSpec((), tf.int64)
_permuted = tf.function(  # so that it becomes a graph once a process, not in every `load`
    permutation.permute_table,
    input_signature=(tf.TensorSpec((None,), tf.int64), _NUMBER, _NUMBER, _NUMBER),
)


def shuffled(dataset: Any, window: int, key: Any) -> Any:
    """Return a dataset shuffled in a window by a key alone.

    All of it in one window is `permutation.shuffled_range`. `Dataset.shuffle` would use the global
    seed of TensorFlow as well, and another order in each iteration.
    """
    seed, seed2 = permutation.shuffle_seeds(key)
    spec = dataset.element_spec
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=window,
        seed=seed,
        seed2=seed2,
        output_types=[one.dtype for one in tf.nest.flatten(spec)],
        output_shapes=[one.shape for one in tf.nest.flatten(spec)],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, spec)
