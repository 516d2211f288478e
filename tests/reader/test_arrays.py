"""Items of `reader.Dataset`, against TensorFlow, Pillow, `reader.load` and Python's lists."""

import copy
import errno
import io
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep import reader
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.records import shards
from shardprep.storage import regular_file
from tests.reader.datasets import (
    FORMS,
    HEIGHT,
    NUM_TEST,
    NUM_TRAIN,
    WIDTH,
    change_record,
    flip,
    of_form,
    pets,
    refused,
    stored,
    written,
)
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.processes import Program

PLAIN = [form for form in FORMS if "target" not in FORMS[form]]
Set = dict[str, "Path"]


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Set:
    return {form: of_form(tmp_path_factory, form) for form in PLAIN}


def place(folder: Path, key: str) -> dict[str, Any]:
    return next(row for row in written(folder) if row["key"] == key)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and np.array_equal(one, other)


# Content of items


@pytest.mark.parametrize("form", PLAIN)
def test_an_item_has_the_values_that_load_yields(sets: Set, form: str) -> None:
    dataset = reader.Dataset(sets[form], as_supervised=False)
    expected = list(reader.load(sets[form], shuffle=False, as_supervised=False).as_numpy_iterator())
    assert len(dataset) == len(expected) == NUM_TRAIN
    for item, features in zip(dataset, expected, strict=True):
        assert set(item) == set(features)
        for name, value in features.items():
            assert np.array_equal(item[name], value.decode() if type(value) is bytes else value)
        assert (item["image"].dtype, item["image"].flags.writeable) == (np.uint8, True)
        assert isinstance(item["image/filename"], str)
        assert type(item.get("label", 0)) is int


@pytest.mark.parametrize("form", ["jpeg", "png", "keep"])
def test_undecoded_images_are_the_bytes_of_a_file(sets: Set, form: str) -> None:
    """Their pixels are equal to those that Pillow and TensorFlow decode."""
    tf = pytest.importorskip("tensorflow")
    decoded, undecoded = (reader.Dataset(sets[form], decode=decode) for decode in (True, False))
    for (data, label), (pixels, same) in zip(undecoded, decoded, strict=True):
        assert isinstance(data, bytes)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), pixels)
        assert label == same
        if form == "jpeg":
            decoded_by_tf = tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE").numpy()
            assert np.array_equal(decoded_by_tf, pixels)


def test_supervised_items_are_pairs_or_images(sets: Set) -> None:
    dataset = reader.Dataset(sets["png"])
    for key, (image, label) in zip(stored(sets["png"]), dataset, strict=True):
        assert image.shape == (HEIGHT, WIDTH, 3)
        assert f"train/{dataset.class_names[label]}." in key
    assert [label for _, label in reader.Dataset(sets["png"], "test")] == [-1] * NUM_TEST
    assert reader.Dataset(sets["unlabelled"])[0].shape == (HEIGHT, WIDTH, 3)


def test_the_result_of_transform_replaces_the_image(sets: Set) -> None:
    options: dict[str, Any] = {"transform": lambda image: image // 2}
    halved = reader.Dataset(sets["png"])[3][0] // 2
    assert np.array_equal(reader.Dataset(sets["png"], **options)[3][0], halved)
    item = reader.Dataset(sets["png"], as_supervised=False, **options)[3]
    assert np.array_equal(item["image"], halved)


ROWS = {
    "train/1.jpg": ("big|wet", 1.25, "a ü"),
    "train/2.jpg": ("big", 2.5, "b"),
    "train/3.jpg": ("wet", -1, "c"),
}


@pytest.fixture(scope="module", name="tables")
def _tables(tmp_path_factory: pytest.TempPathFactory) -> Set:
    """Return a dataset of each kind of target; test images have no target."""
    lines = [f"{key},{tags},{weight},{text}" for key, (tags, weight, text) in ROWS.items()]
    members = {key: jpeg(seed=i) for i, key in enumerate([*ROWS, "test/1.jpg"])}
    members["train.csv"] = "\n".join(["id,tags,weight,caption", *lines]).encode()
    kinds = {"multilabel": "tags", "regression": "weight", "text": "caption"}
    return {
        kind: pets(
            tmp_path_factory, members, labels=f"csv:train.csv:id:{column}", target=kind,
            size="16x12", columns="weight,caption", separator="|",
        )
        for kind, column in kinds.items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "nothing"),
    [("multilabel", np.zeros(2, np.float32)), ("regression", np.float32("nan")), ("text", "")],
)
def test_targets_and_columns_have_the_values_of_the_table(
    tables: Set, kind: str, nothing: Any
) -> None:
    dataset = reader.Dataset(tables[kind], as_supervised=False)
    assert len(dataset) == 3
    for item in dataset:
        tags, weight, caption = ROWS[item["image/filename"]]
        several = np.array([name in tags.split("|") for name in dataset.schema.labels], np.float32)
        wanted = {"multilabel": several, "regression": np.float32(weight), "text": caption}[kind]
        assert equal(item[{"multilabel": "labels", "regression": "target"}.get(kind, kind)], wanted)
        assert (item["weight"], item["caption"]) == (weight, caption)
    _, target = reader.Dataset(tables[kind], "test")[0]
    np.testing.assert_array_equal(target, nothing)
    loaded = reader.load(tables[kind], "test")
    ((_, alone),) = loaded.as_numpy_iterator()
    np.testing.assert_array_equal(target, alone.decode() if kind == "text" else alone)
    spec = loaded.element_spec[1]
    assert (spec.dtype.name, spec.shape.as_list()) == {
        "multilabel": ("float32", [2]), "regression": ("float32", []), "text": ("string", []),
    }[kind]  # fmt: skip


