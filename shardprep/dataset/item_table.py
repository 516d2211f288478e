"""The table of items: a row for every input, whatever became of it."""

from __future__ import annotations

import json
import os
import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardprep.dataset.folder import COPY_AGAIN
from shardprep.errors import DatasetError
from shardprep.storage.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from shardprep.catalog.catalog import Item
    from shardprep.chunk import Outcome
    from shardprep.plan import ShardPlan
    from shardprep.source.listing import Skipped
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
_SHA256 = re.compile("[0-9a-f]{64}")
_MAX_ROWS_A_BYTE = 4
"""Rows in a byte of the file: a million skipped inputs with numbered names have 1.4."""
_MAX_UNPACKED_RATIO = 1000
"""Bytes unpacked to a byte of the file; numbered names have 30."""
_MIN_UNPACKED_BYTES = 64 << 20
"""Bytes unpacked that any file may have."""
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, MemoryError, ArithmeticError, pa.ArrowException,
)  # fmt: skip
"""Errors that pyarrow and the checks raise for a file that is no such table."""


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


def read_part(folder: Folder, name: str) -> Part | None:
    """Return a part, None where it is missing or damaged."""
    data = folder.read(name)
    if data is None:
        return None
    try:
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        table = _bounded(file, len(data)).cast(COLUMNS.with_metadata(None))
        facts: dict[str, Any] = json.loads(file.schema_arrow.metadata[_FACTS])
    except _UNREADABLE:
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
    """Return some columns of `items.parquet`; every value is of its column's type.

    Raises:
        DatasetError: it is missing, damaged, or has other columns than a build writes.

    """
    try:
        with open_regular(path) as raw:
            file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), pre_buffer=False)
            if not file.schema_arrow.remove_metadata().equals(COLUMNS):
                raise DatasetError(str(path), "has other columns than a build writes", COPY_AGAIN)
            return _bounded(file, os.fstat(raw.fileno()).st_size, columns)
    except FileNotFoundError as error:
        raise DatasetError(str(path), "is missing", COPY_AGAIN) from error
    except _UNREADABLE as error:
        text = getattr(error, "strerror", None) or (str(error).splitlines() or ["empty"])[0]
        raise DatasetError(str(path), f"cannot be read ({text})", COPY_AGAIN) from error


def _bounded(
    file: pq.ParquetFile, num_bytes: int, columns: Sequence[str] = COLUMNS.names
) -> pa.Table:
    """Return columns of a file of so many bytes that a stranger may have written."""
    facts = file.metadata
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    if facts.num_rows > _MAX_ROWS_A_BYTE * num_bytes:
        message = f"says that it has {facts.num_rows:,} rows in {num_bytes:,} bytes"
        raise ValueError(message)
    if unpacked > _MIN_UNPACKED_BYTES + _MAX_UNPACKED_RATIO * num_bytes:
        message = f"says that it unpacks to {unpacked:,} bytes"
        raise ValueError(message)
    # No threads of Arrow (`pre_buffer` has them too): one that drops its last buffer while the
    # interpreter ends aborts the process.
    table = file.read(columns=list(columns), use_threads=False)
    table.validate(full=True)
    return table


def rows_by_shard(table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each shard, in their order; skipped inputs have none."""
    shards = table["shard"].cast("string").combine_chunks()
    ends = pc.run_end_encode(shards)
    found: dict[str, list[pa.Table]] = {}
    start = 0
    for shard, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        if shard is not None:
            found.setdefault(shard, []).append(table.slice(start, end - start))
        start = end
    return {shard: pa.concat_tables(parts) for shard, parts in found.items()}
