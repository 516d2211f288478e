"""`reader.diagnose` of training that is slow for a known reason, and what it concludes."""

import itertools
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader.augment import Compose, classic
from shardprep.reader.diagnosis import diagnosis
from shardprep.reader.diagnosis.diagnosis import Bound, Measured, advice_for, conclude
from shardprep.reader.diagnosis.steps import Stopwatch, Times, epoch_of, images_of
from shardprep.reader.records.shards import ByteRange, LocalShards
from tests.reader.datasets import pets
from tests.support.builders import jpeg

PAUSE_S = 0.1
"""Longer than a small batch takes, on a busy machine too."""
IMAGES = {f"{('cat', 'dog')[i % 2]}.{i}.jpg": jpeg(300, 400, seed=i) for i in range(16)}
RAW_BYTES = 300 * 400 * 3
_TURN = threading.Lock()
_FREE = SimpleNamespace(at=0.0)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets(tmp_path_factory, IMAGES, shards=2, size="400x300")


def pause(seconds: float) -> None:
    """Sleep in one thread at a time, so that the number of threads does not change the rate.

    Threads get their turns in the order of their calls: with a lock, the thread of the next batch
    could wait for many others, whose batches would then come at once.
    """
    with _TURN:
        now = time.monotonic()
        _FREE.at = max(_FREE.at, now) + seconds
        wait_s = _FREE.at - now
    time.sleep(wait_s)


def slowly(images: Any) -> Any:
    """Return the images of a graph after a pause."""

    def same(array: Any) -> Any:
        pause(PAUSE_S)
        return array

    return tf.ensure_shape(tf.numpy_function(same, [images], images.dtype), images.shape)


# Runs: endless datasets have no restarts, which would cost most with so few batches.


@pytest.mark.thorough
def test_slow_augmentation_is_found(folder: Path) -> None:
    train = reader.load(folder, batch_size=4, augment=slowly, repeat=True)
    found = reader.diagnose(train, lambda _: None, seconds=8 * PAUSE_S)
    assert found.bound == "augment"
    assert found.measured.waiting > 0.9
    assert found.measured.training < 1.5 * 4 / PAUSE_S


def test_a_slow_model_is_found(folder: Path) -> None:
    """Then the stages of the pipeline do not matter."""
    train = reader.load(folder, batch_size=2, cache="memory", repeat=True)
    found = reader.diagnose(train, lambda _: time.sleep(PAUSE_S), seconds=1)
    assert found.bound == "model"
    assert found.measured.waiting < 0.5
    assert found.measured.training <= found.measured.most
    assert found.measured.model <= 2 / PAUSE_S
    assert (found.measured.decode, found.measured.read) == (None, None)


@pytest.mark.thorough
def test_decoding_is_found(folder: Path) -> None:
    """Steps get whole batches of the dataset."""
    seen: set[Any] = set()
    train = reader.load(folder, batch_size=4, as_supervised=False, drop_remainder=True, repeat=True)
    found = reader.diagnose(train, lambda one: seen.add((*one["image"].shape,)), seconds=3)
    assert seen == {(4, 300, 400, 3)}
    assert found.bound == "decode"
    assert found.measured.decode == found.measured.pipeline
    assert found.measured.read is not None
    assert found.measured.read > 2 * found.measured.pipeline


