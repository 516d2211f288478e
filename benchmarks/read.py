"""Speed of several ways to read the same images with TensorFlow, from the page cache.

Shards of 224 px, 500x375 and the original sizes hold the same photos. Each round times every way
once, in turn, after some batches that do not count. A ratio is of wall time. The ratio of processor
time, which is in the figures too, is steadier if other programs run.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import photos
from benchmarks.measure import Cost, Measure, Row, built, interleaved, timed
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shardprep.dataset.example import Values

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
BATCH = 64
SIDE = 224
"""Height and width of crops in pixels."""
EPOCHS = 3
"""Number of epochs that other scripts time from opening the dataset."""

TUNED = Measure("`load` / hand-tuned `tf.data`", ">= 1.0")
TUTORIAL = Measure("`load` / a tutorial's loop", ">= 4")
RAW = Measure("`load`: raw / JPEG", ">= 2")
BLOCKS = Measure("`load`: block shuffle / none, JPEG", ">= 0.95")
BLOCKS_RAW = Measure("`load`: block shuffle / none, raw", ">= 0.95")
SEEDED = Measure("`load`: with a seed / without")
MEMORY = Measure("`load`: cached in memory / not")
FOLDER = Measure("`load`: cached in a folder / not")
CROP = Measure("`load`: `random_resized_crop` of 224 from 500x375 / `augment` crop", ">= 1.3")
ORDER = Measure("block shuffle: rank correlation with the order of files")
RUNS = Measure("block shuffle: run of one label, if files came sorted by it", "", "records")
RESUME = Measure("first batch in the middle of 1,000,000 records", "< 2 s", "s")
RATIOS = {
    TUNED: ("load", "hand-tuned"),
    TUTORIAL: ("load", "tutorial"),
    RAW: ("raw", "load"),
    BLOCKS: ("load", "not shuffled"),
    BLOCKS_RAW: ("raw", "raw, not shuffled"),
    SEEDED: ("seeded", "load"),
    MEMORY: ("in memory", "load"),
    FOLDER: ("in a folder", "load"),
    CROP: ("cropped", "decoded and cropped"),
}
MEASURES = (*RATIOS, ORDER, RUNS, RESUME)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return rates, the quality of the shuffle, and the time to resume inside an epoch."""
    batches, records = (2, 10_000) if quick else (60, 1_000_000)
    number = batches // 2 * BATCH  # whole epochs: a shuffle buffer fills and drains in each
    source = photos.write_folder(folder / "photos", number)
    jpeg = built(folder / "jpeg", source, "--shards", 8)
    raw = built(folder / "raw", source, "--shards", 8, "--format", "raw")
    original = built(folder / "original", source, "--shards", 8, "--size", "none")
    large, _ = large_sets(folder, number)
    ways: dict[str, Callable[[], Any]] = {
        "hand-tuned": partial(hand_tuned, jpeg),
        "tutorial": partial(tutorial, original),
        "load": partial(load, jpeg),
        "not shuffled": partial(load, jpeg, shuffle=False),
        "seeded": partial(load, jpeg, seed=1),
        "in memory": partial(load, jpeg, cache="memory"),
        "in a folder": partial(load, jpeg, cache=folder / "cache"),
        "raw": partial(load, raw),
        "raw, not shuffled": partial(load, raw, shuffle=False),
        "cropped": partial(load, large, random_resized_crop=(SIDE, SIDE)),
        "decoded and cropped": partial(decoded_and_cropped, large),
    }
    cost = interleaved({name: partial(of, make, batches) for name, make in ways.items()}, rounds)
    ratios = [ratio(measure, cost, names, batches) for measure, names in RATIOS.items()]
    return [*ratios, *quality(jpeg), resume(folder, jpeg, records, rounds)]


def large_sets(folder: Path, number: int) -> tuple[Path, Path]:
    """Return datasets of up to 640 photos of 500x375: as JPEG, and as raw images (360 MB)."""
    source = photos.write_folder(folder / "some", min(number, 640))
    options = ("--shards", 8, "--size", "500x375")
    jpeg = built(folder / "large", source, *options)
    return jpeg, built(folder / "large_raw", source, *options, "--format", "raw")


