"""Repair a dataset: build it again with the same bytes, using its intact shards.

The damaged dataset stays unchanged until a rebuilt dataset with the same manifest can replace it.
"""

from __future__ import annotations

import contextlib

from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.manifest import (
    MANIFEST_FILE,
    REPACKED,
    Manifest,
    fingerprint_differences,
    load_manifest,
)
from shardprep.dataset.remote_files import RemoteFiles
from shardprep.errors import BuildError, DatasetError, OptionName, some_of
from shardprep.progress import Watch
from shardprep.storage.cache import FRAME, cache_root
from shardprep.verifier.problem import Verification
from shardprep.writer.build import build_dataset
from shardprep.writer.engine.job import Workers
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.finalize import BuildResult
from shardprep.writer.plan.build_plan import recorded_recipe
from shardprep.writer.plan.fingerprint import make_fingerprint
from shardprep.writer.workspace import states
from shardprep.writer.workspace.remote import ObjectWorkspace
from shardprep.writer.workspace.states import DamagedDataset, foreign_files


def repair_dataset(
    verification: Verification, source: str, *, num_workers: int, watcher: Watch
) -> BuildResult:
    """Build a dataset again from its source with the same bytes, and return the result.

    Extra shards are removed, other unknown files are kept. DatasetError if the manifest is damaged,
    or the dataset was moved or repacked. BuildError if inputs, options, versions or the rebuilt
    bytes differ; the dataset is then unchanged. Other errors as in `build_dataset`.
    """
    manifest = repairable(verification)
    recipe = recorded_recipe(manifest, source, _out(verification, manifest))
    if changes := fingerprint_differences(manifest.fingerprint, make_fingerprint(recipe)):
        raise BuildError(
            verification.location,
            f"{', '.join(changes)} changed, so a repair cannot give the same bytes: "
            f"{_damage(verification, manifest)}",
            "restore the source and the versions of packages, or build the dataset again with "
            f"{OptionName('overwrite')}",
        )
    is_sound = all(problem.file != ITEMS_FILE for problem in verification.problems)
    items = verification.path / ITEMS_FILE if is_sound else None
    damaged = DamagedDataset(
        manifest, verification.intact, items, foreign_files(verification.unknown)
    )
    return build_dataset(recipe, Workers(write_shards, num_workers), watcher, damaged=damaged)


def settle(files: RemoteFiles) -> None:
    """Complete an interrupted publishing of a finished dataset in object storage."""
    workspace = ObjectWorkspace(files.url)
    with contextlib.suppress(DatasetError):  # a damaged manifest: `verify` reports it
        manifest = workspace.finished()
        if manifest is not None:
            states.end_publishing(workspace, manifest)


def _out(verification: Verification, manifest: Manifest) -> str:
    below = f"/{manifest.name}/{manifest.version}"
    location = str(verification.address or verification.path.absolute())
    if not location.endswith(below):
        what = f"was moved out of the folder {below[1:]}, and cannot be repaired here"
        raise DatasetError(verification.location, what, f"move it to …{below} first")
    return location.removesuffix(below) or "/"


def repairable(verification: Verification) -> Manifest:
    """Return the manifest; DatasetError or BuildError if the source cannot repair the dataset."""
    if any(problem.file == MANIFEST_FILE for problem in verification.problems):
        what = "has no sound manifest, and no other file has the hashes of the shards"
        hint = f"build the dataset again with {OptionName('overwrite')}"
        raise DatasetError(verification.location, what, hint)
    manifest = load_manifest(verification.path)
    if REPACKED in manifest.fingerprint.versions:
        what = "was repacked from other datasets, so it has no source"
        hint = "run `shardprep repack` again with --overwrite"
        raise DatasetError(verification.location, what, hint)
    frames = filter(FRAME.fullmatch, manifest.fingerprint.inputs)
    if not all((cache_root() / file).is_file() for file in frames):
        what = "was built from a data frame that is no longer in the cache of this machine, so "
        hint = "repeat the build in Python with this data frame and overwrite=True"
        raise BuildError(verification.location, what + _damage(verification, manifest), hint)
    return manifest


def _damage(verification: Verification, manifest: Manifest) -> str:
    damaged = [name for name in manifest.shards if name not in verification.intact]
    if not damaged:
        return "its documents stay damaged, its shards are whole"
    return f"{some_of(damaged)} {'stays' if len(damaged) == 1 else 'stay'} damaged"
