"""The expected records of a shard, from the item table or from the shard's index."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.item_table import WRITTEN, ShardRows, with_status
from shardprep.dataset.schema import (
    CLASS_PREFIX,
    LABEL,
    LABELS,
    TARGET,
    TARGETS,
    TEXTS,
    UNLABELLED,
    Feature,
)

if TYPE_CHECKING:
    import pyarrow as pa


_ANNOTATIONS = ("object_labels", "mask_pixels", "labelled_points")


@dataclass(frozen=True, slots=True)
class RecordRows(ShardRows):
    """The expected records of a shard, from the item table or an index."""

    targets: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Target feature → value in each record: class index, float32, UTF-8 bytes, or a list."""
    annotations: Sequence[Mapping[str, Any]] = ()
    """For each record, its cells in the existing columns of `_ANNOTATIONS`."""


def written_rows(table: pa.Table, targets: Mapping[str, Feature]) -> RecordRows:
    """Return the rows of a shard's written items, with the values of the `targets`."""
    table = with_status(table, WRITTEN)
    rows = ShardRows.of(table)
    annotations = [name for name in _ANNOTATIONS if name in table.column_names]
    return RecordRows(
        rows.offsets,
        rows.lengths,
        rows.keys,
        {name: _targets(table, name, targets) for name in targets if _is_known(table, name)},
        table.select(annotations).to_pylist() if annotations else (),
    )


def index_rows(text: bytes) -> RecordRows | None:
    """Return the offsets and lengths in the text of an index, or None if the text is damaged."""
    try:
        places = [tuple(map(int, line.split(b" "))) for line in text.splitlines()]
        return RecordRows([offset for offset, _ in places], [length for _, length in places])
    except ValueError:
        return None


def _is_known(table: pa.Table, name: str) -> bool:
    return ("classes" if name.startswith(CLASS_PREFIX) else name) in table.column_names


def _targets(table: pa.Table, target: str, features: Mapping[str, Feature]) -> Sequence[object]:
    if target.startswith(CLASS_PREFIX) or target in (TARGETS, TEXTS):
        return _lists(table, target, features)
    values = table[target].to_pylist()
    if target == LABEL:
        return [UNLABELLED if value is None else value for value in values]
    if target == LABELS:
        return [value or [] for value in values]
    if target == TARGET:
        return _float32(values)
    return [(value or "").encode() for value in values]


def _lists(table: pa.Table, target: str, features: Mapping[str, Feature]) -> Sequence[object]:
    if target == TARGETS:
        nothing = [None] * features[target].num_values
        return [_float32(value or nothing) for value in table[target].to_pylist()]
    if target == TEXTS:
        return [[text.encode() for text in one or ()] for one in table[target].to_pylist()]
    place = sorted(name for name in features if name.startswith(CLASS_PREFIX)).index(target)
    rows = table["classes"].to_pylist()
    return [one[place] if one and place < len(one) else UNLABELLED for one in rows]


def _float32(values: Sequence[float | None]) -> list[float]:
    whole = [math.nan if value is None else value for value in values]
    numbers: list[float] = np.array(whole, np.float32).tolist()
    return numbers
