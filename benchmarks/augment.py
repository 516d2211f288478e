"""Our augmentations and Keras's own layers, on the same batches in the same run.

    python benchmarks/augment.py [--rounds 7]

Each op on a batch of 64 images of 224 × 224, uint8: once mapped over a dataset, once in a function
that XLA compiles, as a model on an accelerator is. Rounds of all ways follow one another, so that
whatever else the machine does meets them all; printed are medians, in milliseconds a batch. Keras
has no random resized crop: its nearest are RandomZoom and RandomTranslation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from shardprep.reader import augment

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE, BATCH = 224, 64
BATCHES = 4  # of a round

L = keras.layers
RANGE = {"value_range": (0, 255)}
ZOOM = ((-0.4, 0.0), (-0.4, 0.0))
WAYS: dict[str, tuple[list[Any], list[Any]]] = {
    "flip": ([augment.Flip()], [L.RandomFlip("horizontal")]),
    "crop": (
        [augment.RandomResizedCrop((SIZE, SIZE), (0.35, 1.0))],
        [L.RandomZoom(*ZOOM), L.RandomTranslation(0.2, 0.2)],
    ),
    "brightness": ([augment.Color(brightness=0.2)], [L.RandomBrightness(0.2)]),
    "contrast": ([augment.Color(contrast=0.2)], [L.RandomContrast(0.2, **RANGE)]),
    "saturation": ([augment.Color(saturation=0.2)], [L.RandomSaturation(0.2, **RANGE)]),
    "hue": ([augment.Color(hue=0.05)], [L.RandomHue(0.05, **RANGE)]),
    "all four": (
        [augment.Color(0.2, 0.2, 0.2, 0.05)],
        [L.RandomColorJitter((0, 255), 0.2, 0.2, 0.2, 0.05)],
    ),
}
WAYS["flip, crop, colour"] = tuple(  # type: ignore[assignment]
    [op for name in ("crop", "flip", "all four") for op in WAYS[name][place]] for place in (0, 1)
)


def ours(ops: list[Any]) -> Callable[[Any, Any], Any]:
    recipe = augment.Compose(tuple(ops))
    return lambda images, seed: recipe(images, seed=seed)


def keras_s(layers: list[Any]) -> Callable[[Any, Any], Any]:
    def run(images: Any, seed: Any) -> Any:
        del seed  # the layers keep their own
        for layer in layers:
            images = layer(images, training=True)
        return tf.cast(images, tf.uint8)

    return run


def mapped(run: Callable[[Any, Any], Any], images: Any) -> Callable[[], None]:
    """Return a round: batches through `dataset.map`, as tf.data spreads them."""
    dataset = tf.data.Dataset.range(BATCHES).map(
        lambda i: run(images, tf.stack([0, tf.cast(i, tf.int32)])),
        num_parallel_calls=tf.data.AUTOTUNE,
    )

    def batches() -> None:
        for _ in dataset:
            pass

    return batches


def compiled(run: Callable[[Any, Any], Any], images: Any) -> Callable[[], None]:
    """Return a round: batches through a program of XLA."""
    program = tf.function(run, jit_compile=True, autograph=False)

    def batches() -> None:
        for i in range(BATCHES):
            program(images, tf.constant([0, i])).numpy()

    return batches


def milliseconds(rounds: dict[Any, Callable[[], None]], number: int) -> dict[Any, float]:
    """Return the median of each way; one that cannot run is left out, and said."""
    times: dict[Any, list[float]] = {}
    for way, once in rounds.items():
        try:
            once()
            times[way] = []
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
            print(f"{way}: {str(error).splitlines()[0][:90]}")
    for _ in range(number):
        for way, taken in times.items():
            start = time.perf_counter()
            rounds[way]()
            taken.append((time.perf_counter() - start) / BATCHES * 1e3)
    return {way: statistics.median(taken) for way, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    number = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    images = tf.constant(rng.integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8))
    devices = tf.config.list_physical_devices("GPU") or "CPU"
    print(
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, {devices}, {os.cpu_count()} cores"
    )
    rounds = {
        (name, place, whose): make(run, images)
        for name, both in WAYS.items()
        for place, make in (("dataset.map", mapped), ("XLA", compiled))
        for whose, run in (("ours", ours(both[0])), ("Keras", keras_s(both[1])))
    }
    times = milliseconds(rounds, number)
    print(f"{'ms a batch of 64':20}" + "".join(f"{p:>12} ours   Keras" for p in ("map", "XLA")))
    for name in WAYS:
        cells = ""
        for place in ("dataset.map", "XLA"):
            own, other = (times.get((name, place, whose)) for whose in ("ours", "Keras"))
            ratio = f"{other / own:5.1f}x" if own and other else "     –"
            shown = [f"{value:8.1f}" if value else "       –" for value in (own, other)]
            cells += f"{shown[0]:>12}{shown[1]}{ratio}  "
        print(f"{name:20}{cells}")


if __name__ == "__main__":
    main()
