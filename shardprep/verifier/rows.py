"""The rows of one shard: facts on each of its records from `items.parquet`, in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from shardprep.catalog.catalog import UNLABELLED
from shardprep.dataset.item_table import WRITTEN, with_status
from shardprep.dataset.schema import LABEL, LABELS, TARGET, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Rows:
    """Facts on the records of a shard; from an index only their offsets and lengths."""

    offsets: Sequence[int]
    lengths: Sequence[int]
    """Bytes, framing included."""
    keys: Sequence[str] = ()
    targets: Sequence[object] = ()
    """Targets as in the records: class index, list of indices, float32 or UTF-8 bytes."""

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, record: int) -> str:
        """Return the key of a record, "" if unknown."""
        return self.keys[record] if record < len(self.keys) else ""


def written_rows(table: pa.Table, target: str | None) -> Rows:
    """Return the written items among the rows of a shard; `target` names the target feature."""
    table = with_status(table, WRITTEN)
    return Rows(
        _whole(table["offset"]),
        _whole(table["length"]),
        [key or "" for key in table["key"].to_pylist()],
        _targets(table, target) if target else (),
    )


def index_rows(text: bytes) -> Rows | None:
    """Return the offsets and lengths in the text of an index, None if it is damaged."""
    try:
        places = [tuple(map(int, line.split(b" "))) for line in text.splitlines()]
        return Rows([offset for offset, _ in places], [length for _, length in places])
    except ValueError:
        return None


def _whole(column: pa.ChunkedArray) -> list[int]:
    """Return the integers of a column, null as -1."""
    return pc.fill_null(column, -1).to_numpy().tolist()  # type: ignore[no-any-return]


def _targets(table: pa.Table, target: str) -> Sequence[object]:
    values = table[target].to_pylist()
    if target == LABEL:
        return [UNLABELLED if value is None else value for value in values]
    if target == LABELS:
        return [value or [] for value in values]
    if target == TARGET:
        whole = [math.nan if value is None else value for value in values]
        return np.array(whole, np.float32).tolist()  # type: ignore[no-any-return]
    return [(value or "").encode() for value in values] if target == TEXT else ()
