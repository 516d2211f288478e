"""Bytes of shards in object storage: from their copies on this machine, else from the store itself.

Threads of the background copy one shard after the other. A read of a shard without a copy asks the
store for the wanted range alone, and waits for no copy; order and content are the same with and
without. Shards beyond the limit for copies are read from the store in every epoch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep.dataset.index import way_out
from shardprep.errors import DatasetError, StorageError
from shardprep.storage import objects
from shardprep.storage.shard_cache import LIMIT_VARIABLE, RemoteShard, StagedShards

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_READS = 32
"""Number of ranges asked for at a time: most of the seconds of one are waiting."""
_NUM_COPIES = 4
"""Number of threads that copy shards."""
_BUSY_S = 0.5
"""Seconds until a shard that another process copies is looked for again."""
_log = logging.getLogger("shardprep.reader")


class ByteRange(NamedTuple):
    """A run of bytes of a shard."""

    shard: str
    start: int
    num_bytes: int


class RemoteShards:
    """The wanted shards by name; many threads may read, and it may be pickled."""

    def __init__(self, shards: dict[str, RemoteShard], limit: int | None = None) -> None:
        """`limit` as for `StagedShards`."""
        self._shards = shards
        self._limit = limit
        self._staged = StagedShards(limit)
        self._lock = threading.Lock()
        self._begun: _Threads | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteShards, (self._shards, self._limit)

    @property
    def where(self) -> str:
        """The address of the dataset."""
        return self.located(next(iter(self._shards))).rpartition("/")[0]

    def way_out(self) -> str:
        """Return what to do where a record is damaged."""
        return way_out(self.where)

    def located(self, name: str) -> str:
        """Return the address of a shard."""
        return str(self._shards[name].url)

    def read(self, part: ByteRange) -> bytes | memoryview:
        """Return the bytes of a run, of the copy or of the store."""
        errors = self._threads(part.shard).errors
        if part.shard in errors:
            raise errors[part.shard]
        found = self.read_copy(part)
        return self._read_store(part) if found is None else found

    def read_copy(self, part: ByteRange) -> bytes | None:
        """Return the bytes of a run of the copy of its shard, None where there is no copy."""
        return self._staged.read(self._shards[part.shard], part.start, part.num_bytes)

    def has_copy(self, name: str) -> bool:
        """Tell whether there is a copy of a shard."""
        return self._staged.path(self._shards[name]).exists()

    def begin(self, part: ByteRange) -> Future[bytes | memoryview]:
        """Begin a `read` in a thread of its own; many go on side by side."""
        try:
            return self._threads(part.shard).readers.submit(self.read, part)
        except RuntimeError:  # the program ends: threads take no more
            found = Future[bytes | memoryview]()
            try:
                found.set_result(self.read(part))
            except Exception as error:
                found.set_exception(error)
            return found

    def read_anew(self, part: ByteRange) -> memoryview:
        """Return the bytes of a run that is damaged as the store has them; remove the copy."""
        self._staged.drop(self._shards[part.shard])
        return self._read_store(part)

    def _read_store(self, part: ByteRange) -> memoryview:
        shard = self._shards[part.shard]
        return objects.read_range(shard.url, shard.etag, part.start, part.num_bytes)

    def read_all(self, parts: Sequence[ByteRange]) -> list[bytes | memoryview]:
        """Return the bytes of several runs, asked for side by side."""
        return list(self._threads(parts[0].shard).readers.map(self.read, parts))

    def _threads(self, first: str) -> _Threads:
        """Return the threads of this process, begun with the shard that is wanted first."""
        begun = self._begun
        if begun is not None and begun.process == os.getpid():
            return begun
        with self._lock:
            if self._begun is None or self._begun.process != os.getpid():
                self._begun = _Threads(self._shards, self._staged, first)
            return self._begun


class _Threads:
    """Threads that read, and others that copy shards until all are here that fit."""

    def __init__(self, shards: dict[str, RemoteShard], staged: StagedShards, first: str) -> None:
        self.process = os.getpid()
        self.readers = ThreadPoolExecutor(NUM_READS, "shardprep-read")
        self.errors: dict[str, DatasetError] = {}
        """Faults of shards, by name."""
        waiting = deque(_that_fit(shards, staged, first))
        keep = frozenset(shards[name].sha256 for name in waiting)
        # What runs holds no reference to this: forgotten, it ends them.
        self._stop = threading.Event()
        work = partial(_copy, waiting, shards, staged, keep, self.errors, self._stop)
        for _ in range(min(_NUM_COPIES, len(waiting))):
            threading.Thread(target=work, name="shardprep-copy").start()

    def __del__(self) -> None:
        self._stop.set()


def _that_fit(shards: dict[str, RemoteShard], staged: StagedShards, first: str) -> list[str]:
    """Return the shards that may be kept, in their order from the first one on."""
    names = list(shards)
    begin = names.index(first)
    room = limit = staged.limit()
    found = []
    for name in names[begin:] + names[:begin]:
        if shards[name].num_bytes <= room:
            room -= shards[name].num_bytes
            found.append(name)
    if len(found) < len(names):
        _log.info(
            "%d of %d shards fit in the %.2f GB that may be kept here; the others are read from "
            "the store in each epoch (%s, ReadConfig.staging_bytes)",
            len(found), len(names), limit / 1e9, LIMIT_VARIABLE,
        )  # fmt: skip
    return found


def _copy(
    waiting: deque[str],
    shards: dict[str, RemoteShard],
    staged: StagedShards,
    keep: frozenset[str],
    errors: dict[str, DatasetError],
    stop: threading.Event,
) -> None:
    """Copy shards until none is waiting, the reader is forgotten, or the program ends.

    The threads are no daemons: a daemon that ends with the program would end in foreign code.
    """

    def is_over() -> bool:
        return stop.is_set() or not threading.main_thread().is_alive()

    with contextlib.suppress(IndexError):
        while not is_over():
            name = waiting.popleft()
            try:
                outcome = staged.stage(shards[name], keep, is_over)
            except DatasetError as error:
                errors[name] = error
            except (StorageError, OSError) as error:
                if not is_over():
                    _log.warning("%s is not kept here: %s", name, error)
                return
            else:
                if outcome == "full":
                    return
                if outcome == "busy":  # another process copies it
                    waiting.append(name)
                    stop.wait(_BUSY_S)
