"""Build a damaged dataset again: its intact shards count as written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE, inventory, is_own, read_schema
from shardprep.dataset.item_table import columns_of, read_items, rows_by_shard
from shardprep.dataset.manifest import Fingerprint, Manifest, fingerprint_differences
from shardprep.errors import BuildError, OptionName, ShardprepError, some_of
from shardprep.storage.regular_file import sha256_of
from shardprep.writer.shard import ReceiptFacts, write_receipt
from shardprep.writer.workspace.files import RECEIPTS_DIR, SCRATCH_DIR
from shardprep.writer.workspace.states import Workspace

_NUM_THREADS = 16


class IntactShard(NamedTuple):
    """The file with the bytes of a shard, in the folder of the damaged dataset."""

    file: str
    """Name of the file; it differs from the shard's name if files were swapped."""
    mark: str
    """ETag in object storage; "" on a disk, where the bytes are hashed."""


@dataclass(frozen=True, slots=True)
class DamagedDataset:
    """A damaged dataset, to build again with the same bytes."""

    manifest: Manifest
    intact: Mapping[str, IntactShard]
    items: Path | None
    """Path of `items.parquet`; None if it is missing or damaged: all shards are written again."""
    foreign: Sequence[str]
    """Names of files in the folder that are not part of the dataset; they are kept."""

    def __str__(self) -> str:
        num_all = len(self.manifest.shards)
        num_gone = num_all - len(self.intact) if self.items else num_all
        what = f"{num_gone:,} of {num_all:,} shards are" if num_gone else "documents are"
        return f"the dataset is there, but not whole: {what} built again"

    def take_into(self, workspace: Workspace) -> None:
        """Add the foreign files to the build, and the intact shards too if `items` is known."""
        for name in self.foreign:
            workspace.adopt(name, "", name)
        if self.items is None:
            return
        items = read_items(self.items)
        rows, shards = rows_by_shard(items), self.manifest.shards

        def take(name: str) -> None:
            columns = rows[name].to_pydict()
            table = pa.Table.from_pydict(columns, schema=columns_of(items.schema))
            mark = workspace.adopt(*self.intact[name], name)
            facts = ReceiptFacts(shard=shards[name], mark=mark, build="")
            write_receipt(workspace.state, facts, table)

        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(take, self.intact))


def find_damage(
    workspace: Workspace, finished: Manifest, fingerprint: Fingerprint
) -> DamagedDataset | None:
    """Return a finished dataset with its intact shards, or None if no file is missing or truncated.

    Only names and shard lengths are checked. BuildError if it is damaged and `fingerprint` differs.
    """
    files = workspace.files()
    folder = workspace.documents()
    intact = {
        name: IntactShard(name, files[name].etag)
        for name, shard in finished.shards.items()
        if name in files and files[name].num_bytes == shard.num_bytes
    }
    try:
        names = inventory(finished, read_schema(folder))
    except ShardprepError:
        gone = [SCHEMA_FILE]
    else:
        cut = [name for name in finished.shards if name in files and name not in intact]
        gone = [*sorted(names - files.keys()), *cut]
    if not gone:
        return None
    if changes := fingerprint_differences(finished.fingerprint, fingerprint):
        raise BuildError(
            workspace.location,
            f"lacks {some_of(gone)}, and {', '.join(changes)} changed since it was built",
            "build it with the same ones, or add "
            f"{OptionName('overwrite')} to build all of it anew",
        )
    items = folder / ITEMS_FILE
    is_sound = items.is_file() and sha256_of(items) == finished.files.get(ITEMS_FILE)
    return DamagedDataset(finished, intact, items if is_sound else None, foreign_files(files))


def foreign_files(files: Iterable[str]) -> list[str]:
    """Return the names of files that are neither part of a dataset nor temporary."""
    return [
        name
        for name in files
        if not is_own(name)
        and name.split("/")[0] not in ("..", RECEIPTS_DIR, SCRATCH_DIR)
        and not name.endswith(".tmp")
    ]
