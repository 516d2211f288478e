"""Choose who fills batches: threads of this process, or worker processes once they are ready.

Workers start after the first batch, which they would delay. Until they are ready, threads fill
batches. Threads of one process wait for each other: each record takes about 60 microseconds under
the lock of the interpreter. So workers have few threads, and on four cores or more, workers are
faster than threads (see docs/performance.md, by cores).
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from shardprep.errors import DatasetError, RecordError
from shardprep.machine import free_bytes, usable_cores
from shardprep.reader.arrays.batch_maker import (
    IMAGES_A_TURN,
    BatchMaker,
    BatchName,
    BatchSource,
    Filling,
)
from shardprep.reader.arrays.memory import HostMemory, Slots
from shardprep.reader.arrays.worker_pool import StartError, WorkerPool
from shardprep.reader.config import warn
from shardprep.reader.decode.features import DecodedExamples, ExampleReader
from shardprep.reader.records.shards import NUM_READS

_FEW_CORES = 3
"""Number of cores up to which threads of one process are as fast as several processes."""
_LEAST_WORKERS = 4
_WORKER_THREADS = 2
_WINDOW = 2
"""Number of batches in preparation for each worker."""
_MEMORY_SHARE = 1 / 4
"""Largest share of free memory for batches in progress."""
_WHERE = "reader"


class Begun(Protocol):
    """A batch that is being filled."""

    @property
    def is_complete(self) -> bool:
        """Whether the batch is filled, without an error."""

    def result(self) -> Any:
        """Wait for the batch; return its values or transformed samples, always the same object."""


class _Filled:
    """A batch that threads of this process fill; `result` calls `at_end`, also if it fails."""

    def __init__(self, maker: BatchMaker, filling: Filling, at_end: Callable[[], None]) -> None:
        self._maker, self._filling, self._at_end = maker, filling, at_end
        self._values: Any = None

    @property
    def is_complete(self) -> bool:
        return self._filling.is_complete

    def result(self) -> Any:
        if self._values is None:
            try:
                values = self._maker.finish(self._filling)
            finally:
                self._at_end()
            self._values = self._maker.transformed(self._filling, values)
        return self._values


class Team:
    """The threads and worker processes of an iterator. Threads start with the first batch."""

    def __init__(
        self,
        source: BatchSource,
        note: Callable[[int, RecordError], None],
        memory: HostMemory | None = None,
        examples: ExampleReader | DecodedExamples | None = None,
    ) -> None:
        """Prepare threads and workers without starting any; `note` gets each replaced record.

        Threads decode `examples`, if given, instead of the examples of the source. Workers may know
        fewer image formats, so they then raise record errors instead of replacing records.
        """
        options, records = source.options, source.records
        self._source, self._note, self._memory = source, note, memory or HostMemory()
        self._on_error = options.on_error if examples is None else "raise"
        self._num_workers = _num_workers(
            options.num_workers,
            is_remote=records.is_remote,
            has_transform=source.transform is not None,
        )
        cores, waiting = _own_cores(), NUM_READS if records.in_order(source.order).waits else 1
        given = options.num_threads
        num_threads = max(cores, waiting) if given is None else given
        busy = -(-num_threads * IMAGES_A_TURN // options.batch_size) + 1
        usual = max(2, busy, _WINDOW * self._num_workers)
        self.prefetch = usual if options.prefetch is None else options.prefetch
        """Number of batches to begin ahead of use when all workers are ready."""
        self._few = max(2, busy)
        self._threads_a_worker = given or -(-num_threads // (self._num_workers or 1))
        # Without threads, `load` takes single elements: reusing their memory gains too little.
        num_kept = self.prefetch + 2 if num_threads else 0
        self._maker = BatchMaker(source, num_threads, num_kept, note, self._memory, examples)
        self._pool: Future[WorkerPool] | None = None
        """The pool of workers, which a thread starts."""
        self._may_start = False
        self._lock = threading.Lock()

    @property
    def num_ahead(self) -> int:
        """Number of batches to begin ahead of use.

        The number is small until workers are ready. Batches are taken in order, and the batches for
        many workers would keep the threads busy for seconds.
        """
        with self._lock:
            is_full = not self._num_workers or self._workers() is not None
        return self.prefetch if is_full else min(self.prefetch, self._few)

    def begin(self, name: BatchName) -> Begun:
        """Start a batch of at least one row; StartError if required workers fail. Thread-safe."""
        with self._lock:
            pool = self._workers()
        return self.begin_in_threads(name) if pool is None else pool.begin(name)

    def begin_in_threads(self, name: BatchName) -> Begun:
        return _Filled(self._maker, self._maker.begin(name), self._let_workers_start)

    def close(self) -> None:
        """Stop threads and processes. `begin` starts new ones."""
        self._maker.close()
        pool, self._pool = self._pool, None
        if pool is not None and pool.exception() is None:
            pool.result().close()
        self._memory.release()

    def _workers(self) -> WorkerPool | None:
        """Return the pool if it can take a batch, else None; start it after the first batch."""
        if self._may_start and self._num_workers and self._pool is None:
            self._pool = Future()
            threading.Thread(target=self._start, args=(self._pool,), name="shardprep-start").start()
        if self._pool is None or not self._pool.done():
            return None
        try:
            pool = self._pool.result()
            return pool if pool.has_room else None
        except StartError as error:
            if self._source.options.num_workers is not None:
                raise
            self._num_workers, self._pool = 0, None
            warn(f"{error}; threads fill the batches of this iterator")
            return None

    def _let_workers_start(self) -> None:
        """Let the next `begin` start the workers; starting them now would delay this batch."""
        self._may_start = True

    def _start(self, pool: Future[WorkerPool]) -> None:
        try:
            pool.set_result(self._started())
        except Exception as error:
            pool.set_exception(error)

    def _started(self) -> WorkerPool:
        source = self._source.for_workers(self._threads_a_worker, self._on_error)
        size = source.batch_bytes()
        if self._source.options.prefetch is None and (free := free_bytes()):
            self.prefetch = max(1, min(self.prefetch, int(_MEMORY_SHARE * free / size)))
        slots = Slots(size, self.prefetch + 2, self._memory)
        return WorkerPool(source, self._num_workers, slots, self._note)


def _own_cores() -> int:
    """Return the number of usable cores per process that torchrun started on this machine."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    number = int(given) if given.isdecimal() else 1
    return max(1, usable_cores() // max(1, number))


def _num_workers(given: int | None, *, is_remote: bool, has_transform: bool = False) -> int:
    cannot = "Windows has no memory files for workers" if os.name != "posix" else ""
    if multiprocessing.current_process().daemon:
        cannot = "this process is a worker of another library, which may not start processes"
    if given is None:
        cores = _own_cores()
        if cannot or is_remote:
            return 0
        if has_transform:  # each worker runs it in one thread
            return cores if cores > 1 else 0
        return 0 if cores <= _FEW_CORES else max(_LEAST_WORKERS, cores // _WORKER_THREADS)
    if given and cannot:
        raise DatasetError(_WHERE, f"num_workers={given}, but {cannot}", "give num_workers=0")
    return given
