"""Folds are disjoint and complete, with undivided groups and evenly distributed classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader.selection.folds import distribute
from tests.reader.datasets import keys_of, pets, refused, written
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.examples import examples

NUM_TRAIN, NUM_COPIES = 70, 5


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with ten groups, by the last digit of a number, and five equal files."""
    members = animals(NUM_TRAIN)
    members |= {f"train/dog.copy{i}.jpg": members[f"train/dog.{i}.jpg"] for i in range(NUM_COPIES)}
    members |= {f"train/cat.alone{i}x.jpg": jpeg(seed=900 + i) for i in range(40)}
    members |= {f"test/{i}.jpg": jpeg(seed=800 + i) for i in range(4)}
    return pets(
        tmp_path_factory,
        members,
        size="8x6",
        labels="regex:(?P<label>cat|dog)",
        shards=3,
        group=r"regex:\d?(\d)\.jpg$",
    )


@pytest.fixture(scope="module", name="rows")
def _rows(folder: Path) -> list[dict[str, Any]]:
    return written(folder)


@examples(30)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=8, max_size=120),
    st.integers(2, 7), st.integers(0, 99),
)  # fmt: skip
def test_groups_are_not_divided_and_sizes_differ_by_at_most_the_largest(
    records: list[tuple[int, int]], k: int, key: int
) -> None:
    classes, groups = np.array(records).T
    found = distribute(classes, groups, k, key)
    assert set(found) <= set(range(k))
    for group in set(groups.tolist()):
        assert len(set(found[groups == group].tolist())) == 1
    sizes = np.bincount(distribute(classes * 0, groups, k, key), minlength=k)
    assert np.ptp(sizes) <= np.bincount(groups).max()


@examples(30)
@given(st.lists(st.integers(0, 5), min_size=8, max_size=120), st.integers(2, 7), st.integers(0, 99))
def test_classes_and_sizes_of_folds_differ_by_at_most_one(
    labels: list[int], k: int, key: int
) -> None:
    classes = np.array(labels)
    found = distribute(classes, np.arange(len(classes)), k, key)
    assert np.ptp(np.bincount(found, minlength=k)) <= 1
    for one in set(labels):
        assert np.ptp(np.bincount(found[classes == one], minlength=k)) <= 1


@examples(20)
@given(st.integers(2, 6), st.lists(st.integers(2, 9), min_size=1, max_size=4), st.integers(0, 99))
def test_single_records_compensate_for_groups(k: int, sizes: list[int], key: int) -> None:
    grouped = np.repeat(np.arange(len(sizes)), sizes)
    singles = np.arange(2 * 9 * len(sizes) * k)
    classes = np.concatenate([np.arange(len(grouped)) % 2, singles % 2])
    found = distribute(classes, np.concatenate([grouped, len(sizes) + singles]), k, key)
    for one in (0, 1):
        assert np.ptp(np.bincount(found[classes == one], minlength=k)) <= 1


def test_folds_are_disjoint_and_complete_with_undivided_groups_and_copies(
    folder: Path, rows: list[dict[str, Any]]
) -> None:
    pairs = reader.folds(folder, 4, seed=3)
    every = reader.select(folder, "train")
    parts = [validation for _, validation in pairs]
    assert sorted(i for part in parts for i in part) == [*every]
    for train, validation in pairs:
        assert train == every - validation
        for name in ("group", "original_sha256"):
            sides = [{rows[i][name] for i in part} - {None} for part in (train, validation)]
            assert sides[0].isdisjoint(sides[1])
    assert {rows[i]["group"] for i in every} > {None}
    train, validation = pairs[0]
    assert train.name.startswith("train")
    assert not validation.name.startswith("train")
    assert pairs == reader.folds(folder, 4, seed=3) != reader.folds(folder, 4, seed=4)


def test_each_value_is_distributed_evenly_without_groups(folder: Path) -> None:
    for by in ("label", "original_height", "original_format"):
        for train, validation in reader.folds(folder, 5, by=by, group=False):
            assert len(validation) in (22, 23, 24)
            if by == "label":
                assert abs(np.bincount(validation.labels)[0] - 75 / 5) < 1
            assert not {*train} & {*validation}
    pairs = reader.folds(folder, 5, by=None, group=False)
    assert {len(validation) for _, validation in pairs} == {23}


@pytest.fixture(scope="module", name="parted")
def _parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with the splits train, validation and test, in this order."""
    root = tmp_path_factory.mktemp("parted")
    source = write(root / "pets.zip", zip_bytes(animals(60)))
    splits = "train=0.5,validation=0.3,test=0.2"
    return build(source, root / "out", size="8x6", shards=2, split=splits).path


_POSITIONS = st.integers(-30, 30).map(str) | st.integers(-100, 100).map("{}%".format) | st.just("")
_PARTS = st.builds(
    "{}[{}:{}]".format, st.sampled_from(["train", "validation", "test"]), _POSITIONS, _POSITIONS
)
_WHOLES = st.sampled_from(["validation+train", "test+validation+train", "train", "train+train"])
_TEXTS = _WHOLES | st.lists(_PARTS, max_size=3).map(lambda parts: "+".join([*parts, "train[5:]"]))


@st.composite
def _splits(draw: st.DrawFn, folder: Path) -> Any:
    """Return a split of any kind: a text, a part of it, or a selection."""
    text = draw(_TEXTS)
    kind = draw(st.sampled_from(["text", "even", "selection", "sample"]))
    if kind == "even":
        number = draw(st.integers(1, 3))
        return reader.even_splits(text, number)[draw(st.integers(0, number - 1))]
    if kind == "text":
        return text
    found = reader.select(folder, text)
    return found.sample(max(1, len(found) // 2)) if kind == "sample" else found


@examples(30)
@given(data=st.data())
def test_a_listed_group_is_not_divided_in_any_order_of_the_split(
    parted: Path, data: st.DataObject
) -> None:
    """The list has a value for each item of `Dataset`, in its order."""
    split = data.draw(_splits(parted))
    names = keys_of(parted, split)
    values = st.integers(0, 9) | st.none()
    groups = data.draw(st.lists(values, min_size=len(names), max_size=len(names)))
    every = sorted(set(names))
    k = data.draw(st.integers(2, 3))
    try:
        pairs = reader.folds(parted, k, split=split, by=None, group=groups)
    except DatasetError:  # too few groups
        reject()
    parts = []
    for both in pairs:
        sides = [keys_of(parted, one) for one in both if len(one)]
        assert sorted(name for side in sides for name in side) == every
        parts += [set(sides[-1])]
        of = [{g for n, g in zip(names, groups, strict=True) if n in side} for side in sides]
        assert len(of) == 1 or (of[0] & of[1]) <= {None}
    assert sorted(name for part in parts for name in part) == every


def test_impossible_folds_are_errors(folder: Path) -> None:
    def line(**options: Any) -> str:
        return refused(lambda: reader.folds(folder, **options))

    assert "a whole number from 2 on" in line(k=1)
    assert "k=999, but only 115 groups (115 records)" in line(k=999, group=False)
    assert "k=30, but only 1 group (115 records)" in line(k=30, group=[0] * 115)
    assert "no column 'patient'; use one of" in line(k=3, by="patient")
    assert "group has 2 values for 115 records" in line(k=3, group=[1, 2])
    assert "group='patient'" in line(k=3, group="patient")
    assert "is not a list of numbers or of texts" in line(k=3, group=[1, "a"] * 57 + [1])
    assert "is not a list of numbers or of texts" in line(k=3, group=[[1]] * 115)
    assert "no split 'valid'; use one of train" in line(k=3, split="valid")
