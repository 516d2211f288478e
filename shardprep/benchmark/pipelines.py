"""The pipelines that `shardprep bench` compares. All yield endless batches of the same records."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardprep.dataset.folder import read_schema
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.schema import IMAGE, LABELS, TEXTS, Schema
from shardprep.errors import DatasetError
from shardprep.reader import Dataset, ReadConfig, load
from shardprep.reader.records.records import Places
from shardprep.reader.selection.selection import Selection
from shardprep.reader.selection.split_argument import AnySplit, numbers_of

_SIZE_OF_OTHERS = (224, 224)
"""Height and width to which images are resized if they differ in size."""
_WINDOW = 2048
_WHITE = 255.0


@dataclass(frozen=True, slots=True)
class Source:
    """The records that the pipelines read: the first shards of a split, or a Selection."""

    folder: Path
    split: str
    num_records: int
    batch_size: int
    chosen: str = ""
    """Path of a saved Selection, or "" for the first `num_records` of the split."""

    @property
    def records(self) -> AnySplit:
        return Selection.load(self.chosen) if self.chosen else self.slice

    @property
    def slice(self) -> str:
        """The records as a split expression. Raises DatasetError if they are a Selection."""
        if self.chosen:
            what = "is not a whole split, and this pipeline reads whole shards"
            raise DatasetError(self.split, what, "bench a whole split")
        return f"{self.split}[:{self.num_records}]"

    @property
    def files(self) -> list[str]:
        """Paths of the shards, in order. Raises DatasetError if the records are a Selection."""
        manifest = load_manifest(self.folder)
        places = Places.of(manifest, numbers_of(manifest, self.slice))
        return [str(self.folder / shard.name) for shard in places.shards]

    @property
    def schema(self) -> Schema:
        return read_schema(self.folder)

    @property
    def resized_to(self) -> tuple[int, int] | None:
        """Height and width to which images are resized, or None if all have one size already."""
        return None if self.schema.image_size else _SIZE_OF_OTHERS


def naive(source: Source) -> Any:
    """Return a pipeline like in tutorials: one file or image at a time, float32 before `batch`."""
    import tensorflow as tf

    decode = _decoder(source)

    def as_float(record: Any) -> Any:
        pixels, *rest = decode(record)
        return tf.cast(pixels, tf.float32) / _WHITE, *rest

    return tf.data.TFRecordDataset(source.files).map(as_float).batch(source.batch_size).repeat()


def tuned(source: Source) -> Any:
    """Return a hand-tuned pipeline that follows the tf.data performance guide and MLPerf."""
    import tensorflow as tf

    files = source.files
    options = tf.data.Options()
    options.deterministic = False
    options.threading.max_intra_op_parallelism = 1
    records = (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .interleave(
            tf.data.TFRecordDataset,
            cycle_length=min(16, len(files)),
            block_length=16,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    )
    return (
        records.shuffle(_WINDOW)
        .repeat()
        .map(_decoder(source), num_parallel_calls=tf.data.AUTOTUNE)
        .batch(source.batch_size, num_parallel_calls=tf.data.AUTOTUNE)
        .with_options(options)
        .prefetch(tf.data.AUTOTUNE)
    )


def tfds(source: Source) -> Any:
    """Return a pipeline of TensorFlow Datasets, default options but without its cache in memory.

    It would keep a split of one shard decoded, and the figure would not be one of reading.
    """
    import tensorflow as tf

    if importlib.util.find_spec("tensorflow_datasets") is None:
        name = "tensorflow-datasets"
        raise DatasetError(name, "is not installed", f"pip install {name}")
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(source.folder))
    config = tensorflow_datasets.ReadConfig(try_autocache=False)
    dataset = builder.as_dataset(split=source.slice, shuffle_files=True, read_config=config)
    size = source.resized_to
    if size:
        dataset = dataset.map(
            lambda features: {**features, IMAGE: _resized(features[IMAGE], size)},
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    if source.schema.target in (LABELS, TEXTS):  # lists of any length, which `batch` refuses
        return dataset.shuffle(_WINDOW).repeat().ragged_batch(source.batch_size).prefetch(-1)
    return dataset.shuffle(_WINDOW).repeat().batch(source.batch_size).prefetch(tf.data.AUTOTUNE)


def with_tensorflow(source: Source) -> Any:
    """Return the pipeline of `reader.load`."""
    config = ReadConfig(image_size=source.resized_to) if source.resized_to else None
    return load(
        source.folder,
        source.records,
        batch_size=source.batch_size,
        shuffle=True,
        repeat=True,
        read_config=config,
    )


def without_tensorflow(source: Source) -> Any:
    """Return the batches of `reader.Dataset`, which does not use TensorFlow."""
    return Dataset(source.folder, source.records).batches(
        source.batch_size, shuffle=True, epochs=None
    )


class Pipeline(NamedTuple):
    """A pipeline of the comparison."""

    title: str
    make: Callable[[Source], Any]
    """Returns an endless iterable of batches."""
    is_traced: bool = False


PIPELINES = {
    "naive": Pipeline("naive tf.data", naive, is_traced=True),
    "tuned": Pipeline("tuned tf.data", tuned),
    "tfds": Pipeline("tfds", tfds),
    "load": Pipeline("reader.load", with_tensorflow, is_traced=True),
    "dataset": Pipeline("reader.Dataset", without_tensorflow, is_traced=True),
}
"""The pipelines by their names in JSON and on command lines, in display order."""


def _decoder(source: Source) -> Callable[[Any], tuple[Any, ...]]:
    import tensorflow as tf

    schema = source.schema
    kinds = {
        "label": tf.io.FixedLenFeature((), tf.int64),
        "labels": tf.io.VarLenFeature(tf.int64),
        "scalar": tf.io.FixedLenFeature((), tf.float32),
        "text": tf.io.FixedLenFeature((), tf.string),
        "texts": tf.io.RaggedFeature(tf.string),
    }
    wanted = {IMAGE: tf.io.FixedLenFeature((), tf.string)}
    if schema.target:
        feature = schema.features[schema.target]
        kinds["vector"] = tf.io.FixedLenFeature((feature.num_values,), tf.float32)
        wanted[schema.target] = kinds[feature.kind]

    def decode(record: Any) -> tuple[Any, ...]:
        features = tf.io.parse_single_example(record, wanted)
        data = features[IMAGE]
        if schema.image.encoding == "raw":
            pixels = tf.reshape(tf.io.decode_raw(data, tf.uint8), schema.image.shape)
        elif schema.image.encoding == "jpeg":
            pixels = tf.io.decode_jpeg(data, channels=3)
        else:
            pixels = tf.io.decode_image(data, channels=3, expand_animations=False)
        if source.resized_to:
            pixels = _resized(pixels, source.resized_to)
        if schema.target is None:
            return (pixels,)
        target = features[schema.target]
        if schema.target == LABELS:
            target = tf.sparse.to_indicator(target, len(schema.labels))
        elif schema.target == TEXTS:
            missing = schema.features[TEXTS].num_values - tf.shape(target)[0]
            target = tf.concat([target, tf.fill([missing], "")], 0)
        return pixels, target

    return decode


def _resized(pixels: Any, size: tuple[int, int]) -> Any:
    import tensorflow as tf

    resized = tf.image.resize(pixels, size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, _WHITE), tf.uint8)
