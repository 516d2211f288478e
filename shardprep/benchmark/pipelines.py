"""The ways that `shardprep bench` compares. Each gives the same records for ever, in batches.

    python -m shardprep.benchmark.pipelines WAY FOLDER SPLIT NUM_RECORDS BATCH_SIZE

runs one of them in a process of its own: a line of JSON when it is ready, then for each line of
stdin, a number of seconds, one measured round. `shardprep.benchmark.run` is the other end.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.benchmark.result import Round
from shardprep.dataset.folder import read_schema
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.schema import IMAGE, LABELS
from shardprep.errors import DatasetError, ShardprepError
from shardprep.reader import Dataset, ReadConfig, load
from shardprep.reader.splits import select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardprep.dataset.schema import Schema

_SIZE_OF_OTHERS = (224, 224)
_WINDOW = 2048
_WHITE = 255.0


@dataclass(frozen=True, slots=True)
class Source:
    """What every way reads: the first records of a split, in whole shards."""

    folder: Path
    split: str
    num_records: int
    batch_size: int

    @property
    def slice(self) -> str:
        """The split expression of these records."""
        return f"{self.split}[:{self.num_records}]"

    @property
    def files(self) -> list[str]:
        """The shards, in order."""
        found = select(load_manifest(self.folder), self.slice)
        return [str(self.folder / one.shard) for one in found]

    @property
    def schema(self) -> Schema:
        """The schema of the dataset."""
        return read_schema(self.folder)

    @property
    def resized_to(self) -> tuple[int, int] | None:
        """Height and width for images that differ in size; None where they do not."""
        return None if self.schema.image_size else _SIZE_OF_OTHERS


def naive(source: Source) -> Any:
    """One file after the other, one image after the other, float32 before the batch."""
    import tensorflow as tf

    decode = _decoder(source)

    def as_float(record: Any) -> Any:
        pixels, *rest = decode(record)
        return tf.cast(pixels, tf.float32) / _WHITE, *rest

    return tf.data.TFRecordDataset(source.files).map(as_float).batch(source.batch_size).repeat()


def tuned(source: Source) -> Any:
    """What the tf.data performance guide and the MLPerf pipelines do, by hand."""
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
    """TensorFlow Datasets with its defaults: it opens the folder unchanged."""
    import tensorflow as tf

    if importlib.util.find_spec("tensorflow_datasets") is None:
        raise DatasetError(
            "tfds", "tensorflow-datasets is not installed", "pip install tensorflow-datasets"
        )
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(source.folder))
    dataset = builder.as_dataset(split=source.slice, shuffle_files=True)
    size = source.resized_to
    if size:
        dataset = dataset.map(
            lambda features: {**features, IMAGE: _resized(features[IMAGE], size)},
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    target = source.schema.target
    if target == LABELS:  # of any length: tfds leaves batching them to its caller
        return dataset.shuffle(_WINDOW).repeat().ragged_batch(source.batch_size).prefetch(-1)
    return dataset.shuffle(_WINDOW).repeat().batch(source.batch_size).prefetch(tf.data.AUTOTUNE)


def with_tensorflow(source: Source) -> Any:
    """`reader.load`."""
    config = ReadConfig(image_size=source.resized_to) if source.resized_to else None
    return load(
        source.folder,
        source.slice,
        batch_size=source.batch_size,
        shuffle=True,
        repeat=True,
        read_config=config,
    )


def without_tensorflow(source: Source) -> Any:
    """`reader.Dataset`, which needs no TensorFlow."""
    return Dataset(source.folder, source.slice).batches(
        source.batch_size, shuffle=True, epochs=None
    )


WAYS: dict[str, Callable[[Source], Any]] = {
    "naive": naive,
    "tuned": tuned,
    "tfds": tfds,
    "load": with_tensorflow,
    "dataset": without_tensorflow,
}
"""By the names of `shardprep.benchmark.result.WAYS`."""


def measure(way: Callable[[Source], Any], source: Source, seconds: float) -> Round:
    """Draw batches for some seconds from a pipeline that is built for it.

    The first batch is timed apart: it is opening files, building a graph, filling windows.
    """
    start = time.perf_counter()
    batches = iter(way(source))
    next(batches)
    begin, cpu = time.perf_counter(), _cpu_s()
    num_images, end = 0, begin
    while end - begin < seconds:
        num_images += num_images_of(next(batches))
        end = time.perf_counter()
    return Round(begin - start, num_images, end - begin, _cpu_s() - cpu)


def num_images_of(batch: Any) -> int:
    """Return the number of images of what a pipeline yields."""
    return len(images_of(batch))


def images_of(batch: Any) -> Any:
    """Return the images of what a pipeline yields: a dict, (images, targets) or images alone."""
    if isinstance(batch, dict):
        return batch[IMAGE]
    return batch[0] if isinstance(batch, tuple) else batch


def _decoder(source: Source) -> Callable[[Any], tuple[Any, ...]]:
    """Return what a pipeline written by hand would map over records."""
    import tensorflow as tf

    schema = source.schema
    kinds = {
        "label": tf.io.FixedLenFeature((), tf.int64),
        "labels": tf.io.VarLenFeature(tf.int64),
        "scalar": tf.io.FixedLenFeature((), tf.float32),
        "text": tf.io.FixedLenFeature((), tf.string),
    }
    wanted = {IMAGE: tf.io.FixedLenFeature((), tf.string)}
    if schema.target:
        wanted[schema.target] = kinds[schema.features[schema.target].kind]

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
        return pixels, target

    return decode


def _resized(pixels: Any, size: tuple[int, int]) -> Any:
    import tensorflow as tf

    resized = tf.image.resize(pixels, size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, _WHITE), tf.uint8)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_bytes() -> int:
    """Return the most memory that this program has held; getrusage would count its parent's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _lines() -> Iterator[str]:
    yield from sys.stdin


def main(arguments: list[str]) -> None:
    """Serve one way until stdin ends."""
    name, folder, split, num_records, batch_size = arguments
    source = Source(Path(folder), split, int(num_records), int(batch_size))
    try:
        images = images_of(next(iter(WAYS[name](source))))
        _say(yields=images.dtype.name)
        for line in _lines():
            done = measure(WAYS[name], source, float(line))
            _say(**asdict(done), peak_bytes=_peak_bytes())
    except ModuleNotFoundError as error:
        _say(problem=f"{error.name} is not installed")
    except ShardprepError as error:
        _say(problem=str(error))
    except Exception as error:  # TensorFlow raises what it likes; the row says it
        _say(problem=f"{type(error).__name__}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
