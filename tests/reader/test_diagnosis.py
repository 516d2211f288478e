"""`reader.diagnose` of training that is slow for a known reason, and the changes that it tries."""

import functools
import math
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader.diagnosis import diagnosis, measurement, stall_meter
from shardprep.reader.diagnosis.diagnosis import Candidate, Times
from shardprep.reader.records.shards import ByteRange, LocalShards
from shardprep.reader.records.subset import open_request
from shardprep.reader.tf.decode import Decoder
from tests.reader.datasets import pets
from tests.support.builders import jpeg

SECONDS = 1.0
"""More where stages are compared: then batches that were read ahead matter little."""
PAUSE_S = 0.2
"""Longer than a small batch takes, on a busy machine too."""
IMAGE_PAUSE_S = 0.05
"""Likewise for one image."""
PAIRS = 3
"""Alternations of training with and without a change; with 3, the median bears one disturbed."""
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


def later(tensor: Any, wait: Callable[[], object]) -> Any:
    """Return a tensor of a graph after `wait` is called."""

    def same(array: Any) -> Any:
        wait()
        return array

    return tf.ensure_shape(tf.numpy_function(same, [tensor], tensor.dtype), tensor.shape)


@pytest.fixture(name="iterators")
def _iterators(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of datasets that are iterated, in order."""
    made: list[Any] = []
    plain = tf.data.Dataset.__iter__

    def counted(dataset: Any) -> Any:
        made.append(dataset)
        return plain(dataset)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", counted)
    return made


@pytest.fixture(name="_few_pairs")
def _fewer_alternations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "_PAIRS", PAIRS)


# Endless datasets have no restarts, which would cost most with so few batches.


@pytest.mark.thorough
@pytest.mark.usefixtures("_few_pairs")
def test_slow_augmentation_is_found_and_no_gain_is_promised(folder: Path) -> None:
    """Without an accelerator, it takes as long in the step."""

    def augment(images: Any) -> Any:
        return later(images, lambda: pause(PAUSE_S))

    train = reader.load(folder, batch_size=4, augment=augment, repeat=True)
    found = reader.diagnose(train, lambda _: None, seconds=4 * SECONDS)
    assert found.bound == "augment"
    assert found.measured.waiting > 0.9
    assert "to augment in the first layers of the model" in [one.advice for one in found.changes]
    assert found.gain < 3
    assert "accelerator" not in str(found)


def test_a_slow_model_is_found(
    folder: Path, iterators: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only training, model and pipeline are run; on a busy machine, rounds would be added."""
    monkeypatch.setattr(measurement, "_AGREE", math.inf)
    train = reader.load(folder, batch_size=2, cache="memory", repeat=True)
    found = reader.diagnose(train, lambda _: time.sleep(PAUSE_S), seconds=SECONDS)
    assert found.bound == "model"
    assert found.measured.waiting < 0.5
    assert found.gain == 1
    assert found.measured.model <= 2 / PAUSE_S
    assert (found.measured.decode, found.measured.read) == (None, None)
    assert found.changes == ()
    alike = [one for one in iterators if one.element_spec == train.element_spec]
    assert len(alike) == 3


@pytest.mark.thorough
@pytest.mark.usefixtures("_few_pairs")
def test_slow_decoding_is_found(
    folder: Path, iterators: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps get whole batches of the dataset."""
    decoded = Decoder._pixels

    def slowly(self: Decoder, data: Any) -> Any:
        return later(decoded(self, data), lambda: pause(IMAGE_PAUSE_S))

    monkeypatch.setattr(Decoder, "_pixels", slowly)
    seen: set[Any] = set()
    train = reader.load(folder, batch_size=4, as_supervised=False, drop_remainder=True, repeat=True)
    found = reader.diagnose(train, lambda one: seen.add((*one["image"].shape,)), seconds=SECONDS)
    assert seen == {(4, 300, 400, 3)}
    assert found.bound == "decode"
    assert found.measured.read is not None
    assert found.measured.decode is not None
    assert found.measured.read > 2 * found.measured.decode
    assert "cache='memory'" in found.advice
    assert found.gain > 1
    assert not found.is_sure or "decoding limits you: at most " in str(found)
    assert len({id(dataset) for dataset in iterators}) <= 5, "each fills a cache"
    more = measurement._MOST_ROUNDS - 2  # rounds of training, if they do not agree
    most = 5 + 1 + 2 * PAIRS + more
    assert len(iterators) <= most, "two of them are iterated once for each turn"


@pytest.mark.thorough
@pytest.mark.usefixtures("_few_pairs")
def test_slow_reading_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a slow disk. Raw pixels need no decoding."""
    folder = pets(tmp_path_factory, IMAGES, format="raw", size="400x300")
    plain = LocalShards.read

    def read(self: LocalShards, part: ByteRange) -> bytes:
        pause(IMAGE_PAUSE_S / 3 * part.num_bytes / RAW_BYTES)  # a turn has many steps
        return plain(self, part)

    monkeypatch.setattr(LocalShards, "read", read)
    monkeypatch.setattr(measurement, "_READ_BLOCK", 4)
    train = reader.load(folder, batch_size=4, repeat=True)
    found = reader.diagnose(train, lambda _: None, seconds=4 * SECONDS)
    assert found.bound == "read"
    assert [change.options for change in found.changes] == [{"cache": "memory"}]


class Clock:
    """A clock that only batches, steps, sleeps and readings advance."""

    FIRST_S, LATER_S, STEP_S, READING_S = 0.6, 0.4, 0.2, 0.001
    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.READING_S
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of the meter and of `diagnose`. Each batch advances it."""
    clock = Clock()
    for module in (stall_meter, measurement):
        monkeypatch.setattr(module, "Stopwatch", functools.partial(diagnosis.Stopwatch, clock))
    real = time.process_time
    both = SimpleNamespace(perf_counter=clock, process_time=real, sleep=clock.sleep)
    monkeypatch.setattr(measurement, "time", both)
    plain = OwnedIterator.__next__
    begun: weakref.WeakSet[Any] = weakref.WeakSet()

    def drawn(iterator: Any) -> Any:
        batch = plain(iterator)
        clock.now_s += clock.LATER_S if iterator in begun else clock.FIRST_S
        begun.add(iterator)
        return batch

    monkeypatch.setattr(OwnedIterator, "__next__", drawn)
    return clock


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself
def test_the_meter_and_the_diagnosis_measure_the_same_shares(folder: Path, clock: Clock) -> None:
    """Training waits for both batches of an epoch."""
    import keras

    class Pausing(keras.layers.Layer):  # type: ignore[misc]  # keras carries no types
        def call(self, inputs: Any) -> Any:
            return later(inputs, lambda: clock.sleep(clock.STEP_S))

    model = keras.Sequential(
        [keras.layers.AveragePooling2D(50), Pausing(), *small_model().layers[1:]]
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    train = reader.load(folder, batch_size=8)
    meter = reader.StallMeter(verbose=False)
    history = model.fit(train, epochs=4, verbose=0, callbacks=[meter]).history
    found = reader.diagnose(train, model, seconds=SECONDS)
    waited_s = clock.FIRST_S + clock.LATER_S
    total_s = waited_s + 2 * clock.STEP_S
    for share, of_epochs, expected in (
        (found.measured.waiting, "stall", waited_s / total_s),
        (found.measured.restart, "restart", clock.FIRST_S / total_s),
    ):
        assert share == pytest.approx(np.median(history[of_epochs][1:]), abs=0.01)
        assert share == pytest.approx(expected, abs=0.01)
    assert {"repeat": True} in [change.options for change in found.changes]


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


@pytest.mark.parametrize(
    ("rates", "images_s", "is_sure", "num_more"),
    [
        ([100, 104], 102, True, 0),
        ([100, 150, 148], 149, True, 0),
        ([100, 200, 100, 200, 100, 200], 133, False, 0),
        ([100, 200, 150, 152, 300, 120], 163, False, 0),
        ([100, 100, 300, 290, 295], 295, True, 3),
    ],
)
def test_training_is_repeated_until_its_rounds_agree(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    rates: list[float],
    images_s: float,
    is_sure: object,
    num_more: int,
) -> None:
    """With `num_more`, the load of the machine changes during the trials."""
    timed = [measurement._Timed([Times(0, 0, 1 / rate)] * 20, 20, 0.1) for rate in rates]
    later = iter(timed[1:])
    monkeypatch.setattr(measurement, "_run", lambda *_, **__: next(later))
    request = request_of(folder, repeat=True)
    runs = measurement._Measurement(None, request, open_request(request), print, 0.1)
    rounds = timed[:1]
    training = runs._more(rounds)
    if num_more:
        training = runs._more(rounds)
    assert training.rate == pytest.approx(images_s, rel=0.01)
    assert (runs.is_sure, list(later)) == (is_sure, [])


def test_a_trial_whose_rounds_differ_is_unsure(folder: Path) -> None:
    request = request_of(folder, repeat=True)
    runs = measurement._Measurement(None, request, open_request(request), print, 0.1)
    for name, rates in (("steady", [100, 101]), ("restless", [100, 200] * 3)):
        timed = [measurement._Timed([Times(0, 0, 1 / one)] * 20, 20, 0.1) for one in rates]
        runs._agreed(mock.Mock(side_effect=timed), name)
    assert runs.unsure == {"restless"}


def test_unsuitable_datasets_and_models_are_refused(folder: Path) -> None:
    import keras

    train = reader.load(folder, batch_size=4)
    padded = reader.load(folder, batch_size=4, read_config=reader.ReadConfig(pad_batches=True))
    wrong: list[tuple[Any, Any, str]] = [
        (train.map(lambda *batch: batch), print, "not the result of reader.load"),
        (reader.load(folder), print, "single images"),
        (padded, print, "pad_batches is for evaluation"),
        (reader.load(folder, batch_size=64, drop_remainder=True), print, "has no batch"),
        (train, keras.Sequential([keras.layers.Flatten()]), "not compiled"),
        (train, lambda images, labels: (images, labels), "needs 2 arguments, but a step gets one"),
        (reader.load(folder, batch_size=4, as_supervised=False), small_model(), "pass a function"),
    ]
    for dataset, step, said in wrong:
        with pytest.raises(DatasetError, match=said):
            reader.diagnose(dataset, step, seconds=0.1)


# Records of a trial


def request_of(folder: Path, **options: Any) -> Any:
    return reader.load(folder, **{"batch_size": 2, "shuffle": False, **options}).loaded


def images_of(dataset: Any, number: int) -> list[Any]:
    return [image for image, _ in dataset.unbatch().take(number).as_numpy_iterator()]


def test_a_cache_on_disk_is_tried_with_the_images_of_the_dataset(
    folder: Path, tmp_path: Path
) -> None:
    request = request_of(folder)
    candidate = Candidate("folder", "", {"cache": str(tmp_path)})
    with measurement._trial(candidate, request, print, 0) as tried:
        assert tried.num_images == 8
        tried.evict()
        found = images_of(tried.dataset, 8)
    half = reader.ReadConfig(num_shards=2)
    expected = images_of(reader.load(folder, batch_size=2, shuffle=False, read_config=half), 8)
    np.testing.assert_array_equal(found, expected)
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


@pytest.mark.thorough
def test_a_cache_in_memory_is_tried_with_some_records_of_this_reader(folder: Path) -> None:
    """They are read again and again. All records are used if there are few."""
    config = reader.ReadConfig(num_shards=2, shard_index=1)
    own = images_of(reader.load(folder, batch_size=2, shuffle=False, read_config=config), 9)
    assert len(own) == 8
    half = reader.ReadConfig(num_shards=4, shard_index=2)
    some = images_of(reader.load(folder, batch_size=1, shuffle=False, read_config=half), 9)
    assert len(some) == 4
    for batch_size, expected in ((1, [*some, *some, some[0]]), (2, own)):
        request = request_of(folder, read_config=config, cache="memory", batch_size=batch_size)
        with measurement._trial(Candidate("repeat", "", {}), request, print, 0) as tried:
            np.testing.assert_array_equal(images_of(tried.dataset, 9), expected)
    assert measurement._sample(request_of(folder), 1e9) == request_of(folder)


def test_a_step_that_augments_does_what_load_does(folder: Path) -> None:
    def flipped(images: Any, *, labels: Any) -> Any:
        return tf.reverse(images, [2]), labels + 1

    options: dict[str, Any] = {"augment": flipped, "dtype": "float32"}
    request = request_of(folder, **options)
    taken: list[Any] = []
    moved = {"augment": None, "dtype": "uint8"}
    with measurement._trial(Candidate("in step", "", moved), request, taken.append, 0) as tried:
        batch = next(iter(tried.dataset))
        assert batch[0].dtype == tf.uint8
        tried.train(batch)
    expected = next(iter(reader.load(folder, batch_size=2, shuffle=False, **options)))
    for found, one in zip(taken[0], expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-6)
