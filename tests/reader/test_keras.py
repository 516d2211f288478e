"""`Dataset.keras` against `Dataset.batches`, in the loops of Keras itself."""

import itertools
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.dataset.schema import BOX, BOX_LABEL
from tests.reader.datasets import numbered, of_form, refused, saved
from tests.support.annotated import annotated
from tests.support.builders import build, jpeg, write, zip_bytes
from tests.support.examples import thorough
from tests.support.processes import Program
from tests.support.torchvision import need_module

NUM_RECORDS, BATCH_SIZE, NUM_EPOCHS = 44, 8, 3
NUM_STEPS = 6  # the last batch is short
PROGRAM = '''
import json, os, signal, sys
if os.environ.get("KERAS_BACKEND"):
    sys.modules["tensorflow"] = None  # another framework needs none, and imports none
import keras
import numpy as np
from shardprep import reader

dataset, state = reader.Dataset(sys.argv[1], "train[:28]"), sys.argv[2]
check = reader.Dataset(sys.argv[1], "train[:12]")
checked = check.keras(8, shuffle=False)

class Log(keras.layers.Layer):
    """Logs the numbers of the images of each training step in weights, as number + 1."""

    def build(self, shape):
        zeros = {"initializer": "zeros", "trainable": False, "dtype": "int32"}
        self.step = self.add_weight(shape=(), **zeros)
        self.log = self.add_weight(shape=(12, 8), **zeros)

    def call(self, images, training=False):
        if training:
            numbers = keras.ops.cast(images[:, 0, 0, 0], "int32") + 1
            row = keras.ops.concatenate([numbers, keras.ops.zeros(8, "int32")])[:8]
            is_row = keras.ops.equal(keras.ops.arange(12, dtype="int32"), self.step)
            self.log.assign_add(keras.ops.cast(is_row, "int32")[:, None] * row)
            self.step.assign_add(1)
        return keras.ops.cast(images, "float32") / 255

def new_model():
    keras.utils.set_random_seed(0)
    rate = 0.0 if keras.backend.backend() == "torch" else 0.3  # drawn from torch's own generator
    layers = [Log(), keras.layers.Flatten(), keras.layers.Dropout(rate), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    is_jax = keras.backend.backend() == "jax"  # alone, each of its ops is compiled
    sgd = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(sgd, loss, metrics=["accuracy"], jit_compile=is_jax)
    return model

def renewed(model):
    """Return a model with the values of a new one: its steps are compiled already."""
    new = new_model()
    new.build((None, 4, 4, 3))
    new.optimizer.build(new.trainable_variables)
    for part, values in ((model, new), (model.optimizer, new.optimizer)):
        for variable, value in zip(part.variables, values.variables, strict=True):
            variable.assign(value)
    model._eval_epoch_iterator = None  # a validation that is broken off leaves its own
    return model

def log_of(model):
    log = keras.ops.convert_to_numpy(model.layers[0].log)
    return [(row[row > 0] - 1).tolist() for row in log if row.any()]

class Stop(keras.callbacks.Callback):
    """Sends SIGINT in a training step, or in a validation, of the second epoch."""

    def __init__(self, stage):
        super().__init__()
        self.stage, self.epoch = stage, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.stage == "train" and self.epoch == 1 and batch == 2:
            signal.raise_signal(signal.SIGINT)

    def on_test_batch_begin(self, batch, logs=None):
        if self.stage == "test" and self.epoch == 1:
            signal.raise_signal(signal.SIGINT)

def fit(model, *callbacks, **options):
    given = {"epochs": 3, "validation_data": checked, "verbose": 0, **options}
    return model.fit(*callbacks, **given).history

used = new_model()
history = fit(used, dataset.keras(8, seed=5))
whole, weights = log_of(used), used.get_weights()

images, labels = (np.concatenate(parts) for parts in zip(*check.batches(8, shuffle=False)))
close = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5)
options = {"batch_size": 8, "verbose": 0}
close(used.evaluate(checked, verbose=0), used.evaluate(images, labels, **options))
close(used.predict(checked, verbose=0), used.predict(images, **options))
weighted = check.keras(8, shuffle=False, sample_weight=lambda labels: labels == 0)
own = (labels == 0).astype("float32")
expected = used.evaluate(images, labels, sample_weight=own, **options)
close(used.evaluate(weighted, verbose=0), expected)

for stage in ("train", "test", "none"):
    model = new_model() if stage == "none" else renewed(used)  # not built yet, and built
    train = dataset.keras(8, seed=5)
    try:
        kept = fit(model, train, callbacks=[reader.ResumeInEpoch(state, train), Stop(stage)])
        assert stage == "none"
    except KeyboardInterrupt:
        assert stage != "none"
for name, values in kept.items():
    close(values[-1], history[name][-1])
for one, other in zip(model.get_weights(), weights, strict=True):
    close(one, other)

cut = renewed(used)
before = cut.get_weights()[-2:]
fit(cut, dataset.keras(8, seed=5), steps_per_epoch=3, class_weight={0: 0.0, 1: 0.0})
for one, other in zip(cut.layers[-1].get_weights(), before, strict=True):
    np.testing.assert_array_equal(one, other)
print(json.dumps([whole, log_of(model), log_of(cut)]))
'''


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered(tmp_path_factory, NUM_RECORDS)


@pytest.fixture(name="dataset")
def _dataset(folder: Path) -> reader.Dataset:
    return reader.Dataset(folder)


def numbers(batches: Any) -> list[list[int]]:
    """Return the numbers of the images of each batch."""
    return [np.asarray(images)[:, 0, 0, 0].tolist() for images, _ in batches]


