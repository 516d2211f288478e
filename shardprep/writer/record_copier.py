"""Read and check framed records of finished datasets, and copy them into new shards.

Both `build --reuse` and `repack` read records here. Adjacent records of a shard are read as one
run. A repack copies several shards at a time. It hashes and writes whole batches of records, and
makes the item rows of a shard by column: `ShardWriter` would take several times as long.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import example, tfrecord
from shardprep.dataset.item_table import columns_for
from shardprep.dataset.local_files import way_out
from shardprep.dataset.manifest import Shard
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX_LABEL, FILENAME, LABEL, LABELS, UNLABELLED, Schema
from shardprep.errors import DatasetError, RecordError
from shardprep.source.byte_range import MemberError, PlainExtent
from shardprep.source.range_reads import read_ahead
from shardprep.source.string_column import integers, release
from shardprep.storage.url import is_url
from shardprep.writer.engine.job import LEAVE_S, ItemCounts, OnProgress
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.shard import ReceiptFacts, write_receipt
from shardprep.writer.workspace.files import Folders

_BATCH_BYTES = 1 << 20
"""Bytes of records to read, hash and write at a time; a single record may be larger."""


class RecordRun(NamedTuple):
    """Adjacent records of one shard: positions `start` to `stop` in `StoredRecords`."""

    start: int
    stop: int
    batch: int
    """Number of the batch of the run. A batch has about `_BATCH_BYTES`, in one or several runs."""
    extent: PlainExtent


class StoredRecords:
    """Records of finished datasets, in the order of the given item rows."""

    def __init__(self, rows: pa.Table, *, have_keys: bool) -> None:
        """Take rows from `with_files`. With `have_keys`, each record must contain its item key."""
        file = rows["file"].unify_dictionaries().combine_chunks()
        self._codes = integers(file.indices)
        self.files: list[str] = file.cast("string").to_pylist()
        self.is_remote = any(map(is_url, file.dictionary.to_pylist()))
        self.offsets, self.lengths = (
            pc.fill_null(rows[name], 0).to_numpy() for name in ("offset", "length")
        )
        self._keys: list[bytes] | None = None
        if have_keys:
            self._keys = pc.fill_null(rows["key"], "").cast(pa.binary()).to_pylist()

    def runs(self) -> list[RecordRun]:
        if not len(self.lengths):
            return []
        ends = self.offsets + self.lengths
        batches = (np.cumsum(self.lengths) - self.lengths) // _BATCH_BYTES
        is_next = (
            (np.diff(batches) == 0) & (np.diff(self._codes) == 0) & (self.offsets[1:] == ends[:-1])
        )
        starts = np.flatnonzero(np.append(True, ~is_next))
        stops = np.append(starts[1:], len(ends))
        columns = (starts, stops, batches[starts], self.offsets[starts], ends[stops - 1])
        return [
            RecordRun(start, stop, batch, PlainExtent(self.files[start], offset, end - offset))
            for start, stop, batch, offset, end in zip(*(c.tolist() for c in columns), strict=True)
        ]

    def read(self, start: int, stop: int) -> list[memoryview | None]:
        """Return the framed records of a run, with None for a record that is lost or damaged.

        If the run cannot be read as a whole, its records are read one by one.
        """
        at, end = int(self.offsets[start]), int(self.offsets[stop - 1] + self.lengths[stop - 1])
        try:
            data = PlainExtent(self.files[start], at, end - at).read()
        except MemberError:
            if stop - start == 1:
                return [None]
            return [self.read(number, number + 1)[0] for number in range(start, stop)]
        view, ends = memoryview(data), np.cumsum(self.lengths[start:stop]).tolist()
        sound = zip([0, *ends], ends, self.are_sound(start, stop, data), strict=False)
        return [view[at:end] if is_sound else None for at, end, is_sound in sound]

    def are_sound(self, start: int, stop: int, data: bytes | bytearray) -> list[bool]:
        """Return whether each record from `start` to `stop` is valid in `data` and has its key."""
        lengths = self.lengths[start:stop]
        sound: list[bool] = tfrecord.are_sound(np.frombuffer(data, np.uint8), lengths).tolist()
        if self._keys is not None:
            ends = np.cumsum(lengths).tolist()
            for i, key in enumerate(self._keys[start:stop]):
                if sound[i] and data.rfind(key, ends[i - 1] if i else 0, ends[i]) < 0:
                    sound[i] = False
        return sound

    def read_alone(self, number: int) -> bytes:
        """Return a framed record; DatasetError or RecordError if it is damaged."""
        file, offset = self.files[number], int(self.offsets[number])
        try:
            data = PlainExtent(file, offset, int(self.lengths[number])).read()
        except MemberError as error:
            what = f"the record at byte {offset:,} {error}"
            raise DatasetError(file, what, _hint(file)) from error
        if all(self.are_sound(number, number + 1, data)):
            return data
        try:
            tfrecord.unframe(np.frombuffer(data, np.uint8), file, offset)
        except RecordError as error:
            raise RecordError(file, error.what, _hint(file), offset=offset) from error
        key = "" if self._keys is None else self._keys[number].decode()
        what = f"the record at byte {offset:,} does not belong to {key}"
        raise DatasetError(file, what, _hint(file))

    def check_places(self) -> None:
        """Raise DatasetError if a length or an offset is negative."""
        is_below = (self.offsets < 0) | (self.lengths < 0)
        if is_below.any():
            what = "has a record with a negative length or offset in the item table"
            file = self.files[int(np.argmax(is_below))]
            raise DatasetError(file, what, _hint(file))


def with_files(rows: pa.Table, dataset: OpenDataset) -> pa.Table:
    """Return rows with a column `file`, the path or address of each shard, instead of `shard`."""
    shards = rows["shard"].cast("string").combine_chunks().dictionary_encode()
    names: Sequence[str] = shards.dictionary.to_pylist()
    files = pa.array([dataset.files.location(name) for name in names], pa.string())
    column = rows.schema.get_field_index("shard")
    file = pa.DictionaryArray.from_arrays(shards.indices, files)
    return rows.set_column(column, "file", file)


Numbers = np.ndarray[Any, np.dtype[np.int64]]

_BATCHES_A_REPORT = 8
"""Number of batches between progress reports; each report interrupts the copies."""
_COPIES_AT_ONCE = 3
"""Number of shards to copy at a time: one is read while others are hashed and written."""
_SHARDS_AT_ONCE = 8
"""Number of shards being copied or synced: a disk syncs many at once in half the time."""
_TRUSTED_BYTES = 64 << 20
"""Larger batches are first checked record by record: item tables may state wrong lengths."""
_M_ARENA_MAX = -8  # malloc.h of glibc


def share_heap() -> None:
    """Let all threads of this process use one heap (glibc).

    With a heap for each thread, a merge of two sets of 25,000 photos takes 225 MB instead of 150.
    Only the command line calls this function, because threads with one heap wait for each other.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class Buffer:
    """Memory that all batches reuse. With new memory per batch, a merge takes 230 MB, not 150."""

    def __init__(self) -> None:
        self._data = bytearray()

    def sized(self, num_bytes: int) -> bytearray:
        if len(self._data) < num_bytes:
            self._data = bytearray(num_bytes)
        return self._data


