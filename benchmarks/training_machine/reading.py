"""How many images per second a way to read yields, without a model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.training_machine.figures import Figure, Rate, Settings
from benchmarks.training_machine.inputs import dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE = 224
_LEAST_BATCHES = 4


def rate(settings: Settings, figure: Figure) -> Rate:
    """Return the images per second of a way to read on the cores of this process."""
    if figure.way == "files":
        from benchmarks.training_machine.files import file_batches, in_flight

        batches = file_batches(settings, figure.cores)
        # The first batches of all workers arrive together.
        return steady(batches, settings, in_flight(figure.cores))
    workers = {"num_workers": max(1, figure.cores // 2)} if figure.way == "workers" else {}
    name = "jpeg" if figure.way == "workers" else figure.way
    return steady(_batches(settings, name, **workers), settings, _LEAST_BATCHES)


def crop_of(name: str) -> dict[str, Any]:
    """Return the reader options for the dataset `name`: a random crop for the dataset "crop"."""
    return {"random_resized_crop": (SIDE, SIDE)} if name == "crop" else {}


def steady(batches: Iterator[Any], settings: Settings, warm: int) -> Rate:
    """Return the rate during `settings.seconds`, after the same time and at least `warm` batches.

    Workers of our reader start before the measurement.
    """
    start = time.perf_counter()
    for _ in range(warm):
        next(batches)
    while time.perf_counter() - start < settings.seconds:
        next(batches)
    start, images, end = time.perf_counter(), 0, 0.0
    while end < settings.seconds:
        images += len(next(batches)[1])
        end = time.perf_counter() - start
    return Rate(images / end)


def _batches(settings: Settings, name: str, **options: Any) -> Iterator[Any]:
    """Yield shuffled batches of arrays without an end."""
    from shardprep import reader

    opened = reader.Dataset(dataset(settings.folder, name), "train")
    made = opened.batches(
        settings.batch_size, shuffle=True, epochs=None, drop_remainder=True,
        **crop_of(name), **options,
    )  # fmt: skip
    yield from made
