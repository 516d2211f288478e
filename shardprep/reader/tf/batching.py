"""Batches of a tf.data dataset: their number, batching, padding, and steps of a strategy."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from shardprep.dataset.schema import MASK, ROWS
from shardprep.reader.config import Request
from shardprep.reader.decode.targets import padding
from shardprep.reader.records.subset import Subset
from shardprep.reader.tf.python_calls import as_written


def num_batches(subset: Subset, request: Request) -> int:
    """Return the number of batches of an epoch of this host.

    With `pad_batches` or `drop_remainder`, all hosts and replicas have the same number, because the
    replicas of a strategy wait for each other.
    """
    config, size = request.config, request.batch_size or 1
    replicas = config.replicas
    batches = subset.batches
    if config.pad_batches:
        return _ceil(subset.num_all, batches.size) * replicas
    if request.drop_remainder:
        return batches.num_full * replicas
    return _ceil(subset.epoch_records, size)


def counted(dataset: Any, total: int | None, size: int, *, drop: bool = False) -> Any:
    """Return the dataset with the cardinality for `total` records; without `total`, unchanged."""
    if total is None:
        return dataset
    if total > 0:
        total = total // size if drop else _ceil(total, size)
    return dataset.apply(tf.data.experimental.assert_cardinality(total))


@as_written
def padded(dataset: Any, subset: Subset, request: Request, num_calls: int) -> Any:
    """Return full batches with sample weights, the same number for every host.

    Padding rows have weight 0. Records have the weight rows / records, both counted over all hosts,
    so the mean weight is 1. Keras divides the sum of weighted losses by the rows of a batch and
    averages over batches, so the result is the mean over the records.
    """
    size, number = request.batch_size or 1, num_batches(subset, request)
    weight = number * size * request.config.shard_of[1] / subset.num_all
    values = padding_values(dataset.element_spec)

    def pad(*element: Any) -> tuple[Any, ...]:
        missing = size - tf.shape(tf.nest.flatten(element)[0])[0]

        def fill(rows: Any, value: Any) -> Any:
            shape = tf.concat([[missing], tf.shape(rows)[1:]], 0)
            full = tf.concat([rows, tf.fill(shape, value)], 0)
            return tf.ensure_shape(full, (size, *rows.shape[1:]))

        weights = tf.concat([tf.fill([size - missing], weight), tf.zeros(missing)], 0)
        filled = tf.nest.map_structure(fill, element, values if len(element) > 1 else (values,))
        return (*filled, tf.ensure_shape(weights, (size,)))

    dataset = dataset.map(pad, num_calls)
    more = number - _ceil(subset.epoch_records, size)
    if not more:
        return dataset
    spec = dataset.element_spec
    empty = tf.nest.map_structure(
        lambda one, value: tf.fill(known(one.shape), value), spec, padding_values(spec)
    )
    return dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat(more))


def padding_values(spec: Any, value: float = 0, ignored: int = 0) -> Any:
    """Return the padding value of each component of `spec`; `ignored` pads class masks."""
    if isinstance(spec, dict):
        rows = (name for name in spec if name.startswith(ROWS))
        known = padding(spec) | {n: math.nan if spec[n].dtype.is_floating else -1 for n in rows}
        known[MASK] = ignored
        return {name: padding_values(one, known.get(name, 0)) for name, one in spec.items()}
    if isinstance(spec, tuple):
        targets = (padding_values(one, ignored, ignored) for one in spec[1:])
        return (padding_values(spec[0]), *targets)
    return "" if spec.dtype == tf.string else spec.dtype.as_numpy_dtype(value)


def batched(
    dataset: Any, ignored: int, size: int, num_calls: int, *, drop: bool, keep_order: bool | None
) -> Any:
    """Return batches of elements; objects and stacks are padded to the longest of the batch."""
    spec = dataset.element_spec
    shapes = tf.nest.map_structure(lambda one: one.shape, spec)
    if all(shape.is_fully_defined() for shape in tf.nest.flatten(shapes)):
        return dataset.batch(size, drop, num_calls, deterministic=keep_order)
    return dataset.padded_batch(size, shapes, padding_values(spec, 0, ignored), drop)


def count_steps(distributed: Any, replicas: int) -> Any:
    """Return a distributed dataset whose `len()` and `cardinality` are steps of all replicas.

    tf.distribute counts the batches of a host, but each step takes `replicas` of them. So Keras
    would run too many steps: the first extra step changes the loss before it fails.
    """
    if isinstance(distributed, tf.data.Dataset):
        return distributed
    batches = int(distributed.cardinality)
    steps = batches // replicas if batches > 0 else batches

    def length(_: Any) -> int:
        if steps < 0:
            raise TypeError("the number of steps is unknown or infinite")
        return steps

    base = type(distributed)  # a private class of TensorFlow
    counts = {"__len__": length, "cardinality": property(lambda _: steps)}
    distributed.__class__ = type(base.__name__, (base,), counts)
    return distributed


def known(shape: Any) -> list[int]:
    """Return a shape as a list, with 0 for unknown lengths."""
    return [length or 0 for length in shape]


def _ceil(number: int, size: int) -> int:
    return -(-number // size)
