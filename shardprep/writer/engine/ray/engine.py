"""Shards on the nodes of a Ray cluster, a task each: what a node writes is done, whoever dies.

A task encodes in the process that Ray gives it. Where that dies, the shard is tried again with
care: the process encodes no more itself but has one of its own for it, so that, as on one machine,
an item that kills costs that item. Ray itself tries nothing again: it is counted here.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardprep import profiling
from shardprep.errors import BuildError, ShardprepError
from shardprep.profiling import stage
from shardprep.writer.engine.job import Progress, ShardJob, of_shards, write_chunks
from shardprep.writer.engine.local import run_chunks
from shardprep.writer.engine.process import keep_buffers, limited, start_clock
from shardprep.writer.engine.ray.cluster import nodes
from shardprep.writer.engine.ray.preflight import Terms, difference, terms
from shardprep.writer.shard import done_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from shardprep.writer.chunk import EncodedChunk
    from shardprep.writer.engine.ray.cluster import Node
    from shardprep.writer.shard_plan import ShardPlan

    _Done = tuple[Progress, dict[str, float]]
    """Items of a shard that is written; seconds by stage, where they are counted."""

_MOST_DEATHS = 4
"""Workers lost over one shard after which the cluster is at fault, and no image."""
_BASE_BYTES = 300_000_000
"""Bytes of a process with its libraries and a chunk of records."""
_BYTES_A_BYTE = 32
"""Bytes of memory for each byte of an image file: a JPEG decodes to ten times its bytes, of which
some copies exist at once."""
_ANSWER_S = 60.0
_LOOK_S = 10.0
"""Seconds without a finished shard after which the nodes are counted again."""
_END_S = 10.0
_DEATHS = (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError)
"""Errors of Ray by which a worker is lost."""

_agreed: set[str] = set()
"""Tokens of the builds whose terms this process has compared."""


@dataclass(frozen=True, slots=True)
class _Order:
    """Values that all tasks of a build share."""

    job: ShardJob
    terms: Terms
    folder: str
    """Folder that relative paths start from."""


def by_shards(job: ShardJob, shards: Sequence[ShardPlan], num_workers: int) -> Generator[Progress]:
    """Write the shards on the cluster that this process is connected to; an `Engine`.

    At most `num_workers` tasks are begun and not yet finished. Progress comes shard by shard.

    Raises:
        ShardprepError: the nodes do not fit the build, or a shard cannot be written; the other
            tasks are cancelled, and what is done is kept.
        OSError: a node cannot write.

    """
    with terms(shards, job.folders.state) as agreed:
        order = _Order(job, agreed, str(Path.cwd()))
        _compare(order, nodes())
        memory = min(_memory(job, shards), max(node.memory_bytes for node in nodes()))
        write = ray.remote(
            num_cpus=1, memory=memory or None, max_retries=0, retry_exceptions=False
        )(_write)
        shared = ray.put(order)

        def submit(shard: ShardPlan, is_careful: bool) -> Any:  # noqa: FBT001 - Ray
            named = write.options(name=f"shardprep {shard.name}")
            return named.remote(shared, shard, is_careful)

        running: dict[Any, ShardPlan] = {}
        try:
            yield from _run(submit, deque(shards), num_workers, running)
        finally:
            _cancel(running)


def _run(
    submit: Callable[[ShardPlan, bool], Any],
    todo: deque[ShardPlan],
    num_workers: int,
    running: dict[Any, ShardPlan],
) -> Iterator[Progress]:
    deaths: Counter[str] = Counter()
    while todo or running:
        while todo and len(running) < num_workers:
            shard = todo.popleft()
            running[submit(shard, deaths[shard.name] > 0)] = shard
        ready = _awaited(running)
        if ready is None:
            nodes()
            continue
        shard = running[ready]
        try:
            progress, seconds = _result(ready, shard)
        except _DEATHS as error:
            deaths[shard.name] += 1
            if deaths[shard.name] == _MOST_DEATHS:
                raise BuildError(
                    shard.name,
                    f"{_MOST_DEATHS} workers died over it, at last by {type(error).__name__}",
                    "what is done is kept: see what ends them, and run the same command again",
                ) from error
            todo.appendleft(shard)
            continue
        finally:
            del running[ready]
        profiling.add(seconds)
        yield progress


@stage("wait")
def _awaited(running: dict[Any, ShardPlan]) -> Any:
    ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
    return ready[0] if ready else None


def _result(ready: Any, shard: ShardPlan) -> _Done:
    """Return the result of a task; an error that it met is raised here, as if it were ours."""
    try:
        found: _Done | ShardprepError | OSError = ray.get(ready)
    except _DEATHS:
        raise
    except exceptions.LocalRayletDiedError as error:
        raise BuildError(
            "the Ray node of this machine",
            "has died, and with it the way to the cluster (its raylet was ended)",
            "what is done is kept: ray start it again, and run the same command again",
        ) from error
    except exceptions.RayError as error:
        raise BuildError(
            shard.name, f"a worker failed: {_last_line(error)}", "see: ray logs"
        ) from error
    if isinstance(found, Exception):
        raise found
    return found


def _cancel(running: dict[Any, ShardPlan]) -> None:
    """End what still runs, and wait until it has: nothing is written any more."""
    for ref in running:
        with contextlib.suppress(exceptions.RayError, ValueError):
            ray.cancel(ref, force=True)
    if running:
        ray.wait(list(running), num_returns=len(running), timeout=_END_S)


def _compare(order: _Order, found: Sequence[Node]) -> None:
    """Check that all nodes can do this build, and say so."""
    mine = version("shardprep")

    def other_version() -> str:  # in here it travels as it is: a node may not have shardprep
        from importlib.metadata import distributions  # noqa: PLC0415 - imported there

        there = {one.version for one in distributions(name="shardprep")} or {"none"}
        if mine in there:
            return ""
        return f"has shardprep {there.pop()}, where the build was started {mine}"

    _ask(found, other_version)
    _ask(found, _probe, order)


def _ask(found: Sequence[Node], question: Callable[..., str], *arguments: object) -> None:
    """Run a function on each node, all at once; what it returns is wrong there, "" is nothing."""
    remote = ray.remote(num_cpus=0, max_retries=0)(question)
    asked = {
        remote.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
        ).remote(*arguments): node
        for node in found
    }
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
    for ref in (*ready, *late):
        try:
            problem = ray.get(ref) if ref in ready else "does not answer"
        except (exceptions.NodeDiedError, exceptions.TaskUnschedulableError):
            continue  # it died after it was listed: no task will run there
        except exceptions.RayError as error:
            problem = f"cannot run shardprep ({_last_line(error)})"
        if problem:
            raise _unfit(asked[ref].address, problem)


def _unfit(address: str, problem: str) -> BuildError:
    return BuildError(
        f"node {address}",
        problem,
        "all nodes need the same versions, and source and --out on storage that all of them share",
    )


def _memory(job: ShardJob, shards: Sequence[ShardPlan]) -> int:
    """Return what a task may be expected to take, in bytes: pixels are not known before."""
    largest = max(item.extent.num_bytes for shard in shards for item in shard.items)
    estimate = _BASE_BYTES + _BYTES_A_BYTE * largest
    return min(estimate, job.limits.worker_bytes or estimate)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _probe(order: _Order) -> str:
    """Return what is wrong with this node; runs there."""
    if order.terms.token in _agreed:
        return ""
    with _in(order.folder):
        problem = difference(order.terms)
    if not problem:
        _agreed.add(order.terms.token)
    return problem


def _write(order: _Order, shard: ShardPlan, careful: bool) -> _Done | ShardprepError | OSError:  # noqa: FBT001 - Ray
    """Write a shard; runs on a node. Errors are values: Ray would make tracebacks of them."""
    try:
        if problem := _probe(order):
            return _unfit(ray.util.get_node_ip_address(), problem)
        with _in(order.folder):
            return _written(order.job, shard, careful=careful)
    except (ShardprepError, OSError) as error:
        return error


def _written(job: ShardJob, shard: ShardPlan, *, careful: bool) -> _Done:
    receipt = done_receipt(job.folders, shard.name)
    if receipt is not None:
        num_items = len(shard.items)
        return Progress(num_items, num_items - receipt.shard.num_records), {}
    profiling.taken()
    if careful:
        chunks = run_chunks(job.encoder, job.tasks(shard), 1, job.limits)
    else:
        chunks = _encoded(job, shard)
    with contextlib.closing(chunks):
        steps = list(write_chunks(job, of_shards([shard], chunks)))
    seconds = profiling.taken()
    seconds.pop("wait", None)
    if "store" in seconds:
        seconds["store"] += seconds.pop("write", 0.0)
    return Progress(*(sum(column) for column in zip(*steps, strict=True))), seconds


def _encoded(job: ShardJob, shard: ShardPlan) -> Generator[EncodedChunk]:
    """Yield the chunks of a shard, encoded in this process."""
    start = partial(start_clock, job.limits.item_s)
    keep_buffers()
    with limited(job.limits):
        for task in job.tasks(shard):
            chunk = job.encoder(task, start)
            start_clock(0)
            yield chunk


def _in(folder: str) -> contextlib.AbstractContextManager[None]:
    """Be in a folder, where there is one of that name: else only absolute paths can be meant."""
    return contextlib.chdir(folder) if Path(folder).is_dir() else contextlib.nullcontext()
