from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardprep.catalog.items import Item
from shardprep.errors import BuildError, InternalError
from shardprep.source.byte_range import PlainExtent
from shardprep.writer.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.engine.pool import run_chunks
from shardprep.writer.engine.worker_process import WorkerLimits
from tests.support.builders import StoppedError
from tests.writer.faulty import CHUNK_SIZES, ENDS_OF_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
                self._strike()
            data += f"{number};".encode()
        return EncodedChunk(data, (WRITTEN,) * len(task.items))

    def _is_due(self) -> bool:
        if not self.mark:
            return True
        with Path(self.mark).open("ab") as file:
            file.write(b".")
            return file.tell() <= self.most

    def _strike(self) -> None:
        if self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "segfault":
            ctypes.string_at(0)
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "starved":
            raise MemoryError
        if self.fault == "raises":
            raise ZeroDivisionError("by construction")
        if self.fault == "hang":
            hang = ctypes.CDLL(None).pause  # in C, where no exception of Python's gets in
            while True:
                hang()
        if self.fault == "memory":
            bytearray(8 << 30)
        time.sleep(0.2)


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


@pytest.mark.parametrize(("fault", "kind", "said"), ENDS_OF_WORKERS)
@pytest.mark.parametrize("num_items", CHUNK_SIZES)
def test_an_item_that_ends_its_worker_costs_that_item(
    fault: str, kind: str, said: str, num_items: int
) -> None:
    tasks = [task(i, num_items) for i in range(0, 30, num_items)]
    data, outcomes = encoded(Encode(at=13, fault=fault), tasks, limits=WorkerLimits(item_s=0.3))
    assert data == "".join(f"{i};" for i in range(30) if i != 13)
    assert [i for i, outcome in enumerate(outcomes) if outcome != WRITTEN] == [13]
    lost = outcomes[13]
    assert (lost.kind, lost.length, lost.num_bytes) == (kind, 0, 7)
    assert said in lost.reason


@pytest.mark.parametrize("num_items", CHUNK_SIZES)
def test_an_item_whose_worker_is_killed_again_and_again_is_kept(
    num_items: int, tmp_path: Path
) -> None:
    """The system does that where memory is short: it says nothing of the image."""
    encode = Encode(at=13, fault="killed", mark=str(tmp_path / "struck"), most=5)
    tasks = [task(i, num_items) for i in range(0, 30, num_items)]
    data, outcomes = encoded(encode, tasks)
    assert data == "".join(f"{i};" for i in range(30))
    assert outcomes == [WRITTEN] * 30


@pytest.mark.parametrize("fault", ["killed", "segfault", "hang", "starved"])
def test_a_worker_that_dies_of_something_else_costs_nothing(fault: str, tmp_path: Path) -> None:
    encode = Encode(at=13, fault=fault, mark=str(tmp_path / "struck"))
    tasks = [task(i, 10) for i in range(0, 30, 10)]
    data, outcomes = encoded(encode, tasks, limits=WorkerLimits(item_s=0.3))
    assert data == "".join(f"{i};" for i in range(30))
    assert outcomes == [WRITTEN] * 30


def server_process() -> int | None:
    server: Any = forkserver
    return cast("int | None", server._forkserver._forkserver_pid)


def test_the_end_of_the_server_that_workers_are_forked_from_costs_nothing() -> None:
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


def test_the_clock_is_that_of_one_item_and_not_of_a_chunk() -> None:
    data, _ = encoded(SlowEncode(), [task(0, 8)], num_workers=1, limits=WorkerLimits(item_s=0.4))
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
            time.sleep(0.5)
        data.append(chunk.data)

    run_chunks(Encode(), (task(i) for i in range(8)), 1, WorkerLimits(item_s=0.2), wait)
    assert b"".join(data) == b"0;1;2;3;4;5;6;7;"


def test_memory_beyond_the_limit_cannot_be_had() -> None:
    limits = WorkerLimits(worker_bytes=1 << 30)
    with pytest.raises(InternalError, match="MemoryError"):
        encoded(Encode(at=3, fault="memory"), [task(0, 8)], limits=limits)


def test_a_fault_of_ours_is_an_error_that_names_the_chunk() -> None:
    with pytest.raises(InternalError, match="by construction") as error:
        numbers(Encode(at=3, fault="raises"), 10, 2)
    assert "set-train.tfrecord-00000-of-00001, items 3-3 (from images/3.jpg)" in str(error.value)


@dataclass(frozen=True)
class AlwaysDies(Encode):
    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        del task, before_item
        os._exit(9)


def test_workers_that_die_at_every_image_end_the_build() -> None:
    with pytest.raises(BuildError, match="one image after the other"):
        encoded(AlwaysDies(), [task(0, 100)], num_workers=1)


@dataclass(frozen=True)
class CannotStart(Encode):
    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (11,)


def test_workers_that_cannot_start_end_the_build() -> None:
    with pytest.raises(BuildError, match=r"could not be started, 3 times \(exit code 11\)"):
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
