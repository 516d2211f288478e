"""Classes of records in the item table: of the images, or else of their objects."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.schema import BOX_LABEL, LABEL, LABELS, Schema
from shardprep.reader.array_types import Ints
from shardprep.reader.selection.selection import sorted_unique

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
