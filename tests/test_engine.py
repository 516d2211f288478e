from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardprep.catalog.catalog import Item
from shardprep.chunk import ChunkTask, EncodedChunk
from shardprep.engine.local import run_chunks, usable_cores
from shardprep.errors import BuildError
from shardprep.source.extent import PlainExtent


def task(number: int) -> ChunkTask:
    item = Item(f"images/{number}.jpg", PlainExtent("none", 0, 0), "train", 0)
    return ChunkTask("set-train.tfrecord-00000-of-00001", number, (item,))


@dataclass(frozen=True)
class Encode:
    """Answers with the number of the task; does something else for one of them."""

    at: int = -1
    fault: str = ""

    def __call__(self, task: ChunkTask) -> EncodedChunk:
        if task.start == self.at:
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "raises":
                raise ZeroDivisionError("by construction")
            time.sleep(0.2)
        return EncodedChunk(f"{task.start};".encode(), ())


def numbers(encode: Encode, count: int, num_workers: int) -> str:
    chunks = run_chunks(encode, (task(i) for i in range(count)), num_workers)
    return b"".join(chunk.data for chunk in chunks).decode()


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(num_workers: int) -> None:
    slow_first = Encode(at=0, fault="slow")
    assert numbers(slow_first, 25, num_workers) == "".join(f"{i};" for i in range(25))


def test_no_tasks_give_no_results() -> None:
    assert numbers(Encode(), 0, 2) == ""


def test_tasks_are_taken_only_as_fast_as_results_are() -> None:
    taken = []

    def tasks() -> object:
        for i in range(100):
            taken.append(i)
            yield task(i)

    chunks = run_chunks(Encode(), tasks(), 2)  # type: ignore[arg-type]
    next(chunks)
    time.sleep(0.2)
    assert len(taken) <= 6
    chunks.close()


@pytest.mark.parametrize(
    ("fault", "said"),
    [("killed", "SIGKILL"), ("exit", "exit code 7"), ("raises", "by construction")],
)
def test_a_worker_that_dies_is_an_error_that_names_the_chunk(fault: str, said: str) -> None:
    with pytest.raises(BuildError, match=said) as error:
        numbers(Encode(at=3, fault=fault), 10, 2)
    assert "set-train.tfrecord-00000-of-00001, items 3-3 (from images/3.jpg)" in str(error.value)


def children() -> set[int]:
    me = os.getpid()
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            stat = (place / "stat").read_text().rsplit(")", 1)[1].split()
            spawned = "spawn_main" in (place / "cmdline").read_text()
        except OSError:
            continue
        if int(stat[1]) == me and spawned:
            found.add(int(place.name))
    return found


@pytest.mark.parametrize("how", ["finished", "closed early", "failed"])
def test_no_worker_outlives_the_run(how: str) -> None:
    before = children()
    chunks = run_chunks(Encode(at=5, fault="raises"), (task(i) for i in range(20)), 2)
    next(chunks)
    assert children() > before
    if how == "closed early":
        chunks.close()
    elif how == "failed":
        with pytest.raises(BuildError):
            list(chunks)
    else:
        chunks.close()
        assert numbers(Encode(), 3, 2) == "0;1;2;"
    assert children() == before


def test_usable_cores_respects_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
