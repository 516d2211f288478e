"""Copies of framed records: shards of what other datasets hold, in runs as long as they lie.

Records that follow each other in both shards are read, hashed and written as one block; the
checksums of each are compared all the same. The rows of a shard are made of columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
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
            for thread in threads:
                thread.join(_LEAVE_S)


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
        self.copying = threading.Semaphore(_COPIES_AT_ONCE)
        """Held by each thread that copies, and not by those whose shard is synced or sent."""

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
        rows = old.take(pa.array(items.rows)).combine_chunks()
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
        # What is fetched ahead of an object is kept for one shard at a time.
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
            with common.copying, common.reading if self._is_remote else contextlib.nullcontext():
                told = 0
                for data, stop in self._batches():
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

    def _batches(self) -> Iterator[tuple[bytes, int]]:
        """Yield the framed records in their order, many at a time, and the number until there."""
        runs = self._runs()
        with contextlib.closing(read_ahead([run.extent for run in runs])) as ahead:
            for _, of_one in groupby(runs, key=lambda run: run.batch):
                batch = list(of_one)
                with self._common.reading:
                    data = self._read(batch, ahead)
                    stop = batch[-1].stop
                    self._check(batch[0].start, stop, data)
                yield self._renewed(batch[0].start, stop, data), stop

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

    def _read(self, runs: Sequence[_Run], ahead: Iterator[PlainExtent]) -> bytes:
        """Return the bytes of runs of one batch, which are the next that are read ahead."""
        pieces: list[bytes] = []
        for run, _ in zip(runs, ahead, strict=False):
            try:
                pieces.append(run.extent.read())
            except MemberError:
                self._check(runs[0].start, run.start, b"".join(pieces))  # what is first is told
                pieces += map(self._read_alone, range(run.start, run.stop))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_alone(self, number: int) -> bytes:
        """Return one record, which is sound."""
        file, offset = self._files[number], int(self._offsets[number])
        try:
            data = PlainExtent(file, offset, int(self._lengths[number])).read()
        except MemberError as error:
            raise DatasetError(file, f"at byte {offset:,}: {error}", _hint(file)) from error
        self._check(number, number + 1, data)
        return data

    def _check(self, start: int, stop: int, data: bytes) -> None:
        """Check that some bytes are sound records, those between two numbers."""
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

    def _renewed(self, start: int, stop: int, data: bytes) -> bytes:
        """Return records between two numbers, each of which is what it was, or is to become."""
        is_changed = self._is_changed[start:stop]
        if not is_changed.any():
            return data
        view, ends = memoryview(data), np.cumsum(self._lengths[start:stop]).tolist()
        pieces: list[bytes | memoryview] = []
        for number, (at, end) in enumerate(zip([0, *ends], ends, strict=False), start):
            own = (
                self._changed(number, view[at:end])
                if is_changed[number - start]
                else [view[at:end]]
            )
            self._new_lengths[number] = sum(map(len, own))
            pieces += own
        return b"".join(pieces)

    def _changed(self, number: int, record: memoryview) -> list[bytes | memoryview]:
        """Return a record with the key and the classes of its item, in pieces."""
        row = int(self._written[number])
        label, labels = (self._rows[name][row].as_py() for name in ("label", "labels"))
        own: dict[str, Any] = {
            FILENAME: [self._keys[row].as_py().encode()],
            LABEL: [UNLABELLED if label is None else label],
            LABELS: labels or (),
        }
        if BOX_LABEL in self._dtypes:
            own[BOX_LABEL] = self._rows["object_labels"][row].as_py() or ()
        payload = record[tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES]
        return tfrecord.framed(example.replaced(payload, own, self._dtypes))


def _hint(file: str) -> str:
    return f"run `shardprep verify {file.rpartition('/')[0]} --repair`"