class RecordCopier:
    """Copies the records of `ShardPlan.old` in several threads.

    A record gets key, labels and added features of its item if `is_new` is set or its key is new.
    """

    def __init__(
        self, folders: Folders, schema: Schema, columns: Sequence[str], check: Callable[[], None]
    ) -> None:
        """Create a copier. Items add features `columns`; `check` raises if a parent has changed."""
        self.folders, self.schema, self.check = folders, schema, check
        self.columns = columns
        self.reading = threading.RLock()
        """Held while a batch is read and checked, because threads would compete for the GIL."""
        self.waiting: SimpleQueue[ShardPlan] = SimpleQueue()
        self.events: SimpleQueue[ItemCounts | BaseException | None] = SimpleQueue()
        """Counts of copied items; when a thread ends, its error or None."""
        self.has_ended = threading.Event()
        """Set when a copy has failed or the program ends."""
        self.buffers: SimpleQueue[tuple[Buffer, Buffer]] = SimpleQueue()
        """Free buffers, a pair per copy. A shard that is being synced or sent needs no buffer."""
        for _ in range(_COPIES_AT_ONCE):
            self.buffers.put((Buffer(), Buffer()))

    def copy(self, shards: Sequence[ShardPlan], on_progress: OnProgress) -> None:
        """Write shards and receipts, a few at a time; RecordError or DatasetError for damage."""
        for shard in shards:
            self.waiting.put(shard)
        # Daemons, because a hanging network read must not block the end of the program.
        threads = [
            threading.Thread(target=self._work, name="shardprep copy", daemon=True)
            for _ in shards[:_SHARDS_AT_ONCE]
        ]
        for thread in threads:
            thread.start()
        try:
            self._pass_on(len(threads), on_progress)
        finally:
            self.has_ended.set()
            end = time.monotonic() + LEAVE_S
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))

    @contextlib.contextmanager
    def copying(self, *, is_remote: bool) -> Iterator[tuple[Buffer, Buffer]]:
        buffers = self.buffers.get()
        try:
            with self.reading if is_remote else contextlib.nullcontext():
                yield buffers
        finally:
            self.buffers.put(buffers)

    def _work(self) -> None:
        try:
            while not self.has_ended.is_set():
                _Copy(self, self.waiting.get_nowait()).write()
        except Empty:
            self.events.put(None)
        except BaseException as error:
            self.events.put(error)

    def _pass_on(self, num_threads: int, on_progress: OnProgress) -> None:
        while num_threads:
            event = self.events.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                num_threads -= 1
            else:
                on_progress(event)


