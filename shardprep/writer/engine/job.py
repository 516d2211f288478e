"""The job of an engine: the shards to write, and the means. The engine yields its progress.

An engine may run anywhere and in any order. It writes each shard and its receipt through a
`ShardWriter`, so that what it leaves behind counts as done, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from shardprep import profiling
from shardprep.profiling import stage
from shardprep.writer.chunk import ChunkEncoder, ChunkTask, EncodedChunk
from shardprep.writer.engine.commits import Commits
from shardprep.writer.engine.limits import WorkerLimits
from shardprep.writer.shard import ShardWriter
from shardprep.writer.shard_plan import chunks

if TYPE_CHECKING:
    from shardprep.writer.shard_plan import ShardPlan
    from shardprep.writer.workspace.layout import Folders


@dataclass(frozen=True, slots=True)
class ShardJob:
    """How shards are written: a small value that travels to every worker."""

    folders: Folders
    encoder: ChunkEncoder
    limits: WorkerLimits
    num_items: int
    """Items of the whole build; their number decides the size of chunks."""
    record_bytes: int
    """Estimated bytes of a record."""

    def tasks(self, shard: ShardPlan) -> Iterator[ChunkTask]:
        """Yield the chunks of a shard."""
        start = 0
        for items in chunks(shard, self.num_items, self.record_bytes):
            yield ChunkTask(shard.name, start, items)
            start += len(items)


class Progress(NamedTuple):
    """Items that are done, written or rejected."""

    num_items: int
    num_rejected: int
    """Rejected items among `num_items`."""


Engine = Callable[[ShardJob, Sequence["ShardPlan"], int], Generator[Progress]]
"""Takes the job, the shards, and how many workers it may have."""
ChunkRunner = Callable[
    [ChunkEncoder, Iterable[ChunkTask], int, WorkerLimits], Generator[EncodedChunk]
]
"""Yields the result of each task, in the order of the tasks."""


def by_chunks(run: ChunkRunner) -> Engine:
    """Return the engine that writes shards here, one after the other, from chunks of a runner.

    While one is committed the next is written.
    """

    def engine(job: ShardJob, shards: Sequence[ShardPlan], num_workers: int) -> Generator[Progress]:
        tasks = (task for shard in shards for task in job.tasks(shard))
        first = list(islice(tasks, num_workers))  # workers without a task are not started
        with (
            closing(run(job.encoder, chain(first, tasks), max(1, len(first)), job.limits)) as found,
            Commits() as commits,
        ):
            for shard in shards:
                writer = ShardWriter(job.folders, shard)
                yield from _filled(writer, found)
                commits.add(writer)

    return engine


def write_shard(
    job: ShardJob, shard: ShardPlan, encoded: Iterator[EncodedChunk]
) -> Iterator[Progress]:
    """Write one shard from the next chunks of an iterator, which are its own."""
    writer = ShardWriter(job.folders, shard)
    yield from _filled(writer, encoded)
    try:
        _commit(writer)
    finally:
        writer.abandon()


def _filled(writer: ShardWriter, encoded: Iterator[EncodedChunk]) -> Iterator[Progress]:
    """Take the chunks of a shard; it is abandoned where that does not come to an end."""
    try:
        while not writer.is_full:
            chunk = _awaited(encoded)
            profiling.add(chunk.seconds)
            writer.append(chunk)
            num_rejected = sum(bool(outcome.kind) for outcome in chunk.outcomes)
            yield Progress(len(chunk.outcomes), num_rejected)
    except BaseException:
        writer.abandon()
        raise


@stage("write")
def _commit(writer: ShardWriter) -> None:
    writer.commit()


@stage("wait")
def _awaited(encoded: Iterator[EncodedChunk]) -> EncodedChunk:
    return next(encoded)
