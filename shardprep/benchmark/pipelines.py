"""The pipelines that `shardprep bench` compares. All yield endless batches of the same records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shardprep.dataset.folder import read_schema
from shardprep.dataset.schema import IMAGE, LABEL
from shardprep.reader import Dataset, ReadConfig, load

_SIZE_OF_OTHERS = (224, 224)
"""Height and width to which images are resized if they differ in size."""
_WINDOW = 2048
_WHITE = 255.0


@dataclass(frozen=True, slots=True)
class Source:
    """The records that all pipelines read: whole shards, from the first shard of a split on."""

    folder: Path
    split: str
    """The records as a split expression, such as train[:1000]."""
    shards: tuple[str, ...]
    """Names of the shards, in order."""
    batch_size: int

    @property
    def files(self) -> list[str]:
        return [str(self.folder / name) for name in self.shards]

    @property
    def resized_to(self) -> tuple[int, int] | None:
        """Height and width to which images are resized, or None if all have one size already."""
        return None if read_schema(self.folder).image_size else _SIZE_OF_OTHERS


def naive(source: Source) -> Any:
    """Return a pipeline as in tutorials: one file and image at a time, float32 before `batch`."""
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


def with_tensorflow(source: Source) -> Any:
    """Return the pipeline of `reader.load`."""
    config, size = ReadConfig(image_size=source.resized_to), source.batch_size
    return load(
        source.folder, source.split, batch_size=size, shuffle=True, repeat=True, read_config=config
    )


def without_tensorflow(source: Source) -> Any:
    """Return the batches of `reader.Dataset`, which does not use TensorFlow."""
    records = Dataset(source.folder, source.split)
    return records.batches(source.batch_size, shuffle=True, epochs=None)


class Pipeline(NamedTuple):
    """A pipeline of the comparison."""

    title: str
    make: Callable[[Source], Any]
    """Returns an endless iterable of batches."""


PIPELINES = {
    "naive": Pipeline("naive tf.data", naive),
    "tuned": Pipeline("tuned tf.data", tuned),
    "load": Pipeline("reader.load", with_tensorflow),
    "dataset": Pipeline("reader.Dataset", without_tensorflow),
}
"""The pipelines by their names in JSON, in display order."""


def _decoder(source: Source) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that decodes a record to (image, label), or to (image,) without labels."""
    import tensorflow as tf

    schema, size = read_schema(source.folder), source.resized_to
    wanted = {IMAGE: tf.io.FixedLenFeature((), tf.string)}
    if schema.target == LABEL:
        wanted[LABEL] = tf.io.FixedLenFeature((), tf.int64)

    def decode(record: Any) -> tuple[Any, ...]:
        features = tf.io.parse_single_example(record, wanted)
        data = features.pop(IMAGE)
        if schema.image.encoding == "raw":
            pixels = tf.reshape(tf.io.decode_raw(data, tf.uint8), schema.image.shape)
        elif schema.image.encoding == "jpeg":
            pixels = tf.io.decode_jpeg(data, channels=3)
        else:
            pixels = tf.io.decode_image(data, channels=3, expand_animations=False)
        if size:
            resized = tf.image.resize(pixels, size, antialias=True)
            pixels = tf.cast(tf.clip_by_value(tf.round(resized), 0.0, _WHITE), tf.uint8)
        return pixels, *features.values()

    return decode
