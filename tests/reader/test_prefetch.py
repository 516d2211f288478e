"""Neighbouring records in object storage are requested together, once, and ahead of use."""

from collections import Counter
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from shardprep.dataset.manifest import Shard
from shardprep.errors import StorageError
from shardprep.reader.array_types import Ints
from shardprep.reader.order.epoch import BlockShuffle, LaneShuffle, StoredOrder
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Frames, PrefetchedBlocks
from shardprep.reader.records.shards import ByteRange

NUM_SHARDS, RECORDS_A_SHARD, RECORD_BYTES = 3, 50, 7
NUM_RECORDS = NUM_SHARDS * RECORDS_A_SHARD
LENGTH, WIDTH = 8, 2
SHARDS = tuple(
    Shard(name=f"{i}", num_records=RECORDS_A_SHARD, num_bytes=350, sha256=f"{i:064}")
    for i in range(NUM_SHARDS)
)


def frame(position: int) -> bytes:
    return position.to_bytes(RECORD_BYTES)


class Store:
    def __init__(self) -> None:
        self.parts: list[ByteRange] = []
        self.copied: set[str] = set()
        self.error: Exception | None = None

    def has_copy(self, name: str) -> bool:
        return name in self.copied

    def begin(self, part: ByteRange) -> Future[bytes]:
        self.parts.append(part)
        found = Future[bytes]()
        if self.error is not None:
            found.set_exception(self.error)
            return found
        begin = int(part.shard) * RECORDS_A_SHARD
        whole = b"".join(map(frame, range(begin, begin + RECORDS_A_SHARD)))
        found.set_result(whole[part.start : part.start + part.num_bytes])
        return found

    def records(self) -> Counter[tuple[str, int]]:
        """Return the number of requests of each record by (shard, offset)."""
        return Counter(
            (part.shard, start)
            for part in self.parts
            for start in range(part.start, part.start + part.num_bytes, RECORD_BYTES)
        )


@pytest.fixture(name="store")
def _store() -> Store:
    return Store()


def order(*, shuffle: bool = True, lanes: int = 1) -> Order:
    within: Any = StoredOrder(NUM_RECORDS, LENGTH, WIDTH)
    if shuffle:
        starts = np.arange(lanes + 1) * NUM_RECORDS // lanes
        blocks = tuple(
            BlockShuffle(num_records=one, block_length=LENGTH, group_width=WIDTH, shuffle=True)
            for one in np.diff(starts).tolist()
        )
        within = LaneShuffle(batch_size=lanes, blocks=blocks, starts=starts)
    return Order(within, GlobalBatches(NUM_RECORDS, lanes), seed=1)


def positions(of: Order, epoch: int, start: int, stop: int) -> Ints:
    return of.tags(epoch, start, stop) % NUM_RECORDS


def prefetched(store: Any, of: Order) -> PrefetchedBlocks:
    shard, record = np.divmod(np.arange(NUM_RECORDS), RECORDS_A_SHARD)
    length = np.full(NUM_RECORDS, RECORD_BYTES)
    frames = Frames(SHARDS, shard, record, record * RECORD_BYTES, length)
    return PrefetchedBlocks(store, frames, of)


def read(
    found: PrefetchedBlocks, of: Order, epoch: int, start: int = 0, size: int = 10
) -> list[bytes]:
    """Return the records of an epoch from a position on, read in batches."""
    data = []
    for begin in range(start, NUM_RECORDS, size):
        stop = min(begin + size, NUM_RECORDS)
        found.expect(epoch, begin, stop)
        data += [found.take(one).tobytes() for one in positions(of, epoch, begin, stop).tolist()]
    return data


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"lanes": 5}])
@pytest.mark.parametrize("size", [1, 100])
def test_each_record_of_an_epoch_is_requested_once(
    store: Store, options: dict[str, Any], size: int
) -> None:
    of = order(**options)
    found = prefetched(store, of)
    for epoch in range(3):
        store.parts.clear()
        expected = [frame(one) for one in positions(of, epoch, 0, NUM_RECORDS).tolist()]
        assert read(found, of, epoch, size=size) == expected
        assert set(store.records().values()) == {1}
        num_cuts = NUM_SHARDS - 1 + options.get("lanes", 1) - 1
        assert len(store.parts) <= -(-NUM_RECORDS // LENGTH) + num_cuts


def test_the_next_group_is_requested_ahead(store: Store) -> None:
    of = order()
    found = prefetched(store, of)
    found.expect(0, 0, 1)
    wanted = positions(of, 0, 0, 2 * LENGTH * WIDTH)  # of this group and the next one
    asked = store.records()
    assert {divmod(one, RECORDS_A_SHARD) for one in wanted.tolist()} == {
        (int(shard), start // RECORD_BYTES) for shard, start in asked
    }
    assert sum(asked.values()) == len(wanted)


def test_requests_are_limited_by_memory(store: Store) -> None:
    of = order()
    found = prefetched(store, of)
    found.expect(0, 0, NUM_RECORDS)
    assert sum(store.records().values()) <= 4 * LENGTH * WIDTH
    begun = len(store.parts)
    for one in positions(of, 0, 0, LENGTH * WIDTH).tolist():
        found.take(one)
    assert len(store.parts) > begun, "more when a group is used up"


def test_an_epoch_may_start_anywhere(store: Store) -> None:
    of = order()
    found = prefetched(store, of)
    for start in (100, 30, 149, 0):
        expected = [frame(one) for one in positions(of, 0, start, NUM_RECORDS).tolist()]
        assert read(found, of, 0, start) == expected


def test_two_concurrent_epochs_request_few_records_twice(store: Store) -> None:
    of = order()
    found = prefetched(store, of)
    for begin in range(0, NUM_RECORDS, 10):
        for epoch in (0, 1):
            found.expect(epoch, begin, begin + 10)
            for one in positions(of, epoch, begin, begin + 10).tolist():
                assert found.take(one).tobytes() == frame(one)
    assert sum(store.records().values()) <= 2 * 2 * NUM_RECORDS


def test_a_shard_with_a_copy_is_not_requested(store: Store) -> None:
    of = order()
    store.copied = {one.name for one in SHARDS}
    found = prefetched(store, of)
    found.expect(0, 0, NUM_RECORDS)
    assert not store.parts
    assert found.take(5).tobytes() == frame(5), "unless it vanishes"


def test_a_failed_request_is_repeated(store: Store) -> None:
    found = prefetched(store, order())
    store.error = StorageError("s3://bucket", "does not answer", "try again")
    found.expect(0, 0, 1)
    with pytest.raises(StorageError, match="does not answer"):
        found.take(5)
    store.error = None
    assert found.take(5).tobytes() == frame(5)


def test_requests_are_cancelled_when_nobody_needs_them(store: Store, monkeypatch: Any) -> None:
    answers: list[Future[bytes]] = []

    def begin(_: ByteRange) -> Future[bytes]:
        answers.append(Future())
        return answers[-1]

    monkeypatch.setattr(store, "begin", begin)
    found = prefetched(store, order())
    found.expect(0, 0, 1)
    assert answers
    del found
    assert all(one.cancelled() for one in answers)