@pytest.mark.thorough
def test_a_slow_store_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raw pixels need no decoding."""
    folder = pets(tmp_path_factory, IMAGES, format="raw", size="400x300")
    plain = LocalShards.read

    def read(self: LocalShards, part: ByteRange) -> bytes:
        pause(PAUSE_S / 8 * part.num_bytes / RAW_BYTES)
        return plain(self, part)

    monkeypatch.setattr(LocalShards, "read", read)
    monkeypatch.setattr(diagnosis, "_READ_BLOCK", 4)
    train = reader.load(folder, batch_size=4, repeat=True)
    assert reader.diagnose(train, lambda _: None, seconds=2).bound == "read"


def test_a_machine_whose_speed_changes_gives_a_bound_and_how_much_speeds_vary(folder: Path) -> None:
    """Each step takes longer than the one before, as if other programs were started."""
    numbers = itertools.count(1)
    train = reader.load(folder, batch_size=8, cache="memory", repeat=True)
    found = reader.diagnose(train, lambda _: time.sleep(0.005 * next(numbers)), seconds=0.1)
    assert found.bound == "model"
    assert found.spread > 0.1
    assert f"speeds vary by {found.spread:.0%} between rounds" in str(found)


class Clock:
    """A clock that only batches, steps and readings advance."""

    FIRST_S, LATER_S, STEP_S, READING_S = 1.2, 0.4, 0.2, 0.001
    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.READING_S
        return self.now_s

    def step(self, _: Any) -> None:
        self.now_s += self.STEP_S


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of `diagnose`. Each batch advances it."""
    clock = Clock()
    monkeypatch.setattr(diagnosis, "Stopwatch", partial(Stopwatch, clock))
    monkeypatch.setattr(diagnosis, "time", SimpleNamespace(perf_counter=clock))
    plain = OwnedIterator.__next__
    begun: weakref.WeakSet[Any] = weakref.WeakSet()

    def drawn(iterator: Any) -> Any:
        batch = plain(iterator)
        clock.now_s += clock.LATER_S if iterator in begun else clock.FIRST_S
        begun.add(iterator)
        return batch

    monkeypatch.setattr(OwnedIterator, "__next__", drawn)
    return clock


def test_shares_and_speeds_are_those_of_a_clock(folder: Path, clock: Clock) -> None:
    """Training waits for both batches of an epoch, each of 8 images."""
    train = reader.load(folder, batch_size=8)
    found = reader.diagnose(train, clock.step, seconds=10)
    waited_s = clock.FIRST_S + clock.LATER_S
    total_s = waited_s + 2 * clock.STEP_S
    assert found.measured.waiting == pytest.approx(waited_s / total_s, abs=0.01)
    assert found.measured.restart == pytest.approx(clock.FIRST_S / total_s, abs=0.01)
    assert found.measured.training == pytest.approx(16 / total_s, rel=0.01)
    assert found.measured.model == pytest.approx(8 / clock.STEP_S, rel=0.05)
    assert found.measured.pipeline == pytest.approx(8 / clock.LATER_S, rel=0.05)
    assert found.bound == "restart"
    assert found.is_sure
    assert str(found).endswith("; try repeat=True in load, steps_per_epoch=2 in fit")


def small_model() -> Any:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.AveragePooling2D(50),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself
@pytest.mark.thorough
def test_a_model_is_trained_and_gets_its_values_back(folder: Path) -> None:
    """Also a model that was never called."""
    model = small_model()
    train = reader.load(folder, batch_size=4, seed=0, cache="memory")
    reader.diagnose(train, model, seconds=0.1)
    assert model.optimizer.iterations == 0
    model.fit(train.take(2), verbose=0)
    variables = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    before = [one.numpy() for one in variables]
    found = reader.diagnose(train, model, seconds=0.1)
    assert found.measured.model > 0
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


@pytest.mark.thorough
def test_an_epoch_of_one_batch_can_be_diagnosed(folder: Path) -> None:
    """Training waits only for restarts."""
    taken: list[int] = []
    train = reader.load(folder, batch_size=16, cache="memory")
    found = reader.diagnose(train, lambda batch: taken.append(len(batch[0])), seconds=0.1)
    assert set(taken) == {16}
    assert 0 < found.measured.waiting == found.measured.restart


def test_unsuitable_datasets_and_models_are_refused(folder: Path) -> None:
    import keras

    train = reader.load(folder, batch_size=4)
    padded = reader.load(folder, batch_size=4, read_config=reader.ReadConfig(pad_batches=True))
    wrong: list[tuple[Any, Any, str]] = [
        (train.map(lambda *batch: batch), print, "not the result of reader.load"),
        (reader.load(folder), print, "single images"),
        (padded, print, "pad_batches=True, which is for evaluation; pass the training"),
        (reader.load(folder, batch_size=64, drop_remainder=True), print, "has no batch"),
        (train, keras.Sequential([keras.layers.Flatten()]), "not compiled"),
        (
            train,
            lambda images, labels: (images, labels),
            "needs 2 arguments, but a step gets the batch",
        ),
        (reader.load(folder, batch_size=4, as_supervised=False), small_model(), "pass a function"),
    ]
    for dataset, step, said in wrong:
        with pytest.raises(DatasetError, match=said):
            reader.diagnose(dataset, step, seconds=0.1)


