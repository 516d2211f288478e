"""A whole dataset from object storage to a folder: complete or absent, taken up where it stopped.

It comes to be in `<version>.fetching/`. A shard has its name there only when every byte of it is
what the manifest says; on a later run it is checked and not got again. What a copy has lost that
was finished is got there too, and takes its place only when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE, DatasetFolder, index_name
from shardprep.dataset.manifest import MANIFEST_FILE, load_manifest
from shardprep.dataset.tfds_metadata import DOCUMENTS
from shardprep.errors import BuildError, DatasetError
from shardprep.storage import objects
from shardprep.storage.atomic_file import DurableFile, sync_folder, write_durably
from shardprep.storage.lock import LOCK_FILE, locked
from shardprep.storage.regular_file import sha256_of
from shardprep.storage.shard_cache import check_content, is_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest, Shard
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.storage.shard_cache import RemoteShard

_KEEP_FREE_BYTES = 64 << 20


class Watcher(Protocol):
    """Whoever wants to know how far it is."""

    def begin(self, what: str, num_bytes: int | None) -> None:
        """So many bytes will be got, or checked."""

    def progress(self, num_bytes: int) -> None:
        """So many bytes are here."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What has come of it."""

    path: Path
    manifest: Manifest
    was_there: bool
    """Whether there was a copy before."""
    num_new_bytes: int
    """Of shards that were got now."""
    renewed: tuple[str, ...] = ()
    """Files of the copy that was there which were got anew, sorted."""
    left_out: tuple[DatasetError, ...] = ()
    """Errors of the files that the copy lacks."""


def fetch_dataset(
    remote: RemoteDataset,
    to: Path,
    *,
    num_threads: int,
    watcher: Watcher,
    check: bool = False,
    damaged: bool = False,
) -> Fetched:
    """Make `<to>/<name>/<version>/` a copy of a dataset, or get anew what a copy has lost.

    Args:
        remote: the dataset.
        to: a folder of datasets.
        num_threads: shards that are got at a time.
        watcher: told how far it is.
        check: hash every file of a copy that is there; else they must be there, with their sizes.
        damaged: leave out what is damaged or missing there; else that is an error.

    Raises:
        DatasetError: a file of the dataset is missing, or not what the manifest says.
        BuildError: another dataset is there, it does not fit, or another fetch is at work.

    """
    manifest = remote.manifest()
    folder = DatasetFolder(to, manifest.name, manifest.version)
    copy = _Copy(remote, manifest, folder, watcher, skips_damaged=damaged)
    was_there = folder.final.exists()
    wanted = copy.lacking(hashed=check)
    if not wanted:
        return Fetched(folder.final, manifest, was_there=True, num_new_bytes=0)
    work = folder.fetching
    with _writing(work), locked(work, who="fetch", flag="--to") as is_held:
        if not was_there and folder.final.exists():  # another fetch has been at it
            was_there, wanted = True, copy.lacking(hashed=check)
        if is_held:
            _tidy(work, wanted)
        num_new_bytes = copy.get_shards(wanted, num_threads)
        copy.get_documents(wanted)
        copy.publish(was_there=was_there)
    renewed = tuple(sorted(copy.got)) if was_there else ()
    return Fetched(folder.final, manifest, was_there, num_new_bytes, renewed, tuple(copy.left_out))


