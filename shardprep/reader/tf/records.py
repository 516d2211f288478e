"""The order of all epochs as a dataset of tags, and the records that tags name.

A tag names one record of one epoch (`Order.tags`). Python computes tags, many at a time: a graph
that computes an order takes longer to start, in every epoch, than the first batch takes to decode.
Only with a plain shuffle window are tags drawn in the graph.

The workers of a tf.data service cannot call Python. They get a graph that computes the order, and
TensorFlow reads the shards (`served_records`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import IMAGE, MASKS, TARGET_IMAGE
from shardprep.dataset.stored_size import TooLargeError, check_stored_png
from shardprep.errors import RecordError
from shardprep.reader.array_types import Ints
from shardprep.reader.config import Request
from shardprep.reader.order import permutation
from shardprep.reader.order.epoch import BlockShuffle
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Records
from shardprep.reader.tf.python_calls import as_written, first_element, in_python

_PICTURES = frozenset({IMAGE, TARGET_IMAGE, *MASKS})
_FOREVER = (1 << 62) - 1
_MAX_BUFFER_BYTES = 1 << 20
_FILE_BLOCK_LENGTH = _FILE_CYCLE_LENGTH = 16
_WINDOW, _FILES = 2, 3
"""Separate the keys of windows and of shards from other keys derived from the key of an epoch."""


class Cursor(NamedTuple):
    """Where an iteration begins: an epoch, and the number of its own places to skip."""

    epoch: int = 0
    num_done: int = 0


@dataclass(frozen=True, slots=True)
class EpochTags:
    """The tags of the epochs of a request, from a cursor on.

    With `shuffle=N`, several shards are read in turn, and a shuffle window replaces the order.
    """

    order: Order
    records: Records
    request: Request
    dtypes: Mapping[str, str]
    """Of the features of the records."""
    cursor: Callable[[], Cursor] = Cursor
    """Returns the start of an iteration when it begins."""

    @as_written
    def batches(self, size: int, *, drop: bool = False) -> Any:
        """Return a dataset of tags, int64[size]; a shorter last batch is left out with `drop`."""
        if self.request.window:
            return self._windowed(self.request.window).batch(size, drop_remainder=drop)
        number, epochs = len(self.order), self.request.num_epochs
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
        # An iteration that begins in the middle of an epoch has fewer batches than turns.
        return batches.take_while(lambda tags: tf.size(tags) > 0)

    @as_written
    def payloads(self, size: int, num_calls: int, *, drop: bool = False) -> Any:
        """Return a dataset of batches of (bytes, tag), read by `num_calls` parallel calls."""
        rows, read = self.order.rows, _checked(self.records, self.dtypes)

        def payloads(tags: Ints) -> Any:
            return [np.array(read(rows(tags)), object)]

        def call(tags: Any) -> tuple[Any, Any]:
            (data,) = in_python(payloads, [tags], [tf.TensorSpec(tags.shape, tf.string)])
            return data, tags

        return self.batches(size, drop=drop).map(call, num_calls, deterministic=True)

    def _tags(self, start: int, stop: int) -> Ints:
        """Return the tags of own places, counted from epoch 0 on; announce them to `records`."""
        number = len(self.order)
        parts = [np.empty(0, np.int64)]
        while start < stop:
            epoch, place = divmod(start, number)
            end = min(number, place + stop - start)
            self.records.expect(epoch, place, end)
            parts.append(self.order.tags(epoch, place, end))
            start += end - place
        return np.concatenate(parts)

    def _windowed(self, window: int) -> Any:
        number, epochs, config = len(self.records), self.request.num_epochs, self.request.config
        own = self.order.own_range
        frames = self.records.frames
        goes_back = np.diff(frames.record, prepend=-1) <= 0
        first = np.flatnonzero((np.diff(frames.shard, prepend=-1) != 0) | goes_back)
        take = np.diff(first, append=number)

        def one_epoch(epoch: Any, num_done: Any) -> Any:
            key = self.order.epoch_key(epoch)
            files = tf.range(len(take), dtype=tf.int64)
            files = walked(files, len(take), permutation.mix(key, _FILES))
            begin = epoch * self.order.num_records + own.start + tf.gather(first, files)
            shards = tf.data.Dataset.from_tensor_slices((begin, begin + tf.gather(take, files)))
            tags = shards.interleave(
                tf.data.Dataset.range,
                cycle_length=min(config.interleave_cycle_length or _FILE_CYCLE_LENGTH, len(take)),
                block_length=config.interleave_block_length or _FILE_BLOCK_LENGTH,
            )
            key = permutation.mix(key, _WINDOW)
            # Each draw from a window depends on the draws before, so resuming repeats them.
            return shuffled(tags, min(window, number), key).skip(num_done)

        spec = tf.TensorSpec((2,), tf.int64)

        def begin(turn: Any) -> Any:
            (place,) = in_python(lambda _: [np.array(self.cursor(), np.int64)], [turn], [spec])
            return place

        def all_epochs(begin: Any) -> Any:
            stop = tf.constant(_FOREVER, tf.int64) if epochs is None else begin[0] + epochs
            return tf.data.Dataset.range(begin[0], stop).flat_map(
                lambda epoch: one_epoch(epoch, begin[1] * tf.cast(epoch == begin[0], tf.int64))
            )

        return tf.data.Dataset.from_tensors(first_element()).map(begin).flat_map(all_epochs)


def _checked(records: Records, dtypes: Mapping[str, str]) -> Callable[[Ints], list[bytes]]:
    """Return a function that reads the payloads of rows, and checks each when it is first read.

    Records are checked before TensorFlow parses them: its error for a record that is not an Example
    quotes bytes that are not text, and its size limit for a PNG is three times that for a JPEG.
    """
    decoder, is_good = ExampleDecoder(dtypes, _PICTURES), bytearray(len(records))

    def good(row: int, read: memoryview | RecordError) -> bytes:
        if isinstance(read, RecordError):
            raise read
        payload = bytes(read)
        if not is_good[row]:
            try:
                values = decoder.find(payload) or decoder.decode(payload)
                for name in _PICTURES & values.keys():
                    for data in values[name]:
                        if not isinstance(data, int | float):
                            check_stored_png(data)
            except (RecordError, TooLargeError) as error:
                raise records.damaged(row, getattr(error, "what", str(error))) from error
            is_good[row] = 1
        return payload

    def payloads(rows: Ints) -> list[bytes]:
        return [good(*pair) for pair in zip(rows.tolist(), records.read(rows), strict=True)]

    return payloads


def walked(places: Any, size: int, key: Any) -> Any:
    """Return the result of `permutation.permute` as a tensor of a graph."""
    rows, columns = (tf.constant(one, tf.int64) for one in permutation.table_shape(size))
    (permuted,) = tf.while_loop(
        lambda at: tf.reduce_any(at >= size),
        lambda at: (tf.where(at >= size, _permuted(at, rows, columns, key), at),),
        (_permuted(places, rows, columns, key),),
    )
    return permuted


_NUMBER = tf.TensorSpec((), tf.int64)
_permuted = tf.function(  # one graph per process, not one per `load`
    permutation.permute_table,
    input_signature=(tf.TensorSpec((None,), tf.int64), _NUMBER, _NUMBER, _NUMBER),
)


def shuffled(dataset: Any, window: int, key: Any) -> Any:
    """Return the dataset shuffled in a window, in an order that depends only on the key.

    A window of the whole dataset gives the order of `permutation.shuffled_ranges`. The order of
    `Dataset.shuffle` would also depend on TensorFlow's global seed, and change in each iteration.
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


