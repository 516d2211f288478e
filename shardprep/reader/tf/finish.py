"""The last stages of a pipeline: batches, changes of decoded batches, and parallel calls.

The numbers of parallel calls are computed from the cores and memory of this machine. Autotuning of
tf.data finds similar numbers, but the deletion of an iterator then waits for the autotuning thread,
sometimes up to a minute. (TensorFlow wakes that thread before it sets the flag that ends it.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from shardprep.dataset.schema import BOX, BOX_LABEL, IMAGE, IMAGES, ROWS, Schema
from shardprep.errors import DatasetError, some_of
from shardprep.machine import free_bytes, usable_cores
from shardprep.reader.config import BoxFormat, ReadConfig, Request
from shardprep.reader.decode.targets import FORMATTED, KEYS, Target, padding
from shardprep.reader.order.permutation import mix
from shardprep.reader.records.subset import Subset
from shardprep.reader.tf.decode import largest, pad_rows
from shardprep.reader.tf.python_calls import as_written
from shardprep.reader.validators import AUGMENT_OPTIONS, parameters, short_repr


def num_batches(subset: Subset, request: Request) -> int:
    """Return the number of batches of this host in an epoch.

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
    """Return the dataset with the cardinality of `total` records in batches; unchanged if None."""
    if total is None:
        return dataset
    if total > 0:
        total = total // size if drop else _ceil(total, size)
    return dataset.apply(tf.data.experimental.assert_cardinality(total))


