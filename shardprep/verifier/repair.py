"""Repair is a resume: what is whole counts as done, the build makes the rest, with the same bytes.

The damaged dataset stays as it is until what equals its manifest can take its place.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.manifest import MANIFEST_FILE, load_manifest
from shardprep.errors import BuildError, DatasetError
from shardprep.writer.build import build_dataset
from shardprep.writer.finalize import end_publishing
from shardprep.writer.fingerprint import differences, make_fingerprint, recorded_recipe
from shardprep.writer.workspace.remote import ObjectPlace
from shardprep.writer.workspace.retract import Remains, Whole, strangers

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.verifier.problem import Verification
    from shardprep.writer.build import Watcher
    from shardprep.writer.finalize import BuildResult

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
    recipe = recorded_recipe(manifest, source, _out(found, manifest))
    if changes := differences(manifest.fingerprint, make_fingerprint(recipe)):
        raise BuildError(
            found.location,
            f"cannot be repaired with the same bytes: {', '.join(changes)} changed since, so "
            f"{_damage(found, manifest)}",
            "repair it where these are as they were, or build it again with --overwrite",
        )
    whole = {name: Whole(file, found.marks.get(file, "")) for name, file in found.intact.items()}
    is_sound = all(problem.file != ITEMS_FILE for problem in found.problems)
    items = found.path / ITEMS_FILE if is_sound else None
    remains = Remains(manifest, whole, items, strangers(found.unknown))
    return build_dataset(recipe, num_workers=num_workers, watcher=watcher, remains=remains)


def settle(found: RemoteDataset) -> None:
    """End what was begun of publishing a dataset in object storage."""
    place = ObjectPlace(found.url)
    with contextlib.suppress(DatasetError):  # of a manifest that cannot be read
        manifest = place.finished()
        if manifest is not None:
            end_publishing(place, manifest)


def _out(found: Verification, manifest: Manifest) -> str:
    """Return what the dataset lies in, as `--out` said it."""
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
    """Return the manifest, which alone says what the bytes were."""
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
    shown = ", ".join(damaged[:_NAMED])
    more = f" and {len(damaged) - _NAMED:,} more" if len(damaged) > _NAMED else ""
    return f"{shown}{more} {'stays' if len(damaged) == 1 else 'stay'} damaged"
