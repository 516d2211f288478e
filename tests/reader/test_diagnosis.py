"""`reader.diagnose`: training that is slow for a known reason, and the reason that is found."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader.diagnose.conclude import Circumstances, Measured, conclude
from tests.support.builders import build, jpeg, write, zip_bytes

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 1.0
PAUSE_S = 0.2
"""Longer than anything a small batch takes, however busy the machine is."""


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a set of large JPEGs: to decode one takes far longer than to read it."""
    root = tmp_path_factory.mktemp("large")
    images = {f"{('cat', 'dog')[i % 2]}.{i}.jpg": jpeg(300, 400, seed=i) for i in range(16)}
    source = write(root / "pets.zip", zip_bytes(images))
    return build(source, root / "out", labels="prefix", shards=2, size="400x300").path


def pausing(images: Any) -> Any:
    """Augment by doing nothing, slowly."""

    def pause(array: Any) -> Any:
        time.sleep(PAUSE_S)
        return array

    paused = tf.numpy_function(pause, [images], images.dtype)
    return tf.ensure_shape(paused, images.shape)


def test_slow_augmentation_is_found(folder: Path) -> None:
    train = reader.load(folder, batch_size=4, augment=pausing)
    found = reader.diagnose(train, lambda _: None, seconds=SECONDS)
    assert found.bound == "augment"
    assert found.measured.waiting > 0.9
    assert found.gain > 1
    assert "in the model" in found.advice


def test_a_slow_model_is_found(folder: Path) -> None:
    train = reader.load(folder, batch_size=2, cache="memory")
    found = reader.diagnose(train, lambda _: time.sleep(PAUSE_S), seconds=SECONDS)
    assert found.bound == "model"
    assert found.measured.waiting < 0.5
    assert found.gain == 1
    assert found.measured.model <= 2 / PAUSE_S
    assert (found.measured.decode, found.measured.read) == (None, None)


@pytest.mark.thorough
def test_slow_decoding_is_found(folder: Path) -> None:
    """And steps get whole batches of the dataset."""
    seen: set[Any] = set()
    train = reader.load(folder, batch_size=4, as_supervised=False, drop_remainder=True)
    found = reader.diagnose(
        train, lambda batch: seen.add(tuple(batch["image"].shape)), seconds=SECONDS
    )
    assert seen == {(4, 300, 400, 3)}
    assert found.bound == "decode"
    assert found.measured.read is not None
    assert found.measured.decode is not None
    assert found.measured.read > 2 * found.measured.decode
    assert "cache='memory'" in found.advice
    lines = str(found).splitlines()
    assert lines[0].startswith("bound by decode: ")
    assert all(len(line) <= 80 for line in lines)