# Conclusions


def measured(**figures: Any) -> Measured:
    usual: dict[str, Any] = {
        "waiting": 0.8, "restart": 0.0, "training": 100.0, "model": 1000.0, "pipeline": 100.0,
    }  # fmt: skip
    return Measured(**{**usual, **figures})


IDLE = {"waiting": 0.02, "training": 100.0, "model": 102.0, "pipeline": 700.0}
SHARED = {"model": 3643.0, "pipeline": 161.0, "decode": 1400.0, "read": 20000.0}
"""A fast model that waits little, because a slow pipeline takes its processors."""


@pytest.mark.parametrize(
    ("figures", "bound"),
    [
        ({"decode": 110.0, "read": 120.0}, "read"),
        ({"decode": 100.0, "read": 190.0}, "read"),
        ({"decode": 100.0, "read": 210.0}, "decode"),
        ({"decode": 100.0, "read": 5000.0}, "decode"),
        ({"decode": 900.0, "read": 5000.0}, "augment"),
        ({"decode": 110.0, "read": 5000.0}, "decode"),
        ({"decode": 110.0}, "read"),  # from a cache
        ({"decode": 900.0}, "augment"),
        ({"restart": 0.51, "training": 50.0}, "restart"),
        ({"restart": 0.49, "training": 50.0, "decode": 100.0, "read": 5000.0}, "decode"),
        (IDLE, "model"),
        ({**IDLE, "waiting": 0.3}, "model"),  # it shares the cores with the pipeline
        ({**IDLE, "model_on_device": 200.0}, "model"),
        ({**IDLE, "model_on_device": 210.0}, "transfer"),
        ({**SHARED, "training": 155.0, "waiting": 0.15, "restart": 0.09}, "augment"),
        ({**SHARED, "training": 128.0, "waiting": 0.05}, "augment"),
        ({**SHARED, "training": 70.0}, "contention"),
    ],
)
def test_what_adds_most_time_bounds(figures: dict[str, Any], bound: str) -> None:
    assert measured(**figures).bound == bound


DECODE = {"decode": 100.0, "read": 5000.0}
VARY = " (speeds vary by {}% between rounds)"
UNSURE = (
    "probably {} limits you: at most {} images/s, you get {}; not sure, because {}: repeat with "
    "more seconds and without other work on this machine; try this"
)


@pytest.mark.parametrize(
    ("speeds", "seconds", "used"),
    [
        ([100, 104], 99, [100, 104]),
        ([100, 150, 148], 99, [150, 148]),
        ([100, 150, 100, 105], 99, [100, 105]),
        ([100, 105], 0, [100, 105]),
        ([100, 150], 0, [100, 150]),
    ],
)
def test_rounds_follow_until_two_agree_or_the_time_is_up(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    speeds: Sequence[float],
    seconds: float,
    used: Sequence[float],
) -> None:
    every = [measured(training=speed, pipeline=speed, **DECODE) for speed in speeds]
    rounds = iter([*every, "no more"])
    monkeypatch.setattr(diagnosis, "_rounds", lambda *_: rounds)
    found = reader.diagnose(reader.load(folder, batch_size=4), print, seconds=seconds)
    assert list(rounds) == ["no more"]
    assert found.measured.training == pytest.approx(np.mean(used))
    assert found.spread == pytest.approx(max(used) / min(used) - 1)


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        (
            [{**DECODE, "training": 95.0}] * 2,
            "decoding limits you: at most 100 images/s, you get 95; try this",
        ),
        (
            [{**DECODE, "training": 105.0}] * 2,
            "decoding limits you: at most 105 images/s, you get 105; try this",
        ),
        ([IDLE] * 2, "the model limits you: at most 102 images/s, you get 100; try this"),
        (
            [{**IDLE, "pipeline": speed} for speed in (700.0, 7000.0)],  # which does not limit
            "the model limits you: at most 102 images/s, you get 100; try this",
        ),
        (
            [{**DECODE, "training": 95.0}, {**DECODE, "training": 125.0}] * 2,
            f"decoding limits you: at most 110 images/s, you get 110{VARY.format(32)}; try this",
        ),
        (  # no part is slower than the whole
            [{**DECODE, "training": 250.0}] * 2,
            f"decoding limits you: at most 250 images/s, you get 250{VARY.format(150)}; try this",
        ),
        (  # equal speeds, but another bound
            [{**DECODE, "training": 95.0}, {"decode": 100.0, "read": 190.0, "training": 95.0}],
            f"{UNSURE.format('decoding', 100, 95, 'the largest cost differs between rounds')}",
        ),
        (
            [{**DECODE, "training": 60.0, "model": 105.0}] * 2,
            UNSURE.format("decoding", 100, 60, "the model costs almost as much"),
        ),
        (
            [{**DECODE, "training": 50.0, "restart": 0.49}] * 2,
            UNSURE.format("decoding", 100, 50, "restarts between epochs cost almost as much"),
        ),
        (
            [{"decode": 100.0, "read": 195.0, "training": 95.0}] * 2,
            UNSURE.format("reading", 100, 95, "decoding costs almost as much"),
        ),
        (
            [{**DECODE, "training": 30.0}] * 2,
            "contention on the processors limits you: at most 100 images/s, you get 30; try this",
        ),
    ],
)
def test_a_sentence_says_what_limits_and_what_to_try(
    rounds: list[dict[str, Any]], sentence: str
) -> None:
    found = conclude([measured(**one) for one in rounds], lambda *_: "this")
    assert str(found) == repr(found) == sentence
    assert found.is_sure == (not sentence.startswith("probably "))


