"""The main function of a worker process. `shardprep.writer.engine` explains the messages."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

from shardprep import processes, profiling
from shardprep.errors import InternalError, ShardprepError, is_short_of_memory
from shardprep.processes import WorkerLimits
from shardprep.profiling import stage
from shardprep.writer.chunk import ChunkTask, Encode, EncodedChunk, Outcome
from shardprep.writer.engine.job import ItemCounts
from shardprep.writer.shard import ShardHead, ShardWriter

ALARM = getattr(signal, "SIGALRM", None)
"""Signal that ends a worker whose item takes too long; None on Windows."""
STARVED = 1
"""Exit code of a worker without enough memory."""
_BROKEN = frozenset({"not_an_image", "undecodable", "truncated", "bad_mask"})
"""Kinds of rejection that decoders also report when memory is short."""


class Work(NamedTuple):
    """Arguments of a worker process, which are the same for all its orders."""

    encode: Encode
    limits: WorkerLimits
    new_writer: Callable[[ShardHead], ShardWriter] | None = None
    is_timed: bool = False


class ChunkOrder(NamedTuple):
    """Message to a worker: encode a chunk."""

    task: ChunkTask
    head: ShardHead | None = None
    """The owned shard to write the chunk to, or None to send the records back."""
    is_suspect: bool = False
    """Whether a worker died on this chunk. Then a lack of memory is reported and ends no worker."""


class ChunkResult(NamedTuple):
    """Message from a worker: a chunk is encoded. `num_bytes` of records follow in the pipe."""

    num_bytes: int
    outcomes: tuple[Outcome, ...]
    seconds: dict[str, float]


class ShardProgress(NamedTuple):
    """Message from a worker: a chunk is encoded and written to the owned shard."""

    counts: ItemCounts
    seconds: dict[str, float]


class ShardCommitted(NamedTuple):
    """Message from a worker: its oldest full shard is committed, or `error` ended the commit."""

    error: Exception | None


class LogLine(NamedTuple):
    """Message from a worker: a line for the log, such as a warning that a store does not answer."""

    logger: str
    level: int
    line: str


def serve(pipe: Connection, work: Work, environment: dict[str, str]) -> None:
    """Encode chunks until the parent closes the pipe; `environment` is as in `begin_forked`."""
    processes.begin_forked(environment)
    if ALARM is not None:
        signal.signal(ALARM, signal.SIG_DFL)
    processes.hold_memory(work.limits.worker_bytes)
    processes.silence_stderr()
    processes.without_pandas()
    answers = _Answers(pipe)
    shards = _OwnedShards(work, answers)
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        pipe.send_bytes(b"")
        while True:
            order: ChunkOrder = pipe.recv()
            data: bytes | bytearray = b""
            answer: ChunkResult | ShardProgress | Exception
            try:
                chunk = encoded(work, order.task, is_suspect=order.is_suspect)
                if order.head is None:
                    data = chunk.data
                    answer = ChunkResult(len(data), chunk.outcomes, chunk.seconds)
                else:
                    answer = shards.write(order.task, order.head, chunk)
            except Exception as error:
                if is_short_of_memory(error) and not order.is_suspect:
                    os._exit(STARVED)  # a new process tries the items one by one
                answer = _sendable(error, str(order.task))
            answers.send(answer, data)
            shards.commit_full()


class _Answers:
    """Sends messages to the parent, for the main thread, the commit thread and the log."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        handler = logging.Handler()
        handler.emit = self._send_line  # type: ignore[method-assign]
        logging.getLogger("shardprep").addHandler(handler)

    def _send_line(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the parent has gone
            self.send(LogLine(record.name, record.levelno, record.getMessage()))

    def send(self, answer: object, data: bytes | bytearray = b"") -> None:
        with self._lock:
            self._pipe.send(answer)
            if isinstance(answer, ChunkResult):
                _send_bytes(self._pipe, data)


class _OwnedShards:
    """The shards that this process owns: one is written while the previous one is committed."""

    def __init__(self, work: Work, answers: _Answers) -> None:
        self._work, self._answers = work, answers
        self._writer: ShardWriter | None = None
        self._commit: threading.Thread | None = None

    def write(self, task: ChunkTask, head: ShardHead, chunk: EncodedChunk) -> ShardProgress:
        if self._writer is None:
            assert self._work.new_writer is not None  # noqa: S101 - a shard is owned
            self._writer = self._work.new_writer(head)
        self._writer.append(task.items, chunk)
        if chunk.seconds:
            chunk.seconds["store"] += profiling.taken().get("write", 0.0)
        return ShardProgress(ItemCounts.of(chunk), chunk.seconds)

    def commit_full(self) -> None:
        """Begin to commit the shard if it is full. Call this after the answer to its last chunk."""
        if self._writer is not None and self._writer.is_full:
            self._begin_commit(self._writer)
            self._writer = None

    @stage("write")
    def _begin_commit(self, writer: ShardWriter) -> None:
        if self._commit is not None:
            self._commit.join()

        def commit() -> None:
            failure = None
            try:
                writer.commit()
            except Exception as error:
                if is_short_of_memory(error):
                    os._exit(STARVED)
                failure = _sendable(error, writer.head.name)
            except BaseException:  # a panic of the store's client
                os._exit(STARVED)
            with contextlib.suppress(OSError):  # the parent has gone
                self._answers.send(ShardCommitted(failure))

        self._commit = threading.Thread(target=commit, daemon=True)
        self._commit.start()


def encoded(work: Work, task: ChunkTask, *, is_suspect: bool = False) -> EncodedChunk:
    """Return the encoded chunk; MemoryError if memory was short, unless the chunk is suspect."""
    before, start = profiling.taken(), time.perf_counter()
    if work.is_timed:
        profiling.start()
    try:
        chunk = work.encode(task, partial(processes.start_clock, work.limits.item_s))
    except OSError as error:  # unchanged, the parent would take it for a write error
        if is_short_of_memory(error):
            raise
        raise _fault(str(task)) from error
    finally:
        processes.start_clock(0)
    if work.is_timed:
        elapsed = time.perf_counter() - start
        chunk.seconds.update({"store": 0.0, **profiling.taken()})
        chunk.seconds["other"] = elapsed - sum(chunk.seconds.values())
    profiling.add(before)
    kinds = {outcome.kind for outcome in chunk.outcomes}
    is_starved = "crashed" in kinds or (kinds & _BROKEN and not processes.has_memory())
    if is_starved and not is_suspect:
        raise MemoryError
    return chunk


def _sendable(error: Exception, where: str) -> Exception:
    return error if isinstance(error, ShardprepError | OSError) else _fault(where)


def _fault(where: str) -> InternalError:
    what = f"a worker failed: {traceback.format_exc(limit=-3)}"
    return InternalError(where, what, "this is a bug in shardprep: please report it")


def _send_bytes(pipe: Connection, data: bytes | bytearray) -> None:
    if not hasattr(os, "readv"):
        pipe.send_bytes(data)
        return
    left = memoryview(data)
    while left:
        left = left[os.write(pipe.fileno(), left) :]


def receive_bytes(pipe: Connection, num_bytes: int) -> bytearray:
    """Return `num_bytes` bytes from the pipe; EOFError at its end. Faster than `recv_bytes`."""
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
