"""What an earlier run has left, and whether it was a run of the same build."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from shardprep.errors import BuildError
from shardprep.fingerprint import differences
from shardprep.json_document import DocumentError, parse_document
from shardprep.manifest import Fingerprint
from shardprep.place import writing
from shardprep.shard import BUILD_FILE, PARTS_DIR, Folders, build_hash, part_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardprep.manifest import Manifest
    from shardprep.place import Place


def begin(place: Place, fingerprint: Fingerprint, *, overwrite: bool) -> bool:
    """Take up an unfinished build of the same fingerprint, or start with nothing.

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
        if place.start(_text(fingerprint), over=begun is not None):
            return True
    return begin(place, fingerprint, overwrite=overwrite)  # another was first


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
    folders = place.folders
    data = folders.parts.read(BUILD_FILE)
    begun = None if data is None else _parsed(place, data)
    if data is None or begun is None or differences(begun, fingerprint):
        raise folders.replaced()
    return replace(folders, build=build_hash(data))


def join(place: Place, fingerprint: Fingerprint) -> None:
    """Take up a build which others may be at work on, or start it.

    Raises:
        BuildError: another build was begun here.

    """
    if _begun(place) is None:
        with writing(place):
            place.folders.parts.create(BUILD_FILE, _text(fingerprint))
    refuse_another(place, fingerprint)


def is_begun(place: Place) -> bool:
    """Tell whether there is a build here that is not finished."""
    return place.sealed() is not None or place.folders.parts.read(BUILD_FILE) is not None


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
        name.startswith(f"{PARTS_DIR}/") and ".tfrecord-" in name
        for name in place.folders.parts.names()
    )


def drop(place: Place, shards: Iterable[str]) -> None:
    """Let shards count as not done."""
    place.folders.parts.remove([part_name(shard) for shard in shards])


def _of_another(place: Place, changes: list[str], hint: str) -> BuildError:
    return BuildError(
        place.work, f"an unfinished build is here, begun with other {', '.join(changes)}", hint
    )


def _text(fingerprint: Fingerprint) -> bytes:
    return fingerprint.model_dump_json(indent=2).encode()


def _begun(place: Place) -> Fingerprint | None:
    """Return the fingerprint of the build that was begun here, None where there is none."""
    sealed = place.sealed()
    if sealed is not None:
        return sealed.fingerprint
    data = place.folders.parts.read(BUILD_FILE)
    return None if data is None else _parsed(place, data)


def _parsed(place: Place, data: bytes) -> Fingerprint:
    try:
        return parse_document(Fingerprint, data)
    except DocumentError as error:
        where = place.folders.parts.located(BUILD_FILE)
        raise BuildError(
            where, f"is damaged ({error})", f"remove {place.work} to start again"
        ) from error
