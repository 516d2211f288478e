"""Where datasets lie: `<out>/<name>/<version>/`, an unfinished build in a folder beside it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
