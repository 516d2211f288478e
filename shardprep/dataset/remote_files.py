"""The files of a dataset in object storage, and local copies of its documents.

All reads rely on the names, sizes and ETags of one listing. `DatasetError`: a file is missing, or
its size or bytes are not the expected ones. `ChangedError`: a file was replaced since the listing.

Objects cannot be renamed, so a dataset that replaces a finished one is first written as a draft,
below its own prefix and with its manifest last. Then this manifest replaces the old manifest, which
puts the draft in force: files are read from the draft, or if it lacks them, under their final
names. Afterwards the files of the draft are copied to their final names.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.folder import INCOMPLETE_SUFFIX, INDEX_DIR, ITEMS_FILE, belongs, is_own
from shardprep.dataset.local_files import way_out
from shardprep.dataset.manifest import MANIFEST_FILE, Manifest, Shard, load_manifest, parse_manifest
from shardprep.errors import DatasetError, command_line
from shardprep.storage import objects
from shardprep.storage.atomic_file import DurableFile
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.objects import ListedObject
from shardprep.storage.shard_cache import RemoteShard
from shardprep.storage.url import ObjectUrl

_SPARE_ITEM_BYTES = 4 << 30
"""Maximum bytes of an item table beyond the size of the shards: it also lists skipped inputs."""
_DOCUMENT = re.compile(r"index/[^/]+\.idx|[^/]+\.(json|parquet|txt)")
_AT_A_TIME = 16
_UNUSED_S = 30 * 24 * 3600.0
"""Seconds without use after which a folder of copied documents is removed."""


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """The files of a dataset in object storage, from one listing. Can be pickled."""

    url: ObjectUrl
    objects: Mapping[str, ListedObject]
    """Objects by name in the dataset; `ListedObject.name` is the whole key below `url`."""
    is_remote: ClassVar[bool] = True

    def __str__(self) -> str:
        return str(self.url)

    @property
    def place(self) -> ObjectUrl:
        return self.url

    @property
    def manifest_mark(self) -> str:
        return self.objects[MANIFEST_FILE].etag

    def unchanged(self) -> AbstractContextManager[None]:
        """Return a context that checks nothing, because each read compares the object's ETag."""
        return contextlib.nullcontext()

    def with_manifest(self) -> tuple[Self, Manifest]:
        folder = self.copies((MANIFEST_FILE,))
        with self._named(folder):
            return self, load_manifest(folder)

    @contextlib.contextmanager
    def documents(self, manifest: Manifest, names: Sequence[str] = ()) -> Iterator[Path]:
        """Yield a folder with checked copies of documents `names`; errors name the objects."""
        for name in names:
            if name not in self.objects:
                raise self._error(name, "is missing")
        folder = self.copies((MANIFEST_FILE, *names))
        for name in [one for one in names if one in manifest.files]:
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != manifest.files[name]:
                raise self._error(name, "is not what the build wrote: its SHA-256 differs")
        with self._named(folder):
            yield folder

    def copies(self, names: Sequence[str] | None = None) -> Path:
        """Return a local folder with copies of the named documents (None for all).

        DatasetError if a document is too large or its copy incomplete; hashes are not checked. The
        name of the folder is a hash of the ETags of all documents, so copies are never stale.
        """
        documents = {name: facts for name, facts in self.objects.items() if is_document(name)}
        state = "\n".join([str(self.url), *(f"{name} {one[:]}" for name, one in documents.items())])
        folder = cache_root() / "documents" / hashlib.sha256(state.encode()).hexdigest()[:32]
        wanted = documents.keys() if names is None else frozenset(names)
        missing = [
            name
            for name, facts in documents.items()
            if name in wanted and not _has_size(folder / name, facts.num_bytes)
        ]
        os.utime(make_cache(folder))
        for name in missing:
            num_bytes, most = self.objects[name].num_bytes, self._most_bytes(name)
            if num_bytes > most:
                raise self._error(name, f"has {num_bytes:,} bytes, more than the allowed {most:,}")
        if missing:
            _remove_unused(folder.parent)
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
                what = f"has {num_bytes:,} bytes or more, but the listing says {facts.num_bytes:,}"
                raise self._error(name, what)
            file.commit()

    def _most_bytes(self, name: str) -> int:
        if name == ITEMS_FILE:
            shards = sum(one.num_bytes for key, one in self.objects.items() if not is_document(key))
            return shards + _SPARE_ITEM_BYTES
        folder, _, file = name.rpartition("/")
        shard = self.objects.get(file.removesuffix(".idx")) if folder == INDEX_DIR else None
        return MAX_DOCUMENT_BYTES + (3 * shard.num_bytes if shard else 0)

    @contextlib.contextmanager
    def _named(self, folder: Path) -> Iterator[None]:
        """In errors of the block, replace the path of `folder` by the address of the dataset."""
        try:
            yield
        except DatasetError as error:
            here, there = str(folder), str(self.url)
            raise DatasetError(
                error.where.replace(here, there), error.what, error.hint.replace(here, there)
            ) from error

    def location(self, name: str) -> str:
        facts = self.objects.get(name)
        return str(self.url / (name if facts is None else facts.name))

    def check_shards(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self.shard(shard)

    def shard(self, shard: Shard) -> RemoteShard:
        facts = self.objects.get(shard.name)
        if facts is None or facts.num_bytes != shard.num_bytes:
            here = "is missing" if facts is None else f"has {facts.num_bytes:,} bytes"
            raise self._error(
                shard.name, f"{here}, but the manifest says {shard.num_bytes:,} bytes"
            )
        return RemoteShard(self.url / facts.name, facts.etag, shard.num_bytes, shard.sha256)

    def read(self, shard: str, offset: int, num_bytes: int) -> bytes:
        """Return `num_bytes` of a shard from `offset`; DatasetError if missing or too short."""
        facts = self.objects.get(shard)
        if facts is not None and 0 <= offset <= offset + num_bytes <= facts.num_bytes:
            return bytes(objects.read_range(self.url / facts.name, facts.etag, offset, num_bytes))
        what = "is missing" if facts is None else "is shorter than items.parquet says"
        raise DatasetError(f"{self.url}/{shard}", what, way_out(str(self.url)))

    def blocks(self, shard: Shard, sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield a shard in blocks of these sizes, shorter at its end. Errors as in `read`."""
        source = self.shard(shard)
        received, data = objects.read_whole(source.url, source.etag), b""
        for size in sizes:
            rest, left = [data], size - len(data)
            while left > 0 and (block := next(received, b"")):
                rest.append(block)
                left -= len(block)
            data = b"".join(rest)
            yield data[:size]
            data = data[size:]

    def has_unfinished_build(self) -> bool:
        """Return whether the store now has an unfinished build of this version."""
        return bool(objects.listing(self.url._replace(key=self.url.key + INCOMPLETE_SUFFIX)))

    def _error(self, name: str, what: str) -> DatasetError:
        repair = command_line("verify", self.url, "--repair --source SOURCE")
        way = f"{repair} builds damaged files again"
        return DatasetError(str(self.url / name), what, way)


def is_document(name: str) -> bool:
    """Return whether a path in a dataset has the form of a document or an index."""
    return _DOCUMENT.fullmatch(name) is not None


def _has_size(path: Path, num_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == num_bytes


def _remove_unused(folder: Path) -> None:
    before = time.time() - _UNUSED_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                shutil.rmtree(path, ignore_errors=True)


DRAFT_PREFIX = ".draft-"
_SEAL = re.compile(rf"{re.escape(DRAFT_PREFIX)}[^/]*/{re.escape(MANIFEST_FILE)}")


def draft_in_force(
    url: ObjectUrl, listed: Mapping[str, ListedObject]
) -> tuple[str, Manifest] | None:
    """Return prefix and manifest of the draft in force, or None if no draft is in force.

    `listed` has all objects below `url`, by name. ChangedError if a manifest changed since then.
    """
    seals = [name for name in listed if _SEAL.fullmatch(name)]
    if MANIFEST_FILE not in listed or not seals:
        return None
    if listed[MANIFEST_FILE].num_bytes > MAX_DOCUMENT_BYTES:
        return None  # opening the dataset reports the error
    data = _read(url, listed[MANIFEST_FILE])
    try:
        manifest = parse_manifest(data, str(url / MANIFEST_FILE))
    except DatasetError:
        return None  # opening the dataset reports this error, too
    for seal in seals:
        if listed[seal].num_bytes == len(data) and _read(url, listed[seal]) == data:
            return seal.removesuffix(f"/{MANIFEST_FILE}"), manifest
    return None


def in_force(url: ObjectUrl, listed: Mapping[str, ListedObject]) -> Mapping[str, ListedObject]:
    """Return the objects of a dataset by name, preferring the files of a draft in force."""
    draft = draft_in_force(url, listed)
    if draft is None:
        return listed
    prefix, manifest = draft
    stay = {
        name: facts
        for name, facts in listed.items()
        if not name.startswith(f"{prefix}/") and (belongs(name, manifest) or not is_own(name))
    }
    return {**stay, **under(prefix, listed), MANIFEST_FILE: listed[MANIFEST_FILE]}


def under(prefix: str, listed: Mapping[str, ListedObject]) -> dict[str, ListedObject]:
    """Return the objects whose names start with `<prefix>/`, by the rest of the name."""
    start = f"{prefix}/"
    return {name.removeprefix(start): f for name, f in listed.items() if name.startswith(start)}


def _read(url: ObjectUrl, facts: ListedObject) -> bytes:
    return b"".join(objects.read_whole(url / facts.name, facts.etag))
