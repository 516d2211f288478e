"""Copy a dataset from object storage to a folder; an interrupted copy can be resumed.

The copy is made in `<version>.fetching/`, which is renamed when it is complete. A shard gets its
name in this folder only if its bytes match the manifest, so that a later run hashes the shard and
does not fetch it again. Files that a finished copy lacks are fetched into this folder, then moved.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardprep.dataset.card import Card
from shardprep.dataset.folder import (
    FETCHING_SUFFIX,
    ITEMS_FILE,
    SCHEMA_FILE,
    has_manifest,
    index_name,
)
from shardprep.dataset.manifest import MANIFEST_FILE, Manifest, Shard, load_manifest
from shardprep.dataset.remote_files import RemoteFiles, is_document
from shardprep.dataset.tfds_metadata import DOCUMENTS
from shardprep.errors import BuildError, DatasetError, OptionName, command_line
from shardprep.progress import Watch
from shardprep.storage.atomic_file import DurableFile, sync_folder, write_durably
from shardprep.storage.lock import LOCK_FILE, locked
from shardprep.storage.regular_file import sha256_of
from shardprep.storage.shard_cache import RemoteShard, copy_shard
from shardprep.storage.space import megabytes, resumable_writes, shortage


@dataclass(frozen=True, slots=True, repr=False)
class Fetched(Card):
    """A copy of a dataset, with the files that this run fetched or left out."""

    path: Path
    manifest: Manifest
    was_there: bool
    num_new_bytes: int
    renewed: tuple[str, ...] = ()
    left_out: tuple[DatasetError, ...] = ()
    address: str = ""

    @property
    def num_bytes(self) -> int:
        return self.manifest.totals.num_bytes

    def facts(self) -> dict[str, Any]:
        lines: dict[str, Any] = {
            "at": str(self.path),
            "from": self.address,
            **self.manifest.facts(),
            "fetched": megabytes(self.num_new_bytes),
            "downloaded again": self.renewed,
            "left out": [str(error) for error in self.left_out],
        }
        return {title: value for title, value in lines.items() if value}


def fetch_dataset(
    remote: RemoteFiles,
    to: Path,
    *,
    num_threads: int,
    watcher: Watch,
    check: bool = False,
    damaged: bool = False,
) -> Fetched:
    """Copy a dataset to `<to>/<name>/<version>/`, or fetch the files that an existing copy lacks.

    With `check`, all bytes of an existing copy are compared. Otherwise `schema.json` and
    `items.parquet` are hashed, other files compared by size. `damaged` skips damaged or missing
    remote files, which are a DatasetError otherwise. BuildError if the folder has another dataset
    or is in use, or the disk is too full.
    """
    _, manifest = remote.with_manifest()
    final = to / manifest.name / manifest.version
    work = final.with_name(final.name + FETCHING_SUFFIX)
    copy = _FetchedFiles(remote, manifest, final, work, watcher, skips_damaged=damaged)
    was_there = final.exists()
    wanted = copy.lacking(hashed=check)
    if not wanted:
        return Fetched(final, manifest, was_there=True, num_new_bytes=0, address=str(remote))
    with resumable_writes(work), locked(work, who="fetch", flag=OptionName("to")) as is_held:
        if not was_there and final.exists():  # another fetch finished first
            was_there, wanted = True, copy.lacking(hashed=check)
        if is_held:
            _remove_others(work, wanted)
        copy.get_shards(wanted, num_threads)
        copy.get_documents(wanted)
        copy.publish(was_there=was_there)
    return Fetched(
        final,
        manifest,
        was_there,
        copy.num_new_bytes,
        renewed=tuple(sorted(copy.got)) if was_there else (),
        left_out=tuple(copy.left_out),
        address=str(remote),
    )


@dataclass
class _FetchedFiles:
    remote: RemoteFiles
    manifest: Manifest
    final: Path
    """Folder of the copy; it exists only if the copy is complete."""
    work: Path
    watcher: Watch
    skips_damaged: bool
    got: list[str] = field(default_factory=list)
    """Names of complete files in the working folder."""
    left_out: list[DatasetError] = field(default_factory=list)
    num_new_bytes: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lacking(self, *, hashed: bool) -> set[str]:
        """Return names of missing or damaged files of the copy; BuildError for another dataset."""
        final, names = self.final, [*self.manifest.shards, *self._documents()]
        if not final.exists():
            return set(names)
        if not has_manifest(final) or load_manifest(final) != self.manifest:
            raise BuildError(
                str(final),
                f"has another dataset or another build than {self.remote}",
                f"choose another {OptionName('to')}, or move this folder away",
            )
        if hashed:
            self.watcher.start("checking", self.manifest.totals.num_bytes, "bytes")
        return {name for name in names if not self._is_here(name, hashed=hashed)}

    def _count(self, num_bytes: int, num_new_bytes: int = 0) -> None:
        with self.lock:
            self.num_new_bytes += num_new_bytes
            self.watcher.advance(num_bytes)

    def _documents(self) -> set[str]:
        there = {name for name in self.remote.objects if is_document(name)}
        indexes = map(index_name, self.manifest.shards)
        return {SCHEMA_FILE, ITEMS_FILE, *DOCUMENTS, *indexes, *there} - {MANIFEST_FILE}

    def _is_here(self, name: str, *, hashed: bool) -> bool:
        path = self.final / name
        if name in self.manifest.shards:
            shard = self.manifest.shards[name]
            if hashed:
                self._count(shard.num_bytes)
            return _is_whole(path, shard, hashed=hashed)
        if not path.is_file():
            return False
        if name in self.manifest.files:
            return sha256_of(path) == self.manifest.files[name]
        there = self.remote.objects.get(name)
        if there is None or not hashed:
            return there is None or path.stat().st_size == there.num_bytes
        return path.read_bytes() == (self.remote.copies((name,)) / name).read_bytes()

    def get_shards(self, wanted: set[str], num_threads: int) -> None:
        work, shards = self.work, {}
        for name, shard in self.manifest.shards.items():
            if name in wanted:
                with self._leaving_out():
                    shards[name] = self.remote.shard(shard)
        _check_room(work, shards)
        self.watcher.start("fetching", sum(shard.num_bytes for shard in shards.values()), "bytes")
        with ThreadPoolExecutor(num_threads, "shardprep-fetch") as pool:
            jobs = {pool.submit(self._fetch, work / n, one): n for n, one in shards.items()}
            try:
                for job in as_completed(jobs):
                    with self._leaving_out():
                        job.result()
                        self.got.append(jobs[job])
            except BaseException:
                self.is_over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch(self, path: Path, shard: RemoteShard) -> None:
        if _is_whole(path, shard, hashed=True):
            self._count(shard.num_bytes)
            return
        with DurableFile(path, is_shared=True) as file:

            def write(block: bytes) -> None:
                file.write(block)
                self._count(len(block), len(block))

            if copy_shard(shard, write, self.is_over.is_set):
                file.commit()

    def get_documents(self, wanted: set[str]) -> None:
        names = sorted(wanted & self._documents())
        self.remote.copies([name for name in names if name in self.remote.objects])
        for name in names:
            with self._leaving_out():
                with self.remote.documents(self.manifest, (name,)) as copies:
                    data = (copies / name).read_bytes()
                path = self.work / name
                path.parent.mkdir(exist_ok=True)
                write_durably(path, data)
                self.got.append(name)

    @contextlib.contextmanager
    def _leaving_out(self) -> Iterator[None]:
        """Add a DatasetError of the block to `left_out` if `skips_damaged`, else raise it."""
        try:
            yield
        except DatasetError as error:
            if self.skips_damaged:
                self.left_out.append(error)
                return
            way = command_line("verify", self.remote, "--repair --source SOURCE")
            way += f" repairs the dataset, and {OptionName('damaged')} leaves damaged files out"
            raise DatasetError(error.where, error.what, way) from error

    def publish(self, *, was_there: bool) -> None:
        work, final = self.work, self.final
        if was_there:
            for name in self.got:
                (final / name).parent.mkdir(exist_ok=True)
                (work / name).replace(final / name)
                sync_folder((final / name).parent)
            _remove_others(work, set())
            # The lock is removed last: without it, another fetch may write into the folder.
            (work / LOCK_FILE).unlink()
            with contextlib.suppress(OSError):
                work.rmdir()
        else:
            write_durably(work / MANIFEST_FILE, self.manifest.dumps().encode())
            work.rename(final)
            (final / LOCK_FILE).unlink()  # last: it keeps other fetches out
        sync_folder(final.parent)


def _remove_others(work: Path, wanted: set[str]) -> None:
    for path in sorted(work.rglob("*"), reverse=True):
        name = path.relative_to(work).as_posix()
        if path.is_dir():
            with contextlib.suppress(OSError):  # wanted files are in it
                path.rmdir()
        elif name not in wanted and name != LOCK_FILE:
            path.unlink()


def _check_room(work: Path, shards: dict[str, RemoteShard]) -> None:
    missing = sum(shard.num_bytes for name, shard in shards.items() if not (work / name).exists())
    if lacking := shortage(work, missing):
        way = f"free some space, or choose another {OptionName('to')}"
        raise BuildError(str(work), lacking, way)


def _is_whole(path: Path, shard: Shard | RemoteShard, *, hashed: bool) -> bool:
    if not path.is_file() or path.stat().st_size != shard.num_bytes:
        return False
    return not hashed or sha256_of(path) == shard.sha256
