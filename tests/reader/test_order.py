"""The order of records: against plain permutations, and TensorFlow's own arithmetic."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.reader.decode.crop import crop_keys, draws
from shardprep.reader.order.epoch import (
    LaneShuffle,
    StoredOrder,
    WeightedDraws,
    block_sizes,
    lane_shuffle,
)
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import Order
from shardprep.reader.order.permutation import (
    mix,
    permutations,
    permute_table,
    shuffle_seeds,
    shuffled_ranges,
    table_shape,
)
from tests.support.examples import examples

KEYS = st.integers(0, (1 << 31) - 2)
SIZES: dict[str, Any] = {
    "num_records": st.integers(1, 300),
    "block_length": st.integers(1, 9),
    "group_width": st.integers(1, 5),
    "seed": st.integers(),
    "shuffle": st.booleans(),
}
EPOCHS = st.integers(0, 1 << 31)
NUM_EPOCHS = 600
"""Epochs for a statistic: each record is 20 times or more at each position."""


def make(num_records: int, **options: Any) -> Order:
    """Return an order in global batches of one record, which has one lane."""
    layout = {"block_length": 3, "group_width": 4, "shuffle": True, **options}
    seed, shuffle = layout.pop("seed", 7), layout.pop("shuffle")
    within: Any = StoredOrder(num_records, **layout)
    if shuffle:
        within = lane_shuffle(num_records, 1, 1, **layout)
    return Order(within, GlobalBatches(num_records, 1), seed)


def whole(order: Order, epoch: int = 0) -> list[int]:
    return positions(order, epoch, 0, len(order))


def positions(order: Order, epoch: int, start: int, stop: int) -> list[int]:
    found: list[int] = (order.tags(epoch, start, stop) % order.num_records).tolist()
    return found


@examples(60)
@given(epoch=EPOCHS, data=st.data(), **SIZES)
def test_an_epoch_has_every_record_once_and_any_range_of_it_is_computed(
    epoch: int, data: Any, **sizes: Any
) -> None:
    order = make(**sizes)
    found = whole(order, epoch)
    assert sorted(found) == list(range(sizes["num_records"]))
    if not sizes["shuffle"]:
        assert found == sorted(found)
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    assert positions(order, epoch, start, stop) == found[start:stop]


@examples(60)
@given(epoch=EPOCHS, **SIZES)
def test_a_group_consists_of_whole_blocks(epoch: int, **sizes: Any) -> None:
    """This bounds memory, and neighbouring records are read together."""
    order = make(**{**sizes, "shuffle": True})
    found = whole(order, epoch)
    within, key = order.within_epoch, mix(order.key, epoch)
    assert isinstance(within, LaneShuffle)
    (layout,) = within.blocks
    length = layout.block_length
    starts = [at for at in range(len(found)) if layout.find(key, at).skip == 0]
    assert len(starts) == layout.num_groups
    for start, stop in itertools.pairwise([*starts, len(found)]):
        blocks = {position // length for position in found[start:stop]}
        assert len(blocks) <= layout.group_width
        inside = [one for one in range(len(found)) if one // length in blocks]
        assert sorted(found[start:stop]) == inside


def test_orders_of_a_seed_are_the_same_in_every_release() -> None:
    """A run resumed under a later release must not read records twice."""
    order = make(20)
    first = [5, 19, 7, 4, 8, 14, 12, 13, 6, 18, 3, 11, 1, 0, 2, 10, 15, 9, 17, 16]
    second = [2, 18, 12, 8, 19, 13, 14, 7, 0, 1, 6, 11, 4, 5, 15, 17, 3, 9, 10, 16]
    assert (whole(order), whole(order, 1)) == (first, second)
    assert whole(replace(order, seed=8)) not in (first, second)
    assert whole(replace(order, reshuffle=False), 1) == first
    keys = crop_keys(order.key, np.arange(3))
    assert keys == [2088135307, 1448330754, 1868600170]
    assert [*itertools.islice(draws(12345), 2)] == [0.1330796686614273, 0.20481663336165912]


@pytest.mark.parametrize(
    ("replacement", "positions", "tags", "digest"),
    [
        (True, [3, 4, 3, 3], [39, 46, 51, 57], "79d2026a0b85af2b"),
        (False, [3, 4, 1, 2], [39, 46, 49, 56], "5fb4680daef3898a"),
    ],
)
def test_draws_of_a_seed_are_the_same_in_every_release(
    replacement: bool, positions: list[int], tags: list[int], digest: str  # noqa: FBT001
) -> None:  # fmt: skip
    weights = np.array([0, 1, 2, 5, 1, 0.5])
    drawn = WeightedDraws(weights, weights.cumsum(), replacement, 5)
    found = Order(drawn, GlobalBatches(5, 1), 7).tags(1, 1, 5)
    assert ((found % 6).tolist(), found.tolist()) == (positions, tags)
    assert drawn.description == f"weights:{digest}"


def test_the_size_of_blocks_depends_on_the_size_of_records() -> None:
    assert block_sizes(0) == block_sizes(1000) == (64, 256)
    assert block_sizes(100_000) == (20, 16)
    assert block_sizes(1 << 30) == (8, 16)


def check_chance(counts: Any, size: int, epochs: int) -> None:
    """Compare counts by Pearson's chi-squared, within five standard deviations of its mean."""
    statistic = ((counts - epochs / size) ** 2 / (epochs / size)).sum()
    freedom = (size - 1) ** 2
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom), size


