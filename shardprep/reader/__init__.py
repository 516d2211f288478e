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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shardprep.errors import DatasetError
from shardprep.reader.config import (
    Advice,
    BadRecord,
    CenterCrop,
    RandomResizedCrop,
    ReadConfig,
    Request,
)
from shardprep.reader.selection.splits import EvenSplit, even_splits
from shardprep.reader.validators import (
    Folder,
    WithOptions,
    like,
    needing_tensorflow,
    number,
    validated,
)

if TYPE_CHECKING:
    from shardprep.reader import augment
    from shardprep.reader.arrays.collate import collate
    from shardprep.reader.arrays.dataset import Dataset
    from shardprep.reader.diagnosis.diagnosis import Diagnosis
    from shardprep.reader.diagnosis.stall_meter import StallMeter
    from shardprep.reader.selection.buckets import buckets
    from shardprep.reader.selection.folds import folds
    from shardprep.reader.selection.query import select
    from shardprep.reader.selection.selection import Selection
    from shardprep.reader.selection.statistics import mean_std
    from shardprep.reader.selection.weights import Weights, class_weights
    from shardprep.reader.tf.resume.iterator import Batches
    from shardprep.reader.tf.resume.resume_in_epoch import ResumeInEpoch

__all__ = [
    "Advice",
    "BadRecord",
    "CenterCrop",
    "Dataset",
    "EvenSplit",
    "RandomResizedCrop",
    "ReadConfig",
    "ResumeInEpoch",
    "Selection",
    "StallMeter",
    "Weights",
    "augment",
    "buckets",
    "class_weights",
    "clear_cache",
    "collate",
    "diagnose",
    "distribute",
    "even_splits",
    "folds",
    "iterate",
    "load",
    "mean_std",
    "select",
]

Seconds = Annotated[float, number(0)]
Strategy = Annotated[
    Any,
    like("a tf.distribute.Strategy", "num_replicas_in_sync", "distribute_datasets_from_function"),
]
_ELSEWHERE = {"read_config=reader.ReadConfig({}=…)": ReadConfig}
_LAZY = {
    "Dataset": "shardprep.reader.arrays.dataset",
    "ResumeInEpoch": "shardprep.reader.tf.resume.resume_in_epoch",
    "Selection": "shardprep.reader.selection.selection",
    "StallMeter": "shardprep.reader.diagnosis.stall_meter",
    "Weights": "shardprep.reader.selection.weights",
    "buckets": "shardprep.reader.selection.buckets",
    "class_weights": "shardprep.reader.selection.weights",
    "collate": "shardprep.reader.arrays.collate",
    "mean_std": "shardprep.reader.selection.statistics",
    "folds": "shardprep.reader.selection.folds",
    "select": "shardprep.reader.selection.query",
}