# Selection of items


@given(
    start=st.none() | st.integers(-40, 40),
    stop=st.none() | st.integers(-40, 40),
    step=st.none() | st.integers(-5, 5).filter(bool),
    at=st.integers(-40, 40),
)
def test_numbers_and_slices_work_as_in_a_list(
    sets: Set, start: int | None, stop: int | None, step: int | None, at: int
) -> None:
    dataset = reader.Dataset(sets["raw"], as_supervised=False)[start:stop:step]
    expected = stored(sets["raw"])[start:stop:step]
    assert len(dataset) == len(expected)
    if -len(expected) <= at < len(expected):
        assert dataset[at]["image/filename"] == expected[at]
        assert dataset[at:][0]["image/filename"] == expected[at]
    else:
        with pytest.raises(IndexError, match=f"item {at} is out of range"):
            dataset[at]


@pytest.mark.parametrize("form", PLAIN)
def test_getitems_returns_items_in_the_requested_order(sets: Set, form: str) -> None:
    dataset = reader.Dataset(sets[form], as_supervised=False)
    wanted = [7, 0, -1, 7, 30]
    images = [item["image"] for item in dataset.__getitems__(wanted)]
    assert all(image.flags.writeable for image in images)
    assert (images[0].base is images[1].base is not None) or not dataset.schema.image_size
    images[0][:] = 0
    assert equal(images[3], dataset[7]["image"]), "no image is written over another"
    assert equal(dataset.__getitems__(wanted), [dataset[number] for number in wanted])
    assert equal(dataset.__getitems__(list(np.array(wanted))), [dataset[one] for one in wanted])
    with pytest.raises(TypeError):
        dataset["train"]  # type: ignore[call-overload]


# Copies, processes, threads


def first(dataset: Any) -> tuple[int, str, int]:
    return len(dataset), dataset[0]["image/filename"], int(dataset[0]["image"].sum())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_copies_and_other_processes_read_the_same(sets: Set) -> None:
    dataset = reader.Dataset(sets["jpeg"], as_supervised=False)[3:9]
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert repr(other) == repr(dataset)
        assert equal(list(other), list(dataset))
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(first, (dataset,)) == first(dataset)


def test_many_threads_read_the_same(sets: Set) -> None:
    dataset = reader.Dataset(sets["jpeg"], as_supervised=False)
    expected = list(dataset)
    fresh = reader.Dataset(sets["jpeg"], as_supervised=False)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert equal(list(pool.map(fresh.__getitem__, range(NUM_TRAIN))), expected)


def test_repr_depends_on_the_records_and_not_on_the_path(sets: Set, tmp_path: Path) -> None:
    """Grain compares it before it resumes from a checkpoint."""
    whole = reader.Dataset(sets["jpeg"], as_supervised=False)
    moved = shutil.copytree(sets["jpeg"], tmp_path / "moved" / "pets" / "1.0.0")
    assert repr(whole) == repr(reader.Dataset(moved, as_supervised=False))
    test = reader.Dataset(sets["jpeg"], "test", as_supervised=False)
    others = [whole[1:], whole[:-1], whole[::-1], test]
    assert len({repr(one) for one in [whole, *others]}) == 5


