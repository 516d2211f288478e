"""Local cache of remote shards: location, size limit and eviction order.

All processes share the copies. A complete copy is checked, then named with its SHA-256.
When the limit is reached, the least recently read copies are removed. On POSIX, a removed copy
stays readable while it is open.

Lock order: a process first locks the unfinished copy (`SHA256.part`), without waiting. It then
waits for `.lock`, which protects the total size, and releases `.lock` before it copies. While it
holds `.lock`, it only tries the locks of other unfinished copies, so no two processes wait for each
other. An unfinished copy already has its final size and counts as used space.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from shardprep.errors import DatasetError, StorageError, command_line
from shardprep.storage import objects
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.lock import has_name, take
from shardprep.storage.regular_file import Descriptor, OpenFiles, read_at
from shardprep.storage.url import ObjectUrl

LIMIT_VARIABLE = "SHARDPREP_CACHE_BYTES"
_KEEP_FREE_BYTES = 1 << 30
_SHARE_OF_FREE = 0.5
_UNFINISHED = ".part"
_OPEN_S = 1.0
"""Seconds until an unused copy is closed. Until then, a removed copy occupies disk space."""
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

Outcome = Literal["here", "busy", "full", "stopped"]
"""Result of `stage`: a copy exists ("here"), another process makes it ("busy"), no space is left
("full"), or `is_over` returned True ("stopped")."""


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A shard in object storage, with its expected content."""

    url: ObjectUrl
    etag: str
    num_bytes: int
    sha256: str


def copy_shard(
    shard: RemoteShard, write: Callable[[bytes], object], is_over: Callable[[], bool]
) -> bool:
    """Pass all bytes of a shard to `write` and return True; return False if `is_over` stopped it.

    DatasetError if the size or the SHA-256 is not the expected one.
    """
    digest, num_bytes = hashlib.sha256(), 0
    for block in objects.read_whole(shard.url, shard.etag, is_over):
        if is_over():
            return False
        digest.update(block)
        write(block)
        num_bytes += len(block)
    if num_bytes != shard.num_bytes:
        what = f"has {num_bytes:,} bytes, but the manifest says {shard.num_bytes:,}"
        raise _other(shard.url, what)
    if digest.hexdigest() != shard.sha256:
        what = f"has SHA-256 {digest.hexdigest()[:12]}…, the manifest says {shard.sha256[:12]}…"
        raise _other(shard.url, what)
    return True


