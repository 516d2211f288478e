"""Batches of framed records of other datasets: read, checked, and changed where their item is.

Records that follow each other in both shards are read as one block. The checksums and the key of
each are compared all the same.
"""

from __future__ import annotations

import contextlib
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import example, tfrecord
from shardprep.dataset.schema import BOX_LABEL, FILENAME, LABEL, LABELS, UNLABELLED, Schema
from shardprep.errors import DatasetError, RecordError
from shardprep.source.byte_range import MemberError, PlainExtent
from shardprep.source.range_reads import read_ahead
from shardprep.source.string_column import integers
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

_BATCH_BYTES = 1 << 20
"""Bytes that are read, hashed and written at a time, unless one record has more."""
_TRUSTED_BYTES = 64 << 20
"""Bytes that a batch may say that it has before it is seen whether they are there."""


class Buffer:
    """Memory that is used again: each thread would keep as much of what it has freed."""

    def __init__(self) -> None:
        self._data = bytearray()

    def sized(self, num_bytes: int) -> bytearray:
        """Return the memory, of so many bytes at least."""
        if len(self._data) < num_bytes:
            self._data = bytearray(num_bytes)
        return self._data


class _Run(NamedTuple):
    """Records that lie one behind the other in a shard of a parent, and are to in the new one."""

    start: int
    """Position of the first among the records of the new shard."""
    stop: int
    batch: int
    """Number of the batch that it is a part of."""
    extent: PlainExtent


class OldRecordBatches:
    """The records of the items of one new shard, batch by batch."""

    def __init__(
        self, rows: pa.Table, keys: pa.Array, schema: Schema, relabelled: Collection[str]
    ) -> None:
        """Take rows of old item tables with their `file`, and the new keys of these items.

        Records in the shards `relabelled` get other class numbers, those in the rows.
        """
        self._rows, self._keys, self._dtypes = rows, keys, schema.dtypes
        is_written = rows["kind"].is_null()
        self.written = np.flatnonzero(is_written.to_numpy())
        """Positions of the rows with a record."""
        taken = rows.select(["file", "offset", "length", "key"]).filter(is_written)
        file = taken["file"].unify_dictionaries().combine_chunks()
        self._has_key = FILENAME in self._dtypes
        self._file_codes = integers(file.indices)
        self._files: list[str] = file.cast("string").to_pylist()
        self.is_remote = any(map(is_url, file.dictionary.to_pylist()))
        self._offsets, self._lengths = (
            pc.fill_null(taken[name], 0).to_numpy() for name in ("offset", "length")
        )
        old_keys = pc.fill_null(taken["key"], "")
        self._old_keys: list[bytes] = old_keys.cast(pa.binary()).to_pylist()
        has_new_key = pc.not_equal(keys.filter(is_written.combine_chunks()), old_keys)
        has_new_label = pc.is_in(file.cast("string"), pa.array([*relabelled], pa.string()))
        self._is_changed = pc.or_(has_new_key, has_new_label).to_numpy()
        self.new_lengths = self._lengths.copy()
        """Bytes of each new record; right once its batch was yielded."""

    def batches(
        self, found: Buffer, made: Buffer, reading: AbstractContextManager[Any]
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield the framed records in their order, many at a time, and the number until there.

        Each is in one of the buffers, until the next. `reading` is held while one is read.

        Raises:
            DatasetError: a shard is gone or cut, or holds another record.
            RecordError: a record is damaged.

        """
        runs = self._runs()
        with contextlib.closing(read_ahead([run.extent for run in runs])) as ahead:
            for _, of_one in groupby(runs, key=lambda run: run.batch):
                batch = list(of_one)
                start, stop = batch[0].start, batch[-1].stop
                num_bytes = sum(run.extent.num_bytes for run in batch)
                with reading:
                    if num_bytes > _TRUSTED_BYTES:
                        for number in range(start, stop):
                            self._read_alone(number)
                    data = found.sized(num_bytes)
                    self._read(batch, ahead, data)
                    self._check(start, stop, data)
                yield self._renewed(start, stop, data, made), stop

    def _runs(self) -> list[_Run]:
        """Return what is read at once, all of it of one batch."""
        if not len(self._lengths):
            return []
        is_below = (self._offsets < 0) | (self._lengths < 0)
        if is_below.any():
            what = "its item table has a record of less than no bytes, or before its first"
            file = self._files[int(np.argmax(is_below))]
            raise DatasetError(file, what, _hint(file))
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

    def _renewed(self, start: int, stop: int, data: bytearray, made: Buffer) -> memoryview:
        """Return records between two numbers, each of which is what it was, or is to become."""
        view, ends = memoryview(data), np.cumsum(self._lengths[start:stop]).tolist()
        is_changed = self._is_changed[start:stop]
        if not is_changed.any():
            return view[: ends[-1]]
        rows = self.written[start:stop]
        values = self._new_values(int(rows[0]), int(rows[-1]) + 1)
        pieces: list[bytes | memoryview] = []
        for number, (at, end) in enumerate(zip([0, *ends], ends, strict=False)):
            own: list[bytes | memoryview] = [view[at:end]]
            if is_changed[number]:
                payload = view[at + tfrecord.HEADER_BYTES : end - tfrecord.FOOTER_BYTES]
                new = values[int(rows[number] - rows[0])]
                own = tfrecord.framed(example.replaced(payload, new, self._dtypes))
            self.new_lengths[start + number] = sum(map(len, own))
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


def _hint(file: str) -> str:
    return f"run `shardprep verify {file.rpartition('/')[0]} --repair`"
