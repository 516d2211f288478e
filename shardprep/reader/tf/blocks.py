"""The records that are wanted, in their order, and the runs of bytes that TensorFlow reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.errors import RecordError
from shardprep.reader.options import draw_seed
from shardprep.reader.tf.python_calls import from_graph

if TYPE_CHECKING:
    from shardprep.reader.options import Request
    from shardprep.reader.order import Ints, Order
    from shardprep.reader.records import Records
    from shardprep.reader.splits import ShardSlice
    from shardprep.reader.subset import Subset

_LONG_BLOCK_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Runs:
    """Records that lie together in a shard and in a block; arrays of equal length."""

    file: Ints
    """Index of the shard."""
    offset: Ints
    """Bytes from the beginning of the shard to the first frame."""
    num_bytes: Ints
    """Bytes of all frames."""
    count: Ints
    """Records, at least 1."""
    first: Ints
    """Position of the first record among all that are selected."""


@dataclass(frozen=True)
class Source:
    """The records that are wanted, and their order."""

    records: Records
    slices: list[ShardSlice]
    order: Order
    is_cache: bool
    """Whether they are decoded twins of the dataset's records."""

    @property
    def num_records(self) -> int:
        """Records of an epoch."""
        return len(self.records)

    @cached_property
    def runs(self) -> Runs:
        """The records in runs, in the order of their positions."""
        frames = self.records.frames
        starts = frames.starts_run()
        starts[:: self.order.block_length] = True
        first = np.flatnonzero(starts).astype(np.int64)
        stop = np.append(first[1:], self.num_records)
        last = stop - 1
        offset = frames.offset[first]
        num_bytes = frames.offset[last] + frames.length[last] - offset
        return Runs(frames.shard[first], offset, num_bytes, stop - first, first)

    @cached_property
    def first_runs(self) -> Ints:
        """For each block the index of its first run, and at the end the number of runs."""
        blocks = np.arange(self.order.num_blocks + 1, dtype=np.int64)
        return np.searchsorted(self.runs.first, blocks * self.order.block_length)

    def read(self, firsts: Any, counts: Any) -> Any:
        """Return the payloads of runs of records, string[all]; for a graph."""

        def read(firsts: Ints, counts: Ints) -> Any:
            found = []
            for one in self.records.read(firsts.tolist(), counts.tolist()):
                if isinstance(one, RecordError):
                    raise one
                found.append(bytes(one))
            return np.array(found, object)

        found = tf.numpy_function(from_graph(read), [firsts, counts], tf.string, stateful=False)
        return tf.ensure_shape(found, (None,))


def make_source(subset: Subset, request: Request) -> Source:
    """Return the wanted records, in the order of the request."""
    config = request.config
    order = make_order(subset, request)
    plain = not subset.records.is_remote and config.on_error == "raise"
    if plain and not request.is_shuffled:
        # One long run costs less than many short ones.
        length = max(order.block_length, _LONG_BLOCK_LENGTH)
        order = replace(order, block_length=length, group_width=1)
    return Source(subset.records, subset.slices, order, is_cache=subset.is_cache)


def make_order(subset: Subset, request: Request) -> Order:
    """Return the order of the request; without a seed, with one that is drawn."""
    config = request.config
    order = subset.order(
        seed=draw_seed() if request.seed is None else request.seed,
        shuffle=request.is_shuffled,
        block_length=config.interleave_block_length,
        group_width=config.interleave_cycle_length,
    )
    return replace(order, reshuffle=config.shuffle_reshuffle_each_iteration)
