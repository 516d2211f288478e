"""What an earlier run has left, and whether it was a run of the same build."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardprep.errors import BuildError
from shardprep.writer.fingerprint import differences
from shardprep.writer.shard import (
    BUILD_FILE,
    PARTS_DIR,
    Folders,
    build_hash,
    parse_build,
    part_name,
    read_build,
)
from shardprep.writer.workspace.local import writing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.writer.workspace.local import Place


def begin(
    place: Place, fingerprint: Fingerprint, *, overwrite: bool, may_stand: bool = False
) -> bool:
    """Take up an unfinished build of the same fingerprint, or start with nothing.

    Args:
        place: where.
        fingerprint: what of.
        overwrite: an unfinished build of another one may go.
        may_stand: there may be a finished dataset, which the build is to take the place of.

    Returns:
        Whether it is a new build.

    Raises:
        BuildError: there is work of another build, and it may not be overwritten.

    """
    begun = _begun(place)
    if begun is not None:
        changes = differences(begun, fingerprint)
        if not changes:
            return False
        if not overwrite and (has_work(place) or not place.is_exclusive):
            is_dead = "" if place.is_exclusive else "if that is no more at work, "
            raise _of_another(
                place,
                changes,
                f"{is_dead}add --overwrite to start again, or give the former options",
            )
    with writing(place):
        if place.start(_text(fingerprint), over=begun is not None, may_stand=may_stand):
            return True
    # another was first
    return begin(place, fingerprint, overwrite=overwrite, may_stand=may_stand)


def refuse_another(place: Place, fingerprint: Fingerprint) -> None:
    """See that no other build was begun here.

    Raises:
        BuildError: one was.

    """
    begun = _begun(place)
    if begun is not None and (changes := differences(begun, fingerprint)):
        raise _of_another(
            place,
            changes,
            "give all parts the same source and options, or remove the folder to start again",
        )


def folders_of(place: Place, fingerprint: Fingerprint) -> Folders:
    """Return the folders of a place where a build of this fingerprint is at work.

    Raises:
        BuildError: another build is at work there, or none any more.

    """
    parts = place.parts
    data = parts.read(BUILD_FILE)
    if data is None or differences(parse_build(parts, data), fingerprint):
        raise Folders(parts, parts).replaced()
    return Folders(place.shards(fingerprint), parts, build_hash(data))


def join(place: Place, fingerprint: Fingerprint) -> None:
    """Take up a build which others may be at work on, or start it.

    Raises:
        BuildError: another build was begun here.

    """
    if _begun(place) is None:
        with writing(place):
            place.parts.create(BUILD_FILE, _text(fingerprint))
    refuse_another(place, fingerprint)


def is_begun(place: Place) -> bool:
    """Tell whether there is a build here that is not finished."""
    return place.parts.read(BUILD_FILE) is not None or place.sealed() is not None


def is_of(place: Place, fingerprint: Fingerprint) -> bool:
    """Tell whether the build that was begun here, if one was, is of this fingerprint."""
    begun = _begun(place)
    return begun is None or not differences(begun, fingerprint)


def take_back(place: Place) -> None:
    """Leave nothing of a part that came to nothing, unless another has begun the build."""
    if is_begun(place):
        return
    with contextlib.suppress(BuildError), place.held(alone=True) as is_held:
        if is_held and not is_begun(place):
            place.discard()


def same_or_refuse(place: Place, finished: Manifest, fingerprint: Fingerprint) -> None:
    """See that the finished dataset is what the recipe asks for.

    Raises:
        BuildError: it was built from other inputs, or with other options.

    """
    there = finished.fingerprint.model_copy(update={"versions": fingerprint.versions})
    if changes := differences(there, fingerprint):
        raise BuildError(
            place.location,
            f"is there already, and was built with other {', '.join(changes)}",
            "add --overwrite to replace it, or give another --version or --name",
        )


def has_work(place: Place) -> bool:
    """Tell whether a run has left anything here that another need not do again."""
    if place.sealed() is not None:
        return True
    return any(
        name.startswith(f"{PARTS_DIR}/") and ".tfrecord-" in name for name in place.parts.names()
    )


def drop(place: Place, shards: Iterable[str]) -> None:
    """Let shards count as not done."""
    place.parts.remove([part_name(shard) for shard in shards])


def _of_another(place: Place, changes: list[str], hint: str) -> BuildError:
    return BuildError(
        place.work, f"an unfinished build is here, begun with other {', '.join(changes)}", hint
    )


def _text(fingerprint: Fingerprint) -> bytes:
    return fingerprint.model_dump_json(indent=2).encode()


def _begun(place: Place) -> Fingerprint | None:
    """Return the fingerprint of the build that was begun here, None where there is none."""
    begun = read_build(place.parts)
    if begun is not None:
        return begun
    sealed = place.sealed()
    return None if sealed is None else sealed.fingerprint
