"""The shard, the unit of commit: a shard file under its final name is complete.

A build that another one has taken over commits nothing more.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from shardprep.profiling import stage
from shardprep.storage.folder import Written
from shardprep.writer.receipt import Receipt, ShardRows, write_receipt

if TYPE_CHECKING:
    from shardprep.writer.chunk import EncodedChunk
    from shardprep.writer.shard_plan import ShardPlan
    from shardprep.writer.workspace.layout import Folders


class ShardTask(NamedTuple):
    """One shard to be written: the slice of the plan that travels to a worker."""

    name: str
    """File name."""
    plan: ShardPlan


class ShardWriter:
    """Writes one shard from its chunks, in plan order."""

    def __init__(self, folders: Folders, task: ShardTask) -> None:
        """Start the shard file, under a temporary name."""
        self.task = task
        self._folders = folders
        self._file = folders.output.new_file(task.name)
        self._hash = hashlib.sha256()
        self._rows = ShardRows(task.name, task.plan)

    @property
    def is_full(self) -> bool:
        """Whether every item of the plan has its outcome."""
        return self._rows.are_all

    @stage("write")
    def append(self, chunk: EncodedChunk) -> None:
        """Add the next chunk of the plan."""
        self._file.write(chunk.data)
        self._hash.update(chunk.data)
        self._rows.add(chunk.outcomes)

    def commit(self) -> None:
        """Give the shard its name, then write its receipt: from then on it is done.

        Raises:
            BuildError: another build has taken this one over.

        """
        rows, folders = self._rows, self._folders
        folders.check_build()
        mark = self._file.commit() or ""
        written = Written(rows.num_bytes, self._hash.hexdigest(), mark)
        receipt = Receipt(rows.num_records, written, rows.table(), folders.build)
        write_receipt(folders.state, self.task.name, receipt)

    def abandon(self) -> None:
        """Remove what is not committed."""
        self._file.abandon()
