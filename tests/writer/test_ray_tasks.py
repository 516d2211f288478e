"""Tasks of the Ray engine, run in this process: their shards, and retries after deaths."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardprep.catalog.items import Item
from shardprep.errors import BuildError
from shardprep.processes.worker_process import WorkerLimits
from shardprep.source.byte_range import PlainExtent
from shardprep.storage.folder import LocalFolder
from shardprep.writer.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.engine.job import ItemCounts, ShardJob
from shardprep.writer.plan.shard_plan import ShardPlan, plan_shards
from shardprep.writer.shard import ShardWriter
from shardprep.writer.workspace.files import Folders
from tests.support.builders import by_chunks, in_process, tree

NUM_ITEMS = 64


@dataclass(frozen=True)
class Encode:
    """Makes a record of each key, and does something else at one of them."""

    at: str = ""
    fault: Callable[[], Outcome] | None = None
    begun: set[str] = field(default_factory=set)
    """Shards with any encoded item."""
    has_begun: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        with self.has_begun:
            self.begun.add(task.shard)
            self.has_begun.notify_all()
        data, outcomes = b"", []
        for item in task.items:
            before_item()
            outcome = Outcome("", "", 150, 1, 1, "jpeg", 7, "0" * 64)
            if item.key == self.at and self.fault is not None:
                outcome = self.fault()
            data += item.key.encode() * 50 if not outcome.kind else b""
            outcomes.append(outcome)
        return EncodedChunk(data, tuple(outcomes))


def shards_of(count: int) -> tuple[ShardPlan, ...]:
    items = [Item(f"{i:03d}", PlainExtent("none", 0, 7), "train", 0) for i in range(NUM_ITEMS)]
    return plan_shards("set", items, count, NUM_ITEMS * 150, 0)


def job_in(out: Path, encode: Encode) -> ShardJob:
    out.mkdir()
    folder = LocalFolder(out)
    return ShardJob(Folders(folder, folder), encode, WorkerLimits(), NUM_ITEMS, 150)


@pytest.fixture(name="task")
def _task(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("ray")
    from shardprep.writer.engine import ray_engine

    monkeypatch.setattr(ray_engine, "probe", lambda _: "")
    return ray_engine


def answers(task: Any, job: ShardJob, run: Sequence[ShardPlan]) -> Iterator[Any]:
    order = task.SharedJob(job, None, str(job.folders.output), has_pandas=True)
    found: Iterator[Any] = task.write(order, run, is_careful=False)
    return found


def test_a_shard_is_committed_while_the_next_one_is_encoded(
    task: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit waits until the next shard is begun."""
    shards, encode = shards_of(4), Encode()
    names = [shard.name for shard in shards]
    commit = ShardWriter.commit

    def patient(writer: ShardWriter) -> None:
        behind = names[names.index(writer.head.name) + 1 :][:1]
        with encode.has_begun:
            assert encode.has_begun.wait_for(lambda: encode.begun >= {*behind}, timeout=30)
        commit(writer)

    job = job_in(tmp_path / "out", encode)
    with monkeypatch.context() as during:
        during.setattr(ShardWriter, "commit", patient)
        found = []
        for answer in answers(task, job, shards):
            found.append(answer)
            done = {path.name for path in (tmp_path / "out").iterdir()}
            assert done >= {*names[: len(found)]}
    assert found == [(ItemCounts(NUM_ITEMS // 4, 0), {})] * 4

    other = job_in(tmp_path / "other", Encode())
    runner: Any = in_process
    by_chunks(runner)(other, shards, 1, lambda _: None)
    assert tree(tmp_path / "out") == tree(tmp_path / "other")

    encode.begun.clear()
    assert list(answers(task, job, shards)) == found
    assert not encode.begun


def starved() -> Outcome:
    raise MemoryError


def without_threads() -> Outcome:
    raise RuntimeError("can't start new thread")


LACKS = {
    "beside an image": starved,
    "for a thread": without_threads,
    "for an image": lambda: Outcome("crashed", "is too large", 0, 1, 1, "jpeg", 7, "0" * 64),
}


class EndedError(BaseException):
    """Simulates the end of the process."""


@pytest.mark.parametrize("lack", LACKS)
def test_a_process_that_lacks_memory_ends_and_rejects_nothing(
    lack: str, task: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(os, "_exit", end)
    shards = shards_of(4)
    job = job_in(tmp_path / "out", Encode(at=shards[2].items[1].key, fault=LACKS[lack]))
    found = answers(task, job, shards)
    assert next(found) == (ItemCounts(NUM_ITEMS // 4, 0), {})
    with pytest.raises(EndedError):
        list(found)


class Cluster:
    """Simulates Ray: tasks answer in turn, and die where a rule says so."""

    def __init__(self, dies: Callable[[Sequence[str], int, bool], bool]) -> None:
        """`dies` is asked with the shards of a task, how many it has done, and whether it cares."""
        self.dies = dies
        self.tasks: list[tuple[list[str], bool]] = []

    def submit(self, run: Sequence[ShardPlan], is_careful: bool) -> Iterator[Any]:  # noqa: FBT001 - Ray
        names = [shard.name for shard in run]
        self.tasks.append((names, is_careful))
        for i, shard in enumerate(run):
            if self.dies(names, i, is_careful):
                yield None
                return
            yield ItemCounts(len(shard.items), 0), {}


def run(
    cluster: Cluster, shards: Sequence[ShardPlan], number: int, patch: pytest.MonkeyPatch
) -> int:
    from ray.exceptions import WorkerCrashedError

    from shardprep.writer.engine import ray_engine

    def result(answer: Any, _: ShardPlan) -> Any:
        if answer is None:
            raise WorkerCrashedError
        return answer

    patch.setattr(ray_engine, "_awaited", lambda running: next(iter(running)))
    patch.setattr(ray_engine, "_result", result)
    steps: list[ItemCounts] = []
    ray_engine._run(cluster.submit, deque(shards), number, {}, steps.append)
    return sum(step.num_items for step in steps)


def test_tasks_have_fewer_shards_towards_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    cluster = Cluster(lambda *_: False)
    assert run(cluster, shards_of(32), 2, monkeypatch) == NUM_ITEMS
    assert [len(names) for names, _ in cluster.tasks] == [8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert not any(is_careful for _, is_careful in cluster.tasks)


def test_only_the_shards_that_a_dead_worker_was_at_are_written_with_care(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    shards = shards_of(32)
    names = [shard.name for shard in shards]
    cluster = Cluster(lambda names, done, _: (names[0], done) == (shards[0].name, 3))
    assert run(cluster, shards, 2, monkeypatch) == NUM_ITEMS
    assert [names for names, is_careful in cluster.tasks if is_careful] == [[names[3]], [names[4]]]
    given = [name for names, _ in cluster.tasks for name in names]
    assert sorted(given) == sorted([*names, *names[3:8]])


def test_a_shard_over_which_workers_die_again_and_again_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    shards = shards_of(8)
    bad = shards[1].name
    cluster = Cluster(lambda names, done, _: names[done] == bad)
    with pytest.raises(BuildError, match="4 workers died over it") as error:
        run(cluster, shards, 1, monkeypatch)
    assert error.value.where == bad
    assert sum(bad in names for names, _ in cluster.tasks) == 4
