"""The job of an engine: the shards to write, and the means. The engine yields its progress.

An engine may run anywhere and in any order. It writes each shard and its receipt through a
`ShardWriter`, so that what it leaves behind counts as done, however it ends. A shard has one owner:
a worker of this machine, a task of a cluster, or, where its chunks are encoded by several,
`write_chunks`. An owner commits a shard while the next one is written, as syncing and sending need
not cost the workers' time; few at once, so that neither memory, nor the temporary folder, nor what
is lost when a build fails grows with their number.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shardprep import profiling
from shardprep.profiling import stage
from shardprep.writer.encode.chunk import UNREADABLE, ChunkTask, EncodedChunk
from shardprep.writer.engine.worker_process import WorkerLimits
from shardprep.writer.plan.shard_plan import ShardPlan, chunks
from shardprep.writer.reuse.reused_images import OldImages
from shardprep.writer.shard import ShardHead, ShardWriter
from shardprep.writer.workspace.files import Folders

_COMMITS_AT_ONCE = 2
LEAVE_S = 10.0
"""Seconds that running commits get to end when a build fails."""


class Encoder(Protocol):
    """Makes the records of a chunk: a small value that travels to every worker."""

    @property
    def is_annotated(self) -> bool:
        """Whether the records have boxes or masks."""

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Return the records of the task's items; as `ChunkEncoder` does."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """How shards are written: a small value that travels to every worker."""

    folders: Folders
    encoder: Encoder
    limits: WorkerLimits
    num_items: int
    """Items of the whole build; their number decides the size of chunks."""
    record_bytes: int
    """Estimated bytes of a record."""

    def tasks(self, shard: ShardPlan) -> Iterator[ChunkTask]:
        """Yield the chunks of a shard."""
        old = () if shard.old is None else OldImages(shard.old)
        start = 0
        for items in chunks(shard, self.num_items, self.record_bytes):
            stop = start + len(items)
            yield ChunkTask(shard.name, start, items, old[start:stop])
            start = stop

    def writer(self, shard: ShardHead) -> ShardWriter:
        """Return the writer of a shard."""
        return ShardWriter(self.folders, shard, is_annotated=self.encoder.is_annotated)


class Progress(NamedTuple):
    """Items that are done, written or rejected."""

    num_items: int
    num_rejected: int
    """Rejected items among `num_items`."""
    num_copied: int = 0
    """Items among `num_items` whose image another dataset had stored."""
    num_unreadable: int = 0
    """Items among `num_rejected` whose bytes the source did not give."""

    def plus(self, more: Progress) -> Progress:
        """Return both together."""
        return Progress(*map(sum, zip(self, more, strict=True)))

    def taken_back(self) -> Progress:
        """Return what makes up for items that were counted and are to be done again."""
        return Progress(*(-count for count in self))

    @classmethod
    def of(cls, chunk: EncodedChunk) -> Progress:
        """Return what a chunk adds."""
        num_rejected = sum(bool(outcome.kind) for outcome in chunk.outcomes)
        num_copied = sum(outcome.is_copied for outcome in chunk.outcomes)
        num_unreadable = sum(outcome.kind == UNREADABLE for outcome in chunk.outcomes)
        return cls(len(chunk.outcomes), num_rejected, num_copied, num_unreadable)


Engine = Callable[[ShardJob, Sequence["ShardPlan"], int], Generator[Progress]]
"""Takes the job, the shards, and how many workers it may have."""


def of_shards(
    shards: Iterable[ShardPlan], encoded: Iterable[EncodedChunk]
) -> Iterator[tuple[ShardPlan, EncodedChunk]]:
    """Yield each chunk with the shard that it is of; chunks come in plan order."""
    found = iter(encoded)
    for shard in shards:
        num_left = len(shard.items)
        while num_left:
            chunk = next(found)
            num_left -= len(chunk.outcomes)
            yield shard, chunk


def write_chunks(
    job: ShardJob, found: Iterator[Progress | tuple[ShardPlan, EncodedChunk]]
) -> Iterator[Progress]:
    """Write shards from their chunks, which come in plan order, a shard after the other.

    Progress that comes with them, of shards that others write, is passed on. A shard is abandoned
    where its chunks do not come to an end.
    """
    with _commits() as commit, contextlib.closing(filled(job, found)) as steps:
        for one in steps:
            if isinstance(one, Progress):
                yield one
            else:
                commit(one)


def filled(
    job: ShardJob, found: Iterator[Progress | tuple[ShardPlan, EncodedChunk]]
) -> Generator[Progress | ShardWriter]:
    """Yield progress as `write_chunks` does, and each full shard, for the caller to commit."""
    writer: ShardWriter | None = None
    try:
        while (one := _awaited(found)) is not None:
            if isinstance(one, Progress):
                yield one
                continue
            shard, chunk = one
            if writer is None:
                writer = job.writer(ShardHead(shard.name, shard.split, len(shard.items)))
            profiling.add(chunk.seconds)
            start = writer.num_items
            writer.append(shard.part(slice(start, start + len(chunk.outcomes))), chunk)
            yield Progress.of(chunk)
            if writer.is_full:
                full, writer = writer, None
                yield full
    finally:
        if writer is not None:
            writer.abandon()


@stage("wait")
def _awaited(
    found: Iterator[Progress | tuple[ShardPlan, EncodedChunk]],
) -> Progress | tuple[ShardPlan, EncodedChunk] | None:
    return next(found, None)


@contextlib.contextmanager
def _commits() -> Iterator[Callable[[ShardWriter], None]]:
    """Give what begins to commit a full shard; the end waits for all, and raises their errors."""
    begun: deque[Future[None]] = deque()

    @stage("write")
    def await_all_but(most: int) -> None:
        while len(begun) > most:
            begun.popleft().result()

    def commit(writer: ShardWriter) -> None:
        await_all_but(_COMMITS_AT_ONCE - 1)
        begun.append(begin_commit(writer))

    try:
        yield commit
    except BaseException:
        wait(begun, timeout=LEAVE_S)
        raise
    await_all_but(0)


def begin_commit(writer: ShardWriter) -> Future[None]:
    """Commit a full shard in a thread of its own; the future raises what that meets."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            writer.commit()
        except BaseException as error:  # the future raises it where it is waited for
            future.set_exception(error)
        else:
            future.set_result(None)

    # One that hangs in the network must not keep an interrupted program from ending: a daemon.
    threading.Thread(target=run, name="shardprep commit", daemon=True).start()
    return future
