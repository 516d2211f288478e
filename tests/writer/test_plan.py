import functools
import math
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.catalog.items import Item
from shardprep.dataset.documents import shard_name
from shardprep.errors import RecipeError
from shardprep.source.byte_range import PlainExtent
from shardprep.writer.plan import shard_plan
from shardprep.writer.plan.shard_plan import MAX_CHUNK_ITEMS, SHARD_BYTES, chunks
from shardprep.writer.plan.source_plan import _shares, cut_splits
from tests.support.examples import examples

SIXTY = examples(60, database=None)
plan_shards = functools.partial(shard_plan.plan_shards, "pets")


def item(key: str, split: str = "train", *labels: int, group: str = "") -> Item:
    target = labels[0] if len(labels) == 1 else labels or None
    return Item(key, PlainExtent("source", 0, 1), split, target, labels, group)


def items_of(split: str, number: int) -> list[Item]:
    return [item(f"{split}/{i}.jpg", split) for i in range(number)]


def labelled(counts: Sequence[int]) -> list[Item]:
    return [
        item(f"{label}/{i}.jpg", "train", label) for label, n in enumerate(counts) for i in range(n)
    ]


def keys(items: Sequence[Item]) -> list[str]:
    return [item.key for item in items]


def shuffled(items: Sequence[Item], seed: int) -> list[Item]:
    return random.Random(seed).sample(items, len(items))


_KEYS = st.lists(st.text("ab/é0", min_size=1), min_size=1, max_size=80, unique=True)
_SPLIT_NAMES = st.sampled_from(["train", "validation", "test", "extra"])
ITEMS = _KEYS.flatmap(
    lambda names: st.lists(_SPLIT_NAMES, min_size=len(names), max_size=len(names)).map(
        lambda splits: [item(key, split) for key, split in zip(names, splits, strict=True)]
    )
)
SEEDS = st.integers(0, 2**63 - 1)


def _largest(items: Sequence[Item]) -> int:
    return max(Counter(item.split for item in items).values())


# Shards


@given(ITEMS, st.integers(1, 20), SEEDS, st.integers())
@SIXTY
def test_shards_are_a_partition_of_the_items_in_equal_sizes(
    items: list[Item], num_shards: int, seed: int, order: int
) -> None:
    """They do not depend on the order of the items."""
    largest = _largest(items)
    num_shards = min(num_shards, largest)
    shards = plan_shards(items, num_shards, 0, seed)
    assert plan_shards(shuffled(items, order), num_shards, 0, seed) == shards
    planned = [item for shard in shards for item in shard.items]
    assert sorted(keys(planned)) == sorted(keys(items))
    assert set(planned) == set(items)
    sizes = Counter(item.split for item in items)
    for split, group in groupby(shards, lambda shard: shard.split):
        own = list(group)
        assert all(item.split == split for shard in own for item in shard.items)
        lengths = [len(shard.items) for shard in own]
        assert 1 <= min(lengths) <= max(lengths) <= min(lengths) + 1
        exact = Fraction(num_shards * sizes[split], largest)
        assert len(own) == 1 or abs(len(own) - exact) <= Fraction(1, 2)
        assert sizes[split] != largest or len(own) == num_shards
        names = [shard_name("pets", split, i, len(own)) for i in range(len(own))]
        assert [shard.name for shard in own] == names


def test_train_comes_first_and_other_splits_by_name() -> None:
    names = ["zoo", "test", "extra", "train", "validation"]
    shards = plan_shards([item(name, name) for name in names], 1, 0, 0)
    assert [shard.split for shard in shards] == ["train", "validation", "test", "extra", "zoo"]


def test_another_seed_gives_another_order() -> None:
    items = items_of("train", 50)
    orders = {tuple(keys(plan_shards(items, 1, 0, seed)[0].items)) for seed in range(5)}
    assert len(orders) == 5


def test_the_order_of_a_seed_never_changes() -> None:
    (shard,) = plan_shards(items_of("train", 8), 1, 0, 7)
    assert keys(shard.items) == [f"train/{i}.jpg" for i in (0, 6, 2, 3, 5, 4, 1, 7)]


