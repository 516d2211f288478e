"""From the shards of a build to its dataset: the end of a build, or of the last of its parts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.begin import drop, folders_of
from shardprep.errors import BuildError, DatasetError
from shardprep.finish import finish
from shardprep.outline import read_outline
from shardprep.place import writing
from shardprep.shard import is_whole

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.manifest import Manifest
    from shardprep.outline import Outline
    from shardprep.place import Place
    from shardprep.shard import Folders

_NAMED = 4
_NUM_THREADS = 16
"""That wait for object storage."""


class TooManyRejectedError(BuildError):
    """The images are all encoded, but more of them are bad than the recipe accepts."""

    def __init__(
        self, where: str, what: str, hint: str, *, manifest: Manifest, draft: Path
    ) -> None:
        """`manifest` is what would have been published, `draft` a folder with its item table."""
        super().__init__(where, what, hint)
        self.manifest = manifest
        self.draft = draft


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build has come to."""

    location: str
    """Where the finished dataset is."""
    path: Path
    """Its folder; of one in object storage, a copy of all but its shards."""
    manifest: Manifest
    was_there: bool = False
    """It was finished before, with the same inputs and options: nothing was done."""
    num_new_items: int = 0
    """Items that this run has encoded; others were done by an earlier one."""
    elapsed_s: float = 0.0


def complete(place: Place, outline: Outline, expected: Manifest | None = None) -> Manifest:
    """Write all that a dataset is beside its shards, the manifest last; return that.

    Where a manifest is expected, no other is written.

    Raises:
        BuildError: too many items are rejected, or it came out other than expected.

    """
    with writing(place):
        folders = folders_of(place, outline.fingerprint)
        manifest = finish(folders, outline).signed()
        _check_rejections(place, manifest, outline.max_rejected)
        if expected is not None:
            _check_same(place, manifest, expected)
        if not place.is_exclusive:
            _check_whole(place, folders, outline, _NUM_THREADS)
        place.seal(manifest)
        if folders.is_replaced():
            place.retract()
            raise folders.replaced()
    return manifest


def finalize_dataset(
    place: Place, *, num_threads: int, max_rejected: float | None = None
) -> BuildResult:
    """Make a dataset of the shards that the parts of a build have written.

    Does nothing where that is done already. Every shard is read and compared with its seal.

    Raises:
        ShardprepError: no build in parts was begun here, shards are missing or damaged, a part
            is still at work, or too many items are rejected.

    """
    start = time.monotonic()
    outline = read_outline(place.folders.parts)
    finished = place.finished()
    if outline is None:
        if finished is not None:
            return BuildResult(place.location, place.documents(), finished, was_there=True)
        raise DatasetError(
            place.location, "no build in parts was begun here", "run shardprep build --part 1/N"
        )
    with place.held(alone=True):
        manifest = place.sealed()
        if manifest is None:
            folders = folders_of(place, outline.fingerprint)
            _check_whole(place, folders, outline, num_threads)
            if max_rejected is not None:
                outline = outline.model_copy(update={"max_rejected": max_rejected})
            manifest = complete(place, outline)
        with writing(place):
            place.publish()
    elapsed = time.monotonic() - start
    return BuildResult(place.location, place.documents(), manifest, elapsed_s=elapsed)


def _check_whole(place: Place, folders: Folders, outline: Outline, num_threads: int) -> None:
    """See that every shard is there; hashing leaves the interpreter, so threads do."""
    names = [shard.name for shard in outline.shards]
    with ThreadPoolExecutor(num_threads) as pool:
        wholes = pool.map(lambda name: is_whole(folders, name), names)
        missing = [name for name, whole in zip(names, wholes, strict=True) if not whole]
    if missing:
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        raise BuildError(
            place.work,
            f"{len(missing):,} of {len(names):,} shards are not there, or not whole: "
            f"{', '.join(missing[:_NAMED])}{more}",
            "run all parts again: what is done is not done again",
        )


def _check_rejections(place: Place, manifest: Manifest, limit: float) -> None:
    totals = manifest.totals
    num_items = totals.num_written + totals.num_rejected
    if totals.num_rejected > limit * num_items:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals.rejected.items())
        raise TooManyRejectedError(
            place.work,
            f"{totals.num_rejected:,} of {num_items:,} images are rejected "
            f"({totals.num_rejected / num_items:.1%}), the limit is {limit:.1%}: {kinds}",
            "the work is kept: run again with a higher --max-rejected to accept it",
            manifest=manifest,
            draft=place.draft(),
        )


def _check_same(place: Place, manifest: Manifest, expected: Manifest) -> None:
    """See that what came out is what the manifest of the damaged dataset says."""
    if manifest.dumps() == expected.dumps():
        return
    hashes = {name: shard.sha256 for name, shard in manifest.shards.items()}
    other = [name for name, s in expected.shards.items() if hashes.get(name) != s.sha256]
    drop(place, manifest.shards)  # nothing here is worth going on with
    raise BuildError(
        place.work,
        f"came out other than the manifest says ({', '.join(other) or 'its documents'})",
        "the dataset is left as it is: build it again with --overwrite",
    )
