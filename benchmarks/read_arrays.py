"""`reader.Dataset.batches` compared with a hand-tuned tf.data pipeline, and with bare decoding.

All ways decode the same number of images, with a thread for each core. Images are 224x224 JPEG,
unless a row names another size. If other programs run, compare the ratio of processor time, which
is in the figures.
"""

from __future__ import annotations

import itertools
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg

from benchmarks import photos
from benchmarks.measure import Measure, Row, built, interleaved, timed
from benchmarks.read import BATCH, EPOCHS, flipped_crop, hand_tuned, large_sets, of, ratio, whole
from benchmarks.table import alone

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep import reader
    from shardprep.reader.arrays.batches import ArrayBatches

TUNED = Measure("`Dataset.batches` / hand-tuned `tf.data`", ">= 1.4")
BARE = Measure("`Dataset.batches` / bare simplejpeg on bytes in memory", ">= 0.95")
BARE_EPOCHS = Measure("the same, three epochs of 2,000, the dataset opened anew", ">= 0.9")
RAW_CROP = Measure(
    "`Dataset.batches`: raw / JPEG, random crop of 224 and flip from 500x375", ">= 2.5"
)
MEASURES = (TUNED, BARE, BARE_EPOCHS, RAW_CROP)
EPOCH = 2000
"""Number of records of an epoch that is timed from opening the dataset."""
NUM_THREADS = os.cpu_count() or 1


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios."""
    from shardprep import reader

    batches = 2 if quick else 90
    number = batches // 2 * BATCH
    source = photos.write_folder(folder / "photos", number)
    path = built(folder / "out", source, "--shards", 8)
    large, large_raw = (reader.Dataset(one, "train") for one in large_sets(folder, number))
    dataset, epoch = reader.Dataset(path, "train"), min(EPOCH, number)
    images = [image for image, _ in reader.Dataset(path, "train", decode=False)]
    cost = interleaved(
        {
            "arrays": partial(of, partial(_arrays, dataset), batches),
            "bare": partial(timed, partial(_bare, images, batches * BATCH)),
            "tf.data": partial(of, partial(hand_tuned, path), batches),
            "epochs": partial(whole, partial(_epochs, path, epoch)),
            "bare epochs": partial(timed, partial(_bare, images, EPOCHS * epoch)),
            "cropped": partial(of, partial(_arrays, large, cropped=True), batches),
            "raw, cropped": partial(of, partial(_arrays, large_raw, cropped=True), batches),
        },
        rounds,
    )
    return [
        ratio(TUNED, cost, ("arrays", "tf.data"), batches),
        ratio(BARE, cost, ("arrays", "bare"), batches),
        ratio(BARE_EPOCHS, cost, ("epochs", "bare epochs"), EPOCHS * epoch / BATCH),
        ratio(RAW_CROP, cost, ("raw, cropped", "cropped"), batches),
    ]


def _arrays(dataset: reader.Dataset, *, cropped: bool = False) -> ArrayBatches:
    return dataset.batches(
        BATCH, shuffle=True, epochs=None, drop_remainder=True, num_threads=NUM_THREADS,
        random_resized_crop=flipped_crop() if cropped else None,
    )  # fmt: skip


def _epochs(path: Path, number: int) -> ArrayBatches:
    from shardprep import reader

    dataset = reader.Dataset(path, f"train[:{number}]")
    return dataset.batches(BATCH, shuffle=True, epochs=EPOCHS, num_threads=NUM_THREADS)


def _bare(images: list[bytes], number: int) -> None:
    """Decode `number` images, each thread into a buffer of its own."""

    def work(thread: int) -> None:
        out = np.empty((BATCH, 224, 224, 3), np.uint8)
        mine = itertools.cycle(images[thread::NUM_THREADS])
        for row, data in enumerate(itertools.islice(mine, number // NUM_THREADS)):
            simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=out[row % BATCH])

    threads = [threading.Thread(target=work, args=(one,)) for one in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    alone(rows, __doc__)
