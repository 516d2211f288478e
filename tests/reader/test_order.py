"""The order of records: against plain permutations, and the graph against the arithmetic."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardprep.reader import order
from tests.support.examples import examples

if TYPE_CHECKING:
    from shardprep.reader.order import Blocks

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)
KEYS = st.integers(0, (1 << 31) - 2)


def runs(sizes: list[int]) -> list[Any]:
    """Return frames of shards with so many records of 10, 11, 12, … bytes, 5 bytes apart."""
    found = []
    for size in sizes:
        lengths = np.arange(10, 10 + size)
        found.append(np.stack([np.cumsum(lengths) - lengths + 5, lengths], axis=1))
    return found


def positions(blocks: Blocks, numbers: Any) -> list[int]:
    return [
        int(blocks.first[i]) + record for i in numbers for record in range(int(blocks.count[i]))
    ]


@given(SIZES, st.integers(1, 9))
def test_blocks_hold_every_record_once_and_lie_where_their_frames_lie(
    sizes: list[int], length: int
) -> None:
    frames = runs(sizes)
    blocks = order.cut_blocks(frames, length)
    assert positions(blocks, range(len(blocks))) == list(range(sum(sizes)))
    assert blocks.count.max() <= length
    before = np.cumsum([0, *sizes])
    for i in range(len(blocks)):
        inside = int(blocks.first[i] - before[blocks.file[i]])
        own = frames[blocks.file[i]][inside : inside + int(blocks.count[i])]
        assert blocks.offset[i] == own[0, 0]
        assert blocks.offset[i] + blocks.num_bytes[i] == own[-1].sum()


@given(st.integers(1, 3000), KEYS)
def test_a_key_means_a_permutation(size: int, key: int) -> None:
    found = order.walked(np.arange(size, dtype=np.int64), size, key)
    assert sorted(found) == list(range(size))


@given(SIZES, st.integers(1, 9), st.integers(1, 5), st.none() | KEYS, st.data())
def test_any_place_of_an_epoch_is_found(
    sizes: list[int], length: int, width: int, key: int | None, data: Any
) -> None:
    """What is behind the place, and what it leads to, are the whole epoch."""
    blocks = order.cut_blocks(runs(sizes), length)
    num_done = data.draw(st.integers(0, sum(sizes) - 1))
    start = order.find_start(blocks, width, key, num_done)
    numbers = order.epoch_order(blocks, key)
    ahead = positions(blocks, numbers[start.group * width :])
    assert len(ahead) - start.skip == sum(sizes) - num_done
    assert 0 <= start.skip < sum(blocks.count[numbers[start.group * width :][:width]])


def test_every_place_is_as_likely_for_every_block() -> None:
    """Pearson's chi-squared, within five standard deviations of its mean."""
    for size in (3, 5, 10, 29):
        counts = np.zeros((size, size))
        places = np.arange(size, dtype=np.int64)
        epochs = 4000
        for epoch in range(epochs):
            counts[places, order.walked(places, size, order.mixed(order.fold(7), epoch))] += 1
        statistic = ((counts - epochs / size) ** 2 / (epochs / size)).sum()
        freedom = (size - 1) ** 2
        assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom), size


def test_blocks_of_an_epoch_are_as_far_from_their_order_as_chance_has_it() -> None:
    size, epochs = 4000, 30
    places = np.arange(size, dtype=np.int64)
    for seed in range(3):
        found = [
            order.walked(places, size, order.mixed(order.fold(seed), epoch))
            for epoch in range(epochs)
        ]
        ranks = [np.corrcoef(one, places)[0, 1] for one in found]
        assert np.abs(ranks).max() < 5 / np.sqrt(size)
        neighbours = np.mean([(np.abs(np.diff(one)) == 1).sum() for one in found])
        assert 1 < neighbours < 3  # 2 of a true permutation
        between = [np.corrcoef(one, other)[0, 1] for one, other in itertools.pairwise(found)]
        assert np.abs(between).max() < 5 / np.sqrt(size)


@examples(25)
@given(st.integers(1, 500), KEYS, st.integers(0, 1 << 40))
def test_the_graph_draws_the_order_that_the_arithmetic_says(
    size: int, key: int, number: int
) -> None:
    import tensorflow as tf

    from shardprep.reader.tf.order_graph import walked

    places = np.arange(size, dtype=np.int64)
    found = walked(tf.constant(places), size, tf.constant(key, tf.int64))
    assert np.array_equal(found, order.walked(places, size, key))
    mixed = order.mixed(tf.constant(key, tf.int64), tf.constant(number, tf.int64), 3)
    assert int(mixed) == order.mixed(key, number, 3)
