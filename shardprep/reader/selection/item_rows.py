"""Rows of the item table by record number: what is known of records without reading one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import LABEL
from shardprep.reader.array_types import Ints
from shardprep.reader.selection.classes import ClassColumn, class_pairs
from shardprep.reader.selection.selection import Selection, sorted_unique
from shardprep.reader.selection.split_argument import AnySplit, numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class ItemRows:
    """The rows of the records of a split, each once, in the order of the shards."""

    dataset: OpenDataset
    split: str
    """Name of the split, for people."""
    numbers: Ints
    """Numbers of the records in the dataset, rising."""
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


def rows_of(dataset: OpenDataset, split: AnySplit, columns: Sequence[str] = ()) -> ItemRows:
    """Return the rows of the records of a split with some columns.

    Raises:
        DatasetError: as `OpenDataset.record_rows`, or there is no such split.

    """
    numbers = sorted_unique(numbers_of(dataset.manifest, split))
    column = ClassColumn.of(dataset.schema)
    table = dataset.record_rows((LABEL, *([column.name] if column else []), *columns))
    if len(numbers) != len(table) or (np.diff(numbers) != 1).any():
        table = table.take(pa.array(numbers))
    name = split.name if isinstance(split, Selection) else str(split)
    return ItemRows(dataset, name, numbers, table)
