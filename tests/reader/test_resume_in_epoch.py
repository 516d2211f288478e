"""`reader.ResumeInEpoch`: `fit` resumes in the middle of an epoch, however it was ended."""

import functools
import itertools
import json
import random
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from shardprep import reader
from shardprep.errors import DatasetError
from tests.reader.datasets import numbered
from tests.support.builders import write
from tests.support.examples import thorough
from tests.support.processes import Program

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself


NUM_RECORDS = 90
BATCH_SIZE = 8
NUM_STEPS = 12  # the last batch is short
NUM_EPOCHS = 5

MODEL = '''
import keras
import tensorflow as tf

class Seen(keras.layers.Layer):
    """Counts the records of each epoch in weights, which are lost with the other weights."""

    def build(self, shape):
        zeros = {"initializer": "zeros", "trainable": False, "dtype": "int64"}
        self.steps = self.add_weight(shape=(), **zeros)
        self.counts = self.add_weight(shape=(NUM_EPOCHS, NUM_RECORDS), **zeros)

    def call(self, images, training=False):
        if training:
            numbers = tf.cast(images[:, 0, 0, 0], tf.int64)
            epochs = tf.fill(tf.shape(numbers), self.steps // NUM_STEPS)
            places = tf.stack([epochs, numbers], axis=1)
            ones = tf.ones_like(numbers)
            counts = tf.convert_to_tensor(self.counts)
            self.counts.assign(tf.tensor_scatter_nd_add(counts, places, ones))
            self.steps.assign_add(1)
        return tf.cast(images, tf.float32) / 255

def model_of(seed=0, units=4, optimizer="adam", **options):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([
        Seen(), keras.layers.Flatten(), keras.layers.Dense(units, activation="relu"),
        keras.layers.Dropout(0.3), keras.layers.Dense(2),
    ])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False, **options)
    return model
'''.replace("NUM_EPOCHS", str(NUM_EPOCHS)).replace("NUM_RECORDS", str(NUM_RECORDS)).replace(
    "NUM_STEPS", str(NUM_STEPS)
)  # fmt: skip
names: dict[str, Any] = {}
exec(MODEL, names)
model_of, Seen = names["model_of"], names["Seen"]


@functools.cache
def _traced(units: int, optimizer: str, options: tuple[tuple[str, Any], ...]) -> Any:
    return built(model_of(0, units, optimizer, **dict(options)))


def built(model: Any) -> Any:
    model.build((None, 4, 4, 3))
    model.optimizer.build(model.trainable_variables)
    return model


def used(seed: int = 0, units: int = 4, optimizer: str = "adam", **options: Any) -> Any:
    """Return a model with new values. The same object is returned again: its step is traced."""
    model = _traced(units, optimizer, tuple(options.items()))
    return renewed(model, built(model_of(seed, units, optimizer, **options)))


def renewed(model: Any, new: Any) -> Any:
    """Return a model, whose step is traced already, with the values of a new one."""
    for part, values in ((model, new), (model.optimizer, new.optimizer)):
        for variable, value in zip(part.variables, values.variables, strict=True):
            variable.assign(value)
    model.reset_metrics()
    model.stop_training = False
    model._eval_epoch_iterator = None  # a `fit` that is broken off leaves its own
    return model


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered(tmp_path_factory, NUM_RECORDS)


def batches(folder: Path, split: str = "train", **options: Any) -> Any:
    return reader.iterate(folder, split, **{"batch_size": BATCH_SIZE, "seed": 1, **options})


def counts(model: Any) -> Any:
    """Return how often each epoch trained on each record: int64[epochs, records]."""
    return model.layers[0].counts.numpy()


class BrokenError(Exception):
    """An error that ends `fit`."""


class Breaking(keras.callbacks.Callback):  # type: ignore[misc]  # keras carries no types
    """Ends `fit` at a step, counted from its start."""

    def __init__(self, step: int, ending: Any = None, *, in_validation: bool = False) -> None:
        super().__init__()
        self._left = step
        self._ending = ending
        self._in_validation = in_validation

    def _count(self, *, in_validation: bool) -> None:
        self._left -= self._in_validation is in_validation
        if self._left == 0:
            if self._ending is None:
                raise BrokenError
            signal.raise_signal(self._ending)

    def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
        self._count(in_validation=False)

    def on_test_batch_begin(self, *_: Any, **__: Any) -> None:
        self._count(in_validation=True)


