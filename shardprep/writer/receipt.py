"""Receipts: what is known of each written shard, kept until the build is published.

A receipt holds the rows of the shard's items, and the length and hash of its file. A shard is
done only where file and receipt are there and agree.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from shardprep.dataset.grammar import Count, Sha256
from shardprep.dataset.item_table import (
    COLUMNS,
    REJECTED,
    SKIPPED,
    UNREADABLE,
    WRITTEN,
    bounded_table,
)
from shardprep.storage.folder import Written
from shardprep.writer.workspace.layout import SKIPPED_FILE, receipt_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.catalog import Item
    from shardprep.source.listing import Skipped
    from shardprep.storage.folder import Folder
    from shardprep.writer.chunk import Outcome
    from shardprep.writer.shard_plan import ShardPlan
    from shardprep.writer.workspace.layout import Folders

_FACTS = b"shardprep"
"""Key of the facts among the metadata of a parquet file."""
_SHA256 = re.compile("[0-9a-f]{64}")
_RETRIED = ("unreadable", "crashed", "timeout")
"""Rejections that the machine may be to blame for, such as a disk that was away; the next run
tries these images again."""


class Receipt(NamedTuple):
    """Counts, size and hash of a written shard."""

    num_records: int
    written: Written
    """Length, hash and ETag of the shard file."""
    table: pa.Table
    """A row for each item, written or rejected, in plan order."""
    build: str = ""
    """`Folders.build` of the build that wrote it; "" where any build may use it."""


class _Facts(BaseModel):
    """The facts in a receipt's metadata."""

    model_config = ConfigDict(frozen=True)

    num_records: Count
    num_bytes: Count
    sha256: Sha256
    mark: str
    build: str = ""


class ShardRows:
    """Collects the rows of one shard while it is written, as columns to save memory."""

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
        """Add the outcomes of the next items of the plan, in its order."""
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
        """Return all rows, in plan order, laid out alike however they were added."""
        whole = pa.concat_tables([COLUMNS.empty_table(), *self._tables])
        return whole.unify_dictionaries()


def _targets(items: Sequence[Item], kind: type) -> list[Any]:
    return [item.target if isinstance(item.target, kind) else None for item in items]


def write_skipped(state: Folder, skipped: Sequence[Skipped]) -> None:
    """Write the rows of inputs that never became items beside the receipts."""
    nothing = [None] * len(skipped)
    columns: dict[str, list[Any]] = {
        **dict.fromkeys(COLUMNS.names, nothing),
        "key": [one.key for one in skipped],
        "status": [SKIPPED] * len(skipped),
        "reason": [f"{one.reason}: {one.detail}" if one.detail else one.reason for one in skipped],
        "original_bytes": [one.num_bytes for one in skipped],
    }
    _write(state, SKIPPED_FILE, pa.Table.from_pydict(columns, schema=COLUMNS))


def read_skipped(state: Folder) -> pa.Table | None:
    """Return the rows of inputs that never became items, None where they are lost or damaged."""
    found = _read(state, SKIPPED_FILE)
    return None if found is None else found[0]


def write_receipt(state: Folder, shard: str, receipt: Receipt) -> None:
    """Write the receipt of a shard."""
    facts = _Facts(
        num_records=receipt.num_records, build=receipt.build, **receipt.written._asdict()
    )
    _write(state, receipt_name(shard), receipt.table, facts.model_dump_json().encode())


def read_receipt(state: Folder, shard: str, build: str = "") -> Receipt | None:
    """Return the receipt of a shard, None where it is missing, damaged or of another build."""
    found = _read(state, receipt_name(shard))
    if found is None:
        return None
    table, text = found
    try:
        facts = _Facts.model_validate_json(text)
    except ValidationError:
        return None
    is_ours = not build or facts.build in ("", build)
    if not is_ours or not _are_rows_of(table, shard, facts):
        return None
    written = Written(facts.num_bytes, facts.sha256, facts.mark)
    return Receipt(facts.num_records, written, table, facts.build)


def is_written(folders: Folders, shard: str) -> bool:
    """Tell whether a shard file is there and is what its receipt says."""
    receipt = read_receipt(folders.state, shard, folders.build)
    return receipt is not None and folders.output.holds(shard, receipt.written)


def is_done(folders: Folders, shard: str) -> bool:
    """Tell whether a shard is written, and without rejections that another run might undo."""
    receipt = read_receipt(folders.state, shard, folders.build)
    if receipt is None or set(receipt.table["kind"].cast("string").to_pylist()) & {*_RETRIED}:
        return False
    return folders.output.holds(shard, receipt.written)


def _write(state: Folder, name: str, table: pa.Table, facts: bytes = b"{}") -> None:
    """Write a table and its facts as one parquet file, complete or not at all."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({_FACTS: facts}), sink)
    state.write(name, sink.getvalue().to_pybytes())


def _read(state: Folder, name: str) -> tuple[pa.Table, bytes] | None:
    """Return a table and its facts, None where the file is missing or damaged."""
    data = state.read(name)
    if data is None:
        return None
    try:
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        table = bounded_table(file, len(data)).cast(COLUMNS.with_metadata(None))
        return table, file.schema_arrow.metadata[_FACTS]
    except UNREADABLE:
        return None


def _are_rows_of(table: pa.Table, shard: str, facts: _Facts) -> bool:
    """Tell whether a table is one that `ShardRows` makes for a shard with these facts."""
    statuses = table["status"].cast("string")
    written = table.filter(pc.equal(statuses, WRITTEN))
    lengths = written["length"].to_pylist()
    needed = ("key", "record", "offset", "length", "original_width", "original_height")
    return (
        set(statuses.to_pylist()) <= {WRITTEN, REJECTED}
        and set(table["shard"].cast("string").to_pylist()) <= {shard}
        and not table["key"].null_count
        and not any(written[name].null_count for name in needed)
        and written["record"].to_pylist() == list(range(facts.num_records))
        and written["offset"].to_pylist() == [0, *accumulate(lengths)][:-1]
        and sum(lengths) == facts.num_bytes
        and all(map(_SHA256.fullmatch, written["original_sha256"].to_pylist()))
        and min(written["original_width"].to_pylist(), default=1) >= 1
        and min(written["original_height"].to_pylist(), default=1) >= 1
    )