def test_nothing_is_advised_where_nothing_helps() -> None:
    sentence = str(conclude([measured(**IDLE)] * 2, lambda *_: ""))
    assert sentence.endswith("; no change of reading helps")


RECIPE = classic((8, 8))
CROP = "random_resized_crop=reader.RandomResizedCrop((8, 8), scale=(0.35, 1.0)"
SMALLER = "smaller stored images (shardprep repack --size)"


@pytest.mark.parametrize(
    ("bound", "options", "free", "advice"),
    [
        ("restart", {}, (1, 1), "repeat=True in load, steps_per_epoch=4 in fit"),
        ("decode", {}, (12e6, 1), "cache='memory' (0.01 GB of 0.01 GB that are free)"),
        ("decode", {}, (11e6, 12e6), "cache='/disk' (0.01 GB of 0.01 GB that are free)"),
        ("decode", {}, (11e6, 11e6), SMALLER),
        ("decode", {"center_crop": (8, 8)}, (12e6, 1), "cache='memory' (0.01 GB of 0.01 GB"),
        ("read", {}, (12e6, 1), "cache='memory' (0.01 GB of 0.01 GB that are free)"),
        ("read", {}, (1, 1), "a copy of the dataset on a faster disk"),
        ("read", {"cache": "folder"}, (11e6, 12e6), "a copy of the dataset on a faster disk"),
        ("read", {"cache": "memory"}, (12e6, 12e6), SMALLER),
        ("augment", {"augment": slowly}, (1, 1), "fewer or cheaper ops in augment"),
        ("augment", {"augment": RECIPE}, (1, 1), f"{CROP}, flip=0.5) in load instead of R"),
        ("augment", {"augment": Compose(RECIPE.ops[:1])}, (1, 1), f"{CROP}) in load instead of R"),
        ("augment", {"augment": Compose(RECIPE.ops[1:])}, (1, 1), "fewer or cheaper ops"),
        ("augment", {"augment": RECIPE, "random_resized_crop": 8}, (1, 1), "fewer or cheaper ops"),
        ("contention", {}, (12e6, 1), "cache='memory' (0.01 GB of 0.01 GB that are free)"),
        ("augment", {"dtype": "float32"}, (1, 1), "dtype='uint8' with a Rescaling layer"),
        ("transfer", {}, (1, 1), "dataset.apply(tf.data.experimental.prefetch_to_device("),
        ("model", {}, (12e6, 12e6), ""),
    ],
)
def test_each_bound_has_one_change_to_try(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bound: Bound,
    options: dict[str, Any],
    free: tuple[float, float],
    advice: str,
) -> None:
    """The 16 decoded images have 5.8 MB, and a cache may fill half of what is free."""
    if options.get("cache") == "folder":
        options = {"cache": tmp_path}
    source, request = reader.load(folder, batch_size=4, **options).loaded
    monkeypatch.setattr(diagnosis, "free_bytes", lambda: free[0])
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/disk")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[1]))
    found = advice_for(source, request, 4, bound, measured(**IDLE))
    assert found.startswith(advice)
    assert bool(found) == bool(advice)


