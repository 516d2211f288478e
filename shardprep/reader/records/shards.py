"""Read ranges of bytes of shards, in folders and in object storage ("the store").

Background threads copy shards from the store to this machine. Until a shard has a complete copy,
ranges of it are read from the store. Order and content are the same in both cases. Shards beyond
the limit for copies are read from the store in every epoch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from shardprep.dataset.local_files import LocalFiles, open_shard, way_out
from shardprep.dataset.manifest import MANIFEST_FILE, Shard
from shardprep.errors import DatasetError, StorageError
from shardprep.storage import objects
from shardprep.storage.regular_file import OpenFiles, read_at
from shardprep.storage.shard_cache import LIMIT_VARIABLE, RemoteShard, StagedShards

NUM_READS = 32
"""Number of concurrent requests, each in a thread that mostly waits."""
_NUM_COPIES = 4
"""Number of threads that copy shards."""
_BUSY_S = 0.5
"""Seconds until a shard that another process is copying is checked again."""
_log = logging.getLogger("shardprep.reader")
_T = TypeVar("_T")


class ByteRange(NamedTuple):
    """The `num_bytes` bytes from offset `start` of the shard named `shard`."""

    shard: str
    start: int
    num_bytes: int


def folder_of(path: str) -> str:
    """Return a shard's folder; `path` is the path or address of the shard."""
    return path.rpartition("/")[0]


