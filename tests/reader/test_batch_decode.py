"""Batches that threads fill are equal to batches that the graph decodes."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.reader import ReadConfig
from shardprep.reader.tf import decode, pipeline
from tests.reader.datasets import change_image, flip, pets
from tests.support.builders import animals, jpeg

NUM_TRAIN = 70
FORMS = ("jpeg", "png", "keep", "raw")
Sets = dict[str, "Path"]
MEMBERS = {**animals(NUM_TRAIN), "train/cat.900.jpg": jpeg(seed=900, quality=60)}


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return {
        form: pets(tmp_path_factory, MEMBERS, format=form, shards=3, size="16x12") for form in FORMS
    }


@pytest.fixture(name="copies")
def _copies(sets: Sets, tmp_path: Path) -> Sets:
    """Return copies of the datasets, to be damaged."""
    return {form: shutil.copytree(folder, tmp_path / form) for form, folder in sets.items()}


@pytest.fixture(autouse=True)
def _threads_are_always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads fill batches of tiny images, on any number of cores."""
    monkeypatch.setattr(decode, "_PIXELS_A_CORE", 0)
    monkeypatch.setattr(decode, "_MOST_CORES", dict.fromkeys(decode._MOST_CORES, 1024))


@pytest.fixture(name="as_records")
def _as_records(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return a function that loads batches that the graph decodes."""

    def load(folder: Path, **options: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "threads_are_faster", lambda *_: False)
            return batches(folder, **options)

    return load


def batches(folder: Path, **options: Any) -> list[Any]:
    return held(load(folder, **options))


def held(dataset: Any) -> list[Any]:
    """Return all batches. They are tensors until the last one is read."""
    return [tf.nest.map_structure(np.array, one) for one in list(dataset)]


def load(folder: Path, **options: Any) -> Any:
    return reader.load(folder, **{"batch_size": 8, "seed": 3, **options})


def same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def mirror(images: Any, *, seed: Any) -> Any:
    return tf.image.stateless_random_flip_left_right(images, seed)


@pytest.mark.parametrize(
    ("form", "options"),
    [  # each option with one of the forms, each form with each kind of order
        ("jpeg", {}),
        ("raw", {"batch_size": 1000}),
        ("png", {}),
        ("keep", {"repeat": 2}),
        ("raw", {"repeat": 3, "batch_size": 7}),
        ("raw", {"read_config": ReadConfig(pad_batches=True)}),
        ("jpeg", {"batch_size": 7, "drop_remainder": True}),
        ("raw", {"shuffle": False, "split": "train[10%:75%]"}),
        ("jpeg", {"shuffle": False, "read_config": ReadConfig(num_shards=3, shard_index=1)}),
        ("jpeg", {
            "dtype": "float32", "augment": mirror,
            "read_config": ReadConfig(num_parallel_calls_for_decode=5),
        }),
        ("jpeg", {
            "repeat": 2,
            "read_config": ReadConfig(interleave_block_length=4, interleave_cycle_length=2),
        }),
    ],
)  # fmt: skip
def test_threads_fill_the_batches_that_the_graph_decodes(
    sets: Sets,
    as_records: Callable[..., list[Any]],
    form: str,
    options: dict[str, Any],
) -> None:
    dataset = load(sets[form], **options)
    found = held(dataset)
    assert dataset.cardinality() == len(found)
    same(found, as_records(sets[form], **options))
    assert dataset.element_spec[0].shape[1:] == (12, 16, 3)


def test_threads_read_a_cache_in_a_folder_too(
    sets: Sets, as_records: Callable[..., list[Any]], tmp_path: Path
) -> None:
    same(batches(sets["jpeg"], cache=tmp_path), as_records(sets["jpeg"]))
    assert load(sets["jpeg"], repeat=True).cardinality() == tf.data.INFINITE_CARDINALITY


def test_an_epoch_resumes_in_its_middle(sets: Sets) -> None:
    every = reader.iterate(sets["jpeg"], batch_size=8, seed=1)
    list(every)
    iterator = iter(every)
    for _ in range(5):
        next(iterator)
    state = every.state_dict()
    again = reader.iterate(sets["jpeg"], batch_size=8)
    again.load_state_dict(state)
    same(
        [[a.numpy() for a in one] for one in again], [[a.numpy() for a in one] for one in iterator]
    )


@pytest.mark.parametrize(
    ("target", "column"), [("multilabel", "tags"), ("regression", "weight"), ("none", "")]
)
def test_targets_are_those_that_the_graph_decodes(
    tmp_path_factory: pytest.TempPathFactory,
    as_records: Callable[..., list[Any]],
    target: str,
    column: str,
) -> None:
    members = {f"train/{i}.jpg": jpeg(seed=i) for i in range(12)}
    lines = [f"train/{i}.jpg,{'big|wet' if i % 3 else 'small'},{i / 7}" for i in range(12)]
    members["train.csv"] = "\n".join(["id,tags,weight", *lines]).encode()
    keys = {"labels": f"csv:train.csv:id:{column}", "target": target, "separator": "|"}
    keys = keys if column else {"labels": "none"}
    folder = pets(tmp_path_factory, members, shards=3, size="16x12", **keys)
    same(batches(folder), as_records(folder))


def small_png(data: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (16, 12), (9, 8, 7)).save(out, "PNG")
    return out.getvalue().ljust(len(data), b"\0")


def worn(data: bytes) -> bytes:
    """Return a JPEG that ends in zeros: libjpeg gives a warning."""
    return data[:-40] + bytes(38) + data[-2:]


@pytest.mark.parametrize("change", [small_png, worn])
def test_images_that_only_tensorflow_decodes_have_its_pixels(
    copies: dict[str, Path], as_records: Callable[..., list[Any]], change: Callable[[bytes], bytes]
) -> None:
    change_image(copies["jpeg"], 30, change)
    same(batches(copies["jpeg"]), as_records(copies["jpeg"]))


@pytest.mark.parametrize("form", ["jpeg", "png", "raw"])
def test_a_bad_record_is_named_by_shard_and_number(copies: dict[str, Path], form: str) -> None:
    path, at = change_image(copies[form], 30, lambda image: image[:60] + bytes(len(image) - 60))
    if form != "raw":
        with pytest.raises(tf.errors.OpError, match=rf"{path}, record \d+: .*cannot be decoded"):
            batches(copies[form])
    flip(path, at + 60)
    with pytest.raises(
        tf.errors.UnknownError, match=rf"{path}, record \d+: offset {at:,}: data CRC"
    ):
        batches(copies[form])


def test_the_graph_decodes_only_whole_images_that_it_decodes_faster(
    sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "BatchDecoder", lambda *_, **__: pytest.fail("threads decode"))
    load(sets["jpeg"], batch_size=None)
    monkeypatch.setattr(pipeline, "threads_are_faster", lambda *_: False)
    load(sets["jpeg"])
    load(sets["jpeg"], as_supervised=False)
    for more in (
        {"random_resized_crop": 8},
        {"read_config": ReadConfig(on_error="skip")},
        {"read_config": ReadConfig(image_size=(6, 8))},
        {"read_config": ReadConfig(num_workers=1)},
        {"read_config": ReadConfig(image_size=(6, 8)), "batch_size": None},
    ):
        with pytest.raises(pytest.fail.Exception):
            load(sets["jpeg"], **more)


def test_the_graph_decodes_small_images_on_many_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "_PIXELS_A_CORE", 100)
    monkeypatch.setattr(decode, "usable_cores", lambda: 1)
    assert decode.threads_are_faster((12, 16), "jpeg")
    monkeypatch.setattr(decode, "usable_cores", lambda: 2)
    assert not decode.threads_are_faster((12, 16), "jpeg")
