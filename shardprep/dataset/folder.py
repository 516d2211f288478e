"""The folder of a dataset, `<out>/<name>/<version>/`: its path, file names and schema."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.manifest import MANIFEST_FILE, Manifest
from shardprep.dataset.schema import Schema, parse_schema
from shardprep.dataset.tfds_metadata import DOCUMENTS, tfds_files
from shardprep.errors import DatasetError, counted
from shardprep.storage.regular_file import read_regular

ITEMS_FILE = "items.parquet"
SCHEMA_FILE = "schema.json"
INDEX_DIR = "index"
INCOMPLETE_SUFFIX = ".incomplete"
"""Suffix of the folder of an unfinished build, next to the dataset's folder."""
FETCHING_SUFFIX = ".fetching"
OLD_SUFFIX = ".old"
"""Suffix of a dataset's folder while another dataset replaces it."""
COPY_AGAIN = "copy the dataset again, or build it again"
_SHARD = r"[^./][^/]*\.tfrecord[^/]*"
_LABELS = re.compile(r"[^./][^/]*\.labels\.txt")
_OWN = re.compile(rf"{_SHARD}|{INDEX_DIR}/{_SHARD}\.idx|{_LABELS.pattern}")
DOCUMENT_FILES = (SCHEMA_FILE, ITEMS_FILE, *DOCUMENTS, MANIFEST_FILE)


def has_manifest(folder: Path) -> bool:
    """Return whether a folder has a manifest; the manifest may be damaged."""
    return os.path.lexists(folder / MANIFEST_FILE)


def read_schema(folder: Path, manifest: Manifest | None = None) -> Schema:
    """Return the schema in a folder; DatasetError if unreadable or different from the manifest."""
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
    schema = parse_schema(data, str(path), COPY_AGAIN)
    if manifest is not None and schema.labels != manifest.labels.names:
        what = f"has other classes than the manifest ({counted(len(schema.labels), 'class')})"
        raise DatasetError(str(path), what, COPY_AGAIN)
    return schema


def index_name(shard: str) -> str:
    """Return the path of a shard's index inside a dataset folder."""
    return f"{INDEX_DIR}/{shard}.idx"


def inventory(manifest: Manifest, schema: Schema) -> set[str]:
    """Return the paths of all files of a complete dataset, relative to its folder."""
    return {
        *manifest.shards,
        *map(index_name, manifest.shards),
        *DOCUMENT_FILES,
        *tfds_files(manifest, schema),
    }


def is_own(name: str) -> bool:
    """Return whether a path, relative to a dataset's folder, has the form of a dataset file."""
    return name in DOCUMENT_FILES or _OWN.fullmatch(name) is not None


def belongs(name: str, manifest: Manifest) -> bool:
    """Return whether a path names a document, or a shard or index that the manifest lists."""
    shard = name.removeprefix(f"{INDEX_DIR}/").removesuffix(".idx")
    known = name in DOCUMENT_FILES or _LABELS.fullmatch(name) is not None
    return known or (shard in manifest.shards and name in (shard, index_name(shard)))
