"""Speed of our augmentations beside Keras's own layers, on the same batches in the same run.

Each op runs on a batch of 64 uint8 images of 224 × 224, once in `dataset.map` and once in a
function that XLA compiles, like a model on an accelerator. Keras has no random resized crop:
RandomZoom and RandomTranslation are used instead.
"""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.measure import Measure, Row, interleaved, timed
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZE, BATCH = 224, 64
BATCHES = 4  # in a round
OPS = (
    "flip", "crop", "brightness", "contrast", "saturation", "hue", "all four colours",
    "crop, flip and colours",
)  # fmt: skip
PLACES = ("`dataset.map`", "XLA")
PAIRS = {
    Measure(f"{name}, in {place}: `augment` / Keras layers"): (name, place)
    for name in OPS
    for place in PLACES
}
MEASURES = tuple(PAIRS)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return a row for each op and place."""
    import tensorflow as tf

    del folder
    number = 2 if quick else BATCH
    noise = np.random.default_rng(0).integers(0, 256, (number, SIZE, SIZE, 3), np.uint8)
    images = tf.constant(noise)
    pairs = {
        (name, place): (make(both[0], images), make(both[1], images))
        for name, both in ways().items()
        for place, make in zip(PLACES, (mapped, compiled), strict=True)
    }
    return [compare(measure, pairs[key], rounds) for measure, key in PAIRS.items()]


def ways() -> dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]]:
    """Return op → (our function, the function of Keras)."""
    from keras import layers

    from shardprep.reader import augment

    scale = {"value_range": (0, 255)}
    zoom = ((-0.4, 0.0), (-0.4, 0.0))
    flip = ([augment.Flip()], [layers.RandomFlip("horizontal")])
    crop = (
        [augment.RandomResizedCrop((SIZE, SIZE), (0.35, 1.0))],
        [layers.RandomZoom(*zoom), layers.RandomTranslation(0.2, 0.2)],
    )
    colours = (
        [augment.Color(0.2, 0.2, 0.2, 0.05)],
        [layers.RandomColorJitter((0, 255), 0.2, 0.2, 0.2, 0.05)],
    )
    found: tuple[tuple[list[Any], list[Any]], ...] = (
        flip,
        crop,
        ([augment.Color(brightness=0.2)], [layers.RandomBrightness(0.2)]),
        ([augment.Color(contrast=0.2)], [layers.RandomContrast(0.2, **scale)]),
        ([augment.Color(saturation=0.2)], [layers.RandomSaturation(0.2, **scale)]),
        ([augment.Color(hue=0.05)], [layers.RandomHue(0.05, **scale)]),
        colours,
        ([*crop[0], *flip[0], *colours[0]], [*crop[1], *flip[1], *colours[1]]),
    )
    return {name: (ours(own), keras_s(its)) for name, (own, its) in zip(OPS, found, strict=True)}


def ours(ops: list[Any]) -> Callable[[Any, Any], Any]:
    from shardprep.reader import augment

    recipe = augment.Compose(tuple(ops))
    return lambda images, seed: recipe(images, seed=seed)


def keras_s(layers: list[Any]) -> Callable[[Any, Any], Any]:
    import tensorflow as tf

    def run(images: Any, seed: Any) -> Any:
        del seed  # the layers keep their own
        for layer in layers:
            images = layer(images, training=True)
        return tf.cast(images, tf.uint8)

    return run


def mapped(run: Callable[[Any, Any], Any], images: Any) -> Callable[[], None]:
    """Return a function that runs `BATCHES` batches through `dataset.map`."""
    import tensorflow as tf

    dataset = tf.data.Dataset.range(BATCHES).map(
        lambda i: run(images, tf.stack([0, tf.cast(i, tf.int32)])),
        num_parallel_calls=tf.data.AUTOTUNE,
    )

    def batches() -> None:
        for _ in dataset:
            pass

    return batches


def compiled(run: Callable[[Any, Any], Any], images: Any) -> Callable[[], None]:
    """Return a function that runs `BATCHES` batches through a program of XLA."""
    import tensorflow as tf

    program = tf.function(run, jit_compile=True, autograph=False)

    def batches() -> None:
        for i in range(BATCHES):
            program(images, tf.constant([0, i])).numpy()

    return batches


def compare(
    measure: Measure, pair: tuple[Callable[[], None], Callable[[], None]], rounds: int
) -> Row:
    """Return the row of (our function, Keras's function); its value is NaN if Keras's fails."""
    import tensorflow as tf

    own, keras = pair
    sides = {"own": own, "Keras": keras}
    own()  # traced and compiled; that ours cannot run is an error
    why = ""
    try:
        keras()
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
        del sides["Keras"]
        why = type(error).__name__
    cost = interleaved({name: partial(timed, once) for name, once in sides.items()}, rounds)
    batch_ms = {name: one.wall_s / BATCHES * 1e3 for name, one in cost.items()}
    if why:
        return measure.came_to(math.nan, f"{batch_ms['own']:.1f} ms a batch; Keras's: {why}")
    figures = f"{batch_ms['own']:.1f} / {batch_ms['Keras']:.1f} ms a batch"
    return measure.came_to(batch_ms["Keras"] / batch_ms["own"], figures)


if __name__ == "__main__":
    alone(rows, __doc__)