def flipped_crop() -> Any:
    from shardprep import reader

    return reader.RandomResizedCrop((SIDE, SIDE), flip=0.5)


def of(make: Callable[[], Any], batches: int) -> Cost:
    """Return the cost of `batches` batches, after 20 batches that fill buffers and caches."""
    iterator = iter(make())
    for _ in range(20):
        next(iterator)

    def draw() -> None:
        for _ in range(batches):
            next(iterator)

    return timed(draw)


def whole(make: Callable[[], Iterable[Any]]) -> Cost:
    """Return the cost of all batches, from opening the dataset to the last batch."""

    def draw() -> None:
        for _ in make():
            pass

    return timed(draw)


def ratio(measure: Measure, cost: dict[str, Cost], names: tuple[str, str], batches: float) -> Row:
    """Return the speed of the first way in `names` divided by the speed of the second way.

    Each way has read `batches` batches.
    """
    one, two = (cost[name] for name in names)
    rates = [f"{batches * BATCH / way.wall_s:,.0f}" for way in (one, two)]
    figures = f"{rates[0]} / {rates[1]} images/s, by processor time {two.cpu_s / one.cpu_s:.2f}"
    return measure.came_to(two.wall_s / one.wall_s, figures)


def shards(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*-train.tfrecord*")))


def features() -> Any:
    import tensorflow as tf

    return {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }


def decoded(record: Any, form: str = "jpeg") -> Any:
    """Return the image and the label of a record, in a graph."""
    import tensorflow as tf

    found = tf.io.parse_single_example(record, features())
    image = getattr(tf.io, f"decode_{form}")(found["image"], channels=3)
    return tf.reshape(image, (SIDE, SIDE, 3)), found["label"]  # of WebP it is a list of frames


def hand_tuned(
    folder: Path,
    decode: Callable[[Any], Any] = decoded,
    *,
    batch: str = "batch",
    size: int = BATCH,
    repeat: bool = True,
) -> Any:
    """Return the pipeline that a careful user writes in tf.data; `batch` is the method to call."""
    import tensorflow as tf

    files = tf.data.Dataset.from_tensor_slices(shards(folder)).shuffle(1000)
    dataset = files.interleave(
        tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE
    )
    dataset = dataset.shuffle(2048)
    if repeat:
        dataset = dataset.repeat()
    dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.deterministic = False
    options.threading.max_intra_op_parallelism = 1
    batches = getattr(dataset, batch)(size, drop_remainder=True)
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def tutorial(folder: Path) -> Any:
    """Return the pipeline of a tutorial: one file at a time, a serial map, resize and float."""
    import tensorflow as tf

    def decode(record: Any) -> Any:
        found = tf.io.parse_single_example(record, features())
        image = tf.io.decode_jpeg(found["image"], channels=3)
        return tf.image.resize(image, (224, 224)) / 255.0, found["label"]

    dataset = tf.data.TFRecordDataset(shards(folder)).map(decode).shuffle(1000).repeat()
    return dataset.batch(BATCH, drop_remainder=True)


def load(folder: Path, **options: Any) -> Any:
    from shardprep import reader

    options = {"batch_size": BATCH, "repeat": True, "drop_remainder": True, **options}
    return reader.load(folder, **options)


def decoded_and_cropped(folder: Path) -> Any:
    """Return batches of whole images, which an op of `reader.augment` crops after decoding."""
    from shardprep.reader import augment

    return load(folder, augment=augment.Compose([augment.RandomResizedCrop((SIDE, SIDE))]))


def quality(folder: Path) -> list[Row]:
    """Return rows that compare a block shuffle with true permutations, on labels that form runs."""
    from shardprep import reader

    options: dict[str, Any] = {"as_supervised": False, "batch_size": 256}

    def order(**more: Any) -> list[bytes]:
        dataset = reader.load(folder, "train", **options, **more)
        return [key for one in dataset for key in one["image/filename"].numpy().tolist()]

    place = {key: i for i, key in enumerate(order(shuffle=False))}
    number = len(place)
    rng = np.random.default_rng(0)
    blocks = [[place[key] for key in order(seed=seed)] for seed in range(8)]
    permutations = [rng.permutation(number).tolist() for _ in range(8)]

    def rank(orders: list[list[int]]) -> float:
        found = [abs(np.corrcoef(one, np.arange(number))[0, 1]) for one in orders]
        return float(np.mean(found))

    def run(orders: list[list[int]]) -> float:
        labels = [np.array(one) * 2 // number for one in orders]  # one class after the other
        return float(np.mean([number / (1 + np.count_nonzero(np.diff(one))) for one in labels]))

    return [
        ORDER.came_to(rank(blocks), f"a true permutation: {rank(permutations):.3f}"),
        RUNS.came_to(run(blocks), f"a true permutation: {run(permutations):.2f}"),
    ]


def resume(root: Path, like: Path, records: int, rounds: int) -> Row:
    """Time opening a dataset and reading the first batch in the middle of an epoch."""
    from shardprep import reader

    small = write_small(root / "small" / "1.0.0", like, records)
    batches = reader.iterate(small, batch_size=256, seed=1)
    next(iter(batches))
    state = {**batches.state_dict(), "batch": records // 512}

    def go_on() -> None:
        again = reader.iterate(small, batch_size=256, seed=1)
        again.load_state_dict(state)
        next(iter(again))

    seconds = interleaved({"resume": partial(timed, go_on)}, rounds)["resume"].wall_s
    return RESUME.came_to(seconds, "the dataset opened anew, batches of 256")


def write_small(folder: Path, like: Path, records: int) -> Path:
    """Write a dataset of `records` images of 4x4 pixels, with documents based on `like`."""
    from shardprep.dataset.documents import shard_name
    from shardprep.dataset.example import encode
    from shardprep.dataset.folder import SCHEMA_FILE, index_name, read_schema
    from shardprep.dataset.manifest import MANIFEST_FILE, Shard, load_manifest
    from shardprep.dataset.tfrecord import frame

    (folder / "index").mkdir(parents=True)
    manifest, schema = load_manifest(like), read_schema(like)
    image = schema.image.model_copy(update={"encoding": "raw", "shape": (4, 4, 3)})
    schema = schema.model_copy(update={"features": {**schema.features, "image": image}})
    (folder / SCHEMA_FILE).write_text(schema.dumps())
    sides = {"image/height": (4,), "image/width": (4,)}
    values: dict[str, Values] = {"label": (0,), "image/filename": (b"x",), **sides}
    values["image"] = (bytes(4 * 4 * 3),)
    framed = frame(encode(values))
    count = records // 10
    number = 10 * count
    data, shards = framed * count, []
    lines = "".join(f"{j * len(framed)} {len(framed)}\n" for j in range(count))
    for i in range(10):
        name = shard_name(manifest.name, "train", i, 10)
        (folder / name).write_bytes(data)
        (folder / index_name(name)).write_text(lines)
        digest = hashlib.sha256(data).hexdigest()
        shards.append(Shard(name=name, num_records=count, num_bytes=len(data), sha256=digest))
    written = {"num_written": number, "num_bytes": 10 * len(data)}
    nothing = {"num_inputs": number, "num_rejected": 0, "rejected": {}, "num_skipped": 0}
    totals = manifest.totals.model_copy(update={**written, **nothing, "skipped": {}})
    counts = dict.fromkeys(manifest.labels.names, 0) | {manifest.labels.names[0]: number}
    train = manifest.splits["train"].model_copy(
        update={
            "num_records": number,
            "num_bytes": 10 * len(data),
            "shards": tuple(shards),
            "label_counts": counts,
        }
    )
    digest = hashlib.sha256((folder / SCHEMA_FILE).read_bytes()).hexdigest()
    manifest = manifest.model_copy(
        update={"totals": totals, "splits": {"train": train}, "files": {SCHEMA_FILE: digest}}
    )
    (folder / MANIFEST_FILE).write_text(manifest.dumps())
    return folder


if __name__ == "__main__":
    alone(rows, __doc__)
