"""Mixes of datasets: exact shares, each dataset in an order of its own, one state for all."""

import functools
import itertools
import json
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.reader.order.epoch import BlockShuffle
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import MixedDraws, Order
from tests.reader.datasets import (
    batch_keys,
    by_dataset,
    by_load,
    damage,
    keys_of,
    merged,
    pets,
    put,
    refused,
    saved,
)  # fmt: skip
from tests.support.builders import animals, jpeg
from tests.support.examples import examples
from tests.support.object_store import Bucket, Proxy

SHARES = {"a": 0.5, "b": 0.3, "c": 0.2}
a_mix: Any = reader.mix
"""For arguments that its types do not allow."""
SIZES = {"a": 30, "b": 8, "c": 5}


class Sets(NamedTuple):
    """Datasets with equal classes; the images of `b` are PNG."""

    a: Path
    b: Path
    c: Path

    def mix(self) -> Any:
        return reader.mix(dict(zip(self, SHARES.values(), strict=True)))


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return Sets(
        *(
            pets(
                tmp_path_factory,
                animals(number, folder=f"train/{name}/"),
                size="8x6",
                shards=3,
                format="png" if name == "b" else "jpeg",
            )
            for name, number in SIZES.items()
        )
    )


def flat(batches: Iterable[list[str]]) -> list[str]:
    return [*itertools.chain.from_iterable(batches)]


def name_of(key: str) -> str:
    return key.split("/")[1]


# --- the order alone -----------------------------------------------------------------------------


@st.composite
def orders(draw: Any) -> Order:
    number = draw(st.integers(1, 5))
    blocks = st.builds(
        BlockShuffle,
        num_records=st.integers(1, 60), block_length=st.integers(1, 9),
        group_width=st.integers(1, 4), shuffle=st.booleans(),
    )  # fmt: skip
    within = MixedDraws(
        blocks=tuple(draw(blocks) for _ in range(number)),
        shares=tuple(draw(st.integers(1, 40)) for _ in range(number)),
    )
    size = draw(st.sampled_from([1, 6, 12, 24]))
    return Order(within, GlobalBatches(len(within), size), draw(st.integers(0, 99)))


@examples(80)
@given(order=orders(), data=st.data())
def test_every_dataset_has_its_share_and_each_record_once_per_pass(order: Order, data: Any) -> None:
    """Any number of hosts, which changes between batches, reads the same stream."""
    mixed, num_epochs = order.within_epoch, 3
    assert isinstance(mixed, MixedDraws)
    tags = []
    for epoch, batch in itertools.product(range(num_epochs), range(order.num_batches(drop=False))):
        number = data.draw(
            st.sampled_from([one for one in (1, 2, 3, 4) if order.batches.size % one == 0])
        )
        parts = [replace(order.batches, host=host, num_hosts=number) for host in range(number)]
        tags += [replace(order, batches=part).batch(epoch, batch) for part in parts]
    stream = np.concatenate(tags)
    assert len(np.unique(stream)) == len(stream) == num_epochs * len(mixed)
    sizes = [one.num_records for one in mixed.blocks]
    positions = stream % sum(sizes)
    of_dataset = np.searchsorted(np.cumsum(sizes), positions, side="right")
    shares = np.array(mixed.shares) / sum(mixed.shares)
    counts = np.cumsum(of_dataset[:, None] == np.arange(len(sizes)), axis=0)
    expected = np.arange(1, len(stream) + 1)[:, None] * shares
    assert np.abs(counts - expected).max() < 1
    starts = np.cumsum([0, *sizes])
    for number, size in enumerate(sizes):
        own = positions[of_dataset == number] - starts[number]
        for begin in range(0, len(own), size):
            read = own[begin : begin + size].tolist()
            assert len({*read}) == len(read)
            if not mixed.blocks[number].shuffle:
                assert read == [*range(len(read))]


def test_a_mix_of_a_seed_is_the_same_in_every_release() -> None:
    every = tuple(
        BlockShuffle(num_records=number, block_length=2, group_width=2, shuffle=True)
        for number in (7, 3)
    )
    mixed = MixedDraws(blocks=every, shares=(600, 400))
    found = Order(mixed, GlobalBatches(len(mixed), 2), seed=7).tags(1, 0, len(mixed))
    assert (found % 10).tolist() == [4, 7, 3, 2, 8, 0, 7, 1, 6, 8]
    assert found[0] == 10 * 10 + 4, "a tag is draw × records + position"
    assert mixed.description == "mix:bb0b3de33a585b6d"


# --- both readers --------------------------------------------------------------------------------


