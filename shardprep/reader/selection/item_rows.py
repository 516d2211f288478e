"""Rows of the item table by record number: what is known of records without reading one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.folder import COPY_AGAIN, ITEMS_FILE
from shardprep.dataset.item_table import (
    ANNOTATED_COLUMNS,
    COLUMNS,
    WRITTEN,
    read_items,
    with_status,
)
from shardprep.dataset.locate import locate
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.remote import RemoteDataset, described, documents_of
from shardprep.dataset.schema import LABEL, Schema
from shardprep.errors import DatasetError
from shardprep.reader.array_types import Ints
from shardprep.reader.selection.classes import ClassColumn, class_pairs
from shardprep.reader.selection.selection import Selection, sorted_unique
from shardprep.reader.selection.split_argument import AnySplit, numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PLACES = ("status", "shard", "record")


@dataclass(frozen=True, slots=True)
class ItemRows:
    """The rows of the records of a split, each once, in the order of the shards."""

    dataset: Items
    split: str
    """Name of the split, for people."""
    numbers: Ints
    """Numbers of the records in the dataset, sorted_unique."""
    table: pa.Table
    """The columns asked for, `label`, and that of the classes."""

    @property
    def labels(self) -> Ints:
        """int64[records], class of each, −1 where it has none or not one."""
        found: Ints = self.table[LABEL].fill_null(-1).to_numpy()
        return found

    @property
    def classes(self) -> Ints:
        """int64[pairs, 2]: number of a record and one of its classes, sorted, each pair once."""
        column = ClassColumn.of(self.dataset.schema)
        found = class_pairs(self.table[LABEL if column is None else column.name])
        found[:, 0] = self.numbers[found[:, 0]]
        return found

    def selection(self) -> Selection:
        """Return the records of all rows."""
        fingerprint = self.dataset.manifest.sha256
        return Selection(self.split, fingerprint, self.numbers, self.labels, self.classes)


@dataclass(frozen=True, slots=True)
class Items:
    """The item table of a dataset."""

    found: Path | RemoteDataset
    manifest: Manifest
    schema: Schema

    @classmethod
    def at(cls, path: str | Path) -> Self:
        """Return that of a dataset; DatasetError where there is no such dataset."""
        found = locate(path)
        return cls(found, *described(found))

    @property
    def where(self) -> str:
        """The dataset's folder or address."""
        return str(self.found)

    @property
    def columns(self) -> list[str]:
        """Names of its columns."""
        return [*(ANNOTATED_COLUMNS if self.schema.annotations else COLUMNS).names]

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows of all inputs, written or not.

        Raises:
            DatasetError: there is no such column, or the table is missing or damaged.

        """
        for name in columns:
            if name not in self.columns:
                hint = f"it has {', '.join(self.columns)}"
                raise DatasetError(self.where, f"its items have no column {name!r}", hint)
        with documents_of(self.found, self.manifest, (ITEMS_FILE,)) as folder:
            return read_items(folder / ITEMS_FILE, columns)

    def rows(self, split: AnySplit, columns: Sequence[str] = ()) -> ItemRows:
        """Return the rows of the records of a split with some columns.

        Raises:
            DatasetError: as `read`, or there is no such split.

        """
        numbers = sorted_unique(numbers_of(self.manifest, split))
        column = ClassColumn.of(self.schema)
        table = self.records((LABEL, *([column.name] if column else []), *columns))
        if len(numbers) != len(table) or (np.diff(numbers) != 1).any():
            table = table.take(pa.array(numbers))
        name = split.name if isinstance(split, Selection) else str(split)
        return ItemRows(self, name, numbers, table)

    def records(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows of all records, in the order of their numbers."""
        wanted = [*dict.fromkeys(columns)]
        written = with_status(self.read([*dict.fromkeys((*wanted, *_PLACES))]), WRITTEN)
        total, starts = 0, dict[str | None, int]()
        for shard in self.manifest.shards.values():
            starts[shard.name] = total
            total += shard.num_records
        runs = pc.run_end_encode(written["shard"].cast("string").combine_chunks())
        begin = [starts.get(name, -total - 1) for name in runs.values.to_pylist()]
        lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
        numbers = np.repeat(np.array(begin, np.int64), lengths)
        numbers += written["record"].fill_null(2 * total).to_numpy()
        every, found = np.arange(total), written.select(wanted)
        if np.array_equal(numbers, every):
            return found
        order = np.argsort(numbers)
        if not np.array_equal(numbers[order], every):
            what = f"{ITEMS_FILE} has other records than the manifest says"
            raise DatasetError(self.where, what, COPY_AGAIN)
        return found.take(pa.array(order))