def test_augmentation_in_the_model_is_advised_only_with_an_accelerator(folder: Path) -> None:
    source, request = reader.load(folder, batch_size=4, augment=slowly).loaded
    with_gpu = advice_for(source, request, 4, "augment", measured(model_on_device=1000.0))
    assert with_gpu == "to augment in the first layers of the model, on its device"
    assert "device" not in advice_for(source, request, 4, "augment", measured())


def test_beside_a_slow_model_restarts_and_shared_cores_have_a_change_to_try(folder: Path) -> None:
    source, request = reader.load(folder, batch_size=4).loaded
    restarts = measured(**IDLE, restart=0.02)
    assert advice_for(source, request, 4, "model", restarts).startswith("repeat=True in load")
    assert advice_for(source, request, None, "model", restarts) == ""
    shared = measured(waiting=0.02, training=50.0, model=100.0, pipeline=120.0)
    assert advice_for(source, request, 4, "model", shared).startswith("cache='memory' (0.01 GB of")
    both = measured(waiting=0.02, restart=0.03, training=50.0, model=100.0, pipeline=120.0)
    assert advice_for(source, request, 4, "model", both).startswith("cache='memory'")
    rare = measured(waiting=0.7, restart=0.6, training=50.0, model=100.0, pipeline=120.0)
    assert advice_for(source, request, 4, "model", rare).startswith("repeat=True in load")


# Times


def test_the_images_of_batches_of_any_form_are_counted() -> None:
    """A dict of features has `image`, or `images` in a dataset of stacks."""
    images = np.zeros((3, 2, 4, 4, 3))
    for batch in ({"image": images}, {"images": images}, (images, 1), images):
        assert len(images_of(batch)) == 3


def test_a_stopwatch_separates_restarts_waiting_and_working() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    steps = []
    for asked, drawn, done, is_restart in (
        (0, 3, 4, True), (4, 4.5, 6, False), (10, 12, 13, True), (13, 13, 14, False)
    ):  # fmt: skip
        now[0] = asked
        watch.ask()
        now[0] = asked + 0.1
        watch.ask()  # it waits already
        now[0] = drawn
        watch.drawn(is_restart=is_restart)
        now[0] = done
        steps.append(watch.done())
    assert steps == [Times(3, 0, 1), Times(0, 0.5, 1.5), Times(2, 0, 1), Times(0, 0, 1)]
    times = sum(steps, Times())
    assert times == Times(restart_s=5, waiting_s=0.5, working_s=4.5)
    assert (times.stall, times.restart) == (0.55, 0.5)
    assert (Times().stall, Times().restart) == (0, 0)


def epoch(restart: float, waits: Sequence[float], work: float = 1.0) -> list[Times]:
    return [Times(restart, 0, work), *(Times(0, wait, work) for wait in waits)]


def test_the_mean_of_whole_epochs_counts_if_there_are_any() -> None:
    steps = [*epoch(9, [9, 9, 9, 9, 9])[2:], *epoch(4, [1, 0]), *epoch(2, [2, 1]), *epoch(7, [7])]
    assert epoch_of(steps, 3) == Times(restart_s=3, waiting_s=2, working_s=3)


def test_a_long_epoch_is_estimated_from_a_restart_and_its_typical_steps() -> None:
    """The first steps, which use batches made ahead, are not typical."""
    steps = [*epoch(30, [0] * 4 + [2] * 4), *epoch(20, [0] * 4 + [2] * 6)]
    assert epoch_of(steps, 1001) == Times(restart_s=25, waiting_s=2000, working_s=1001)
    assert epoch_of(steps, None) == Times(restart_s=0, waiting_s=2, working_s=1)
    assert epoch_of(steps[:1], None) == Times(restart_s=0, waiting_s=30, working_s=1)
    assert epoch_of(steps[1:3], 5) == Times(restart_s=0, waiting_s=0, working_s=5)
