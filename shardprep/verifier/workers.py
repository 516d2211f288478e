"""Shards on all cores: a process takes one after the other, and all of them count the bytes.

Kept apart from what reads the folder, so that a new process has little to import.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Protocol

from shardprep.errors import DatasetError
from shardprep.verifier.shard import check_shard

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

    from shardprep.verifier.shard import ShardReport, ShardTask

_WORKER_BYTES = 128 << 20
"""For each process; of fewer, its start takes longer than their reading."""
_TICK_S = 0.2


class Watcher(Protocol):
    """Whoever wants to know how far it is."""

    def begin(self, what: str, num_bytes: int | None) -> None:
        """So many bytes will be read."""

    def progress(self, num_bytes: int) -> None:
        """So many bytes are read."""


def check_shards(tasks: list[ShardTask], num_workers: int, watcher: Watcher) -> list[ShardReport]:
    """Return the report of each task, in their order.

    Raises:
        DatasetError: a worker died.

    """
    num_bytes = sum(task.num_bytes for task in tasks)
    watcher.begin("checking", num_bytes)
    num_workers = min(num_workers, len(tasks), num_bytes // _WORKER_BYTES)
    if num_workers > 1:
        return side_by_side(tasks, num_workers, watcher)
    done = 0

    def moved(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        watcher.progress(done)

    return [check_shard(task, moved) for task in tasks]


def side_by_side(tasks: list[ShardTask], num_workers: int, watcher: Watcher) -> list[ShardReport]:
    """Do what `check_shards` does, in processes of their own."""
    context = multiprocessing.get_context("spawn")
    done = context.Value("Q", 0)
    found: dict[int, ShardReport] = {}
    waiting = deque(enumerate(tasks))
    with ProcessPoolExecutor(num_workers, context, _begin, (done,)) as pool:
        running: dict[Future[ShardReport], int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < 2 * num_workers:
                    number, task = waiting.popleft()
                    running[pool.submit(_work, task)] = number
                for future in wait(running, _TICK_S, FIRST_COMPLETED).done:
                    found[running.pop(future)] = future.result()
                watcher.progress(done.value)
        except BrokenProcessPool as error:
            raise DatasetError(
                tasks[0].folder,
                "a process that read the shards was killed",
                "free some memory, or give fewer --workers",
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return [found[number] for number in range(len(tasks))]


_done: Synchronized[int]


def _begin(done: Synchronized[int]) -> None:
    """Begin a worker process. Ctrl-C ends it at once and without a word."""
    global _done  # noqa: PLW0603 - what the pool hands to a process outlives each call
    _done = done
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _work(task: ShardTask) -> ShardReport:
    return check_shard(task, _count)


def _count(num_bytes: int) -> None:
    with _done.get_lock():
        _done.value += num_bytes
