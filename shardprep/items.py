"""The table of items: a row for every input, whatever became of it."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shardprep.chunk import Outcome
    from shardprep.plan import ShardPlan
    from shardprep.source.archive import Skipped
    from shardprep.storage.folder import Folder

WRITTEN, REJECTED, SKIPPED = "written", "rejected", "skipped"

_WORD = pa.dictionary(pa.int32(), pa.string())
COLUMNS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("status", _WORD),
        pa.field("kind", _WORD),
        pa.field("reason", pa.string()),
        pa.field("split", _WORD),
        pa.field("shard", _WORD),
        pa.field("record", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("label", pa.int64()),
        pa.field("labels", pa.list_(pa.int64())),
        pa.field("target", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("group", pa.string()),
        pa.field("original_width", pa.int64()),
        pa.field("original_height", pa.int64()),
        pa.field("original_format", _WORD),
        pa.field("original_bytes", pa.int64()),
        pa.field("original_sha256", pa.string()),
    ],
)
"""Rows stand in the order of splits, shards and plan; skipped inputs last, by key.

`record`, `offset` and `length` (bytes, framing included) say where a written item lies in its
shard; they are null for others. Of `label` (an index into the class names), `labels`, `target` and
`text`, the one that the dataset's schema has is filled; all are null where there is no target.
"""

_FACTS = b"shardprep"


def shard_table(shard: str, plan: ShardPlan, outcomes: Sequence[Outcome]) -> pa.Table:
    """Return the rows of one shard's items, in plan order."""
    written = [not outcome.kind for outcome in outcomes]
    ends = list(accumulate(outcome.length for outcome in outcomes))
    numbers = list(accumulate(written))
    columns: dict[str, list[Any]] = {
        "key": [item.key for item in plan.items],
        "status": [WRITTEN if ok else REJECTED for ok in written],
        "kind": [outcome.kind or None for outcome in outcomes],
        "reason": [outcome.reason or None for outcome in outcomes],
        "split": [plan.split] * len(outcomes),
        "shard": [shard] * len(outcomes),
        "record": [n - 1 if ok else None for n, ok in zip(numbers, written, strict=True)],
        "offset": [
            end - outcome.length if ok else None
            for end, outcome, ok in zip(ends, outcomes, written, strict=True)
        ],
        "length": [outcome.length or None for outcome in outcomes],
        "label": _targets(plan, int),
        "labels": _targets(plan, tuple),
        "target": _targets(plan, float),
        "text": _targets(plan, str),
        "group": [item.group or None for item in plan.items],
        "original_width": [outcome.width or None for outcome in outcomes],
        "original_height": [outcome.height or None for outcome in outcomes],
        "original_format": [outcome.format or None for outcome in outcomes],
        "original_bytes": [outcome.num_bytes for outcome in outcomes],
        "original_sha256": [outcome.sha256 or None for outcome in outcomes],
    }
    return pa.Table.from_pydict(columns, schema=COLUMNS)


def _targets(plan: ShardPlan, kind: type) -> list[Any]:
    return [item.target if isinstance(item.target, kind) else None for item in plan.items]


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


def index_text(table: pa.Table) -> str:
    """Return the index of a shard's rows as DALI's and vahidk's `tfrecord2idx` write it."""
    places = zip(table["offset"].to_pylist(), table["length"].to_pylist(), strict=True)
    return "".join(f"{offset} {length}\n" for offset, length in places if offset is not None)


def write_part(folder: Folder, name: str, table: pa.Table, facts: dict[str, Any]) -> None:
    """Write one table, complete or not at all, with some facts that belong to it."""
    sink = pa.BufferOutputStream()
    metadata = {_FACTS: json.dumps(facts).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    folder.write(name, sink.getvalue().to_pybytes())


class Part(NamedTuple):
    """A table that is kept until the build is finished."""

    table: pa.Table
    facts: dict[str, Any]


def has_kinds(table: pa.Table, kinds: Sequence[str]) -> bool:
    """Tell whether a table holds a rejection of one of the kinds."""
    return not set(table["kind"].cast("string").to_pylist()).isdisjoint(kinds)


def read_part(folder: Folder, name: str) -> Part | None:
    """Return a part, None where it is missing or damaged."""
    data = folder.read(name)
    if data is None:
        return None
    try:
        table = pq.read_table(pa.BufferReader(data), schema=COLUMNS.with_metadata(None))
        facts: dict[str, Any] = json.loads(pq.read_schema(pa.BufferReader(data)).metadata[_FACTS])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None
    return Part(table, facts)


def write_items(folder: Folder, name: str, tables: Iterable[pa.Table]) -> None:
    """Write the tables one after the other into one parquet file; memory holds one at a time."""
    file = folder.new_file(name)
    try:
        with pq.ParquetWriter(file.stream, COLUMNS, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(None))
        file.commit()
    finally:
        file.abandon()


def read_items(path: Path, columns: Sequence[str]) -> pa.Table:
    """Return some columns of `items.parquet`.

    Raises:
        DatasetError: it is missing or damaged.

    """
    try:
        return pq.read_table(path, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(
            str(path), "is missing or damaged", "copy it again, or build the set again"
        ) from error
