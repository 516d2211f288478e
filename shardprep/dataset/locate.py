"""Find the dataset that a path or an address refers to, and the versions below a folder.

A folder refers to itself if it is a dataset, otherwise to the newest version in it, otherwise to
the newest version of the only dataset in it.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, overload

from shardprep.dataset.documents import VERSION, version_key
from shardprep.dataset.folder import INCOMPLETE_SUFFIX, ITEMS_FILE, SCHEMA_FILE, has_manifest
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.dataset.remote_files import RemoteFiles, in_force, under
from shardprep.dataset.tfds_metadata import DOCUMENTS
from shardprep.errors import DatasetError, OptionName, command_line, some_of
from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl, parse_place

VERSION_FOLDER = re.compile(
    rf"(?P<version>{VERSION.pattern})(?P<unfinished>{re.escape(INCOMPLETE_SUFFIX)})?"
)
DatasetFiles = LocalFiles | RemoteFiles
"""The files of a dataset, local or remote; `OpenDataset` uses only methods that both have."""
USUAL_SHARE = 0.05
"""Default of `--max-rejected`, which `recipe` defines; a test checks that both are equal."""
_LEVELS = 2
"""Number of folder levels to search: versions, or datasets with versions in them."""
_REMAINS = (ITEMS_FILE, SCHEMA_FILE, *DOCUMENTS[:1])


class Version(NamedTuple):
    """A version of a dataset below the searched folder."""

    names: tuple[str, ...]
    """Path below the searched folder, as folder names; the last is the version."""
    is_finished: bool
    is_unfinished: bool
    """Whether the version has an unfinished build; it may have a finished dataset as well."""


@overload
def locate(place: ObjectUrl, *, damaged: bool = ...) -> RemoteFiles: ...
@overload
def locate(place: str | Path | ObjectUrl, *, damaged: bool = ...) -> DatasetFiles: ...
def locate(place: str | Path | ObjectUrl, *, damaged: bool = False) -> DatasetFiles:
    """Return the files of the dataset that a path or an address refers to.

    `damaged` also accepts a dataset without a manifest. RecipeError if `place` is neither a path
    nor an address; DatasetError if `place` contains no dataset or several.
    """
    root = place if isinstance(place, ObjectUrl) else parse_place(str(place))
    if isinstance(root, ObjectUrl):
        return _stored_dataset(root, damaged=damaged)
    if has_manifest(root) or (damaged and _has_remains(root)):
        return LocalFiles.at(root)
    return LocalFiles.at(root.joinpath(*_newest(root, versions_below(root, damaged=damaged))))


def _has_remains(folder: Path) -> bool:
    has_files = any(True for name in ("*.tfrecord*", *_REMAINS) for _ in folder.glob(name))
    return has_files and not folder.name.endswith(INCOMPLETE_SUFFIX)


def _stored_dataset(root: ObjectUrl, *, damaged: bool) -> RemoteFiles:
    listed = {facts.name: facts for facts in objects.listing(root)}
    is_unfinished = root.key.endswith(INCOMPLETE_SUFFIX)
    if MANIFEST_FILE in listed or (damaged and not is_unfinished and listed.keys() & {*_REMAINS}):
        return RemoteFiles(root, in_force(root, listed))
    prefix = "/".join(_newest(root, _versions(_stored_folders(listed, damaged=damaged))))
    inside = {name: facts._replace(name=name) for name, facts in under(prefix, listed).items()}
    return RemoteFiles(root / prefix, in_force(root / prefix, inside))


def _newest(root: Path | ObjectUrl, versions: list[Version]) -> tuple[str, ...]:
    finished = [one.names for one in versions if one.is_finished]
    newest_names = [[*group][-1] for _, group in groupby(finished, lambda names: names[:-1])]
    if len(newest_names) == 1:
        return newest_names[0]
    if newest_names:
        several = some_of([str(below(root, names[:-1])) for names in newest_names], 5)
        raise DatasetError(str(root), f"holds several datasets: {several}", "name one of them")
    if versions or root.name.endswith(INCOMPLETE_SUFFIX):
        names = versions[0].names if versions else ()
        work = (*names[:-1], f"{names[-1]}{INCOMPLETE_SUFFIX}") if names else ()
        raise unfinished_error(below(root, work))
    hint = "give the folder of a dataset, or write one with `shardprep build`"
    raise DatasetError(str(root), "holds no dataset", hint)


def unfinished_error(work: Path | ObjectUrl) -> DatasetError:
    """Return the error for a build that is not finished; `work` is its folder."""
    what, way = "the build is not finished", ""
    if isinstance(work, Path) and (items := work / ITEMS_FILE).is_file():
        from shardprep.dataset.rejected import rejected_text

        with contextlib.suppress(DatasetError):  # the table is not complete
            again = "run the same build or finalize again"
            rejected, way = rejected_text(items, again, most=USUAL_SHARE)
            what += f": {rejected}" if rejected else ""
    if not way:
        finalize = f"{command_line('finalize', work)} if all parts of it are done"
        way = f"run the same `shardprep build` again, or {finalize}"
    return DatasetError(str(work), what, way)


def below(root: Path | ObjectUrl, names: Sequence[str]) -> Path | ObjectUrl:
    """Return `root` joined with these folder names."""
    if isinstance(root, ObjectUrl):
        return root / "/".join(names) if names else root
    return root.joinpath(*names)


def versions_below(root: Path | ObjectUrl, *, damaged: bool = False) -> list[Version]:
    """Return the versions in a folder, or if it has none, the versions of the datasets in it.

    The versions of each dataset are sorted, oldest first. With `damaged`, versions that lack their
    manifest count as finished. DatasetError if the folder is missing.
    """
    if isinstance(root, ObjectUrl):
        names = (facts.name for facts in objects.listing(root))
        return _versions(_stored_folders(names, damaged=damaged))
    if not root.is_dir():
        hint = f"give the folder of a dataset, or the {OptionName('out')} of its build"
        what = "is a file, not the folder of a dataset" if root.is_file() else "no such folder"
        raise DatasetError(str(root), what, hint)
    return _versions(_folders(root, damaged=damaged))


def _versions(folders: Iterable[tuple[tuple[str, ...], bool]]) -> list[Version]:
    """Return the versions among `folders`, sorted; only the uppermost level that has versions."""
    states_of: defaultdict[tuple[str, ...], set[bool]] = defaultdict(set)
    for names, is_complete in folders:
        match = VERSION_FOLDER.fullmatch(names[-1])
        if match and (match["unfinished"] or is_complete):
            states_of[*names[:-1], match["version"]].add(match["unfinished"] is None)
    level = min(map(len, states_of), default=0)
    upper = [
        Version(names, is_finished=True in states, is_unfinished=False in states)
        for names, states in states_of.items()
        if len(names) == level
    ]
    return sorted(upper, key=lambda one: (one.names[:-1], version_key(one.names[-1]), one.names))


def _folders(
    root: Path, level: int = 1, *, damaged: bool
) -> Iterator[tuple[tuple[str, ...], bool]]:
    for folder in root.iterdir():
        if VERSION_FOLDER.fullmatch(folder.name):
            if folder.is_dir():
                is_complete = has_manifest(folder) or (damaged and _has_remains(folder))
                yield (folder.name,), is_complete
        elif level < _LEVELS and folder.is_dir():
            for names, is_complete in _folders(folder, level + 1, damaged=damaged):
                yield (folder.name, *names), is_complete


def _stored_folders(
    names: Iterable[str], *, damaged: bool
) -> Iterator[tuple[tuple[str, ...], bool]]:
    signs = {MANIFEST_FILE, *(_REMAINS if damaged else ())}
    for name in names:
        *folders, file = name.split("/")
        for level in range(1, min(len(folders), _LEVELS) + 1):
            yield tuple(folders[:level]), file in signs and level == len(folders)