class _Copy:
    def __init__(self, copier: RecordCopier, plan: ShardPlan) -> None:
        items = plan.items
        self._copier, self._schema, self._plan = copier, copier.schema, plan
        self._rows = own_rows(plan)
        self._keys = items.members.keys.array.cast(pa.string())
        is_record = self._rows["kind"].is_null()
        self._places = np.flatnonzero(is_record.to_numpy())
        records = self._rows.filter(is_record)
        self._records = StoredRecords(records, have_keys=FILENAME in self._schema.dtypes)
        has_new_key = pc.not_equal(
            self._keys.filter(is_record.combine_chunks()), pc.fill_null(records["key"], "")
        )
        self._is_changed = pc.or_(has_new_key, records["is_new"]).to_numpy()
        self._new_lengths = self._records.lengths.copy()
        """Length of each framed record in the new shard; final when its batch is written."""

    def write(self) -> None:
        copier, folders, name = self._copier, self._copier.folders, self._plan.name
        file, hashed = folders.output.new_file(name), hashlib.sha256()
        try:
            with copier.copying(is_remote=self._records.is_remote) as buffers:
                num_done = 0
                for number, (data, stop) in enumerate(self._batches(*buffers)):
                    if copier.has_ended.is_set():
                        return
                    hashed.update(data)
                    file.write(data)
                    if number % _BATCHES_A_REPORT == 0:
                        end = int(self._places[stop - 1]) + 1
                        copier.events.put(self._counts(num_done, end))
                        num_done = end
            folders.check_build()
            copier.check()
            mark = file.commit() or ""
        finally:
            file.abandon()
        shard = Shard(
            name=name,
            num_records=len(self._places),
            num_bytes=int(self._new_lengths.sum()),
            sha256=hashed.hexdigest(),
        )
        table = _moved(self._rows, name, self._keys, self._new_lengths, columns_for(self._schema))
        facts = ReceiptFacts(shard=shard, mark=mark, build=folders.build)
        write_receipt(folders.state, facts, table)
        release()
        copier.events.put(self._counts(num_done, len(self._rows)))

    def _counts(self, start: int, stop: int) -> ItemCounts:
        num_written = int(np.diff(np.searchsorted(self._places, (start, stop)))[0])
        return ItemCounts(stop - start, stop - start - num_written)

    def _batches(self, read: Buffer, renewed: Buffer) -> Iterator[tuple[memoryview, int]]:
        """Yield each batch and the number of records so far. The next batch reuses the memory."""
        self._records.check_places()
        runs = self._records.runs()
        with contextlib.closing(read_ahead([run.extent for run in runs])) as ahead:
            for _, some in groupby(runs, key=lambda run: run.batch):
                batch = list(some)
                start, stop = batch[0].start, batch[-1].stop
                with self._copier.reading:
                    data = self._read(batch, ahead, read)
                yield self._renewed(start, stop, data, renewed), stop

    def _read(
        self, batch: Sequence[RecordRun], ahead: Iterator[PlainExtent], buffer: Buffer
    ) -> bytearray:
        """Read and check a batch, and return the buffer with the batch at its start.

        `ahead` yields the extents of the batch. If the batch cannot be read or is damaged, its
        records are read one by one, so that an error names the first damaged record.
        """
        start, stop = batch[0].start, batch[-1].stop
        num_bytes = sum(run.extent.num_bytes for run in batch)
        if num_bytes > _TRUSTED_BYTES:
            for number in range(start, stop):
                self._records.read_alone(number)
        data = buffer.sized(num_bytes)
        view, at, is_read = memoryview(data), 0, True
        for extent in islice(ahead, len(batch)):
            end = at + extent.num_bytes
            try:
                extent.read_into(view[at:end])
            except MemberError:
                is_read = False
            at = end
        if not (is_read and all(self._records.are_sound(start, stop, data))):
            view[:num_bytes] = b"".join(map(self._records.read_alone, range(start, stop)))
        return data

    def _renewed(self, start: int, stop: int, data: bytearray, buffer: Buffer) -> memoryview:
        view, ends = memoryview(data), np.cumsum(self._records.lengths[start:stop]).tolist()
        is_changed = self._is_changed[start:stop]
        if not is_changed.any():
            return view[: ends[-1]]
        places = self._places[start:stop]
        values = self._new_values(int(places[0]), int(places[-1]) + 1)
        pieces: list[bytes | memoryview] = []
        for number, (at, end) in enumerate(zip([0, *ends], ends, strict=False)):
            record: bytes | memoryview = view[at:end]
            if is_changed[number]:
                payload = bytes(record[tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES])
                new = values[int(places[number] - places[0])]
                record = tfrecord.frame(example.with_values(payload, new, self._schema.dtypes))
            self._new_lengths[start + number] = len(record)
            pieces.append(record)
        whole, at = memoryview(buffer.sized(sum(map(len, pieces)))), 0
        for piece in pieces:
            whole[at : at + len(piece)] = piece
            at += len(piece)
        return whole[:at]

    def _new_values(self, start: int, stop: int) -> list[dict[str, Any]]:
        some = self._rows.slice(start, stop - start)
        keys = self._keys.slice(start, stop - start).cast(pa.binary()).to_pylist()
        columns = (keys, some["label"].to_pylist(), some["labels"].to_pylist())
        values: list[dict[str, Any]] = [
            {FILENAME: [key], LABEL: [UNLABELLED if label is None else label], LABELS: labels or ()}
            for key, label, labels in zip(*columns, strict=True)
        ]
        if BOX_LABEL in self._schema.dtypes:
            for own, labels in zip(values, some["object_labels"].to_pylist(), strict=True):
                own[BOX_LABEL] = labels or ()
        added = self._plan.items.part(slice(start, stop)).columns
        for name, column in zip(self._copier.columns, added, strict=True):
            for own, value in zip(values, column, strict=True):
                own[name] = [value.encode() if isinstance(value, str) else value]
        return values


