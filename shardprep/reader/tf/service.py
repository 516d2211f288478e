"""Records and batches by the workers of a tf.data service: a graph without calls into Python.

The graph holds the order that `order` computes, and TensorFlow reads the shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from shardprep.reader.order.epoch import BlockShuffle
from shardprep.reader.order.order import Order
from shardprep.reader.order.permutation import group_key
from shardprep.reader.records.records import Records
from shardprep.reader.tf.records import shuffled, walked

_FOREVER = (1 << 63) - 1
_MAX_BUFFER_BYTES = 1 << 20


def served_records(
    records: Records, order: Order, blocks: BlockShuffle, num_epochs: int | None
) -> Any:
    """Return the dataset of (bytes, tag) of all epochs; each worker reads groups of blocks."""
    number = blocks.num_groups
    runs = _Runs(records, blocks.block_length, blocks.num_blocks)
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
        tags = epoch * blocks.num_records + tf.ragged.range(first, stop).flat_values
        dataset = tf.data.Dataset.zip(
            runs.records(members), tf.data.Dataset.from_tensor_slices(tags)
        )
        if not blocks.shuffle:
            return dataset
        return shuffled(dataset, blocks.group_records, group_key(order.epoch_key(epoch), group))

    # The next group is read while this one is used: two groups are in memory, in a fixed order.
    return tf.data.Dataset.range(stop).interleave(
        group,
        cycle_length=1,
        block_length=blocks.group_records,
        num_parallel_calls=1,
        deterministic=True,
    )


class _Runs:
    """Neighbouring records of a block in a shard: each run is read in one go."""

    def __init__(self, records: Records, block_length: int, num_blocks: int) -> None:
        frames = records.frames
        starts = frames.starts_run()
        starts[::block_length] = True
        first = np.flatnonzero(starts).astype(np.int64)
        stop = np.append(first[1:], len(records))
        offset = frames.offset[first]
        num_bytes = frames.offset[stop - 1] + frames.length[stop - 1] - offset
        self._columns = frames.shard[first], offset, num_bytes, stop - first
        blocks = np.arange(num_blocks + 1, dtype=np.int64)
        self._bounds = np.searchsorted(first, blocks * block_length)
        """For each block the index of its first run, and at the end the number of runs."""
        self._files = records.paths

    def records(self, blocks: Any) -> Any:
        """Return the dataset of the records of some blocks, read by TensorFlow."""
        files, bounds = tf.constant(self._files), tf.constant(self._bounds)
        runs = tf.ragged.range(tf.gather(bounds, blocks), tf.gather(bounds, blocks + 1))

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

        gathered = tuple(tf.gather(column, runs.flat_values) for column in self._columns)
        return tf.data.Dataset.from_tensor_slices(gathered).flat_map(run)


def served(dataset: Any, address: str, size: int, *, drop: bool) -> Any:
    """Return the dataset as the workers of a service yield it, each with groups of its own.

    Each worker ends an epoch with a batch that is not full, so records are batched again here.
    """
    service = tf.data.experimental.service
    dataset = dataset.apply(service.distribute(service.ShardingPolicy.DYNAMIC, address))
    return dataset.rebatch(size, drop_remainder=drop)
