"""The opened dataset: manifest, schema, item table, indexes and records of one version.

A command opens a dataset once and passes it on. All reads are from the dataset that was opened, in
a folder or in object storage. They raise `ChangedError` if another dataset has replaced it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardprep.dataset.folder import COPY_AGAIN, ITEMS_FILE, SCHEMA_FILE, index_name, read_schema
from shardprep.dataset.local_files import LocalFiles, ShardIndex, read_index, way_out
from shardprep.dataset.locate import DatasetFiles, locate
from shardprep.dataset.manifest import MANIFEST_FILE, Manifest, Shard
from shardprep.dataset.schema import Schema
from shardprep.dataset.tfrecord import unframe
from shardprep.errors import DatasetError, RecipeError, RecordError, command_line, use_one_of
from shardprep.storage import objects
from shardprep.storage.regular_file import sha256_of
from shardprep.storage.store import changed
from shardprep.storage.url import ObjectUrl, is_url

if TYPE_CHECKING:
    import pyarrow as pa

    from shardprep.dataset.item_table import ItemFile


class ManifestMark(NamedTuple):
    """The hash or ETag that a manifest had when its dataset was opened. Cheap to pickle."""

    location: str
    mark: str
    """SHA-256 of a local manifest in hexadecimal, or ETag of a manifest in object storage."""

    def check(self) -> None:
        """Raise ChangedError if the manifest was replaced or removed."""
        if not is_url(self.location):
            LocalFiles(Path(self.location), self.mark).check()
            return
        facts = objects.head(ObjectUrl.split(self.location) / MANIFEST_FILE)
        if facts is None or facts.etag != self.mark:
            raise changed(self.location)


@dataclass(frozen=True, slots=True)
class OpenDataset:
    """A dataset whose manifest and schema were read and checked. Can be pickled."""

    files: DatasetFiles
    manifest: Manifest
    schema: Schema
    _indexes: dict[str, ShardIndex] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return str(self.files)

    @property
    def is_remote(self) -> bool:
        return self.files.is_remote

    def folder(self, command: str) -> Path:
        """Return the dataset's folder. RecipeError, naming `command`, for a remote dataset."""
        if isinstance(self.files, LocalFiles):
            return self.files.folder
        what = f"{command} needs a dataset on this machine"
        raise RecipeError(str(self), what, f"run {command_line('fetch', self)} and give the copy")

    @property
    def mark(self) -> ManifestMark:
        """A mark to detect, also in another process, that the dataset was replaced."""
        return ManifestMark(str(self), self.files.manifest_mark)

    def documents(self, *names: str) -> AbstractContextManager[Path]:
        """Return a context that yields a folder with documents `names`; errors name the dataset."""
        return self.files.documents(self.manifest, names)

    def item_file(self) -> ItemFile:
        from shardprep.dataset.item_table import ItemFile  # imports pyarrow

        with self.documents(ITEMS_FILE) as folder:
            return ItemFile(folder / ITEMS_FILE)

    @property
    def item_columns(self) -> pa.Schema:
        from shardprep.dataset.item_table import columns_for

        return columns_for(self.schema)

    def item_rows(self, columns: Sequence[str] | None = None, *, intact: bool = False) -> pa.Table:
        """Return `columns` of the item table, or all columns, with a row for every input.

        DatasetError if the table is damaged or lacks a column; with `intact`, also if its SHA-256
        is not that of the manifest.
        """
        from shardprep.dataset.item_table import read_items

        known = self.item_columns.names
        for name in columns or ():
            if name not in known:
                hint = use_one_of(name, known, len(known))
                raise DatasetError(str(self), f"its items have no column {name!r}", hint)
        with self.documents(ITEMS_FILE) as folder:
            table = read_items(folder / ITEMS_FILE, columns)
            if lacking := {*(columns or ())} - {*table.column_names}:
                what = f"its items have no column {min(lacking)!r}: an earlier version built it"
                raise DatasetError(str(self), what, "`shardprep repack` adds the column")
            if intact and sha256_of(folder / ITEMS_FILE) != self.manifest.files.get(ITEMS_FILE):
                what = "is not what the build wrote: its SHA-256 differs"
                raise DatasetError(str(folder / ITEMS_FILE), what, COPY_AGAIN)
        return table

    def record_rows(self, columns: Sequence[str]) -> pa.Table:
        """Return item table `columns` of all records, in order; DatasetError if rows are wrong."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from shardprep.dataset.item_table import WRITTEN, with_status

        wanted = [*dict.fromkeys(columns)]
        places = dict.fromkeys((*wanted, "status", "shard", "record"))
        written = with_status(self.item_rows([*places]), WRITTEN)
        total, starts = 0, dict[str | None, int]()
        for shard in self.manifest.shards.values():
            starts[shard.name] = total
            total += shard.num_records
        runs = pc.run_end_encode(written["shard"].cast("string").combine_chunks())
        first = [starts.get(name, -total - 1) for name in runs.values.to_pylist()]
        lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
        numbers = np.repeat(np.array(first, np.int64), lengths)
        numbers += written["record"].fill_null(2 * total).to_numpy()
        rows = written.select(wanted)
        if np.array_equal(numbers, np.arange(total)):
            return rows
        order = np.argsort(numbers)
        if not np.array_equal(numbers[order], np.arange(total)):
            what = f"the records in {ITEMS_FILE} do not match the manifest"
            raise DatasetError(str(self), what, COPY_AGAIN)
        return rows.take(pa.array(order))

    def index(self, shard: Shard) -> ShardIndex:
        """Return offset and length in bytes of each frame of a shard; errors as in `read_index`."""
        if shard.name not in self._indexes:
            with self.documents(index_name(shard.name)) as folder:
                self._indexes[shard.name] = read_index(folder, shard)
        return self._indexes[shard.name]

    def read(self, number: int) -> bytes:
        """Return the payload of a record; `number` counts from 0 through all shards in order.

        IndexError if it does not exist, RecordError or DatasetError if it or its index is damaged.
        """
        shard, record = self.place(number)
        offset, length = self.index(shard)[record].tolist()
        frame = self.files.read(shard.name, offset, length)
        try:
            return unframe(frame, shard.name, offset)
        except RecordError as error:
            raise self.damaged(number, error.what) from error

    def place(self, number: int) -> tuple[Shard, int]:
        """Return a record's shard and its number in it, from 0; IndexError if out of range."""
        record = number
        for shard in self.manifest.shards.values():
            if 0 <= record < shard.num_records:
                return shard, record
            record -= shard.num_records
        raise IndexError(number)

    def damaged(self, number: int, what: str) -> RecordError:
        shard, record = self.place(number)
        where, offset = f"{self}/{shard.name}, record {record}", int(self.index(shard)[record, 0])
        return RecordError(where, what, way_out(str(self)), offset=offset)


def open_dataset(place: str | Path | ObjectUrl | DatasetFiles) -> OpenDataset:
    """Return an opened dataset; `place` is its folder or address, a folder above it, or its files.

    DatasetError if a document is missing or damaged, ChangedError if the dataset was replaced.
    """
    located = place if isinstance(place, DatasetFiles) else locate(place)
    files, manifest = located.with_manifest()
    with files.documents(manifest, (SCHEMA_FILE,)) as folder:
        return OpenDataset(files, manifest, read_schema(folder, manifest))