@pytest.mark.thorough
def test_every_record_is_equally_likely_at_each_position() -> None:
    for num_records, options in ((10, {}), (29, {"group_width": 100}), (13, {"block_length": 1})):
        order, counts = make(num_records, **options), np.zeros((num_records, num_records))
        for epoch in range(NUM_EPOCHS):
            counts[np.arange(num_records), whole(order, epoch)] += 1
        check_chance(counts, num_records, NUM_EPOCHS)


def permutations_of_keys(size: int, keys: Any) -> Any:
    """Return the permutation of each key, computed together."""
    found = np.broadcast_to(np.arange(size, dtype=np.int64), (len(keys), size))
    found = permute_table(found, *table_shape(size), keys[:, None])
    while (found >= size).any():
        moved = permute_table(found, *table_shape(size), keys[:, None])
        found = np.where(found >= size, moved, found)
    for key, one in zip(keys[:20].tolist(), found[:20], strict=True):
        assert np.array_equal(one, permutations([size], [key])[0])
    return found


def test_every_block_is_equally_likely_at_each_position() -> None:
    for size in (3, 5, 10, 29):
        found = permutations_of_keys(size, mix(make(size).key, np.arange(4000)))
        fields = (found + size * np.arange(size)).ravel()
        check_chance(np.bincount(fields, minlength=size**2), size, 4000)


def test_blocks_are_permuted_like_by_chance() -> None:
    size, epochs = 4000, 30
    places = np.arange(size, dtype=np.int64)
    for seed in range(3):
        found = [
            permutations([size], [mix(make(size, seed=seed).key, epoch)])[0]
            for epoch in range(epochs)
        ]
        ranks = [np.corrcoef(one, places)[0, 1] for one in found]
        assert np.abs(ranks).max() < 5 / np.sqrt(size)
        neighbours = np.mean([(np.abs(np.diff(one)) == 1).sum() for one in found])
        assert 1 < neighbours < 3  # 2 of a true permutation
        between = [np.corrcoef(one, other)[0, 1] for one, other in itertools.pairwise(found)]
        assert np.abs(between).max() < 5 / np.sqrt(size)


@examples(15)
@given(st.integers(1, 500), KEYS, st.integers(0, 1 << 40))
def test_tensorflow_computes_the_same_order(size: int, key: int, number: int) -> None:
    """NumPy computes several together."""
    import tensorflow as tf

    numbers = tf.data.Dataset.range(size)
    seed, seed2 = shuffle_seeds(tf.constant(key, tf.int64))
    for window in (size, size + 7):
        shuffled = tf.raw_ops.ShuffleDataset(
            input_dataset=tf.data.experimental.to_variant(numbers), buffer_size=window, seed=seed,
            seed2=seed2, output_types=[tf.int64], output_shapes=[()],
            reshuffle_each_iteration=False,
        )  # fmt: skip
        (one,) = tf.data.experimental.from_variant(shuffled, numbers.element_spec).batch(size)
        assert one.numpy().tolist() == shuffled_ranges([3, size, 29], [1, key, 2])[1]
    (alone,) = permutations([size], [key])
    assert np.array_equal(alone, permutations([3, size, 29], [1, key, 2])[1])
    assert int(mix(tf.constant(key, tf.int64), tf.constant(number, tf.int64), 3)) == mix(
        key, number, 3
    )
