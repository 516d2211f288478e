"""Shards that workers own have the bytes of any other engine, also if workers die."""

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from shardprep.catalog.items import Item
from shardprep.errors import BuildError, InternalError
from shardprep.processes import WorkerLimits
from shardprep.source.byte_range import PlainExtent
from shardprep.storage.folder import LocalFolder
from shardprep.writer.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.engine import pool, worker_main
from shardprep.writer.engine.job import ItemCounts, OnProgress, ShardJob
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.plan.shard_plan import ShardPlan, plan_shards
from shardprep.writer.shard import read_receipt
from shardprep.writer.workspace.files import Folders
from tests.support.builders import StopAfter, StoppedError, by_chunks, in_process, tree
from tests.writer.faulty import strike

NUM_ITEMS = 640
"""Chosen so that a chunk has ten items."""
LIMITS = WorkerLimits(item_s=0.3)


@dataclass(frozen=True)
class Encode:
    """Makes a record of each key, and of every ninth a rejection; a fault strikes at one key."""

    log: Path
    """A file that gets the key of each item that is encoded."""
    at: str | frozenset[str] = ""
    fault: str = ""
    is_once: bool = False

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        data, outcomes = b"", []
        for item in task.items:
            before_item()
            with self.log.open("a") as log:
                log.write(f"{item.key}\n")
            is_struck = self._is_struck(item.key)
            if is_struck and self.fault == "rejects":
                outcomes.append(Outcome("crashed", "too large", 0, 1, 1, "jpeg", 7, "0" * 64))
                continue
            if is_struck and self.fault == "says":
                logger = logging.getLogger("shardprep.storage")
                logger.warning("waiting for the store at %s", "a host")
            elif is_struck:
                strike(self.fault)
            record = b"" if item.key.endswith("9") else item.key.encode() * 50
            kind = "" if record else "damaged"
            data += record
            outcomes.append(Outcome(kind, kind, len(record), 1, 1, "jpeg", 7, "0" * 64))
        return EncodedChunk(data, tuple(outcomes))

    def _is_struck(self, key: str) -> bool:
        mark = self.log.with_suffix(".s")
        at = {self.at} if isinstance(self.at, str) else self.at
        if key not in at or (self.is_once and mark.exists()):
            return False
        mark.touch()
        return True


def shards_of(count: int) -> tuple[ShardPlan, ...]:
    items = [Item(f"{i:03d}", PlainExtent("none", 0, 7), "train", 0) for i in range(NUM_ITEMS)]
    return plan_shards("set", items, count, NUM_ITEMS * 150, 0)


def job_in(out: Path, **fault: Any) -> ShardJob:
    out.mkdir()
    folder = LocalFolder(out)
    log = out.with_suffix(".log")
    return ShardJob(Folders(folder, folder), Encode(log, **fault), LIMITS, NUM_ITEMS, 150)


def written(job: ShardJob, shards: Sequence[ShardPlan], num_workers: int) -> dict[str, bytes]:
    """Write the shards; check that progress counts all items, and return the files."""
    steps: list[ItemCounts] = []
    write_shards(job, shards, num_workers, steps.append)
    total = ItemCounts(*map(sum, zip(*steps, strict=True)))
    assert total.num_items == NUM_ITEMS
    assert isinstance(job.folders.state, LocalFolder)
    rows = [row for shard in shards for row in rows_of(job, shard)]
    assert [row["key"] for row in rows] == [item.key for one in shards for item in one.items]
    assert total.num_rejected == sum(row["status"] == "rejected" for row in rows)
    return tree(job.folders.state.path)


def ignore(_: ItemCounts) -> None:
    pass


def stop_after(num_items: int) -> OnProgress:
    watcher = StopAfter(num_items)
    return lambda counts: watcher.advance(counts.num_items)


def by_the_parent(out: Path, shards: Sequence[ShardPlan]) -> dict[str, bytes]:
    """Return the files where one process does all, chunk by chunk."""
    job = job_in(out)
    runner: Any = in_process
    by_chunks(runner)(job, shards, 1, ignore)
    return tree(out)


def rows_of(job: ShardJob, shard: ShardPlan) -> list[dict[str, Any]]:
    """Return the rows of a shard that was committed."""
    receipt = read_receipt(job.folders, shard.name)
    assert receipt is not None
    rows: list[dict[str, Any]] = receipt.table.to_pylist()
    return rows


def times_encoded(job: ShardJob) -> Counter[str]:
    assert isinstance(job.encoder, Encode)
    return Counter(job.encoder.log.read_text().split())


@pytest.mark.parametrize(("num_shards", "num_workers"), [(1, 2), (4, 1), (5, 2), (7, 4)])
def test_bytes_and_receipts_equal_those_of_one_process(
    num_shards: int, num_workers: int, tmp_path: Path
) -> None:
    shards = shards_of(num_shards)
    job = job_in(tmp_path / "out")
    files = written(job, shards, num_workers)
    assert files == by_the_parent(tmp_path / "other", shards)
    assert set(times_encoded(job).values()) == {1}


