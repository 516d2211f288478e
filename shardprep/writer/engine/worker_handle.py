"""A worker as its parent sees it: one process at a time, replaced when it dies.

`shardprep.writer.engine` says what happens to the shards and chunks of a process that died.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from shardprep import profiling
from shardprep.errors import BuildError
from shardprep.image.process import RejectionKind
from shardprep.storage.atomic_file import new_token
from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk
from shardprep.writer.engine import worker_process
from shardprep.writer.engine.job import ItemCounts, OnProgress, ShardJob
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

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_MOST_LOST_IN_A_ROW = 16
"""Items lost one after the other: then the machine is at fault, not the images."""
_MOST_KILLS = 4
"""Kills by SIGKILL at one item alone before it is rejected: the system sends that for want of
memory, hardly ever because of an image."""
_MOST_FAILED_STARTS = 3
_KILL = getattr(signal, "SIGKILL", None)

_Answer: TypeAlias = EncodedChunk | ShardProgress | ShardCommitted | LogLine | Exception


class OwnedShard:
    """A shard that a worker owns."""

    def __init__(self, plan: ShardPlan, job: ShardJob) -> None:
        self.plan = plan
        self.head = ShardHead(plan.name, plan.split, len(plan.items), new_token())
        self._tasks = job.tasks(plan)
        self.task: ChunkTask | None = next(self._tasks, None)
        """The chunk that is being encoded; None after the last one."""
        self.done = ItemCounts()
        self._output = job.folders.output

    def advance(self, counts: ItemCounts) -> None:
        """Go on to the next chunk."""
        self.done = self.done.plus(counts)
        self.task = next(self._tasks, None)

    def abandon(self) -> None:
        """Remove the temporary file of a process that died."""
        with contextlib.suppress(OSError):
            self._output.abandon(self.head.name, self.head.token)


class Worker:
    """A process that carries out one order at a time, and its replacements.

    It is given `on_progress` for the chunks of owned shards, and `on_lost` for shards that are not
    committed when the process dies.
    """

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
        """Number of the last shared chunk."""
        self._start()

    def _start(self) -> None:
        """Start the process, without waiting for it."""
        context = worker_process.start_server()
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
        """Whether it encodes nothing; it may be committing."""
        return not self._todo and self._owned is None

    @property
    def is_busy(self) -> bool:
        """Whether a message will come."""
        return self.is_committing or not self.is_idle

    @property
    def is_committing(self) -> bool:
        """Whether a full shard is not committed yet."""
        return bool(self._committing)

    def assign_chunk(self, number: int, task: ChunkTask, *, is_suspect: bool = False) -> None:
        """Assign a shared chunk; the items of a suspect one are tried one by one."""
        self.number = number
        self._todo = deque(task.apart() if is_suspect else [task])
        self._parts: list[EncodedChunk] = []
        self._is_suspect = is_suspect

    def assign_shard(self, shard: OwnedShard) -> None:
        """Assign a shard that it is to own."""
        self._owned = shard

    def advance(self) -> EncodedChunk | None:
        """Take a message of the process, or its death; return the shared chunk if it is done."""
        try:
            answer = self._receive()
        except (EOFError, OSError):
            had_chunk = bool(self._todo)
            self._replace()
            if had_chunk:
                return self._go_on_with_chunk()
            if not self.is_idle:  # the dead process was not up yet, and its shard is not lost
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
        """Let the process commit its full shards, until a monotonic time."""
        with contextlib.suppress(EOFError, OSError):
            while self._committing and self.pipe.poll(max(0.0, until - time.monotonic())):
                answer = self._receive()
                if isinstance(answer, Exception):
                    return
                if isinstance(answer, ShardCommitted):
                    self._committing.popleft()

    def end(self) -> None:
        """End the process, whatever it is doing, and remove its temporary files."""
        self._process.kill()
        self._process.join()
        self.pipe.close()
        for shard in self._unfinished():
            shard.abandon()

    def send_order(self) -> None:
        """Send the next chunk of what is assigned."""
        own = self._owned
        if own is None:
            order = ChunkOrder(self._todo[0], is_suspect=self._is_suspect)
        else:
            assert own.task is not None  # noqa: S101 - it is not whole
            order = ChunkOrder(own.task, own.head)
        with contextlib.suppress(OSError):  # it died: `advance` will hear of it
            self.pipe.send(order)

    def _receive(self) -> _Answer | None:
        """Return the next message; None for the one that says that the process is up."""
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
        assert shard is not None  # noqa: S101 - only a chunk of one is kept
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
        """Start a new process; give up the shards of the dead one, and try its chunk apart."""
        self._process.join()
        code = self._process.exitcode
        how = worker_process.cause_of_death(code)
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
                raise BuildError(
                    "shardprep build",
                    f"a worker could not be started, {_MOST_FAILED_STARTS} times ({how})",
                    "is there memory left for another process?",
                )
        self._start()

    def _try_apart(self, code: int | None, how: str) -> None:
        """Choose the next step for the chunk that the process died at."""
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
            raise BuildError(
                str(task),
                f"workers die at one image after the other ({how})",
                "finished shards are kept: free some memory and run the same command again",
            )
        kind: RejectionKind = "crashed"
        times = f"{self._num_kills + 2} times" if self._num_kills else "twice"
        reason = f"its decoder ended the process, {times} ({how})"
        self._num_kills = 0
        if ALARM is not None and code == -ALARM:
            kind = "timeout"
            reason = f"took longer than {self._work.limits.item_s:g} s, twice (--timeout)"
        self._parts.append(EncodedChunk.lost(task.items[0], kind, reason))
