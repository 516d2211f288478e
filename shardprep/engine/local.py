"""Chunks on the cores of this machine: spawned processes, one pipe each, one task at a time.

The parent always knows which worker holds which task, so a worker that dies is an error that
names its chunk, and nothing waits for it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from multiprocessing import connection
from typing import TYPE_CHECKING

from shardprep.chunk import EncodedChunk
from shardprep.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from shardprep.chunk import ChunkTask

    Encode = Callable[[ChunkTask], EncodedChunk]

_WINDOW = 2
"""Chunks begun and not yet taken, per worker: bounds memory, hides uneven chunks."""
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(512 << 20), "MALLOC_MMAP_THRESHOLD_": str(512 << 20)}
"""Keeps glibc from mapping and unmapping the decode buffers anew for every image."""


def usable_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_chunks(
    encode: Encode, tasks: Iterable[ChunkTask], num_workers: int
) -> Generator[EncodedChunk]:
    """Yield the result of each task, in the order of the tasks.

    Closing the iterator ends the workers.

    Raises:
        BuildError: a worker died or failed; names its chunk.

    """
    workers: list[_Worker] = []
    try:
        with _environment(_MALLOC):
            workers.extend(_Worker(encode) for _ in range(num_workers))
        yield from _in_order(workers, iter(tasks))
    finally:
        for worker in workers:
            worker.end()


def _in_order(workers: list[_Worker], tasks: Iterator[ChunkTask]) -> Iterator[EncodedChunk]:
    idle = list(workers)
    begun: deque[int] = deque()
    done: dict[int, EncodedChunk] = {}
    number = 0
    more = True
    while more or begun:
        while more and idle and len(begun) < _WINDOW * len(workers):
            task = next(tasks, None)
            if task is None:
                more = False
                break
            idle.pop().begin(number, task)
            begun.append(number)
            number += 1
        while begun and begun[0] in done:
            yield done.pop(begun.popleft())
        if more and idle and len(begun) < _WINDOW * len(workers):
            continue
        busy = {worker.pipe: worker for worker in workers if worker not in idle}
        for pipe in connection.wait(list(busy)) if busy else ():
            worker = busy[pipe]  # type: ignore[index]
            done[worker.number] = worker.result()
            idle.append(worker)


class _Worker:
    """One process and the task it holds."""

    def __init__(self, encode: Encode) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.number = -1
        self.task: ChunkTask | None = None
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(theirs, encode), name="shardprep worker", daemon=True
        )
        self.process.start()
        theirs.close()

    def begin(self, number: int, task: ChunkTask) -> None:
        self.number, self.task = number, task
        try:
            self.pipe.send(task)
        except OSError as error:
            raise self._died() from error

    def result(self) -> EncodedChunk:
        try:
            outcomes = pickle.loads(self.pipe.recv_bytes())  # noqa: S301 - from our own child
            data = self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(outcomes, str):
            raise BuildError(
                str(self.task), f"a worker failed: {outcomes}", "this is a fault of shardprep"
            )
        return EncodedChunk(data, outcomes)

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()

    def _died(self) -> BuildError:
        self.process.join(timeout=5)
        code = self.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        return BuildError(
            str(self.task),
            f"a worker died ({how})",
            "what is done is kept: free some memory and run the same command again",
        )


def _serve(pipe: Connection, encode: Encode) -> None:
    """Encode task after task until the parent hangs up. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _silence_stderr()
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                chunk = encode(task)
            except Exception:
                pipe.send_bytes(pickle.dumps(traceback.format_exc(limit=-3)))
                pipe.send_bytes(b"")
            else:
                pipe.send_bytes(pickle.dumps(chunk.outcomes))
                pipe.send_bytes(chunk.data)


def _silence_stderr() -> None:
    """Hide what C libraries print: libtiff has pages to say of a bad file, we one reason."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set yet, for children started meanwhile."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
