"""Copies of framed records: shards of what other datasets hold, in runs as long as they lie.

Records that follow each other in both shards are read, hashed and written as one block; the
checksums of each are compared all the same. The rows of a shard are made of columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from dataclasses import dataclass
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import example, tfrecord
from shardprep.dataset.item_table import ANNOTATED_COLUMNS, COLUMNS
from shardprep.dataset.manifest import Shard
from shardprep.dataset.schema import BOX_LABEL, FILENAME, LABEL, LABELS, UNLABELLED
from shardprep.errors import DatasetError, RecordError
from shardprep.source.extent import MemberError, PlainExtent
from shardprep.source.range_reads import read_ahead
from shardprep.source.texts import integers
from shardprep.storage.url import is_url
from shardprep.writer.engine.job import Progress
from shardprep.writer.parents import moved
from shardprep.writer.shard import Receipt, write_receipt
from shardprep.writer.shard_plan import ShardItems

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from shardprep.dataset.schema import Schema
    from shardprep.writer.shard_plan import ShardPlan
    from shardprep.writer.workspace.states import Folders

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

_BATCH_BYTES = 1 << 20
"""Bytes that are read, hashed and written at a time, unless one record has more."""
_COPIES_AT_ONCE = 3
"""Shards that are copied at a time: while one is read, others are hashed and written."""
_SHARDS_AT_ONCE = 8
"""Shards at a time, those among them that are synced: a disk has many done in half the time."""
_LEAVE_S = 10.0
"""Seconds that running copies get to end when one fails."""


class _Run(NamedTuple):
    """Records that lie one behind the other in a shard of a parent, and are to in the new one."""

    start: int
    """Position of the first among the records of the new shard."""
    stop: int
    batch: int
    """Number of the batch that it is a part of."""
    extent: PlainExtent


@dataclass(frozen=True, slots=True)
class RecordCopier:
    """Copies records into new shards; `ShardPlan.old` has where each lies, and its row."""

    schema: Schema
    relabelled: frozenset[str]
    """Shards whose records get other class numbers."""

    def copied(self, folders: Folders, shards: Sequence[ShardPlan]) -> Generator[Progress]:
        """Write shards and their receipts, a few at once; yield what is done.

        Raises:
            DatasetError: a shard of a parent is gone or cut, or holds another record.
            RecordError: a record is damaged.
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


