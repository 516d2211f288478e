"""The job of an engine: the shards to write, and the encoder."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa

from shardprep import profiling
from shardprep.dataset.item_table import COLUMNS, columns_for, given_columns
from shardprep.profiling import stage
from shardprep.writer.chunk import UNREADABLE, ChunkTask, Encode, EncodedChunk
from shardprep.writer.plan.shard_plan import ShardPlan, chunks
from shardprep.writer.shard import ShardHead, ShardWriter
from shardprep.writer.workspace.files import Folders

if TYPE_CHECKING:
    from shardprep.processes import WorkerLimits  # imports multiprocessing
    from shardprep.writer.plan.build_plan import BuildPlan

_COMMITS_AT_ONCE = 2
"""Maximum number of running commits: limits memory, temporary files, and lost work on failure."""
LEAVE_S = 10.0
"""Seconds to wait for running commits, or copies of shards, when another one fails."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Folders, encoder and limits for writing shards; pickled for every worker."""

    folders: Folders
    encoder: Encode
    limits: WorkerLimits
    num_items: int
    """Number of items of the whole build, which decides the size of chunks."""
    record_bytes: int
    """Estimated size of a record, which decides the size of chunks."""
    columns: pa.Schema = COLUMNS
    """Columns of the item table."""
    features: Mapping[str, str] = field(default_factory=dict)
    """Feature names in the order of `Item.columns` → column of the item table, or "" if none."""
    is_timed: bool = False

    @classmethod
    def of(
        cls, folders: Folders, encode: Encode, limits: WorkerLimits, plan: BuildPlan
    ) -> ShardJob:
        record_bytes = plan.estimated_bytes // plan.num_items
        titles = {name: one.name for name, one in given_columns(plan.schema).items()}
        features = {name: titles.get(name, "") for name in plan.columns}
        facts = plan.num_items, record_bytes, columns_for(plan.schema), features, profiling.is_on()
        return cls(folders, encode, limits, *facts)

    def tasks(self, shard: ShardPlan) -> Iterator[ChunkTask]:
        start = 0
        for items in chunks(shard, self.num_items, self.record_bytes):
            stop = start + len(items)
            # Rows are copied, because a slice would be pickled with the whole table.
            old = None if shard.old is None else shard.old.take(np.arange(start, stop))
            yield ChunkTask(shard.name, start, items, old)
            start = stop

    def writer(self, shard: ShardHead) -> ShardWriter:
        return ShardWriter(self.folders, shard, self.columns, self.features)


class ItemCounts(NamedTuple):
    """Numbers of finished items: all, rejected, copied and unreadable."""

    num_items: int = 0
    num_rejected: int = 0
    num_copied: int = 0
    num_unreadable: int = 0

    def plus(self, more: ItemCounts) -> ItemCounts:
        return ItemCounts(*map(sum, zip(self, more, strict=True)))

    def negative(self) -> ItemCounts:
        return ItemCounts(*(-count for count in self))

    @classmethod
    def of(cls, chunk: EncodedChunk) -> ItemCounts:
        num_rejected = sum(bool(outcome.kind) for outcome in chunk.outcomes)
        num_copied = sum(outcome.is_copied for outcome in chunk.outcomes)
        num_unreadable = sum(outcome.kind == UNREADABLE for outcome in chunk.outcomes)
        return cls(len(chunk.outcomes), num_rejected, num_copied, num_unreadable)


NOTHING_DONE = ItemCounts()

OnProgress = Callable[[ItemCounts], None]
"""Called with the counts since the last call; negative if a worker died and its shard was lost."""
Engine = Callable[[ShardJob, Sequence[ShardPlan], int, OnProgress], None]
"""Writes the shards of a job in any order, with at most the given number of workers."""


class Workers(NamedTuple):
    """The engine of a build, and its number of workers."""

    engine: Engine
    num: int
    """Number of encoding processes, at least 1."""


class ShardSink:
    """Writes shards one after the other, from chunks in plan order.

    A full shard is committed in a thread while the next one is written. The end of the context
    removes an incomplete shard, waits for all commits and raises their errors. After an exception,
    it waits up to `LEAVE_S` only.
    """

    def __init__(self, job: ShardJob) -> None:
        self._job = job
        self._writer: ShardWriter | None = None
        self._commits: deque[Future[None]] = deque()

    def append(self, shard: ShardPlan, chunk: EncodedChunk) -> Future[None] | None:
        """Write the next chunk of a shard. After the last chunk, begin and return the commit."""
        if self._writer is None:
            self._writer = self._job.writer(ShardHead(shard.name, shard.split, len(shard.items)))
        profiling.add(chunk.seconds)
        start = self._writer.num_items
        self._writer.append(shard.items.part(slice(start, start + len(chunk.outcomes))), chunk)
        if not self._writer.is_full:
            return None
        self._await_all_but(_COMMITS_AT_ONCE - 1)
        full, self._writer = self._writer, None
        self._commits.append(_begin_commit(full))
        return self._commits[-1]

    @stage("write")
    def _await_all_but(self, most: int) -> None:
        while len(self._commits) > most:
            self._commits.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.abandon()
        if kind is None:
            self._await_all_but(0)
        else:
            wait(self._commits, timeout=LEAVE_S)


def _begin_commit(writer: ShardWriter) -> Future[None]:
    future: Future[None] = Future()

    def run() -> None:
        try:
            writer.commit()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    # A daemon thread, because a hanging commit must not block the end of the program.
    threading.Thread(target=run, name="shardprep commit", daemon=True).start()
    return future
