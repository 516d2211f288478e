"""The engine on a Ray cluster: tasks write shards on its nodes.

A task writes some shards one after the other, and answers for each committed shard while it encodes
the next one. It encodes in Ray's worker process. If this process dies, its shards are tried again.
Shards that were in progress are then encoded in a separate process of a task, so that an item that
crashes the process costs only itself, as on one machine. Ray's own retries are off, because this
module counts the deaths.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardprep import profiling
from shardprep.errors import BuildError, ShardprepError, is_short_of_memory
from shardprep.processes.worker_process import keep_buffers, limited, without_pandas
from shardprep.profiling import stage
from shardprep.writer.chunk import EncodedChunk
from shardprep.writer.engine.job import ItemCounts, OnProgress, ShardJob, ShardSink
from shardprep.writer.engine.pool import run_chunks
from shardprep.writer.engine.ray_cluster import Node, Terms, difference, nodes, terms, unfit
from shardprep.writer.engine.worker_main import STARVED, Work, encoded
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.shard import done_receipt

Asked = dict[Any, Node]
"""Ray reference to an answer → node that was asked. The answer is a problem of the node, or ""."""

_MODULES = ("shardprep.writer.engine.ray_engine", "shardprep.catalog.catalog")
"""Modules that a worker of each node imports while the plan is made."""
_MOST_SHARDS = 8
_MOST_DEATHS = 4
"""Number of workers that die at one shard before the build fails: the cluster is at fault."""
_BASE_BYTES = 300_000_000
"""Memory in bytes of a process with its libraries and a chunk of records."""
_BYTES_A_BYTE = 32
"""Memory per byte of an image file: a JPEG decodes to ten times its bytes, in several copies."""
_ANSWER_S = 60.0
_MOST_REPEATS = 3
_LOOK_S = 10.0
"""Seconds without a finished shard after which the nodes are counted again."""
_END_S = 10.0
_DEATHS = (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError)


def by_shards(
    job: ShardJob,
    shards: Sequence[ShardPlan],
    num_workers: int,
    on_progress: OnProgress,
    asked: Asked | None = None,
) -> None:
    """Write the shards on the connected cluster; an `Engine`.

    `asked` is the result of an earlier `ask_versions`. At most `num_workers` tasks are in progress.
    Progress is reported shard by shard. An error cancels the other tasks; finished shards stay.
    """
    with terms(shards, job.folders.state) as agreed:
        order = SharedJob(job, agreed, str(Path.cwd()), has_pandas())
        _check(ask_versions(nodes()) if asked is None else asked)
        _check(_ask(nodes(), probe, order))
        memory = min(_memory(job, shards), max(node.memory_bytes for node in nodes()))
        remote = ray.remote(
            num_cpus=1,
            memory=memory or None,
            max_retries=0,
            retry_exceptions=False,
            num_returns="streaming",
        )(write)
        shared = ray.put(order)

        def submit(run: Sequence[ShardPlan], is_careful: bool) -> Any:  # noqa: FBT001 - Ray
            named = remote.options(name=f"shardprep {run[0].name}")
            return named.remote(shared, run, is_careful)

        running: dict[Any, deque[ShardPlan]] = {}
        try:
            _run(submit, deque(shards), num_workers, running, on_progress)
        finally:
            _cancel(running)


def _run(
    submit: Callable[[Sequence[ShardPlan], bool], Any],
    todo: deque[ShardPlan],
    num_workers: int,
    running: dict[Any, deque[ShardPlan]],
    on_progress: OnProgress,
) -> None:
    deaths: Counter[str] = Counter()
    while todo or running:
        while todo and len(running) < num_workers:
            run = _next_run(todo, deaths, num_workers)
            running[submit(run, deaths[run[0].name] > 0)] = deque(run)
        ready = _awaited(running)
        if ready is None:
            nodes()
            continue
        left = running[ready]
        try:
            counts, seconds = _result(next(ready), left[0])
        except _DEATHS as error:
            del running[ready]
            _note_deaths(deaths, left, error)
            todo.extendleft(reversed(left))
            continue
        left.popleft()
        if not left:
            del running[ready]
        profiling.add(seconds)
        on_progress(counts)


def _next_run(
    todo: deque[ShardPlan], deaths: Counter[str], num_workers: int
) -> Sequence[ShardPlan]:
    """Take the shards of the next task from `todo`; fewer near the end, to finish together.

    A shard at which a worker died is the only one of its task.
    """
    number = min(max(1, len(todo) // (2 * num_workers)), _MOST_SHARDS)
    run = [todo.popleft()]
    if not deaths[run[0].name]:
        while len(run) < number and not deaths[todo[0].name]:
            run.append(todo.popleft())
    return run


def _note_deaths(deaths: Counter[str], left: Sequence[ShardPlan], error: Exception) -> None:
    """Count a death for the shards in progress (the first in `left`); BuildError after too many."""
    for shard, _ in zip(left, range(MOST_BEGUN), strict=False):
        deaths[shard.name] += 1
        if deaths[shard.name] == _MOST_DEATHS:
            raise BuildError(
                shard.name,
                f"{_MOST_DEATHS} workers died over it, at last by {type(error).__name__}",
                "finished shards are kept: see what ends them, and run the same command again",
            ) from error


@stage("wait")
def _awaited(running: dict[Any, deque[ShardPlan]]) -> Any:
    ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
    return ready[0] if ready else None


def _result(ready: Any, shard: ShardPlan) -> Done:
    try:
        answer: Done | ShardprepError | OSError = ray.get(ready)
    except _DEATHS:
        raise
    except exceptions.LocalRayletDiedError as error:
        raise BuildError(
            "the Ray node of this machine",
            "has lost the cluster: its raylet was ended",
            "finished shards are kept: ray start it again, and run the same command again",
        ) from error
    except exceptions.RayError as error:
        raise BuildError(
            shard.name, f"a worker failed: {_last_line(error)}", "see: ray logs"
        ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _cancel(running: dict[Any, deque[ShardPlan]]) -> None:
    for task in running:
        with contextlib.suppress(exceptions.RayError, ValueError):
            ray.cancel(task, force=True)
    if running:
        ends = [task.completed() for task in running]
        ray.wait(ends, num_returns=len(ends), timeout=_END_S)


def ask_versions(among: Sequence[Node]) -> Asked:
    """Ask nodes for their shardprep version without waiting, and let each import `_MODULES`."""
    mine = version("shardprep")

    def other_version() -> (
        str
    ):  # defined here, it is pickled by value: a node may not have shardprep
        from importlib import import_module  # noqa: PLC0415 - imported there
        from importlib.metadata import distributions  # noqa: PLC0415

        there = {package.version for package in distributions(name="shardprep")} or {"none"}
        if mine not in there:
            return f"has shardprep {there.pop()}, where the build was started {mine}"
        for name in _MODULES:
            import_module(name)
        return ""

    return _ask(among, other_version)


def _ask(among: Sequence[Node], question: Callable[..., str], *arguments: object) -> Asked:
    remote = ray.remote(num_cpus=0, max_retries=_MOST_REPEATS)(question)
    return {
        remote.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
        ).remote(*arguments): node
        for node in among
    }


def _check(asked: Asked) -> None:
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
    for ref in (*ready, *late):
        try:
            problem = ray.get(ref) if ref in ready else "does not answer"
        except (exceptions.NodeDiedError, exceptions.TaskUnschedulableError):
            continue  # the node died after it was listed: no task will run there
        except exceptions.RayError as error:
            problem = f"cannot run shardprep ({_last_line(error)})"
        if problem:
            raise unfit(asked[ref].address, problem)


def _memory(job: ShardJob, shards: Sequence[ShardPlan]) -> int:
    largest = max(int(shard.items.members.num_bytes.max(initial=0)) for shard in shards)
    estimate = _BASE_BYTES + _BYTES_A_BYTE * largest
    return min(estimate, job.limits.worker_bytes or estimate)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


Done = tuple[ItemCounts, dict[str, float]]
"""Counts of a committed shard, and seconds by stage."""

MOST_BEGUN = 2
"""Maximum number of shards in progress in a task: one is committed, the next one encoded."""

_agreed: set[str] = set()
"""Tokens of the builds whose terms this process has checked and meets."""


@dataclass(frozen=True, slots=True)
class SharedJob:
    """Values that all tasks of a build share."""

    job: ShardJob
    terms: Terms
    folder: str
    has_pandas: bool


def has_pandas() -> bool:
    """Return whether pandas can be imported on this node."""
    try:
        return importlib.util.find_spec("pandas") is not None
    except ModuleNotFoundError:
        return False


def probe(order: SharedJob) -> str:
    """Return in words why this node does not meet the terms, or ""; runs on the node."""
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
    """Write shards on a node; yield a `Done` for each. An error is yielded: Ray would wrap it."""
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
    commit: Future[None] = Future()
    receipt = done_receipt(job.folders, shard.name)
    if receipt is not None:
        commit.set_result(None)
        num_items = len(shard.items)
        return commit, ItemCounts(num_items, num_items - receipt.facts.shard.num_records)
    counts = ItemCounts()

    def on_chunk(chunk: EncodedChunk) -> None:
        nonlocal commit, counts
        counts = counts.plus(ItemCounts.of(chunk))
        commit = sink.append(shard, chunk) or commit

    if is_careful:
        run_chunks(job.encoder, job.tasks(shard), 1, job.limits, on_chunk)
    else:
        work = Work(job.encoder, job.limits, is_timed=job.is_timed)
        keep_buffers()
        with limited(job.limits):
            for task in job.tasks(shard):
                on_chunk(encoded(work, task))
    return commit, counts


def _committed(commit: Future[None], counts: ItemCounts) -> Done:
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


@contextlib.contextmanager
def _in(folder: str) -> Generator[None]:
    """Change the current folder in the block, if the new one exists.

    After an error it stays changed, because running commits need it.
    """
    if not Path(folder).is_dir():
        yield
        return
    before = Path.cwd()
    os.chdir(folder)
    yield
    os.chdir(before)