def test_records_of_owned_shards_do_not_pass_through_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = []
    receive = worker_main.receive_bytes

    def counted(pipe: Any, num_bytes: int) -> bytearray:
        received.append(num_bytes)
        return receive(pipe, num_bytes)

    monkeypatch.setattr(pool, "receive_bytes", counted)
    shards = shards_of(9)
    files = written(job_in(tmp_path / "out"), shards, 2)
    assert sum(received) == len(files[shards[-1].name])


@pytest.mark.parametrize(
    ("sizes", "is_owned"),
    [((512, 128), False), ((500, 70, 70), False), ((220, 210, 210), True), ((200,) * 3, True)],
)
def test_a_shard_that_is_larger_than_all_others_is_shared(
    sizes: tuple[int, ...], *, is_owned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner would be at work when the other workers have nothing left to do."""
    owned: list[str] = []
    begin = pool.Worker.assign_shard

    def noted(self: pool.Worker, shard: pool.OwnedShard) -> None:
        owned.append(shard.plan.name)
        begin(self, shard)

    monkeypatch.setattr(pool.Worker, "assign_shard", noted)
    items = iter(shards_of(1)[0].items)
    cuts = (plan_shards(f"set{i}", [*islice(items, n)], 1, 0, 0) for i, n in enumerate(sizes))
    shards = [shard for cut in cuts for shard in cut]
    steps: list[ItemCounts] = []
    write_shards(job_in(tmp_path / "out"), shards, 2, steps.append)
    assert sum(step.num_items for step in steps) == sum(sizes)
    assert (shards[0].name in owned) == is_owned


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [("killed", "crashed", "SIGKILL"), ("segfault", "crashed", "SIGSEGV"), ("hang", "timeout", "")],
)
def test_an_item_that_ends_the_owner_of_its_shard_costs_that_item(
    fault: str, kind: str, said: str, tmp_path: Path
) -> None:
    shards = shards_of(6)
    key = shards[1].items[15].key
    job = job_in(tmp_path / "out", at=key, fault=fault)
    files = written(job, shards, 2)
    row = rows_of(job, shards[1])[15]
    assert (row["key"], row["kind"]) == (key, kind)
    assert said in row["reason"]
    whole = by_the_parent(tmp_path / "other", shards)
    others = {name for name in whole if shards[1].name not in name}
    assert {name: files[name] for name in others} == {name: whole[name] for name in others}
    assert files[shards[1].name] == whole[shards[1].name].replace(key.encode() * 50, b"")
    assert times_encoded(job)[key] == (6 if fault == "killed" else 2)


def test_a_shard_whose_owner_was_killed_is_written_again(tmp_path: Path) -> None:
    shards = shards_of(6)
    key = shards[0].items[25].key
    job = job_in(tmp_path / "out", at=key, fault="killed", is_once=True)
    assert written(job, shards, 2) == by_the_parent(tmp_path / "other", shards)
    again = {one for one, times in times_encoded(job).items() if times > 1}
    assert again <= {item.key for item in shards[0].items[:26]}
    assert key in again


@pytest.mark.thorough
def test_shards_of_owners_that_die_are_written_by_chunks(tmp_path: Path) -> None:
    shards = shards_of(3)
    deadly = frozenset(shard.items[30].key for shard in shards)
    # After SIGKILL, each would be tried four times more.
    job = job_in(tmp_path / "out", at=deadly, fault="segfault")
    files = written(job, shards, 2)
    rows = [row for shard in shards for row in rows_of(job, shard)]
    assert {row["key"] for row in rows if row["kind"] == "crashed"} == deadly
    assert not [name for name in files if name.endswith(".tmp")]


def test_errors_of_writing_are_raised_unchanged(tmp_path: Path) -> None:
    job = job_in(tmp_path / "out")
    (tmp_path / "file").touch()
    folders = Folders(LocalFolder(tmp_path / "file"), job.folders.state)
    with pytest.raises(OSError, match="file") as error:
        write_shards(replace(job, folders=folders), shards_of(4), 2, ignore)
    assert error.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize("fault", ["cannot read", "raises"])
def test_a_fault_of_ours_names_the_chunk(fault: str, tmp_path: Path) -> None:
    shards = shards_of(4)
    job = job_in(tmp_path / "out", at=shards[0].items[13].key, fault=fault)
    with pytest.raises(InternalError, match="a worker failed") as error:
        write_shards(job, shards, 1, ignore)
    assert f"{shards[0].name}, items 10-19" in str(error.value)


def test_owners_commit_nothing_for_a_build_that_is_gone(tmp_path: Path) -> None:
    job = job_in(tmp_path / "out")
    folders = replace(job.folders, build="0" * 64)
    with pytest.raises(BuildError, match="another run has removed this file"):
        write_shards(replace(job, folders=folders), shards_of(4), 1, ignore)
    assert not tree(tmp_path / "out")


def test_a_run_that_ends_early_keeps_whole_shards_and_nothing_else(tmp_path: Path) -> None:
    """A shard whose worker ends between its rename and its receipt is written again."""
    shards = shards_of(8)
    job = job_in(tmp_path / "out")
    with pytest.raises(StoppedError):
        write_shards(job, shards, 2, stop_after(NUM_ITEMS // 4))
    files = tree(tmp_path / "out")
    names = {name for name in files if ".parquet" not in name}
    whole = by_the_parent(tmp_path / "other", shards)
    receipts = {one.removeprefix(".parts/").removesuffix(".parquet") for one in {*files} - names}
    assert {name: whole[name] for name in files} == files
    assert receipts
    assert receipts <= names
    assert len(names - receipts) <= 2, "one for each worker"


def test_log_lines_of_an_owner_are_logged_by_the_parent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = shards_of(4)
    job = job_in(tmp_path / "out", at=shards[0].items[13].key, fault="says")
    written(job, shards, 1)
    assert caplog.messages == ["waiting for the store at a host"]


@dataclass(frozen=True)
class StarvedOutput(LocalFolder):
    """A folder that lacks memory once, where a file is begun, written to or committed."""

    at: str = ""

    def _starve(self, where: str) -> None:
        mark = self.path.with_suffix(".starved")
        if where == self.at and not mark.exists():
            mark.touch()
            raise {
                "new_file": MemoryError(),
                "write": OSError(errno.ENOMEM, "Cannot allocate memory"),
                "commit": RuntimeError("can't start new thread"),
                "panic": KeyboardInterrupt(),  # no Exception, as a panic of the store's client
            }[where]

    def new_file(self, name: str, token: str = "") -> Any:
        self._starve("new_file")
        file = super().new_file(name, token)
        commit, write = file.commit, file.write

        def starved_commit() -> Any:
            self._starve("commit")
            self._starve("panic")
            return commit()

        def starved_write(data: Any) -> None:
            self._starve("write")
            write(data)

        file.commit, file.write = starved_commit, starved_write  # type: ignore[method-assign]
        return file


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["new_file", "write", "commit", "panic"])
def test_a_worker_that_lacks_memory_for_its_shard_costs_no_image(at: str, tmp_path: Path) -> None:
    shards = shards_of(6)
    job = job_in(tmp_path / "out")
    output = StarvedOutput(tmp_path / "out", at=at)
    starved = replace(job, folders=Folders(output, job.folders.state))
    assert written(starved, shards, 2) == by_the_parent(tmp_path / "other", shards)
    assert (tmp_path / "out.starved").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["starved", "rejects", "no mapping"])
def test_an_image_that_lacked_memory_is_tried_again_alone(fault: str, tmp_path: Path) -> None:
    shards = shards_of(6)
    key = shards[1].items[15].key
    job = job_in(tmp_path / "out", at=key, fault=fault, is_once=True)
    assert written(job, shards, 2) == by_the_parent(tmp_path / "other", shards)
    assert times_encoded(job)[key] == 2


def test_an_image_that_always_needs_too_much_memory_is_rejected(tmp_path: Path) -> None:
    shards = shards_of(6)
    key = shards[1].items[15].key
    job = job_in(tmp_path / "out", at=key, fault="rejects")
    written(job, shards, 2)
    row = rows_of(job, shards[1])[15]
    assert (row["key"], row["kind"], row["reason"]) == (key, "crashed", "too large")
    assert times_encoded(job)[key] == 2


@dataclass(frozen=True)
class SlowOutput(LocalFolder):
    """A folder whose files take a while to commit, with a log until it has a key twice."""

    log: Path | None = None
    key: str = ""

    def new_file(self, name: str, token: str = "") -> Any:
        file = super().new_file(name, token)
        commit = file.commit

        def slow() -> None:
            while self.log and self.log.read_text().split().count(self.key) < 2:
                time.sleep(0.01)
            time.sleep(0.2)
            commit()

        file.commit = slow  # type: ignore[method-assign]
        return file


def test_a_run_that_ends_early_waits_for_running_commits(tmp_path: Path) -> None:
    shards = shards_of(8)
    job = job_in(tmp_path / "out")
    job = replace(job, folders=Folders(SlowOutput(tmp_path / "out"), job.folders.state))
    with pytest.raises(StoppedError):  # the first is whole, and the second begun
        write_shards(job, shards, 1, stop_after(len(shards[0].items) + 1))
    assert rows_of(job, shards[0])
    assert not [name for name in tree(tmp_path / "out") if name.endswith(".tmp")]


def test_only_the_last_item_of_a_chunk_is_lost_with_a_worker_that_commits_another_shard(
    tmp_path: Path,
) -> None:
    """The other shard is lost with the worker, the nine items before it are not."""
    shards = shards_of(2)
    key = shards[0].items[9].key
    job = job_in(tmp_path / "out", at=key, fault="segfault")
    output = SlowOutput(tmp_path / "out", log=job.encoder.log, key=key)  # type: ignore[attr-defined]
    written(replace(job, folders=Folders(output, job.folders.state)), shards, 1)
    rows = rows_of(job, shards[0])
    assert [row["key"] for row in rows if row["kind"] == "crashed"] == [key]
    assert times_encoded(job)[key] == 2
    assert times_encoded(job)[shards[1].items[0].key] == 2, "it was not being committed"