def submitted(
    pool: ThreadPoolExecutor, function: Callable[..., _T], *arguments: object
) -> Future[_T]:
    """Call a function in `pool`, or in this thread at interpreter shutdown; return its future."""
    try:
        return pool.submit(function, *arguments)
    except RuntimeError:
        future = Future[_T]()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class LocalShards:
    """Shards of a folder, opened in each process at the first read.

    Shards are not memory-mapped: truncating one in place would kill the process by SIGBUS. After
    the dataset was replaced, open shards can still be read, but opening a shard fails.
    """

    is_remote: ClassVar[bool] = False

    def __init__(
        self, folder: Path, shards: Mapping[str, Shard], files: LocalFiles | None = None
    ) -> None:
        """Take manifest entries by shard name; `files` detects that the dataset was replaced."""
        self.folder = folder
        self.shards = shards
        self._local = files
        self._files = OpenFiles(partial(_opened, folder, shards, files))

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalShards, (self.folder, self.shards, self._local)

    def located(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def way_out(self, name: str) -> str:
        """Return a hint on what to do about a damaged record of a shard."""
        del name
        if (self.folder / MANIFEST_FILE).is_file():
            return way_out(self.folder)
        return f"remove {self.folder}, a cache that will be filled again"

    def read(self, part: ByteRange) -> bytes:
        """Return a range, shorter if the shard ends earlier; DatasetError if it cannot be read."""
        file = self._files.get(part.shard)  # this reference keeps it open
        try:
            return read_at(file.number, part.num_bytes, part.start)
        except OSError as error:
            where, what = self.located(part.shard), f"cannot be read ({error.strerror})"
            raise DatasetError(where, what, self.way_out(part.shard)) from error

    def read_all(self, parts: Sequence[ByteRange]) -> list[bytes]:
        return [self.read(part) for part in parts]

    def read_anew(self, part: ByteRange) -> bytes:
        return self.read(part)


def _opened(folder: Path, shards: Mapping[str, Shard], files: LocalFiles | None, name: str) -> int:
    with nullcontext() if files is None else files.unchanged():
        return open_shard(folder, shards[name])


class RemoteShards:
    """Shards in object storage by name. Thread-safe; can be pickled."""

    is_remote: ClassVar[bool] = True

    def __init__(self, shards: dict[str, RemoteShard], limit: int | None = None) -> None:
        self.shards = shards
        self.limit = limit
        self._staged = StagedShards(limit)
        self._lock = threading.Lock()
        self._process_threads: _Threads | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteShards, (self.shards, self.limit)

    def way_out(self, name: str) -> str:
        return way_out(folder_of(self.located(name)))

    def located(self, name: str) -> str:
        return str(self.shards[name].url)

    def read(self, part: ByteRange) -> bytes | memoryview:
        """Return a range from a local copy of its shard, or else from the store.

        An error of copying the shard is raised here, for example if the shard was replaced.
        """
        errors = self._threads(part.shard).errors
        if part.shard in errors:
            raise errors[part.shard]
        data = self.read_copy(part)
        return self._read_store(part) if data is None else data

    def read_copy(self, part: ByteRange) -> bytes | None:
        return self._staged.read(self.shards[part.shard], part.start, part.num_bytes)

    def has_copy(self, name: str) -> bool:
        return self._staged.path(self.shards[name]).exists()

    def begin(self, part: ByteRange) -> Future[bytes | memoryview]:
        return submitted(self._threads(part.shard).readers, self.read, part)

    def read_anew(self, part: ByteRange) -> memoryview:
        """Delete the local copy of a shard, and read a range from the store."""
        self._staged.drop(self.shards[part.shard])
        return self._read_store(part)

    def _read_store(self, part: ByteRange) -> memoryview:
        shard = self.shards[part.shard]
        return objects.read_range(shard.url, shard.etag, part.start, part.num_bytes)

    def read_all(self, parts: Sequence[ByteRange]) -> list[bytes | memoryview]:
        return list(self._threads(parts[0].shard).readers.map(self.read, parts))

    def _threads(self, first: str) -> _Threads:
        """Return the threads of this process; new ones copy shards in cyclic order from `first`."""
        threads = self._process_threads
        if threads is not None and threads.process == os.getpid():
            return threads
        with self._lock:
            threads = self._process_threads
            if threads is None or threads.process != os.getpid():
                threads = self._process_threads = _Threads(self.shards, self._staged, first)
            return threads


class JoinedShards:
    """Shards of several datasets, named by path or address. Can be pickled."""

    def __init__(self, stores: Iterable[Shards]) -> None:
        self.datasets: dict[str, int] = {}
        """Name of a shard → number of its dataset, from 0."""
        self._local: dict[str, tuple[LocalShards, str]] = {}
        """Name of a shard in a folder → its store, and its name in this store."""
        remote, limit = dict[str, RemoteShard](), None
        for number, store in enumerate(stores):
            if isinstance(store, JoinedShards):
                raise TypeError("the shards of several datasets are joined already")
            self.datasets |= {store.located(name): number for name in store.shards}
            if isinstance(store, LocalShards):
                self._local |= {store.located(name): (store, name) for name in store.shards}
            else:
                remote |= {store.located(name): shard for name, shard in store.shards.items()}
                limit = store.limit
        # One store for all remote shards, so that their copies do not evict each other.
        self._remote = RemoteShards(remote, limit)

    @property
    def is_remote(self) -> bool:
        return bool(self._remote.shards)

    def located(self, name: str) -> str:
        return name

    def way_out(self, name: str) -> str:
        store, own = self._local.get(name, (self._remote, name))
        return store.way_out(own)

    def read(self, part: ByteRange) -> bytes | memoryview:
        store, name = self._local.get(part.shard, (self._remote, part.shard))
        return store.read(part._replace(shard=name))

    def read_all(self, parts: Sequence[ByteRange]) -> list[bytes | memoryview]:
        begun = [None if part.shard in self._local else self.begin(part) for part in parts]
        return [
            self.read(part) if future is None else future.result()
            for part, future in zip(parts, begun, strict=True)
        ]

    def read_anew(self, part: ByteRange) -> bytes | memoryview:
        return self.read(part) if part.shard in self._local else self._remote.read_anew(part)

    def read_copy(self, part: ByteRange) -> bytes | memoryview | None:
        """Return a range from this machine, or None if its shard has no copy here."""
        return self.read(part) if part.shard in self._local else self._remote.read_copy(part)

    def has_copy(self, name: str) -> bool:
        return name in self._local or self._remote.has_copy(name)

    def begin(self, part: ByteRange) -> Future[bytes | memoryview]:
        """Return the future of `read` in a thread, for a shard in object storage."""
        return self._remote.begin(part)


Shards = LocalShards | RemoteShards | JoinedShards
"""Shards by name: in a folder, in object storage, or of several datasets."""


class _Threads:
    """Threads that read ranges, and threads that copy shards up to the limit for copies."""

    def __init__(self, shards: dict[str, RemoteShard], staged: StagedShards, first: str) -> None:
        self.process = os.getpid()
        self.readers = ThreadPoolExecutor(NUM_READS, "shardprep-read")
        self.errors: dict[str, DatasetError] = {}
        """Name of a shard that could not be copied → the error."""
        waiting = deque(_fitting(shards, staged, first))
        keep = frozenset(shards[name].sha256 for name in waiting)
        # The work of the threads holds no reference to this object, so that `__del__` can run.
        self._stop = threading.Event()
        work = partial(_copy, waiting, shards, staged, keep, self.errors, self._stop)
        for _ in range(min(_NUM_COPIES, len(waiting))):
            threading.Thread(target=work, name="shardprep-copy").start()

    def __del__(self) -> None:
        self._stop.set()


def _fitting(shards: dict[str, RemoteShard], staged: StagedShards, first: str) -> list[str]:
    """Return the shards whose copies fit the limit, in cyclic order from `first`."""
    names = list(shards)
    begin = names.index(first)
    room = limit = staged.limit()
    fitting = []
    for name in names[begin:] + names[:begin]:
        if shards[name].num_bytes <= room:
            room -= shards[name].num_bytes
            fitting.append(name)
    if len(fitting) < len(names):
        _log.info(
            "%d of %d shards fit in the %.2f GB for local copies; the others are read from the "
            "store in each epoch (%s, ReadConfig.staging_bytes)",
            len(fitting), len(names), limit / 1e9, LIMIT_VARIABLE,
        )  # fmt: skip
    return fitting


def _copy(
    waiting: deque[str],
    shards: dict[str, RemoteShard],
    staged: StagedShards,
    keep: frozenset[str],
    errors: dict[str, DatasetError],
    stop: threading.Event,
) -> None:
    """Copy shards until none waits, storage fails, the limit is reached, or `stop` is set."""
    # The threads are not daemons: the interpreter would kill daemons inside native code at exit.

    def is_over() -> bool:
        return stop.is_set() or not threading.main_thread().is_alive()

    with suppress(IndexError):
        while not is_over():
            name = waiting.popleft()
            try:
                outcome = staged.stage(shards[name], keep, is_over)
            except DatasetError as error:
                errors[name] = error
            except (StorageError, OSError) as error:
                if not is_over():
                    _log.warning("no local copy of %s: %s", name, error)
                return
            else:
                if outcome == "full":
                    return
                if outcome == "busy":  # another process copies it
                    waiting.append(name)
                    stop.wait(_BUSY_S)
