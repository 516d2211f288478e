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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardprep.errors import DatasetError
from shardprep.reader.loaded import remembered

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.reader.arrays import Dataset
    from shardprep.reader.diagnosis import Diagnosis
    from shardprep.reader.stall import StallMeter

__all__ = ["Dataset", "ReadConfig", "StallMeter", "diagnose", "load"]

_LAZY = {"Dataset": "shardprep.reader.arrays", "StallMeter": "shardprep.reader.stall"}


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for, and with it numpy or Keras."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """What is seldom varied; names are those of `tfds.ReadConfig` where the meaning is the same."""

    interleave_cycle_length: int = 16
    """Shards that are read side by side."""
    interleave_block_length: int = 16
    """Records taken from one shard before the next has its turn."""
    num_parallel_calls_for_interleave_files: int | None = None
    """Shards read at the same time; None lets tf.data decide."""
    num_parallel_calls_for_decode: int | None = None
    """Images decoded at the same time; None lets tf.data decide."""
    shuffle_window: int = 2048
    """Records that `shuffle=True` draws from. They are held encoded, megabytes and not gigabytes,
    unless a cache stands before. The shards are shuffled already when they are written."""
    shuffle_reshuffle_each_iteration: bool = True
    """Another order each epoch; with a seed, the same sequence of orders each run."""
    image_size: tuple[int, int] | None = None
    """Height and width to which images are resized (antialiased, aspect not kept); needed for
    batches where the stored images differ in size."""
    assert_cardinality: bool = True
    """Tell tf.data the number of records, and let it fail if the shards hold another."""
    options: Any = None
    """A `tf.data.Options` to apply last."""


@remembered
def load(  # noqa: PLR0913 - what people vary; the rest sits in ReadConfig
    path: str | Path,
    split: str = "train",
    *,
    batch_size: int | None = None,
    shuffle: bool | int | None = None,
    seed: int | None = None,
    repeat: bool | int = False,
    cache: Literal[False] | str | Path = False,
    augment: Callable[[Any], Any] | None = None,
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
        path: the dataset's folder, or one above it (newest version).
        split: "train", "train[:90%]", "train[100:200]", "train+validation"; slices count records
            in the order of the shards.
        batch_size: images a batch.
        shuffle: True draws from a window of `ReadConfig.shuffle_window` records, a number from
            one of that many, False keeps the order of the shards. By default, only a split whose
            name starts with "train" is shuffled.
        seed: makes the order, and the order of each further epoch, the same in every run, as long
            as TensorFlow's own global seed is the same.
        repeat: True for ever, a number that many epochs.
        cache: "memory", or the beginning of a file's name: keeps decoded images after the first
            epoch. What a file is made of is in the rest of its name, so it is never stale.
        augment: called with each batch of images, or each image without `batch_size`, after
            `dtype`; what takes an argument `training`, as Keras layers do, gets True.
        dtype: "float32" gives 0..1; "uint8" leaves casting to the accelerator, which is faster.
        as_supervised: False yields a dict of all features of the schema.
        drop_remainder: drop a last batch that is not full, so that every batch has one shape.
        read_config: what is seldom varied.

    Raises:
        DatasetError: there is no finished dataset, no such split, a shard is missing or cut, or
            images of different sizes are to be batched.

    """
    try:
        from shardprep.reader import pipeline
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise DatasetError(
            "shardprep.reader",
            "needs TensorFlow, which is not installed",
            "pip install 'shardprep[reader]'",
        ) from error
    request = pipeline.Request(
        split=split,
        batch_size=batch_size,
        shuffle=split.startswith("train") if shuffle is None else shuffle,
        seed=seed,
        repeat=repeat,
        cache=str(cache) if cache else "",
        augment=augment,
        dtype=dtype,
        as_supervised=as_supervised,
        drop_remainder=drop_remainder,
    )
    return pipeline.make_dataset(Path(path), request, read_config or ReadConfig())


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
    from shardprep.reader import probe

    return probe.diagnose(dataset, step, seconds)
