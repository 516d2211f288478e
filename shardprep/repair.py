"""Repair is a resume: what is whole counts as done, the build makes the rest, with the same bytes.

The damaged folder stays as it is until one that equals its manifest can take its place.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from shardprep.build import Remains, build_dataset
from shardprep.dataset import ITEMS_FILE, DatasetFolder
from shardprep.errors import BuildError, DatasetError
from shardprep.fingerprint import differences, make_fingerprint, recorded_recipe
from shardprep.items import COLUMNS, read_items
from shardprep.manifest import MANIFEST_FILE, load_manifest
from shardprep.place import WORK_DIR
from shardprep.shard import PARTS_DIR, ShardPart, ShardSeal, write_part
from shardprep.storage.folder import LocalFolder
from shardprep.verify.table import rows_by_shard

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.build import Watcher
    from shardprep.complete import BuildResult
    from shardprep.manifest import Manifest
    from shardprep.verify.problem import Verification

_NAMED = 4


def repair_dataset(
    found: Verification, source: str, *, num_workers: int, watcher: Watcher
) -> BuildResult:
    """Build what is damaged of a dataset again, from its source.

    Files that are no part of a dataset stay in its folder; shards that do not belong there go.

    Raises:
        ShardprepError: the bytes could not be, or did not become, those that the manifest says.

    """
    manifest = _trusted_manifest(found)
    folder = found.path.absolute()
    place = DatasetFolder(folder.parents[1], manifest.name, manifest.version)
    if place.final != folder:
        raise DatasetError(
            str(found.path),
            f"does not lie where it was built, in {manifest.name}/{manifest.version}",
            "move it there to repair it",
        )
    recipe = recorded_recipe(manifest, source, str(place.out))
    if changes := differences(manifest.fingerprint, make_fingerprint(recipe)):
        raise BuildError(
            str(found.path),
            f"cannot be repaired with the same bytes: {', '.join(changes)} changed since, so "
            f"{_damage(found, manifest)}",
            "repair it where these are as they were, or build it again with --overwrite",
        )
    remains = Remains(manifest, partial(_restore, found, manifest))
    return build_dataset(recipe, num_workers=num_workers, watcher=watcher, remains=remains)


def _trusted_manifest(found: Verification) -> Manifest:
    """Return the manifest, which alone says what the bytes were."""
    if any(problem.file == MANIFEST_FILE for problem in found.problems):
        raise DatasetError(
            str(found.path / MANIFEST_FILE),
            "is damaged itself, and nothing else says what the shards were",
            "build the set again with --overwrite",
        )
    return load_manifest(found.path)


def _damage(found: Verification, manifest: Manifest) -> str:
    damaged = [name for name in manifest.shards if name not in found.intact]
    if not damaged:
        return "its documents stay damaged, its shards are whole"
    shown = ", ".join(damaged[:_NAMED])
    more = f" and {len(damaged) - _NAMED:,} more" if len(damaged) > _NAMED else ""
    return f"{shown}{more} {'stays' if len(damaged) == 1 else 'stay'} damaged"


def _restore(found: Verification, manifest: Manifest, work: Path) -> None:
    """Put what is whole into the folder of an unfinished build, as if that had made it."""
    for name in found.unknown:
        first = name.split("/")[0]
        if first not in ("..", PARTS_DIR, WORK_DIR) and not name.endswith(".tmp"):
            _link(found.path / name, work / name)
    if any(problem.file == ITEMS_FILE for problem in found.problems):
        return  # without it no shard can be told to be done
    rows = rows_by_shard(read_items(found.path / ITEMS_FILE, COLUMNS.names))
    for name, file in found.intact.items():
        shard = manifest.shards[name]
        seal = ShardSeal(shard.num_records, shard.num_bytes, shard.sha256)
        part = pa.Table.from_pydict(rows[name].to_pydict(), schema=COLUMNS)
        write_part(LocalFolder(work), name, ShardPart(seal, "", part))
        _link(found.path / file, work / name)


def _link(path: Path, to: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot."""
    if to.exists():
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path.resolve(), to)
    except OSError:
        shutil.copyfile(path, to)
