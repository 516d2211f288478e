"""Batches that are filled in one call are those of the graph of records, one way or the other."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.dataset import example
from shardprep.dataset.schema import IMAGE
from shardprep.dataset.tfrecord import frame, read_records
from shardprep.reader import ReadConfig
from shardprep.reader.tf import decode, pipeline
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.processes import run_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_TRAIN = 70
Sets = dict[str, "Path"]
MEMBERS = {**animals(NUM_TRAIN), "train/cat.900.jpg": jpeg(seed=900, quality=60)}


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    root = tmp_path_factory.mktemp("sets")
    source = write(root / "pets.zip", zip_bytes(MEMBERS))
    return {form: made(source, root / form, form) for form in ("jpeg", "raw")}


def made(source: Path, out: Path, form: str, **keys: Any) -> Path:
    keys = {"labels": "prefix", "shards": 3, "size": "16x12", **keys}
    return build(source, out, format=form, **keys).path


@pytest.fixture(name="copies")
def _copies(sets: Sets, tmp_path: Path) -> Sets:
    """Return copies of the datasets, to be damaged."""
    return {form: shutil.copytree(folder, tmp_path / form) for form, folder in sets.items()}


@pytest.fixture(autouse=True)
def _fills_whatever_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny images and any number of cores are served here as what is faster so would be."""
    monkeypatch.setattr(decode, "_PIXELS_A_CORE", 0)
    monkeypatch.setattr(decode, "_MOST_CORES", {"jpeg": 1024, "raw": 1024})


