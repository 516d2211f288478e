"""The engine of this machine: processes that own shards, and share the chunks of the last ones.

A worker reads, encodes, writes and commits a whole shard; the parent counts. Some shards are left
for the end, or all where there are few, or small ones beside a large one: their chunks go to
whoever is idle and are written here, so that no worker is without work while another one has a
shard. So are the shards of workers that died, whose last chunk is tried item by item.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from contextlib import closing
from itertools import chain, islice
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from shardprep import profiling
from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk
from shardprep.writer.engine.job import Progress, ShardJob, write_chunks
from shardprep.writer.engine.worker_handle import OwnedShard, Worker
from shardprep.writer.engine.worker_main import Encode, Kept, Work
from shardprep.writer.engine.worker_process import WorkerLimits
from shardprep.writer.plan.shard_plan import ShardPlan

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    _Chunk = tuple[ShardPlan | None, ChunkTask, bool]
    """A chunk, its shard, and whether it has ended a process before."""
    _Found = tuple[Any, EncodedChunk]
    """An encoded chunk, and the shard of it."""

_WINDOW = 2
"""Chunks begun and not yet taken, per worker: bounds memory, hides uneven chunks."""
_MOST_SHARED = 8
"""Shards that are left for the end: this process writes as many while a worker writes one."""
_BUSY = 0.95
"""Share of the workers' time from which on they count as busy to the end."""
_LEAVE_S = 10.0
"""Seconds that workers get to commit a whole shard when a build fails."""


def write_shards(
    job: ShardJob, shards: Sequence[ShardPlan], num_workers: int
) -> Generator[Progress]:
    """Write the shards with processes of this machine; an `Engine`.

    An item that ends its worker twice, the second time alone, is rejected: as `timeout` where it
    took longer than the limits allow, else as `crashed`. One whose worker is killed by SIGKILL is
    tried some more times. Progress comes chunk by chunk; what was done of a shard whose worker has
    died is taken back. Closing the iterator ends the workers.

    Raises:
        BuildError: a worker cannot be started, or many die one after the other.
        InternalError: a worker failed.
        ShardprepError, OSError: a shard cannot be written.

    """
    tasks = (task for shard in shards for task in job.tasks(shard))
    num_tasks = sum(1 for _ in islice(tasks, num_workers))
    num_workers = max(1, num_tasks)  # workers without a task are not started
    pool = _Pool(_Shards(job, shards, num_workers))
    with closing(pool.run(Work(job.encoder, job.limits, job.writer), num_workers)) as found:
        yield from write_chunks(job, found)


def run_chunks(
    encode: Encode, tasks: Iterable[ChunkTask], num_workers: int, limits: WorkerLimits
) -> Generator[EncodedChunk]:
    """Yield the result of each task, in the order of the tasks.

    Items are rejected and errors raised as by `write_shards`. Closing it ends the workers.
    """
    pool = _Pool(_Chunks(tasks))
    with closing(pool.run(Work(encode, limits), num_workers)) as found:
        yield from (one[1] for one in found if not isinstance(one, Progress))


class _Chunks:
    """Chunks that no worker has begun: all of them come back."""

    def __init__(self, tasks: Iterable[ChunkTask]) -> None:
        self._tasks = iter(tasks)

    def next(self, *, may_send: bool) -> OwnedShard | _Chunk | None:
        """Return what the next idle worker is to do; a chunk only where one may be sent."""
        task = next(self._tasks, None) if may_send else None
        return None if task is None else (None, task, False)

    def take_back(self, lost: OwnedShard) -> None:
        """Take a shard whose worker died."""


