"""Every record once an epoch, in an order that follows from seed and epoch alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardprep.reader.arrays.epochs import Epochs

SIZES: dict[str, Any] = {
    "num_records": st.integers(1, 60), "batch_size": st.integers(1, 9),
    "num_shards": st.integers(1, 5), "shuffle": st.booleans(), "seed": st.integers(0, 2**40),
}  # fmt: skip


def epochs(**options: Any) -> Epochs:
    defaults = {"num_records": 10, "batch_size": 4, "shuffle": True, "seed": 0}
    return Epochs(**{"drop_remainder": False, **defaults, **options})


def whole(plan: Epochs, epoch: int = 0) -> list[list[int]]:
    return [plan.batch(epoch, number).tolist() for number in range(plan.num_batches)]


@given(epoch=st.integers(0, 5), **SIZES)
def test_shards_share_out_every_record_once(epoch: int, num_shards: int, **options: Any) -> None:
    parts = [
        whole(epochs(num_shards=num_shards, shard_index=one, **options), epoch)
        for one in range(num_shards)
    ]
    read = [record for part in parts for batch in part for record in batch]
    assert sorted(read) == list(range(options["num_records"]))
    assert all(part == [b for b in part if b] for part in parts), "no batch is empty"
    lengths = [sum(map(len, part)) for part in parts]
    assert max(lengths) - min(lengths) <= 1


@given(epoch=st.integers(0, 5), **SIZES)
def test_without_remainders_all_shards_have_as_many_full_batches(
    epoch: int, num_shards: int, **options: Any
) -> None:
    parts = [
        whole(epochs(num_shards=num_shards, shard_index=one, drop_remainder=True, **options), epoch)
        for one in range(num_shards)
    ]
    assert len({len(part) for part in parts}) == 1
    read = [record for part in parts for batch in part for record in batch]
    assert len(read) == len(set(read))
    assert {len(batch) for part in parts for batch in part} <= {options["batch_size"]}


@given(epoch=st.integers(0, 5), **SIZES)
def test_shards_together_read_the_batches_of_one_reader(
    epoch: int, num_shards: int, batch_size: int, **options: Any
) -> None:
    """So a run goes on with the same batches on another number of machines."""
    alone = whole(epochs(batch_size=batch_size * num_shards, **options), epoch)
    parts = [
        whole(epochs(batch_size=batch_size, num_shards=num_shards, shard_index=i, **options), epoch)
        for i in range(num_shards)
    ]
    for number, batch in enumerate(alone):
        together = [r for part in parts if number < len(part) for r in part[number]]
        assert sorted(together) == sorted(batch)


def test_unshuffled_is_the_order_of_the_records() -> None:
    assert whole(epochs(shuffle=False), 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_order_of_a_seed_and_an_epoch_is_this_one_for_ever() -> None:
    """A run that goes on under a later release must not read records twice."""
    assert whole(epochs()) == FIRST
    assert whole(epochs(), 1) == SECOND
    assert whole(epochs(seed=1)) not in (FIRST, SECOND)


FIRST = [[3, 2, 1, 8], [6, 0, 7, 4], [5, 9]]
SECOND = [[7, 4, 5, 1], [9, 8, 6, 2], [0, 3]]


def test_each_place_in_the_order_is_as_likely_for_every_record() -> None:
    counts = np.zeros((10, 10))
    for epoch in range(2_000):
        counts[np.arange(10), np.concatenate(whole(epochs(seed=7), epoch))] += 1
    chi_squared = ((counts - 200) ** 2 / 200).sum()
    assert chi_squared < 150  # 81 degrees of freedom: p < 1e-5
