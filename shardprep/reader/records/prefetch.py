"""Blocks of records read ahead from object storage, one request each.

The records of a block are neighbours in a shard, and an epoch uses them within one group of blocks
(`BlockShuffle`). So a block is read by one request and stays in memory until each of its records
was taken. The blocks of the next group are requested before they are needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardprep.dataset.manifest import Shard
from shardprep.reader.array_types import Bytes
from shardprep.reader.order.epoch import BlockShuffle
from shardprep.reader.records.positions import Frames
from shardprep.reader.records.remote import ByteRange, RemoteShards

if TYPE_CHECKING:
    from concurrent.futures import Future

GAP_BYTES = 256 << 10
"""Bytes between two records that are cheaper to read than to request separately."""
MOST_GROUP_BYTES = 64 << 20
"""Maximum size of a group in memory. Larger records are read one by one, at little extra cost."""
_NUM_GROUPS = 4
"""Number of groups in memory: two that batches are made of, and others that are requested."""
_NUM_EPOCHS = 4
"""Number of epochs that several iterators may read concurrently."""


class _Block(NamedTuple):
    """A block that was requested."""

    runs: list[Future[bytes | memoryview]]
    rows: list[tuple[int, int, int]]
    """Number of the run, start in it and size in bytes of each record, by position."""
    num_left: list[int]
    """Number of records that were not taken yet, as a list of one to be mutable."""


class PrefetchedBlocks:
    """The blocks of an order, read ahead from object storage. Read by many threads."""

    def __init__(
        self,
        store: RemoteShards,
        shards: Sequence[Shard],
        frames: Frames,
        blocks: BlockShuffle,
        epoch_key: Callable[[int], int],
    ) -> None:
        """Take the frames of the blocks' positions; `shards` are those that `frames` number."""
        self._store, self._shards, self._frames = store, shards, frames
        self._blocks, self._epoch_key = blocks, epoch_key
        self._lock = threading.Lock()
        self._held: OrderedDict[int, _Block] = OrderedDict()
        """Blocks by number, the least recently used first."""
        self._max_held = _NUM_GROUPS * blocks.group_width
        self._expected: deque[int] = deque()
        self._groups: dict[int, int] = {}
        """The last expected group of each epoch."""

    def __del__(self) -> None:
        for block in self._held.values():
            for run in block.runs:
                run.cancel()

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """Request the records at these places of an epoch, and those of the next group.

        Requests beyond the limit of memory follow when other blocks are used up.
        """
        blocks, key = self._blocks, self._epoch_key(epoch)
        first, last = (blocks.find(key, place).group for place in (start, stop - 1))
        with self._lock:
            expected = self._groups.pop(epoch, -1)
            last = min(last + 1, blocks.num_groups - 1)
            if expected - 1 <= first <= expected:  # the epoch continues
                first, last = expected + 1, max(expected, last)
            for group in range(first, last + 1):
                self._expected += blocks.blocks(key, group).tolist()
            self._groups[epoch] = last
            if len(self._groups) > _NUM_EPOCHS:
                del self._groups[next(iter(self._groups))]
            self._request_expected()

    def read(self, position: int, part: ByteRange) -> Bytes:
        """Return the frame of a record from a copy of its shard, or else from its block."""
        copied = self._store.read_copy(part)
        return self.take(position) if copied is None else np.frombuffer(copied, np.uint8)

    def take(self, position: int) -> Bytes:
        """Return a frame from its block, or fewer bytes at the end of a truncated shard."""
        number, row = divmod(position, self._blocks.block_length)
        with self._lock:
            block = self._held.get(number)
            if block is None:
                if len(self._held) >= self._max_held:
                    self._held.popitem(last=False)
                block = self._request(number)
            self._held.move_to_end(number)
            block.num_left[0] -= 1
            if block.num_left[0] == 0:
                del self._held[number]
                self._request_expected()
        run, start, num_bytes = block.rows[row]
        try:
            data = np.frombuffer(block.runs[run].result(), np.uint8)
        except BaseException:
            with self._lock:  # so that another try requests it again
                self._held.pop(number, None)
            raise
        return data[start : start + num_bytes]

    def _request_expected(self) -> None:
        """Request expected blocks up to the limit. The caller holds the lock."""
        while self._expected and len(self._held) < self._max_held:
            number = self._expected.popleft()
            if number not in self._held and not self._is_copied(number):
                self._request(number)

    def _is_copied(self, number: int) -> bool:
        shard = self._frames.shard.item(number * self._blocks.block_length)
        return self._store.has_copy(self._shards[shard].name)

    def _request(self, number: int) -> _Block:
        length = self._blocks.block_length
        frames = self._frames[number * length : (number + 1) * length]
        runs: list[Future[bytes | memoryview]] = []
        rows: list[tuple[int, int, int]] = []
        for start, stop in frames.runs(GAP_BYTES):
            run = frames[start:stop]
            starts = (run.offset - run.offset[0]).tolist()
            rows += [(len(runs), *row) for row in zip(starts, run.length.tolist(), strict=True)]
            name = self._shards[run.shard.item(0)].name
            num_bytes = starts[-1] + run.length.item(-1)
            runs.append(self._store.begin(ByteRange(name, run.offset.item(0), num_bytes)))
        block = self._held[number] = _Block(runs, rows, [len(rows)])
        return block