def __getattr__(name: str) -> Any:
    """Import what is first asked for, and with it numpy or Keras."""
    if name not in {*_LAZY, "augment"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing_tensorflow(f"reader.{name}"):
        if name == "augment":
            return importlib.import_module("shardprep.reader.augment")
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names, those that are not imported yet among them."""
    return __all__


@WithOptions("reader.load", Request, _ELSEWHERE)
def load(request: Request) -> Any:  # noqa: D417 - its fields
    """Return a `tf.data.Dataset` of (images, labels), ready for `keras.Model.fit`.

    Images are uint8[batch, height, width, 3], RGB. Labels are int64[batch], −1 where there are
    none; of a multi-label set float32[batch, classes] of 0 and 1; of a regression set
    float32[batch], NaN where there are none; of a set with texts string[batch]. Without
    `batch_size` the batch axis is absent; a set without labels yields images alone. `class_names`
    of it are the names of the classes, in the order of the labels.

    Of a set with boxes, labels are a dict of `boxes` float32[batch, N, 4] and `labels`
    int64[batch, N], padded with −1 to the N of the batch's largest; where the set has them, of
    `crowds` bool[batch, N], `masks` uint8[batch, N, height, width] of 0 and 1, and `label`, that of
    the image. Of a set with masks of classes, labels are uint8[batch, height, width, 1], 255 where
    a pixel is of no class (uint16 and 65535 of more than 254 classes); `segmentation_mask` of that
    dict where there are boxes, too.

    Args:
        path: the dataset's folder, or one above it (newest version), or such an address in object
            storage: "s3://bucket/key", "gs://…", "az://…".
        split: "train", "train[:90%]", "train[100:200]", "train+validation", or one of
            `even_splits`, or a `Selection`; slices count records in the order of the shards.
        batch_size: images a batch.
        shuffle: True for another order in each epoch: blocks of about 64 records are permuted, and
            the records of 16 blocks or more mixed. A number for a plain window of that many
            records, False for the order of the shards. By default, only a split whose name starts
            with "train" is shuffled.
        weights: "balanced" draws a class, each as often as another, and then one of the images that
            have it: an image has its own class or classes, else those of its objects. An array
            draws each record as often as its weight says, in the order of the split without
            shuffling. A record may come again,
            or not at all, in an epoch of as many records; `reader.Weights` draws without
            replacement, or another number. Every draw is one of all records, on any number of
            hosts.
        seed: number from which order and augmentation are drawn, the same in every run and for any
            number of parallel calls; by default another one in each run.
        repeat: number of epochs of an iteration; True for no end.
        cache: place of the decoded images, uint8, before augmentation, filled by the call itself:
            "memory"; a folder, written once for any number of runs and processes, height × width ×
            3 bytes an image; "auto", memory where they fit, else none, with the reason in the log.
            The order is unchanged.
        random_resized_crop: (height, width), or a `reader.RandomResizedCrop`: a box of each image,
            torchvision's, drawn anew in each epoch by the seed and the record, and resized to that
            size. Only as many pixels are decoded as it needs. Images may differ in size. Boxes and
            masks follow.
        center_crop: (height, width), or a `reader.CenterCrop`: the middle in the aspect of that
            size, as large as it fits, resized; for evaluation.
        augment: called with each batch of images, or each image without `batch_size`, after
            `dtype`. What has a parameter `training` gets True; `labels`, the labels, boxes among
            them as "rel_yxyx", and gives (images, labels); `seed`, int32[2] made of the seed, the
            epoch and the records.
        dtype: "float32" gives 0..1; "uint8" leaves casting to the accelerator, which is faster.
        as_supervised: False yields a dict of all features of the schema.
        box_format: format of the boxes that are yielded, by Keras's names; "rel_yxyx" is ymin,
            xmin, ymax, xmax, 0 to 1. Those without "rel_" are pixels of the images as they are
            yielded.
        max_boxes: the N of every batch. Of an image with more, the largest are kept, and an
            `Advice` tells of it once.
        drop_remainder: drop a last batch that is not full, so that every batch has one shape.
        read_config: further options; `ReadConfig` describes each.

    Raises:
        DatasetError: an argument is not what it may be, there is no finished dataset, no such
            split, a shard is missing or cut, or images of different sizes are to be batched.

    """
    with needing_tensorflow("reader.load"):
        from shardprep.reader.tf import pipeline
    return pipeline.load(request)


@WithOptions("reader.iterate", Request, _ELSEWHERE)
def iterate(request: Request) -> Batches:
    """Return the batches of `load` with a place that `state_dict()` saves in a few numbers.

    Each `for` loop is an epoch, or the rest of the one in which the state was saved: exactly the
    batches that were left. They are a `tf.data.Dataset`: `fit` takes them, and `ResumeInEpoch`
    saves their place with the weights. What TensorFlow draws itself, for `fit` or for what is made
    of them by `map`, is an epoch each time, and is not counted by `state_dict()`.

    The options are those of `load`, except `repeat`. No record before the place is read again; with
    `shuffle=N`, the order up to it is drawn again.

    Raises:
        DatasetError: as `load`; or `repeat` or a service is given: a service has its own order.

    """
    service = request.config.service
    if request.repeat or service:
        raise DatasetError(
            "reader.iterate",
            "has an order of its own" if service else "goes over one epoch a loop",
            "leave out service" if service else "leave out repeat",
        )
    with needing_tensorflow("reader.iterate"):
        from shardprep.reader.tf.resume import iterator
    return iterator.Batches(request)


@WithOptions("reader.distribute", Request, _ELSEWHERE)
def distribute(strategy: Strategy, request: Request) -> Any:
    """Return a `tf.distribute.DistributedDataset` for a Mirrored or MultiWorker strategy.

    The options are those of `load`; `batch_size` counts the images of all replicas together. Each
    host reads a range of records of its own, in the same number of batches: those that are not full
    are dropped, or filled up with `ReadConfig(pad_batches=True)`, which is for evaluation. Its
    `len()` and `cardinality` are the steps of an epoch.

    Raises:
        DatasetError: as `load`, or `batch_size` is no multiple of the number of replicas.

    """
    with needing_tensorflow("reader.distribute"):
        from shardprep.reader.tf import pipeline
    return pipeline.distribute(strategy, request)


@validated("reader.clear_cache")
def clear_cache(folder: Folder) -> int:
    """Remove all caches of decoded images in a folder; return the bytes that are free again.

    `folder` is what `cache` of `load` was. Whatever else lies there stays. What reads from such a
    cache fails from then on; the next `load` makes it anew.

    Raises:
        DatasetError: there is no such folder, or a file cannot be removed.
        BusyError: another process is filling one.

    """
    from shardprep.reader.tf.cache.cache_folder import clear

    return clear(Path(folder))


@validated("reader.diagnose")
def diagnose(dataset: Any, step: Any, *, seconds: Seconds = 15.0) -> Diagnosis:
    """Return the stage that bounds training: restart, read, decode, augment, transfer or model.

    Training is run unchanged, then the model alone on one batch, the pipeline alone, and where it
    does not keep up the pipeline up to each of its stages. The changes that may help are tried,
    each in a run of its own: the figures given of them are those of these runs. `print` the result
    for a short report with the best one; in a notebook it is a table.

    Args:
        dataset: the result of `load`, with a `batch_size`.
        step: function that takes a batch and trains on it; or a compiled Keras model, whose
            weights, optimizer, metrics and random state are restored afterwards.
        seconds: time of all runs together; starting them, and filling a part of a cache, takes a
            few more.

    Raises:
        DatasetError: the dataset is not of `load`, yields single images or is for evaluation, or
            the model cannot be trained on it.

    """
    with needing_tensorflow("reader.diagnose"):
        from shardprep.reader.diagnosis import measurement
    return measurement.diagnose(dataset, step, seconds)
