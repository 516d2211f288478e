"""Records and batches by the workers of a tf.data service: a graph without a call into Python.

It holds the order that `order` computes, and TensorFlow reads the shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.reader.order.permutation import group_key
from shardprep.reader.tf.batching import counted
from shardprep.reader.tf.records import shuffled, walked

if TYPE_CHECKING:
    from shardprep.reader.config import Request
    from shardprep.reader.order.order import Order
    from shardprep.reader.records.open import Subset

_FOREVER = (1 << 63) - 1
_MAX_BUFFER_BYTES = 1 << 20


def served_records(subset: Subset, order: Order, request: Request) -> Any:
    """Return the dataset of (bytes, tag) of all epochs, one by one; workers part its groups."""
    layout = subset.blocks(request.config, shuffle=request.is_shuffled)
    number = layout.num_groups
    runs = _Runs(subset, layout.block_length, layout.num_blocks)
    stop = _FOREVER if request.num_epochs is None else request.num_epochs * number

    def group(i: Any) -> Any:
        epoch, group = i // number, i % number
        blocks = tf.range(
            group * layout.group_width,
            tf.minimum((group + 1) * layout.group_width, layout.num_blocks),
        )
        if layout.shuffle:
            blocks = walked(blocks, layout.num_blocks, order.epoch_key(epoch))
        first = blocks * layout.block_length
        stop = tf.minimum(first + layout.block_length, layout.num_records)
        tags = epoch * layout.num_records + tf.ragged.range(first, stop).flat_values
        dataset = tf.data.Dataset.zip(
            runs.records(blocks), tf.data.Dataset.from_tensor_slices(tags)
        )
        if not layout.shuffle:
            return dataset
        return shuffled(dataset, layout.group_records, group_key(order.epoch_key(epoch), group))

    # The next group is being read while the last one is used: the order needs no luck, and two
    # groups are all that is in memory.
    return tf.data.Dataset.range(stop).interleave(
        group,
        cycle_length=1,
        block_length=layout.group_records,
        num_parallel_calls=1,
        deterministic=True,
    )


class _Runs:
    """Records that lie together in a shard and in a block: each run is read in one go."""

    def __init__(self, subset: Subset, block_length: int, num_blocks: int) -> None:
        frames = subset.records.frames
        starts = frames.starts_run()
        starts[::block_length] = True
        first = np.flatnonzero(starts).astype(np.int64)
        stop = np.append(first[1:], subset.num_records)
        offset = frames.offset[first]
        num_bytes = frames.offset[stop - 1] + frames.length[stop - 1] - offset
        self._columns = frames.shard[first], offset, num_bytes, stop - first
        blocks = np.arange(num_blocks + 1, dtype=np.int64)
        self._bounds = np.searchsorted(first, blocks * block_length)
        """For each block the index of its first run, and at the end the number of runs."""
        self._files = subset.records.paths

    def records(self, blocks: Any) -> Any:
        """Return the dataset of the records of some blocks, read by TensorFlow."""
        files, bounds = tf.constant(self._files), tf.constant(self._bounds)
        runs = tf.ragged.range(tf.gather(bounds, blocks), tf.gather(bounds, blocks + 1))

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

        gathered = tuple(tf.gather(column, runs.flat_values) for column in self._columns)
        return tf.data.Dataset.from_tensor_slices(gathered).flat_map(run)


def served(dataset: Any, total: int | None, request: Request) -> Any:
    """Return the dataset as the workers of a service give it, each with groups of its own.

    Each worker ends an epoch with a batch that is not full; here they are made full again. `total`
    counts the records of all of them, where tf.data is to be told.
    """
    dataset = dataset.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC, request.config.service
        )
    )
    size = request.batch_size or 1
    dataset = dataset.rebatch(size, drop_remainder=request.drop_remainder)
    return counted(dataset, total, size, drop=request.drop_remainder)
