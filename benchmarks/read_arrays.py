"""How fast `reader.Dataset.batches` is, beside a hand-tuned tf.data pipeline and bare decoding.

    python benchmarks/read_arrays.py dogs-vs-cats.zip      (any archive of photographs)

Builds 224x224 JPEG shards of quality 90 in a temporary folder, and reads them by each way in turn,
several rounds over, so that what else runs on the machine meets all of them; only the ratios count.
Where much else runs, processor time tells more: a way with more threads gets more of the cores.
Bars: 1.4 times the tf.data pipeline, 0.85 of bare decoding in as many threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

from shardprep import reader

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, SIZE, EPOCHS = 64, 224, 3


def arrays(folder: Path, num_threads: int) -> Callable[[], int]:
    dataset = reader.Dataset(folder, "train")

    def run() -> int:
        batches = dataset.batches(BATCH, shuffle=True, epochs=EPOCHS, num_threads=num_threads)
        return sum(len(images) for images, _ in batches)

    return run


def bare(folder: Path, num_threads: int) -> Callable[[], int]:
    """Decode the same bytes, already in memory, into one buffer for each thread."""
    images = [item["image"] for item in reader.Dataset(folder, "train", decode=False)]

    def work(thread: int) -> None:
        out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
        for row, data in enumerate(itertools.chain(*[images[thread::num_threads]] * EPOCHS)):
            simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out[row % BATCH])

    def run() -> int:
        threads = [threading.Thread(target=work, args=(one,)) for one in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(images) * EPOCHS

    return run


def tf_data(folder: Path, num_threads: int) -> Callable[[], int]:
    """Read with what the guides recommend, and no shuffle."""
    import tensorflow as tf

    files = sorted(str(path) for path in folder.glob("*-train.tfrecord*"))
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }

    def parse(record: Any) -> Any:
        example = tf.io.parse_single_example(record, features)
        pixels = tf.io.decode_jpeg(example["image"], channels=3)
        return tf.ensure_shape(pixels, (SIZE, SIZE, 3)), example["label"]

    options = tf.data.Options()
    options.deterministic = False
    options.threading.max_intra_op_parallelism = 1
    options.threading.private_threadpool_size = num_threads
    dataset = (
        tf.data.Dataset.from_tensor_slices(files)
        .interleave(
            tf.data.TFRecordDataset, cycle_length=len(files), num_parallel_calls=tf.data.AUTOTUNE
        )
        .repeat(EPOCHS)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )
    return lambda: sum(int(labels.shape[0]) for _, labels in dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        build = ["build", str(arguments.source), "--out", out, "--size", f"{SIZE}x{SIZE}"]
        options = ["--quality", "90", "--shards", "8", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "shardprep", *build, *options],
            check=True,
            stdout=subprocess.PIPE,
        )
        folder = Path(json.loads(done.stdout)["path"])
        ways = {way.__name__: way(folder, arguments.threads) for way in (arrays, bare, tf_data)}
        for run in ways.values():
            run()
        rates: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, run in ways.items():
                start, cpu_start = time.perf_counter(), time.process_time()
                num_images = run()
                rates[name].append(num_images / (time.perf_counter() - start))
                cpu[name].append(num_images / (time.process_time() - cpu_start))
    for name, found in rates.items():
        span = f"({min(found):,.0f} to {max(found):,.0f})"
        each = 1e6 / statistics.median(cpu[name])
        print(
            f"{name:8} {statistics.median(found):8,.0f} images/s {span}, {each:.0f} µs of CPU each"
        )
    for other, bar in (("tf_data", 1.4), ("bare", 0.85)):
        wall, work = (
            [one / two for one, two in zip(rate["arrays"], rate[other], strict=True)]
            for rate in (rates, cpu)
        )
        span = f"{min(wall):.2f} to {max(wall):.2f}"
        print(
            f"arrays / {other}: {statistics.median(wall):.2f} (bar {bar}; {span}), "
            f"by processor time {statistics.median(work):.2f}"
        )


if __name__ == "__main__":
    main()
