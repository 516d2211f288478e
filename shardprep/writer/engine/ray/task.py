"""A task on a node of a Ray cluster, which writes shards and answers for each of them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import ray

from shardprep import profiling
from shardprep.errors import ShardprepError, is_short_of_memory
from shardprep.profiling import stage
from shardprep.writer.encode.chunk import EncodedChunk
from shardprep.writer.engine.job import ItemCounts, ShardJob, ShardSink
from shardprep.writer.engine.pool import run_chunks
from shardprep.writer.engine.ray.node_checks import Terms, difference, unfit
from shardprep.writer.engine.worker_main import STARVED, Work, encoded
from shardprep.writer.engine.worker_process import keep_buffers, limited, without_pandas
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.shard import done_receipt

Done = tuple[ItemCounts, dict[str, float]]
"""Counts of a shard that is committed, and seconds by stage."""

MOST_BEGUN = 2
"""Shards that a task is at: one is committed while the next one is encoded."""

_agreed: set[str] = set()
"""Tokens of the builds that this process has checked."""


@dataclass(frozen=True, slots=True)
class SharedJob:
    """Values that all tasks of a build share."""

    job: ShardJob
    terms: Terms
    folder: str
    """Folder that relative paths start from."""
    has_pandas: bool
    """Whether pandas can be imported where the build was started."""


def has_pandas() -> bool:
    """Return whether pandas can be imported here."""
    try:
        return importlib.util.find_spec("pandas") is not None
    except ModuleNotFoundError:
        return False


def probe(order: SharedJob) -> str:
    """Return the problem of this node, or ""; runs there."""
    if order.terms.token in _agreed:
        return ""
    with _in(order.folder):
        problem = difference(order.terms)
    if not problem:
        _agreed.add(order.terms.token)
    return problem


def write(
    order: SharedJob,
    shards: Sequence[ShardPlan],
    is_careful: bool,  # noqa: FBT001 - Ray
) -> Generator[Done | ShardprepError | OSError]:
    """Write shards; runs on a node. Errors are values, as Ray would wrap exceptions.

    A process that lacks memory exits, which counts as a death.

    """
    if not order.has_pandas:
        without_pandas()
    try:
        if problem := probe(order):
            yield unfit(ray.util.get_node_ip_address(), problem)
            return
        with (
            _in(order.folder),
            contextlib.closing(_written(order.job, shards, is_careful=is_careful)) as results,
        ):
            yield from results
    except Exception as error:
        if is_short_of_memory(error):
            os._exit(STARVED)
        if not isinstance(error, ShardprepError | OSError):
            raise
        yield error


def _written(job: ShardJob, shards: Sequence[ShardPlan], *, is_careful: bool) -> Generator[Done]:
    """Write shards, each committed while the next one is encoded; yield the result of each."""
    profiling.taken()
    begun: deque[tuple[Future[None], ItemCounts]] = deque()
    with ShardSink(job) as sink:
        for shard in shards:
            begun.append(_begun(job, sink, shard, is_careful=is_careful))
            if len(begun) == MOST_BEGUN:
                yield _committed(*begun.popleft())
        while begun:
            yield _committed(*begun.popleft())


def _begun(
    job: ShardJob, sink: ShardSink, shard: ShardPlan, *, is_careful: bool
) -> tuple[Future[None], ItemCounts]:
    """Encode a shard unless it is done; return its running commit."""
    commit: Future[None] = Future()
    receipt = done_receipt(job.folders, shard.name)
    if receipt is not None:
        commit.set_result(None)
        num_items = len(shard.items)
        return commit, ItemCounts(num_items, num_items - receipt.shard.num_records)
    counts = ItemCounts()

    def on_chunk(chunk: EncodedChunk) -> None:
        nonlocal commit, counts
        counts = counts.plus(ItemCounts.of(chunk))
        commit = sink.append(shard, chunk) or commit

    if is_careful:
        run_chunks(job.encoder, job.tasks(shard), 1, job.limits, on_chunk)
    else:
        _encode(job, shard, on_chunk)
    return commit, counts


def _committed(commit: Future[None], counts: ItemCounts) -> Done:
    """Wait for a commit; return the result of its shard."""
    _await_commit(commit)
    seconds = profiling.taken()
    seconds.pop("wait", None)
    if "store" in seconds:
        seconds["store"] += seconds.pop("write", 0.0)
    return counts, seconds


@stage("write")
def _await_commit(commit: Future[None]) -> None:
    error = commit.exception()
    if error is not None and not isinstance(error, Exception):  # a panic of the store's client
        os._exit(STARVED)
    commit.result()


def _encode(job: ShardJob, shard: ShardPlan, on_chunk: Callable[[EncodedChunk], None]) -> None:
    work = Work(job.encoder, job.limits, is_timed=job.is_timed)
    keep_buffers()
    with limited(job.limits):
        for task in job.tasks(shard):
            on_chunk(encoded(work, task))


@contextlib.contextmanager
def _in(folder: str) -> Generator[None]:
    """Change into a folder if it exists; else paths must be absolute.

    After an error the process stays there, as a commit in a thread may use relative paths.

    """
    if not Path(folder).is_dir():
        yield
        return
    before = Path.cwd()
    os.chdir(folder)
    yield
    os.chdir(before)
