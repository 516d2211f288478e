"""The two readers are one reader with two faces: one order, one sharding, one state."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader import order
from tests.support.builders import animals, build, write, zip_bytes
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

NUM_TRAIN = 83
SPLITS = ("train", "train[10:-20]", "train[30%:]", "train[:20]+train[50:]", "even")
few = examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one source as JPEG and raw, 4 shards."""
    root = tmp_path_factory.mktemp("sets")
    source = write(root / "pets.zip", zip_bytes(animals(NUM_TRAIN)))
    common: dict[str, Any] = {"size": "8x6", "labels": "prefix", "shards": 4}
    return {
        form: build(source, root / form, format=form, **common).path for form in ("jpeg", "raw")
    }


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small set have many groups: blocks of 4 records, 12 records a group."""
    monkeypatch.setattr(order, "BLOCK_LENGTH", 4)
    monkeypatch.setattr(order, "_MIN_BLOCK_LENGTH", 1)
    monkeypatch.setattr(order, "_MIN_GROUP_WIDTH", 1)
    monkeypatch.setattr(order, "_GROUP_RECORDS", 12)


def split_of(text: str) -> Any:
    return reader.even_splits("train", 3)[1] if text == "even" else text


def names(batches: Any) -> list[list[str]]:
    """Return the keys of batches of either reader."""
    columns = (np.asarray(batch["image/filename"]).tolist() for batch in batches)
    return [[one if isinstance(one, str) else one.decode() for one in keys] for keys in columns]


def by_load(folder: Path, split: Any, part: tuple[int, int] = (0, 1), **options: Any) -> Any:
    """Return `iterate` of the reader with TensorFlow."""
    config = reader.ReadConfig(shard_index=part[0], num_shards=part[1])
    return reader.iterate(folder, split, as_supervised=False, read_config=config, **options)


def by_dataset(folder: Path, split: Any, part: tuple[int, int] = (0, 1), **options: Any) -> Any:
    """Return `Dataset.batches` of the reader without."""
    size = options.pop("batch_size")
    return reader.Dataset(folder, split).batches(
        size, as_supervised=False, shard_index=part[0], num_shards=part[1], **options
    )


def records_of(folder: Path, split: Any) -> list[str]:
    """Return the keys of a split in the order of the item table: the oracle reads no shard."""
    table = pq.read_table(folder / "items.parquet").to_pylist()
    keys = [row["key"] for row in table if row["split"] == "train" and row["status"] == "written"]
    return {
        "train": keys,
        "train[10:-20]": keys[10:-20],
        "train[30%:]": keys[round(0.3 * NUM_TRAIN) :],
        "train[:20]+train[50:]": keys[:20] + keys[50:],
        "even": keys[28:56],
    }[split]


@few
@given(
    form=st.sampled_from(["jpeg", "raw"]), split=st.sampled_from(SPLITS), seed=st.integers(0, 99),
    epochs=st.integers(1, 2), batch_size=st.integers(1, 40), num_parts=st.integers(1, 4),
    shuffle=st.sampled_from([True, True, False, None]), drop_remainder=st.booleans(),
    host=st.integers(0, 3),
)  # fmt: skip
def test_both_give_the_same_records_in_the_same_order(
    sets: dict[str, Path], form: str, split: str, num_parts: int, **options: Any
) -> None:  # fmt: skip
    """And every record exactly once an epoch, over all hosts, unless a remainder is dropped.

    What one of the hosts reads is read by both.
    """
    epochs, drop = options.pop("epochs"), options["drop_remainder"]
    host = options.pop("host") % num_parts
    expected = records_of(sets[form], split)
    one = by_load(sets[form], split_of(split), (host, num_parts), **options)
    read: list[list[str]] = [[] for _ in range(epochs)]
    for part in range(num_parts):
        found = names(
            by_dataset(sets[form], split_of(split), (part, num_parts), epochs=epochs, **options)
        )
        steps = len(found) // epochs
        for epoch in range(epochs):
            own = found[epoch * steps : (epoch + 1) * steps]
            if part == host:
                assert names(one) == own
            read[epoch] += itertools.chain.from_iterable(own)
        assert len(found) == epochs * (len(one) if part == host else steps)
    for keys in read:
        if drop:
            assert len(set(keys)) == len(keys)
            assert set(keys) <= set(expected)
        else:
            assert sorted(keys) == sorted(expected)
    if options["shuffle"] is False and num_parts == 1 and not drop:
        assert read[0] == expected


@few
@given(
    split=st.sampled_from(SPLITS), seed=st.integers(0, 99), epoch=st.integers(0, 2),
    batch=st.integers(0, 4), shuffle=st.booleans(), to_load=st.booleans(),
    part=st.sampled_from([(0, 1), (0, 2), (1, 2)]), drop_remainder=st.booleans(),
)  # fmt: skip
def test_a_state_of_one_reader_goes_on_in_the_other(
    sets: dict[str, Path], split: str, epoch: int, batch: int, to_load: bool, **options: Any  # noqa: FBT001
) -> None:  # fmt: skip
    part, seed = options.pop("part"), options.pop("seed")
    options["batch_size"] = 7
    whole = by_dataset(sets["raw"], split_of(split), part, seed=seed, epochs=3, **options)
    every, steps = names(whole), whole.steps_per_epoch
    batch = min(batch, steps - 1)
    rest = every[epoch * steps + batch : (epoch + 1) * steps]
    first = by_dataset(sets["raw"], split_of(split), part, seed=seed, epochs=3, **options)
    if to_load:
        for _ in range(epoch * steps + batch):
            next(first)
        later = by_load(sets["raw"], split_of(split), part, seed=seed + 1, **options)
        later.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert names(later) == rest
        return
    earlier = by_load(sets["raw"], split_of(split), part, seed=seed, **options)
    for _ in range(epoch):
        names(earlier)
    for _ in zip(range(batch), earlier, strict=False):
        pass
    first.load_state_dict(json.loads(json.dumps(earlier.state_dict())))
    assert names(itertools.islice(first, len(rest))) == rest


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("form", "shuffle"), [("jpeg", True), ("raw", True), ("jpeg", 20)])
def test_what_is_read_in_the_shards_place_has_no_say_in_the_order(
    sets: dict[str, Path], tmp_path: Path, form: str, shuffle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are cut by the dataset's own bytes, not by those of its decoded images.

    A state saved without a cache is gone on from with one.
    """
    monkeypatch.setattr(order, "_GROUP_BYTES", 12 << 10)  # bytes, not records, bound a group
    monkeypatch.setattr(order, "_GROUP_RECORDS", 1 << 14)
    options: dict[str, Any] = {"seed": 3, "batch_size": 8, "shuffle": shuffle}
    if isinstance(shuffle, bool):
        plain = by_dataset(sets[form], "train", epochs=2, **options)
        begun = names(itertools.islice(plain, 5))
        state = plain.state_dict()
        rest = names(plain)
        epochs = [[*begun, *rest[:6]], rest[6:]]
    else:
        plain = by_load(sets[form], "train", **options)
        epochs = [names(plain) for _ in range(2)]
        state = {**plain.state_dict(), "epoch": 0, "batch": 5}
    assert [len(epoch) for epoch in epochs] == [11, 11]
    for cache in (tmp_path / "cache", "memory"):
        kept = by_load(sets[form], "train", cache=cache, **options)
        kept.load_state_dict(state)
        assert names(kept) == epochs[0][5:]
        assert names(kept) == epochs[1]