def fit(data: Any, place: Path, *callbacks: Any, model: Any = None, **options: Any) -> Any:
    """Train a new model, or resume; return it."""
    resume = reader.ResumeInEpoch(place, data, save_every=options.pop("save_every", None))
    model = model or used()
    options = {"epochs": 3, "verbose": 0, **options}
    model.fit(data, callbacks=[*callbacks, resume], **options)
    return model


def values(model: Any) -> list[Any]:
    return [variable.numpy() for variable in model.variables]


def same(one: Any, other: Any) -> bool:
    """Return whether two models, or the `values` of one, are equal."""
    lists = [item if isinstance(item, list) else values(item) for item in (one, other)]
    return all(itertools.starmap(np.array_equal, zip(*lists, strict=True)))


@pytest.fixture(name="whole", scope="module")
def _whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a model that was trained for three epochs without a break."""
    return fit(batches(folder), tmp_path_factory.mktemp("whole") / "state", model=model_of())


@pytest.mark.thorough
def test_fit_takes_what_iterate_returns(folder: Path) -> None:
    """With and without the callback, each epoch is in the order that `load` has."""
    data = batches(folder)
    model = used()
    model.fit(data, epochs=3, verbose=0)
    assert (counts(model)[:3] == 1).all()
    assert data.cardinality().numpy() == len(data) == NUM_STEPS
    expected = values(model)
    loaded = used()
    loaded.fit(reader.load(folder, batch_size=BATCH_SIZE, seed=1), epochs=3, verbose=0)
    assert same(loaded, expected)


def test_a_dataset_made_from_the_batches_has_an_epoch_in_each_loop(folder: Path) -> None:
    """A loop that was left early is continued by the next one, though TensorFlow reads ahead."""
    loaded = reader.load(folder, batch_size=BATCH_SIZE, seed=1)
    wanted = [[labels.numpy().tolist() for _, labels in loaded] for _ in range(3)]
    labels = batches(folder).map(lambda _, labels: labels)
    assert [[one.numpy().tolist() for one in labels] for _ in range(3)] == wanted
    data = batches(folder)
    for start in (0, 2):
        iterator = iter(data)
        found = [next(iterator)[1].numpy().tolist() for _ in range(2)]
        assert found == wanted[0][start : start + 2]
    assert data.state_dict()["batch"] == 4
    rest = [labels.numpy().tolist() for _, labels in data]
    assert rest == wanted[0][4:]
    assert [labels.numpy().tolist() for _, labels in data] == wanted[1]


@pytest.mark.thorough
def test_small_float_types_and_a_stall_meter_resume_too(folder: Path, tmp_path: Path) -> None:
    def small() -> Any:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Flatten(dtype="bfloat16"), keras.layers.Dense(2, dtype="bfloat16")]
        model = keras.Sequential([Seen(), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), loss, jit_compile=False
        )
        return model

    meter, model = reader.StallMeter(verbose=False), built(small())
    whole = values(fit(batches(folder), tmp_path / "whole", meter, model=model))
    again = renewed(model, built(small()))
    with pytest.raises(BrokenError):
        fit(batches(folder), tmp_path / "s", meter, Breaking(17), model=again, save_every=4)
    assert same(whole, fit(batches(folder), tmp_path / "s", meter, model=small()))


@pytest.mark.parametrize(
    ("step", "options"),
    [
        thorough(2, {}),
        thorough(12, {}),
        (19, {}),
        thorough(19, {"steps_per_execution": 5}),
    ],
)
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    folder: Path, whole: Any, tmp_path: Path, step: int, options: dict[str, Any]
) -> None:
    """Weights, dropout and logs are equal. Keras counts executions, which can be several steps."""
    number = -(-step // options.get("steps_per_execution", 1))
    with pytest.raises(BrokenError):
        fit(
            batches(folder), tmp_path / "run" / "state", Breaking(number),
            model=used(**options), save_every=3,
        )  # fmt: skip
    # Before the first save, a run begins with the initial values; after it, with the saved ones.
    seed = 9 if (tmp_path / "run" / "state").exists() else 0
    again = (model_of if step == 19 else used)(seed=seed, **options)  # not built yet, and built
    model = fit(batches(folder), tmp_path / "run" / "state", model=again)
    assert (counts(model)[:3] == 1).all()
    assert counts(model).sum() == 3 * NUM_RECORDS
    assert same(whole, model)
    for name, values in model.history.history.items():
        assert values == whole.history.history[name][-len(values) :]


def test_class_weights_do_not_change_where_training_resumes(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"class_weight": {0: 0.2, 1: 5.0}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`shuffle=True` was passed")
        whole = values(fit(batches(folder), tmp_path / "whole", **options))
        with pytest.raises(BrokenError):
            fit(batches(folder), tmp_path / "s", Breaking(19), save_every=3, **options)
        found = fit(batches(folder), tmp_path / "s", model=used(9), **options)
    assert (counts(found)[:3] == 1).all()
    assert same(found, whole)
    plain = used()
    loaded = reader.load(folder, batch_size=BATCH_SIZE, seed=1)
    plain.fit(loaded, epochs=3, verbose=0, **options)
    assert same(plain, whole)


def test_a_dataset_made_from_the_batches_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its steps differ from the batches."""
    data = batches(folder)
    resume = reader.ResumeInEpoch(tmp_path / "s", data)
    for options in ({}, {"class_weight": {0: 1.0, 1: 1.0}}):
        with pytest.raises(
            DatasetError, match="fit reads other data than the batches of this callback"
        ):
            model_of().fit(data.unbatch().batch(4), verbose=0, callbacks=[resume], **options)


