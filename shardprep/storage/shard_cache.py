"""Copies of shards on this machine, made once and shared by all processes.

A shard lies under the SHA-256 of what it holds, which is seen to before it has that name. Shards
are given up, those that were read longest ago first, so that all together stay within a limit; one
that is open stays readable, as any file of POSIX.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardprep.errors import DatasetError, StorageError
from shardprep.storage import objects
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.lock import has_name, take
from shardprep.storage.open_files import OpenFiles
from shardprep.storage.regular_file import read_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from shardprep.storage.regular_file import Descriptor
    from shardprep.storage.url import ObjectUrl

LIMIT_VARIABLE = "SHARDPREP_CACHE_BYTES"
_KEEP_FREE_BYTES = 1 << 30
_SHARE_OF_FREE = 0.5
_UNFINISHED = ".part"
_OPEN_S = 1.0
"""Seconds for which a copy stays open while others are read: one that is given up keeps its space
until then."""
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

Outcome = Literal["here", "busy", "full", "stopped"]
"""Outcomes of `stage`: copied, another process is copying it, no room, stopped."""


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A shard in object storage, and what it must hold."""

    url: ObjectUrl
    etag: str
    num_bytes: int
    sha256: str
    """Hex."""


def copy_shard(
    shard: RemoteShard, write: Callable[[bytes], object], is_over: Callable[[], bool]
) -> bool:
    """Pass the bytes of a shard on to `write`; False where that `is_over` before their end."""
    digest, num_bytes = hashlib.sha256(), 0
    for block in objects.read_whole(shard.url, shard.etag, is_over):
        if is_over():
            return False
        digest.update(block)
        write(block)
        num_bytes += len(block)
    if num_bytes != shard.num_bytes:
        what = f"has {num_bytes:,} bytes, the manifest says {shard.num_bytes:,}"
        raise _other(shard.url, what)
    if digest.hexdigest() != shard.sha256:
        what = f"has SHA-256 {digest.hexdigest()[:12]}…, the manifest says {shard.sha256[:12]}…"
        raise _other(shard.url, what)
    return True


class StagedShards:
    """The copies of shards on this machine."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit` bytes for all copies; None for what SHARDPREP_CACHE_BYTES says, else for half of
        what the disk could hold of them."""  # noqa: D205, D209 - one sentence
        self._folder = cache_root() / "shards"
        self._limit = limit
        self._files = OpenFiles(partial(_opened, self._folder))
        self._since_s: dict[str, float] = {}
        """When each copy was opened, by hash; changed under the lock."""
        self._lock = threading.Lock()

    def path(self, shard: RemoteShard) -> Path:
        """Return where the copy of a shard is, if there is one."""
        return self._folder / shard.sha256

    def limit(self) -> int:
        """Return the bytes that all copies may take together."""
        if self._limit is not None:
            return self._limit
        said = os.environ.get(LIMIT_VARIABLE)
        if said:
            try:
                return int(float(said))
            except (ValueError, OverflowError) as error:
                raise StorageError(
                    LIMIT_VARIABLE, f"{said!r} is no number of bytes", "use one such as 50e9"
                ) from error
        held = sum(size for _, size, _ in self._held())
        return int((shutil.disk_usage(make_cache(self._folder)).free + held) * _SHARE_OF_FREE)

    def read(self, shard: RemoteShard, start: int, num_bytes: int) -> bytes | None:
        """Return bytes of the copy of a shard, None where there is no copy."""
        try:
            found = read_at(self._file(shard).number, num_bytes, start)
        except OSError:
            return None
        if len(found) == num_bytes:
            return found
        self.drop(shard)
        return None

    def drop(self, shard: RemoteShard) -> None:
        """Remove the copy of a shard."""
        self._files.drop(shard.sha256)
        self.path(shard).unlink(missing_ok=True)

    def _file(self, shard: RemoteShard) -> Descriptor:
        """Return the copy, noting on the disk that it is read. Raises as `os.open`."""
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
        """Make the copy of a shard, unless it is there.

        Args:
            shard: what is to be copied.
            keep: hashes of shards that are not given up for it.
            is_over: asked again and again whether to stop.

        Raises:
            StorageError: it cannot be read.
            DatasetError: it is not what the manifest says.
            OSError: it cannot be written.

        """
        final = self.path(shard)
        if final.exists():
            return "here"
        unfinished = make_cache(self._folder) / f"{shard.sha256}{_UNFINISHED}"
        with _alone(unfinished) as file:
            if file is None:
                return "busy"
            if final.exists():  # another has just been here
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
        """Return time of last use, bytes and path of all copies, whole and in the making."""
        held: list[tuple[float, int, Path]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                # Another process may give a copy up while these are counted.
                with contextlib.suppress(FileNotFoundError):
                    if not entry.name.startswith("."):
                        facts = entry.stat()
                        held.append((facts.st_mtime, facts.st_size, Path(entry.path)))
        return held

    def _make_room(self, unfinished: Path, num_bytes: int, keep: frozenset[str]) -> bool:
        """Give a copy its size, for which older ones may have to go."""
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
            os.truncate(unfinished, num_bytes)  # from now on it counts
            return True


def _opened(folder: Path, name: str) -> int:
    return os.open(folder / name, _FLAGS)


def _other(url: ObjectUrl, what: str) -> DatasetError:
    return DatasetError(
        str(url), what, "`shardprep verify --repair` names all that is wrong, and builds it again"
    )


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[BinaryIO | None]:
    """Give an empty file that nobody else is writing, None where somebody is.

    It is gone in the end, unless it was renamed; one that a dead process has left is taken over.
    """
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
    """Lock a file; False where it cannot be, or it has lost its name meanwhile."""
    try:
        return take(file.fileno()) and has_name(file.fileno(), path)
    except BlockingIOError:
        return False


def _given_up(path: Path) -> bool:
    """Remove a copy, or what a dead process has left of one; False where it is being written."""
    if path.suffix != _UNFINISHED:
        path.unlink(missing_ok=True)
        return True
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        if not _taken(file, path):
            return False
        path.unlink()
    return True