@pytest.fixture(name="as_records")
def _as_records(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return a function that loads with the graph of records, whatever is faster."""

    def load(*args: Any, **options: Any) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "threads_are_faster", lambda *_: False)
            return batches(*args, **options)

    return load


def batches(folder: Path, *args: Any, **options: Any) -> list[Any]:
    return held(load(folder, *args, **options))


def held(dataset: Any) -> list[Any]:
    """Return all batches, held as tensors until the last one is there."""
    return [tf.nest.map_structure(np.array, one) for one in list(dataset)]


def load(folder: Path, *args: Any, **options: Any) -> Any:
    return reader.load(folder, *args, **{"batch_size": 8, "seed": 3, **options})


def same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def flip(images: Any, *, seed: Any) -> Any:
    return tf.image.stateless_random_flip_left_right(images, seed)


@pytest.mark.parametrize(
    ("form", "options"),
    [  # each option with one of the forms, each form with each kind of order
        ("jpeg", {}),
        ("raw", {"batch_size": 1000}),
        ("jpeg", {"shuffle": 20}),
        ("raw", {"shuffle": 20, "repeat": 3, "batch_size": 7}),
        ("raw", {"read_config": ReadConfig(pad_batches=True)}),
        ("jpeg", {"batch_size": 7, "drop_remainder": True}),
        ("raw", {"shuffle": False, "split": "train[10%:75%]"}),
        ("jpeg", {"shuffle": False, "read_config": ReadConfig(num_shards=3, shard_index=1)}),
        ("jpeg", {
            "dtype": "float32", "augment": flip,
            "read_config": ReadConfig(num_parallel_calls_for_decode=5),
        }),
        ("jpeg", {
            "repeat": 2,
            "read_config": ReadConfig(interleave_block_length=4, interleave_cycle_length=2),
        }),
    ],
)  # fmt: skip
def test_filled_batches_are_those_of_the_graph_of_records(
    sets: Sets,
    as_records: Callable[..., list[Any]],
    form: str,
    options: dict[str, Any],
) -> None:
    """As many as they are said to be."""
    dataset = load(sets[form], **options)
    found = held(dataset)
    assert dataset.cardinality() == len(found)
    same(found, as_records(sets[form], **options))
    assert dataset.element_spec[0].shape[1:] == (12, 16, 3)


def test_what_a_cache_keeps_in_a_folder_is_filled_too(
    sets: Sets, as_records: Callable[..., list[Any]], tmp_path: Path
) -> None:
    same(batches(sets["jpeg"], cache=tmp_path), as_records(sets["jpeg"]))


def test_there_is_no_end_of_batches_that_repeat(sets: Sets) -> None:
    assert load(sets["jpeg"], repeat=True).cardinality() == tf.data.INFINITE_CARDINALITY


def test_an_epoch_goes_on_in_its_middle(sets: Sets) -> None:
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
def test_targets_are_those_of_the_graph_of_records(
    tmp_path: Path, as_records: Callable[..., list[Any]], target: str, column: str
) -> None:
    members = {f"train/{i}.jpg": jpeg(seed=i) for i in range(12)}
    lines = [f"train/{i}.jpg,{'big|wet' if i % 3 else 'small'},{i / 7}" for i in range(12)]
    members["train.csv"] = "\n".join(["id,tags,weight", *lines]).encode()
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    keys = {"labels": f"csv:train.csv:id:{column}", "target": target, "separator": "|"}
    folder = made(source, tmp_path / "out", "jpeg", **(keys if column else {"labels": "none"}))
    same(batches(folder), as_records(folder))


def altered(folder: Path, change: Callable[[bytes], bytes]) -> tuple[Path, int]:
    """Change the image of a record, as long as before, under checksums that are right."""
    path = sorted(folder.glob("*-train.tfrecord-*"))[1]
    with path.open("rb") as file:
        records = list(read_records(file, ""))
    values = example.decode(records[3].payload)
    (image,) = values[IMAGE]
    assert isinstance(image, bytes)
    values[IMAGE] = [change(image)]
    framed = frame(example.encode(values))
    data, at = path.read_bytes(), records[3].offset
    assert len(framed) == records[3].length
    path.write_bytes(data[:at] + framed + data[at + len(framed) :])
    return path, at


def small_png(data: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (16, 12), (9, 8, 7)).save(out, "PNG")
    return out.getvalue().ljust(len(data), b"\0")


def worn(data: bytes) -> bytes:
    """Return a JPEG whose last rows are zeros in the file: libjpeg warns of it."""
    return data[:-40] + bytes(38) + data[-2:]


@pytest.mark.parametrize("change", [small_png, worn])
def test_what_only_tensorflow_decodes_comes_out_as_it_decodes_it(
    copies: dict[str, Path], as_records: Callable[..., list[Any]], change: Callable[[bytes], bytes]
) -> None:
    altered(copies["jpeg"], change)
    same(batches(copies["jpeg"]), as_records(copies["jpeg"]))


@pytest.mark.parametrize("form", ["jpeg", "raw"])
def test_a_bad_record_is_named_by_shard_and_number(copies: dict[str, Path], form: str) -> None:
    path, at = altered(copies[form], lambda image: image)
    data = bytearray(path.read_bytes())
    data[at + 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(tf.errors.UnknownError, match=rf"{path}, record 3: offset {at:,}: data CRC"):
        batches(copies[form])


def test_an_image_that_nothing_decodes_is_named_by_shard_and_number(
    copies: dict[str, Path],
) -> None:
    path, _ = altered(copies["jpeg"], lambda image: image[:60] + bytes(len(image) - 60))
    with pytest.raises(tf.errors.OpError, match=rf"{path}, record 3: .*cannot be decoded"):
        batches(copies["jpeg"])


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({"batch_size": None}, {}),
        ({"as_supervised": False}, {}),
        ({}, {"on_error": "skip"}),
        ({}, {"image_size": (6, 8)}),
    ],
)
def test_what_cannot_be_filled_is_left_to_the_graph_of_records(
    sets: Sets,
    options: dict[str, Any],
    config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoders = []
    begin = decode.ThreadDecoder.__init__

    def noted(self: Any, *args: Any, **own: Any) -> None:
        begin(self, *args, **own)
        decoders.append(self)

    monkeypatch.setattr(decode.ThreadDecoder, "__init__", noted)
    load(sets["jpeg"])
    assert len(decoders) == 1
    load(sets["jpeg"], **options, read_config=ReadConfig(**config))
    assert len(decoders) == 1


def test_small_images_on_many_cores_are_left_to_the_graph_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "_PIXELS_A_CORE", 100)
    monkeypatch.setattr(decode, "usable_cores", lambda: 1)
    assert decode.threads_are_faster((12, 16), "jpeg")
    monkeypatch.setattr(decode, "usable_cores", lambda: 2)
    assert not decode.threads_are_faster((12, 16), "jpeg")


@pytest.mark.thorough
def test_replicas_share_them(sets: Sets) -> None:
    """In a process of its own: two devices cannot be made in this one."""
    found = run_program(
        """
        import sys, tensorflow as tf
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, two)
        from shardprep import reader
        from shardprep.reader.tf import decode
        decode._PIXELS_A_CORE, decode._MOST_CORES = 0, {"jpeg": 1024, "raw": 1024}
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        made, init = [], decode.ThreadDecoder.__init__
        decode.ThreadDecoder.__init__ = (
            lambda self, *args, **own: (made.append(1), init(self, *args, **own))[1]
        )
        for folder in sys.argv[1:]:
            found = [
                int(one.shape[0])
                for images, labels in reader.distribute(strategy, folder, batch_size=16)
                for one in strategy.experimental_local_results(images)
            ]
            print(len(found), set(found), len(made))
        """,
        sets["jpeg"],
        sets["raw"],
    )
    number = NUM_TRAIN // 16 * 2
    assert found == f"{number} {{8}} 1\n{number} {{8}} 2\n"
