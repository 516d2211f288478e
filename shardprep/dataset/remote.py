"""A dataset in object storage, and copies of the documents beside its shards.

One listing gives the names, sizes and ETags that all later reads rely on. What is missing there, or
not what the listing or the manifest says, is a `DatasetError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.folder import (
    INCOMPLETE_SUFFIX,
    INDEX_DIR,
    ITEMS_FILE,
    SCHEMA_FILE,
    read_schema,
)
from shardprep.dataset.identity import Identity
from shardprep.dataset.manifest import MANIFEST_FILE, load_manifest
from shardprep.errors import DatasetError, RecipeError
from shardprep.storage import objects
from shardprep.storage.atomic_file import DurableFile
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.shard_cache import RemoteShard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest, Shard
    from shardprep.dataset.schema import Schema
    from shardprep.storage.objects import ObjectFacts
    from shardprep.storage.url import ObjectUrl

_SPARE_ITEM_BYTES = 4 << 30
"""Bytes that an item table may have more than the shards, for inputs that are left out."""
_DOCUMENT = re.compile(r"index/[^/]+\.idx|[^/]+\.(json|parquet|txt)")
_AT_A_TIME = 16
_FORGOTTEN_S = 30 * 24 * 3600.0
"""Seconds after its last use when a folder of documents is removed."""


@dataclass(frozen=True, slots=True)
class RemoteDataset:
    """A dataset as one listing of its objects shows it."""

    url: ObjectUrl
    objects: Mapping[str, ObjectFacts]
    """All objects by the names they have in the dataset; their own names are their keys."""

    def __str__(self) -> str:
        return str(self.url)

    def documents(self, wanted: Sequence[str] | None = None) -> Path:
        """Return a folder of this machine with copies of documents, checked or not.

        It is named for the ETags of all documents, so that no copy is ever stale.

        Args:
            wanted: names of those that must be there; by default all.

        """
        documents = {name: facts for name, facts in self.objects.items() if is_document(name)}
        state = "\n".join([str(self.url), *(f"{name} {one[:]}" for name, one in documents.items())])
        folder = cache_root() / "documents" / hashlib.sha256(state.encode()).hexdigest()[:32]
        chosen = documents.keys() if wanted is None else frozenset(wanted)
        missing = [
            name
            for name, facts in documents.items()
            if name in chosen and not _has_size(folder / name, facts.num_bytes)
        ]
        os.utime(make_cache(folder))
        for name in missing:
            num_bytes, most = self.objects[name].num_bytes, self._most_bytes(name)
            if num_bytes > most:
                what = f"has {num_bytes:,} bytes, more than the {most:,} it may have"
                raise self._error(name, what)
        if missing:
            _forget(folder.parent)
            with ThreadPoolExecutor(_AT_A_TIME, "shardprep-documents") as pool:
                list(pool.map(lambda name: self._copy(name, folder / name), missing))
        return folder

    def _copy(self, name: str, path: Path) -> None:
        facts, num_bytes = self.objects[name], 0
        make_cache(path.parent)
        with DurableFile(path, is_shared=True) as file:
            for block in objects.read_whole(self.url / facts.name, facts.etag):
                num_bytes += len(block)
                if num_bytes > facts.num_bytes:
                    break
                file.write(block)
            if num_bytes != facts.num_bytes:
                what = f"has {num_bytes:,} bytes or more, listed {facts.num_bytes:,}"
                raise self._error(name, what)
            file.commit()

    def _most_bytes(self, name: str) -> int:
        """Return the largest size in bytes that a document may have beside these shards."""
        if name == ITEMS_FILE:
            shards = sum(one.num_bytes for key, one in self.objects.items() if not is_document(key))
            return shards + _SPARE_ITEM_BYTES
        folder, _, file = name.rpartition("/")
        shard = self.objects.get(file.removesuffix(".idx")) if folder == INDEX_DIR else None
        return MAX_DOCUMENT_BYTES + (3 * shard.num_bytes if shard else 0)

    def manifest(self) -> Manifest:
        """Return the manifest."""
        folder = self.documents((MANIFEST_FILE,))
        with addressed(folder, self.url):
            return load_manifest(folder)

    def checked(self, manifest: Manifest, wanted: Sequence[str]) -> Path:
        """Return a folder with copies of documents that are what the manifest says."""
        for name in wanted:
            if name not in self.objects:
                raise self._error(name, "is not there")
        folder = self.documents((MANIFEST_FILE, *wanted))
        for name in manifest.files.keys() & set(wanted):
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != manifest.files[name]:
                raise self._error(name, "is not what the build wrote: its SHA-256 differs")
        return folder

    def shard(self, shard: Shard) -> RemoteShard:
        """Return a shard of the manifest, as it lies here."""
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


def is_document(name: str) -> bool:
    """Tell whether a file of a dataset is one of those beside the shards."""
    return _DOCUMENT.fullmatch(name) is not None


def _has_size(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes


def _forget(folder: Path) -> None:
    """Remove folders of documents that have not been used for long."""
    before = time.time() - _FORGOTTEN_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                shutil.rmtree(path, ignore_errors=True)


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


@contextlib.contextmanager
def documents_of(
    found: Path | RemoteDataset, manifest: Manifest, names: Sequence[str]
) -> Iterator[Path]:
    """Give a folder with documents of the dataset that has a manifest.

    They are opened in this block, whose errors name the dataset.

    Raises:
        ChangedError: another dataset has taken its place.
        DatasetError: as `RemoteDataset.checked`.

    """
    if isinstance(found, RemoteDataset):
        folder = found.checked(manifest, names)
        with addressed(folder, found):
            yield folder
    else:
        with Identity.of(found, manifest).unchanged():
            yield found


def opened(found: Path | RemoteDataset, manifest: Manifest) -> Identity | RemoteDataset:
    """Return what shards are opened by: the dataset that has this manifest, and no other."""
    return found if isinstance(found, RemoteDataset) else Identity.of(found, manifest)


def described(found: Path | RemoteDataset) -> tuple[Manifest, Schema]:
    """Return the manifest and the schema of a dataset."""
    if isinstance(found, RemoteDataset):
        manifest = found.manifest()
        folder = found.checked(manifest, (SCHEMA_FILE,))
        with addressed(folder, found.url):
            return manifest, read_schema(folder, manifest)
    manifest = load_manifest(found)
    with Identity.of(found, manifest).unchanged():
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