class _Shards(_Chunks):
    """The shards that no worker has begun: those to be owned, and those whose chunks come back."""

    def __init__(self, job: ShardJob, shards: Sequence[ShardPlan], num_workers: int) -> None:
        """Let as many chunks come back as workers would else be idle for in the end."""
        num_owned = _num_owned([len(shard.items) for shard in shards], num_workers)
        self._job = job
        self._own, self._shared = deque(shards[:num_owned]), deque(shards[num_owned:])
        self._chunks = self._of_shared()

    def _of_shared(self) -> Iterator[_Chunk]:
        while self._shared:
            shard = self._shared.popleft()
            yield from ((shard, task, False) for task in self._job.tasks(shard))

    def next(self, *, may_send: bool) -> OwnedShard | _Chunk | None:
        """Return a shard, then chunks; again a shard where more chunks come than are written."""
        shard = self._own.popleft() if self._own else None
        chunk = None if shard or not may_send else next(self._chunks, None)
        if shard is None and chunk is None and self._shared:
            shard = self._shared.pop()
        return chunk if shard is None else OwnedShard(shard, self._job)

    def take_back(self, lost: OwnedShard) -> None:
        """Take a shard whose worker died, which may have been the fault of the chunk it was at."""
        shard, suspect = lost.plan, None if lost.task is None else lost.task.start
        chunks = ((shard, task, task.start == suspect) for task in self._job.tasks(shard))
        self._chunks = chain(self._chunks, chunks)


def _num_owned(sizes: Sequence[int], num_workers: int) -> int:
    """Return how many shards of so many items are owned, in their order; the others are shared.

    Shards are about equal, but for a split that is smaller than one. While the last of those owned
    is written, there must be chunks enough for all other workers.
    """
    uneven = max(len(sizes) % num_workers, num_workers // 2)
    most = max(0, len(sizes) - _MOST_SHARED)
    usual = max(most, len(sizes) - uneven)
    for num_owned in range(usual, most - 1, -1):
        ends = [0] * num_workers
        for size in sizes[:num_owned]:
            heapq.heapreplace(ends, ends[0] + size)
        if sum(sizes) >= _BUSY * num_workers * max(ends):
            return num_owned
    return usual


class _Pool:
    """The workers, what they have not begun, and the chunks that they have sent back."""

    def __init__(self, todo: _Chunks) -> None:
        self._todo = todo
        self._workers: list[Worker] = []
        self._begun: dict[int, ShardPlan | None] = {}
        """Number of each chunk that was begun and not yet taken, and its shard."""
        self._done: dict[int, EncodedChunk] = {}
        self._num_taken = 0

    def run(self, work: Work, num_workers: int) -> Generator[Progress | _Found]:
        """Yield what is done of owned shards as it comes, and sent chunks in their order."""
        try:
            self._workers.extend(Worker(work) for _ in range(num_workers))
            while True:
                self._give()
                if self._num_taken in self._done:
                    shard = self._begun.pop(self._num_taken)
                    yield shard, self._done.pop(self._num_taken)
                    self._num_taken += 1
                    continue
                busy = {one.pipe: one for one in self._workers if one.is_busy}
                if not busy:
                    return
                for pipe in connection.wait(list(busy)):
                    yield from self._taken(busy[pipe])  # type: ignore[index]
        finally:
            self._end()

    def _give(self) -> None:
        for worker in self._workers:
            if not worker.is_idle:
                continue
            may_send = len(self._begun) < _WINDOW * len(self._workers)
            order = self._todo.next(may_send=may_send)
            if isinstance(order, OwnedShard):
                worker.own(order)
            elif order is not None:
                number = self._num_taken + len(self._begun)
                self._begun[number], task, is_suspect = order
                worker.begin(number, task, is_suspect=is_suspect)

    def _taken(self, worker: Worker) -> Iterator[Progress]:
        """Take what a worker has to say."""
        result = worker.advance()
        if isinstance(result, Kept):
            profiling.add(result.seconds)
            yield result.progress
        elif isinstance(result, EncodedChunk):
            self._done[worker.number] = result
        else:
            for lost in result:
                self._todo.take_back(lost)
                yield lost.done.taken_back()

    def _end(self) -> None:
        """End the processes; shards that are being committed get a while for it."""
        try:
            until = time.monotonic() + _LEAVE_S
            for worker in self._workers:
                if not worker.is_committing:
                    worker.end()
            for worker in self._workers:
                worker.await_commit(until)
        finally:
            for worker in self._workers:
                worker.end()
