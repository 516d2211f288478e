"""Write shards with worker processes of this machine, which own shards or encode shared chunks.

The first shards are owned: a worker reads, encodes, writes and commits the whole shard, and this
process only counts. The last shards are shared: any idle worker encodes a chunk of them, and this
process writes the chunk. So no worker is idle while another one still has a shard. Of at most eight
shards, all are shared if there are more workers than shards, or one shard is much larger than the
others. The shards of a worker that died are shared too.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple, TypeAlias

from shardprep import processes, profiling
from shardprep.errors import BuildError, OptionName
from shardprep.image.process import RejectionKind
from shardprep.processes import WorkerLimits
from shardprep.profiling import stage
from shardprep.storage.atomic_file import new_token
from shardprep.writer.chunk import ChunkTask, Encode, EncodedChunk
from shardprep.writer.engine import PRELOADED
from shardprep.writer.engine.job import LEAVE_S, ItemCounts, OnProgress, ShardJob, ShardSink
from shardprep.writer.engine.worker_main import (
    ALARM,
    ChunkOrder,
    ChunkResult,
    LogLine,
    ShardCommitted,
    ShardProgress,
    Work,
    receive_bytes,
    serve,
)
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.shard import ShardHead

_WINDOW = 2
"""Maximum number of shared chunks in progress per worker; a second one evens out slow chunks."""
_MOST_SHARED = 8
"""Maximum number of shared shards: this process can write eight while a worker encodes one."""
_BUSY = 0.95
"""Minimum share of the time that workers should be busy; `_num_owned` aims at this share."""


def write_shards(
    job: ShardJob, shards: Sequence[ShardPlan], num_workers: int, on_progress: OnProgress
) -> None:
    """Write the shards with processes of this machine; an `Engine`.

    An item that ends its worker twice, the second time alone, is rejected as `timeout` or
    `crashed`. After SIGKILL, an item has more tries. Progress is reported chunk by chunk. If a
    worker dies, the counts of its uncommitted shards are reported again as negative numbers.
    """
    tasks = (task for shard in shards for task in job.tasks(shard))
    num_tasks = sum(1 for _ in islice(tasks, num_workers))
    num_workers = max(1, num_tasks)  # workers without a task are not started
    work = Work(job.encoder, job.limits, job.writer, job.is_timed)
    with ShardSink(job) as sink:

        def on_chunk(shard: ShardPlan | None, chunk: EncodedChunk) -> None:
            assert shard is not None  # noqa: S101 - `_Shards` names it
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
    """Call `on_chunk` with the result of each task, in order. Rejects items like `write_shards`."""
    pool = _Pool(_Chunks(tasks), lambda _, chunk: on_chunk(chunk), lambda _: None)
    pool.run(Work(encode, limits), num_workers)


class _SharedChunk(NamedTuple):
    shard: ShardPlan | None
    task: ChunkTask
    is_suspect: bool


class _Chunks:
    """Chunks that have no worker yet. Workers send their records back to this process."""

    def __init__(self, tasks: Iterable[ChunkTask]) -> None:
        self._tasks = iter(tasks)

    def next(self, *, may_share: bool) -> OwnedShard | _SharedChunk | None:
        task = next(self._tasks, None) if may_share else None
        return None if task is None else _SharedChunk(None, task, is_suspect=False)

    def take_back(self, lost: OwnedShard) -> None:
        """Do nothing, because no shard is owned."""


class _Shards(_Chunks):
    """Shards that have no worker yet: whole shards to own, and chunks of shared shards."""

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
        """Return a shard to own, else a shared chunk, else a shared shard to own, else None."""
        shard = self._own.popleft() if self._own else None
        chunk = None if shard or not may_share else next(self._chunks, None)
        if shard is None and chunk is None and self._shared:
            shard = self._shared.pop()
        return chunk if shard is None else OwnedShard(shard, self._job)

    def take_back(self, lost: OwnedShard) -> None:
        """Share a shard whose worker died. The chunk that was being encoded is suspect."""
        shard, suspect = lost.plan, None if lost.task is None else lost.task.start
        chunks = (
            _SharedChunk(shard, task, task.start == suspect) for task in self._job.tasks(shard)
        )
        self._chunks = chain(self._chunks, chunks)


def _num_owned(sizes: Sequence[int], num_workers: int) -> int:
    """Return how many of the first shards to own; the others are shared to keep workers busy."""
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
    def __init__(
        self,
        todo: _Chunks,
        on_chunk: Callable[[ShardPlan | None, EncodedChunk], None],
        on_progress: OnProgress,
    ) -> None:
        self._todo, self._on_chunk, self._on_progress = todo, on_chunk, on_progress
        self._workers: list[Worker] = []
        self._begun: dict[int, ShardPlan | None] = {}
        """Number of each chunk in progress → its shard."""
        self._done: dict[int, EncodedChunk] = {}
        self._num_passed_on = 0

    def run(self, work: Work, num_workers: int) -> None:
        """Run workers until no work is left. Pass on shared chunks in order, progress at once."""
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
        """End the processes, but wait up to `LEAVE_S` for running commits."""
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


_MOST_LOST_IN_A_ROW = 16
"""Maximum number of items in a row that end their worker. More mean a fault of the machine."""
_MOST_KILLS = 4
"""Maximum number of further tries of an item after SIGKILL, as memory may have been short."""
_MOST_FAILED_STARTS = 3
_KILL = getattr(signal, "SIGKILL", None)

_Answer: TypeAlias = EncodedChunk | ShardProgress | ShardCommitted | LogLine | Exception


class OwnedShard:
    """A shard that one worker encodes and writes, and the progress of this work."""

    def __init__(self, plan: ShardPlan, job: ShardJob) -> None:
        self.plan = plan
        self.head = ShardHead(plan.name, plan.split, len(plan.items), new_token())
        self._tasks = job.tasks(plan)
        self.task: ChunkTask | None = next(self._tasks, None)
        self.done = ItemCounts()
        self._output = job.folders.output

    def advance(self, counts: ItemCounts) -> None:
        self.done = self.done.plus(counts)
        self.task = next(self._tasks, None)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._output.abandon(self.head.name, self.head.token)


class Worker:
    """A worker process that carries out one order at a time, and is replaced when it dies."""

    def __init__(
        self, work: Work, on_progress: OnProgress, on_lost: Callable[[OwnedShard], None]
    ) -> None:
        self._work, self._on_progress, self._on_lost = work, on_progress, on_lost
        self._num_lost = 0
        self._num_kills = 0
        self._num_failed_starts = 0
        self._todo: deque[ChunkTask] = deque()
        self._owned: OwnedShard | None = None
        self._committing: deque[OwnedShard] = deque()
        self.number = -1
        self._start()

    def _start(self) -> None:
        context = processes.start_server(PRELOADED)
        self.pipe, theirs = context.Pipe()
        self._is_up = False
        self._process: BaseProcess = context.Process(
            target=serve,
            args=(theirs, self._work, dict(os.environ)),
            name="shardprep worker",
            daemon=True,
        )
        self._process.start()
        theirs.close()

    @property
    def is_idle(self) -> bool:
        """Whether no chunk is being encoded; a commit may be running."""
        return not self._todo and self._owned is None

    @property
    def is_busy(self) -> bool:
        """Whether a message of the process is expected."""
        return self.is_committing or not self.is_idle

    @property
    def is_committing(self) -> bool:
        return bool(self._committing)

    def assign_chunk(self, number: int, task: ChunkTask, *, is_suspect: bool = False) -> None:
        """Assign a shared chunk. The items of a suspect chunk are tried one by one."""
        self.number = number
        self._todo = deque(task.apart() if is_suspect else [task])
        self._parts: list[EncodedChunk] = []
        self._is_suspect = is_suspect

    def assign_shard(self, shard: OwnedShard) -> None:
        self._owned = shard

    def advance(self) -> EncodedChunk | None:
        """Handle a message or the death of the process; return the shared chunk once complete."""
        try:
            answer = self._receive()
        except (EOFError, OSError):
            had_chunk = bool(self._todo)
            self._replace()
            if had_chunk:
                return self._go_on_with_chunk()
            if not self.is_idle:  # the dead process had not started, and its shard is not lost
                self.send_order()
            return None
        return None if answer is None else self._take(answer)

    def _take(self, answer: _Answer) -> EncodedChunk | None:
        self._num_lost = self._num_kills = self._num_failed_starts = 0
        match answer:
            case Exception():
                raise answer
            case LogLine(logger, level, line):
                logging.getLogger(logger).log(level, "%s", line)
            case ShardCommitted(error):
                self._committing.popleft()
                if error is not None:
                    raise error
            case ShardProgress():
                self._go_on_with_shard(answer)
            case EncodedChunk():
                self._todo.popleft()
                self._parts.append(answer)
                return self._go_on_with_chunk()
        return None

    def await_commit(self, until: float) -> None:
        """Wait for the commits of full shards, at most until `time.monotonic()` is `until`."""
        with contextlib.suppress(EOFError, OSError):
            while self._committing and self.pipe.poll(max(0.0, until - time.monotonic())):
                answer = self._receive()
                if isinstance(answer, Exception):
                    return
                if isinstance(answer, ShardCommitted):
                    self._committing.popleft()

    def end(self) -> None:
        """End the process at once, and remove its temporary files."""
        self._process.kill()
        self._process.join()
        self.pipe.close()
        for shard in self._unfinished():
            shard.abandon()

    def send_order(self) -> None:
        own = self._owned
        if own is None:
            order = ChunkOrder(self._todo[0], is_suspect=self._is_suspect)
        else:
            assert own.task is not None  # noqa: S101 - a full shard is not owned
            order = ChunkOrder(own.task, own.head)
        with contextlib.suppress(OSError):  # the process died; `advance` handles it
            self.pipe.send(order)

    def _receive(self) -> _Answer | None:
        """Return the next message; None for the first one, which reports that the process is up."""
        if not self._is_up:
            self._is_up = self.pipe.recv_bytes() == b""
            return None
        answer: ChunkResult | _Answer = self.pipe.recv()
        if isinstance(answer, ChunkResult):
            data = receive_bytes(self.pipe, answer.num_bytes)
            return EncodedChunk(data, answer.outcomes, answer.seconds)
        return answer

    def _go_on_with_chunk(self) -> EncodedChunk | None:
        if self._todo:
            self.send_order()
            return None
        return EncodedChunk.joined(self._parts)

    def _go_on_with_shard(self, progress: ShardProgress) -> None:
        shard = self._owned
        assert shard is not None  # noqa: S101 - only owners send progress
        shard.advance(progress.counts)
        if shard.task is None:
            self._owned = None
            self._committing.append(shard)
        else:
            self.send_order()
        profiling.add(progress.seconds)
        self._on_progress(progress.counts)

    def _unfinished(self) -> list[OwnedShard]:
        return [*self._committing, *([] if self._owned is None else [self._owned])]

    def _replace(self) -> None:
        """Replace a dead process. Give up its shards, and try the items of its chunk one by one."""
        self._process.join()
        code = self._process.exitcode
        how = processes.cause_of_death(code)
        self.pipe.close()
        if self._is_up:
            lost, self._owned = self._unfinished(), None
            self._committing.clear()
            for shard in lost:
                shard.abandon()
                self._on_lost(shard)
            if self._todo:
                self._try_apart(code, how)
        else:
            self._num_failed_starts += 1
            if self._num_failed_starts == _MOST_FAILED_STARTS:
                what = f"a worker could not be started in {_MOST_FAILED_STARTS} attempts ({how})"
                raise BuildError(
                    OptionName("workers"), what, "free some memory, or use fewer workers"
                )
        self._start()

    def _try_apart(self, code: int | None, how: str) -> None:
        if not self._is_suspect:
            self._is_suspect = True
            self._todo = deque(self._todo[0].apart())
            return
        if _KILL is not None and code == -_KILL and self._num_kills < _MOST_KILLS:
            self._num_kills += 1
            return
        self._num_lost += 1
        task = self._todo.popleft()
        if self._num_lost > _MOST_LOST_IN_A_ROW:
            what = f"the worker process ended at each of the last {self._num_lost} images ({how})"
            hint = "finished shards are kept: free some memory, and try again"
            raise BuildError(str(task), what, hint)
        kind: RejectionKind = "crashed"
        times = f"{self._num_kills + 2} times" if self._num_kills else "twice"
        reason = f"its decoder crashed the worker process {times} ({how})"
        self._num_kills = 0
        if ALARM is not None and code == -ALARM:
            kind = "timeout"
            reason = f"took longer than {self._work.limits.item_s:g} s, twice (--timeout)"
        self._parts.append(EncodedChunk.lost(task.items[0], kind, reason))
