"""Folds, draws and samples by the classes of objects: an image counts for each of its classes."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.dataset.schema import BOX, BOX_LABEL
from shardprep.errors import DatasetError
from shardprep.reader.selection.folds import distribute_pairs
from tests.reader.datasets import batch_keys, keys_of, pets, refused
from tests.support.annotated import Marked, annotated
from tests.support.builders import jpeg
from tests.support.examples import examples

NUM_IMAGES = 60
BOXES = ((0, 0, 8, 8), (8, 8, 20, 20), (20, 20, 30, 30))
SHOWN = [((0, 0, 0), (1,), (0, 1, 1), (), (0,), (0,))[i % 6] for i in range(NUM_IMAGES)]
"""Classes of the objects of each image: half have the first class alone, a sixth nothing."""


@pytest.fixture(scope="module", name="boxes")
def _boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    marked = {
        f"train/{i:02}.png": Marked(BOXES[: len(labels)], labels) for i, labels in enumerate(SHOWN)
    }
    return annotated(tmp_path_factory.mktemp("boxes"), BOX, BOX_LABEL, marked=marked)


@pytest.fixture(scope="module", name="several")
def _several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of images with several classes each, `SHOWN`."""
    keys = [f"train/{i:02}.jpg" for i in range(NUM_IMAGES)]
    names = ["|".join(sorted({("cat", "dog")[one] for one in labels})) for labels in SHOWN]
    rows = [f"{key},{name}" for key, name in zip(keys, names, strict=True)]
    members = {key: jpeg(seed=i) for i, key in enumerate(keys)}
    members["train.csv"] = "\n".join(["id,tags", *rows]).encode()
    options = {"labels": "csv:train.csv:id:tags", "target": "multilabel", "separator": "|"}
    return pets(tmp_path_factory, members, size=8, **options)


@pytest.fixture(name="folder", params=["boxes", "several"])
def _folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def shown(folder: Path, split: Any = "train") -> list[set[int]]:
    """Return the classes of each item of a split."""
    found = []
    for item in reader.Dataset(folder, split, as_supervised=False):
        hot = item.get("labels")
        found.append({*(item[BOX_LABEL].tolist() if hot is None else np.flatnonzero(hot).tolist())})
    return found


def number_of(records: list[set[int]], label: int) -> int:
    return sum(label in one for one in records)


def test_each_class_of_objects_is_distributed_evenly(folder: Path) -> None:
    assert [number_of(shown(folder), label) for label in (0, 1)] == [40, 20]
    every = reader.select(folder, "train")
    pairs = reader.folds(folder, 5, seed=2, group=False)
    for train, validation in pairs:
        records = shown(folder, validation)
        assert [number_of(records, label) for label in (0, 1)] == [8, 4]
        assert abs(len(records) - len(every) / 5) <= 1
        assert train == every - validation
    assert sorted(i for _, validation in pairs for i in validation) == [*every]
    again, other = (reader.folds(folder, 5, seed=seed, group=False) for seed in (2, 3))
    assert pairs == again != other


def test_folds_by_the_column_object_labels_distribute_each_class(
    boxes: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"by": "object_labels", "seed": 2, "group": False}
    assert reader.folds(boxes, 5, **options) == reader.folds(boxes, 5, seed=2, group=False)
    marked = {
        f"train/{'ab'[i % 2]}/{i:02}.png": Marked(BOXES[: len(one)], one)
        for i, one in enumerate(SHOWN)
    }
    labelled = annotated(tmp_path, BOX, BOX_LABEL, marked=marked, labels="folder")
    for _, validation in reader.folds(labelled, 5, **options):
        records = shown(labelled, validation)
        assert [number_of(records, label) for label in (0, 1)] == [8, 4]


