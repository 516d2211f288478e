"""Orders as tf.data graphs: what `order` computes, and TensorFlow's window by a key alone."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from shardprep.reader import order


def walked(places: Any, size: int, key: Any) -> Any:
    """Return what `order.walked` returns, as a graph."""
    rows, columns = (tf.constant(one, tf.int64) for one in order.table(size))
    (found,) = tf.while_loop(
        lambda found: tf.reduce_any(found >= size),
        lambda found: (tf.where(found >= size, _permuted(found, rows, columns, key), found),),
        (_permuted(places, rows, columns, key),),
    )
    return found


_NUMBER = tf.TensorSpec((), tf.int64)
_permuted = tf.function(  # so that it becomes a graph once a process, not in every `load`
    order.permuted, input_signature=(tf.TensorSpec((None,), tf.int64), _NUMBER, _NUMBER, _NUMBER)
)


def shuffled(dataset: Any, window: int, key: Any) -> Any:
    """Return a dataset shuffled in a window by a key alone; all of it in a window is `order.drawn`.

    `Dataset.shuffle` would mix TensorFlow's global seed in, and draw anew in each iteration.
    """
    seed, seed2 = order.draw_seeds(key)
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
