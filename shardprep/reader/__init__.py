"""The readers of a dataset folder: `load` by tf.data, `Dataset` without TensorFlow.

    from shardprep import reader
    train = reader.load("tfrecords/dogs_vs_cats", split="train", batch_size=64)
    model.fit(train, epochs=5)

    train = reader.Dataset("tfrecords/dogs_vs_cats", split="train")
    for images, labels in train.batches(64, shuffle=True): ...

Importing this costs nothing: TensorFlow comes with the first `load`, numpy with `Dataset`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal, Unpack

from shardprep.errors import DatasetError
from shardprep.reader.arguments import checking
from shardprep.reader.diagnose.load_call import remembered
from shardprep.reader.extras import needing_tensorflow
from shardprep.reader.options import Advice, BadRecord, LoadOptions, ReadConfig, make_request
from shardprep.reader.splits import EvenSplit, even_splits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardprep.reader.arrays.dataset import Dataset
    from shardprep.reader.diagnose.conclude import Diagnosis
    from shardprep.reader.diagnose.stall_meter import StallMeter
    from shardprep.reader.tf.iterator import Batches

__all__ = [
    "Advice",
    "BadRecord",
    "Dataset",
    "EvenSplit",
    "ReadConfig",
    "StallMeter",
    "diagnose",
    "distribute",
    "even_splits",
    "iterate",
    "load",
]

_LAZY = {
    "Dataset": "shardprep.reader.arrays.dataset",
    "StallMeter": "shardprep.reader.diagnose.stall_meter",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for, and with it numpy or Keras."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing_tensorflow(f"reader.{name}"):
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names, those that are not imported yet among them."""
    return __all__


@remembered
@checking("reader.load")
def load(  # noqa: PLR0913 - what people vary; the rest sits in ReadConfig
    path: str | Path,
    split: str | EvenSplit = "train",
    *,
    batch_size: int | None = None,
    shuffle: bool | int | None = None,
    seed: int | None = None,
    repeat: bool | int = False,
    cache: Literal[False] | str | Path = False,
    augment: Callable[..., Any] | None = None,
    dtype: Literal["uint8", "float32"] = "uint8",
    as_supervised: bool = True,
    drop_remainder: bool = False,
    read_config: ReadConfig | None = None,
) -> Any:
    """Return a `tf.data.Dataset` of (images, labels), ready for `keras.Model.fit`.

    Images are uint8[batch, height, width, 3], RGB. Labels are int64[batch], −1 where there are
    none; of a multi-label set float32[batch, classes] of 0 and 1; of a regression set
    float32[batch], NaN where there are none; of a set with texts string[batch]. Without
    `batch_size` the batch axis is absent; a set without labels yields images alone.

    Args:
        path: the dataset's folder, or one above it (newest version), or such an address in object
            storage: "s3://bucket/key", "gs://…", "az://…".
        split: "train", "train[:90%]", "train[100:200]", "train+validation", or one of
            `even_splits`; slices count records in the order of the shards.
        batch_size: images a batch.
        shuffle: True reads blocks of about 64 records in an order of their own each epoch, and
            mixes 16 of them at a time: megabytes of memory, no wait at the start. A number draws
            from a plain window of that many records, False keeps the order of the shards. By
            default, only a split whose name starts with "train" is shuffled.
        seed: makes order and augmentation a function of seed, epoch and record: the same in every
            run, however many calls run in parallel.
        repeat: True for ever, a number that many epochs.
        cache: keeps images decoded, uint8, before augmentation. "memory"; a folder, where they are
            written once, as large as their pixels, for any number of runs and processes; "auto" is
            memory where they fit, and else nothing, and logs why. The order stays what it is.
        augment: called with each batch of images, or each image without `batch_size`, after
            `dtype`. What has a parameter `training` gets True; `labels`, the labels, and gives
            (images, labels); `seed`, int32[2] made of the seed, the epoch and the records.
        dtype: "float32" gives 0..1; "uint8" leaves casting to the accelerator, which is faster.
        as_supervised: False yields a dict of all features of the schema.
        drop_remainder: drop a last batch that is not full, so that every batch has one shape.
        read_config: what is seldom varied.

    Raises:
        DatasetError: an argument is not what it may be, there is no finished dataset, no such
            split, a shard is missing or cut, or images of different sizes are to be batched.

    """
    options: LoadOptions = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "seed": seed,
        "repeat": repeat,
        "cache": cache,
        "augment": augment,
        "dtype": dtype,
        "as_supervised": as_supervised,
        "drop_remainder": drop_remainder,
        "read_config": read_config,
    }
    request, config = make_request(split, options)
    with needing_tensorflow("reader.load"):
        from shardprep.reader import subset
        from shardprep.reader.tf import pipeline
    return pipeline.make_dataset(subset.open_request(path, request, config), request, config)


@checking("reader.iterate")
def iterate(
    path: str | Path, split: str | EvenSplit = "train", **options: Unpack[LoadOptions]
) -> Batches:
    """Return the batches of `load` with a place that can be saved: `state_dict()` is a few numbers.

    Each `for` loop over it is an epoch, or what was left of one when the state was saved: exactly
    those batches, found by arithmetic. Takes what `load` takes, except `repeat`. With `shuffle=N`
    the records before the place are read again, undecoded.

    Raises:
        DatasetError: as `load`; or `repeat` is given, or a service, whose order is not its own.

    """
    request, config = make_request(split, options)
    if request.repeat or config.service:
        raise DatasetError(
            "reader.iterate",
            "has an order of its own" if config.service else "goes over one epoch a loop",
            "leave out service" if config.service else "leave out repeat",
        )
    with needing_tensorflow("reader.iterate"):
        from shardprep.reader import subset
        from shardprep.reader.tf import iterator
    return iterator.Batches(subset.open_request(path, request, config), request, config)


@checking("reader.distribute")
def distribute(
    strategy: Any,
    path: str | Path,
    split: str | EvenSplit = "train",
    **options: Unpack[LoadOptions],
) -> Any:
    """Return a `tf.distribute.DistributedDataset` for a Mirrored or MultiWorker strategy.

    Takes what `load` takes; `batch_size` counts the images of all replicas together. Each host
    reads a range of records of its own, all have as many batches: without
    `ReadConfig(pad_batches=True)`, which is for evaluation, batches that are not full are dropped.

    Raises:
        DatasetError: as `load`, or `batch_size` is no multiple of the number of replicas.

    """
    request, config = make_request(split, options)
    with needing_tensorflow("reader.distribute"):
        from shardprep.reader.tf import distribute as strategies
    return strategies.distribute(strategy, path, request, config)


def diagnose(dataset: Any, step: Any, *, seconds: float = 30.0) -> Diagnosis:
    """Tell what bounds training: reading, decoding, augmenting, the way to the device, the model.

    Training is run as it is, then the model alone on one batch, the pipeline alone, and the
    pipeline up to each of its stages. `print` the result for a short report; it names one change
    and what that would give.

    Args:
        dataset: what `load` returned, with a `batch_size`.
        step: called with a batch, does what a training step does; or a compiled Keras model, whose
            weights, optimizer, metrics and random state are put back afterwards.
        seconds: that all runs take together; a few more are spent on starting them, and with a
            cache, on filling it.

    Raises:
        DatasetError: the dataset is not of `load` or yields single images, or the model cannot be
            trained on it.

    """
    with needing_tensorflow("reader.diagnose"):
        from shardprep.reader.diagnose import measure
    return measure.diagnose(dataset, step, seconds)
