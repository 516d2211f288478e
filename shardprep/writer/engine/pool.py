"""The engine of this machine: worker processes that own shards, and share the chunks of some.

The first shards are owned: a worker reads, encodes, writes and commits the whole shard, and this
process only counts. The last shards are shared: their chunks go to any idle worker and are written
here, so that no worker is idle while another one still has a shard. All shards are shared if there
are few, or if one is much larger than the others. The shards of a worker that died are shared too.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from multiprocessing import connection
from typing import NamedTuple

from shardprep.profiling import stage
from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk
from shardprep.writer.engine.job import LEAVE_S, ItemCounts, OnProgress, ShardJob, ShardSink
from shardprep.writer.engine.worker_handle import OwnedShard, Worker
from shardprep.writer.engine.worker_main import Encode, Work
from shardprep.writer.engine.worker_process import WorkerLimits
from shardprep.writer.plan.shard_plan import ShardPlan

_WINDOW = 2
"""Chunks begun and not yet taken, per worker: bounds memory, hides uneven chunks."""
_MOST_SHARED = 8
"""Shards that are left for the end: this process writes as many while a worker writes one."""
_BUSY = 0.95
"""Share of the workers' time from which on they count as busy to the end."""


def write_shards(
    job: ShardJob, shards: Sequence[ShardPlan], num_workers: int, on_progress: OnProgress
) -> None:
    """Write the shards with processes of this machine; an `Engine`.

    An item that ends its worker twice, the second time alone, is rejected: as `timeout` if it
    took longer than the limits allow, else as `crashed`. One whose worker is killed by SIGKILL is
    tried some more times. Progress comes chunk by chunk; if a worker dies, the counts of its shard
    are taken back.

    Raises:
        BuildError: a worker cannot be started, or many die one after the other.
        InternalError: a worker failed.
        ShardprepError, OSError: a shard cannot be written.

    """
    tasks = (task for shard in shards for task in job.tasks(shard))
    num_tasks = sum(1 for _ in islice(tasks, num_workers))
    num_workers = max(1, num_tasks)  # workers without a task are not started
    work = Work(job.encoder, job.limits, job.writer, job.is_timed)
    with ShardSink(job) as sink:

        def on_chunk(shard: ShardPlan | None, chunk: EncodedChunk) -> None:
            assert shard is not None  # noqa: S101 - of `_Shards`
            sink.append(shard, chunk)
            on_progress(ItemCounts.of(chunk))

        _Pool(_Shards(job, shards, num_workers), on_chunk, on_progress).run(work, num_workers)


def run_chunks(
    encode: Encode,
    tasks: Iterable[ChunkTask],
    num_workers: int,
    limits: WorkerLimits,
    on_chunk: Callable[[EncodedChunk], None],
) -> None:
    """Call `on_chunk` with the result of each task, in the order of the tasks.

    Items are rejected and errors raised as by `write_shards`.
    """
    pool = _Pool(_Chunks(tasks), lambda _, chunk: on_chunk(chunk), lambda _: None)
    pool.run(Work(encode, limits), num_workers)


class _SharedChunk(NamedTuple):
    """A chunk that comes back from its worker."""

    shard: ShardPlan | None
    task: ChunkTask
    is_suspect: bool
    """Whether it has ended a process before."""


class _Chunks:
    """Chunks that no worker has begun: all of them come back."""

    def __init__(self, tasks: Iterable[ChunkTask]) -> None:
        self._tasks = iter(tasks)

    def next(self, *, may_share: bool) -> OwnedShard | _SharedChunk | None:
        """Return the next order for an idle worker; a chunk only if one may be shared."""
        task = next(self._tasks, None) if may_share else None
        return None if task is None else _SharedChunk(None, task, is_suspect=False)

    def take_back(self, lost: OwnedShard) -> None:
        """Take a shard whose worker died."""


