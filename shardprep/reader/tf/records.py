"""The records of all epochs, in their order, as a tf.data graph; `order` says which order.

Everything is a function of (seed, epoch, place): no state but the number of the epoch, which is
counted in Python where a dataset is iterated again, or in the graph where it repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from shardprep.reader import order
from shardprep.reader.tf.order_graph import shuffled, walked
from shardprep.reader.tf.python_calls import from_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.reader.options import Request
    from shardprep.reader.tf.blocks import Source

_FOREVER = (1 << 63) - 1
_MAX_BUFFER_BYTES = 1 << 20
_FILE_BLOCK_LENGTH = _FILE_CYCLE_LENGTH = 16
_WINDOW, _FILES = 2, 3  # what a key is for


class Cursor(NamedTuple):
    """Where an iteration begins."""

    epoch: int
    num_done: int
    """Records of this epoch that have been before."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the records of a source are read."""

    request: Request
    cursor: Callable[[], Cursor] | None
    """Called when an iteration begins; None begins at the first epoch, with no call into Python."""
    read: Callable[[Any, Any], Any] | None
    """Positions of first records, numbers of records → the bytes of all these records, string[all],
    in place of the shards. None reads the shards."""
    is_positions: bool
    """Yield the tag of each record in place of its bytes."""
    is_tagged: bool
    """Yield each record with its tag: epoch × records + position, which no other one has."""


def records(source: Source, reading: Reading) -> Any:
    """Return the dataset of the records of all epochs that are asked for."""
    if reading.request.window:
        return _windowed(source, reading)
    # The next group is being read while the last one is used: the order needs no luck, and two
    # groups are all that is in memory.
    return _groups(source, reading).interleave(
        lambda epoch, group, skip: _group(source, reading, epoch, group).skip(skip),
        cycle_length=1,
        block_length=source.order.group_records,
        num_parallel_calls=1,
        deterministic=True,
    )


def _num_epochs(reading: Reading) -> int:
    """Return the epochs of an iteration, 0 for no end."""
    repeat = reading.request.repeat
    return 0 if repeat is True else repeat or 1


def _begin(reading: Reading, find: Callable[[Cursor], tuple[int, ...]], width: int) -> Any:
    """Return a dataset of one element: what `find` makes of the cursor, int64[width]."""
    cursor = reading.cursor

    def begin() -> Any:
        return np.array(find(cursor() if cursor else Cursor(0, 0)), np.int64)

    def call(_: Any) -> Any:
        found = tf.numpy_function(from_graph(begin), [], tf.int64, stateful=True)
        return tf.ensure_shape(found, (width,))

    return tf.data.Dataset.from_tensors(0).map(call)


