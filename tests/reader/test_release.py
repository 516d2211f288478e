"""Open shards and images in memory are released with their last dataset or iterator."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.machine import usable_cores
from shardprep.reader.decode.features import DecodedExamples
from shardprep.reader.tf import python_calls
from tests.reader.datasets import pets
from tests.support.builders import animals

NUM_SHARDS = 3
TIMES = 2
SECONDS = 10.0
"""Seconds that threads have to end what they do, at most."""
READERS: dict[str, Callable[[Path], Any]] = {
    "load": lambda folder: reader.load(folder, batch_size=4),
    "load, one by one": reader.load,
    "load, with names": lambda folder: reader.load(folder, batch_size=4, as_supervised=False),
    "load without end": lambda folder: reader.load(folder, batch_size=4, seed=1, repeat=True),
    "load past bad records": lambda folder: reader.load(
        folder, batch_size=4, read_config=reader.ReadConfig(on_error="skip")
    ),
    "load crops": lambda folder: reader.load(folder, batch_size=4, random_resized_crop=(8, 8)),
    "load, cached in memory": lambda folder: reader.load(folder, batch_size=4, cache="memory"),
    "load, cached in a folder": lambda folder: reader.load(
        folder, batch_size=4, cache=str(folder / "cache")
    ),
    "iterate": lambda folder: reader.iterate(folder, batch_size=4),
    "arrays": lambda folder: reader.Dataset(folder).batches(4),
}


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = {"shards": NUM_SHARDS, "size": "16x12", "split": "train=1"}
    return pets(tmp_path_factory, animals(24), **options)


@pytest.fixture(autouse=True, scope="module")
def _no_collection() -> Iterator[None]:
    """Switch garbage collection off: objects are released with their last reference alone.

    `freeze` makes the collections of tests quick: to look at all of TensorFlow takes 0.3 s.
    """
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.enable()


def opened(folder: Path) -> list[Path]:
    """Return the files in a folder that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this loop
            found.append(link.readlink())
    return [target for target in found if target.is_relative_to(folder)]


def is_released(folder: Path) -> bool:
    end = time.monotonic() + SECONDS
    while opened(folder) and time.monotonic() < end:
        time.sleep(0.01)
    return not opened(folder)


@pytest.mark.parametrize("name", READERS)
def test_a_dropped_iterator_leaves_no_shard_open(folder: Path, name: str) -> None:
    for _ in range(TIMES):
        dataset = READERS[name](folder)
        if name != "arrays":
            # tf.data wakes the thread of autotuning before it marks the cancellation. So to drop an
            # iterator took as long as it had lived, in one of four cases, up to a minute.
            options = dataset.map(lambda *element: element).options()
            assert options.autotune.enabled is False
            assert options.autotune.initial_parallelism == usable_cores()
            del options
        iterator = iter(dataset)
        next(iterator)
        del dataset
        next(iterator)
        assert name.endswith("in memory") or opened(folder)
        del iterator
    assert is_released(folder)


def test_a_dataset_whose_epoch_is_over_leaves_no_shard_open(folder: Path) -> None:
    for make in (reader.load, reader.iterate):
        dataset = make(folder, batch_size=4)
        assert list(dataset)
        assert opened(folder)
        del dataset
        assert is_released(folder)


@pytest.mark.thorough
def test_decoded_images_in_memory_are_released(folder: Path) -> None:
    for _ in range(TIMES):
        for crop in (None, (8, 8)):
            options: dict[str, Any] = {"cache": "memory", "center_crop": crop}
            list(reader.load(folder, batch_size=4, **options).as_numpy_iterator())
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, DecodedExamples)] == []


def by_variant(dataset: Any) -> Any:
    variant = tf.data.experimental.to_variant(dataset)
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def by_an_element(dataset: Any) -> Any:
    return tf.data.Dataset.from_tensors(dataset).flat_map(lambda one: one)


@tf.function  # type: ignore[untyped-decorator]
def by_a_function(dataset: Any) -> Any:
    return dataset.map(lambda *element: element)


def by_a_strategy(dataset: Any) -> Any:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    return strategy.experimental_distribute_dataset(dataset)


@pytest.mark.thorough
@pytest.mark.parametrize("way", [by_variant, by_an_element, by_a_function, by_a_strategy])
def test_datasets_that_tensorflow_derives_outlive_the_original(
    folder: Path, way: Callable[[Any], Any]
) -> None:
    iterator = iter(way(READERS["load"](folder)))
    gc.collect()
    assert sum(1 for _ in zip(iterator, range(3), strict=False)) == 3
    del iterator
    gc.collect()  # a strategy and a function hold datasets in reference cycles
    assert is_released(folder)


@pytest.mark.thorough
def test_a_dataset_made_in_a_graph_can_be_read(folder: Path) -> None:
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def made(_: Any) -> Any:
        return reader.load(folder, batch_size=4, shuffle=False)

    found = tf.data.Dataset.range(2).flat_map(made).map(lambda _, labels: labels)
    once = [labels for _, labels in reader.load(folder, batch_size=4, shuffle=False)]
    assert np.array_equal(np.concatenate(list(found)), np.concatenate([*once, *once]))


def test_a_function_called_after_its_pipeline_is_an_error() -> None:
    with python_calls.one_pipeline():
        held = python_calls._held(lambda: None)
    with pytest.raises(ReferenceError, match="keep a reference to it"):
        held()
