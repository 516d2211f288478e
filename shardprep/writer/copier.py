"""Copies of framed records: shards of what other datasets hold, in runs as long as they lie.

Records that follow each other in both shards are read, hashed and written as one block; the
checksums of each are compared all the same. The rows of a shard are made of columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import example, tfrecord
from shardprep.dataset.example_decoder import ExampleDecoder
from shardprep.dataset.item_table import ANNOTATED_COLUMNS, COLUMNS
from shardprep.dataset.manifest import Shard
from shardprep.dataset.schema import BOX_LABEL, FILENAME, LABEL, LABELS
from shardprep.errors import DatasetError, RecordError
from shardprep.source.extent import MemberError, PlainExtent
from shardprep.source.range_reads import read_ahead
from shardprep.storage.url import is_url
from shardprep.writer.engine.job import Progress
from shardprep.writer.parents import moved
from shardprep.writer.shard import Receipt, write_receipt

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from shardprep.dataset.schema import Schema
    from shardprep.writer.shard_plan import ShardPlan
    from shardprep.writer.workspace.states import Folders

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

_BATCH_BYTES = 1 << 20
"""Bytes that are read, hashed and written at a time, unless one record has more."""
_SHARDS_AT_ONCE = 3
"""Shards that are written at a time: while one is hashed, others are read or synced."""
_LEAVE_S = 10.0
"""Seconds that running copies get to end when one fails."""


class _Run(NamedTuple):
    """Records that lie one behind the other in a shard of a parent, and are to in the new one."""

    start: int
    """Position of the first among the records of the new shard."""
    stop: int
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
        # What is fetched ahead of an object is kept for one shard at a time.
        is_remote = any(is_url(one) for shard in shards for one in _files(shard.old))
        turn = threading.Lock() if is_remote else contextlib.nullcontext()
        common = _Common(self, folders, turn)
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

    def __init__(
        self,
        copier: RecordCopier,
        folders: Folders,
        turn: contextlib.AbstractContextManager[Any],
    ) -> None:
        self.copier, self.folders, self.turn = copier, folders, turn
        """`turn` is held by the one that reads, where only one at a time can."""
        self.waiting: SimpleQueue[ShardPlan] = SimpleQueue()
        self.told: SimpleQueue[Progress | BaseException | None] = SimpleQueue()
        """Progress, errors of failed copies, and None for a thread that has nothing left to do."""
        self.has_ended = threading.Event()
        """Whether nothing more is wanted."""

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
        copier, rows = common.copier, plan.old
        if rows is None:
            raise TypeError("records are copied of rows")
        self._common, self._schema, self._plan, self._rows = common, copier.schema, plan, rows
        self._dtypes = copier.schema.dtypes
        self._has_key = FILENAME in self._dtypes
        self._decoder = ExampleDecoder(self._dtypes, self._dtypes)
        self._written = np.flatnonzero(rows["kind"].is_null().to_numpy())
        """Rows with a record."""
        taken = rows.take(pa.array(self._written))
        self._files: list[str] = taken["file"].cast("string").to_pylist()
        self._offsets, self._lengths = (
            pc.fill_null(taken[name], 0).to_numpy().astype(np.int64)
            for name in ("offset", "length")
        )
        old_keys = pc.fill_null(taken["key"], "")
        self._old_keys = old_keys.to_pylist()
        self._keys = plan.members.keys
        keys = self._keys.take(self._written).array.cast(pa.string())
        has_new_label = pc.is_in(
            taken["file"].cast("string"), pa.array([*copier.relabelled], pa.string())
        )
        self._is_changed = pc.or_(pc.not_equal(keys, old_keys), has_new_label).to_numpy()
        self._items = plan.items[:] if self._is_changed.any() else ()
        self._new_lengths = self._lengths.copy()

    def write(self) -> None:
        """Write the shard and its receipt; nothing where all has ended meanwhile."""
        common, folders, name = self._common, self._common.folders, self._plan.name
        file, hashed = folders.output.new_file(name), hashlib.sha256()
        try:
            with common.turn:
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
        table = moved(self._rows, name, self._keys.array, self._new_lengths, columns)
        write_receipt(folders.state, Receipt(shard, mark, table, folders.build))
        common.told.put(self._progress(told, len(self._rows)))

    def _progress(self, start: int, stop: int) -> Progress:
        """Return that the rows between are done."""
        num_written = int(np.diff(np.searchsorted(self._written, (start, stop)))[0])
        return Progress(stop - start, stop - start - num_written)

    def _batches(self) -> Iterator[tuple[bytes, int]]:
        """Yield the framed records in their order, many at a time, and the number until there."""
        pieces: list[bytes] = []
        num_bytes = 0
        runs = self._runs()
        extents = [run.extent for run in runs]
        with contextlib.closing(read_ahead(extents)) as ahead:
            for run in runs:
                next(ahead)
                pieces.append(self._piece(run))
                num_bytes += run.extent.num_bytes
                if num_bytes >= _BATCH_BYTES or run is runs[-1]:
                    yield b"".join(pieces), run.stop
                    pieces, num_bytes = [], 0

    def _runs(self) -> list[_Run]:
        """Return what is read at once: at most `_BATCH_BYTES`, or one record."""
        files, starts, lengths = self._files, self._offsets.tolist(), self._lengths.tolist()
        runs: list[_Run] = []
        for i, (file, start, length) in enumerate(zip(files, starts, lengths, strict=True)):
            if runs:
                first, _, extent = runs[-1]
                whole = extent.num_bytes + length
                is_next = (file, start) == (extent.file, extent.offset + extent.num_bytes)
                is_alike = self._is_changed[i] == self._is_changed[first]
                if is_next and is_alike and whole <= _BATCH_BYTES:
                    runs[-1] = _Run(first, i + 1, extent._replace(num_bytes=whole))
                    continue
            runs.append(_Run(i, i + 1, PlainExtent(file, start, length)))
        return runs

    def _piece(self, run: _Run) -> bytes:
        """Return the records of a run, each of which is what it was, or is to become."""
        try:
            data = run.extent.read()
        except MemberError as error:
            if run.stop - run.start > 1:  # say which
                return b"".join(self._piece(one) for one in self._apart(run))
            what = f"at byte {run.extent.offset:,}: {error}"
            raise DatasetError(run.extent.file, what, _hint(run.extent.file)) from error
        view = np.frombuffer(data, np.uint8)
        ends = np.cumsum(self._lengths[run.start : run.stop]).tolist()
        for number, start, end in zip(range(run.start, run.stop), [0, *ends], ends, strict=False):
            self._check(number, view[start:end], data, start)
        if not self._is_changed[run.start]:
            return data
        records = [
            self._changed(number, data[start:end])
            for number, start, end in zip(
                range(run.start, run.stop), [0, *ends], ends, strict=False
            )
        ]
        self._new_lengths[run.start : run.stop] = [*map(len, records)]
        return b"".join(records)

    def _apart(self, run: _Run) -> Iterator[_Run]:
        """Yield each record of a run alone."""
        for i in range(run.start, run.stop):
            extent = PlainExtent(self._files[i], int(self._offsets[i]), int(self._lengths[i]))
            yield _Run(i, i + 1, extent)

    def _check(self, number: int, frame: np.ndarray[Any, Any], data: bytes, at: int) -> None:
        """Check that a frame, which begins at a place in some bytes, is a sound record."""
        file, offset = self._files[number], int(self._offsets[number])
        try:
            tfrecord.unframe(frame, file, offset)
        except RecordError as error:
            raise RecordError(file, error.what, _hint(file), offset=offset) from error
        key = self._old_keys[number]
        if self._has_key and data.rfind(key.encode(), at, at + len(frame)) < 0:
            what = f"the record at byte {offset:,} is not that of {key}"
            raise DatasetError(file, what, _hint(file))

    def _changed(self, number: int, record: bytes) -> bytes:
        """Return a record with the key and the classes of its item."""
        row = int(self._written[number])
        item = self._items[row]
        payload = record[tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES]
        values: dict[str, Any] = dict(self._decoder.decode(payload))
        own: dict[str, Any] = {
            FILENAME: [item.key.encode()],
            LABEL: [item.label],
            LABELS: item.target if isinstance(item.target, tuple) else (),
        }
        if BOX_LABEL in values:
            own[BOX_LABEL] = self._rows["object_labels"][row].as_py() or ()
        values |= {name: one for name, one in own.items() if name in values}
        return tfrecord.frame(example.encode(values, self._dtypes))


def _files(rows: pa.Table | None) -> list[str]:
    return [] if rows is None else rows["file"].unique().to_pylist()


def _hint(file: str) -> str:
    return f"run `shardprep verify {file.rpartition('/')[0]} --repair`"
