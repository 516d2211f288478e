"""The remains of a damaged dataset: what is whole counts as done when it is built once more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE, read_schema
from shardprep.dataset.inventory import is_own, lacking
from shardprep.dataset.item_table import COLUMNS, read_items, rows_by_shard
from shardprep.errors import BuildError, ShardprepError
from shardprep.storage.regular_file import sha256_of
from shardprep.writer.fingerprint import differences
from shardprep.writer.shard import PARTS_DIR, ShardPart, ShardSeal, write_part
from shardprep.writer.workspace.local import WORK_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.writer.workspace.local import Place

_NAMED = 4
_NUM_THREADS = 16
"""Threads that wait for object storage."""


class Whole(NamedTuple):
    """The bytes of a shard."""

    file: str
    """File that holds them; as a rule the one of their name."""
    mark: str
    """By which object storage tells them, "" on a disk: there they are hashed."""


@dataclass(frozen=True, slots=True)
class Remains:
    """The remains of a dataset that is to be built once more, bit for bit."""

    manifest: Manifest
    """The manifest that must come out."""
    whole: Mapping[str, Whole]
    """By shard."""
    items: Path | None
    """`items.parquet`; None where it is damaged, and no shard can be told to be done."""
    strangers: Sequence[str]
    """Files of others that lie there."""


def look_for_remains(place: Place, finished: Manifest, fingerprint: Fingerprint) -> Remains | None:
    """Return what there is of a finished dataset that lacks files, None where none is missing.

    Only names and lengths are looked at: `verify` finds the rest.

    Raises:
        BuildError: some are missing, and the same bytes cannot be built.

    """
    files = place.files()
    folder = place.documents()
    try:
        gone = lacking(finished, read_schema(folder), files)
    except ShardprepError:
        gone = [SCHEMA_FILE]
    if not gone:
        return None
    if changes := differences(finished.fingerprint, fingerprint):
        raise BuildError(
            place.location,
            f"lacks {_named(gone)}, and {', '.join(changes)} changed since it was built",
            "build it where these are as they were, or add --overwrite to build all of it anew",
        )
    whole = {
        name: Whole(name, files[name].etag)
        for name, shard in finished.shards.items()
        if name in files and files[name].num_bytes == shard.num_bytes
    }
    items = folder / ITEMS_FILE
    is_sound = items.is_file() and sha256_of(items) == finished.files.get(ITEMS_FILE)
    return Remains(finished, whole, items if is_sound else None, strangers(files))


def said_of(remains: Remains) -> str:
    """Return one line on what is built again."""
    num_all = len(remains.manifest.shards)
    num_gone = num_all - len(remains.whole) if remains.items else num_all
    what = f"{num_gone:,} of {num_all:,} shards are" if num_gone else "documents are"
    return f"the dataset is there, but not whole: {what} built again"


def strangers(files: Iterable[str]) -> list[str]:
    """Return the files that are no part of a dataset, and not what a dead build has left."""
    return [
        name
        for name in files
        if not is_own(name)
        and name.split("/")[0] not in ("..", PARTS_DIR, WORK_DIR)
        and not name.endswith(".tmp")
    ]


def restore(place: Place, remains: Remains) -> None:
    """Let what is whole count as made by the build that was begun at a place."""
    for name in remains.strangers:
        place.adopt(name, name, "")
    if remains.items is None:
        return
    rows = rows_by_shard(read_items(remains.items, COLUMNS.names))

    def keep(name: str) -> None:
        shard = remains.manifest.shards[name]
        seal = ShardSeal(shard.num_records, shard.num_bytes, shard.sha256)
        part = pa.Table.from_pydict(rows[name].to_pydict(), schema=COLUMNS)
        file, mark = remains.whole[name]
        write_part(place.parts, name, ShardPart(seal, place.adopt(file, name, mark), part))

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(keep, remains.whole))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