def _moved(
    rows: pa.Table, shard: str, keys: pa.Array, lengths: Numbers, columns: pa.Schema
) -> pa.Table:
    """Return parents' rows as rows of the new shard, whose framed records have these `lengths`."""
    is_written = rows["kind"].is_null().to_numpy()
    places = {"record": np.arange(len(lengths)), "offset": np.cumsum(lengths) - lengths}
    own: dict[str, Any] = {
        "key": keys.cast(pa.string()),
        "shard": pa.array([shard] * len(rows), pa.string()),
    }
    for name, values in (*places.items(), ("length", lengths)):
        spread = np.zeros(len(rows), np.int64)
        spread[is_written] = values
        own[name] = pa.array(spread, mask=~is_written)
    arrays = [
        _laid_out(
            own[column.name] if column.name in own else rows[column.name].combine_chunks(),
            column.type,
        )
        for column in columns
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def _laid_out(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the layout of a build, with dictionary codes in order of appearance."""
    is_words = pa.types.is_dictionary(kind)
    return (column.cast(pa.string()).dictionary_encode() if is_words else column).cast(kind)


def own_rows(plan: ShardPlan) -> pa.Table:
    """Return the row of each item as one chunk; `Table.take` would copy the whole table first."""
    table, rows = plan.old, plan.items.rows
    assert table is not None  # noqa: S101 - of a repack
    parts, places, start = [], [], 0
    for batch in table.to_batches():
        here = np.flatnonzero((rows >= start) & (rows < start + len(batch)))
        parts.append(batch.take(pa.array(rows[here] - start)))
        places.append(here)
        start += len(batch)
    joined = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
    return joined.take(pa.array(np.argsort(np.concatenate(places)))).combine_chunks()


def _hint(file: str) -> str:
    return way_out(file.rpartition("/")[0])
