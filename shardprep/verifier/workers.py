"""Processes that check shards, on all cores.

This module is apart from those that read the folder, so that a process has little to import.
"""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from shardprep.errors import DatasetError
from shardprep.verifier.shard import check_shard

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

    from shardprep.dataset.fetch import Watcher
    from shardprep.verifier.shard import ShardReport, ShardTask

_WORKER_BYTES = 128 << 20
"""Bytes of shards per process: with fewer, its start takes longer than the reading."""
_TICK_S = 0.2
"""Seconds between two reports of progress."""


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
    """Return the report of each task, from processes of their own; raises as `check_shards`."""
    context = multiprocessing.get_context("spawn")
    done = context.Value("Q", 0)
    with ProcessPoolExecutor(num_workers, context, _begin, (done,)) as pool:
        try:
            jobs = [pool.submit(_work, task) for task in tasks]
            left = {*jobs}
            while left:
                found, left = wait(left, _TICK_S)
                for job in found:
                    job.result()
                watcher.progress(done.value)
            return [job.result() for job in jobs]
        except BrokenProcessPool as error:
            raise DatasetError(
                tasks[0].folder,
                "a process that read the shards was killed",
                "free some memory, or give fewer --workers",
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_done: Synchronized[int]


def _begin(done: Synchronized[int]) -> None:
    """Begin a worker process, which Ctrl-C ends at once and without a word."""
    global _done  # noqa: PLW0603 - what the pool hands to a process outlives each call
    _done = done
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _work(task: ShardTask) -> ShardReport:
    return check_shard(task, _count)


def _count(num_bytes: int) -> None:
    with _done.get_lock():
        _done.value += num_bytes