def test_one_more_item_does_not_reorder_the_others() -> None:
    items = items_of("train", 50)
    (before,) = plan_shards(items, 1, 0, 3)
    (after,) = plan_shards([*items, item("new.jpg")], 1, 0, 3)
    assert [key for key in keys(after.items) if key != "new.jpg"] == keys(before.items)


def test_classes_are_mixed_in_every_shard() -> None:
    shards = plan_shards(labelled([500, 500]), 4, 0, 0)
    shares = [sum(item.label for item in shard.items) / len(shard.items) for shard in shards]
    assert all(0.4 < share < 0.6 for share in shares)


def test_more_shards_than_images_are_an_error_that_says_how_many_can_be() -> None:
    items = items_of("train", 12) + items_of("test", 30)
    with pytest.raises(
        RecipeError, match=r"^--shards: asks for 31, .* has 30 images; use --shards 30 or"
    ):
        plan_shards(items, 31, 0, 0)
    assert len(plan_shards(items, 30, 0, 0)) == 42


@pytest.mark.parametrize(
    ("estimated_bytes", "num_items", "num_shards"),
    [
        (0, 10, 1),
        (SHARD_BYTES // 3, 10, 1),
        (SHARD_BYTES, 10, 1),
        (5 * SHARD_BYTES, 10, 5),
        (500 * SHARD_BYTES, 10, 10),
        (1, 1, 1),
    ],
)
def test_shards_are_about_128_mib_where_no_number_is_asked_for(
    estimated_bytes: int, num_items: int, num_shards: int
) -> None:
    assert len(plan_shards(items_of("train", num_items), None, estimated_bytes, 0)) == num_shards


def test_the_largest_split_decides_the_size_of_shards() -> None:
    items = items_of("train", 80) + items_of("test", 20)
    counts = Counter(shard.split for shard in plan_shards(items, None, 10 * SHARD_BYTES, 0))
    assert counts == {"train": 8, "test": 2}


# Chunks


@given(st.integers(1, 700), st.integers(0, 10**6), st.integers(0, 1 << 32))
@SIXTY
def test_chunks_are_the_items_of_the_shard_in_order(
    size: int, more_items: int, record_bytes: int
) -> None:
    (shard,) = plan_shards(items_of("train", size), 1, 0, 0)
    cut = list(chunks(shard, size + more_items, record_bytes))
    assert tuple(item for chunk in cut for item in chunk) == tuple(shard.items)
    assert all(1 <= len(chunk) <= MAX_CHUNK_ITEMS == 256 for chunk in cut)


def test_a_chunk_of_large_records_stays_small() -> None:
    (shard,) = plan_shards(items_of("train", 300), 1, 0, 0)
    for record_bytes in (1 << 20, 100 << 20, 4 << 30):
        most = max(len(chunk) for chunk in chunks(shard, 10**6, record_bytes))
        assert most == 1 or most * record_bytes <= 64 << 20


def test_a_small_build_is_cut_into_chunks_for_many_workers() -> None:
    (shard,) = plan_shards(items_of("train", 256), 1, 0, 0)
    assert len(list(chunks(shard, 256, 10_000))) >= 32


# Cutting splits

_WEIGHTS = st.lists(st.integers(1, 20), min_size=1, max_size=4)
_COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


def _ratios(weights: Sequence[int]) -> dict[str, Fraction]:
    names = ("train", "validation", "test", "extra")
    return {
        name: Fraction(weight, sum(weights)) for name, weight in zip(names, weights, strict=False)
    }


def _floats(ratios: dict[str, Fraction]) -> dict[str, float]:
    return {name: float(ratio) for name, ratio in ratios.items()}


@given(_COUNTS, _WEIGHTS, SEEDS)
@SIXTY
def test_a_cut_puts_every_item_into_one_split_and_its_share_of_every_class(
    counts: list[int], weights: list[int], seed: int
) -> None:
    items = labelled(counts)
    ratios = _ratios(weights)
    cut = cut_splits(items, _floats(ratios), seed)
    assert sorted(keys(cut.items)) == sorted(keys(items))
    assert {item.split for item in cut.items} <= set(ratios)
    assert {i.key: i.target for i in cut.items} == {i.key: i.target for i in items}
    assert cut.left_out == []
    found = Counter((item.label, item.split) for item in cut.items)
    for label, number in enumerate(counts):
        for split, ratio in ratios.items():
            exact = number * ratio
            assert math.floor(exact) <= found[label, split] <= math.ceil(exact)
    totals = Counter(item.split for item in cut.items)
    bound = 1 if len(ratios) <= 2 else 2
    assert all(abs(totals[split] - sum(counts) * r) <= bound for split, r in ratios.items())


@given(_COUNTS, _WEIGHTS, SEEDS, st.integers(), st.integers(0, 5))
@SIXTY
def test_a_cut_does_not_depend_on_the_order_of_the_items(
    counts: list[int], weights: list[int], seed: int, order: int, unlabelled: int
) -> None:
    items = labelled(counts) + items_of("test", unlabelled)
    ratios = _floats(_ratios(weights))
    one, two = (cut_splits(given, ratios, seed) for given in (items, shuffled(items, order)))
    assert set(one.items) == set(two.items)
    assert set(one.left_out) == set(two.left_out)


def test_many_small_classes_do_not_add_up_to_a_wrong_share() -> None:
    cut = cut_splits(labelled([3] * 120), {"train": 0.8, "validation": 0.1, "test": 0.1}, 0)
    found = Counter(item.split for item in cut.items)
    assert abs(found["train"] - 288) <= 2
    assert abs(found["validation"] - 36) <= 2


@pytest.mark.parametrize("ratio", [0.1999991, 0.2000009])
def test_ratios_that_add_up_to_almost_1_lose_no_item(ratio: float) -> None:
    ratios = {"train": 0.8, "test": ratio}  # a recipe takes a sum within 1e-6 of 1
    assert sum(_shares(2_000_000, ratios, dict.fromkeys(ratios, 0.0)).values()) == 2_000_000


def test_another_seed_cuts_otherwise() -> None:
    cuts = [cut_splits(labelled([40]), {"train": 0.5, "test": 0.5}, seed) for seed in range(5)]
    assert len({frozenset(cut.items) for cut in cuts}) == 5


def test_the_order_in_a_shard_does_not_tell_how_splits_were_cut() -> None:
    items = labelled([1000])
    test = {
        i.key for i in cut_splits(items, {"train": 0.5, "test": 0.5}, 0).items if i.split == "test"
    }
    (shard,) = plan_shards(items, 1, 0, 0)
    share = sum(key in test for key in keys(shard.items)[:500]) / 500
    assert 0.4 < share < 0.6


@pytest.mark.parametrize(
    ("num_labelled", "second", "wanted", "num_left_out"),
    [
        ([10, 10], "validation", {"train": 10, "validation": 10, "test": 5}, 0),
        ([10, 10], "test", {"train": 10, "test": 10}, 5),
        ([], "test", {"train": 15, "test": 15}, 0),
    ],
    ids=["it stays test", "the cut makes test of labelled ones", "nothing is labelled"],
)
def test_an_unlabelled_test_set_beside_a_cut(
    num_labelled: list[int], second: str, wanted: dict[str, int], num_left_out: int
) -> None:
    given_test = items_of("test", 5)
    items = (labelled(num_labelled) or items_of("train", 25)) + given_test
    cut = cut_splits(items, {"train": 0.5, second: 0.5}, 0)
    assert Counter(item.split for item in cut.items) == wanted
    if second == "validation":
        assert {*keys(given_test)} == {one.key for one in cut.items if one.split == "test"}
    assert {*cut.left_out} == {*given_test[:num_left_out]}


# Cutting splits of groups, and of items with several classes

_GROUPED = st.lists(
    st.tuples(st.sets(st.integers(0, 3), max_size=3), st.integers(0, 9)), min_size=1, max_size=60
).map(
    lambda rows: [
        item(f"{i}.jpg", "train", *sorted(labels), group=f"g{group}" if group else "")
        for i, (labels, group) in enumerate(rows)
    ]
)


@given(_GROUPED, _WEIGHTS, SEEDS, st.integers())
@SIXTY
def test_a_cut_keeps_groups_whole_and_does_not_depend_on_the_order_of_the_items(
    items: list[Item], weights: list[int], seed: int, order: int
) -> None:
    ratios = _floats(_ratios(weights))
    cut = cut_splits(items, ratios, seed)
    assert sorted(keys([*cut.items, *cut.left_out])) == sorted(keys(items))
    again = cut_splits(shuffled(items, order), ratios, seed)
    assert (set(again.items), set(again.left_out)) == (set(cut.items), set(cut.left_out))
    labelled_keys = {i.key for i in items if i.target is not None}
    splits: dict[str, set[str]] = {}
    for one in cut.items:
        if one.group and (one.key in labelled_keys or not labelled_keys):
            splits.setdefault(one.group, set()).add(one.split)
    assert all(len(split) == 1 for split in splits.values())


def test_small_groups_come_near_to_the_ratios_in_every_class() -> None:
    items = [
        item(f"{label}/{i}.jpg", "train", label, group=f"{label} {i // 5}")
        for label, number in enumerate((300, 200, 100))
        for i in range(number)
    ]
    cut = cut_splits(items, {"train": 0.8, "validation": 0.1, "test": 0.1}, 0)
    found = Counter((i.target, i.split) for i in cut.items)
    for label, number in enumerate((300, 200, 100)):
        assert abs(found[label, "train"] - 0.8 * number) <= 5
        assert abs(found[label, "validation"] - 0.1 * number) <= 5


@given(SEEDS, st.integers(2, 9))
@SIXTY
def test_groups_that_mix_classes_keep_the_share_of_each_split_and_class(
    seed: int, size: int
) -> None:
    classes = [0, 1, 1, 2] * 150
    random.Random(seed).shuffle(classes)
    items = [
        item(f"{i}.jpg", "train", label, group=f"g{i // size}") for i, label in enumerate(classes)
    ]
    ratios = {"train": 0.7, "validation": 0.15, "test": 0.15}
    cut = cut_splits(items, ratios, seed)
    sizes = Counter(one.split for one in cut.items)
    found = Counter((one.split, one.target) for one in cut.items)
    for split, share in ratios.items():
        assert abs(sizes[split] - share * len(items)) <= size
        for label in range(3):
            assert abs(found[split, label] - share * classes.count(label)) <= size


def test_classes_of_images_with_several_come_near_to_the_ratios() -> None:
    rng = random.Random(0)
    shares = (0.5, 0.3, 0.1, 0.05)
    items = [
        item(f"{i}.jpg", "train", *(k for k, share in enumerate(shares) if rng.random() < share))
        for i in range(1000)
    ]
    items = [one for one in items if one.strata]
    cut = cut_splits(items, {"train": 0.8, "test": 0.2}, 0)
    wanted = Counter(label for i in items for label in i.strata)
    found = Counter(label for i in cut.items if i.split == "test" for label in i.strata)
    assert all(abs(found[label] - 0.2 * wanted[label]) <= 3 for label in wanted)
    assert abs(sum(i.split == "test" for i in cut.items) - 0.2 * len(items)) <= 8


# Names of shards


@given(
    st.from_regex("[a-z][a-z0-9_]{0,20}", fullmatch=True),
    st.sampled_from(["train", "validation", "test", "extra_1"]),
    st.integers(0, 99_998),
    st.integers(1, 99_999),
)
@examples(60, database=None)
def test_shards_are_named_as_tfds_names_them(
    dataset: str, split: str, index: int, count: int
) -> None:
    index %= count
    naming = pytest.importorskip("tensorflow_datasets.core.naming")
    template = naming.ShardedFileTemplate(
        data_dir="folder", dataset_name=dataset, split=split, filetype_suffix="tfrecord"
    )
    path = template.sharded_filepath(shard_index=index, num_shards=count)
    assert shard_name(dataset, split, index, count) == path.name


def test_a_glob_of_the_split_finds_its_shards_and_nothing_else(tmp_path: Path) -> None:
    for split in ("train", "train_2", "test"):
        for index in range(3):
            (tmp_path / shard_name("cats", split, index, 3)).touch()
    found = sorted(path.name for path in tmp_path.glob("cats-train.tfrecord*"))
    assert found == [f"cats-train.tfrecord-0000{i}-of-00003" for i in range(3)]
