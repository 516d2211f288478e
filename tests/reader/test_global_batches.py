"""Global batches: plans of hosts that come and go, against one host that is never disturbed."""

import numpy as np
import pytest

from shardprep.reader.order.epoch import LaneShuffle, StoredOrder, lane_shuffle
from shardprep.reader.order.global_batches import GlobalBatches, cut
from shardprep.reader.order.order import Order
from tests.reader.clusters import NUM_GATE, NUM_READ_GATE, PHOTO, datasets, planned, read
from tests.support.paths import shared_folder

_SHARE = 50


@pytest.mark.parametrize("first", range(0, NUM_GATE, _SHARE))
def test_every_cluster_has_the_same_stream_of_global_batches(first: int) -> None:
    """The number of hosts changes between any two batches; each record is read once an epoch."""
    for seed in range(first, first + _SHARE):
        streams = planned(seed)
        assert streams.alone == streams.together


@pytest.mark.parametrize("first", range(0, NUM_READ_GATE, NUM_READ_GATE // 2))
def test_every_cluster_and_reader_continues_the_same_stream(
    first: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = shared_folder(tmp_path_factory, "numbered", datasets)
    places = sorted(folder.glob("*/out/*/1.0.0"))
    for seed in range(first, first + NUM_READ_GATE // 2):
        streams = read(seed, places)
        assert streams.alone == streams.together


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