@pytest.fixture(name="validated", scope="module")
def _validated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a model that was trained and validated for two epochs without a break."""
    place = tmp_path_factory.mktemp("validated") / "state"
    options = {"validation_data": batches(folder, shuffle=False), "epochs": 2}
    return fit(batches(folder), place, model=model_of(), **options)


@pytest.mark.parametrize(
    ("number", "in_validation"),
    [
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.thorough),
        (signal.SIGINT, True),
    ],
)
def test_a_signal_ends_training_after_its_step(
    folder: Path, validated: Any, tmp_path: Path, number: signal.Signals, *,
    in_validation: bool,
) -> None:  # fmt: skip
    """The state is saved first. An interrupted validation is done again."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        options = {"validation_data": batches(folder, shuffle=False), "epochs": 2}
        breaking = Breaking(5, number, in_validation=in_validation)
        with pytest.raises(KeyboardInterrupt):
            fit(batches(folder), tmp_path / "state", breaking, **options)
        assert signal.getsignal(number) is signal.default_int_handler
        data = batches(folder)
        model = fit(data, tmp_path / "state", model=used(seed=9), **options)
        assert same(validated, model)
        assert validated.history.history == model.history.history
    finally:
        signal.signal(number, before)


def test_a_signal_after_an_error_of_fit_is_not_kept(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BrokenError):
        fit(batches(folder), tmp_path / "state", Breaking(3))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.thorough
def test_a_finished_run_trains_nothing_until_it_gets_more_epochs(
    folder: Path, whole: Any, tmp_path: Path
) -> None:
    first = values(fit(batches(folder), tmp_path / "state", epochs=2))
    saved = (tmp_path / "state").read_bytes()
    again = fit(batches(folder), tmp_path / "state", epochs=2, model=used(seed=9))
    assert (tmp_path / "state").read_bytes() == saved
    assert same(again, first)
    assert again.history.history == {}
    more = fit(batches(folder), tmp_path / "state", epochs=3, model=used(seed=9))
    assert same(whole, more)
    more.fit(batches(folder), epochs=1, verbose=0)  # the restored epoch does not affect later fits
    assert len(more.history.history["loss"]) == 1


def test_one_callback_serves_fit_again(folder: Path, whole: Any, tmp_path: Path) -> None:
    data, model = batches(folder), used()
    resume = reader.ResumeInEpoch(tmp_path / "state", data)
    for epochs in (1, 3):
        model.fit(data, epochs=epochs, verbose=0, callbacks=[resume])
    assert same(model, whole)