@pytest.mark.filterwarnings("ignore:skipped:RuntimeWarning")
@pytest.mark.parametrize(("part", "cache"), [((1, 2), False), ((0, 1), True), ((0, 1), False)])
def test_both_put_the_same_records_in_the_place_of_damaged_ones(
    sets: dict[str, Path], tmp_path: Path, part: tuple[int, int], cache: bool  # noqa: FBT001
) -> None:  # fmt: skip
    """Ends of shards and of the split among them; an epoch keeps its length."""
    folder = shutil.copytree(sets["jpeg"], tmp_path / "set")
    rows = pq.read_table(folder / "items.parquet").to_pylist()
    rows = [row for row in rows if row["split"] == "train" and row["status"] == "written"]
    last = [i for i in range(len(rows) - 1) if rows[i]["shard"] != rows[i + 1]["shard"]]
    bad = {5, 6, 50, *last, NUM_TRAIN - 1}
    for number in bad:
        with (folder / rows[number]["shard"]).open("r+b") as file:
            file.seek(rows[number]["offset"] + 40)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes((byte ^ 1,)))
    options: dict[str, Any] = {"batch_size": 8, "seed": 1, "shuffle": True}
    config = reader.ReadConfig(on_error="skip", shard_index=part[0], num_shards=part[1])
    one = reader.iterate(
        folder, as_supervised=False, read_config=config,
        cache=tmp_path / "cache" if cache else False, **options,
    )  # fmt: skip
    found = names(by_dataset(folder, "train", part, on_error="skip", epochs=2, **options))
    assert [*names(one), *names(one)] == found
    read = [key for keys in found for key in keys]
    sound = names(by_dataset(sets["jpeg"], "train", part, epochs=2, **options))
    assert list(map(len, found)) == list(map(len, sound))
    keys = [row["key"] for row in rows]
    own = range(NUM_TRAIN) if part == (0, 1) else range(42, NUM_TRAIN)
    stand_in = {}
    for number in own:
        at = number
        while at in bad:
            at = at + 1 if at + 1 in own else own[0]
        stand_in[keys[number]] = keys[at]
    assert read == [stand_in[key] for batch in sound for key in batch]


def test_defaults_mean_the_same(sets: dict[str, Path]) -> None:
    """Train is shuffled, in each run anew; another split is not."""
    dataset = reader.Dataset(sets["raw"])
    runs = [names(dataset.batches(8, as_supervised=False)) for _ in range(2)]
    assert runs[0] != runs[1]
    state = dataset.batches(8).state_dict()
    assert state["of"] == reader.iterate(sets["raw"], batch_size=8).state_dict()["of"]
    assert dataset.batches(8).state_dict()["seed"] != state["seed"]


def test_more_readers_than_records_are_refused_by_both(sets: dict[str, Path]) -> None:
    for read in (by_load, by_dataset):
        with pytest.raises(
            DatasetError, match="3 records cannot be shared by 4 readers; use fewer"
        ):
            read(sets["raw"], "train[:3]", (1, 4), batch_size=2)


@pytest.mark.thorough
def test_a_set_of_several_groups_of_the_usual_size(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many blocks as are 16,384 records; here 19,920 are read, each one 240 times an epoch.

    From memory small groups are read, above.
    """
    monkeypatch.undo()
    split = "+".join(["train"] * 240)
    options: dict[str, Any] = {"batch_size": 256, "seed": 1, "shuffle": True}
    expected = names(by_dataset(sets["raw"], split, epochs=2, **options))
    steps = len(expected) // 2
    assert steps == 78
    for cache in (False, tmp_path / "cache"):
        one = by_load(sets["raw"], split, cache=cache, **options)
        assert names(one) == expected[:steps]
        assert names(one) == expected[steps:]
    for epoch in (expected[:steps], expected[steps:]):
        assert Counter(itertools.chain.from_iterable(epoch)) == dict.fromkeys(
            records_of(sets["raw"], "train"), 240
        )