def _groups(source: Source, reading: Reading) -> Any:
    """Return the dataset of (epoch, group, records of it to leave out) of all groups to be read."""
    number = source.order.num_groups
    epochs = _num_epochs(reading)
    zero = tf.constant(0, tf.int64)
    if reading.cursor is None:
        # A plain range: workers of a service part it among themselves.
        stop = epochs * number or _FOREVER
        return tf.data.Dataset.range(stop).map(lambda i: (i // number, i % number, zero))

    def find(cursor: Cursor) -> tuple[int, ...]:
        return (cursor.epoch, *source.order.find(cursor.epoch, cursor.num_done))

    def groups(begin: Any) -> Any:
        stop = epochs * number if epochs else _FOREVER
        return tf.data.Dataset.range(begin[1], stop).map(
            lambda i: (begin[0] + i // number, i % number, tf.where(i == begin[1], begin[2], zero))
        )

    return _begin(reading, find, 3).flat_map(groups)


def _group(source: Source, reading: Reading, epoch: Any, group: Any) -> Any:
    """Return the dataset of the records of one group, maybe tagged."""
    first, count, runs = _group_blocks(source, epoch, group)
    read = _reads(source, reading)
    if read is not None:
        dataset = tf.data.Dataset.from_tensor_slices(read(first, count))
    else:
        dataset = _stored(source, runs)
    if reading.is_tagged:
        positions = tf.ragged.range(first, first + count).flat_values
        tags = epoch * source.num_records + positions
        dataset = tf.data.Dataset.zip(dataset, tf.data.Dataset.from_tensor_slices(tags))
    if not source.order.shuffle:
        return dataset
    key = order.group_key(source.order.epoch_key(epoch), group)
    return shuffled(dataset, source.order.group_records, key)


def _group_blocks(source: Source, epoch: Any, group: Any) -> tuple[Any, Any, Any]:
    """Return first positions, records and runs of the blocks of a group."""
    plan = source.order
    stop = tf.minimum((group + 1) * plan.group_width, plan.num_blocks)
    blocks = tf.range(group * plan.group_width, stop)
    if plan.shuffle:
        blocks = walked(blocks, plan.num_blocks, plan.epoch_key(epoch))
    first = blocks * plan.block_length
    count = tf.minimum(first + plan.block_length, plan.num_records) - first
    bounds = tf.constant(source.first_runs)
    runs = tf.ragged.range(tf.gather(bounds, blocks), tf.gather(bounds, blocks + 1)).flat_values
    return first, count, runs


def _stored(source: Source, runs: Any) -> Any:
    """Return the dataset of the records of some runs, read by TensorFlow."""
    files = tf.constant(source.records.paths)
    columns = source.runs

    def run(file: Any, offset: Any, num_bytes: Any, count: Any) -> Any:
        # The buffer is the run: nothing is read that is not used.
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[files[file]],
            compression_type="",
            buffer_size=tf.minimum(num_bytes, _MAX_BUFFER_BYTES),
            byte_offsets=[offset],
        )
        found = tf.data.experimental.from_variant(variant, tf.TensorSpec((), tf.string))
        return found.take(count)

    wanted = (columns.file, columns.offset, columns.num_bytes, columns.count)
    gathered = tuple(tf.gather(tf.constant(column), runs) for column in wanted)
    return tf.data.Dataset.from_tensor_slices(gathered).flat_map(run)


def _reads(source: Source, reading: Reading) -> Callable[[Any, Any], Any] | None:
    """Return what reads records where TensorFlow does not do it itself."""
    return source.read if reading.read is None and source.records.is_remote else reading.read


def _windowed(source: Source, reading: Reading) -> Any:
    """Return the records drawn from a plain window that moves over shards read side by side."""
    request = reading.request
    config = request.config
    epochs = _num_epochs(reading)
    size = len(source.slices)
    first = np.cumsum([0, *(one.take for one in source.slices)])[:-1].astype(np.int64)
    shards = source.records.paths
    paths = [shards[number] for number in source.records.frames.shard[first]]
    skip = np.array([one.skip for one in source.slices], np.int64)
    take = np.array([one.take for one in source.slices], np.int64)
    cycle = min(config.interleave_cycle_length or _FILE_CYCLE_LENGTH, size)
    calls = config.num_parallel_calls_for_interleave_files
    read = _reads(source, reading)

    def shard(epoch: Any, file: Any) -> Any:
        begin, count = tf.gather(first, file), tf.gather(take, file)
        tag = epoch * source.num_records + begin
        if reading.is_positions:
            return tf.data.Dataset.range(tag, tag + count)
        if read is not None:
            found = _in_blocks(read, begin, count)
        else:
            found = tf.data.TFRecordDataset(tf.gather(paths, file))
            found = found.skip(tf.gather(skip, file)).take(count)
        if not reading.is_tagged:
            return found
        return tf.data.Dataset.zip(found, tf.data.Dataset.range(tag, tag + count))

    def one_epoch(epoch: Any, num_done: Any) -> Any:
        key = source.order.epoch_key(epoch)
        files = walked(tf.range(size, dtype=tf.int64), size, order.mixed(key, _FILES))
        dataset = tf.data.Dataset.from_tensor_slices(files).interleave(
            lambda file: shard(epoch, file),
            cycle_length=cycle,
            block_length=config.interleave_block_length or _FILE_BLOCK_LENGTH,
            num_parallel_calls=min(calls, cycle) if calls else tf.data.AUTOTUNE,
            deterministic=True,
        )
        window = min(request.window or 1, source.num_records)
        # A window knows its order only by drawing it: going on means drawing again, undecoded.
        return shuffled(dataset, window, order.mixed(key, _WINDOW)).skip(num_done)

    def all_epochs(begin: Any) -> Any:
        zero = tf.constant(0, tf.int64)
        ends = begin[0] + epochs if epochs else tf.constant(_FOREVER, tf.int64)
        return tf.data.Dataset.range(begin[0], ends).flat_map(
            lambda epoch: one_epoch(epoch, tf.where(epoch == begin[0], begin[1], zero))
        )

    return _begin(reading, tuple, 2).flat_map(all_epochs)


def _in_blocks(read: Callable[[Any, Any], Any], first: Any, count: Any) -> Any:
    """Return the dataset of records that lie together, a few read at once."""
    length = tf.constant(order.BLOCK_LENGTH, tf.int64)
    starts = tf.data.Dataset.range(first, first + count, length)
    return starts.flat_map(
        lambda at: tf.data.Dataset.from_tensor_slices(
            read([at], [tf.minimum(length, first + count - at)])
        )
    )
