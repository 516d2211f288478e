"""A worker as its parent sees it: one process at a time, and what that has to do.

When the process dies, another takes its place. A chunk is tried again there, each item alone: what
kills a second time is rejected. Shards that were not committed go back to the parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections import deque
from typing import TYPE_CHECKING

from shardprep.errors import BuildError
from shardprep.image.process import RejectionKind
from shardprep.storage.atomic_file import new_token
from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk
from shardprep.writer.engine import worker_process
from shardprep.writer.engine.job import Progress, ShardJob
from shardprep.writer.engine.worker_main import (
    ALARM,
    Committed,
    Kept,
    Order,
    Said,
    Sent,
    Work,
    receive_bytes,
    serve,
)
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.shard import ShardHead

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_MOST_LOST_IN_A_ROW = 16
"""Items lost with none done between them: not the images are at fault then, but the machine."""
_MOST_KILLS = 4
"""Kills by SIGKILL at one item alone before it is rejected: what sends that is the system, for want
of memory, or a person, and hardly ever an image."""
_MOST_FAILED_STARTS = 3
_KILL = getattr(signal, "SIGKILL", None)


class OwnedShard:
    """A shard that a worker writes, as its parent sees it."""

    def __init__(self, plan: ShardPlan, job: ShardJob) -> None:
        """Take a shard of a job."""
        self.plan = plan
        self.head = ShardHead(plan.name, plan.split, len(plan.items), new_token())
        self._tasks = job.tasks(plan)
        self.task: ChunkTask | None = next(self._tasks, None)
        """The chunk that is at work; None once all are encoded."""
        self.done = Progress(0, 0)
        self._output = job.folders.output

    def advance(self, step: Progress) -> None:
        """Go on to the next chunk."""
        self.done = self.done.plus(step)
        self.task = next(self._tasks, None)

    def abandon(self) -> None:
        """Remove what a process has left that died."""
        with contextlib.suppress(OSError):
            self._output.abandon(self.head.name, self.head.token)


class Worker:
    """One process at a time, and what it has to do."""

    def __init__(self, work: Work) -> None:
        """Start the process; it does not wait until that is up."""
        self._work = work
        self._num_lost = 0
        self._num_kills = 0
        self._num_failed_starts = 0
        self._todo: deque[ChunkTask] = deque()
        self._owned: OwnedShard | None = None
        self._committing: deque[OwnedShard] = deque()
        self.number = -1
        """Place of the last chunk among all that come back."""
        self._start()

    def _start(self) -> None:
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
        """Whether it has anything to say sooner or later."""
        return self.is_committing or not self.is_idle

    @property
    def is_committing(self) -> bool:
        """Whether a shard is whole that is not committed."""
        return bool(self._committing)

    def begin(self, number: int, task: ChunkTask, *, is_suspect: bool = False) -> None:
        """Start with a chunk that comes back; one that is suspect has ended a process before."""
        self.number = number
        self._todo = deque(task.apart() if is_suspect else [task])
        self._parts: list[EncodedChunk] = []
        self._is_suspect = is_suspect
        self._send()

    def own(self, shard: OwnedShard) -> None:
        """Start with a shard."""
        self._owned = shard
        self._send()

    def advance(self) -> EncodedChunk | Kept | list[OwnedShard]:
        """Take what the process has to say.

        Return a chunk that is done, what has become of one that is kept, else the shards that are
        lost because the process died, most often none.
        """
        lost: list[OwnedShard] = []
        try:
            if not self._is_up:
                self._is_up = self.pipe.recv_bytes() == b""
                return []
            answer = self._receive()
        except (EOFError, OSError):
            lost = self._replace()
        else:
            self._num_lost = self._num_kills = self._num_failed_starts = 0
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, Said):
                logging.getLogger(answer.logger).log(answer.level, "%s", answer.line)
                return []
            if isinstance(answer, Committed):
                self._committing.popleft()
                if answer.error is not None:
                    raise answer.error
                return []
            if isinstance(answer, Kept):
                self._go_on(answer)
                return answer
            self._todo.popleft()
            self._parts.append(answer)
        if not self.is_idle:
            self._send()
            return lost
        return lost or EncodedChunk.joined(self._parts)

    def await_commit(self, until: float) -> None:
        """Let the process commit a whole shard, until a monotonic time."""
        with contextlib.suppress(EOFError, OSError):
            while self._committing and self.pipe.poll(max(0.0, until - time.monotonic())):
                answer = self._receive()
                if isinstance(answer, Exception):
                    return
                if isinstance(answer, Committed):
                    self._committing.popleft()

    def end(self) -> None:
        """End the process, whatever it is doing; no file is left that it has not committed."""
        self._process.kill()
        self._process.join()
        self.pipe.close()
        for shard in self._unfinished():
            shard.abandon()

    def _send(self) -> None:
        own = self._owned
        if own is None:
            order = Order(self._todo[0], is_suspect=self._is_suspect)
        else:
            assert own.task is not None  # noqa: S101 - it is not whole
            order = Order(own.task, own.head)
        with contextlib.suppress(OSError):  # it died: `advance` will hear of it
            self.pipe.send(order)

    def _receive(self) -> EncodedChunk | Kept | Committed | Said | Exception:
        answer: Sent | Kept | Committed | Said | Exception = self.pipe.recv()
        if isinstance(answer, Sent):
            data = receive_bytes(self.pipe, answer.num_bytes)
            return EncodedChunk(data, answer.outcomes, answer.seconds)
        return answer

    def _go_on(self, kept: Kept) -> None:
        """Go on with the shard that a chunk was written to."""
        shard = self._owned
        assert shard is not None  # noqa: S101 - only a chunk of one is kept
        shard.advance(kept.progress)
        if shard.task is None:
            self._owned = None
            self._committing.append(shard)
        else:
            self._send()

    def _unfinished(self) -> list[OwnedShard]:
        return [*self._committing, *([] if self._owned is None else [self._owned])]

    def _replace(self) -> list[OwnedShard]:
        """Start a new process; return the shards that the dead one has lost.

        A chunk that it was to send back is tried one item at a time from now on.
        """
        self._process.join()
        code = self._process.exitcode
        how = worker_process.cause_of_death(code)
        self.pipe.close()
        lost: list[OwnedShard] = []
        if not self._is_up:
            self._num_failed_starts += 1
            if self._num_failed_starts == _MOST_FAILED_STARTS:
                raise BuildError(
                    "shardprep build",
                    f"a worker could not be started, {_MOST_FAILED_STARTS} times ({how})",
                    "is there memory left for another process?",
                )
        else:
            lost, self._owned = self._unfinished(), None
            self._committing.clear()
            for shard in lost:
                shard.abandon()
            if self._todo:
                self._try_apart(code, how)
        self._start()
        return lost

    def _try_apart(self, code: int | None, how: str) -> None:
        """Go on after the death of the process at a chunk that was to come back."""
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
                "what is done is kept: free some memory and run the same command again",
            )
        kind: RejectionKind = "crashed"
        times = f"{self._num_kills + 2} times" if self._num_kills else "twice"
        reason = f"its decoder ended the process, {times} ({how})"
        self._num_kills = 0
        if ALARM is not None and code == -ALARM:
            kind = "timeout"
            reason = f"took longer than {self._work.limits.item_s:g} s, twice (--timeout)"
        self._parts.append(EncodedChunk.lost(task.items[0], kind, reason))