class _Shards(_Chunks):
    """The shards that no worker has begun: those to be owned, and those to be shared."""

    def __init__(self, job: ShardJob, shards: Sequence[ShardPlan], num_workers: int) -> None:
        num_owned = _num_owned([len(shard.items) for shard in shards], num_workers)
        self._job = job
        self._own, self._shared = deque(shards[:num_owned]), deque(shards[num_owned:])
        self._chunks = self._of_shared()

    def _of_shared(self) -> Iterator[_SharedChunk]:
        while self._shared:
            shard = self._shared.popleft()
            for task in self._job.tasks(shard):
                yield _SharedChunk(shard, task, is_suspect=False)

    def next(self, *, may_share: bool) -> OwnedShard | _SharedChunk | None:
        """Return a shard, then chunks; a shard again when chunks come faster than are written."""
        shard = self._own.popleft() if self._own else None
        chunk = None if shard or not may_share else next(self._chunks, None)
        if shard is None and chunk is None and self._shared:
            shard = self._shared.pop()
        return chunk if shard is None else OwnedShard(shard, self._job)

    def take_back(self, lost: OwnedShard) -> None:
        """Share a shard whose worker died, perhaps because of the chunk it was at."""
        shard, suspect = lost.plan, None if lost.task is None else lost.task.start
        chunks = (
            _SharedChunk(shard, task, task.start == suspect) for task in self._job.tasks(shard)
        )
        self._chunks = chain(self._chunks, chunks)


def _num_owned(sizes: Sequence[int], num_workers: int) -> int:
    """Return how many of the shards, given by their numbers of items, have an owner.

    Shards have about equal sizes, except in a split that is smaller than one shard. While the last
    owned shard is written, there must be enough chunks for all other workers.
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
    """The workers, their orders, and the chunks that came back out of order."""

    def __init__(
        self,
        todo: _Chunks,
        on_chunk: Callable[[ShardPlan | None, EncodedChunk], None],
        on_progress: OnProgress,
    ) -> None:
        self._todo, self._on_chunk, self._on_progress = todo, on_chunk, on_progress
        self._workers: list[Worker] = []
        self._begun: dict[int, ShardPlan | None] = {}
        """Number of each chunk that was begun and not yet passed on, and its shard."""
        self._done: dict[int, EncodedChunk] = {}
        self._num_passed_on = 0

    def run(self, work: Work, num_workers: int) -> None:
        """Do everything; pass on shared chunks in order, and progress of owned shards at once."""
        try:
            for _ in range(num_workers):
                self._workers.append(Worker(work, self._on_progress, self._take_back))
            while True:
                for worker in self._workers:
                    if worker.is_idle and self._assign(worker):
                        worker.send_order()
                number = self._num_passed_on
                if number in self._done:
                    self._on_chunk(self._begun.pop(number), self._done.pop(number))
                    self._num_passed_on += 1
                    continue
                busy = {worker.pipe: worker for worker in self._workers if worker.is_busy}
                if not busy:
                    return
                for pipe in _wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    chunk = worker.advance()
                    if chunk is not None:
                        self._done[worker.number] = chunk
        finally:
            self._end()

    def _assign(self, worker: Worker) -> bool:
        """Assign the next order to an idle worker, if there is one."""
        may_share = len(self._begun) < _WINDOW * len(self._workers)
        order = self._todo.next(may_share=may_share)
        if isinstance(order, OwnedShard):
            worker.assign_shard(order)
        elif order is not None:
            number = self._num_passed_on + len(self._begun)
            self._begun[number] = order.shard
            worker.assign_chunk(number, order.task, is_suspect=order.is_suspect)
        return order is not None

    def _take_back(self, lost: OwnedShard) -> None:
        self._todo.take_back(lost)
        self._on_progress(lost.done.negative())

    def _end(self) -> None:
        """End the processes; shards that are being committed get a while for it."""
        try:
            until = time.monotonic() + LEAVE_S
            for worker in self._workers:
                if not worker.is_committing:
                    worker.end()
            for worker in self._workers:
                worker.await_commit(until)
        finally:
            for worker in self._workers:
                worker.end()


_wait = stage("wait")(connection.wait)
