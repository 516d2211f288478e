"""Classes of records by the item table: one an image, several, or those of its objects."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.schema import BOX_LABEL, LABEL, LABELS, Schema
from shardprep.reader.array_types import Ints
from shardprep.reader.selection.selection import sorted_unique

OBJECT_CLASSES = "object_labels"
"""Column of the classes of the objects of a record, each as often as it has such an object."""
_COLUMN_OF = {LABEL: "label", LABELS: "labels", BOX_LABEL: OBJECT_CLASSES}
"""Feature of classes → its column of the item table."""


class ClassColumn(NamedTuple):
    """The column of the item table that says the classes of a record."""

    name: str
    labels: tuple[str, ...]
    """Names of the classes."""

    @classmethod
    def of(cls, schema: Schema) -> Self | None:
        """Return that of the images, else of their objects; None where neither have classes."""
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
    """Return int64[pairs, 2]: place of a row and one of its classes, sorted, each pair once."""
    if pa.types.is_list(column.type):
        places = pc.list_parent_indices(column).to_numpy().astype(np.int64)
        labels = pc.list_flatten(column).to_numpy()
    else:
        labels = column.fill_null(-1).to_numpy()
        places = np.arange(len(labels))
    places, labels = places[labels >= 0], labels[labels >= 0]
    number = int(labels.max(initial=0)) + 1
    pairs = sorted_unique(places * number + labels)
    return np.stack(np.divmod(pairs, number), axis=1)
