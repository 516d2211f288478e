"""Records of shards in object storage: a group of blocks is asked for at once, checked and cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.dataset.tfrecord import unframe
from shardprep.errors import RecordError
from shardprep.reader.remote_shards import Part
from shardprep.reader.tf.python_calls import from_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.reader.order import Ints
    from shardprep.reader.remote_shards import RemoteShards
    from shardprep.reader.tf.blocks import Source


def fetched(source: Source, remote: RemoteShards) -> Callable[[Any, Any], Any]:
    """Return what gives the bytes of records in a graph, as `Reading.read`."""

    def read(firsts: Any, counts: Any) -> Any:
        found = []
        cuts = source.cuts(firsts, counts)
        for (number, frames), data in zip(cuts, source.bytes_of(cuts), strict=True):
            name = source.slices[number].shard
            try:
                found += _payloads(data, frames, source.located(number))
            except RecordError:  # of a copy that the disk has damaged, or of the shard itself
                remote.drop(name)
                part = Part(name, int(frames[0, 0]), len(data))
                found += _payloads(remote.read_anew(part), frames, source.located(number))
        return np.array(found, object)

    def call(firsts: Any, counts: Any) -> Any:
        found = tf.numpy_function(from_graph(read), [firsts, counts], tf.string, stateful=False)
        return tf.ensure_shape(found, (None,))

    return call


def _payloads(data: bytes, frames: Ints, name: str) -> list[bytes]:
    begin = int(frames[0, 0])
    view = memoryview(data)
    return [
        unframe(bytes(view[offset - begin : offset - begin + length]), name, offset)
        for offset, length in frames.tolist()
    ]
