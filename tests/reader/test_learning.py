from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shardprep import reader
from shardprep.recipe.document import RECIPE_FILE, read_recipe
from tests.support.builders import build, sample

if TYPE_CHECKING:
    from pathlib import Path


def test_fit_says_nothing_of_an_order_that_the_reader_has_made(tmp_path: Path) -> None:
    """In a process of its own: pytest takes back what filters a test sets."""
    folder = build(sample(tmp_path), tmp_path / "out", size="8x8").path
    program = f"""
import keras
from shardprep import reader
train = reader.load({str(folder)!r}, batch_size=64)
model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(train, verbose=0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True
    )
    assert "shuffle=True" not in done.stderr


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself
def test_a_small_network_learns_the_sample(tmp_path: Path) -> None:
    """From the archive to a trained model: what the labels say is what the images show."""
    import keras
    from keras import layers

    archive = sample(tmp_path)
    keys = {**read_recipe(tmp_path / RECIPE_FILE), "shards": 4, "size": "32x32"}
    del keys["source"]  # relative to the folder of the recipe
    folder = build(archive, tmp_path / "out", **keys).path
    keras.utils.set_random_seed(0)
    train = reader.load(folder, batch_size=16, seed=0, cache="memory")
    validation = reader.load(folder, "validation", batch_size=64, cache="memory")
    model = keras.Sequential([layers.Rescaling(1 / 127.5, -1), layers.RandomFlip("horizontal")])
    for filters in (16, 32, 64):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dropout(0.2))
    model.add(layers.Dense(3, activation="softmax"))
    adam = keras.optimizers.Adam(2e-3)
    loss = "sparse_categorical_crossentropy"
    model.compile(adam, loss, metrics=["accuracy"], jit_compile=False)
    history = model.fit(train, epochs=5, validation_data=validation, verbose=0).history
    assert history["val_accuracy"][-1] > 0.9, history["val_accuracy"]
