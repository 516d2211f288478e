"""Copies of framed records: shards of what other datasets hold, several at a time.

Their bytes are hashed and written as they were read; the rows of a shard are made of columns.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardprep.dataset.item_table import ANNOTATED_COLUMNS, COLUMNS
from shardprep.dataset.manifest import Shard
from shardprep.dataset.schema import Schema
from shardprep.source.string_column import release
from shardprep.writer.engine.job import Progress
from shardprep.writer.plan.shard_plan import ShardItems, ShardPlan
from shardprep.writer.reuse.record_batches import Buffer, OldRecordBatches
from shardprep.writer.reuse.repack_inputs import moved
from shardprep.writer.shard import Receipt, write_receipt
from shardprep.writer.workspace.files import Folders

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

_COPIES_AT_ONCE = 3
"""Shards that are copied at a time: while one is read, others are hashed and written."""
_SHARDS_AT_ONCE = 8
"""Shards at a time, those among them that are synced: a disk has many done in half the time."""
_LEAVE_S = 10.0
"""Seconds that running copies get to end when one fails."""
_M_ARENA_MAX = -8
"""Parameter of mallopt: malloc.h of glibc."""


@dataclass(frozen=True, slots=True)
class RecordCopier:
    """Copies records into new shards; `ShardPlan.old` has where each lies, and its row."""

    schema: Schema
    relabelled: frozenset[str]
    """Shards whose records get other class numbers."""
    check: Callable[[], None]
    """Raises ChangedError if a dataset was replaced that records are copied from."""

    def copied(self, folders: Folders, shards: Sequence[ShardPlan]) -> Generator[Progress]:
        """Write shards and their receipts, a few at once; yield what is done.

        Raises:
            DatasetError: a shard of a parent is gone or cut, or holds another record.
            RecordError: a record is damaged.
            ChangedError: as `check`.
            BuildError: another build has taken this one over, or the disk is full.

        """
        common = _Common(self, folders)
        for shard in shards:
            common.waiting.put(shard)
        # Daemons: one that hangs in the network must not keep an interrupted program from ending.
        threads = [
            threading.Thread(target=common.work, name="shardprep copy", daemon=True)
            for _ in shards[:_SHARDS_AT_ONCE]
        ]
        for thread in threads:
            thread.start()
        try:
            yield from common.progress(len(threads))
        finally:
            common.has_ended.set()
            end = time.monotonic() + _LEAVE_S
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))


def share_heap() -> None:
    """Let all threads of this process have one heap (glibc); else each keeps what it has freed.

    For a process of our own alone, before it copies: threads that allocate much would wait for
    each other.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class _Common:
    """State that the threads that copy share."""

    def __init__(self, copier: RecordCopier, folders: Folders) -> None:
        self.copier, self.folders = copier, folders
        self.reading = threading.RLock()
        """Held by the thread that reads and checks a batch: several would take the interpreter
        from each other at each record."""
        self.waiting: SimpleQueue[ShardPlan] = SimpleQueue()
        self.told: SimpleQueue[Progress | BaseException | None] = SimpleQueue()
        """Progress, errors of failed copies, and None for a thread that has nothing left to do."""
        self.has_ended = threading.Event()
        """Whether nothing more is wanted."""
        self.buffers: SimpleQueue[tuple[Buffer, Buffer]] = SimpleQueue()
        """Those of each thread that copies; one whose shard is synced or sent has none."""
        for _ in range(_COPIES_AT_ONCE):
            self.buffers.put((Buffer(), Buffer()))

    @contextlib.contextmanager
    def copying(self, *, is_remote: bool) -> Iterator[tuple[Buffer, Buffer]]:
        """Give buffers to one that copies; what is fetched ahead of objects is of one at a time."""
        buffers = self.buffers.get()
        try:
            with self.reading if is_remote else contextlib.nullcontext():
                yield buffers
        finally:
            self.buffers.put(buffers)

    def work(self) -> None:
        """Write what waits, shard by shard."""
        try:
            while not self.has_ended.is_set():
                _Copy(self, self.waiting.get_nowait()).write()
        except Empty:
            self.told.put(None)
        except BaseException as error:
            self.told.put(error)

    def progress(self, num_threads: int) -> Generator[Progress]:
        """Yield what is done until all threads are; raise what one has failed for."""
        while num_threads:
            one = self.told.get()
            if isinstance(one, BaseException):
                raise one
            if one is None:
                num_threads -= 1
            else:
                yield one


class _Copy:
    """The copy of one shard."""

    def __init__(self, common: _Common, plan: ShardPlan) -> None:
        copier, old, items = common.copier, plan.old, plan.items
        if old is None or not isinstance(items, ShardItems):
            raise TypeError("records are copied of rows")
        self._common, self._schema, self._plan = common, copier.schema, plan
        self._rows = _taken(old, items.rows)
        self._keys = items.members.keys.array.cast(pa.string())
        self._records = OldRecordBatches(self._rows, self._keys, copier.schema, copier.relabelled)

    def write(self) -> None:
        """Write the shard and its receipt; nothing where all has ended meanwhile."""
        common, folders, name = self._common, self._common.folders, self._plan.name
        file, hashed = folders.output.new_file(name), hashlib.sha256()
        try:
            with common.copying(is_remote=self._records.is_remote) as buffers:
                told = 0
                for data, stop in self._records.batches(*buffers, common.reading):
                    if common.has_ended.is_set():
                        return
                    hashed.update(data)
                    file.write(data)
                    end = int(self._records.written[stop - 1]) + 1
                    common.told.put(self._progress(told, end))
                    told = end
            folders.check_build()
            common.copier.check()
            mark = file.commit() or ""
        finally:
            file.abandon()
        shard = Shard(
            name=name,
            num_records=len(self._records.written),
            num_bytes=int(self._records.new_lengths.sum()),
            sha256=hashed.hexdigest(),
        )
        columns = ANNOTATED_COLUMNS if self._schema.annotations else COLUMNS
        table = moved(self._rows, name, self._keys, self._records.new_lengths, columns)
        write_receipt(folders.state, Receipt(shard, mark, table, folders.build))
        release()
        common.told.put(self._progress(told, len(self._rows)))

    def _progress(self, start: int, stop: int) -> Progress:
        """Return that the rows between are done."""
        num_written = int(np.diff(np.searchsorted(self._records.written, (start, stop)))[0])
        return Progress(stop - start, stop - start - num_written)


def _taken(table: pa.Table, rows: Numbers) -> pa.Table:
    """Return rows of a table in one chunk; `Table.take` would first make one of all of it."""
    parts, places, start = [], [], 0
    for batch in table.to_batches():
        here = np.flatnonzero((rows >= start) & (rows < start + len(batch)))
        parts.append(batch.take(pa.array(rows[here] - start)))
        places.append(here)
        start += len(batch)
    found = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
    return found.take(pa.array(np.argsort(np.concatenate(places)))).combine_chunks()
