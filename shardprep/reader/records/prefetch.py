"""Blocks of records in object storage: each asked for at once, before it is wanted.

The records of a block lie together and are wanted soon after each other, mixed with those of the
other blocks of a group (`Order`). So a block comes by one request and is held in memory until each
of its records has been taken; the blocks of the group that comes next are on their way meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardprep.dataset.manifest import Shard
from shardprep.reader.array_types import Bytes
from shardprep.reader.order.epoch import BlockShuffle
from shardprep.reader.records.positions import Frames
from shardprep.reader.records.remote import ByteRange, RemoteShards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

GAP_BYTES = 256 << 10
"""Bytes between two wanted records that cost less than another request."""
MOST_GROUP_BYTES = 64 << 20
"""Bytes of a group that is held; larger records come one by one, which costs them little."""
_NUM_GROUPS = 4
"""Groups held at a time: two of which batches are made, and others on their way."""
_NUM_EPOCHS = 4
"""Epochs that may be read at a time, by several iterators."""


class _Block(NamedTuple):
    """A block that has been asked for."""

    runs: list[Future[bytes | memoryview]]
    """The bytes of its runs."""
    rows: list[tuple[int, int, int]]
    """Number of its run, start in it and bytes of each record, in the order of positions."""
    left: list[int]
    """Number of takes for which it is held still, one number."""


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
        """By their numbers; that which was used longest ago comes first."""
        self._most = _NUM_GROUPS * blocks.group_width
        self._expected: deque[int] = deque()
        self._groups: dict[int, int] = {}
        """The last group of each epoch that was expected."""

    def __del__(self) -> None:
        for block in self._held.values():
            for run in block.runs:
                run.cancel()

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """Ask for the records at these places of an epoch and those of the next group, if need be.

        No more is asked for than may be held; the rest follows when blocks are done with.
        """
        blocks, key = self._blocks, self._epoch_key(epoch)
        first, last = (blocks.find(key, place).group for place in (start, stop - 1))
        with self._lock:
            expected = self._groups.pop(epoch, -1)
            last = min(last + 1, blocks.num_groups - 1)
            if expected - 1 <= first <= expected:  # it goes on
                first, last = expected + 1, max(expected, last)
            for group in range(first, last + 1):
                self._expected += blocks.blocks(key, group).tolist()
            self._groups[epoch] = last
            if len(self._groups) > _NUM_EPOCHS:
                del self._groups[next(iter(self._groups))]
            self._ask()

    def read(self, position: int, part: ByteRange) -> Bytes:
        """Return the frame of the record at a position, of the copy of its shard or as `take`."""
        copied = self._store.read_copy(part)
        return self.take(position) if copied is None else np.frombuffer(copied, np.uint8)

    def take(self, position: int) -> Bytes:
        """Return a frame out of its block, fewer bytes where the shard ends before.

        Raises as `RemoteShards.read`.
        """
        number, row = divmod(position, self._blocks.block_length)
        with self._lock:
            block = self._held.get(number)
            if block is None:
                if len(self._held) >= self._most:
                    self._held.popitem(last=False)
                block = self._begin(number)
            self._held.move_to_end(number)
            block.left[0] -= 1
            if block.left[0] == 0:
                del self._held[number]
                self._ask()
        run, start, num_bytes = block.rows[row]
        try:
            data = np.frombuffer(block.runs[run].result(), np.uint8)
        except BaseException:
            with self._lock:  # whoever tries again asks again
                self._held.pop(number, None)
            raise
        return data[start : start + num_bytes]

    def _ask(self) -> None:
        """Ask for what is expected, as far as it may be held; the lock is taken."""
        while self._expected and len(self._held) < self._most:
            number = self._expected.popleft()
            if number not in self._held and not self._is_here(number):
                self._begin(number)

    def _is_here(self, number: int) -> bool:
        """Tell whether there is a copy of the shard with the first record of a block."""
        shard = self._frames.shard.item(number * self._blocks.block_length)
        return self._store.has_copy(self._shards[shard].name)

    def _begin(self, number: int) -> _Block:
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
