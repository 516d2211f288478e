"""`Dataset.loader` in the loops that PyTorch users write, against `Dataset.batches`."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.errors import DatasetError
from tests.reader.datasets import batch_keys, saved

torch = pytest.importorskip("torch")
OPTIONS: dict[str, Any] = {"shuffle": True, "seed": 5, "as_supervised": False}


@pytest.fixture(name="dataset")
def _dataset(shapes: Path) -> reader.Dataset:
    return reader.Dataset(shapes / "tfrecords" / "shapes", as_supervised=False)


def keys(loader: Any) -> list[list[str]]:
    return [batch["image/filename"] for batch in loader]


def test_each_loop_is_an_epoch_of_the_same_batches_as_those_of_batches(
    dataset: reader.Dataset,
) -> None:
    loader = dataset.loader(64, **OPTIONS)
    expected = batch_keys(dataset.batches(64, epochs=2, **OPTIONS))
    assert len(loader) == len(expected) // 2
    assert keys(loader) + keys(loader) == expected
    loader.set_epoch(1)
    assert keys(loader) == expected[len(loader) :]


def test_images_have_their_channels_first_without_a_copy(shapes: Path) -> None:
    loader = reader.Dataset(shapes / "tfrecords" / "shapes").loader(8, seed=1)
    images, labels = next(iter(loader))
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert images.numpy().base is not None
    assert images.is_contiguous(memory_format=torch.channels_last)
    expected, _ = next(reader.Dataset(shapes / "tfrecords" / "shapes").batches(8, seed=1))
    np.testing.assert_array_equal(images.numpy(), expected.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("batch", [0, 3, 7])
def test_a_state_saved_at_any_batch_continues_the_epoch(
    dataset: reader.Dataset, batch: int
) -> None:
    """On another number of processes, too."""
    loader = dataset.loader(64, **OPTIONS)
    whole = keys(dataset.loader(64, **OPTIONS))
    iterator = iter(loader)
    for _ in range(batch):
        next(iterator)
    state = saved(loader)
    assert len(json.dumps(state)) <= 200
    hosts = []
    for index in range(2):
        host = dataset.loader(32, num_shards=2, shard_index=index, **OPTIONS)
        host.load_state_dict(state)
        host.set_epoch(0)  # as a training loop does before each epoch
        hosts.append(keys(host))
    together = [first + second for first, second in zip(*hosts, strict=True)]
    assert together == whole[batch:]


def test_rank_and_size_of_the_environment_count(
    dataset: reader.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "RANK", "1")
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    expected = batch_keys(dataset.batches(8, num_shards=2, shard_index=1, **OPTIONS))
    assert keys(dataset.loader(8, **OPTIONS)) == expected


def test_wrong_arguments_are_one_line(dataset: reader.Dataset) -> None:
    with pytest.raises(DatasetError, match="another order of records"):
        dataset.loader(8).load_state_dict({"seed": 1, "epoch": 0, "batch": 1, "of": "a 8 False"})
