"""A dataset in object storage, and copies of the documents beside its shards.

One listing gives the names, sizes and ETags that all later reads rely on.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.folder import (
    INCOMPLETE_SUFFIX,
    INDEX_DIR,
    ITEMS_FILE,
    SCHEMA_FILE,
    read_schema,
)
from shardprep.dataset.json_document import MAX_DOCUMENT_BYTES
from shardprep.dataset.manifest import MANIFEST_FILE, load_manifest
from shardprep.errors import DatasetError, RecipeError
from shardprep.storage import objects
from shardprep.storage.shard_cache import RemoteShard, is_document, stage_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest, Shard
    from shardprep.dataset.schema import Schema
    from shardprep.storage.objects import ObjectFacts
    from shardprep.storage.url import ObjectUrl

_SPARE_ITEM_BYTES = 4 << 30
"""Bytes that an item table may have more than the shards, for inputs that are left out."""


@dataclass(frozen=True, slots=True)
class RemoteDataset:
    """A dataset as one listing of its objects shows it."""

    url: ObjectUrl
    objects: Mapping[str, ObjectFacts]
    """All objects by the names they have in the dataset; their own names are their keys."""

    def __str__(self) -> str:
        return str(self.url)

    def documents(self, wanted: Sequence[str] | None = None) -> Path:
        """Return a folder with copies of all documents, or of those wanted, checked or not.

        Raises as `stage_documents`.

        Raises:
            DatasetError: one is larger than any document of its kind beside such shards.

        """
        chosen = self.objects.keys() if wanted is None else frozenset(wanted)
        for name, facts in self.objects.items():
            is_wanted = name in chosen and is_document(name)
            if is_wanted and facts.num_bytes > self._most_bytes(name):
                what = f"has {facts.num_bytes:,} bytes, more than the {self._most_bytes(name):,}"
                raise self._error(name, f"{what} it may have")
        return stage_documents(self.url, self.objects, wanted)

    def _most_bytes(self, name: str) -> int:
        """Return the largest size in bytes that a document may have beside these shards."""
        if name == ITEMS_FILE:
            shards = sum(one.num_bytes for key, one in self.objects.items() if not is_document(key))
            return shards + _SPARE_ITEM_BYTES
        folder, _, file = name.rpartition("/")
        shard = self.objects.get(file.removesuffix(".idx")) if folder == INDEX_DIR else None
        return MAX_DOCUMENT_BYTES + (3 * shard.num_bytes if shard else 0)

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            DatasetError: it is not what a build wrote.

        """
        folder = self.documents((MANIFEST_FILE,))
        with addressed(folder, self.url):
            return load_manifest(folder)

    def checked(self, manifest: Manifest, wanted: Sequence[str]) -> Path:
        """Return a folder with copies of documents that are what the manifest says.

        Raises:
            DatasetError: one is missing or differs.

        """
        for name in wanted:
            if name not in self.objects:
                raise self._error(name, "is not there")
        folder = self.documents((MANIFEST_FILE, *wanted))
        for name in manifest.files.keys() & set(wanted):
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != manifest.files[name]:
                raise self._error(name, "is not what the build wrote: its SHA-256 differs")
        return folder

    def shard(self, shard: Shard) -> RemoteShard:
        """Return a shard of the manifest, as it lies here.

        Raises:
            DatasetError: it is missing, or has another size.

        """
        found = self.objects.get(shard.name)
        if found is None or found.num_bytes != shard.num_bytes:
            here = "is missing" if found is None else f"has {found.num_bytes:,} bytes"
            raise self._error(shard.name, f"{here}, the manifest says {shard.num_bytes:,}")
        return RemoteShard(self.url / found.name, found.etag, shard.num_bytes, shard.sha256)

    def is_beside_unfinished(self) -> bool:
        """Tell whether an unfinished build of it is there; asks the store."""
        return bool(objects.listing(self.url._replace(key=self.url.key + INCOMPLETE_SUFFIX)))

    def _error(self, name: str, what: str) -> DatasetError:
        way = "`shardprep verify --repair` builds what is damaged again"
        return DatasetError(str(self.url / name), what, way)


@contextlib.contextmanager
def addressed(folder: Path, where: object) -> Iterator[None]:
    """Make errors on copies in a folder name the address of the originals."""
    try:
        yield
    except DatasetError as error:
        here, there = str(folder), str(where)
        raise DatasetError(
            error.where.replace(here, there), error.what, error.hint.replace(here, there)
        ) from error


def documents_of(found: Path | RemoteDataset, names: Sequence[str]) -> Path:
    """Return a folder with documents of a dataset; raises as `RemoteDataset.checked`."""
    return found.checked(found.manifest(), names) if isinstance(found, RemoteDataset) else found


def described(found: Path | RemoteDataset) -> tuple[Manifest, Schema]:
    """Return the manifest and the schema of a dataset.

    Raises:
        DatasetError: one of them is missing or damaged.

    """
    if isinstance(found, RemoteDataset):
        manifest = found.manifest()
        folder = found.checked(manifest, (SCHEMA_FILE,))
        with addressed(folder, found.url):
            return manifest, read_schema(folder)
    manifest = load_manifest(found)
    return manifest, read_schema(found, manifest)


def local_only(found: Path | RemoteDataset, what: str) -> Path:
    """Return a dataset's folder.

    Raises:
        RecipeError: it lies in object storage, where `what` cannot be done.

    """
    if isinstance(found, RemoteDataset):
        raise RecipeError(
            str(found), f"{what} works on this machine's files", f"shardprep fetch {found} first"
        )
    return found
