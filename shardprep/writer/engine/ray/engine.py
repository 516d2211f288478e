"""Shards on the nodes of a Ray cluster, a task each: what a node writes is done, whoever dies.

A task encodes in the process that Ray gives it. Where that dies, the shard is tried again with
care: the process encodes no more itself but has one of its own for it, so that, as on one machine,
an item that kills costs that item. Ray itself tries nothing again: it is counted here.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardprep import profiling
from shardprep.errors import BuildError, ShardprepError
from shardprep.profiling import stage
from shardprep.writer.engine.job import Progress, ShardJob, write_shard
from shardprep.writer.engine.local import run_chunks
from shardprep.writer.engine.process import keep_buffers, limited, start_clock
from shardprep.writer.engine.ray.cluster import nodes
from shardprep.writer.engine.ray.preflight import Terms, difference, terms
from shardprep.writer.receipt import is_done, read_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from shardprep.writer.chunk import EncodedChunk
    from shardprep.writer.engine.ray.cluster import Node
    from shardprep.writer.shard_plan import ShardPlan

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

_agreed: set[str] = set()
"""Tokens of the builds whose terms this process has compared."""


@dataclass(frozen=True, slots=True)
class _Order:
    """Values that all tasks of a build share."""

    job: ShardJob
    terms: Terms
    folder: str
    """Folder that relative paths start from."""


class _Done(NamedTuple):
    """A shard that is written."""

    progress: Progress
    seconds: dict[str, float]
    """Seconds by stage, where they are counted."""


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
        with contextlib.ExitStack() as ends:
            running: dict[Any, ShardPlan] = {}
            ends.callback(_cancel, running)
            yield from _run(_Submit(order, shards), deque(shards), num_workers, running)


class _Submit:
    """Starts tasks."""

    def __init__(self, order: _Order, shards: Sequence[ShardPlan]) -> None:
        self._order = ray.put(order)
        memory = min(_memory(order.job, shards), max(node.memory_bytes for node in nodes()))
        self._remote = ray.remote(
            num_cpus=1, memory=memory or None, max_retries=0, retry_exceptions=False
        )(_write)

    def __call__(self, shard: ShardPlan, *, careful: bool) -> Any:
        return self._remote.options(name=f"shardprep {shard.name}").remote(
            self._order, shard, careful
        )


def _run(
    submit: _Submit, todo: deque[ShardPlan], num_workers: int, running: dict[Any, ShardPlan]
) -> Iterator[Progress]:
    deaths: Counter[str] = Counter()
    while todo or running:
        while todo and len(running) < num_workers:
            shard = todo.popleft()
            running[submit(shard, careful=deaths[shard.name] > 0)] = shard
        ready = _awaited(running)
        if ready is None:
            nodes()
            continue
        shard = running[ready]
        try:
            done = _result(ready, shard)
        except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
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
        profiling.add(done.seconds)
        yield done.progress


@stage("wait")
def _awaited(running: dict[Any, ShardPlan]) -> Any:
    ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
    return ready[0] if ready else None


def _result(ready: Any, shard: ShardPlan) -> _Done:
    """Return what a task has come to; an error that it met is raised here, as if it were ours."""
    try:
        found: _Done | ShardprepError | OSError = ray.get(ready)
    except (WorkerCrashedError, NodeDiedError, OutOfMemoryError):
        raise
    except LocalRayletDiedError as error:
        raise BuildError(
            "the Ray node of this machine",
            "has died, and with it the way to the cluster (its raylet was ended)",
            "what is done is kept: ray start it again, and run the same command again",
        ) from error
    except RayError as error:
        raise BuildError(
            shard.name, f"a worker failed: {_last_line(error)}", "see: ray logs"
        ) from (error)
    if isinstance(found, Exception):
        raise found
    return found


def _cancel(running: dict[Any, ShardPlan]) -> None:
    """End what still runs, and wait until it has: nothing is written any more."""
    for ref in running:
        with contextlib.suppress(RayError, ValueError):
            ray.cancel(ref, force=True)
    if running:
        ray.wait(list(running), num_returns=len(running), timeout=_END_S)


def _compare(order: _Order, found: Sequence[Node]) -> None:
    """See that all nodes can do this build.

    Raises:
        BuildError: one cannot, or does not say.

    """
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
        except (NodeDiedError, TaskUnschedulableError):
            continue  # it died after it was listed: no task will run there
        except RayError as error:
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
    if is_done(job.folders, shard.name):
        receipt = read_receipt(job.folders, shard.name)
        num_items = len(shard.items)
        num_rejected = 0 if receipt is None else num_items - receipt.shard.num_records
        return _Done(Progress(num_items, num_rejected), {})
    profiling.taken()
    if careful:
        progress = _total(job, shard, run_chunks(job.encoder, job.tasks(shard), 1, job.limits))
    else:
        keep_buffers()
        with limited(job.limits):
            progress = _total(job, shard, _encoded(job, shard))
    seconds = profiling.taken()
    seconds.pop("wait", None)
    return _Done(progress, seconds)


def _total(job: ShardJob, shard: ShardPlan, chunks: Generator[EncodedChunk]) -> Progress:
    with closing(chunks):
        steps = list(write_shard(job, shard, chunks))
    return Progress(*(sum(column) for column in zip(*steps, strict=True)))


def _encoded(job: ShardJob, shard: ShardPlan) -> Generator[EncodedChunk]:
    start = partial(start_clock, job.limits.item_s)
    for task in job.tasks(shard):
        chunk = job.encoder(task, start)
        start_clock(0)
        yield chunk


def _in(folder: str) -> contextlib.AbstractContextManager[None]:
    """Be in a folder, where there is one of that name: else only absolute paths can be meant."""
    return contextlib.chdir(folder) if Path(folder).is_dir() else contextlib.nullcontext()