@pytest.mark.thorough
def test_training_that_a_callback_stopped_resumes_there(
    folder: Path, whole: Any, tmp_path: Path
) -> None:
    class Stopping(keras.callbacks.Callback):  # type: ignore[misc]  # keras carries no types
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del logs
            self.model.stop_training = batch == 6

    fit(batches(folder), tmp_path / "state", Stopping())
    stopped = fit(batches(folder), tmp_path / "state", Stopping(), model=used(seed=9))
    assert stopped.layers[0].steps.numpy() == NUM_STEPS + 7, "an epoch that went on ended there"
    model = fit(batches(folder), tmp_path / "state", model=used(seed=9))
    assert same(whole, model)


@pytest.mark.thorough
def test_the_saved_seed_is_used_if_none_is_given(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BrokenError):
        fit(batches(folder, seed=None), tmp_path / "state", Breaking(8), save_every=1)
    model = fit(batches(folder, seed=None), tmp_path / "state")
    assert (counts(model)[:3] == 1).all()


@pytest.fixture(name="saved", scope="module")
def _saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a state within an epoch; read only."""
    place = tmp_path_factory.mktemp("saved") / "state"
    with pytest.raises(BrokenError):
        fit(batches(folder), place, Breaking(8), save_every=1)
    return place


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 9}, "the state was saved with other records or settings: global batch=8, "),
        ({"split": "train[:80]"}, "the state was saved with other records or settings: records="),
        ({"seed": 2}, "the state has seed=1, but the batches have seed=2; give the same seed, or"),
        ({"units": 5}, "the state is from another model: variable 2 was float32[48, 4] and is fl"),
        (
            {"optimizer": "sgd"},
            "the state is from Adam, the model has SGD; compile with Adam",
        ),
    ],
)
def test_a_state_of_other_batches_or_another_model_is_refused(
    folder: Path, saved: Path, change: dict[str, Any], said: str
) -> None:
    ours = {key: change[key] for key in ("units", "optimizer") if key in change}
    options = {key: change[key] for key in change.keys() - ours.keys()}
    before = saved.read_bytes()
    with pytest.raises(DatasetError) as caught:
        fit(batches(folder, **options), saved, model=model_of(**ours))
    assert str(caught.value).startswith(f"{saved}: {said}")
    assert "remove the file to start again" in str(caught.value)
    assert saved.read_bytes() == before


def _with_place(saved: Path, change: Callable[[dict[str, Any]], None], to: Path) -> Path:
    """Write a copy of a state whose position is changed."""
    with np.load(saved) as file:
        arrays = {name: file[name] for name in file.files}
    head = json.loads(arrays["head"].tobytes())
    change(head["place"])
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    with to.open("wb") as stream:
        np.savez(stream, **arrays)
    return to


def test_a_refused_state_says_once_how_to_start_again(
    folder: Path, saved: Path, tmp_path: Path
) -> None:
    def age(place: dict[str, Any]) -> None:
        place["of"] = f"1 {place['of'].partition(' ')[2]}"

    old = _with_place(saved, age, tmp_path / "old")
    with pytest.raises(DatasetError) as caught:
        reader.ResumeInEpoch(old, batches(folder))
    hint = "finish its epoch with that version, or remove the file to start again"
    assert str(caught.value).endswith(
        f"earlier version, which had another order of records; {hint}"
    )
    cut = _with_place(saved, lambda place: place.pop("seed"), tmp_path / "cut")
    with pytest.raises(DatasetError, match="is not a ResumeInEpoch state; remove the file"):
        reader.ResumeInEpoch(cut, batches(folder))


def test_an_invalid_state_file_is_refused(folder: Path, saved: Path, tmp_path: Path) -> None:
    cut = write(tmp_path / "cut", saved.read_bytes()[:-100])
    for place in (cut, write(tmp_path / "empty", b""), write(tmp_path / "text", b"{}")):
        with pytest.raises(DatasetError, match="is not a ResumeInEpoch state; remove the file"):
            reader.ResumeInEpoch(place, batches(folder))
    with pytest.raises(DatasetError, match=r"cannot be read \(Is a directory\)"):
        reader.ResumeInEpoch(tmp_path, batches(folder))
    with pytest.raises(DatasetError, match=r"cannot be (read|written) .*; give another path"):
        fit(batches(folder), cut / "state")
    with pytest.raises(DatasetError, match="use the path of a file on this machine"):
        reader.ResumeInEpoch("s3://bucket/state", batches(folder))
    with pytest.raises(DatasetError, match=r"use the result of reader\.iterate"):
        reader.ResumeInEpoch(tmp_path / "state", reader.load(folder, batch_size=8))


def test_fit_must_get_all_of_the_same_batches(folder: Path, tmp_path: Path) -> None:
    data = batches(folder)
    resume = reader.ResumeInEpoch(tmp_path / "state", data)
    with pytest.raises(
        DatasetError, match="fit has 5 steps per epoch, but this callback has 12 batches; "
    ):
        model_of().fit(data, steps_per_epoch=5, verbose=0, callbacks=[resume])
    with pytest.raises(
        DatasetError,
        match=r"reader\.ResumeInEpoch: fit reads other data than the batches of this callback",
    ):
        used().fit(batches(folder), verbose=0, callbacks=[resume])
    assert not (tmp_path / "state").exists()


LONGEST_S = 0.03
"""Longest time from the end of a step to the kill, longer than a step."""
SAVE_S = (0.01, 0.016)
"""Span of the save after the end of a step, which sleeps for 10 ms before it."""
PROGRAM = (
    # Eager: to trace the steps, as other tests do, would take two thirds of the time.
    MODEL.replace("jit_compile=False", "jit_compile=False, run_eagerly=True")
    + """