class _Buffer:
    """Memory that is used again: each thread would keep as much of what it has freed."""

    def __init__(self) -> None:
        self._data = bytearray()

    def sized(self, num_bytes: int) -> bytearray:
        """Return the memory, of so many bytes at least."""
        if len(self._data) < num_bytes:
            self._data = bytearray(num_bytes)
        return self._data


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
        self.buffers: SimpleQueue[tuple[_Buffer, _Buffer]] = SimpleQueue()
        """Those of each thread that copies; one whose shard is synced or sent has none."""
        for _ in range(_COPIES_AT_ONCE):
            self.buffers.put((_Buffer(), _Buffer()))

    @contextlib.contextmanager
    def copying(self, *, is_remote: bool) -> Iterator[tuple[_Buffer, _Buffer]]:
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
        rows = _taken(old, items.rows)
        self._common, self._schema, self._plan, self._rows = common, copier.schema, plan, rows
        self._dtypes = copier.schema.dtypes
        self._has_key = FILENAME in self._dtypes
        self._keys = items.members.keys.array.cast(pa.string())
        is_written = rows["kind"].is_null()
        self._written = np.flatnonzero(is_written.to_numpy())
        """Rows with a record."""
        taken = rows.select(["file", "offset", "length", "key"]).filter(is_written)
        file = taken["file"].unify_dictionaries().combine_chunks()
        self._file_codes = integers(file.indices)
        self._files: list[str] = file.cast("string").to_pylist()
        self._is_remote = any(map(is_url, file.dictionary.to_pylist()))
        self._offsets, self._lengths = (
            pc.fill_null(taken[name], 0).to_numpy() for name in ("offset", "length")
        )
        old_keys = pc.fill_null(taken["key"], "")
        self._old_keys: list[bytes] = old_keys.cast(pa.binary()).to_pylist()
        has_new_key = pc.not_equal(self._keys.filter(is_written.combine_chunks()), old_keys)
        has_new_label = pc.is_in(file.cast("string"), pa.array([*copier.relabelled], pa.string()))
        self._is_changed = pc.or_(has_new_key, has_new_label).to_numpy()
        self._new_lengths = self._lengths.copy()

    def write(self) -> None:
        """Write the shard and its receipt; nothing where all has ended meanwhile."""
        common, folders, name = self._common, self._common.folders, self._plan.name
        file, hashed = folders.output.new_file(name), hashlib.sha256()
        try:
            with common.copying(is_remote=self._is_remote) as buffers:
                told = 0
                for data, stop in self._batches(*buffers):
                    if common.has_ended.is_set():
                        return
                    hashed.update(data)
                    file.write(data)
                    end = int(self._written[stop - 1]) + 1
                    common.told.put(self._progress(told, end))
                    told = end
            folders.check_build()
            mark = file.commit() or ""
        finally:
            file.abandon()
        shard = Shard(
            name=name,
            num_records=len(self._written),
            num_bytes=int(self._new_lengths.sum()),
            sha256=hashed.hexdigest(),
        )
        columns = ANNOTATED_COLUMNS if self._schema.annotations else COLUMNS
        table = moved(self._rows, name, self._keys, self._new_lengths, columns)
        write_receipt(folders.state, Receipt(shard, mark, table, folders.build))
        common.told.put(self._progress(told, len(self._rows)))

    def _progress(self, start: int, stop: int) -> Progress:
        """Return that the rows between are done."""
        num_written = int(np.diff(np.searchsorted(self._written, (start, stop)))[0])
        return Progress(stop - start, stop - start - num_written)

    def _batches(self, found: _Buffer, made: _Buffer) -> Iterator[tuple[memoryview, int]]:
        """Yield the framed records in their order, many at a time, and the number until there."""
        runs = self._runs()
        with contextlib.closing(read_ahead([run.extent for run in runs])) as ahead:
            for _, of_one in groupby(runs, key=lambda run: run.batch):
                batch = list(of_one)
                start, stop = batch[0].start, batch[-1].stop
                data = found.sized(sum(run.extent.num_bytes for run in batch))
                with self._common.reading:
                    self._read(batch, ahead, data)
                    self._check(start, stop, data)
                yield self._renewed(start, stop, data, made), stop

    def _runs(self) -> list[_Run]:
        """Return what is read at once, all of it of one batch."""
        if not len(self._lengths):
            return []
        ends = self._offsets + self._lengths
        batches = (np.cumsum(self._lengths) - self._lengths) // _BATCH_BYTES
        goes_on = (
            (np.diff(batches) == 0)
            & (np.diff(self._file_codes) == 0)
            & (self._offsets[1:] == ends[:-1])
        )
        starts = np.flatnonzero(np.append(True, ~goes_on))
        stops = np.append(starts[1:], len(ends))
        columns = (starts, stops, batches[starts], self._offsets[starts], ends[stops - 1])
        rows = zip(*(one.tolist() for one in columns), strict=True)
        return [
            _Run(start, stop, batch, PlainExtent(self._files[start], offset, end - offset))
            for start, stop, batch, offset, end in rows
        ]

    def _read(self, runs: Sequence[_Run], ahead: Iterator[PlainExtent], data: bytearray) -> None:
        """Read runs of one batch, the next that are read ahead, into the front of `data`."""
        view, at = memoryview(data), 0
        for run, extent in zip(runs, ahead, strict=False):
            end = at + extent.num_bytes
            try:
                extent.read_into(view[at:end])
            except MemberError:
                self._check(runs[0].start, run.start, data)  # what is first is told
                view[at:end] = b"".join(map(self._read_alone, range(run.start, run.stop)))
            at = end

    def _read_alone(self, number: int) -> bytes:
        """Return one record, which is sound."""
        file, offset = self._files[number], int(self._offsets[number])
        try:
            data = PlainExtent(file, offset, int(self._lengths[number])).read()
        except MemberError as error:
            raise DatasetError(file, f"at byte {offset:,}: {error}", _hint(file)) from error
        self._check(number, number + 1, data)
        return data

    def _check(self, start: int, stop: int, data: bytes | bytearray) -> None:
        """Check that some bytes begin with sound records, those between two numbers."""
        lengths = self._lengths[start:stop]
        block = np.frombuffer(data, np.uint8)
        num_sound = tfrecord.num_sound(block, lengths)
        ends = np.cumsum(lengths).tolist()
        if self._has_key:
            keys = zip(self._old_keys[start : start + num_sound], [0, *ends], ends, strict=False)
            for number, (key, at, end) in enumerate(keys, start):
                if data.rfind(key, at, end) < 0:
                    file, offset = self._files[number], self._offsets[number]
                    what = f"the record at byte {offset:,} is not that of {key.decode()}"
                    raise DatasetError(file, what, _hint(file))
        if num_sound < stop - start:
            number = start + num_sound
            file, offset = self._files[number], int(self._offsets[number])
            end = ends[num_sound]
            try:
                tfrecord.unframe(block[end - int(lengths[num_sound]) : end], file, offset)
            except RecordError as error:
                raise RecordError(file, error.what, _hint(file), offset=offset) from error

    def _renewed(self, start: int, stop: int, data: bytearray, made: _Buffer) -> memoryview:
        """Return records between two numbers, each of which is what it was, or is to become."""
        view, ends = memoryview(data), np.cumsum(self._lengths[start:stop]).tolist()
        is_changed = self._is_changed[start:stop]
        if not is_changed.any():
            return view[: ends[-1]]
        rows = self._written[start:stop]
        values = self._new_values(int(rows[0]), int(rows[-1]) + 1)
        pieces: list[bytes | memoryview] = []
        for number, (at, end) in enumerate(zip([0, *ends], ends, strict=False)):
            own: list[bytes | memoryview] = [view[at:end]]
            if is_changed[number]:
                payload = view[at + tfrecord.HEADER_BYTES : end - tfrecord.FOOTER_BYTES]
                new = values[int(rows[number] - rows[0])]
                own = tfrecord.framed(example.replaced(payload, new, self._dtypes))
            self._new_lengths[start + number] = sum(map(len, own))
            pieces += own
        whole, at = memoryview(made.sized(sum(map(len, pieces)))), 0
        for piece in pieces:
            whole[at : at + len(piece)] = piece
            at += len(piece)
        return whole[:at]

    def _new_values(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return the key and the classes of the items in some rows, by feature."""
        some = self._rows.slice(start, stop - start)
        keys = self._keys.slice(start, stop - start).cast(pa.binary()).to_pylist()
        found: list[dict[str, Any]] = [
            {FILENAME: [key], LABEL: [UNLABELLED if label is None else label], LABELS: labels or ()}
            for key, label, labels in zip(
                keys, some["label"].to_pylist(), some["labels"].to_pylist(), strict=True
            )
        ]
        if BOX_LABEL in self._dtypes:
            for values, labels in zip(found, some["object_labels"].to_pylist(), strict=True):
                values[BOX_LABEL] = labels or ()
        return found


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


def _hint(file: str) -> str:
    return f"run `shardprep verify {file.rpartition('/')[0]} --repair`"