def test_both_readers_yield_the_same_bytes_with_exact_shares(sets: Sets) -> None:
    num_epochs = 3
    ours = [*by_dataset(sets.mix(), seed=1, epochs=num_epochs)]
    theirs = [*itertools.chain.from_iterable([by_load(sets.mix(), seed=1)] * num_epochs)]
    for one, other in zip(ours, theirs, strict=True):
        assert one["image"].tobytes() == other["image"].numpy().tobytes()
        assert one["label"].tolist() == other["label"].numpy().tolist()
    keys = flat(batch_keys(ours))
    assert flat(batch_keys(theirs)) == keys
    assert len(keys) == num_epochs * sum(SIZES.values())
    for start in range(0, len(keys) - 9, 10):
        assert Counter(map(name_of, keys[start : start + 10])) == {"a": 5, "b": 3, "c": 2}
    for place, name in zip(sets, SIZES, strict=True):
        own = [key for key in keys if name_of(key) == name]
        passes = [own[start : start + SIZES[name]] for start in range(0, len(own), SIZES[name])]
        whole = [one for one in passes if len(one) == SIZES[name]]
        assert len(whole) >= 2
        assert all(sorted(one) == sorted(keys_of(place)) for one in whole)
        assert whole[0] != whole[1], "each pass is permuted anew"


def test_stored_order_is_kept_within_each_dataset(sets: Sets) -> None:
    keys = flat(batch_keys(by_dataset(sets.mix(), shuffle=False)))
    for place, name in zip(sets, SIZES, strict=True):
        own = [key for key in keys if name_of(key) == name]
        assert own == [*itertools.islice(itertools.cycle(keys_of(place)), len(own))]


