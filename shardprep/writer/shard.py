"""The shard, the unit of commit: a shard file under its final name is complete.

A build that another one has taken over commits nothing more.
"""

from __future__ import annotations

import hashlib
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardprep.dataset.item_table import COLUMNS, REJECTED, WRITTEN
from shardprep.dataset.manifest import Shard
from shardprep.profiling import stage
from shardprep.writer.receipt import Receipt, write_receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.catalog import Item
    from shardprep.writer.chunk import EncodedChunk
    from shardprep.writer.shard_plan import ShardPlan
    from shardprep.writer.workspace.states import Folders


class ShardWriter:
    """Writes one shard from its chunks, in plan order; its rows are kept as columns."""

    def __init__(self, folders: Folders, plan: ShardPlan) -> None:
        """Start the shard file, under a temporary name."""
        self.plan = plan
        self._folders = folders
        self._file = folders.output.new_file(plan.name)
        self._hash = hashlib.sha256()
        self._num_items = 0
        self._num_records = 0
        self._num_bytes = 0
        self._tables = [COLUMNS.empty_table()]

    @property
    def is_full(self) -> bool:
        """Whether every item of the plan has its outcome."""
        return self._num_items == len(self.plan.items)

    @stage("write")
    def append(self, chunk: EncodedChunk) -> None:
        """Add the next chunk of the plan."""
        self._file.write(chunk.data)
        self._hash.update(chunk.data)
        outcomes = chunk.outcomes
        start = self._num_items
        self._num_items += len(outcomes)
        items = self.plan.items[start : self._num_items]
        written = [not outcome.kind for outcome in outcomes]
        ends = [self._num_bytes + n for n in accumulate(outcome.length for outcome in outcomes)]
        numbers = [self._num_records + n for n in accumulate(written)]
        columns: dict[str, list[Any]] = {
            "key": [item.key for item in items],
            "status": [WRITTEN if ok else REJECTED for ok in written],
            "kind": [outcome.kind or None for outcome in outcomes],
            "reason": [outcome.reason or None for outcome in outcomes],
            "split": [self.plan.split] * len(outcomes),
            "shard": [self.plan.name] * len(outcomes),
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
        self._num_records += sum(written)
        self._num_bytes += len(chunk.data)

    def commit(self) -> None:
        """Give the shard its name, then write its receipt: from then on it is done.

        Raises:
            BuildError: another build has taken this one over; nothing is left.

        """
        try:
            self._folders.check_build()
            mark = self._file.commit() or ""
        finally:
            self._file.abandon()
        shard = Shard(
            name=self.plan.name,
            num_records=self._num_records,
            num_bytes=self._num_bytes,
            sha256=self._hash.hexdigest(),
        )
        # Dictionaries are unified so that rows are laid out alike however they were added.
        table = pa.concat_tables(self._tables).unify_dictionaries()
        write_receipt(self._folders.state, Receipt(shard, mark, table, self._folders.build))

    def abandon(self) -> None:
        """Remove what is not committed."""
        self._file.abandon()


def _targets(items: Sequence[Item], kind: type) -> list[Any]:
    return [item.target if isinstance(item.target, kind) else None for item in items]
