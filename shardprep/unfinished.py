"""Which build an argument of `finalize` means: the unfinished one at a path, or below it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardprep.dataset import INCOMPLETE_SUFFIX, DatasetFolder
from shardprep.errors import DatasetError
from shardprep.grammar import VERSION
from shardprep.place import LocalPlace, ObjectPlace, Place
from shardprep.storage.url import ObjectUrl, parse_place

if TYPE_CHECKING:
    from pathlib import Path

_VERSION_FOLDER = re.compile(rf"{VERSION.pattern}({re.escape(INCOMPLETE_SUFFIX)})?")
_NAMED = 4


def find_place(where: str) -> Place:
    """Return the place that an argument means: a dataset, unfinished or not, or what it lies in.

    Where several lie there, the one that is unfinished.

    Raises:
        DatasetError: there is none, or several.

    """
    path = parse_place(where)
    if isinstance(path, ObjectUrl):
        return ObjectPlace(path._replace(key=path.key.removesuffix(INCOMPLETE_SUFFIX)))
    own = path if _is_named(path) else path.resolve()
    if _VERSION_FOLDER.fullmatch(own.name):
        folder = _folder(own)
        if not path.is_dir() or folder.is_finished or folder.incomplete.is_dir():
            return LocalPlace(folder)
    if not path.is_dir():
        raise DatasetError(where, "no such folder", "give the folder that --out was")
    found = _below(path, "*") or _below(path, "*/*")
    unfinished = [folder for folder in found if folder.incomplete.is_dir()]
    if len(unfinished or found) == 1:
        return LocalPlace((unfinished or found)[0])
    if not found:
        raise DatasetError(
            where, "holds no dataset, finished or not", "give the folder that --out was"
        )
    names = ", ".join(str(folder.final) for folder in (unfinished or found)[:_NAMED])
    what = "several unfinished builds" if unfinished else "no unfinished build, only"
    raise DatasetError(where, f"holds {what}: {names}", "name one of them")


def _below(path: Path, pattern: str) -> list[DatasetFolder]:
    there = (
        one for one in path.glob(pattern) if _VERSION_FOLDER.fullmatch(one.name) and one.is_dir()
    )
    return [_folder(one) for one in sorted({one.with_name(_final(one)) for one in there})]


def _folder(path: Path) -> DatasetFolder:
    path = path if _is_named(path.parent) else path.resolve()
    return DatasetFolder(path.parent.parent, path.parent.name, _final(path))


def _is_named(path: Path) -> bool:
    return path.name not in ("", "..")


def _final(path: Path) -> str:
    return path.name.removesuffix(INCOMPLETE_SUFFIX)