def test_a_state_continues_in_the_other_reader_on_any_number_of_hosts(sets: Sets) -> None:
    mix = sets.mix()
    whole = batch_keys(by_dataset(mix, seed=4, epochs=2, batch_size=12))
    first = [by_load(mix, part=(host, 2), seed=4, batch_size=6) for host in range(2)]
    head = merged([batch_keys(itertools.islice(one, 2)) for one in first])
    state = saved(first[0])
    assert len(json.dumps(state)) <= 200
    for number in (1, 3, 4):
        rest = []
        for host in range(number):
            own = by_dataset(mix, part=(host, number), epochs=2, batch_size=12 // number)
            own.load_state_dict(state)
            rest.append(batch_keys(own))
        assert head + merged(rest) == whole
    other = by_dataset(reader.mix(dict(zip(sets, (0.5, 0.2, 0.3), strict=True))), batch_size=12)
    assert "with other records or settings" in refused(lambda: other.load_state_dict(state))


def test_items_follow_each_other_and_a_copy_reads_the_same(sets: Sets) -> None:
    dataset = reader.Dataset(sets.mix(), as_supervised=False)
    copied = pickle.loads(pickle.dumps(dataset))
    expected = flat(map(keys_of, sets))
    assert [item["image/filename"] for item in copied] == expected
    assert dataset[-1]["image/filename"] == expected[-1]
    assert repr(copied) == repr(dataset)
    names = "'0.5 pets/1.0.0 + 0.3 pets/1.0.0 + 0.2 pets/1.0.0', 'train', 43 records"
    assert names in repr(dataset)
    assert batch_keys(copied.batches(10, seed=1, as_supervised=False)) == batch_keys(
        by_dataset(sets.mix(), seed=1)
    )


def test_a_cache_in_memory_does_not_change_the_batches(sets: Sets) -> None:
    plain, cached = (by_load(sets.mix(), seed=1, cache=cache) for cache in (False, "memory"))
    for one, other in zip(plain, cached, strict=True):
        assert one["image"].numpy().tobytes() == other["image"].numpy().tobytes()


@pytest.mark.parametrize("cache", [False, "memory"])
def test_a_damaged_record_is_replaced_from_its_own_dataset(
    sets: Sets, tmp_path: Path, cache: Any
) -> None:
    copied = Sets(shutil.copytree(sets.a, tmp_path / "a"), sets.b, sets.c)
    mix = copied.mix()
    last = SIZES["a"] - 1
    (where,) = damage(copied.a, last)
    bad: list[Any] = []
    config = reader.ReadConfig(on_error=bad.append)
    theirs = reader.iterate(
        mix, batch_size=10, seed=1, as_supervised=False, read_config=config, cache=cache
    )
    with pytest.warns(RuntimeWarning, match="skipped"):
        ours = batch_keys(by_dataset(mix, seed=1, on_error="skip"))
    intact, order = flat(batch_keys(by_dataset(sets.mix(), seed=1))), keys_of(sets.a)
    assert order[last] in intact
    if not cache:
        assert batch_keys(theirs) == ours
        assert flat(ours) == [order[0] if key == order[last] else key for key in intact]
        with pytest.warns(RuntimeWarning, match="skipped"):
            hosts = [
                batch_keys(by_dataset(mix, part=(host, 2), seed=1, batch_size=5, on_error="skip"))
                for host in (0, 1)
            ]
        assert merged(hosts) == ours
    else:
        images = np.concatenate([batch["image"].numpy() for batch in theirs])
        first = reader.Dataset(sets.a)[0][0]
        assert np.array_equal(images[intact.index(order[last])], first)
    ((shard, number),) = [(one.shard, one.record) for one in bad]
    assert f"{shard}, record {number}:" == f"{tmp_path}/a/{where}"


def test_datasets_in_a_folder_and_in_object_storage_are_read_alike(
    sets: Sets, bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without copies, a block is one request, although two datasets have shards of one name."""
    monkeypatch.setenv("SHARDPREP_CACHE_BYTES", "0")
    urls = put(bucket, sets.a, "sets/a"), sets.b, put(bucket, sets.c, "sets/c")
    mix = reader.mix(dict(zip(urls, SHARES.values(), strict=True)))
    expected = batch_keys(by_dataset(sets.mix(), seed=1))
    for of in (by_dataset, by_load):
        proxy.reset()
        assert batch_keys(of(mix, seed=1)) == expected
        asked = sum("range" in one.headers for one in proxy.requests)
        assert asked <= 2 * 3 * 2, "two passes of two datasets with 3 shards, for 30 draws"
    hosts = [by_dataset(mix, part=(host, 2), seed=1, batch_size=5) for host in (0, 1)]
    assert merged([batch_keys(one) for one in hosts]) == expected


# --- what fits together --------------------------------------------------------------------------


def test_images_may_differ_in_size_if_they_are_cropped(
    sets: Sets, tmp_path_factory: pytest.TempPathFactory
) -> None:
    large = pets(tmp_path_factory, animals(9, folder="train/large/"), size="16x12")
    mix = reader.mix({sets.a: 1, large: 1})
    assert "images may differ in size" in refused(lambda: reader.load(mix, batch_size=4))
    assert "images may differ in size" in refused(lambda: reader.Dataset(mix).batches(4))
    options: dict[str, Any] = {"random_resized_crop": (4, 4), "seed": 2}
    ours = reader.Dataset(mix).batches(6, **options)
    theirs = reader.load(mix, batch_size=6, **options)
    for (images, _), (others, _) in zip(ours, theirs, strict=True):
        assert images.tobytes() == others.numpy().tobytes()


def test_datasets_that_do_not_fit_are_refused(
    sets: Sets, tmp_path_factory: pytest.TempPathFactory
) -> None:
    foxes = {key.replace("dog", "fox"): data for key, data in animals(6).items()}
    other = {
        "foxes": pets(tmp_path_factory, foxes, size="8x6"),
        "cats": pets(tmp_path_factory, {"train/cat.1.jpg": jpeg()}, size="8x6"),
        "unlabelled": pets(tmp_path_factory, animals(6), size="8x6", labels="none"),
        "raw": pets(tmp_path_factory, animals(6), size="8x6", format="raw"),
    }
    found = {
        name: refused(lambda: reader.Dataset(reader.mix({sets.a: 1, place: 1})))  # noqa: B023
        for name, place in other.items()
    }
    assert f"has class 1 'fox' where {sets.a} has class 1 'dog'" in found["foxes"]
    assert f"shardprep repack {sets.a} {other['foxes']}" in found["foxes"]
    assert f"has no class where {sets.a} has class 1 'dog'" in found["cats"]
    assert "label is gone" in found["unlabelled"]
    assert "raw images" in found["raw"]
    reader.Dataset(reader.mix({other["raw"]: 1, other["raw"].parent: 1}))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda mix, _: reader.load(mix, weights="balanced"), "weights cannot be used"),
        (lambda mix, _: reader.load(mix, cache="./decoded"), "cache in a folder"),
        (lambda mix, a: reader.load(mix, reader.select(a, "train")), "selection of one dataset"),
        (lambda mix, _: reader.Dataset(mix).batches(4, weights=[1.0]), "weights cannot be used"),
        (lambda mix, _: reader.Dataset(mix)[:9].batches(4), "batches cannot be read from a slice"),
        (lambda mix, _: reader.Dataset(mix, "test"), "has no split 'test'"),
        (lambda _, a: a_mix({a: 1}, batch_size=3), "load(mix, batch_size=…)"),
        (lambda _, a: a_mix({a: 1}, split="train"), "load(mix, split=…)"),
        (lambda _, a: reader.mix({a: 0}), "shares above 0"),
        (lambda _, a: a_mix([a]), "a dict of paths and shares"),
        (lambda _, a: reader.mix({a: 1, "b": 1e-4}), "too small"),
    ],
)
def test_what_a_mix_cannot_honour_is_refused(
    sets: Sets, call: Callable[[Any, Any], Any], what: str
) -> None:
    assert what in refused(lambda: call(sets.mix(), sets.a))


def test_what_needs_one_dataset_says_how_to_merge_those_of_a_mix(sets: Sets) -> None:
    mix = sets.mix()
    part, _ = reader.folds(sets.a, 2)[0]
    for call in (reader.select, reader.folds, reader.table, reader.class_weights, reader.mean_std):
        options: dict[str, Any] = {"k": 5} if call is reader.folds else {}
        assert "; merge the datasets of the mix" in refused(functools.partial(call, mix, **options))
    for split, weights in ((part, None), ("train", "balanced")):
        said = refused(functools.partial(reader.load, mix, split, weights=weights))
        assert (
            "or merge the datasets of the mix: give shardprep.repack([…], name=…).location" in said
        )
