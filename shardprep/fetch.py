"""A whole dataset from object storage to a folder: complete or absent, taken up where it stopped.

It comes to be in `<version>.fetching/`. A shard has its name there only when every byte of it is
what the manifest says; on a later run it is checked and not got again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardprep.dataset import ITEMS_FILE, SCHEMA_FILE, DatasetFolder, locked
from shardprep.durable import DurableFile, sync_folder, write_durably
from shardprep.errors import BuildError
from shardprep.manifest import MANIFEST_FILE, load_manifest
from shardprep.storage import objects
from shardprep.storage.staging import check_content, is_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.manifest import Manifest
    from shardprep.remote import RemoteDataset
    from shardprep.storage.staging import RemoteShard

_KEEP_FREE_BYTES = 64 << 20


class Watcher(Protocol):
    """Whoever wants to know how far it is."""

    def begin(self, what: str, num_bytes: int | None) -> None:
        """So many bytes will be got."""

    def progress(self, num_bytes: int) -> None:
        """So many bytes are here."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What has come of it."""

    path: Path
    manifest: Manifest
    was_there: bool
    num_new_bytes: int
    """Of shards that were got now."""


def fetch_dataset(
    remote: RemoteDataset, to: Path, *, num_threads: int, watcher: Watcher
) -> Fetched:
    """Make `<to>/<name>/<version>/` a copy of a dataset, unless it is there.

    Args:
        remote: the dataset.
        to: a folder of datasets.
        num_threads: shards that are got at a time.
        watcher: told how far it is.

    Raises:
        DatasetError: a file of the dataset is missing, or not what the manifest says.
        BuildError: another dataset is there, it does not fit, or another process is at work.

    """
    manifest = remote.manifest()
    folder = DatasetFolder(to, manifest.name, manifest.version)
    if folder.final.exists():
        _check_same(folder, manifest, remote)
        return Fetched(folder.final, manifest, was_there=True, num_new_bytes=0)
    shards = {name: remote.shard(shard) for name, shard in manifest.shards.items()}
    work = folder.fetching
    with _writing(work), locked(work):
        if folder.final.exists():  # another process was at it
            _check_same(folder, manifest, remote)
            return Fetched(folder.final, manifest, was_there=True, num_new_bytes=0)
        _tidy(work, remote)
        _check_room(work, shards)
        gauge = _Gauge(watcher, sum(shard.num_bytes for shard in shards.values()))
        _side_by_side(work, shards, gauge, num_threads)
        documents = [name for name in remote.objects if is_document(name) and name != MANIFEST_FILE]
        copies = remote.checked(manifest, (SCHEMA_FILE, ITEMS_FILE, *documents))
        for name in (*documents, MANIFEST_FILE):
            path = work / name
            path.parent.mkdir(exist_ok=True)
            write_durably(path, (copies / name).read_bytes())
        work.rename(folder.final)
        sync_folder(folder.final.parent)
    return Fetched(folder.final, manifest, was_there=False, num_new_bytes=gauge.num_new)


def _check_same(folder: DatasetFolder, manifest: Manifest, remote: RemoteDataset) -> None:
    if not folder.is_finished or load_manifest(folder.final) != manifest:
        raise BuildError(
            str(folder.final),
            f"is there already, and is not {remote}",
            "choose another --to, or move it away",
        )


def _tidy(work: Path, remote: RemoteDataset) -> None:
    """Remove what a dead process has left half done, and what is of another dataset."""
    for path in sorted(work.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(work).as_posix() not in remote.objects:
            path.unlink()


def _check_room(work: Path, shards: dict[str, RemoteShard]) -> None:
    missing = sum(shard.num_bytes for name, shard in shards.items() if not (work / name).exists())
    free = shutil.disk_usage(work).free
    if free < missing + _KEEP_FREE_BYTES:
        raise BuildError(
            str(work),
            f"has {free / 1e6:,.0f} MB left, {missing / 1e6:,.0f} MB are still to come",
            "free some space, or choose another --to",
        )


class _Gauge:
    """Counts the bytes that are here, for all threads."""

    def __init__(self, watcher: Watcher, num_bytes: int) -> None:
        self.is_over = threading.Event()
        self.num_new = 0
        self._num_bytes = 0
        self._watcher = watcher
        self._lock = threading.Lock()
        watcher.begin("fetching", num_bytes)

    def add(self, num_bytes: int, num_new: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            self.num_new += num_new
            self._watcher.progress(self._num_bytes)


def _side_by_side(
    work: Path, shards: dict[str, RemoteShard], gauge: _Gauge, num_threads: int
) -> None:
    """Get all shards; the first error ends the others at their next block."""
    with ThreadPoolExecutor(num_threads, "shardprep-fetch") as pool:
        try:
            jobs = [pool.submit(_fetch, work / n, shard, gauge) for n, shard in shards.items()]
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            gauge.is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(path: Path, shard: RemoteShard, gauge: _Gauge) -> None:
    if _is_whole(path, shard):
        gauge.add(shard.num_bytes, 0)
        return
    file = DurableFile(path)
    digest, num_bytes = hashlib.sha256(), 0
    try:
        for block in objects.read_whole(shard.url, shard.etag):
            if gauge.is_over.is_set():
                return
            digest.update(block)
            file.write(block)
            num_bytes += len(block)
            gauge.add(len(block), len(block))
        check_content(shard, num_bytes, digest.hexdigest())
        file.commit()
    finally:
        file.abandon()


def _is_whole(path: Path, shard: RemoteShard) -> bool:
    if not path.is_file() or path.stat().st_size != shard.num_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256


@contextlib.contextmanager
def _writing(work: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            str(error.filename or work),
            f"cannot be written ({error.strerror or os.strerror(error.errno or 0)})",
            "what is here is kept: free some space and run the same command again",
        ) from error
