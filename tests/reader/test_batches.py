"""Batches are the items of a Dataset, in one order for any threads, and are never overwritten."""

from __future__ import annotations

import gc
import itertools
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.errors import DatasetError, RecordError
from tests.reader.datasets import batch_keys, damage, pets, saved
from tests.support.builders import animals, build, jpeg, png
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

HEIGHT, WIDTH = 12, 16
NUM_TRAIN = 43
FORMS: dict[str, dict[str, Any]] = {
    "jpeg": {"size": "16x12"},
    "png": {"size": "16x12", "format": "png"},
    "raw": {"size": "16x12", "format": "raw"},
    "keep, one size": {"size": "16x12", "format": "keep"},
    "own sizes": {"size": "none"},
    "unlabelled": {"size": "16x12", "labels": "none"},
    "multilabel": {"size": "16x12", "labels": "csv:t.csv:id:tags", "target": "multilabel"},
    "regression": {"size": "16x12", "labels": "csv:t.csv:id:weight", "target": "regression"},
    "text": {"size": "16x12", "labels": "csv:t.csv:id:weight", "target": "text"},
}
IMAGES = {
    **animals(41),
    "train/cat.77.jpg": jpeg(12, 16, seed=77),
    "train/cat.78.png": png(12, 16, seed=78),
}
TABLE = "\n".join(
    ["id,tags,weight", *(f"{key},{('a', 'a|b', 'b')[i % 3]},{i}.5" for i, key in enumerate(IMAGES))]
)
Set = dict[str, "Path"]


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Set:
    """Return a dataset of each form, all of one source; train has 3 shards."""
    common: dict[str, Any] = {"shards": 3, "split": "train=1", "separator": "|"}
    members = {**IMAGES, "t.csv": TABLE.encode()}
    return {
        form: pets(tmp_path_factory, members, **{**common, **keys}) for form, keys in FORMS.items()
    }


@pytest.fixture(name="copied")
def _copied(sets: Set, tmp_path: Path) -> Path:
    """Return a dataset folder of JPEG images to be damaged."""
    return shutil.copytree(sets["jpeg"], tmp_path / "set")


def order(folder: Path, batch_size: int = 5, **options: Any) -> list[list[str]]:
    """Return the keys of the batches, of the seed 0 where it is not given."""
    options = {"seed": 0, "shuffle": False, **options}
    return batch_keys(reader.Dataset(folder).batches(batch_size, as_supervised=False, **options))


# What a batch is


