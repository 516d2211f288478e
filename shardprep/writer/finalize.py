"""From the shards of a build to its dataset: the end of a build, or of the last of its parts."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.errors import BuildError, DatasetError
from shardprep.writer.documents import finish
from shardprep.writer.outline import read_outline
from shardprep.writer.part import numbers_of
from shardprep.writer.shard import is_whole
from shardprep.writer.workspace.begin import drop, folders_of, is_begun
from shardprep.writer.workspace.local import writing

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest
    from shardprep.writer.outline import Outline
    from shardprep.writer.shard import Folders
    from shardprep.writer.workspace.local import Place

_NAMED = 4
_SHARD_FILE = re.compile(r"[^./][^/]*\.tfrecord-[^/]*")
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

    def as_json(self, exit_code: int) -> dict[str, Any]:
        """Return the error and, beside it, what became of all inputs."""
        return {**super().as_json(exit_code), "totals": self.manifest.totals}


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


def complete(
    place: Place, folders: Folders, outline: Outline, expected: Manifest | None = None
) -> Manifest:
    """Write all that a dataset is beside its shards, the manifest last; return that.

    Where a manifest is expected, no other is written.

    Raises:
        BuildError: too many items are rejected, or it came out other than expected.

    """
    with writing(place):
        folders.check_build()
        manifest = finish(folders, outline).signed()
        _check_rejections(place, folders, manifest, outline.max_rejected)
        if expected is not None:
            _check_same(place, manifest, expected)
        if not place.is_exclusive:
            _check_whole(place, folders, outline, _NUM_THREADS)
        place.seal(manifest, folders.shards)
        if folders.is_replaced():
            folders.shards.remove([MANIFEST_FILE])
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
    if is_begun(place):
        with place.held(alone=True):
            if is_begun(place):
                manifest = place.sealed() or _completed(place, num_threads, max_rejected)
                with writing(place):
                    place.publish(manifest)
                path, elapsed = place.documents(), time.monotonic() - start
                return BuildResult(place.location, path, manifest, elapsed_s=elapsed)
            place.discard()  # another has published it meanwhile
    finished = place.finished()
    if finished is None:
        raise _nothing_written(place)
    end_publishing(place, finished)
    return BuildResult(place.location, place.documents(), finished, was_there=True)


def end_publishing(place: Place, finished: Manifest) -> None:
    """Do what is left to do of a dataset that is complete, but was not published to the end."""
    if not place.is_settled(finished):
        with place.held(alone=True), writing(place):
            place.publish(finished)


def _completed(place: Place, num_threads: int, max_rejected: float | None) -> Manifest:
    outline = read_outline(place.parts)
    if outline is None:
        raise _nothing_written(place)
    folders = folders_of(place, outline.fingerprint)
    _check_whole(place, folders, outline, num_threads)
    if max_rejected is not None:
        outline = outline.model_copy(update={"max_rejected": max_rejected})
    return complete(place, folders, outline)


def _nothing_written(place: Place) -> DatasetError:
    return DatasetError(
        place.location,
        "no part of a build was written here",
        "run `shardprep build` with --part 1/N, 2/N, … first, or name another dataset",
    )


def _check_whole(place: Place, folders: Folders, outline: Outline, num_threads: int) -> None:
    """See that every shard is there, and no other; hashing leaves the interpreter, so threads do.

    What a shard is called says which part it belongs to, whoever wrote the others.
    """
    names = [shard.name for shard in outline.shards]
    there = folders.shards.names()
    foreign = sorted(set(filter(_SHARD_FILE.fullmatch, there)).difference(names))
    if foreign:
        raise BuildError(
            folders.shards.located(foreign[0]),
            "is no shard of this build",
            "remove it: readers would take it for one",
        )
    with ThreadPoolExecutor(num_threads) as pool:
        wholes = list(pool.map(lambda name: is_whole(folders, name), names))
    places = [i for i, whole in enumerate(wholes) if not whole]
    if places:
        more = f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else ""
        again = "`shardprep build`"
        if outline.num_parts > 1:
            numbers = numbers_of(places, outline.num_parts)
            again = f"part{'' if numbers.isdecimal() else 's'} {numbers} of {outline.num_parts}"
        raise BuildError(
            place.work,
            f"{len(places):,} of {len(names):,} shards are not there, or not whole: "
            f"{', '.join(names[i] for i in places[:_NAMED])}{more}",
            f"run {again} again: what is done is not done again",
        )


def _check_rejections(place: Place, folders: Folders, manifest: Manifest, limit: float) -> None:
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
            draft=place.draft(folders.shards),
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
