"""Selections: what fits conditions on the item table, read in the place of a split."""

from __future__ import annotations

import re
import shutil
import warnings
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.dataset.manifest import load_manifest
from shardprep.errors import DatasetError
from shardprep.storage import objects
from tests.reader.datasets import keys_of, pets, put, refused, written
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.object_store import Bucket

NUM_TRAIN, NUM_VALIDATION = 60, 20


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a set of cats and dogs, 40 to 46 pixels high, in several shards."""
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
def test_a_selection_has_the_records_that_fit(
    folder: Path, rows: list[dict[str, Any]], name: str
) -> None:
    given, fits = CONDITIONS[name]
    found = reader.select(folder, "train", **given)
    expected = [i for i, row in enumerate(rows) if row["split"] == "train" and fits(row)]
    assert [*found] == expected
    assert found.labels.tolist() == [rows[i]["label"] for i in expected]
    if expected:
        assert keys_of(folder, found) == [rows[i]["key"] for i in expected]


def test_a_file_of_keys_is_what_report_lists_and_exclude_list_takes(
    folder: Path, tmp_path: Path
) -> None:
    """Keys of other splits on it are passed over."""
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


def test_a_selection_without_a_split_says_which_one_it_took(folder: Path) -> None:
    said = (
        "reader.select took split='train', not validation 20; "
        "give split='train' or 'train+validation'"
    )
    with pytest.warns(reader.Advice, match=f"^{re.escape(said)}$") as caught:
        found = reader.select(folder, label="dog")
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reader.select(folder, "train", label="dog") == found


def test_a_selection_is_shuffled_by_default_as_its_split_is(folder: Path) -> None:
    for split, is_shuffled in (("train", True), ("validation", False)):
        found = reader.select(folder, split, label="cat")
        keys = keys_of(folder, found)
        batch = next(reader.Dataset(folder, found).batches(99, seed=5, as_supervised=False))
        assert (batch["image/filename"].tolist() != keys) is is_shuffled
        assert sorted(batch["image/filename"]) == sorted(keys)


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


def test_a_sample_is_drawn_evenly_and_again_by_its_seed(folder: Path) -> None:
    every = reader.select(folder, "train")
    counts = np.zeros(NUM_TRAIN)
    for seed in range(400):
        drawn = every.sample(15, seed)
        assert len({*drawn} & {*every}) == 15
        counts[np.searchsorted(every.numbers, drawn.numbers)] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 100  # chi-square of 59 degrees, p = 0.001
    assert every.sample(7, 3) == every.sample(7, 3) != every.sample(7, 4)
    assert [*every.sample(5, 0)] == [2, 13, 25, 35, 45]


def test_per_class_has_as_many_of_each_class(folder: Path) -> None:
    every = reader.select(folder, "train")
    found = every.per_class(4, seed=2)
    assert np.bincount(found.labels).tolist() == [4, 4]
    assert {*found} <= {*every}
    cats, dogs = (reader.select(folder, "train", label=label) for label in ("cat", "dog"))
    few = cats[:3] | dogs
    assert np.bincount(few.per_class(10).labels).tolist() == [3, 10]


def test_a_saved_selection_is_the_same_elsewhere(folder: Path, tmp_path: Path) -> None:
    found = reader.select(folder, "train", where={"original_height": 42})
    file = found.save(tmp_path / "small.npz")
    again = reader.Selection.load(file)
    assert (again, again.name) == (found, found.name)
    shutil.copytree(folder, tmp_path / "copy")
    assert keys_of(tmp_path / "copy", again) == keys_of(folder, found)


def test_a_selection_of_another_version_is_refused(folder: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(NUM_TRAIN)))
    other = build(source, tmp_path / "out", size="8x6", labels="prefix", version="2.0.0").path
    found, there = reader.select(folder, "train"), reader.select(other, "train")
    line = refused(lambda: reader.Dataset(other, found))
    assert "pets 2.0.0" in line
    assert load_manifest(folder).sha256[:12] in line
    assert "different datasets" in refused(lambda: found | there)
    found.save(tmp_path / "s.npz")
    again = reader.Selection.load(tmp_path / "s.npz")
    assert "version" in refused(lambda: reader.load(other, again))


def test_what_does_not_exist_is_one_line_that_names_what_there_is(
    folder: Path, tmp_path: Path
) -> None:
    every = reader.select(folder, "train")

    def select(**options: Any) -> str:
        return refused(lambda: reader.select(folder, **{"split": "train", **options}))

    assert "no class 'bird'; it has cat, dog" in select(label="bird")
    assert "no class 2; it has cat, dog" in select(label=2)
    assert "no column 'colour'; it has key, status" in select(where={"colour": 3})
    assert "its items have key, status" in select(where=pc.field("label") > "x")
    assert "its items have key, status" in select(where=pc.field("colour") > 3)
    assert "where=label='cat'" in select(where={"label": "cat"})
    unknown = select(keys=["a.jpg", "cat.1", "b"])
    assert "2 of 3 keys are of no image: a.jpg; a key is train/" in unknown
    assert "nothing.csv: cannot be read" in select(keys="nothing.csv")
    assert "keys=3" in select(keys=3)
    assert "where='label'" in select(where="label")
    assert "no split 'trian'" in select(split="trian")
    empty = refused(lambda: reader.load(folder, every - every))
    assert "has no record; the dataset has train 60" in empty
    assert "out of bounds" in refused(lambda: every[[NUM_TRAIN]])
    assert "n=99 of 60 records" in refused(lambda: every.sample(99))
    assert "a list" in refused(lambda: every | cast("Any", [1]))
    (tmp_path / "x.npz").write_bytes(b"PK\3\4")
    assert "Selection.save" in refused(lambda: reader.Selection.load(tmp_path / "x.npz"))


def test_a_selection_is_made_and_read_in_object_storage(folder: Path, bucket: Bucket) -> None:
    url = put(bucket, folder)
    found = reader.select(url, "train", label="dog", where={"original_height": [41, 43]})
    assert found == reader.select(folder, "train", label="dog", where={"original_height": [41, 43]})
    assert keys_of(url, found) == keys_of(folder, found)
    assert keys_of(folder, found)


def test_records_apart_in_object_storage_come_in_few_requests(
    folder: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes between two wanted records are read along with them."""
    url = put(bucket, folder)
    monkeypatch.setenv("SHARDPREP_CACHE_BYTES", "0")
    scattered = reader.select(url, "train")[::2]
    here, there = reader.Dataset(folder, scattered), reader.Dataset(url, scattered)
    read, asked = objects.read_range, list[Any]()

    def counted(*given: Any) -> memoryview:
        asked.append(given)
        return read(*given)

    monkeypatch.setattr(objects, "read_range", counted)
    positions = np.arange(len(scattered))
    found, expected = (  # as `load` reads
        [bytes(one) for one in dataset._examples.records.read(positions)]  # type: ignore[arg-type]
        for dataset in (there, here)
    )
    assert len(asked) <= len(load_manifest(folder).shards)
    assert found == expected


def test_advice_counts_the_records_of_a_selection(tmp_path: Path) -> None:
    members = animals(8) | {f"test/{i}.jpg": jpeg(seed=90 + i) for i in range(4)}
    source = write(tmp_path / "set.zip", zip_bytes(members))
    folder = build(source, tmp_path / "out", size=8, labels="prefix").path
    with pytest.warns(reader.Advice, match="^2 of 2 records of test have no label"):
        reader.load(folder, reader.select(folder, "test")[:2], batch_size=2)
