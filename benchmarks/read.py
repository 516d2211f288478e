"""Ways to read one set of images, side by side: images a second, and ratios of what they took.

    python benchmarks/read.py [--rounds 7] [--batches 60] [--records 1000000]

Builds shards of 224 px (JPEG and raw) and of the original sizes in a temporary folder, from the
dogs-vs-cats archive in ../shared/data where there is one, else from the sample that
`shardprep sample` draws. Each round times every way once, in turn, from warm files; shown are the
medians, and the medians of the ratios within a round. Processor time is the steadier of the two
where other programs run.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "dogs-vs-cats.zip"
BATCH = 64


def shards(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*/*/*-train.tfrecord*")))


def features() -> Any:
    import tensorflow as tf

    return {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }


def hand_tuned(folder: Path) -> Any:
    """Return what a careful user writes in tf.data."""
    import tensorflow as tf

    def decode(record: Any) -> Any:
        found = tf.io.parse_single_example(record, features())
        image = tf.io.decode_jpeg(found["image"], channels=3)
        return tf.ensure_shape(image, (224, 224, 3)), found["label"]

    files = tf.data.Dataset.from_tensor_slices(shards(folder)).shuffle(1000)
    dataset = files.interleave(
        tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE
    )
    dataset = dataset.shuffle(2048).repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.deterministic = False
    options.threading.max_intra_op_parallelism = 1
    return (
        dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE).with_options(options)
    )


def tutorial(folder: Path) -> Any:
    """Return what a tutorial shows: a file at a time, a serial map, resize and float."""
    import tensorflow as tf

    def decode(record: Any) -> Any:
        found = tf.io.parse_single_example(record, features())
        image = tf.io.decode_jpeg(found["image"], channels=3)
        return tf.image.resize(image, (224, 224)) / 255.0, found["label"]

    dataset = tf.data.TFRecordDataset(shards(folder)).map(decode).shuffle(1000).repeat()
    return dataset.batch(BATCH, drop_remainder=True)


def ours(folder: Path, **options: Any) -> Any:
    from shardprep import reader

    options = {"batch_size": BATCH, "repeat": True, "drop_remainder": True, **options}
    return reader.load(folder, **options)


def build(root: Path) -> None:
    source = ARCHIVE
    if not source.is_file():
        command = [sys.executable, "-m", "shardprep", "sample"]
        subprocess.run(command, cwd=root, check=True, capture_output=True)
        source = next(root.glob("*.zip"))
    for name, options in {
        "jpeg": ("--size", "224x224"),
        "raw": ("--size", "224x224", "--format", "raw"),
        "original": ("--size", "none"),
    }.items():
        command = [sys.executable, "-m", "shardprep", "build", str(source), "--shards", "8"]
        command += ["--labels", "prefix", "--out", str(root / name), *options]
        subprocess.run(command, cwd=root, check=True, capture_output=True)


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(make: Callable[[], Any], batches: int) -> tuple[float, float]:
    """Return seconds of the wall and of the processors for so many batches."""
    iterator = iter(make())
    for _ in range(20):
        next(iterator)
    wall, processor = time.perf_counter(), processor_s()
    for _ in range(batches):
        next(iterator)
    return time.perf_counter() - wall, processor_s() - processor


def compare(ways: dict[str, Callable[[], Any]], rounds: int, batches: int) -> None:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, make in ways.items():
            taken[name].append(measure(make, batches))
    for name, times in taken.items():
        wall = statistics.median(one for one, _ in times)
        print(f"{name:30} {batches * BATCH / wall:7,.0f} images/s")
    for name, base, bar in (
        ("ours", "hand-tuned", 1.0),
        ("ours", "tutorial", 4.0),
        ("raw", "ours", 2.0),
        ("ours", "ours, not shuffled", 0.95),
        ("raw", "raw, not shuffled", 0.95),
    ):
        pairs = list(zip(taken[name], taken[base], strict=True))
        wall = statistics.median(b[0] / a[0] for a, b in pairs)
        processor = statistics.median(b[1] / a[1] for a, b in pairs)
        label = f"{name} / {base}"
        print(f"{label:30} {wall:.2f} (processor {processor:.2f}), wanted {bar}")


def quality(folder: Path) -> None:
    """Show how near a block shuffle is to a true permutation, on labels that come in runs."""
    from shardprep import reader

    options: dict[str, Any] = {"as_supervised": False, "batch_size": 256}

    def order(**more: Any) -> list[bytes]:
        dataset = reader.load(folder, "train", **options, **more)
        return [key for one in dataset for key in one["image/filename"].numpy().tolist()]

    place = {key: i for i, key in enumerate(order(shuffle=False))}
    number = len(place)
    rng = np.random.default_rng(0)
    ways: dict[str, list[Any]] = {
        "blocks": [[place[key] for key in order(seed=seed)] for seed in range(8)],
        "permutation": [rng.permutation(number) for _ in range(8)],
    }
    for name, orders in ways.items():
        ranks = [abs(np.corrcoef(one, np.arange(number))[0, 1]) for one in orders]
        runs = []
        for one in orders:
            labels = np.array(one) * 2 // number  # as if all of one class had been written first
            runs.append(number / (1 + np.count_nonzero(np.diff(labels))))
        print(
            f"{name:12} |rank correlation| {np.mean(ranks):.3f}, label runs {np.mean(runs):.2f} "
            f"records, of {number:,} records in two classes, one after the other"
        )


def resume(root: Path, records: int) -> None:
    """Time the first batch of an epoch that goes on in its middle."""
    from shardprep import reader
    from shardprep.example import encode
    from shardprep.tfrecord import frame

    folder = next((root / "jpeg").glob("*/*"))
    small = root / "small" / "1.0.0"
    (small / "index").mkdir(parents=True)
    import hashlib
    import json

    manifest = json.loads((folder / "manifest.json").read_text())
    schema = json.loads((folder / "schema.json").read_text())
    schema["features"]["image"].update(encoding="raw", shape=[4, 4, 3])
    split = manifest["splits"]["train"]
    split["num_records"], split["shards"] = records, []
    for i in range(10):
        name = f"small-train.tfrecord-{i:05d}-of-00010"
        values = {"label": (i,), "image": (bytes(48),), "image/filename": (b"x",)}
        framed = frame(encode({**values, "image/height": (4,), "image/width": (4,)}))
        count = records // 10
        (small / name).write_bytes(framed * count)
        lines = (f"{j * len(framed)} {len(framed)}\n" for j in range(count))
        (small / "index" / f"{name}.idx").write_text("".join(lines))
        digest = hashlib.sha256(name.encode()).hexdigest()
        split["shards"].append(
            {"name": name, "num_records": count, "num_bytes": len(framed) * count, "sha256": digest}
        )
    (small / "manifest.json").write_text(json.dumps(manifest))
    (small / "schema.json").write_text(json.dumps(schema))
    batches = reader.iterate(small, batch_size=256, seed=1)
    next(iter(batches))
    state = {**batches.state_dict(), "batch": records // 512}
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        again = reader.iterate(small, batch_size=256, seed=1)
        again.load_state_dict(state)
        next(iter(again))
        seconds.append(time.perf_counter() - begin)
    print(
        f"first batch in the middle of {records:,} records, dataset opened anew: "
        f"{statistics.median(seconds):.2f} s, wanted below 2"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--records", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build(root)
        jpeg, raw, original = (root / name for name in ("jpeg", "raw", "original"))
        compare(
            {
                "hand-tuned": lambda: hand_tuned(jpeg),
                "tutorial": lambda: tutorial(original),
                "ours": lambda: ours(jpeg),
                "ours, not shuffled": lambda: ours(jpeg, shuffle=False),
                "ours, seeded": lambda: ours(jpeg, seed=1),
                "ours, cached in memory": lambda: ours(jpeg, cache="memory"),
                "ours, cached in a folder": lambda: ours(jpeg, cache=root / "cache"),
                "raw": lambda: ours(raw),
                "raw, not shuffled": lambda: ours(raw, shuffle=False),
            },
            arguments.rounds,
            arguments.batches,
        )
        quality(jpeg)
        resume(root, arguments.records)


if __name__ == "__main__":
    main()
