"""Where datasets lie: `<out>/<name>/<version>/`, an unfinished build in a folder beside it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.grammar import VERSION, version_key
from shardprep.dataset.json_document import MAX_DOCUMENT_BYTES
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.dataset.schema import parse_schema
from shardprep.errors import DatasetError
from shardprep.storage.regular_file import read_regular

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema

ITEMS_FILE = "items.parquet"
SCHEMA_FILE = "schema.json"
INDEX_DIR = "index"
INCOMPLETE_SUFFIX = ".incomplete"
OUTLINE_FILE = ".parts/outline.json"
FETCHING_SUFFIX = ".fetching"
COPY_AGAIN = "copy it again, or build the set again"
"""The way out where a file of a dataset is missing or damaged."""


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
        return has_manifest(self.final)


def has_manifest(folder: Path) -> bool:
    """Tell whether something has the name of a manifest; reading it says whether it is one."""
    return os.path.lexists(folder / MANIFEST_FILE)


def read_schema(folder: Path, manifest: Manifest | None = None) -> Schema:
    """Return the schema of a dataset folder; with a manifest, only that which it has the hash of.

    Raises:
        DatasetError: it is missing, or not what the manifest says.
        SchemaError: it is no schema.

    """
    path = folder / SCHEMA_FILE
    try:
        data = read_regular(path, MAX_DOCUMENT_BYTES)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise DatasetError(str(path), what, COPY_AGAIN) from error
    if manifest is not None:
        expected = manifest.files.get(SCHEMA_FILE)
        if expected not in (None, hashlib.sha256(data).hexdigest()):
            what = "is not what the build wrote: its SHA-256 differs"
            raise DatasetError(str(path), what, COPY_AGAIN)
    return parse_schema(data, str(path))


def index_name(shard: str) -> str:
    """Return the path of a shard's index inside a dataset folder."""
    return f"{INDEX_DIR}/{shard}.idx"


def find_dataset(place: Path) -> Path:
    """Return the dataset folder that a path means: itself, or the newest version below it.

    Below a folder of several datasets there must be just one.

    Raises:
        DatasetError: there is none, or several.

    """
    if has_manifest(place):
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
        work = unfinished[0] if unfinished else place
        raise DatasetError(str(work), "the build is not finished", _way_on(work))
    raise DatasetError(str(place), "holds no dataset", "write one with `shardprep build`")


def _way_on(work: Path) -> str:
    """Return what ends the build in a folder; those in parts say in their outline what they are."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if json.loads((work / OUTLINE_FILE).read_bytes()).get("num_parts", 1) > 1:
            return f"when all its parts are done, run `shardprep finalize {work}`"
    return "run the same `shardprep build` again: it goes on where it stopped"


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
    found = (
        path for path in folder.iterdir() if VERSION.fullmatch(path.name) and has_manifest(path)
    )
    return sorted(found, key=lambda path: (version_key(path.name), path.name))
