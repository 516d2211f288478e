"""Global batches: plans of hosts that come and go, against one host that is never disturbed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.reader.array_types import Ints
from shardprep.reader.order.buckets import BucketBatches
from shardprep.reader.order.epoch import LaneShuffle, StoredOrder, WeightedDraws, lane_shuffle
from shardprep.reader.order.global_batches import GlobalBatches, cut
from shardprep.reader.order.order import Order

SMALL, PHOTO, LARGE = 200, 15_000, 3_000_000
"""Bytes of a record: blocks of 64 records, 64 and 8."""


def an_order(kind: str, number: int, size: int, seed: int, **sizes: Any) -> Order:
    """Return the order of one host that reads everything."""
    batches = GlobalBatches(number, size)
    if kind == "lanes":
        within: Any = lane_shuffle(number, sizes.pop("record_bytes", PHOTO), size, **sizes)
    elif kind == "stored":
        within = StoredOrder(number, 64, 16)
    elif kind == "weights":
        weights = np.arange(1.0, number + 1)
        within = WeightedDraws(weights, np.cumsum(weights), replacement=True, num_draws=number)
    else:
        members = np.arange(number) % 3
        within = BucketBatches(
            ((1, 1), (1, 2), (2, 1)),
            tuple(np.flatnonzero(members == i) for i in range(3)),
            size,
            drop_remainder=False,
            shuffle=True,
        )
    return Order(within, batches, seed)


def num_batches(order: Order) -> int:
    within = order.within_epoch
    if isinstance(within, BucketBatches):
        return within.num_batches
    return -(-len(within) // order.batches.size)


def of_hosts(order: Order, number: int, epoch: int, batch: int) -> Ints:
    """Return a global batch as `number` hosts read it, each by itself, one after the other."""
    parts = []
    for host in range(number):
        own = replace(order, batches=replace(order.batches, host=host, num_hosts=number))
        tags, _ = own.batch(epoch, batch)
        rows = own.rows(tags)
        mine = own.within_epoch.own(own.batches)
        mine = np.arange(mine.start, mine.stop) if isinstance(mine, slice) else mine
        np.testing.assert_array_equal(mine[rows], tags % own.within_epoch.num_records)
        parts.append(tags)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == max(sizes)
    return np.concatenate(parts)


@given(data=st.data())
def test_every_cluster_reads_the_same_stream_of_global_batches(data: Any) -> None:
    """The number of hosts changes between any two batches; each record is read once an epoch."""
    kind = data.draw(st.sampled_from(["lanes", "lanes", "lanes", "stored", "weights", "buckets"]))
    size = data.draw(st.sampled_from([1, 2, 6, 12, 24, 64, 96, 128]))
    number = data.draw(st.integers(1, 600))
    sizes: dict[str, Any] = {}
    if kind == "lanes":
        sizes["record_bytes"] = data.draw(st.sampled_from([SMALL, PHOTO, LARGE]))
        sizes["block_length"] = data.draw(st.sampled_from([None, 1, 3, 8]))
        sizes["group_width"] = data.draw(st.sampled_from([None, 1, 5]))
    order = an_order(kind, number, size, data.draw(st.integers(0, 99)), **sizes)
    clusters = [n for n in range(1, 65) if size % n == 0 and n <= number]
    epoch = data.draw(st.integers(0, 3))
    alone, together = hashlib.sha256(), hashlib.sha256()
    seen = []
    for batch in range(num_batches(order)):
        whole, _ = order.batch(epoch, batch)
        alone.update(whole.tobytes())
        number_of_hosts = data.draw(st.sampled_from(clusters))
        together.update(of_hosts(order, number_of_hosts, epoch, batch).tobytes())
        seen.append(whole)
    assert alone.hexdigest() == together.hexdigest()
    tags = np.concatenate(seen)
    assert len(np.unique(tags)) == len(tags) == number
    if kind != "weights":
        np.testing.assert_array_equal(np.sort(tags % number), np.arange(number))


@pytest.mark.parametrize("hosts", [1, 2, 4, 8, 16])
def test_hosts_whose_number_divides_the_lanes_share_no_record(hosts: int) -> None:
    """The same records in every epoch, so that a host caches only its own."""
    order = lane_shuffle(100_003, PHOTO, 512)
    assert len(order.blocks) == 16
    owned = [order.own(GlobalBatches(100_003, 512, host, hosts)) for host in range(hosts)]
    assert [one.stop for one in owned[:-1]] == [one.start for one in owned[1:]]
    assert (owned[0].start, owned[-1].stop) == (0, 100_003)


@pytest.mark.parametrize("hosts", [3, 5, 6, 7, 12])
def test_other_numbers_of_hosts_read_at_most_half_as_much_again(hosts: int) -> None:
    order = lane_shuffle(100_000, PHOTO, 64 * hosts)
    owned = [order.own(GlobalBatches(100_000, 64 * hosts, host, hosts)) for host in range(hosts)]
    assert sum(one.stop - one.start for one in owned) <= 1.5 * 100_000


@pytest.mark.parametrize(
    ("number", "size", "lanes"),
    [
        (100_000, 1, 1), (100_000, 3, 2), (100_000, 8, 8), (100_000, 64, 8), (100_000, 127, 8),
        (100_000, 128, 16), (100_000, 512, 16), (100_000, 4096, 16),
        (2000, 64, 1),  # all of it is mixed at a time
    ],
)  # fmt: skip
def test_lanes_follow_from_the_size_of_a_global_batch(number: int, size: int, lanes: int) -> None:
    assert len(lane_shuffle(number, PHOTO, size).blocks) == lanes


def test_each_batch_takes_a_fixed_number_of_records_from_every_lane() -> None:
    order = lane_shuffle(50_000, PHOTO, 100)
    assert isinstance(order, LaneShuffle)
    taken = {
        tuple(np.bincount(np.searchsorted(order.starts, positions, side="right") - 1).tolist())
        for batch in range(50_000 // 100)
        for positions in [order.at(7, 0, np.arange(batch * 100, (batch + 1) * 100))]
    }
    assert taken == {(13, 12, 13, 12, 13, 12, 13, 12)}


def test_parts_of_a_batch_nest() -> None:
    """The cuts for twice as many hosts include the others."""
    for size in range(40):
        for parts in range(1, 9):
            cuts = [cut(i, size, parts) for i in range(parts + 1)]
            assert cuts == [cut(2 * i, size, 2 * parts) for i in range(parts + 1)]


def test_the_records_of_a_host_are_computed_once_and_not_for_each_batch() -> None:
    """In stored order they are scattered, as many numbers as the host reads in an epoch."""
    order = Order(StoredOrder(1000, 64, 16), GlobalBatches(1000, 8, 1, 2), 1)
    assert order.own is order.own
    np.testing.assert_array_equal(order.own, order.batches.places(0, 500))