import hashlib, json, os, signal, sys, threading, time
from shardprep import reader
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.experimental.enable_op_determinism()
folder, place, epochs, ends, steps, later_s = sys.argv[1:]
left = int(steps)

class Ending(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global left
        left -= 1
        if left == 0 and ends == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif left == 0:
            threading.Timer(float(later_s), os.kill, (os.getpid(), signal.SIGKILL)).start()
        time.sleep(0.01)

train = reader.iterate(folder, batch_size=8, seed=1)
model = model_of(seed=0, optimizer=keras.optimizers.SGD(momentum=0.9))
resume = reader.ResumeInEpoch(place, train, save_every=2)
print("from", train.state_dict()["batch"], flush=True)
history = model.fit(train, epochs=int(epochs), verbose=0, callbacks=[Ending(), resume]).history
digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.variables))
print(json.dumps({
    "weights": digest.hexdigest(),
    "counts": model.layers[0].counts.numpy().tolist(),
    "logs": {name: values[-1] for name, values in history.items()},
}))
"""
)


@pytest.mark.thorough
def test_a_run_killed_at_random_trains_each_record_of_each_epoch_once(
    folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its weights are bit for bit those of an undisturbed run."""
    num_kills, num_epochs = 2 if request.config.getoption("--quick") else 4, 3
    draw = random.Random(num_kills)
    # One moment in each part of the two spans. Half of them are within the save of a second step.
    killed = [
        (draw.choice(steps), first + (i + draw.random()) * (last - first) / (num_kills // 2))
        for steps, first, last in (([4], *SAVE_S), ([3, 4], 0.0, LONGEST_S))
        for i in range(num_kills // 2)
    ]
    draw.shuffle(killed)

    def begin(place: str, ending: str = "", steps: int = 0, later_s: float = 0) -> Program:
        """Start training, which a signal ends after `steps`, SIGKILL `later_s` seconds later."""
        return Program(
            PROGRAM, folder, tmp_path / place, num_epochs, ending, steps, later_s,
            TF_CPP_MIN_LOG_LEVEL="3",
        )  # fmt: skip

    undisturbed = begin("whole")
    places = set()
    endings = [("SIGTERM", 3, 0.0), *(("SIGKILL", steps, later_s) for steps, later_s in killed)]
    for ending, steps, later_s in endings:
        done = begin("killed", ending, steps, later_s).wait()
        assert done.returncode == -getattr(signal, ending), done.stderr
        places.add(done.stdout.split()[1])
    done = begin("killed").wait()
    assert done.returncode == 0, done.stderr
    places.add(done.stdout.split()[1])
    assert len(places) > 2, "it went on in the middle of epochs"
    found, whole = (
        json.loads(out.splitlines()[-1]) for out in (done.stdout, undisturbed.wait().stdout)
    )
    assert (np.array(found["counts"])[:num_epochs] == 1).all()
    assert found == whole
