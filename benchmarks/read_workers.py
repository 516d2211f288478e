"""Worker processes compared with threads: images per second, and the cost in the training process.

Two processes of one thread each are compared with two threads of this process. Simulated workers
sleep for 300 µs per image instead of decoding, so there can be more of them than cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import photos, read
from benchmarks.measure import Cost, Measure, Row, built, interleaved, timed
from benchmarks.read import large_sets, ratio
from benchmarks.table import alone
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.decode.features import ExampleReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep import reader

BATCH = 256
NUM_WORKERS = 2
SLEEP_S = 300e-6
SIMULATED = 32
LOOP = 10_000_000
START_S = 2
"""Longer than two workers take to start."""

PARENT = Measure("processor time of the training process for an image, workers", "<= 3 µs", "µs")
JPEG = Measure("workers / threads, JPEG of 224x224", ">= 1.05")
CROPS = Measure("workers / threads, random crop of 224 from 500x375", ">= 1.05")
LOOP_WORKER = Measure("a loop of Python beside one worker / alone", "<= 1.05")
LOOP_THREAD = Measure("the same loop beside one thread / alone")
FIRST = Measure("time to the first batch: workers / threads", "<= 1.0")
MANY = Measure("32 simulated workers / 32 images in 300 µs", ">= 0.97")
MANY_PARENT = Measure("processor time of the training process, the same workers", "<= 20 %", "%")
MEASURES = (PARENT, JPEG, CROPS, LOOP_WORKER, LOOP_THREAD, FIRST, MANY, MANY_PARENT)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the figures."""
    from shardprep import reader

    batches = 2 if quick else 40
    source = photos.write_folder(folder / "photos", batches // 2 * BATCH)
    path = built(folder / "out", source, "--shards", 8)
    jpeg = reader.Dataset(path, "train")
    large = reader.Dataset(large_sets(folder, batches // 2 * BATCH)[0], "train")
    crop: dict[str, Any] = {"random_resized_crop": (224, 224)}
    cost = interleaved(
        {
            "workers": partial(_steady, jpeg, batches, NUM_WORKERS),
            "threads": partial(_steady, jpeg, batches, 0),
            "workers, cropped": partial(_steady, large, batches, NUM_WORKERS, **crop),
            "threads, cropped": partial(_steady, large, batches, 0, **crop),
            "alone": partial(timed, _loop),
            "beside a worker": partial(_beside, jpeg, 1),
            "beside a thread": partial(_beside, jpeg, 0),
            "first of workers": partial(_first, path, NUM_WORKERS),
            "first of threads": partial(_first, path, 0),
            "simulated": partial(_simulated, jpeg, batches),
        },
        rounds,
    )
    shown = batches * BATCH / read.BATCH
    many, images = cost["simulated"], batches * SIMULATED * BATCH
    return [
        PARENT.came_to(1e6 * cost["workers"].cpu_s / (batches * BATCH)),
        ratio(JPEG, cost, ("workers", "threads"), shown),
        ratio(CROPS, cost, ("workers, cropped", "threads, cropped"), shown),
        _longer(LOOP_WORKER, cost, ("beside a worker", "alone")),
        _longer(LOOP_THREAD, cost, ("beside a thread", "alone")),
        _longer(FIRST, cost, ("first of workers", "first of threads")),
        MANY.came_to(images / many.wall_s * SLEEP_S / SIMULATED, f"{images / many.wall_s:,.0f}/s"),
        MANY_PARENT.came_to(100 * many.cpu_s / many.wall_s, f"{1e6 * many.cpu_s / images:.1f} µs"),
    ]


def _longer(measure: Measure, cost: dict[str, Cost], names: tuple[str, str]) -> Row:
    one, two = (cost[name].wall_s for name in names)
    return measure.came_to(one / two, f"{one:.3f} / {two:.3f} s")


def _batches(dataset: reader.Dataset, num_workers: int, **options: Any) -> Any:
    """Return endless batches after the start of their workers."""
    made = dataset.batches(
        BATCH, shuffle=True, epochs=None, drop_remainder=True, num_workers=num_workers, **options
    )
    return _warm(made, START_S if num_workers else 0)


def _warm(batches: Any, seconds: float) -> Any:
    """Draw batches for `seconds`, in which workers start; return `batches`."""
    end = time.perf_counter() + seconds
    next(batches)
    while time.perf_counter() < end:
        next(batches)
    return batches


def _steady(dataset: reader.Dataset, batches: int, num_workers: int, **options: Any) -> Cost:
    with _batches(dataset, num_workers, num_threads=1 if num_workers else 2, **options) as made:
        for _ in range(8):
            next(made)
        return timed(lambda: [None for _ in zip(range(batches), made, strict=False)])


def _beside(dataset: reader.Dataset, num_workers: int) -> Cost:
    """Return the cost of a loop while batches are filled; they are prefetched, none is drawn."""
    with _batches(dataset, num_workers, num_threads=1) as made:
        made._team.prefetch = 200  # noqa: SLF001 - more at first would all go to threads
        next(made)
        return timed(_loop)


def _loop() -> None:
    total = 0
    for number in range(LOOP):
        total += number & 3


def _first(path: Path, num_workers: int) -> Cost:
    from shardprep import reader

    made = reader.Dataset(path, "train").batches(BATCH, shuffle=True, num_workers=num_workers)
    with made:
        return timed(lambda: next(made))


class _SleepingExamples(ExampleReader):
    def steps(self, number: int, columns: Any, row: int, key: int) -> Iterator[None]:
        """Sleep in row 0 for as long as the whole batch would take, and not in other rows."""
        del number, columns, key
        yield
        if row == 0:
            time.sleep(BATCH * SLEEP_S)


@dataclass(frozen=True)
class SleepingSource(BatchSource):
    """A source whose workers sleep for each batch as long as its images would take."""

    def examples(self) -> ExampleReader:
        usual = super().examples()
        return _SleepingExamples(usual.records, usual.decoder)


def _simulated(dataset: reader.Dataset, batches: int) -> Cost:
    from benchmarks.read_workers import SleepingSource  # workers cannot import __main__

    made = dataset.batches(BATCH, shuffle=True, epochs=None, drop_remainder=True,
                           num_workers=SIMULATED, num_threads=1)  # fmt: skip
    source = made._source  # noqa: SLF001 - no option makes workers sleep
    values = {name: getattr(source, name) for name in source.__dataclass_fields__}
    made._team._source = SleepingSource(**values)  # noqa: SLF001
    with _warm(made, SIMULATED * START_S / 4):
        number = batches * SIMULATED
        return timed(lambda: [None for _ in zip(range(number), made, strict=False)])


if __name__ == "__main__":
    alone(rows, __doc__)