@pytest.mark.parametrize("form", [form for form in FORMS if form != "own sizes"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_is_its_items_side_by_side(sets: Set, form: str, shuffle: bool) -> None:  # noqa: FBT001
    items = {
        item["image/filename"]: item for item in reader.Dataset(sets[form], as_supervised=False)
    }
    seen = []
    batches = reader.Dataset(sets[form]).batches(8, shuffle=shuffle, as_supervised=False)
    for batch in batches:
        names = batch["image/filename"].tolist()
        seen += names
        assert list(batch) == list(items[names[0]])
        for name, column in batch.items():
            expected = [items[key][name] for key in names]
            np.testing.assert_array_equal(column, np.array(expected, column.dtype))
    assert sorted(seen) == sorted(items)
    assert len(seen) == NUM_TRAIN


@pytest.mark.parametrize(
    ("form", "dtype", "shape"),
    [
        ("jpeg", np.int64, (8,)),
        ("raw", np.int64, (8,)),
        ("multilabel", np.float32, (8, 2)),
        ("regression", np.float32, (8,)),
        ("text", np.object_, (8,)),
    ],
)
def test_images_are_uint8_and_targets_what_load_gives(
    sets: Set, form: str, dtype: Any, shape: tuple[int, ...]
) -> None:
    images, targets = next(reader.Dataset(sets[form]).batches(8, seed=3))
    assert (images.dtype, images.shape) == (np.uint8, (8, HEIGHT, WIDTH, 3))
    assert (targets.dtype, targets.shape) == (dtype, shape)
    assert images.flags.c_contiguous
    assert images.flags.writeable
    same_images, same = next(reader.load(sets[form], batch_size=8, seed=3).as_numpy_iterator())
    np.testing.assert_array_equal(images, same_images)
    decoded = [one.decode() for one in same] if form == "text" else same
    np.testing.assert_array_equal(targets, decoded)


def test_a_set_without_targets_yields_images_alone(sets: Set) -> None:
    assert next(reader.Dataset(sets["unlabelled"]).batches(8)).shape == (8, HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("form", ["jpeg", "own sizes"])
def test_undecoded_batches_are_bytes(sets: Set, form: str) -> None:
    dataset = reader.Dataset(sets[form], decode=False, as_supervised=False)
    data = [one for images, _ in dataset.batches(8, shuffle=False) for one in images]
    assert data == [item["image"] for item in dataset]


def test_batches_of_a_slice_are_of_its_items(sets: Set) -> None:
    part = reader.Dataset(sets["png"], as_supervised=False)[30:10:-3]
    got = batch_keys(part.batches(4, shuffle=False, as_supervised=False))
    assert [key for batch in got for key in batch] == [item["image/filename"] for item in part]


# In which order


@examples(25)  # a busy machine is no fault
@given(
    batch_size=st.integers(1, 50), num_threads=st.integers(1, 9), prefetch=st.integers(0, 5),
    shuffle=st.booleans(), epochs=st.integers(1, 3), drop_remainder=st.booleans(),
)  # fmt: skip
def test_neither_threads_nor_prefetch_change_anything(
    sets: Set, num_threads: int, prefetch: int, **options: Any
) -> None:
    plain = order(sets["raw"], num_threads=1, prefetch=0, **options)
    assert order(sets["raw"], num_threads=num_threads, prefetch=prefetch, **options) == plain


def test_epochs_go_on_for_ever_if_asked_to(sets: Set) -> None:
    batches = reader.Dataset(sets["raw"]).batches(
        5, shuffle=False, epochs=None, as_supervised=False
    )
    read = batch_keys(itertools.islice(batches, 40))
    assert read[36:40] == read[0:4]
    batches.close()


def test_the_last_batch_may_be_dropped(sets: Set) -> None:
    assert [len(batch) for batch in order(sets["raw"])] == [5] * 8 + [3]
    assert [len(batch) for batch in order(sets["raw"], drop_remainder=True)] == [5] * 8
    assert order(sets["raw"], 50, drop_remainder=True, epochs=None) == []


# Going on


@examples(25)  # a busy machine is no fault
@given(done=st.integers(0, 18), other=st.integers(0, 18), shuffle=st.booleans())
def test_a_state_goes_on_exactly_where_it_was_taken(
    sets: Set, done: int, other: int, shuffle: bool  # noqa: FBT001
) -> None:  # fmt: skip
    """As text between two runs, and into an iterator that has been somewhere else."""

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
    [{"shuffle": False}, {"batch_size": 4}, {"drop_remainder": True}, {"num_shards": 2}],
    ids=lambda options: next(iter(options)),
)
def test_a_state_of_other_options_is_refused(sets: Set, options: dict[str, Any]) -> None:
    dataset = reader.Dataset(sets["raw"], as_supervised=False)
    state = dataset.batches(5, shuffle=True).state_dict()
    other = dataset.batches(**{"batch_size": 5, "shuffle": True, **options})
    (name,) = options.keys() - {"num_shards"} or {"records"}
    with pytest.raises(DatasetError, match=f"of other batches: .*{name}.*; load it with"):
        other.load_state_dict(state)


def test_a_state_of_other_records_is_refused(sets: Set) -> None:
    state = reader.Dataset(sets["raw"], as_supervised=False)[1:].batches(5).state_dict()
    with pytest.raises(DatasetError, match="records"):
        reader.Dataset(sets["raw"])[:-1].batches(5).load_state_dict(state)


def test_a_state_of_a_set_that_was_built_anew_is_refused(sets: Set, tmp_path: Path) -> None:
    """As many records in as many shards, but in another order."""
    source = sets["raw"].parents[2] / "pets.zip"
    keys_: dict[str, Any] = {**FORMS["raw"], "labels": "prefix", "shards": 3, "split": "train=1"}
    anew = build(source, tmp_path, seed=5, **keys_).path
    state = reader.Dataset(sets["raw"]).batches(5).state_dict()
    with pytest.raises(DatasetError, match="records"):
        reader.Dataset(anew).batches(5).load_state_dict(state)


# Whose memory

HOLDS: dict[str, Any] = {
    "arrays": lambda images: images,
    "slices": lambda images: images[1:3],
    "slices of slices": lambda images: images[1:][::2, 3:, :, 0],
    "reshaped": lambda images: images.reshape(-1, 3)[5:],
    "memoryviews": lambda images: memoryview(images)[1:],
    "what DLPack gives": lambda images: np.from_dlpack(images)[1:],
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_what_is_held_is_never_overwritten(sets: Set, hold: Any) -> None:
    dataset = reader.Dataset(sets["raw"], as_supervised=False)
    kept = []
    for images, _ in dataset.batches(4, shuffle=True, epochs=4, num_threads=4, prefetch=3):
        kept.append((hold(images), np.array(hold(images))))
        del images
    assert len(kept) == 44
    assert all(np.array_equal(one, copy) for one, copy in kept)


def test_memory_that_is_let_go_is_used_again(sets: Set) -> None:
    batches = reader.Dataset(sets["raw"]).batches(4, epochs=10, prefetch=2)
    addresses = [images.ctypes.data for images, _ in batches]
    assert len(addresses) == 110
    assert len(set(addresses)) <= 5  # 2 ahead, 1 here, 1 about to be, 1 between hands


def test_memory_held_for_long_is_not_kept_for_ever(sets: Set) -> None:
    batches = reader.Dataset(sets["raw"]).batches(1, epochs=None, prefetch=1)
    held = [next(batches) for _ in range(100)]
    del held
    gc.collect()
    assert len(batches._filler._free) <= 3
    batches.close()


def test_a_batch_outlives_its_iterator(sets: Set) -> None:
    images, _ = next(reader.Dataset(sets["raw"]).batches(4, shuffle=False))
    gc.collect()
    assert np.array_equal(images, [image for image, _ in reader.Dataset(sets["raw"])[:4]])


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("shardprep-batches")}


def ended(before: set[threading.Thread]) -> bool:
    """Tell whether no threads are left but earlier ones, which they need a moment for."""
    for _ in range(6000):
        if not threads() - before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("way", ["exhausted", "closed", "left", "forgotten", "never begun"])
def test_threads_end_with_their_iterator(sets: Set, way: str) -> None:
    before = threads()  # of datasets that other tests have loaded
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
    """Every time: nothing is passed over by asking again."""
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


def test_a_damaged_record_is_replaced_by_the_next_good_one_and_named(copied: Path) -> None:
    """As `load` does: batches keep their size, and images their labels."""
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
def test_a_set_without_a_good_record_is_an_error(copied: Path) -> None:
    damage(copied, *range(NUM_TRAIN))
    with pytest.raises(DatasetError, match="has no good record"):
        next(reader.Dataset(copied).batches(5, on_error="skip"))


def test_a_shard_that_is_gone_is_an_error_even_when_skipping(copied: Path) -> None:
    dataset = reader.Dataset(copied)
    for path in copied.glob("*-train.tfrecord*"):
        path.unlink()
    with pytest.raises(DatasetError, match="is missing, the manifest says"):
        next(dataset.batches(5, on_error="skip"))


# Misuse


def test_images_of_different_sizes_are_not_batched(sets: Set) -> None:
    dataset = reader.Dataset(sets["own sizes"], as_supervised=False)
    with pytest.raises(DatasetError, match=r"differ in size.*; build with --size"):
        dataset.batches(5)
    assert dataset[0]["image"].shape[2] == 3


def test_a_transform_of_items_is_not_dropped_silently(sets: Set) -> None:
    with pytest.raises(DatasetError, match="transform is for single items"):
        reader.Dataset(sets["raw"], transform=np.flipud).batches(5)
