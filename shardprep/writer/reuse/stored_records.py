"""Framed records of finished datasets: read in runs, and checked by checksum and key.

Both `build --reuse` and `repack` read records here. Records that are adjacent in a shard are read
as one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import tfrecord
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.source.byte_range import PlainExtent
from shardprep.source.string_column import integers
from shardprep.storage.url import is_url

_BATCH_BYTES = 1 << 20
"""Bytes of records that are read, hashed and written at a time, unless one record has more."""


class RecordRun(NamedTuple):
    """Records that are adjacent in a shard, and wanted in this order."""

    start: int
    """Number of the first record among those wanted."""
    stop: int
    batch: int
    """Number of its batch, which has about `_BATCH_BYTES` in one or several runs."""
    extent: PlainExtent


class StoredRecords:
    """Records of finished datasets, in the wanted order."""

    def __init__(self, rows: pa.Table, *, have_keys: bool) -> None:
        """Take rows of records from item tables, with their `file`.

        `have_keys` tells whether the records hold the keys of their items.
        """
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
        """Return the runs of all records, in order."""
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

    def extent(self, number: int) -> PlainExtent:
        """Return the place of one record."""
        return PlainExtent(self.files[number], int(self.offsets[number]), int(self.lengths[number]))

    def are_sound(self, start: int, stop: int, data: bytes | bytearray) -> list[bool]:
        """Return which records from `start` to `stop`, all at the front of `data`, are sound.

        A record with another key is not: a shard may have been replaced.
        """
        lengths = self.lengths[start:stop]
        sound: list[bool] = tfrecord.are_sound(np.frombuffer(data, np.uint8), lengths).tolist()
        if self._keys is not None:
            ends = np.cumsum(lengths).tolist()
            for i, key in enumerate(self._keys[start:stop]):
                if sound[i] and data.rfind(key, ends[i - 1] if i else 0, ends[i]) < 0:
                    sound[i] = False
        return sound


def with_files(rows: pa.Table, dataset: OpenDataset) -> pa.Table:
    """Return rows with the path or address of the shard, `file`, instead of its name."""
    shards = rows["shard"].cast("string").combine_chunks().dictionary_encode()
    names: Sequence[str] = shards.dictionary.to_pylist()
    files = pa.array([dataset.files.location(name) for name in names], pa.string())
    column = rows.schema.get_field_index("shard")
    file = pa.DictionaryArray.from_arrays(shards.indices, files)
    return rows.set_column(column, "file", file)
