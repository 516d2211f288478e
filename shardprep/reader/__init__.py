"""Readers of a dataset: `load` for tf.data, `Dataset` for NumPy, torch and Keras.

    from shardprep import reader
    train = reader.load("tfrecords/dogs_vs_cats", split="train", batch_size=64)
    model.fit(train, epochs=5)

    train = reader.Dataset("tfrecords/dogs_vs_cats", split="train")
    for images, labels in train.batches(64, shuffle=True): ...

Importing this package is cheap: `load` imports TensorFlow and `Dataset` imports NumPy.
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
from shardprep.reader.selection.split_argument import EvenSplit, Mix, Shares, even_splits, mix_of
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
    from shardprep.reader.resume_in_epoch import ResumeInEpoch
    from shardprep.reader.selection.folds import folds
    from shardprep.reader.selection.query import Weights, class_weights, select, table
    from shardprep.reader.selection.selection import Selection
    from shardprep.reader.selection.statistics import mean_std
    from shardprep.reader.tf.iterator import Batches

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
    "mix",
    "select",
    "table",
]

Seconds = Annotated[float, number(0)]
Strategy = Annotated[
    Any,
    like("a tf.distribute.Strategy", "num_replicas_in_sync", "distribute_datasets_from_function"),
]
_ELSEWHERE = {"read_config=reader.ReadConfig({}=…)": ReadConfig}
_LAZY = {
    "Dataset": "shardprep.reader.arrays.dataset",
    "ResumeInEpoch": "shardprep.reader.resume_in_epoch",
    "Selection": "shardprep.reader.selection.selection",
    "StallMeter": "shardprep.reader.diagnosis.stall_meter",
    "Weights": "shardprep.reader.selection.query",
    "class_weights": "shardprep.reader.selection.query",
    "collate": "shardprep.reader.arrays.collate",
    "mean_std": "shardprep.reader.selection.statistics",
    "folds": "shardprep.reader.selection.folds",
    "select": "shardprep.reader.selection.query",
    "table": "shardprep.reader.selection.query",
}


def __getattr__(name: str) -> Any:
    if name not in {*_LAZY, "augment"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing_tensorflow(f"reader.{name}"):
        if name == "augment":
            return importlib.import_module("shardprep.reader.augment")
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__


@WithOptions("reader.load", Request, _ELSEWHERE)
def load(request: Request) -> Any:  # noqa: D417 - documents fields
    """Return a `tf.data.Dataset` of (images, labels), ready for `keras.Model.fit`.

    Images are uint8[batch, height, width, 3], RGB. Stacks are uint8[batch, length, height, width,
    3], or uint16[…, 1] if they have 16 bits, padded with zeros to the longest of the batch. The
    labels depend on the dataset:

    * classes: int64[batch], −1 for an image without a class;
    * several classes per image: float32[batch, classes] of 0 and 1;
    * regression: float32[batch], NaN if an image has no target;
    * texts: string[batch];
    * boxes: a dict of `boxes` float32[batch, N, 4] and `labels` int64[batch, N]. N is the largest
      number of boxes of an image in the batch; padding rows are −1. If the dataset has them, the
      dict also has `crowds` bool[batch, N] and `masks` uint8[batch, N, height, width] of 0 and 1;
    * class masks: uint8[batch, height, width, 1], 255 for pixels without a class (uint16 and 65535
      with more than 254 classes).

    If a dataset has several of these, the labels are a dict. It has the class mask under the key
    `segmentation_mask`, and the label of the image under `label`, `target` or `text`. A dataset
    without labels yields images alone. Without `batch_size`, elements have no batch axis. The
    attribute `class_names` of the result has the names of the classes in label order.

    Args:
        path: folder of the dataset, or a folder above it (the newest version is read), or the
            address of either in object storage: "s3://bucket/key", "gs://…", "az://…"; or the
            result of `reader.mix`.
        split: "train", "train[:90%]", "train[100:200]", "train+validation", a part returned by
            `even_splits`, or a `Selection`. Slices count records in the order of the shards.
        batch_size: number of images per batch; None for single images.
        shuffle: True permutes blocks of 8 to 64 records and mixes the records of at least 16
            blocks, in another order in each epoch. False keeps the order of the shards. By
            default, a split is shuffled unless it is named validation or test.
        weights: draw records at random. "balanced" draws each class equally often, then one of its
            images; if images have no classes in the dataset, the classes of their objects count. An
            array has a weight for each record, in the order of the split without shuffling. An
            epoch has as many draws as the split has records, so a record may be drawn several times
            or not at all. `reader.Weights` can draw without replacement or change the number of
            draws. The draws of an epoch are from all records and are divided among the hosts.
        seed: number that decides the order, crops and seeds of `augment`, with any number of
            parallel calls. By default it is random, or 0 for several hosts.
        repeat: number of epochs of an iteration; True for no end.
        cache: where to keep decoded uint8 images before augmentation: "memory"; a folder, which
            later runs and other processes share; or "auto": memory if the images fit, else no
            cache, with the reason in the log. `load` fills the cache before it returns. An image
            takes height × width × 3 bytes. A cache does not change the order.
        random_resized_crop: (height, width), N for a square, or a `reader.RandomResizedCrop`: a
            random box of each image as in torchvision, resized to that size. The seed, the epoch
            and the record decide the box. Large JPEGs are decoded at a fraction of their size.
            Stored images may differ in size. Boxes and masks of objects are cropped as well.
        center_crop: (height, width), N for a square, or a `reader.CenterCrop`: the largest box in
            the middle with the aspect ratio of that size, resized; for evaluation.
        every: in a dataset of stacks, read only every `every`-th image of each stack.
        max_length: number of images of each stack in every batch. Longer stacks are cut to their
            middle, and shorter ones are padded with zeros.
        augment: function of the images of a batch (without `batch_size`, of one image), after
            conversion to `dtype`. It returns images, or (images, labels). It also gets arguments
            for its parameters with these names: `training`, True; `labels`, with boxes as
            "rel_yxyx"; `seed`, int32[2], which depends on the seed, the epoch and the first record.
        dtype: "float32" scales images to 0 to 1. "uint8" is faster: the model casts images on the
            accelerator.
        as_supervised: False yields a dict of all features of the schema.
        box_format: format of the boxes, by its name in Keras. "rel_yxyx" is ymin, xmin, ymax, xmax
            in 0 to 1. Formats without "rel_" are in pixels of the yielded images.
        max_boxes: number N of rows of boxes in every batch. If an image has more boxes, its largest
            ones are kept, and an `Advice` warns of that once.
        drop_remainder: drop an incomplete last batch, so that all batches have one shape.
        read_config: further options, see `ReadConfig`.

    Raises:
        DatasetError: an argument is not allowed, the dataset or split does not exist or is not
            finished, a shard is missing or truncated, or images in a batch would differ in size.
        RecordError: a damaged record is read to fill the cache.
        StorageError: object storage does not answer, or refuses a request.
    """
    with needing_tensorflow("reader.load"):
        from shardprep.reader.tf import pipeline
    return pipeline.load(request)


@WithOptions("reader.iterate", Request, _ELSEWHERE)
def iterate(request: Request) -> Batches:
    """Return the batches of `load` as a dataset whose state can be saved and loaded.

    Takes the same arguments as `load`, except `repeat`. Each `for` loop yields an epoch. After
    `load_state_dict`, the first loop yields exactly the batches of the epoch that were left.
    `state_dict()` returns the state: seed, epoch, number of batches drawn, and an identity of the
    batches. Loading a state does not read the records of earlier batches.

    The result is a `tf.data.Dataset`, so `fit` takes it; `ResumeInEpoch` saves its state with the
    weights. `state_dict()` does not count batches that TensorFlow draws itself, in `fit` or in a
    dataset made by `map`: each such iteration counts as an epoch.

    Raises:
        DatasetError: as for `load`, or `repeat` is given.
    """
    if request.repeat:
        raise DatasetError("reader.iterate", "each loop is one epoch", "leave out repeat")
    with needing_tensorflow("reader.iterate"):
        from shardprep.reader.tf import iterator
    return iterator.Batches(request)


@WithOptions("reader.distribute", Request, _ELSEWHERE)
def distribute(strategy: Strategy, request: Request) -> Any:
    """Return a `tf.distribute.DistributedDataset` for a Mirrored or MultiWorker strategy.

    Takes the same arguments as `load`; `batch_size` counts the images of all replicas together.
    Each host takes its part of each global batch, and all hosts have the same number of batches:
    incomplete batches are dropped, or padded for evaluation with `ReadConfig(pad_batches=True)`.
    `len()` and `cardinality` of the result count steps, not the batches of single replicas.

    Raises:
        DatasetError: as for `load`, or `batch_size` is not a multiple of the number of replicas.
    """
    with needing_tensorflow("reader.distribute"):
        from shardprep.reader.tf import pipeline
    return pipeline.distribute(strategy, request)


@validated("reader.mix", {"it to the reader that takes the mix: load(mix, {}=…)": Request})
def mix(shares: Shares) -> Mix:
    """Return a mix of datasets, which readers accept wherever they accept a path.

    Each dataset has exactly its share of every 1,000 records in training order. In a batch, the
    number of its records differs from the share by less than two. Each dataset is shuffled by
    itself and repeated: all of its records are read once before any is read again. With
    `shuffle=False` it keeps the order of its shards. An epoch has as many records as all datasets
    together; the next one continues each dataset where it stopped. The datasets must have the same
    features and class names. Their images may differ in size if they are cropped or resized.

    Args:
        shares: path or address of each dataset → its share. The shares are divided by their sum and
            rounded to thousandths.

    Raises:
        DatasetError: a share is not above 0, or is rounded to 0. The reader raises it if a dataset
            is missing or has other features or classes, or for an option that a mix does not have:
            weights, a selection, a cache in a folder.
    """
    return mix_of(shares)


@validated("reader.clear_cache")
def clear_cache(folder: Folder) -> int:
    """Remove all caches of decoded images in a folder; return the number of bytes freed.

    `folder` is the argument `cache` of `load`. Other files in it are kept. Readers that use a
    removed cache may fail; the next `load` with this folder fills the cache again.

    Raises:
        DatasetError: the folder does not exist, or a file cannot be removed.
        BusyError: another process is filling a cache in this folder.
    """
    from shardprep.reader.tf.image_cache import clear

    return clear(Path(folder))


@validated("reader.diagnose")
def diagnose(dataset: Any, step: Any, *, seconds: Seconds = 15.0) -> Diagnosis:
    """Return a diagnosis: which stage limits training, its speed limit, and a change to try.

    The stage is restart, read, decode, augment, transfer, model or contention, by its time per
    image. A round runs training unchanged, the model alone on one batch, and the pipeline alone. If
    the pipeline limits, it also runs without augmentation, and without decoding. Rounds follow
    until two in a row agree or the time is up. `print` the result for a sentence with the figures;
    it says if another stage costs almost as much.

    Args:
        dataset: result of `load`, with a `batch_size`.
        step: function that takes a batch and trains on it; or a compiled Keras model, whose
            weights, optimizer, metrics and random state are restored afterwards.
        seconds: maximum duration of all rounds. Rounds that agree at once take at least half of
            this time. Slow steps take longer: at least two rounds have three steps in each run.

    Raises:
        DatasetError: the dataset is not a result of `load`, has no batch, yields single images or
            has `pad_batches`, or `step` cannot train on it.
    """
    with needing_tensorflow("reader.diagnose"):
        from shardprep.reader.diagnosis import diagnosis
    return diagnosis.diagnose(dataset, step, seconds)
