"""Where datasets lie: `<out>/<name>/<version>/`, an unfinished build in a folder beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.errors import BuildError, DatasetError
from shardprep.manifest import MANIFEST_FILE
from shardprep.schema import parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardprep.recipe import Recipe
    from shardprep.schema import Schema

ITEMS_FILE = "items.parquet"
SCHEMA_FILE = "schema.json"
INDEX_DIR = "index"
INCOMPLETE_SUFFIX = ".incomplete"
FETCHING_SUFFIX = ".fetching"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """The two places of a dataset that is being built."""

    out: Path
    name: str
    version: str

    @property
    def final(self) -> Path:
        """Exists only when the dataset is complete."""
        return self.out / self.name / self.version

    @property
    def incomplete(self) -> Path:
        """Where a build works; what is done here is not done again."""
        return self.out / self.name / f"{self.version}{INCOMPLETE_SUFFIX}"

    @property
    def fetching(self) -> Path:
        """Where a copy of one that lies elsewhere comes to be."""
        return self.out / self.name / f"{self.version}{FETCHING_SUFFIX}"

    @property
    def old(self) -> Path:
        """Where a dataset that is being replaced stands for a moment."""
        return self.out / self.name / f"{self.version}.old"

    @property
    def is_finished(self) -> bool:
        """Whether the final folder holds a manifest, which is written last."""
        return (self.final / MANIFEST_FILE).is_file()


def outputs(recipe: Recipe) -> tuple[Path, ...]:
    """Return the folders that a build writes, which are never part of its source."""
    folder = DatasetFolder(Path(recipe.out), recipe.dataset_name, recipe.version)
    return folder.out, folder.final, folder.incomplete, folder.old


def read_schema(folder: Path) -> Schema:
    """Return the schema of a dataset folder.

    Raises:
        DatasetError: it is missing.
        SchemaError: it is no schema.

    """
    path = folder / SCHEMA_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(str(path), "is missing or damaged", "build the set again") from error
    return parse_schema(text, str(path))


def index_name(shard: str) -> str:
    """Return the path of a shard's index inside a dataset folder."""
    return f"{INDEX_DIR}/{shard}.idx"


@contextlib.contextmanager
def locked(folder: Path, *, alone: bool = True) -> Iterator[None]:
    """Hold a folder, made if need be, against other builds; the lock goes with the process.

    Builds that need not be `alone` hold it together.

    Raises:
        BuildError: another build holds it, or it cannot be made.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BuildError(
            str(folder), f"cannot be made ({error.strerror})", "choose another --out"
        ) from error
    try:
        try:
            kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BuildError(
                str(folder), "another build is at work here", "wait for it, or end it"
            ) from error
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise BuildError(
                str(folder), "another build has just finished here", "run the command again"
            )
        yield
    finally:
        os.close(descriptor)


def find_dataset(place: Path) -> Path:
    """Return the dataset folder that a path means: itself, or the newest version below it.

    Below a folder of several datasets there must be just one.

    Raises:
        DatasetError: there is none, or several.

    """
    if (place / MANIFEST_FILE).is_file():
        return place
    if not place.is_dir():
        raise DatasetError(str(place), "no such folder", "give the folder that a build has written")
    versions = _versions(place)
    if versions:
        return versions[-1]
    found = [below for child in sorted(place.iterdir()) for below in _versions(child)[-1:]]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(path.parent) for path in found[:5])
        raise DatasetError(str(place), f"holds several datasets: {names}", "name one of them")
    unfinished = sorted(place.glob(f"**/*{INCOMPLETE_SUFFIX}"))
    if place.name.endswith(INCOMPLETE_SUFFIX) or unfinished:
        raise DatasetError(
            str(unfinished[0] if unfinished else place),
            "the build is not finished",
            "run the same `shardprep build` again: it goes on where it stopped",
        )
    raise DatasetError(str(place), "holds no dataset", "write one with `shardprep build`")


def find_damaged(place: Path) -> Path:
    """Return the dataset folder that a path means, though it may have lost its manifest.

    Raises:
        DatasetError: there is none, or several.

    """
    remains = ("*.tfrecord*", ITEMS_FILE, SCHEMA_FILE, "dataset_info.json")
    is_one = not place.name.endswith(INCOMPLETE_SUFFIX) and any(
        True for pattern in remains for _ in place.glob(pattern)
    )
    return place if is_one else find_dataset(place)


def _versions(folder: Path) -> list[Path]:
    """Return the finished versions in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [
        (tuple(int(number) for number in match.groups()), path)
        for path in folder.iterdir()
        if (match := _VERSION.fullmatch(path.name)) and (path / MANIFEST_FILE).is_file()
    ]
    return [path for _, path in sorted(found)]
