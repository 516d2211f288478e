"""Batches of positions: which records come, found in Python and not by a graph.

An order written as a graph takes longer to be made ready, in every epoch anew, than the first
batch takes to be decoded. So nothing is nested here either: an inner dataset costs 20 ms a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.reader.tf.python_calls import from_graph

if TYPE_CHECKING:
    from shardprep.reader.order import Ints, Order
    from shardprep.reader.tf.blocks import Source
    from shardprep.reader.tf.records import Reading

_FOREVER = (1 << 62) - 1
"""Records of an iteration without end."""


def position_batches(
    source: Source, reading: Reading, size: int, *, drop_remainder: bool, may_resume: bool
) -> Any:
    """Return the dataset of batches of tags, int64[size], in the order of `records`.

    A tag is epoch × records + position, so the position is what it leaves when divided by the
    number of records. With `may_resume` the cursor may begin in the middle of an epoch.
    """
    number, repeat = source.num_records, reading.request.repeat
    num_epochs = 0 if repeat is True else repeat or 1
    cut = size if drop_remainder else 1

    def step(state: Ints) -> tuple[Ints, Ints]:
        start, stop = state.tolist()
        if start < 0:
            epoch, num_done = reading.cursor() if reading.cursor else (0, 0)
            start = epoch * number + num_done
            stop = (epoch + num_epochs) * number if num_epochs else _FOREVER
            stop -= (stop - start) % cut
        end = min(start + size, stop)
        return np.array([end, stop]), _tags(source.order, start, end)

    def call(state: Any, _: Any) -> tuple[Any, Any]:
        state, tags = tf.numpy_function(from_graph(step), [state], (tf.int64, tf.int64))
        return tf.ensure_shape(state, (2,)), tf.ensure_shape(tags, (None,))

    if num_epochs:
        turns = tf.data.Dataset.range((num_epochs * number + size - cut) // size)
    else:
        turns = tf.data.Dataset.from_tensors(0).repeat()
    dataset = turns.scan(tf.constant([-1, -1], tf.int64), call)
    return dataset.take_while(lambda tags: tf.size(tags) > 0) if may_resume else dataset


def _tags(plan: Order, start: int, stop: int) -> Ints:
    """Return the tags at the places from `start` to before `stop`, counted from epoch 0 on."""
    parts = [np.empty(0, np.int64)]
    while start < stop:
        epoch, place = divmod(start, plan.num_records)
        end = min(plan.num_records, place + stop - start)
        parts.append(epoch * plan.num_records + plan.positions(epoch, place, end))
        start += end - place
    return np.concatenate(parts)
