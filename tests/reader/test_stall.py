"""`reader.StallMeter`: the share of time spent waiting, and training that it does not change."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.reader.diagnosis import stall_meter, steps
from tests.support.examples import thorough

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself

PAUSE_S, READING_S = 0.2, 0.001
NUM_BATCHES = 5
BATCH = np.random.default_rng(0).random((NUM_BATCHES, 8, 4)).astype("float32")

AT_ONCE: dict[str, Any] = {"run_eagerly": True}
"""Options of models that are not compiled: the meter draws before either kind of step."""


class Clock:
    """A clock that only pauses and readings advance, so that load of the machine has no effect."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += READING_S
        return self.now_s


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _meter_reads_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_meter, "Stopwatch", functools.partial(steps.Stopwatch, CLOCK))


def pause(tensor: Any) -> Any:
    """Return the tensor after a pause by the clock."""

    def later(array: Any) -> Any:
        CLOCK.now_s += PAUSE_S
        return array

    return tf.ensure_shape(tf.numpy_function(later, [tensor], tensor.dtype), tensor.shape)


def batches(change: Callable[[Any], Any] = tf.identity) -> Any:
    """Return a dataset of 4 batches of 8 and one of 3, without prefetching."""
    dataset = tf.data.Dataset.from_tensor_slices(BATCH.reshape(-1, 4)[:35])
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = dataset.batch(8).map(lambda x: (change(x), tf.zeros(len(x), tf.int64)))
    return dataset.with_options(options)


class Pausing(keras.layers.Layer):  # type: ignore[misc]  # keras carries no types
    """A layer that pauses by the clock."""

    def call(self, inputs: Any) -> Any:
        return tf.stop_gradient(pause(inputs))


def model_of(*layers: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, **{"jit_compile": False, **options})
    return model


def stalls(model: Any, dataset: Any) -> list[float]:
    """Return the stall of two epochs of full batches: Keras compiles again for another size."""
    meter = reader.StallMeter(verbose=False)
    full = dataset.take(NUM_BATCHES - 1)
    history = model.fit(full, epochs=2, verbose=0, callbacks=[meter]).history
    assert len(history["stall"]) == 2
    return list(history["stall"])


def test_slow_data_is_waiting() -> None:
    assert min(stalls(model_of(), batches(pause))) > 0.9


def test_a_slow_model_is_not_waiting() -> None:
    assert max(stalls(model_of(Pausing(), **AT_ONCE), batches())) < 0.1


@pytest.mark.parametrize("steps", [1, thorough(2)])
def test_the_meter_does_not_change_training(steps: int) -> None:
    weights = []
    for callbacks in ([], [reader.StallMeter(verbose=False)]):
        model = model_of(keras.layers.Dropout(0.5, seed=0), steps_per_execution=steps)
        model.fit(batches(), epochs=3, verbose=0, callbacks=callbacks)
        assert model.optimizer.iterations == 3 * NUM_BATCHES
        weights.append(model.get_weights())
    for with_meter, without in zip(*weights, strict=True):
        np.testing.assert_array_equal(with_meter, without)


def test_each_step_except_the_first_has_a_stall() -> None:
    seen: list[float | None] = []
    listener = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: seen.append(logs.get("stall"))
    )
    meter = reader.StallMeter(verbose=False)
    model_of(**AT_ONCE).fit(batches(pause), verbose=0, callbacks=[meter, listener])
    first, *others = seen
    assert first is None
    assert len(others) == NUM_BATCHES - 1
    assert all(share is not None and 0 < share < 1 for share in others)
    model = model_of(**AT_ONCE)
    history = model.fit(batches().take(1), verbose=0, callbacks=[meter]).history
    assert np.isnan(history["stall"]).all(), "no step was counted"


def test_an_interrupted_fit_does_not_disturb_the_next_one() -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    model = model_of(**AT_ONCE)
    breaking = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    with pytest.raises(KeyboardInterrupt):
        model.fit(batches(), verbose=0, callbacks=[reader.StallMeter(), breaking])
    assert min(stalls(model, batches(pause))) > 0.5
    model.fit(batches(), verbose=0)
    assert model.optimizer.iterations == 1 + 2 * (NUM_BATCHES - 1) + NUM_BATCHES


@pytest.mark.parametrize("steps", [None, thorough(2)])
def test_the_restart_of_an_epoch_is_reported(
    steps: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is 0 if `fit` continues its iterator."""
    slow = batches(pause).take(2).repeat(3 if steps else 1)
    meter = reader.StallMeter()
    fit = model_of().fit
    history = fit(slow, epochs=3, steps_per_epoch=steps, verbose=0, callbacks=[meter]).history
    said = capsys.readouterr().err.splitlines()[-1]
    assert history["restart"][0] == 0, "the first step compiles"
    if steps:
        assert history["restart"] == [0, 0, 0]
        assert "first batch" not in said
    else:
        assert 0.1 < history["restart"][2] < history["stall"][2]
        assert "% of the time was spent waiting for data, " in said
        assert "% until the first batch: repeat=True in load, steps_per_epoch=2 in fit; " in said
        assert said.endswith("; reader.diagnose says why")
