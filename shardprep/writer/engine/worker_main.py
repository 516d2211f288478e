"""The process of a worker: it encodes one chunk at a time, until its parent hangs up.

A chunk goes back, or stays: of a shard that the process owns, it writes and commits the file
itself, and only counts go back. A shard is committed while the next one is begun.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardprep import profiling
from shardprep.errors import InternalError, ShardprepError, is_short_of_memory
from shardprep.profiling import stage
from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.engine import worker_process
from shardprep.writer.engine.job import Progress
from shardprep.writer.engine.worker_process import WorkerLimits
from shardprep.writer.shard import ShardHead, ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

Encode: TypeAlias = "Callable[[ChunkTask, Callable[[], None]], EncodedChunk]"

ALARM = getattr(signal, "SIGALRM", None)
"""Signal that ends a process whose item takes too long; None where there is none."""
STARVED = 1
"""Exit code of a process that lacks memory."""
_BROKEN = frozenset({"not_an_image", "undecodable", "truncated", "bad_mask"})
"""Kinds of rejection that a decoder may also come to where it gets no memory."""


class Work(NamedTuple):
    """Arguments of a process."""

    encode: Encode
    limits: WorkerLimits
    new_writer: Callable[[ShardHead], ShardWriter] | None = None
    """Begins a shard that is owned; None where none is."""


class Order(NamedTuple):
    """A chunk to encode."""

    task: ChunkTask
    head: ShardHead | None = None
    """The shard that it is written to; None where it comes back."""
    is_suspect: bool = False
    """Whether it has ended a process before: what it lacks memory for now, it always will."""


class Sent(NamedTuple):
    """An encoded chunk, whose bytes follow in the pipe."""

    num_bytes: int
    outcomes: tuple[Outcome, ...]
    seconds: dict[str, float]


class Kept(NamedTuple):
    """Outcome of a chunk that its worker has written to a shard of its own."""

    progress: Progress
    seconds: dict[str, float]


class Committed(NamedTuple):
    """The oldest whole shard is committed."""

    error: Exception | None
    """The reason for which it is not."""


class Said(NamedTuple):
    """A line for people, such as that a store does not answer."""

    logger: str
    level: int
    line: str


def serve(pipe: Connection, work: Work, environment: dict[str, str]) -> None:
    """Encode chunk after chunk until the parent hangs up. Ctrl-C is the parent's to handle.

    The environment is the parent's of now: the server that this was forked from may be older.
    """
    os.environ.update(environment)
    gc.freeze()  # of what was imported nothing is ever garbage
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if ALARM is not None:
        signal.signal(ALARM, signal.SIG_DFL)
    worker_process.die_with_parent()
    worker_process.hold_memory(work.limits.worker_bytes)
    worker_process.silence_stderr()
    worker_process.without_pandas()
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(b"")
        _Encoder(pipe, work).run()


class _Encoder:
    """The work of a process, which answers each order once, and each commit."""

    def __init__(self, pipe: Connection, work: Work) -> None:
        self._pipe = pipe
        self._work = work
        self._answering = threading.Lock()
        self._writer: ShardWriter | None = None
        self._commit: threading.Thread | None = None

        says = logging.Handler()
        says.emit = self._say  # type: ignore[method-assign]
        logging.getLogger("shardprep").addHandler(says)

    def _say(self, record: logging.LogRecord) -> None:
        """Leave a line to the parent: this process has no place to write it to."""
        with contextlib.suppress(OSError):  # the parent has gone
            self._answer(Said(record.name, record.levelno, record.getMessage()))

    def run(self) -> None:
        """Carry out order after order; EOFError where the parent hangs up."""
        while True:
            order: Order = self._pipe.recv()
            task, head = order.task, order.head
            data: bytes | bytearray = b""
            answer: Sent | Kept | Exception
            try:
                chunk = encoded(self._work, task, is_suspect=order.is_suspect)
                if head is None:
                    data = chunk.data
                    answer = Sent(len(data), chunk.outcomes, chunk.seconds)
                else:
                    answer = self._kept(task, head, chunk)
            except Exception as error:
                if is_short_of_memory(error) and not order.is_suspect:
                    os._exit(STARVED)  # a new process tries the items one by one
                answer = _told(error, str(task))
            self._answer(answer, data)
            if self._writer is not None and self._writer.is_full:
                self._begin_commit(self._writer)
                self._writer = None

    def _kept(self, task: ChunkTask, head: ShardHead, chunk: EncodedChunk) -> Kept:
        """Write a chunk to its shard."""
        writer = self._writer
        if writer is None:
            assert self._work.new_writer is not None  # noqa: S101 - a shard is owned
            writer = self._writer = self._work.new_writer(head)
        writer.append(task.items, chunk)
        if chunk.seconds:
            chunk.seconds["store"] += profiling.taken().get("write", 0.0)
        return Kept(Progress.of(chunk), chunk.seconds)

    @stage("write")
    def _begin_commit(self, writer: ShardWriter) -> None:
        """Commit beside the encoding of what follows, one shard at a time.

        Its last chunk is answered before, so that the parent knows that the shard is whole.
        """
        if self._commit is not None:
            self._commit.join()

        def commit() -> None:
            failed = None
            try:
                writer.commit()
            except Exception as error:
                if is_short_of_memory(error):
                    os._exit(STARVED)
                failed = _told(error, writer.head.name)
            except BaseException:  # a panic of the store's client
                os._exit(STARVED)
            with contextlib.suppress(OSError):  # the parent has gone
                self._answer(Committed(failed))

        self._commit = threading.Thread(target=commit, daemon=True)
        self._commit.start()

    def _answer(self, answer: object, data: bytes | bytearray = b"") -> None:
        with self._answering:
            self._pipe.send(answer)
            if isinstance(answer, Sent):
                _send_bytes(self._pipe, data)


def encoded(work: Work, task: ChunkTask, *, is_suspect: bool = False) -> EncodedChunk:
    """Encode a chunk within the time that each item has.

    MemoryError where its lack may have rejected a sound image, but not of a chunk that is suspect.
    """
    try:
        chunk = work.encode(task, partial(worker_process.start_clock, work.limits.item_s))
    except OSError as error:  # only those of writing are no fault of ours
        if is_short_of_memory(error):
            raise
        raise _fault(str(task)) from error
    finally:
        worker_process.start_clock(0)
    kinds = {outcome.kind for outcome in chunk.outcomes}
    is_starved = "crashed" in kinds or (kinds & _BROKEN and not worker_process.has_memory())
    if is_starved and not is_suspect:
        raise MemoryError
    return chunk


def _told(error: Exception, where: str) -> Exception:
    """Return an error as it is told to the parent: one that users know of, or a fault of ours."""
    return error if isinstance(error, ShardprepError | OSError) else _fault(where)


def _fault(where: str) -> InternalError:
    """Return the error for the exception that is handled."""
    what = f"a worker failed: {traceback.format_exc(limit=-3)}"
    return InternalError(where, what, "this is a fault of shardprep")


def _send_bytes(pipe: Connection, data: bytes | bytearray) -> None:
    if not hasattr(os, "readv"):
        pipe.send_bytes(data)
        return
    left = memoryview(data)
    while left:
        left = left[os.write(pipe.fileno(), left) :]


def receive_bytes(pipe: Connection, num_bytes: int) -> bytearray:
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