def served_records(
    records: Records, order: Order, blocks: BlockShuffle, num_epochs: int | None
) -> Any:
    """Return a dataset of (bytes, tag) of all epochs that workers of a service divide by groups."""
    begin = order.own_range.start
    number = blocks.num_groups
    read = _block_reader(records, blocks)
    stop = _FOREVER if num_epochs is None else num_epochs * number

    def group(i: Any) -> Any:
        epoch, group = i // number, i % number
        members = tf.range(
            group * blocks.group_width,
            tf.minimum((group + 1) * blocks.group_width, blocks.num_blocks),
        )
        if blocks.shuffle:
            members = walked(members, blocks.num_blocks, order.epoch_key(epoch))
        first = members * blocks.block_length
        stop = tf.minimum(first + blocks.block_length, blocks.num_records)
        tags = epoch * order.num_records + begin + tf.ragged.range(first, stop).flat_values
        dataset = tf.data.Dataset.zip(read(members), tf.data.Dataset.from_tensor_slices(tags))
        if not blocks.shuffle:
            return dataset
        return shuffled(
            dataset, blocks.group_records, permutation.group_key(order.epoch_key(epoch), group)
        )

    # The next group is read while this one is used: two groups are in memory.
    return tf.data.Dataset.range(stop).interleave(
        group,
        cycle_length=1,
        block_length=blocks.group_records,
        num_parallel_calls=1,
        deterministic=True,
    )


def _block_reader(records: Records, blocks: BlockShuffle) -> Callable[[Any], Any]:
    """Return a function of block numbers, int64[n], that returns the dataset of their records.

    Neighbouring records of a block in a shard are a run, which TensorFlow reads at once.
    """
    frames = records.frames
    starts = frames.starts_run()
    starts[:: blocks.block_length] = True
    first = np.flatnonzero(starts).astype(np.int64)
    stop = np.append(first[1:], len(records))
    offset = frames.offset[first]
    num_bytes = frames.offset[stop - 1] + frames.length[stop - 1] - offset
    columns = frames.shard[first], offset, num_bytes, stop - first
    begins = np.arange(blocks.num_blocks + 1, dtype=np.int64) * blocks.block_length
    first_runs = np.searchsorted(first, begins)  # of each block; then the number of runs

    def read(numbers: Any) -> Any:
        files, bounds = tf.constant(records.paths), tf.constant(first_runs)
        runs = tf.ragged.range(tf.gather(bounds, numbers), tf.gather(bounds, numbers + 1))

        def run(file: Any, offset: Any, num_bytes: Any, count: Any) -> Any:
            # The buffer has the size of the run, so that no unused bytes are read.
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=[files[file]],
                compression_type="",
                buffer_size=tf.minimum(num_bytes, _MAX_BUFFER_BYTES),
                byte_offsets=[offset],
            )
            spec = tf.TensorSpec((), tf.string)
            return tf.data.experimental.from_variant(variant, spec).take(count)

        gathered = tuple(tf.gather(column, runs.flat_values) for column in columns)
        return tf.data.Dataset.from_tensor_slices(gathered).flat_map(run)

    return read


def served(dataset: Any, address: str, size: int, *, drop: bool) -> Any:
    """Return `dataset` as computed by the workers of a service, which share out its groups.

    The last batch of each worker may be short, so records are batched again here.
    """
    service = tf.data.experimental.service
    dataset = dataset.apply(service.distribute(service.ShardingPolicy.DYNAMIC, address))
    return dataset.rebatch(size, drop_remainder=drop)
