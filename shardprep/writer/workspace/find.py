"""The build that an argument of `finalize` means: the unfinished one at a place, or below it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.folder import INCOMPLETE_SUFFIX, DatasetFolder
from shardprep.dataset.grammar import VERSION
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.errors import BuildError, DatasetError
from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl, parse_place
from shardprep.writer.outline import read_outline
from shardprep.writer.workspace.local import LocalPlace, Place
from shardprep.writer.workspace.remote import ObjectPlace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_VERSION_FOLDER = re.compile(rf"{VERSION.pattern}({re.escape(INCOMPLETE_SUFFIX)})?")
_NAMED = 4
_HINT = "give the folder or address that --out was"


@dataclass(frozen=True, slots=True)
class _Found:
    """A version of a dataset, finished or not."""

    place: Place
    is_unfinished: bool


def find_place(where: str) -> Place:
    """Return the place that an argument means: a dataset, unfinished or not, or what it lies in.

    Where several lie there, the one that is unfinished.

    Raises:
        DatasetError: there is none, or several.

    """
    own = _own_place(where)
    return _only(where, _below(where)) if own is None else own


def refuse_unfinished(out: str, asked: Place) -> None:
    """See that no parts of another build lie below `out` than of the one that is asked for.

    Raises:
        DatasetError: some do.

    """
    others = [
        found.place
        for found in _below(out)
        if found.is_unfinished and found.place != asked and _is_in_parts(found.place)
    ]
    if others:
        raise DatasetError(
            asked.location,
            f"has no unfinished parts, but others lie in {_named(others)}",
            "run " + ", ".join(f"`shardprep finalize {one.location}`" for one in others[:_NAMED]),
        )


def _is_in_parts(place: Place) -> bool:
    try:
        outline = read_outline(place.parts)
    except BuildError:
        return True  # `finalize` says what is wrong with it
    return outline is not None and outline.num_parts > 1


def _only(where: str, found: Sequence[_Found]) -> Place:
    """Return the one that is meant of all that lie there. Raises as `find_place`."""
    if not found:
        raise DatasetError(where, "holds no dataset, finished or not", _HINT)
    unfinished = [one for one in found if one.is_unfinished]
    meant = [one.place for one in unfinished or found]
    if len(meant) == 1:
        return meant[0]
    what = "several unfinished builds" if unfinished else "no unfinished build, only"
    raise DatasetError(where, f"holds {what}: {_named(meant)}", "name one of them")


def _named(places: Sequence[Place]) -> str:
    more = f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else ""
    return ", ".join(place.location for place in places[:_NAMED]) + more


def _own_place(where: str) -> Place | None:
    """Return the place that is named itself, None where a place above one or more is."""
    path = parse_place(where)
    if isinstance(path, ObjectUrl):
        if not _VERSION_FOLDER.fullmatch(path.name):
            return None
        place = ObjectPlace(path._replace(key=_final(path.key)))
        is_out = (
            objects.listing(path) and not place.stands() and not objects.listing(place.parts.url)
        )
        return None if is_out else place
    own = path if _is_named(path) else path.resolve()
    if _VERSION_FOLDER.fullmatch(own.name):
        folder = _folder(own)
        if not path.is_dir() or folder.is_finished or folder.incomplete.is_dir():
            return LocalPlace(folder)
    if not path.is_dir():
        raise DatasetError(where, "no such folder", _HINT)
    return None


def _below(where: str) -> list[_Found]:
    """Return what lies in a place, or else in what lies there."""
    path = parse_place(where)
    if isinstance(path, ObjectUrl):
        return _objects_below(path)
    return [
        _Found(LocalPlace(folder), folder.incomplete.is_dir())
        for folder in _folders(path, "*") or _folders(path, "*/*")
    ]


def _objects_below(url: ObjectUrl) -> list[_Found]:
    found: dict[tuple[str, ...], bool] = {}
    for name in (facts.name for facts in objects.listing(url)):
        *above, last = name.split("/")
        for depth, folder in enumerate(above[:2]):
            is_unfinished = folder.endswith(INCOMPLETE_SUFFIX)
            is_one = is_unfinished or (last == MANIFEST_FILE and len(above) == depth + 1)
            if _VERSION_FOLDER.fullmatch(folder) and is_one:
                key = (*above[:depth], _final(folder))
                found[key] = found.get(key, False) or is_unfinished
    least = min(map(len, found), default=0)
    return [
        _Found(ObjectPlace(url / "/".join(key)), is_unfinished)
        for key, is_unfinished in sorted(found.items())
        if len(key) == least
    ]


def _folders(path: Path, pattern: str) -> list[DatasetFolder]:
    there = (
        one for one in path.glob(pattern) if _VERSION_FOLDER.fullmatch(one.name) and one.is_dir()
    )
    return [_folder(one) for one in sorted({one.with_name(_final(one.name)) for one in there})]


def _folder(path: Path) -> DatasetFolder:
    path = path if _is_named(path.parent) else path.resolve()
    return DatasetFolder(path.parent.parent, path.parent.name, _final(path.name))


def _is_named(path: Path) -> bool:
    return path.name not in ("", "..")


def _final(name: str) -> str:
    return name.removesuffix(INCOMPLETE_SUFFIX)
