"""Batches have the items of a Dataset in one order for any threads, and are never overwritten."""

import gc
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.errors import DatasetError, RecordError
from tests.reader.datasets import (
    FORMS,
    NUM_TRAIN,
    batch_keys,
    damage,
    of_form,
    saved,
)
from tests.support.builders import build
from tests.support.examples import examples

Set = dict[str, "Path"]


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Set:
    return {form: of_form(tmp_path_factory, form) for form in FORMS}


def order(folder: Path, batch_size: int = 5, **options: Any) -> list[list[str]]:
    """Return the keys of the batches; by default not shuffled, with the seed 0."""
    options = {"seed": 0, "shuffle": False, **options}
    return batch_keys(reader.Dataset(folder).batches(batch_size, as_supervised=False, **options))


# Content of batches


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("own sizes", "keep")])
def test_a_batch_has_the_values_of_its_items(sets: Set, form: str) -> None:
    items = {
        item["image/filename"]: item for item in reader.Dataset(sets[form], as_supervised=False)
    }
    seen = []
    batches = reader.Dataset(sets[form]).batches(8, shuffle=True, as_supervised=False)
    for batch in batches:
        names = batch["image/filename"].tolist()
        seen += names
        assert list(batch) == list(items[names[0]])
        assert batch["image"].flags.c_contiguous
        assert batch["image"].flags.writeable
        for name, column in batch.items():
            expected = [items[key][name] for key in names]
            np.testing.assert_array_equal(column, np.array(expected, column.dtype))
    assert sorted(seen) == sorted(items)
    assert len(seen) == NUM_TRAIN


@pytest.mark.parametrize("form", ["jpeg", "own sizes"])
def test_undecoded_batches_are_bytes(sets: Set, form: str) -> None:
    dataset = reader.Dataset(sets[form], decode=False, as_supervised=False)
    data = [one for images, _ in dataset.batches(8, shuffle=False) for one in images]
    assert data == [item["image"] for item in dataset]


def test_batches_of_a_slice_have_its_items(sets: Set) -> None:
    part = reader.Dataset(sets["png"], as_supervised=False)[30:10:-3]
    got = batch_keys(part.batches(4, shuffle=False, as_supervised=False))
    assert [key for batch in got for key in batch] == [item["image/filename"] for item in part]


# Order


@examples(15)
@given(
    batch_size=st.integers(1, 50), num_threads=st.integers(1, 9), prefetch=st.integers(0, 5),
    shuffle=st.booleans(), epochs=st.integers(1, 3), drop_remainder=st.booleans(),
)  # fmt: skip
def test_neither_threads_nor_prefetch_change_anything(
    sets: Set, num_threads: int, prefetch: int, **options: Any
) -> None:
    plain = order(sets["raw"], num_threads=1, prefetch=0, **options)
    assert order(sets["raw"], num_threads=num_threads, prefetch=prefetch, **options) == plain


def test_epochs_may_be_endless_and_the_last_batch_dropped(sets: Set) -> None:
    options: dict[str, Any] = {"shuffle": False, "epochs": None, "as_supervised": False}
    with reader.Dataset(sets["raw"]).batches(5, **options) as batches:
        read = batch_keys(itertools.islice(batches, 40))
    assert read[36:40] == read[0:4]
    assert [len(batch) for batch in order(sets["raw"])] == [5] * 8 + [3]
    assert [len(batch) for batch in order(sets["raw"], drop_remainder=True)] == [5] * 8
    with pytest.warns(reader.Advice, match="batches of 50 with drop_remainder=True yield nothing"):
        assert order(sets["raw"], 50, drop_remainder=True, epochs=None) == []
    with pytest.warns(reader.Advice, match="an epoch has 43 records; give a smaller batch_size"):
        assert [*reader.load(sets["raw"], batch_size=50, drop_remainder=True)] == []


# States