def test_slow_reading_is_found(folder: Path, tmp_path: Path) -> None:
    """Raw pixels are a hundred times the bytes, and need no decoding."""
    raw = build(
        folder.parents[2] / "pets.zip", tmp_path, labels="prefix", format="raw", size="400x300"
    )
    found = reader.diagnose(reader.load(raw.path, batch_size=4), lambda _: None, seconds=SECONDS)
    assert found.bound == "read"
    assert found.gain > 1


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
def test_a_model_is_trained_and_put_back_as_it_was(folder: Path) -> None:
    model = small_model()
    train = reader.load(folder, batch_size=4, seed=0, cache="memory")
    model.fit(train.take(2), verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    before = [one.numpy() for one in variables]
    found = reader.diagnose(train, model, seconds=0.5)
    assert found.measured.model > 0
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


@pytest.mark.thorough
def test_a_model_that_was_never_called_can_be_diagnosed(folder: Path) -> None:
    model = small_model()
    reader.diagnose(reader.load(folder, batch_size=4, cache="memory"), model, seconds=0.1)
    assert model.optimizer.iterations == 0


def test_what_cannot_be_diagnosed_is_said(folder: Path) -> None:
    import keras

    train = reader.load(folder, batch_size=4)
    wrong: list[tuple[Any, Any, str]] = [
        (train.map(lambda *batch: batch), print, "not what reader.load returned"),
        (reader.load(folder), print, "single images"),
        (train, keras.Sequential([keras.layers.Flatten()]), "not compiled"),
        (reader.load(folder, batch_size=4, as_supervised=False), small_model(), "pass a step"),
    ]
    for dataset, step, said in wrong:
        with pytest.raises(DatasetError, match=said):
            reader.diagnose(dataset, step, seconds=0.1)


def measured(**rates: float | None) -> Measured:
    usual: dict[str, Any] = {
        "waiting": 0.8, "training": 100.0, "model": 1000.0, "model_on_device": None,
        "pipeline": 100.0, "decode": 110.0, "read": 5000.0,
    }  # fmt: skip
    return Measured(**{**usual, **rates})


def here(**facts: Any) -> Circumstances:
    usual: dict[str, Any] = {
        "num_records": 1000, "record_bytes": 15_000.0, "encoding": "jpeg",
        "stored_pixels": 224 * 224, "asked_size": None, "dtype": "uint8", "augments": False,
        "free_bytes": 1 << 34,
    }  # fmt: skip
    return Circumstances(**{**usual, **facts})


SMALL = {"free_bytes": 1 << 20}
VERDICTS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, float]] = {
    "reading costs most": (
        {"read": 120.0, "decode": 110.0, "pipeline": 100.0}, SMALL, "read", "local disk", 10.0,
    ),
    "reading, and it fits": (
        {"read": 120.0, "decode": 110.0, "pipeline": 110.0}, {}, "read", "cache='memory'", 10.0,
    ),
    "reading a cache": ({"read": None, "decode": None}, {}, "read", "faster disk", 10.0),
    "decoding, and it fits": ({}, {}, "decode", "cache='memory'", 10.0),
    "decoding larger images than asked for": (
        {}, {"asked_size": (112, 112)}, "decode", "--size 112x112", 4.4,
    ),
    "decoding what does not fit": ({}, SMALL, "decode", "--format raw", 5.0),
    "decoding what would be slow to read": (
        {"read": 200.0, "decode": 100.0}, {**SMALL, "record_bytes": 5_000.0}, "read", "local", 2.0,
    ),
    "augmenting": (
        {"decode": 900.0, "pipeline": 100.0}, {"augments": True}, "augment", "in the model", 9.0,
    ),
    "no augmentation, whatever is measured": (
        {"read": 300.0, "decode": 250.0, "pipeline": 100.0}, {}, "read", "cache", 10.0,
    ),
    "casting": (
        {"decode": 900.0, "pipeline": 100.0}, {"dtype": "float32"}, "augment", "dtype='uint8'", 9.0,
    ),
    "augmenting what is cached": (
        {"read": None, "decode": None}, {"augments": True}, "augment", "in the model", 10.0,
    ),
    "the model": (
        {"waiting": 0.02, "model": 100.0, "pipeline": 700.0}, {}, "model", "7.0 times", 1.0,
    ),
    "the model, on the cores of the pipeline": (
        {"waiting": 0.3, "model": 100.0, "pipeline": 700.0}, {}, "model", "nothing", 1.0,
    ),
    "the model, on a device": (
        {"waiting": 0.0, "model": 100.0, "model_on_device": 120.0}, {}, "model", "nothing", 1.0,
    ),
    "the way to the device, of floats": (
        {"waiting": 0.0, "model": 100.0, "model_on_device": 1000.0}, {"dtype": "float32"},
        "transfer", "uint8", 3.1,
    ),
    "the way to the device, of uint8": (
        {"waiting": 0.0, "model": 100.0, "model_on_device": 400.0}, {},
        "transfer", "prefetch_to_device", 1.3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VERDICTS)
def test_the_largest_cost_bounds_and_the_change_is_worth_what_it_saves(case: str) -> None:
    rates, facts, bound, advice, gain = VERDICTS[case]
    found = conclude(measured(**rates), here(**facts))
    assert found.bound == bound
    assert advice in found.advice
    assert found.gain == pytest.approx(gain, abs=0.06)
    assert str(found).count(f"bound by {bound}") == 1
