import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, cast

import pytest

from shardprep.catalog.items import Item
from shardprep.errors import BuildError, InternalError
from shardprep.processes import WorkerLimits
from shardprep.source.byte_range import PlainExtent
from shardprep.writer.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.engine import pool
from shardprep.writer.engine.pool import run_chunks
from tests.support.builders import StoppedError
from tests.writer.faulty import ENDS_OF_WORKERS, strike

NO_LIMITS = WorkerLimits()
WRITTEN = Outcome("", "", 1, 1, 1, "jpeg", 7, "00")


def task(number: int, num_items: int = 1) -> ChunkTask:
    items = tuple(
        Item(f"images/{i}.jpg", PlainExtent("none", 0, 7), "train", 0)
        for i in range(number, number + num_items)
    )
    return ChunkTask("set-train.tfrecord-00000-of-00001", number, items)


@dataclass(frozen=True)
class Encode:
    """Answers with the numbers of the items; does something else at one of them."""

    at: int = -1
    fault: str = ""
    mark: str = ""
    """A file with a byte for each time that the fault has struck."""
    most: int = 1
    """Times that it strikes, where there is such a file."""

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        data = b""
        for number in range(task.start, task.start + len(task.items)):
            before_item()
            if number == self.at and self._is_due():
                strike(self.fault)
                time.sleep(0.2)
            data += f"{number};".encode()
        return EncodedChunk(data, (WRITTEN,) * len(task.items))

    def _is_due(self) -> bool:
        if not self.mark:
            return True
        with Path(self.mark).open("ab") as file:
            file.write(b".")
            return file.tell() <= self.most


def encoded(
    encode: Encode,
    tasks: Iterable[ChunkTask],
    num_workers: int = 2,
    limits: WorkerLimits = NO_LIMITS,
) -> tuple[str, list[Outcome]]:
    chunks: list[EncodedChunk] = []
    run_chunks(encode, tasks, num_workers, limits, chunks.append)
    data = b"".join(chunk.data for chunk in chunks).decode()
    return data, [outcome for chunk in chunks for outcome in chunk.outcomes]


def numbers(encode: Encode, count: int, num_workers: int) -> str:
    return encoded(encode, (task(i) for i in range(count)), num_workers)[0]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(num_workers: int) -> None:
    slow_first = Encode(at=0, fault="slow")
    assert numbers(slow_first, 25, num_workers) == "".join(f"{i};" for i in range(25))


def test_no_tasks_give_no_results() -> None:
    assert numbers(Encode(), 0, 2) == ""


def test_tasks_are_taken_only_as_fast_as_results_are() -> None:
    taken = []

    def tasks() -> Iterator[ChunkTask]:
        for i in range(100):
            taken.append(i)
            yield task(i)

    def stop(_: EncodedChunk) -> None:
        time.sleep(0.2)
        raise StoppedError

    with pytest.raises(StoppedError):
        run_chunks(Encode(), tasks(), 2, NO_LIMITS, stop)
    assert len(taken) <= 6


@pytest.mark.parametrize(("num_items", "fault", "kind", "said"), ENDS_OF_WORKERS)
def test_an_item_that_ends_its_worker_twice_is_rejected(
    num_items: int, fault: str, kind: str, said: str
) -> None:
    tasks = [task(i, num_items) for i in range(0, 30, num_items)]
    data, outcomes = encoded(Encode(at=13, fault=fault), tasks, limits=WorkerLimits(item_s=0.3))
    assert data == "".join(f"{i};" for i in range(30) if i != 13)
    assert [i for i, outcome in enumerate(outcomes) if outcome != WRITTEN] == [13]
    lost = outcomes[13]
    assert (lost.kind, lost.length, lost.num_bytes) == (kind, 0, 7)
    assert said in lost.reason


def test_an_item_is_kept_after_five_kills_of_its_worker(tmp_path: Path) -> None:
    """The system kills workers when memory is short, whatever the image."""
    encode = Encode(at=13, fault="killed", mark=str(tmp_path / "struck"), most=5)
    data, outcomes = encoded(encode, [task(i, 10) for i in range(0, 30, 10)])
    assert data == "".join(f"{i};" for i in range(30))
    assert outcomes == [WRITTEN] * 30


