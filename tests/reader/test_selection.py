"""Selections: records that match conditions on the item table, read instead of a split."""

import functools
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.dataset.manifest import load_manifest
from shardprep.errors import DatasetError
from shardprep.reader.selection.split_argument import is_training
from shardprep.storage import objects
from tests.reader.datasets import keys_of, pets, put, refused, written
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.examples import examples
from tests.support.object_store import Bucket

NUM_TRAIN, NUM_VALIDATION = 60, 20


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of cats and dogs, 40 to 46 pixels high, in several shards."""
    members = {**animals(NUM_TRAIN), **animals(NUM_VALIDATION, folder="validation/")}
    return pets(tmp_path_factory, members, size="8x6", shards=4)


@pytest.fixture(scope="module", name="rows")
def _rows(folder: Path) -> list[dict[str, Any]]:
    return written(folder)


CONDITIONS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
    "nothing": ({}, lambda _: True),
    "a class": ({"label": "dog"}, lambda row: row["label"] == 1),
    "a number of a class": ({"label": np.int64(0)}, lambda row: row["label"] == 0),
    "classes": ({"label": ["dog", "cat"]}, lambda _: True),
    "a value": ({"where": {"original_height": 43}}, lambda row: row["original_height"] == 43),
    "values of two columns": (
        {"where": {"original_height": range(42, 45), "original_format": "jpeg", "label": [1]}},
        lambda row: 42 <= row["original_height"] < 45 and row["label"] == 1,
    ),
    "null": ({"where": {"group": None}}, lambda _: True),
    "no value": ({"where": {"group": "a"}}, lambda _: False),
    "an expression": (
        {"where": (pc.field("original_height") > 41) & (pc.field("split") == "train")},
        lambda row: row["original_height"] > 41,
    ),
    "a whole key": ({"keys": ["train/cat.3.jpg"]}, lambda row: row["key"] == "train/cat.3.jpg"),
    "names and ids": (
        {"keys": ("cat.3.jpg", "dog.2", "validation/cat.1.jpg"), "label": "dog"},
        lambda row: row["key"] == "train/dog.2.jpg",
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_selection_has_the_matching_records(
    folder: Path, rows: list[dict[str, Any]], name: str
) -> None:
    given, fits = CONDITIONS[name]
    found = reader.select(folder, "train", **given)
    expected = [i for i, row in enumerate(rows) if row["split"] == "train" and fits(row)]
    assert [*found] == expected
    assert found.labels.tolist() == [rows[i]["label"] for i in expected]
    if expected:
        assert keys_of(folder, found) == [rows[i]["key"] for i in expected]


def test_a_file_of_keys_may_be_a_table_or_a_text(folder: Path, tmp_path: Path) -> None:
    """Keys of other splits are ignored."""
    keys = ["train/cat.1.jpg", "train/dog.4.jpg", "validation/dog.0.jpg"]
    why = '"' + "a long reason\n" * 20_000 + '"'
    for name, lines, encoding in (
        ("a.csv", ["key", *keys], "utf-8-sig"),
        ("b.csv", keys, "utf-16"),
        ("wide.csv", ["key,why", *(f"{key},{why}" for key in keys)], "utf-16-le"),
        ("c.txt", ["", *keys], "utf-8"),
    ):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding)
        found = reader.select(folder, "train", keys=tmp_path / name)
        assert sorted(keys_of(folder, found)) == keys[:2]
    assert keys_of(folder, reader.select(folder, "validation", keys=str(tmp_path / "c.txt")))
    (tmp_path / "open.csv").write_text("\n".join(["key", keys[0], f'"{keys[1]}', keys[2]]))
    with pytest.raises(DatasetError, match=r"open\.csv: a quote opens in line 3 "):
        reader.select(folder, "train", keys=tmp_path / "open.csv")


def test_a_selection_without_a_split_warns_that_it_is_of_train(folder: Path) -> None:
    said = "took split='train', not validation 20; give split='train' or 'train\\+validation'$"
    with pytest.warns(reader.Advice, match=f"^reader.select {said}") as caught:
        found = reader.select(folder, label="dog")
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reader.select(folder, "train", label="dog") == found


def test_a_selection_is_shuffled_by_default_like_its_split(folder: Path) -> None:
    for split, is_shuffled in (("train", True), ("validation", False)):
        found = reader.select(folder, split, label="cat")
        keys = keys_of(folder, found)
        batch = next(reader.Dataset(folder, found).batches(99, seed=5, as_supervised=False))
        assert (batch["image/filename"].tolist() != keys) is is_shuffled
        assert sorted(batch["image/filename"]) == sorted(keys)


def test_splits_named_val_are_for_validation() -> None:
    assert [*map(is_training, ("val", "val[:50%]+test", "val+train"))] == [False, False, True]


def test_a_plus_sign_in_a_condition_names_no_further_split(folder: Path) -> None:
    found = reader.select(folder, "validation", where='key != "C++"')
    batch = next(reader.Dataset(folder, found).batches(99, seed=5, as_supervised=False))
    assert batch["image/filename"].tolist() == keys_of(folder, found)


Numbers = st.sets(st.integers(0, NUM_TRAIN - 1)).map(sorted)


@examples(30)
@given(Numbers, Numbers)
def test_selections_combine_as_sets(folder: Path, one: list[int], two: list[int]) -> None:
    every = reader.select(folder, "train+validation")
    a, b = every[one], every[np.array(two, int)]
    for found, expected in (
        (a | b, {*one} | {*two}), (a & b, {*one} & {*two}), (a - b, {*one} - {*two}),
    ):  # fmt: skip
        assert [*found] == sorted(expected)
        assert found.labels.tolist() == [every.labels[i] for i in sorted(expected)]
        assert len(found) == len(expected)
        assert found == every[sorted(expected)]


def test_a_sample_is_uniform_and_decided_by_its_seed(folder: Path) -> None:
    every = reader.select(folder, "train")
    counts = np.zeros(NUM_TRAIN)
    for seed in range(200):
        drawn = every.sample(15, seed)
        assert len({*drawn} & {*every}) == 15
        counts[np.searchsorted(every.numbers, drawn.numbers)] += 1
    assert ((counts - 50) ** 2 / 50).sum() < 100  # chi-square of 59 degrees, p = 0.001
    assert every.sample(7, 3) == every.sample(7, 3) != every.sample(7, 4)
    assert [*every.sample(5, 0)] == [2, 13, 25, 35, 45]


def test_per_class_has_an_equal_number_of_each_class(folder: Path) -> None:
    every = reader.select(folder, "train")
    found = every.per_class(4, seed=2)
    assert np.bincount(found.labels).tolist() == [4, 4]
    assert {*found} <= {*every}
    cats, dogs = (reader.select(folder, "train", label=label) for label in ("cat", "dog"))
    few = cats[:3] | dogs
    assert np.bincount(few.per_class(10).labels).tolist() == [3, 10]


def test_a_saved_selection_is_read_from_a_copy_and_not_from_another_version(
    folder: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(NUM_TRAIN)))
    other = build(source, tmp_path / "out", size="8x6", labels="prefix", version="2.0.0").path
    found, there = reader.select(folder, "train"), reader.select(other, "train")
    line = refused(lambda: reader.Dataset(other, found))
    assert "pets 2.0.0" in line
    assert load_manifest(folder).sha256[:12] in line
    assert "different datasets" in refused(lambda: found | there)
    again = reader.Selection.load(found.save(tmp_path / "s.npz"))
    assert (again, again.name) == (found, found.name)
    assert "version" in refused(lambda: reader.load(other, again))
    shutil.copytree(folder, tmp_path / "copy")
    assert keys_of(tmp_path / "copy", again) == keys_of(folder, found)


def test_unknown_names_and_positions_are_errors_that_list_the_known_ones(
    folder: Path, tmp_path: Path
) -> None:
    every = reader.select(folder, "train")
    wrong: dict[str, dict[str, Any]] = {
        "no class 'bird'; use one of cat, dog": {"label": "bird"},
        "no class 2; use one of cat, dog": {"label": 2},
        "no column colour; put a text into quotes, or use one of the columns key, status": {
            "where": {"colour": 3}
        },
        "use the columns key, status": {"where": pc.field("label") > "x"},
        "where=(colour > 3): ": {"where": pc.field("colour") > 3},
        "where=label='cat'": {"where": {"label": "cat"}},
        "2 of 3 keys match no image (a.jpg); use keys": {"keys": ["a.jpg", "cat.1", "b"]},
        "nothing.csv: cannot be read": {"keys": "nothing.csv"},
        "keys=3": {"keys": 3},
        "where=label: label is not a comparison; a condition is such as": {"where": "label"},
        "where=3": {"where": 3},
        "no split 'trian'": {"split": "trian"},
    }
    for said, options in wrong.items():
        given = {"split": "train", **options}
        assert said in refused(functools.partial(reader.select, folder, **given))
    empty = refused(lambda: reader.load(folder, every - every))
    assert "has no record; select other records of train 60" in empty
    assert "out of bounds" in refused(lambda: every[[NUM_TRAIN]])
    assert "n=99, but the selection has 60 records" in refused(lambda: every.sample(99))
    assert "type list" in refused(lambda: every | cast("Any", [1]))
    (tmp_path / "x.npz").write_bytes(b"PK\3\4")
    assert "Selection.save" in refused(lambda: reader.Selection.load(tmp_path / "x.npz"))


def test_a_selection_of_a_dataset_in_object_storage_is_the_same(
    folder: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(bucket, folder)
    found = reader.select(url, "train", label="dog", where={"original_height": [41, 43]})
    assert found == reader.select(folder, "train", label="dog", where={"original_height": [41, 43]})
    assert keys_of(url, found) == keys_of(folder, found)

    # Scattered records are read by few requests, with the bytes between them.
    monkeypatch.setenv("SHARDPREP_CACHE_BYTES", "0")
    scattered = reader.select(url, "train")[::2]
    here, there = reader.Dataset(folder, scattered), reader.Dataset(url, scattered)
    read, asked = objects.read_range, list[Any]()

    def counted(*given: Any) -> memoryview:
        asked.append(given)
        return read(*given)

    monkeypatch.setattr(objects, "read_range", counted)
    positions = np.arange(len(scattered))
    payloads, expected = (  # as `load` reads
        [bytes(one) for one in dataset._examples.records.read(positions)]  # type: ignore[arg-type]
        for dataset in (there, here)
    )
    assert len(asked) <= len(load_manifest(folder).shards)
    assert payloads == expected


def test_advice_counts_the_records_of_a_selection(tmp_path: Path) -> None:
    members = animals(8) | {f"test/{i}.jpg": jpeg(seed=90 + i) for i in range(4)}
    source = write(tmp_path / "set.zip", zip_bytes(members))
    folder = build(source, tmp_path / "out", size=8, labels="prefix").path
    with pytest.warns(reader.Advice, match="^2 of 2 records of test have no label"):
        reader.load(folder, reader.select(folder, "test")[:2], batch_size=2, shuffle=True)