def test_balanced_draws_a_class_and_then_one_of_its_images(folder: Path) -> None:
    options: dict[str, Any] = {"weights": "balanced", "seed": 1, "epochs": 100}
    read = reader.Dataset(folder, decode=False).batches(20, as_supervised=False, **options)
    names = [*itertools.chain(*batch_keys(read))]
    keys = keys_of(folder)
    records = shown(folder)
    chances = np.array([sum(0.5 / number_of(records, label) for label in one) for one in records])
    assert chances.sum() == pytest.approx(1)
    counts = np.array([names.count(key) for key in keys])
    assert not counts[chances == 0].any()
    expected = len(names) * chances[chances > 0]
    assert (((counts[chances > 0] - expected) ** 2) / expected).sum() < 86  # 49 degrees, p = 0.001


def test_per_class_counts_an_image_for_each_of_its_classes(folder: Path) -> None:
    every, whole = reader.select(folder, "train"), shown(folder)
    for n, seed in itertools.product((1, 7, 20, 99), range(2)):
        few = every.per_class(n, seed=seed)
        records = [whole[number] for number in few]
        assert all(records), "images without an object are left out"
        for label in (0, 1):
            assert number_of(records, label) >= min(n, number_of(whole, label))
        assert len(few) <= 2 * n
        assert few == every.per_class(n, seed=seed)
    assert len(every.per_class(99)) == 50
    assert every.per_class(7, seed=1) != every.per_class(7, seed=2)


def test_operations_on_a_selection_keep_its_classes(folder: Path, tmp_path: Path) -> None:
    every = reader.select(folder, "train")
    assert every.classes.tolist() == [
        [number, label] for number, one in enumerate(shown(folder)) for label in sorted(one)
    ]
    half, third = every[::2], every[::3]
    for one in (half, third, half | third, half & third, half - third, every.sample(17)):
        again = reader.Selection.load(one.save(tmp_path / "one.npz"))
        for found in (one, again):
            where = np.isin(every.classes[:, 0], found.numbers)
            assert np.array_equal(found.classes, every.classes[where])


def test_a_selection_saved_by_an_earlier_version_gets_classes_from_labels(tmp_path: Path) -> None:
    labels = np.array([1, -1, 0])
    values = {"numbers": np.array([3, 4, 9]), "labels": labels, "fingerprint": "ab", "name": "few"}
    np.savez(tmp_path / "few.npz", **values)  # type: ignore[arg-type]
    assert reader.Selection.load(tmp_path / "few.npz").classes.tolist() == [[3, 1], [9, 0]]
    for classes in ([[5, 0]], [[3, 0, 1]], [3]):
        np.savez(tmp_path / "few.npz", classes=np.array(classes), **values)  # type: ignore[arg-type]
        with pytest.raises(DatasetError, match=r"few\.npz: (cannot|has no)"):
            reader.Selection.load(tmp_path / "few.npz")


def test_missing_classes_are_errors(tmp_path: Path) -> None:
    bare = annotated(tmp_path, marked={f"train/{i}.png": Marked() for i in range(4)})
    every, dataset = reader.select(bare, "train"), reader.Dataset(bare)
    assert "class" in refused(lambda: reader.folds(bare, 2))
    assert "class" in refused(lambda: dataset.batches(2, weights="balanced"))
    assert "class" in refused(lambda: every.per_class(1))


Shown = st.lists(st.frozensets(st.integers(0, 5), max_size=4), min_size=8, max_size=90)


@examples(30)
@given(Shown, st.integers(2, 6), st.integers(0, 99), st.data())
def test_groups_are_not_divided_and_the_rarest_class_differs_by_at_most_one(
    records: list[frozenset[int]], k: int, key: int, data: st.DataObject
) -> None:
    pairs = [(place, label) for place, one in enumerate(records) for label in sorted(one)]
    array = np.array(pairs, np.int64).reshape(-1, 2)
    found = distribute_pairs(array, np.arange(len(records)), k, key)
    assert {*found.tolist()} <= {*range(k)}
    numbers = {label: number_of([*map(set, records)], label) for _, label in pairs}
    if numbers:
        rarest = min(numbers, key=lambda label: (numbers[label], label))
        assert np.ptp(np.bincount(found[[rarest in one for one in records]], minlength=k)) <= 1
    groups = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=len(records), max_size=len(records)))
    )
    found = distribute_pairs(array, groups, k, key)
    for group in {*groups.tolist()}:
        assert len({*found[groups == group].tolist()}) == 1