@as_written
def padded(dataset: Any, subset: Subset, request: Request, num_calls: int) -> Any:
    """Return full batches with sample weights; all hosts yield the same number of batches.

    Padding rows have weight 0, and other rows the weight rows / records, counted over all hosts.
    Keras divides the sum of weighted losses by the rows of a batch, so the mean over batches is the
    mean over records.
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
        lambda one, value: tf.fill([length or 0 for length in one.shape], value),
        spec,
        padding_values(spec),
    )
    return dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat(more))


def padding_values(spec: Any, value: float = 0) -> Any:
    """Return the padding value of each component of `spec`.

    It is "" for texts, −1 or NaN for rows, as in `padding` for objects, and otherwise 0. For a
    single component that is not a text, it is `value`.
    """
    if isinstance(spec, dict):
        rows = (name for name in spec if name.startswith(ROWS))
        known = padding(spec) | {n: math.nan if spec[n].dtype.is_floating else -1 for n in rows}
        return {name: padding_values(one, known.get(name, 0)) for name, one in spec.items()}
    if isinstance(spec, tuple):
        return tuple(map(padding_values, spec))
    return "" if spec.dtype == tf.string else spec.dtype.as_numpy_dtype(value)


def batched(dataset: Any, size: int, num_calls: int, *, drop: bool, keep_order: bool | None) -> Any:
    """Return the dataset in batches; elements are padded to the longest of their batch."""
    spec = dataset.element_spec
    shapes = tf.nest.map_structure(lambda one: one.shape, spec)
    if all(shape.is_fully_defined() for shape in tf.nest.flatten(shapes)):
        return dataset.batch(size, drop, num_calls, deterministic=keep_order)
    return dataset.padded_batch(size, shapes, padding_values(spec), drop)


def count_steps(distributed: Any, replicas: int) -> Any:
    """Return a distributed dataset whose `len()` and `cardinality` are steps of all replicas.

    tf.distribute counts the batches of a host, but a step takes `replicas` of them. Keras would run
    too many steps: the first extra step changes the loss before it fails.
    """
    if isinstance(distributed, tf.data.Dataset):
        return distributed
    batches = int(distributed.cardinality)
    steps = batches // replicas if batches > 0 else batches

    def length(_: Any) -> int:
        if steps < 0:
            raise TypeError("the number of steps is unknown or infinite: give steps_per_epoch")
        return steps

    base = type(distributed)  # a private class of TensorFlow
    counts = {"__len__": length, "cardinality": property(lambda _: steps)}
    distributed.__class__ = type(base.__name__, (base,), counts)
    return distributed


def _ceil(number: int, size: int) -> int:
    return -(-number // size)


_WHITE, _DEEP_WHITE = 255.0, 65535.0


class Finisher:
    """Function that applies `augment`, `dtype`, `box_format`, `max_boxes` to a batch or element."""

    def __init__(self, request: Request, target: Target, key: int, schema: Schema) -> None:
        """Derive the seeds of `augment` from `key`, the key of the order.

        Flips of this package get the keypoint pairs of `schema`. DatasetError if `augment` does not
        take the labels that it must move.
        """
        bound = getattr(request.augment, "for_keypoints", None)
        self._augment = request.augment if bound is None else bound(schema)
        self._dtype = request.dtype
        self._box_format: BoxFormat = request.box_format
        self._max_boxes = request.max_boxes
        self._target = target
        self._key = key
        named = parameters(self._augment) if self._augment is not None else None
        self._takes = frozenset(AUGMENT_OPTIONS).intersection(named or ())
        self._beside: list[str] = []
        """Annotations that `augment` has to move itself."""
        if self._augment is not None and not is_of_package(self._augment):
            self._beside = [name for name in target.names if name in schema.annotations]
        if self._beside and named is not None and "labels" not in named:
            raise images_alone(self._augment, "gets", self._beside)
        self._fault: DatasetError | None = None

    @property
    def is_needed(self) -> bool:
        return self._augment is not None or (
            (self._dtype, self._box_format) != ("uint8", "rel_yxyx")
        )

    @property
    def wants_seed(self) -> bool:
        """Whether `augment` takes a seed; seeds are derived from tags."""
        return "seed" in self._takes

    def __call__(self, element: Any, tag: Any = None) -> Any:
        if isinstance(element, dict):
            name = IMAGE if IMAGE in element else IMAGES
            images, labels = self._finished(element[name], self._target.packed(element), tag)
            return {**element, name: images, **self._target.unpacked(labels)}
        if isinstance(element, tuple):
            images, labels = element
            return self._finished(images, labels, tag)
        return self._finished(element, None, tag)[0]

    def untagged(self, *element: Any) -> Any:
        """Return the changed element, whose parts tf.data passes as separate arguments."""
        return self(element if len(element) > 1 else element[0])

    @property
    def has_own_code(self) -> bool:
        """Whether `augment` has a function of the user, whose branches AutoGraph may convert."""
        return self._augment is not None and not _are_of_package([self._augment])

    def check(self) -> None:
        """Raise the DatasetError, if any, that `augment` raised or caused while it was traced."""
        if self._fault is not None:
            raise self._fault

    def _finished(self, images: Any, labels: Any, tag: Any) -> tuple[Any, Any]:
        images, labels = self._augmented(images, labels, tag)
        if not isinstance(labels, dict):
            return images, labels
        if self._augment is not None and KEYS[BOX] in labels:
            labels = trim_boxes(labels, self._max_boxes)
        size = tf.unstack(tf.cast(tf.shape(images)[-3:-1], tf.float32), 2)
        for name, convert in FORMATTED.items():
            key = KEYS[name]  # AutoGraph converts no function with :=
            if key in labels:
                labels = {**labels, key: convert(labels[key], self._box_format, size, tf)}
        return images, labels

    def _augmented(self, images: Any, labels: Any, tag: Any) -> tuple[Any, Any]:
        if self._dtype == "float32":
            white = _DEEP_WHITE if images.dtype == tf.uint16 else _WHITE
            images = tf.cast(images, tf.float32) / white
        if self._augment is None:
            return images, labels
        given = {"labels": labels, "training": True}
        if self.wants_seed:
            given["seed"] = self._seed(tag)
        # Raised here, the error would be buried in a traceback of the graph; see `check`.
        try:
            result = self._augment(images, **{name: given[name] for name in self._takes})
        except DatasetError as error:
            self._fault = error
            return images, labels
        changed = result if isinstance(result, (tuple, list)) else (result, labels)
        if self._beside and changed is not result:
            self._fault = images_alone(self._augment, "returned", self._beside)
            return images, labels
        if len(changed) != len(("images", "labels")) or changed[0] is None:
            what = "None" if result is None else f"a {type(result).__name__} of {len(changed)}"
            self._fault = DatasetError(
                f"augment={short_repr(self._augment)}",
                f"returned {what}",
                "let it return images, or (images, labels)",
            )
            return images, labels
        return changed[0], changed[1]

    def _seed(self, tag: Any) -> Any:
        """Return int32[2], derived from the first tag of a batch."""
        first = tf.reshape(tag, (-1,))[0]
        pair = [mix(self._key, first, 1), mix(self._key, first, 2)]
        return tf.cast(tf.stack(pair), tf.int32)


def is_of_package(op: Any) -> bool:
    """Return True for an op of this package, which keeps labels consistent with images."""
    return type(op).__module__.startswith("shardprep.reader.augment.")


def _are_of_package(ops: Iterable[Any]) -> bool:
    return all(is_of_package(op) and _are_of_package(getattr(op, "ops", ())) for op in ops)


def images_alone(op: Any, verb: str, beside: Sequence[str]) -> DatasetError:
    """Return the error for an op that gets or returns images without their labels `beside`."""
    what = f"{verb} images alone, so {some_of(beside)} would not move with them"
    hint = "let it take labels, and return (images, labels)"
    return DatasetError(f"augment={short_repr(op)}", what, hint)


def trim_boxes(target: dict[str, Any], max_boxes: int | None) -> dict[str, Any]:
    """Return an augmented target with `max_boxes` rows of objects; None: without rows of padding.

    `target` is a dict by `KEYS`, of a batch or an image. Of more objects, the largest are kept.
    Boxes of padding (label −1), which Keras layers may have changed, become −1 again.
    """
    boxes = target[KEYS[BOX]]
    if KEYS[BOX_LABEL] in target:
        boxes = tf.where(target[KEYS[BOX_LABEL]][..., tf.newaxis] < 0, -1.0, boxes)
        target = {**target, KEYS[BOX]: boxes}
    values = {name: value for name, value in padding(target).items() if name in target}
    axis = boxes.shape.rank - 2
    if max_boxes is None:
        rows = tf.where(boxes[..., 0] >= 0, tf.range(1, tf.shape(boxes)[axis] + 1), 0)
        last = tf.reduce_max(tf.concat([tf.reshape(rows, [-1]), [0]], 0))
        return {
            name: (value[:, :last] if axis else value[:last]) if name in values else value
            for name, value in target.items()
        }
    if boxes.shape[axis] == max_boxes:
        return target
    rows = largest(boxes, max_boxes)
    trimmed = {
        name: pad_rows(
            tf.gather(target[name], rows, axis=axis, batch_dims=axis), max_boxes, value, axis
        )
        for name, value in values.items()
    }
    return {**target, **trimmed}


_SHARE = 1 / 16
"""Largest share of free memory for the results of all parallel calls of one stage."""
_LEAST_CALLS = 2
"""Minimum number of parallel calls: one computes a batch while another batch is used."""
_BATCHES_AHEAD, _IMAGES_AHEAD = 2, 64


class Calls(NamedTuple):
    """Numbers of parallel calls: to decode images, to decode batches, to change batches."""

    images: int
    batches: int
    finish: int


def parallel_calls(config: ReadConfig, batch_bytes: int | None) -> Calls:
    """Return the numbers of parallel calls of a pipeline; a number in `config` has priority.

    tf.data keeps a result for each call, so fewer calls change batches if memory is small.
    `batch_bytes` is the size of the images of a batch, 0 if unknown, or None for single images.
    """
    finish = usable_cores()
    if batch_bytes is None:
        finish = config.threads
    elif batch_bytes and (free := free_bytes()):
        finish = min(finish, max(_LEAST_CALLS, int(free * _SHARE / batch_bytes)))
    images = config.threads
    given = config.num_parallel_calls_for_decode
    return Calls(given or images, given or finish, finish)


def ahead(dataset: Any, *, is_batched: bool) -> Any:
    """Return a dataset that prepares elements ahead of use, while the accelerator works."""
    return dataset.prefetch(_BATCHES_AHEAD if is_batched else _IMAGES_AHEAD)


def untuned() -> Any:
    """Return `tf.data.Options` without autotuning."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.autotune.initial_parallelism = usable_cores()
    return options


def options_of(request: Request) -> Any:
    """Return the `tf.data.Options` of a request; `ReadConfig.options` has priority."""
    config = request.config
    options = untuned()
    # If the order need not be fixed, no result waits for a slower call before it.
    options.deterministic = (
        not request.is_shuffled
        or request.seed is not None
        or not config.shuffle_reshuffle_each_iteration
    )
    # Separate threads do not wait behind the model's ops. The map runs many images at once, and
    # threads inside the ops of one image would only compete.
    options.threading.private_threadpool_size = config.threads
    options.threading.max_intra_op_parallelism = 1
    # Each host reads only its share of the records already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options.merge(config.options) if config.options is not None else options
