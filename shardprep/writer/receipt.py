"""Receipts: the rows of a written shard, kept until a build is finished."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardprep.dataset.item_table import (
    COLUMNS,
    REJECTED,
    SKIPPED,
    UNREADABLE,
    WRITTEN,
    bounded_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.catalog import Item
    from shardprep.source.listing import Skipped
    from shardprep.storage.folder import Folder
    from shardprep.writer.chunk import Outcome
    from shardprep.writer.shard_plan import ShardPlan

_FACTS = b"shardprep"
_SHA256 = re.compile("[0-9a-f]{64}")


class ShardRows:
    """The rows of one shard, as they come to be: kept as columns, a fraction of the outcomes."""

    def __init__(self, shard: str, plan: ShardPlan) -> None:
        self.num_records = 0
        self.num_bytes = 0
        self._shard = shard
        self._plan = plan
        self._num_items = 0
        self._tables: list[pa.Table] = []

    @property
    def are_all(self) -> bool:
        """Whether every item of the plan has its row."""
        return self._num_items == len(self._plan.items)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Add what became of the next items of the plan."""
        start = self._num_items
        self._num_items += len(outcomes)
        items = self._plan.items[start : self._num_items]
        written = [not outcome.kind for outcome in outcomes]
        ends = [self.num_bytes + n for n in accumulate(outcome.length for outcome in outcomes)]
        numbers = [self.num_records + n for n in accumulate(written)]
        columns: dict[str, list[Any]] = {
            "key": [item.key for item in items],
            "status": [WRITTEN if ok else REJECTED for ok in written],
            "kind": [outcome.kind or None for outcome in outcomes],
            "reason": [outcome.reason or None for outcome in outcomes],
            "split": [self._plan.split] * len(outcomes),
            "shard": [self._shard] * len(outcomes),
            "record": [n - 1 if ok else None for n, ok in zip(numbers, written, strict=True)],
            "offset": [
                end - outcome.length if ok else None
                for end, outcome, ok in zip(ends, outcomes, written, strict=True)
            ],
            "length": [outcome.length or None for outcome in outcomes],
            "label": _targets(items, int),
            "labels": _targets(items, tuple),
            "target": _targets(items, float),
            "text": _targets(items, str),
            "group": [item.group or None for item in items],
            "original_width": [outcome.width or None for outcome in outcomes],
            "original_height": [outcome.height or None for outcome in outcomes],
            "original_format": [outcome.format or None for outcome in outcomes],
            "original_bytes": [outcome.num_bytes for outcome in outcomes],
            "original_sha256": [outcome.sha256 or None for outcome in outcomes],
        }
        self._tables.append(pa.Table.from_pydict(columns, schema=COLUMNS))
        self.num_records += sum(written)
        self.num_bytes = ends[-1] if ends else self.num_bytes

    def table(self) -> pa.Table:
        """Return all rows, in plan order; how they came to be cannot be told from it."""
        whole = pa.concat_tables([COLUMNS.empty_table(), *self._tables])
        return whole.unify_dictionaries()


def _targets(items: Sequence[Item], kind: type) -> list[Any]:
    return [item.target if isinstance(item.target, kind) else None for item in items]


def skipped_table(skipped: Sequence[Skipped]) -> pa.Table:
    """Return the rows of inputs that never became items."""
    nothing = [None] * len(skipped)
    columns: dict[str, list[Any]] = {
        **dict.fromkeys(COLUMNS.names, nothing),
        "key": [one.key for one in skipped],
        "status": [SKIPPED] * len(skipped),
        "reason": [f"{one.reason}: {one.detail}" if one.detail else one.reason for one in skipped],
        "original_bytes": [one.num_bytes for one in skipped],
    }
    return pa.Table.from_pydict(columns, schema=COLUMNS)


def write_receipt(folder: Folder, name: str, table: pa.Table, facts: dict[str, Any]) -> None:
    """Write one table, complete or not at all, with some facts that belong to it."""
    sink = pa.BufferOutputStream()
    metadata = {_FACTS: json.dumps(facts).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    folder.write(name, sink.getvalue().to_pybytes())


class Receipt(NamedTuple):
    """A table that is kept until the build is finished."""

    table: pa.Table
    facts: dict[str, Any]


def are_rows_of(table: pa.Table, shard: str, num_records: int, num_bytes: int) -> bool:
    """Tell whether rows are those of a shard of so many records and bytes, as `ShardRows` makes."""
    statuses = table["status"].cast("string")
    written = table.filter(pc.equal(statuses, WRITTEN))
    lengths = written["length"].to_pylist()
    needed = ("key", "record", "offset", "length", "original_width", "original_height")
    return (
        set(statuses.to_pylist()) <= {WRITTEN, REJECTED}
        and set(table["shard"].cast("string").to_pylist()) <= {shard}
        and not table["key"].null_count
        and not any(written[name].null_count for name in needed)
        and written["record"].to_pylist() == list(range(num_records))
        and written["offset"].to_pylist() == [0, *accumulate(lengths)][:-1]
        and sum(lengths) == num_bytes
        and all(map(_SHA256.fullmatch, written["original_sha256"].to_pylist()))
        and min(written["original_width"].to_pylist(), default=1) >= 1
        and min(written["original_height"].to_pylist(), default=1) >= 1
    )


def has_kinds(table: pa.Table, kinds: Sequence[str]) -> bool:
    """Tell whether a table holds a rejection of one of the kinds."""
    return not set(table["kind"].cast("string").to_pylist()).isdisjoint(kinds)


def read_receipt(folder: Folder, name: str) -> Receipt | None:
    """Return a receipt, None where it is missing or damaged."""
    data = folder.read(name)
    if data is None:
        return None
    try:
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        table = bounded_table(file, len(data)).cast(COLUMNS.with_metadata(None))
        facts: dict[str, Any] = json.loads(file.schema_arrow.metadata[_FACTS])
    except UNREADABLE:
        return None
    return Receipt(table, facts)