@examples(15)
@given(done=st.integers(0, 18), other=st.integers(0, 18), shuffle=st.booleans())
def test_a_state_resumes_exactly_at_its_batch(
    sets: Set, done: int, other: int, shuffle: bool  # noqa: FBT001
) -> None:  # fmt: skip
    """It is stored as JSON, and loaded into an iterator at another position."""

    def fresh() -> Any:
        dataset = reader.Dataset(sets["raw"], as_supervised=False)
        return dataset.batches(5, shuffle=shuffle, seed=3, epochs=2, as_supervised=False)

    batches = fresh()
    for _ in range(done):
        next(batches)
    state = saved(batches)
    rest = batch_keys(batches)
    assert len(rest) == 18 - done
    later = fresh()
    for _ in range(other):
        next(later)
    for _ in range(2):  # also after its end
        later.load_state_dict(state)
        assert batch_keys(later) == rest


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"batch_size": 4},
        {"drop_remainder": True},
        {"num_shards": 2, "shard_index": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_state_of_other_options_is_an_error(sets: Set, options: dict[str, Any]) -> None:
    dataset = reader.Dataset(sets["raw"], as_supervised=False)
    state = dataset.batches(5, shuffle=True).state_dict()
    other = dataset.batches(**{"batch_size": 5, "shuffle": True, **options})
    name = next(iter(options))
    name = {"num_shards": "global batch", "batch_size": "global batch"}.get(name, name)
    with pytest.raises(DatasetError, match=f"records or settings: .*{name}.*; use the dataset"):
        other.load_state_dict(state)


def test_a_state_of_other_records_is_an_error(sets: Set, tmp_path: Path) -> None:
    """The numbers of records and shards are equal: of another slice, and in another order."""
    source = sets["raw"].parents[2] / "pets.zip"
    options: dict[str, Any] = {**FORMS["raw"], "labels": "prefix", "shards": 3}
    whole = reader.Dataset(sets["raw"])
    reordered = reader.Dataset(build(source, tmp_path, seed=5, **options).path)
    for saved_by, other in ((whole[1:], whole[:-1]), (whole, reordered)):
        with pytest.raises(DatasetError, match="records"):
            other.batches(5).load_state_dict(saved_by.batches(5).state_dict())


# Memory

HOLDS: dict[str, Any] = {
    "arrays": lambda images: images,
    "slices": lambda images: images[1:3],
    "slices of slices": lambda images: images[1:][::2, 3:, :, 0],
    "reshaped": lambda images: images.reshape(-1, 3)[5:],
    "memoryviews": lambda images: memoryview(images)[1:],
    "DLPack": lambda images: np.from_dlpack(images)[1:],
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_memory_in_use_is_never_overwritten(sets: Set, hold: Any) -> None:
    dataset = reader.Dataset(sets["raw"], as_supervised=False)
    kept = []
    for images, _ in dataset.batches(4, shuffle=True, epochs=4, num_threads=4, prefetch=3):
        kept.append((hold(images), np.array(hold(images))))
        del images
    assert len(kept) == 44
    assert all(np.array_equal(one, copy) for one, copy in kept)


def test_free_memory_is_reused_up_to_a_limit(sets: Set) -> None:
    batches = reader.Dataset(sets["raw"]).batches(4, epochs=10, prefetch=2)
    addresses = [images.ctypes.data for images, _ in batches]
    assert len(addresses) == 110
    assert len(set(addresses)) <= 5  # 2 ahead, 1 here, 1 about to be, 1 between hands
    batches = reader.Dataset(sets["raw"]).batches(1, epochs=None, prefetch=1)
    held = [next(batches) for _ in range(100)]
    del held
    gc.collect()
    assert len(batches._team._maker._free) <= 3
    batches.close()


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("shardprep-batches")}


def ended(before: set[threading.Thread]) -> bool:
    """Wait until only earlier threads are left; return False after a minute."""
    for _ in range(6000):
        if not threads() - before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("way", ["exhausted", "closed", "left", "collected", "never begun"])
def test_threads_end_with_their_iterator(sets: Set, way: str) -> None:
    before = threads()  # of other tests
    batches = reader.Dataset(sets["raw"]).batches(4, epochs=1 if way == "exhausted" else None)
    if way != "never begun":
        next(batches)
        assert threads() - before
    if way == "exhausted":
        list(batches)
        assert next(batches, None) is None
    elif way == "closed":
        batches.close()
        assert next(batches, None) is None
        batches.close()
    elif way == "left":
        with batches:
            next(batches)
    else:
        del batches
        gc.collect()
    assert ended(before)


# Damage


def test_a_damaged_record_is_an_error_at_its_batch(copied: Path) -> None:
    """Each retry raises it again and skips no batch."""
    names = damage(copied, 12, 13)
    batches = reader.Dataset(copied).batches(5, shuffle=False, num_threads=3)
    next(batches)
    next(batches)
    state = batches.state_dict()
    for _ in range(3):
        with pytest.raises(RecordError) as error:
            next(batches)
        assert names[0] in str(error.value)
        assert batches.state_dict() == state


def test_a_skipped_record_is_replaced_by_the_next_good_one_and_named(copied: Path) -> None:
    """Batches keep their size, and images their labels."""
    sound = {item["image/filename"]: item for item in reader.Dataset(copied, as_supervised=False)}
    whole = order(copied)
    names = damage(copied, 3, 12, 13, 42)
    dataset = reader.Dataset(copied)
    options: dict[str, Any] = {"shuffle": False, "epochs": 2, "as_supervised": False}
    batches = dataset.batches(5, on_error="skip", num_threads=3, **options)
    with pytest.warns(RuntimeWarning, match="skipped") as warned:
        found = list(batches)
    read = batch_keys(found)
    for keys, batch in zip(read, found, strict=True):
        for name in ("image", "label"):
            np.testing.assert_array_equal(batch[name], [sound[key][name] for key in keys])
    expected = [list(batch) for batch in whole]
    expected[0][3] = whole[0][4]
    expected[2][2] = expected[2][3] = whole[2][4]
    expected[8][2] = whole[0][0]
    assert read == expected * 2
    assert all(name in str(error) for name, error in zip(names, batches.skipped, strict=True))
    assert [str(one.message) for one in warned] == [f"skipped: {e}" for e in batches.skipped]


@pytest.mark.filterwarnings("ignore:skipped:RuntimeWarning")
def test_missing_shards_and_no_good_record_are_errors_when_skipping(copied: Path) -> None:
    damage(copied, *range(NUM_TRAIN))
    with pytest.raises(DatasetError, match="has no good record"):
        next(reader.Dataset(copied).batches(5, on_error="skip"))
    dataset = reader.Dataset(copied)
    for path in copied.glob("*-train.tfrecord*"):
        path.unlink()
    with pytest.raises(DatasetError, match="is missing, but the manifest says"):
        next(dataset.batches(5, on_error="skip"))


# Misuse


def test_images_of_different_sizes_and_a_transform_are_not_batched(sets: Set) -> None:
    with pytest.raises(DatasetError, match=r"differ in size.*; build with --size"):
        reader.Dataset(sets["own sizes"]).batches(5)
    with pytest.raises(DatasetError, match="the transform is for single items"):
        reader.Dataset(sets["raw"], transform=np.flipud).batches(5)