class StagedShards:
    """The copies of remote shards on this machine."""

    def __init__(self, limit: int | None = None) -> None:
        """Open the cache, with `limit` bytes for all copies; None for the default of `limit()`."""
        self._folder = cache_root() / "shards"
        self._limit = limit
        folder = self._folder  # with `self`, a cycle would keep the files open
        self._files = OpenFiles(lambda name: os.open(folder / name, _FLAGS))
        self._since_s: dict[str, float] = {}
        """SHA-256 → time when the copy was opened; changed under the lock."""
        self._lock = threading.Lock()

    def path(self, shard: RemoteShard) -> Path:
        return self._folder / shard.sha256

    def limit(self) -> int:
        """Return the limit in bytes; StorageError if $SHARDPREP_CACHE_BYTES is not a number.

        The default is half of the free space, including the space of the copies.
        """
        if self._limit is not None:
            return self._limit
        said = os.environ.get(LIMIT_VARIABLE)
        if said:
            try:
                return int(float(said))
            except (ValueError, OverflowError) as error:
                what = f"{said!r} is not a number of bytes"
                raise StorageError(LIMIT_VARIABLE, what, "use a number such as 50e9") from error
        held = sum(size for _, size, _ in self._held())
        return int((shutil.disk_usage(make_cache(self._folder)).free + held) * _SHARE_OF_FREE)

    def read(self, shard: RemoteShard, start: int, num_bytes: int) -> bytes | None:
        """Return bytes from a local copy, or None if no complete copy exists."""
        try:
            data = read_at(self._file(shard).number, num_bytes, start)
        except OSError:
            return None
        if len(data) == num_bytes:
            return data
        self.drop(shard)
        return None

    def drop(self, shard: RemoteShard) -> None:
        self._files.drop(shard.sha256)
        self.path(shard).unlink(missing_ok=True)

    def _file(self, shard: RemoteShard) -> Descriptor:
        """Return the open copy, and store its time of use on the disk. OSError if it is missing."""
        name, now_s = shard.sha256, time.monotonic()
        if now_s - self._since_s.get(name, -_OPEN_S) >= _OPEN_S:
            os.utime(self.path(shard))
            with self._lock:
                for old, since_s in list(self._since_s.items()):
                    if now_s - since_s >= _OPEN_S:
                        del self._since_s[old]
                        self._files.drop(old)
                self._since_s[name] = now_s
        return self._files.get(name)

    def stage(
        self, shard: RemoteShard, keep: frozenset[str], is_over: Callable[[], bool]
    ) -> Outcome:
        """Copy a shard unless a copy exists; return the outcome. OSError if it cannot be written.

        Copies with a SHA-256 in `keep` are not evicted. Copying stops when `is_over` returns True.
        """
        final = self.path(shard)
        if final.exists():
            return "here"
        unfinished = make_cache(self._folder) / f"{shard.sha256}{_UNFINISHED}"
        with _alone(unfinished) as file:
            if file is None:
                return "busy"
            if final.exists():  # another process has just copied it
                return "here"
            if not self._make_room(unfinished, shard.num_bytes, keep):
                return "full"
            if not copy_shard(shard, file.write, is_over):
                return "stopped"
            file.flush()
            os.fsync(file.fileno())
            unfinished.replace(final)
        return "here"

    def _held(self) -> list[tuple[float, int, Path]]:
        """Return time of last use, bytes and path of each copy, unfinished copies included."""
        held: list[tuple[float, int, Path]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                # Another process may remove a copy in the meantime.
                with contextlib.suppress(FileNotFoundError):
                    if not entry.name.startswith("."):
                        facts = entry.stat()
                        held.append((facts.st_mtime, facts.st_size, Path(entry.path)))
        return held

    def _make_room(self, unfinished: Path, num_bytes: int, keep: frozenset[str]) -> bool:
        limit = self.limit()
        with (self._folder / ".lock").open("w") as lock:
            take(lock.fileno(), waits=True)
            held = self._held()
            total = sum(size for _, size, _ in held)
            free = shutil.disk_usage(self._folder).free
            excess = max(total + num_bytes - limit, num_bytes + _KEEP_FREE_BYTES - free)
            kept = {unfinished.name, *keep}
            old = [one for one in sorted(held) if one[2].name not in kept]
            if excess > sum(size for _, size, _ in old):
                return False
            for _, size, path in old:
                if excess <= 0:
                    break
                excess -= size if _given_up(path) else 0
            if excess > 0:
                return False
            os.truncate(unfinished, num_bytes)  # from now on it counts as used space
            return True


def _other(url: ObjectUrl, what: str) -> DatasetError:
    dataset = str(url).rpartition("/")[0]
    repair = command_line("verify", dataset, "--repair --source SOURCE")
    return DatasetError(str(url), what, f"run {repair}")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[BinaryIO | None]:
    """Yield a locked file, or None if another process has it. Remove it unless it was renamed."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        if not _taken(file, path):
            yield None
            return
        os.truncate(file.fileno(), 0)
        try:
            yield file
        finally:
            if has_name(file.fileno(), path):
                path.unlink()


def _taken(file: BinaryIO, path: Path) -> bool:
    try:
        return take(file.fileno()) and has_name(file.fileno(), path)
    except BlockingIOError:
        return False


def _given_up(path: Path) -> bool:
    """Remove a copy and return True; return False if another process is still writing it."""
    if path.suffix != _UNFINISHED:
        path.unlink(missing_ok=True)
        return True
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        if not _taken(file, path):
            return False
        path.unlink()
    return True