@pytest.mark.parametrize(
    "backend",
    [
        "tensorflow",
        thorough("torch"),
        thorough("jax"),
    ],
)
def test_fit_trains_on_the_batches_in_order_and_resumes(
    folder: Path, tmp_path: Path, backend: str
) -> None:
    """Also in the middle of an epoch, in a validation, and with steps_per_epoch."""
    need_module(backend)
    variables = {} if backend == "tensorflow" else {"KERAS_BACKEND": backend}
    done = Program(PROGRAM, folder, tmp_path / "state", framework=backend, **variables).wait()
    assert done.returncode == 0, done.stderr
    whole, resumed, cut = json.loads(done.stdout)
    dataset = reader.Dataset(folder, "train[:28]")
    expected = numbers(dataset.batches(BATCH_SIZE, seed=5, epochs=NUM_EPOCHS))
    assert whole == expected
    assert resumed == expected
    assert cut == expected[:7]  # Keras ends an epoch where the batches end, after 3 + 1 steps


@pytest.mark.parametrize("weights", [None, "balanced"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_an_item_does_not_depend_on_the_order_of_access(
    dataset: reader.Dataset, weights: str | None, hosts: int
) -> None:
    """Not on threads, and the hosts' items together are the batches of one host."""
    expected = numbers(dataset.batches(BATCH_SIZE, seed=5, weights=weights, epochs=2))
    size = BATCH_SIZE // hosts
    parts = [
        dataset.keras(size, seed=5, weights=weights, num_shards=hosts, shard_index=index)
        for index in range(hosts)
    ]
    for epoch in range(2):
        order = [3, 4, 0, 5, 2, 1, 5]
        with ThreadPoolExecutor(3) as pool:
            drawn = [
                dict(zip(order, pool.map(part.__getitem__, order), strict=True)) for part in parts
            ]
        for index in order:
            together = itertools.chain(*numbers(host[index] for host in drawn))
            assert [*together] == expected[epoch * NUM_STEPS + index]
        for part in parts:
            part.on_epoch_begin()
            part.on_epoch_end()


def test_all_readers_exchange_states(dataset: reader.Dataset) -> None:
    expected = numbers(dataset.batches(BATCH_SIZE, seed=5, epochs=2))
    batches = dataset.batches(BATCH_SIZE, seed=5, epochs=2)
    for _ in range(4):
        next(batches)
    loaded = dataset.keras(BATCH_SIZE)
    loaded.load_state_dict(saved(batches))
    assert numbers(loaded) == expected[4 : 4 + NUM_STEPS]
    state = saved(loaded)
    assert state == saved(batches)
    assert len(json.dumps(state)) <= 200
    for other in (dataset.loader(BATCH_SIZE), dataset.batches(BATCH_SIZE, epochs=2)):
        other.load_state_dict(state)
        assert numbers(other)[:2] == expected[4:6]
    iterated = reader.iterate(str(dataset.path), batch_size=BATCH_SIZE)
    iterated.load_state_dict(state)
    assert numbers(iterated) == expected[4:6]


def test_keras_gets_what_it_can_take(
    dataset: reader.Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Images alone without labels, and no texts."""
    images, labels = dataset.keras(BATCH_SIZE)[0]
    assert (images.shape, labels.shape) == ((8, 4, 4, 3), (8,))
    for form in ("unlabelled", "text"):
        (images,) = reader.Dataset(of_form(tmp_path_factory, form)).keras(4)[0]
        assert images.shape == (4, 12, 16, 3)
    features = dataset.keras(BATCH_SIZE, as_supervised=False)[0]
    assert {name: value.dtype.kind for name, value in features.items()} == {
        "image": "u", "image/height": "i", "image/width": "i", "label": "i",
    }  # fmt: skip


def test_what_keras_cannot_take_is_refused(dataset: reader.Dataset, tmp_path: Path) -> None:
    boxes = reader.Dataset(annotated(tmp_path, BOX, BOX_LABEL))
    lines = [
        refused(lambda: dataset.keras(8, ragged=True)),
        refused(lambda: reader.Dataset(str(dataset.path), decode=False).keras(8)),
        refused(lambda: boxes.keras(2)),
        refused(lambda: dataset.keras(8, as_supervised=False, sample_weight=len)),
    ]
    assert [line.partition(": ")[2].partition(";")[0] for line in lines] == [
        "Keras cannot take lists or bytes",
        "Keras cannot take lists or bytes",
        "Keras needs a fixed number of boxes",
        "sample_weight needs targets",
    ]
    images, targets = boxes.keras(2, max_boxes=3)[0]
    assert targets["boxes"].shape == (len(images), 3, 4)
    with pytest.raises(IndexError, match="item 6 is out of range"):
        dataset.keras(BATCH_SIZE)[NUM_STEPS]


def test_fit_and_evaluate_warn_of_images_without_a_class_but_predict_does_not(
    tmp_path: Path,
) -> None:
    need_module("keras")
    import keras

    names = ("train/cat/1.jpg", "train/dog/1.jpg", "test/1.jpg")
    source = write(tmp_path / "pets.zip", zip_bytes({name: jpeg() for name in names}))
    path = build(source, tmp_path / "out", size="8x8").path
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    test = reader.Dataset(path, "test").keras(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", reader.Advice)
        model.predict(test, verbose=0)
        model.fit(reader.Dataset(path, "train").keras(1), verbose=0)
        weighed = reader.Dataset(path, "test").keras(1, sample_weight=lambda labels: labels >= 0)
        model.evaluate(weighed, verbose=0)
    with pytest.warns(reader.Advice, match="^1 of 1 records of test have no label"):
        model.evaluate(test, verbose=0)
