"""The figure that `reader.diagnose` gives of its advice, beside what following the advice gives.

Each set-up is slow for a reason of its own. It is diagnosed, its advice is followed in full (a
cache is filled), and training is timed with it and without, turn by turn: what else the machine
does changes by the second. The larger gain over the smaller is the value; where there is nothing to
follow, the larger figure over the smaller. A step that sleeps stands in for an accelerator, a small
network on the host for a model without one.
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from benchmarks import photos
from benchmarks.measure import Measure, Row, built
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
_BATCH = 64
_LITTLE_MEMORY = 1 << 20
_TURNS = 5
"""Turns of training with a change and of training without it, one after the other."""


class _Setup(NamedTuple):
    """Training of one kind."""

    form: str
    """The set: "jpeg" or "raw"."""
    options: dict[str, Any]
    step: Callable[[], Callable[[Any], object]]
    split: str = "train"
    free_bytes: int = 1 << 34
    """Memory that counts as free."""


def _sleeping(seconds: float) -> Callable[[Any], object]:
    return lambda _: time.sleep(seconds)


def _network() -> Callable[[Any], object]:
    """Return a step of a small network on the host."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(4, 7, strides=7),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model  # type: ignore[no-any-return]


def _augment(images: Any) -> Any:
    """Augment by ops that take as long as decoding."""
    import tensorflow as tf

    for _ in range(2):
        images = tf.image.adjust_saturation(images, 1.1)
    return images


_ENDLESS = {"repeat": True}
_SETUPS = {
    "bound by reading": _Setup("raw", _ENDLESS, partial(_sleeping, 0.0)),
    "bound by decoding": _Setup("jpeg", _ENDLESS, partial(_sleeping, 0.0)),
    "bound by augmentation": _Setup(
        "jpeg", {**_ENDLESS, "augment": _augment}, partial(_sleeping, 0.0)
    ),
    "bound by the model": _Setup("jpeg", _ENDLESS, partial(_sleeping, 0.1)),
    "a cache fits, the model shares the cores": _Setup("jpeg", _ENDLESS, _network),
    "a cache does not fit": _Setup(
        "jpeg", _ENDLESS, partial(_sleeping, 0.01), free_bytes=_LITTLE_MEMORY
    ),
    "epochs of 6 steps": _Setup(
        "jpeg", {"cache": "memory"}, partial(_sleeping, 0.01), split="train[:384]"
    ),
}
_MEASURE = {name: Measure(name, "<= 1.25") for name in _SETUPS}
MEASURES = tuple(_MEASURE.values())


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratio of figures of each set-up."""
    source = photos.write_folder(folder / "photos", 400 if quick else 2000)
    paths = {
        form: built(folder / form, source, "--shards", 4, "--format", form)
        for form in ("jpeg", "raw")
    }
    return [
        _row(_MEASURE[name], setup, paths[setup.form], rounds, quick=quick)
        for name, setup in _SETUPS.items()
    ]


def _row(measure: Measure, setup: _Setup, path: Path, rounds: int, *, quick: bool) -> Row:
    tries = sorted(_try(setup, path, quick=quick) for _ in range(rounds))
    return measure.came_to(*tries[len(tries) // 2])


def _try(setup: _Setup, path: Path, *, quick: bool) -> tuple[float, str]:
    """Return the larger figure over the smaller, and the figures."""
    from shardprep import reader
    from shardprep.reader.diagnosis import measurement

    step = setup.step()
    load = partial(reader.load, path, setup.split, batch_size=_BATCH)
    before = after = load(**setup.options)
    # As on a machine with so much memory.
    with mock.patch.object(measurement, "free_bytes", return_value=setup.free_bytes):
        found = reader.diagnose(before, step, seconds=1.0 if quick else 10.0)
    chosen = next((one for one in found.changes if one.advice == found.advice), None)
    take, disk = _step(step), None
    if chosen is not None:
        after = load(**{**setup.options, **chosen.options})
        if "augment" in chosen.options:
            take = _step(step, setup.options["augment"])
        if chosen.options.get("cache") not in (None, "memory"):
            disk = Path(chosen.options["cache"])
    next(iter(after))  # fills a cache
    plain, training = _step(step), found.measured.training
    rates = [
        (
            _rate(after, take, 0.1 if quick else 1.0, disk),
            _rate(before, plain, 0.1 if quick else 1.0),
        )
        for _ in range(_TURNS)
    ]
    if disk:
        reader.clear_cache(disk)
    with_it, without = (statistics.median(side) for side in zip(*rates, strict=True))
    gain = statistics.median(one / other for one, other in rates)
    given, came = (found.gain, gain) if chosen else (training, without)
    what = chosen.advice if chosen else "nothing"
    return max(given / came, came / given), (
        f"{found.bound}; {what}: {found.gain:.2f} / {gain:.2f} times, {with_it:,.0f} images/s, "
        f"before {without:,.0f}, in the diagnosis {training:,.0f}"
    )


def _step(step: Any, augment: Any = None) -> Callable[[Any], object]:
    """Return a function that takes a batch, and augments it first if asked."""
    import tensorflow as tf

    run = (lambda batch: step.train_on_batch(*batch)) if hasattr(step, "fit") else step
    if augment is None:
        return run
    first = tf.function(augment)
    return lambda batch: run((first(batch[0]), *batch[1:]))


def _rate(
    dataset: Any, take: Callable[[Any], object], seconds: float, disk: Path | None = None
) -> float:
    """Return the images a second of whole epochs; without an end, of what is in its stride.

    The last iterator is dropped behind the end, which TensorFlow may take a second for.
    """
    _evict(disk)
    endless = int(dataset.cardinality()) < 0
    images, begin, is_settled = 0, time.perf_counter(), not endless
    elapsed = 0.0
    while elapsed < seconds:
        for batch in dataset:
            take(batch)
            images += len(batch[0])
            elapsed = time.perf_counter() - begin
            if endless and not is_settled and elapsed > seconds / 3:
                images, begin, is_settled = 0, time.perf_counter(), True
            elif endless and elapsed > seconds:
                break
    return images / elapsed


def _evict(folder: Path | None) -> None:
    """Take the files of a cache out of memory, as where they do not fit there."""
    for path in folder.rglob("*.tfrecord*") if folder else ():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    alone(rows, __doc__)
