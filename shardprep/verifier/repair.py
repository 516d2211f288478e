"""Repair: build a damaged dataset again, with its intact shards and with the same bytes.

The damaged dataset is not changed until one that equals its manifest can replace it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.manifest import (
    MANIFEST_FILE,
    REPACKED,
    fingerprint_differences,
    load_manifest,
)
from shardprep.errors import BuildError, DatasetError, some_of
from shardprep.progress import Watcher
from shardprep.writer.build import build_dataset
from shardprep.writer.engine.job import Workers
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.plan.fingerprint import make_fingerprint, recorded_recipe
from shardprep.writer.workspace import states
from shardprep.writer.workspace.remote import ObjectWorkspace
from shardprep.writer.workspace.repair_input import DamagedDataset, foreign_files

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.remote_files import RemoteFiles
    from shardprep.verifier.problem import Verification
    from shardprep.writer.finalize import BuildResult


def repair_dataset(
    found: Verification, source: str, *, num_workers: int, watcher: Watcher
) -> BuildResult:
    """Write the damaged files of a dataset again, from its source, with the same bytes.

    Files that do not belong to a dataset stay in its folder; extra shards are removed.

    Args:
        found: what `verify_dataset` found.
        source: what the dataset was built from: a folder, an archive or an address.
        num_workers: processes that encode images, at least 1.
        watcher: receives the progress.

    Raises:
        DatasetError: the manifest itself is damaged, the dataset was moved, or it has no source.
        BuildError: inputs, options or versions changed, or the rebuilt bytes differ; the dataset is
            not changed.
        SourceError, StorageError: as `build_dataset`.

    """
    manifest = _trusted_manifest(found)
    if REPACKED in manifest.fingerprint.versions:
        what = "was repacked of other datasets, so it has no source"
        raise DatasetError(found.location, what, "run `shardprep repack` again with --overwrite")
    recipe = recorded_recipe(manifest, source, _out(found, manifest))
    if changes := fingerprint_differences(manifest.fingerprint, make_fingerprint(recipe)):
        raise BuildError(
            found.location,
            f"cannot be repaired with the same bytes: {', '.join(changes)} changed since, so "
            f"{_damage(found, manifest)}",
            "repair it where these are as they were, or build it again with --overwrite",
        )
    is_sound = all(problem.file != ITEMS_FILE for problem in found.problems)
    items = found.path / ITEMS_FILE if is_sound else None
    damaged = DamagedDataset(manifest, found.intact, items, foreign_files(found.unknown))
    return build_dataset(recipe, Workers(write_shards, num_workers), watcher, damaged=damaged)


def settle(found: RemoteFiles) -> None:
    """Finish an interrupted publishing of a dataset in object storage."""
    workspace = ObjectWorkspace(found.url)
    with contextlib.suppress(DatasetError):  # a damaged manifest: `verify` tells of it
        manifest = workspace.finished()
        if manifest is not None:
            states.end_publishing(workspace, manifest)


def _out(found: Verification, manifest: Manifest) -> str:
    """Return the dataset's `--out`."""
    below = f"/{manifest.name}/{manifest.version}"
    location = str(found.address or found.path.absolute())
    if not location.endswith(below):
        raise DatasetError(
            found.location,
            f"does not lie where it was built, in {below[1:]}",
            "move it there to repair it",
        )
    return location.removesuffix(below) or "/"


def _trusted_manifest(found: Verification) -> Manifest:
    """Return the manifest if it is intact: nothing else has the hashes of the shards."""
    if any(problem.file == MANIFEST_FILE for problem in found.problems):
        raise DatasetError(
            f"{found.location}/{MANIFEST_FILE}",
            "is damaged itself, and nothing else says what the shards were",
            "build the set again with --overwrite",
        )
    return load_manifest(found.path)


def _damage(found: Verification, manifest: Manifest) -> str:
    damaged = [name for name in manifest.shards if name not in found.intact]
    if not damaged:
        return "its documents stay damaged, its shards are whole"
    return f"{some_of(damaged)} {'stays' if len(damaged) == 1 else 'stay'} damaged"