# Damage


@pytest.mark.parametrize("part", ["length", "length CRC", "payload", "data CRC"])
def test_a_damaged_record_is_named_and_the_others_are_read(copied: Path, part: str) -> None:
    key = stored(copied)[4]
    row = place(copied, key)
    shift = {"length": 0, "length CRC": 9, "payload": 200, "data CRC": row["length"] - 1}[part]
    path = copied / row["shard"]
    flip(path, row["offset"] + shift)
    dataset = reader.Dataset(copied, as_supervised=False)
    with pytest.raises(RecordError) as error:
        dataset[4]
    said = str(error.value)
    assert f"{row['shard']}, record {row['record']}: offset {row['offset']:,}: " in said
    assert "CRC" in said
    assert "shardprep verify" in said
    assert error.value.offset == row["offset"]
    keys = [dataset[number]["image/filename"] for number in range(NUM_TRAIN) if number != 4]
    assert keys == [one for one in stored(copied) if one != key]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (b"\n", "is not a serialized tf.train.Example"),
        (b"\xff\xd8\xff", "the image cannot be decoded"),
        (b"\x12\x08\x1a\x06\n", "feature 'image/height' holds 0 values"),
    ],
    ids=["no example", "no image", "no value"],
)
def test_a_malformed_record_is_named(copied: Path, part: bytes, said: str) -> None:
    """Its checksums are right."""

    def spoiled(payload: bytes) -> bytes:
        if not said.startswith("feature"):
            return payload.replace(part, bytes(len(part)), 1)
        start = payload.index(b"\n\x0cimage/height\x12") + 16
        return payload[:start] + b"\x22" + payload[start + 1 :]  # an unknown kind of list

    shard, _ = change_record(copied, 0, spoiled)
    with pytest.raises(RecordError) as error:
        reader.Dataset(copied, as_supervised=False)[0]
    assert f"{shard.name}, record 0: offset 0: " in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_shard_that_is_truncated_later_is_an_error(copied: Path) -> None:
    dataset = reader.Dataset(copied)
    path = min(copied.glob("*-train.tfrecord*"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match="has 100 bytes"):
        dataset[0]
    path.write_bytes(b"")
    with pytest.raises(DatasetError, match="has 0 bytes"):
        dataset[0]


TRUNCATE = """
import os, sys
from pathlib import Path
from shardprep import reader
folder = Path(sys.argv[1])
batches = iter({batches})
next(batches)
for shard in folder.glob("*.tfrecord-*"):
    os.truncate(shard, 0)
try:
    for _ in batches:
        pass
except Exception as error:
    print(error)
"""
BY_THREADS = """
from shardprep.reader.tf import decode
decode._PIXELS_A_CORE, decode._MOST_CORES = 0, {'jpeg': 99, 'raw': 99}
"""
LOAD = "reader.load(folder, batch_size=8, shuffle=False, repeat=True)"
ARRAYS = "reader.Dataset(folder).batches(8, shuffle=True, epochs=None)"


@pytest.mark.parametrize(("form", "batches"), [("jpeg", LOAD), ("raw", LOAD), ("jpeg", ARRAYS)])
def test_a_shard_truncated_while_it_is_read_is_an_error_and_not_a_sigbus(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, form: str, batches: str
) -> None:
    whole = pets(tmp_path_factory, animals(60), shards=1, size="64x48", format=form)
    folder = shutil.copytree(whole, tmp_path / "pets")
    code = (BY_THREADS if batches == LOAD else "") + TRUNCATE.replace("{batches}", batches)
    done = Program(code, folder).wait()
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "its shard was truncated while it was read: 0 of " in done.stdout
    assert f"{folder}/" in done.stdout


def test_an_error_of_the_disk_names_the_shard(sets: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shards, "read_at", fail)
    with pytest.raises(DatasetError, match=r"tfrecord-0.*cannot be read \(Input/output error\)"):
        reader.Dataset(sets["raw"])[0]


def shard_of(copied: Path) -> Path:
    return sorted(copied.glob("*-train.tfrecord*"))[1]


def index_of(copied: Path) -> Path:
    return copied / "index" / f"{shard_of(copied).name}.idx"


def change_index(change: Callable[[list[str]], list[str]]) -> Callable[[Path], object]:
    """Return a function that changes the lines of the index of `shard_of`."""

    def changed(copied: Path) -> None:
        lines = index_of(copied).read_text().splitlines(keepends=True)
        index_of(copied).write_text("".join(change(lines)))

    return changed


def shifted(lines: list[str]) -> list[str]:
    rows = [line.split() for line in lines]
    return [f"{int(offset) + 1} {length}\n" for offset, length in rows]


def cut_between_two_records(copied: Path) -> None:
    """Cut the shard where its checksums find nothing."""
    os.truncate(shard_of(copied), int(index_of(copied).read_text().splitlines()[-1].split()[0]))
    with shard_of(copied).open("rb") as file:
        assert list(read_records(file, "shard"))


def lengthen(copied: Path) -> None:
    shard_of(copied).write_bytes(shard_of(copied).read_bytes() + b"\0")


SHARD, INDEX = "-train.tfrecord-00001-of-00003", "-00001-of-00003.idx"


@pytest.mark.parametrize(
    ("damage", "where", "what"),
    [
        (lambda copied: (copied / "manifest.json").unlink(), "1.0.0", "shardprep build"),
        (lambda copied: os.truncate(copied / "manifest.json", 200), "manifest.json", "be read"),
        (lambda copied: (copied / "schema.json").unlink(), "schema.json", ""),
        (lambda copied: shard_of(copied).unlink(), SHARD, "the manifest says"),
        (cut_between_two_records, SHARD, "the manifest says"),
        (lengthen, SHARD, "the manifest says"),
        (lambda copied: index_of(copied).unlink(), INDEX, "is missing; copy the dataset again"),
        (change_index(lambda _: ["offset length\n"]), INDEX, ""),
        (change_index(shifted), INDEX, "is damaged: its records have gaps or overlap"),
        (change_index(lambda lines: lines[:-1]), INDEX, "the manifest says {}; copy the"),
        (change_index(lambda lines: [*lines, lines[-1]]), INDEX, ""),
        (change_index(lambda lines: [*lines, "7\n"]), INDEX, "is damaged: its records"),
    ],
)
def test_a_folder_that_contradicts_its_manifest_is_refused(
    copied: Path, damage: Callable[[Path], object], where: str, what: str
) -> None:
    """By both readers. Other splits, whose shards are whole, can be read."""
    number = len(index_of(copied).read_text().splitlines())
    damage(copied)
    for read in (reader.Dataset, reader.load):
        said = refused(lambda: read(copied))  # noqa: B023 - called at once
        assert where.replace("1.0.0", copied.name) in said
        assert what.format(number) in said
    if where == SHARD:
        assert len(reader.Dataset(copied, "test")) == NUM_TEST


def python(code: str, *arguments: Path) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.thorough
def test_more_shards_than_a_process_may_open_are_read(tmp_path: Path) -> None:
    """Only some shards are open at a time."""
    source = write(tmp_path / "pets.zip", zip_bytes(animals(90)))
    folder = build(source, tmp_path / "out", size="8x8", shards=60, labels="prefix").path
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "from shardprep import reader; ds = reader.Dataset(sys.argv[1], as_supervised=False)\n"
        "print(sum(item['image'].shape[0] for _ in range(2) for item in ds))"
    )
    assert python(code, folder).strip() == str(2 * 8 * len(reader.Dataset(folder)))


# Imports


def test_tensorflow_is_not_imported(sets: Set) -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from shardprep import reader\n"
        "for path in sys.argv[1:]:\n"
        "    ds = reader.Dataset(path)\n"
        "    num_read = sum(len(images) for images, labels in ds.batches(7, shuffle=True))\n"
        "    print(len(ds), ds[0][0].shape, num_read)\n"
        "print(*(set(sys.modules) & {'google.protobuf', 'keras', 'torch', 'grain', 'jax'}))"
    )
    found = python(code, *(sets[form] for form in ("jpeg", "png", "raw", "keep, one size")))
    assert found == f"{NUM_TRAIN} ({HEIGHT}, {WIDTH}, 3) {NUM_TRAIN}\n" * 4 + "\n"


def test_an_unknown_name_of_the_reader_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'shardprep\.reader' has no attribute 'Data'"):
        reader.Data  # noqa: B018


def test_shards_are_closed_after_modules_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """At exit, Python clears the names of modules before it deletes all objects."""
    number = os.open(os.devnull, os.O_RDONLY)
    file: Any = regular_file.Descriptor(number)
    monkeypatch.setattr(regular_file, "os", None)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
