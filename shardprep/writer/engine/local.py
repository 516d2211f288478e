"""Chunks on the cores of this machine: a process for each, one pipe each, one task at a time.

The parent always knows which worker holds which task. When a worker dies, its items are tried
again, each alone in a new process: what kills a second time is rejected, and the build goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections import deque
from functools import partial
from multiprocessing import connection
from typing import TYPE_CHECKING

from shardprep.errors import BuildError, InternalError, ShardprepError
from shardprep.writer.chunk import EncodedChunk
from shardprep.writer.engine import process

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from shardprep.image.process import RejectionKind
    from shardprep.writer.chunk import ChunkTask
    from shardprep.writer.engine.process import WorkerLimits

    Encode = Callable[[ChunkTask, Callable[[], None]], EncodedChunk]

_WINDOW = 2
"""Chunks begun and not yet taken, per worker: bounds memory, hides uneven chunks."""
_MOST_LOST_IN_A_ROW = 16
"""Items lost with none done between them: not the images are at fault then, but the machine."""
_MOST_KILLS = 4
"""Kills by SIGKILL at one item alone before it is rejected: what sends that is the system, for want
of memory, or a person, and hardly ever an image."""
_MOST_FAILED_STARTS = 3
_KILL = getattr(signal, "SIGKILL", None)
_ALARM = getattr(signal, "SIGALRM", None)


def run_chunks(
    encode: Encode, tasks: Iterable[ChunkTask], num_workers: int, limits: WorkerLimits
) -> Generator[EncodedChunk]:
    """Yield the result of each task, in the order of the tasks.

    An item that ends its worker twice, the second time alone, is rejected: as `timeout` where it
    took longer than the limits allow, else as `crashed`. One whose worker is killed by SIGKILL is
    tried some more times. Closing the iterator ends the workers.

    Raises:
        BuildError: a worker cannot be started, or many die one after the other.
        InternalError: a worker failed.

    """
    workers: list[_Worker] = []
    try:
        workers.extend(_Worker(encode, limits) for _ in range(num_workers))
        yield from _in_order(workers, iter(tasks))
    finally:
        for worker in workers:
            worker.end()


def _in_order(workers: list[_Worker], tasks: Iterator[ChunkTask]) -> Iterator[EncodedChunk]:
    numbered = enumerate(tasks)
    idle = list(workers)
    done: dict[int, EncodedChunk] = {}
    num_begun = num_taken = 0
    while True:
        while idle and num_begun - num_taken < _WINDOW * len(workers):
            task = next(numbered, None)
            if task is None:
                break
            idle.pop().begin(*task)
            num_begun += 1
        if num_taken in done:
            yield done.pop(num_taken)
            num_taken += 1
            continue
        busy = {worker.pipe: worker for worker in workers if worker not in idle}
        if not busy:
            return
        for pipe in connection.wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            chunk = worker.advance()
            if chunk is not None:
                done[worker.number] = chunk
                idle.append(worker)


class _Worker:
    """One process at a time, and the task it holds."""

    def __init__(self, encode: Encode, limits: WorkerLimits) -> None:
        self._encode = encode
        self._limits = limits
        self._num_lost = 0
        self._num_kills = 0
        self._num_failed_starts = 0
        self.number = -1
        self._start()

    def _start(self) -> None:
        context = process.start_server()
        self.pipe, theirs = context.Pipe()
        self._is_up = False
        self._process: BaseProcess = context.Process(
            target=_serve,
            args=(theirs, self._encode, self._limits, dict(os.environ)),
            name="shardprep worker",
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def begin(self, number: int, task: ChunkTask) -> None:
        """Start with a task; `number` is its place among all."""
        self.number = number
        self._todo = deque([task])
        self._parts: list[EncodedChunk] = []
        self._is_suspect = False
        self._send()

    def advance(self) -> EncodedChunk | None:
        """Take what the process has to say; return the chunk when its task is done."""
        try:
            if not self._is_up:
                self._is_up = self.pipe.recv_bytes() == b""
                return None
            part = self._receive()
            self._num_lost = self._num_kills = self._num_failed_starts = 0
        except (EOFError, OSError):
            self._replace()
        else:
            self._todo.popleft()
            self._parts.append(part)
        if self._todo:
            self._send()
            return None
        return EncodedChunk.joined(self._parts)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.pipe.close()
        self._process.kill()
        self._process.join()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # it died: `advance` will hear of it
            self.pipe.send(self._todo[0])

    def _receive(self) -> EncodedChunk:
        answer = self.pipe.recv()
        if isinstance(answer, ShardprepError):
            raise answer
        if isinstance(answer, str):
            raise InternalError(
                str(self._todo[0]), f"a worker failed: {answer}", "this is a fault of shardprep"
            )
        num_bytes, outcomes, seconds = answer
        return EncodedChunk(_receive_bytes(self.pipe, num_bytes), outcomes, seconds)

    def _replace(self) -> None:
        """Start a new process for what the dead one held, one item at a time from now on."""
        self._process.join()
        code = self._process.exitcode
        how = process.cause_of_death(code)
        self.pipe.close()
        if not self._is_up:
            self._num_failed_starts += 1
            if self._num_failed_starts == _MOST_FAILED_STARTS:
                raise BuildError(
                    "shardprep build",
                    f"a worker could not be started, {_MOST_FAILED_STARTS} times ({how})",
                    "is there memory left for another process?",
                )
        elif not self._is_suspect:
            self._is_suspect = True
            self._todo = deque(self._todo[0].apart())
        elif _KILL is not None and code == -_KILL and self._num_kills < _MOST_KILLS:
            self._num_kills += 1
        else:
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
            if _ALARM is not None and code == -_ALARM:
                kind = "timeout"
                reason = f"took longer than {self._limits.item_s:g} s, twice (--timeout)"
            self._parts.append(EncodedChunk.lost(task.items[0], kind, reason))
        self._start()


def _serve(
    pipe: Connection, encode: Encode, limits: WorkerLimits, environment: dict[str, str]
) -> None:
    """Encode task after task until the parent hangs up. Ctrl-C is the parent's to handle.

    The environment is the parent's of now: the server that this was forked from may be older.
    """
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _ALARM is not None:
        signal.signal(_ALARM, signal.SIG_DFL)
    process.die_with_parent()
    process.hold_memory(limits.worker_bytes)
    process.silence_stderr()

    before_item = partial(process.start_clock, limits.item_s)
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(b"")
        while True:
            task = pipe.recv()
            answer: object
            data: bytes | bytearray = b""
            try:
                chunk = encode(task, before_item)
                data = chunk.data
                answer = len(data), chunk.outcomes, chunk.seconds
            except ShardprepError as error:  # the source is out of reach: no fault of an image
                answer = error
            except Exception as error:
                if isinstance(error, MemoryError) and len(task.items) > 1:
                    os._exit(1)  # no image is at fault: a new process tries them one by one
                answer = traceback.format_exc(limit=-3)
            process.start_clock(0)
            pipe.send(answer)
            _send_bytes(pipe, data)


def _send_bytes(pipe: Connection, data: bytes | bytearray) -> None:
    if not hasattr(os, "readv"):
        pipe.send_bytes(data)
        return
    left = memoryview(data)
    while left:
        left = left[os.write(pipe.fileno(), left) :]


def _receive_bytes(pipe: Connection, num_bytes: int) -> bytearray:
    """Return the bytes that were sent. `Connection.recv_bytes` takes three times as long."""
    if not hasattr(os, "readv"):
        return bytearray(pipe.recv_bytes())
    data = bytearray(num_bytes)
    left = memoryview(data)
    while left:
        num_read = os.readv(pipe.fileno(), [left])
        if not num_read:
            raise EOFError
        left = left[num_read:]
    return data