@dataclass
class _Copy:
    """A dataset on its way to a folder."""

    remote: RemoteDataset
    manifest: Manifest
    folder: DatasetFolder
    watcher: Watcher
    skips_damaged: bool
    got: list[str] = field(default_factory=list)
    """Files that are whole in the folder of work."""
    left_out: list[DatasetError] = field(default_factory=list)

    def lacking(self, *, hashed: bool) -> set[str]:
        """Return the files that the finished copy has not, or not whole; all without one.

        Raises:
            BuildError: what is there is no copy of this dataset.

        """
        shards, documents = self.manifest.shards, self._documents()
        final = self.folder.final
        if not final.exists():
            return {*shards, *documents, MANIFEST_FILE}
        if not self.folder.is_finished or load_manifest(final) != self.manifest:
            raise BuildError(
                str(final),
                f"is there already, and is not {self.remote}",
                "choose another --to, or move it away",
            )
        if hashed:
            self.watcher.begin("checking", self.manifest.totals.num_bytes)
        found = set()
        num_bytes = 0
        for name, shard in shards.items():
            if not _is_whole(final / name, shard, hashed=hashed):
                found.add(name)
            num_bytes += shard.num_bytes
            if hashed:
                self.watcher.progress(num_bytes)
        return found | {name for name in documents if not self._has_document(name, hashed=hashed)}

    def _documents(self) -> set[str]:
        """Return the names of all documents: those that must be there, and those that are."""
        there = {name for name in self.remote.objects if is_document(name)}
        indexes = map(index_name, self.manifest.shards)
        return {SCHEMA_FILE, ITEMS_FILE, *DOCUMENTS, *indexes, *there} - {MANIFEST_FILE}

    def _has_document(self, name: str, *, hashed: bool) -> bool:
        path = self.folder.final / name
        if not path.is_file():
            return False
        if name in self.manifest.files:
            return sha256_of(path) == self.manifest.files[name]
        there = self.remote.objects.get(name)
        if there is None or path.stat().st_size != there.num_bytes:
            return there is None
        return (
            not hashed or path.read_bytes() == (self.remote.documents((name,)) / name).read_bytes()
        )

    def get_shards(self, wanted: set[str], num_threads: int) -> int:
        """Get shards side by side; return how many bytes came from the store."""
        shards = {}
        for name, shard in self.manifest.shards.items():
            if name in wanted:
                with self._whole():
                    shards[name] = self.remote.shard(shard)
        work = self.folder.fetching
        _check_room(work, shards)
        gauge = _Gauge(self.watcher, sum(shard.num_bytes for shard in shards.values()))
        with ThreadPoolExecutor(num_threads, "shardprep-fetch") as pool:
            jobs = {pool.submit(_fetch, work / n, one, gauge): n for n, one in shards.items()}
            try:
                for job in as_completed(jobs):
                    with self._whole():
                        job.result()
                        self.got.append(jobs[job])
            except BaseException:  # the first error ends the others at their next block
                gauge.is_over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return gauge.num_new

    def get_documents(self, wanted: set[str]) -> None:
        """Write the documents, those that are what the manifest says."""
        names = sorted(wanted & self._documents())
        self.remote.documents([name for name in names if name in self.remote.objects])
        for name in names:
            with self._whole():
                data = (self.remote.checked(self.manifest, (name,)) / name).read_bytes()
                path = self.folder.fetching / name
                path.parent.mkdir(exist_ok=True)
                write_durably(path, data)
                self.got.append(name)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Leave out what is not what the manifest says, or name the ways on."""
        try:
            yield
        except DatasetError as error:
            if self.skips_damaged:
                self.left_out.append(error)
                return
            way = (
                f"`shardprep verify {self.remote} --repair --source …` mends it there, "
                "`fetch --damaged` takes what is whole"
            )
            raise DatasetError(error.where, error.what, way) from error

    def publish(self, *, was_there: bool) -> None:
        """Give the files that are whole their places."""
        work, final = self.folder.fetching, self.folder.final
        if was_there:
            for name in self.got:
                (final / name).parent.mkdir(exist_ok=True)
                (work / name).replace(final / name)
                sync_folder((final / name).parent)
            shutil.rmtree(work)
        else:
            write_durably(work / MANIFEST_FILE, self.manifest.dumps().encode())
            work.rename(final)
            (final / LOCK_FILE).unlink()  # not before: until then it keeps others out
        sync_folder(final.parent)


def _tidy(work: Path, wanted: set[str]) -> None:
    """Remove what a dead process has left half done, and what is of another dataset."""
    for path in sorted(work.rglob("*"), reverse=True):
        name = path.relative_to(work).as_posix()
        if path.is_file() and name not in wanted and name != LOCK_FILE:
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


def _fetch(path: Path, shard: RemoteShard, gauge: _Gauge) -> None:
    if _is_whole(path, shard, hashed=True):
        gauge.add(shard.num_bytes, 0)
        return
    file = DurableFile(path, os.urandom(4).hex())
    digest, num_bytes = hashlib.sha256(), 0
    try:
        for block in objects.read_whole(shard.url, shard.etag, gauge.is_over.is_set):
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


def _is_whole(path: Path, shard: Shard | RemoteShard, *, hashed: bool) -> bool:
    if not path.is_file() or path.stat().st_size != shard.num_bytes:
        return False
    return not hashed or sha256_of(path) == shard.sha256


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
