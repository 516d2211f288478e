"""Number and size of batches: full ones, and as many for every reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.reader.tf.graph_annotations import fills
from shardprep.reader.tf.parallelism import finish_calls
from shardprep.reader.tf.python_calls import as_written

if TYPE_CHECKING:
    from shardprep.reader.config import Request
    from shardprep.reader.records.open import Subset


def counted(dataset: Any, total: int | None, size: int, *, drop: bool = False) -> Any:
    """Return the dataset with the number of batches that so many records make, None for unknown."""
    if total is None:
        return dataset
    if total > 0:
        total = total // size if drop else _ceil(total, size)
    return dataset.apply(tf.data.experimental.assert_cardinality(total))


def num_batches(subset: Subset, request: Request) -> int:
    """Return the batches of an epoch of this reader.

    Padded, or without the last ones that are not full, every reader has as many, and every replica
    that a reader feeds: those of a strategy wait for each other.
    """
    size = request.batch_size or 1
    _, readers = request.config.shard_of
    replicas = request.config.replicas
    if request.config.pad_batches:
        return _ceil(_ceil(subset.num_all, readers), size * replicas) * replicas
    if request.drop_remainder:
        return subset.num_all // readers // size // replicas * replicas
    return _ceil(subset.epoch_records, size)


def evened(dataset: Any, subset: Subset, request: Request) -> Any:
    """Return as many batches for every reader; one may have a record more than another."""
    return dataset.take(num_batches(subset, request))


@as_written
def padded(dataset: Any, subset: Subset, request: Request) -> Any:
    """Return batches filled up to full size, with weights, as many for every reader.

    What fills weighs 0, a record rows / records, both of all readers together: then the weights are
    1 in the mean of all rows. Keras divides the sum of weighted losses by the rows of a batch, and
    takes the mean of the batches: that is the mean of the records.
    """
    size, number = request.batch_size or 1, num_batches(subset, request)
    _, readers = request.config.shard_of
    weight = number * size * readers / subset.num_all

    values = fills(dataset.element_spec)

    def pad(*element: Any) -> tuple[Any, ...]:
        missing = size - tf.shape(tf.nest.flatten(element)[0])[0]

        def fill(one: Any, value: Any) -> Any:
            shape = tf.concat([[missing], tf.shape(one)[1:]], 0)
            return tf.ensure_shape(
                tf.concat([one, tf.fill(shape, value)], 0), (size, *one.shape[1:])
            )

        weights = tf.concat([tf.fill([size - missing], weight), tf.zeros(missing)], 0)
        filled = tf.nest.map_structure(fill, element, values if len(element) > 1 else (values,))
        return (*filled, tf.ensure_shape(weights, (size,)))

    dataset = dataset.map(pad, finish_calls(subset, request))
    more = number - _ceil(subset.num_records, size)
    if not more:
        return dataset
    spec = dataset.element_spec
    empty = tf.nest.map_structure(
        lambda one, value: tf.fill([length or 0 for length in one.shape], value), spec, fills(spec)
    )
    return dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat(more))


def stepped(distributed: Any, replicas: int) -> Any:
    """Return a distributed dataset with `len()` and `cardinality` in steps of all replicas.

    tf.distribute counts the batches of a host, `replicas` a step. Keras would ask for as many
    steps; the one after the last counts rows before it fails, and so changes the loss.
    """
    if isinstance(distributed, tf.data.Dataset):
        return distributed
    batches = int(distributed.cardinality)
    steps = batches // replicas if batches > 0 else batches

    def length(_: Any) -> int:
        if steps < 0:
            raise TypeError("the number of steps is not known, or there is no end")
        return steps

    base = type(distributed)  # of TensorFlow, and not public
    counts = {"__len__": length, "cardinality": property(lambda _: steps)}
    distributed.__class__ = type(base.__name__, (base,), counts)
    return distributed


def _ceil(number: int, size: int) -> int:
    return -(-number // size)


def nothing(shape: Any, dtype: Any) -> Any:
    """Return a tensor of zeros, or of empty strings; a length that is not known is 0."""
    return tf.fill(
        [length or 0 for length in shape], tf.constant("" if dtype == tf.string else 0, dtype)
    )
