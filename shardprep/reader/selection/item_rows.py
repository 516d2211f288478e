"""Rows of the item table in the order of record numbers, and the classes of records in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX_LABEL, LABEL, LABELS, Schema
from shardprep.reader.array_types import Ints
from shardprep.reader.selection.selection import Selection, sorted_unique
from shardprep.reader.selection.split_argument import AnySplit, numbers_of

OBJECT_CLASSES = "object_labels"
"""Column with the class of each object of a record."""
_COLUMN_OF = {LABEL: "label", LABELS: "labels", BOX_LABEL: OBJECT_CLASSES}
"""Feature of classes → its column."""


class ClassColumn(NamedTuple):
    """The column of the item table with the classes of records."""

    name: str
    labels: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema) -> Self | None:
        """Return the column of the images, or else of their objects; None without classes."""
        feature = next((one for one in _COLUMN_OF if one in schema.features), None)
        if feature is None:
            return None
        labels = schema.features[feature].labels if feature == BOX_LABEL else schema.labels
        return cls(_COLUMN_OF[feature], tuple(labels))

    @property
    def is_list(self) -> bool:
        """Whether a record may have several classes."""
        return self.name != _COLUMN_OF[LABEL]


def class_pairs(column: pa.ChunkedArray) -> Ints:
    """Return int64[pairs, 2], number of a row and one of its classes, sorted and unique."""
    if pa.types.is_list(column.type):
        rows = pc.list_parent_indices(column).to_numpy().astype(np.int64)
        labels = pc.list_flatten(column).to_numpy()
    else:
        labels = column.fill_null(-1).to_numpy()
        rows = np.arange(len(labels))
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    number = int(labels.max(initial=0)) + 1
    pairs = sorted_unique(rows * number + labels)
    return np.stack(np.divmod(pairs, number), axis=1)


@dataclass(frozen=True, slots=True)
class ItemRows:
    """The rows of the records of a split, in the order of the shards, each once."""

    dataset: OpenDataset
    split: str
    """Text of the split, for names of selections."""
    numbers: Ints
    """int64[records], numbers of the records in the dataset, increasing."""
    table: pa.Table
    """The requested columns, `label`, and the column of the classes."""

    @property
    def labels(self) -> Ints:
        """int64[records], class of each record, −1 if it has none or several."""
        labels: Ints = self.table[LABEL].fill_null(-1).to_numpy()
        return labels

    @property
    def classes(self) -> Ints:
        """int64[pairs, 2], number of a record and one of its classes, sorted and unique."""
        column = ClassColumn.of(self.dataset.schema)
        pairs = class_pairs(self.table[LABEL if column is None else column.name])
        pairs[:, 0] = self.numbers[pairs[:, 0]]
        return pairs

    def selection(self) -> Selection:
        """Return the records of all rows as a selection."""
        fingerprint = self.dataset.manifest.sha256
        return Selection(self.split, fingerprint, self.numbers, self.labels, self.classes)


def rows_of(dataset: OpenDataset, split: AnySplit, columns: Sequence[str] = ()) -> ItemRows:
    """Return the rows of the records of a split with some columns.

    Raises:
        DatasetError: as `OpenDataset.record_rows`, or the split does not exist.

    """
    numbers = sorted_unique(numbers_of(dataset.manifest, split))
    column = ClassColumn.of(dataset.schema)
    table = dataset.record_rows((LABEL, *([column.name] if column else []), *columns))
    if len(numbers) != len(table) or (np.diff(numbers) != 1).any():
        table = table.take(pa.array(numbers))
    name = split.name if isinstance(split, Selection) else str(split)
    return ItemRows(dataset, name, numbers, table)
