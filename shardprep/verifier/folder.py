"""The contents of a dataset folder: documents, shard files, and files that do not belong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.draft import DRAFT_PREFIX
from shardprep.dataset.folder import (
    FETCHING_SUFFIX,
    INCOMPLETE_SUFFIX,
    INDEX_DIR,
    ITEMS_FILE,
    OLD_SUFFIX,
    SCHEMA_FILE,
    index_name,
)
from shardprep.dataset.grammar import SHARD, shard_name
from shardprep.dataset.item_table import rows_by_shard
from shardprep.dataset.locate import unfinished_error
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.dataset.tfds_metadata import DOCUMENTS
from shardprep.errors import DatasetError
from shardprep.verifier.documents import check_tfds, checked_manifest, checked_schema
from shardprep.verifier.problem import Problem
from shardprep.verifier.table import checked_table, table_problems

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.dataset.schema import Schema

_SPARE_BYTES = 64 << 20
_LABELS = re.compile(r"[^.].*\.labels\.txt")


@dataclass(frozen=True, slots=True)
class Contents:
    """Documents, files and problems of a folder, before any shard is read."""

    manifest: Manifest | None
    schema: Schema | None
    rows: dict[str, pa.Table]
    """Rows of each shard, in order; empty where `items.parquet` cannot be read."""
    shards: tuple[str, ...]
    """Names of shard files, and of files that a reader's glob would take for shards."""
    unknown: tuple[str, ...]
    """Names of all other files that no build writes."""
    problems: tuple[Problem, ...]

    @property
    def most_shard_bytes(self) -> int | None:
        """Size in bytes above which a file is not read as a shard; None: no limit."""
        if self.manifest is None:
            return None
        largest = max(shard.num_bytes for shard in self.manifest.shards.values())
        return 2 * largest + _SPARE_BYTES


def read_contents(folder: Path, remote: RemoteDataset | None) -> Contents:
    """Return the contents of a folder and their problems; shards are not opened.

    With a `remote` dataset, the folder has copies of its documents.

    Raises:
        DatasetError: there is no such folder, or it is that of an unfinished build.

    """
    if not folder.is_dir():
        raise DatasetError(str(folder), "no such folder", "give the folder of a dataset")
    if folder.name.endswith(INCOMPLETE_SUFFIX):
        raise unfinished_error(folder)
    problems: list[Problem] = []
    manifest = checked_manifest(folder, problems)
    schema = checked_schema(folder, manifest, problems)
    table = checked_table(folder, manifest, problems)
    rows = rows_by_shard(table) if table is not None else {}
    if manifest is not None and table is not None:
        problems += table_problems(manifest, table, rows)
    check_tfds(folder, manifest, schema, problems)
    files = sorted(remote.objects) if remote else _files(folder)
    shards = tuple(
        name for name in files if ".tfrecord" in name and name[0] != "." and "/" not in name
    )
    gone = _gone(shards, manifest)
    problems += [Problem("missing", name, "is not there") for name in gone]
    beside = [f"../{name}" for name in _beside(folder, remote)]
    unknown = (*_unknown(files, {*shards, *gone}), *beside)
    return Contents(manifest, schema, rows, shards, unknown, tuple(problems))


def _files(folder: Path) -> list[str]:
    """Return the relative paths of all files in a folder, sorted."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _gone(shards: tuple[str, ...], manifest: Manifest | None) -> list[str]:
    """Return the missing shards: by the manifest, else by the numbers of the others."""
    if manifest is not None:
        return sorted(manifest.shards.keys() - set(shards))
    matches = [match for name in shards if (match := SHARD.fullmatch(name))]
    wanted = {
        shard_name(match["name"], match["split"], index, int(match["count"]))
        for match in matches
        for index in range(int(match["count"]))
    }
    return sorted(wanted - set(shards))


def _unknown(files: list[str], shards: set[str]) -> list[str]:
    """Return the files that do not belong, and a draft in object storage as one."""
    indexes = {index_name(shard) for shard in shards}
    known = {MANIFEST_FILE, SCHEMA_FILE, ITEMS_FILE, INDEX_DIR, *DOCUMENTS, *shards, *indexes}
    found = [name for name in files if name not in known and not _LABELS.fullmatch(name)]
    drafts = [
        f"{name.partition('/')[0]}/" if name.startswith(DRAFT_PREFIX) else name for name in found
    ]
    return list(dict.fromkeys(drafts))


def _beside(folder: Path, remote: RemoteDataset | None) -> list[str]:
    """Return the folders that an unfinished build or fetch of this version has left."""
    if remote is not None:
        name = remote.url.name + INCOMPLETE_SUFFIX
        return [name] if remote.is_beside_unfinished() else []
    names = [folder.name + suffix for suffix in (OLD_SUFFIX, INCOMPLETE_SUFFIX, FETCHING_SUFFIX)]
    return [name for name in names if (folder.parent / name).exists()]