@pytest.mark.parametrize("fault", ["killed", "segfault", "hang", "starved"])
def test_an_item_is_kept_if_its_worker_died_only_once(fault: str, tmp_path: Path) -> None:
    encode = Encode(at=13, fault=fault, mark=str(tmp_path / "struck"))
    tasks = [task(i, 10) for i in range(0, 30, 10)]
    data, outcomes = encoded(encode, tasks, limits=WorkerLimits(item_s=0.3))
    assert data == "".join(f"{i};" for i in range(30))
    assert outcomes == [WRITTEN] * 30


def server_process() -> int | None:
    server: Any = forkserver
    return cast("int | None", server._forkserver._forkserver_pid)


def test_a_run_continues_after_the_fork_server_was_killed() -> None:
    chunks: list[EncodedChunk] = []
    ended: list[int] = []

    def end_server(chunk: EncodedChunk) -> None:
        chunks.append(chunk)
        server = server_process()
        assert server is not None
        if not ended:
            os.kill(server, signal.SIGKILL)
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
            ended.append(server)

    run_chunks(Encode(), (task(i) for i in range(40)), 2, NO_LIMITS, end_server)
    assert b"".join(chunk.data for chunk in chunks).decode() == "".join(f"{i};" for i in range(40))
    assert server_process() not in ended


def test_the_time_limit_is_per_item_and_not_per_chunk() -> None:
    data, _ = encoded(SlowEncode(), [task(0, 8)], num_workers=1, limits=WorkerLimits(item_s=0.7))
    assert data == "01234567"


@dataclass(frozen=True)
class SlowEncode(Encode):
    """Takes longer for all than one item may take, and waits between tasks."""

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        for _ in task.items:
            before_item()
            time.sleep(0.1)
        data = "".join(str(task.start + i) for i in range(len(task.items)))
        return EncodedChunk(data.encode(), (WRITTEN,) * len(task.items))


def test_a_worker_may_wait_for_work_longer_than_an_item_may_take() -> None:
    data: list[bytes | bytearray] = []

    def wait(chunk: EncodedChunk) -> None:
        if not data:
            time.sleep(1.5)
        data.append(chunk.data)

    run_chunks(Encode(), (task(i) for i in range(8)), 1, WorkerLimits(item_s=0.7), wait)
    assert b"".join(data) == b"0;1;2;3;4;5;6;7;"


def test_an_allocation_above_the_memory_limit_fails() -> None:
    limits = WorkerLimits(worker_bytes=1 << 30)
    with pytest.raises(InternalError, match="MemoryError") as error:
        encoded(Encode(at=3, fault="memory"), [task(0, 8)], limits=limits)
    assert "set-train.tfrecord-00000-of-00001, items 3-3 (from images/3.jpg)" in str(error.value)


@dataclass(frozen=True)
class AlwaysDies(Encode):
    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        del task, before_item
        os._exit(9)


def test_workers_that_die_at_every_image_end_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MOST_LOST_IN_A_ROW", 3)
    with pytest.raises(BuildError, match="the worker process ended at each of the last 4 images"):
        encoded(AlwaysDies(), [task(0, 20)], num_workers=1)


@dataclass(frozen=True)
class CannotStart(Encode):
    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (11,)


def test_workers_that_cannot_start_end_the_build() -> None:
    with pytest.raises(BuildError, match=r"could not be started in 3 attempts \(exit code 11\)"):
        encoded(CannotStart(), [task(0)], num_workers=1)


def workers() -> set[int]:
    server, found = server_process(), set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (place / "stat").read_text().rsplit(")", 1)[1].split()
            if int(stat[1]) == server:
                found.add(int(place.name))
    return found


@pytest.mark.parametrize("how", ["finished", "stopped", "failed"])
def test_no_worker_outlives_the_run(how: str) -> None:
    before = workers()

    def look(_: EncodedChunk) -> None:
        assert workers() > before
        if how == "stopped":
            raise StoppedError

    encode = Encode(at=5 if how == "failed" else -1, fault="raises")
    error = {"stopped": StoppedError, "failed": InternalError}.get(how)
    with contextlib.nullcontext() if error is None else pytest.raises(error):
        run_chunks(encode, (task(i) for i in range(20)), 2, NO_LIMITS, look)
    assert workers() == before
