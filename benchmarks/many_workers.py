"""A simulated build on 64 cores: the limits of its parent, its shards and its disk.

This machine has fewer cores, so a worker does not encode: it sleeps 0.66 ms for each image and then
has a record of 15 KB. The rest is a real build: 64 processes, shards of 15 MB that they hash, write
and commit to a disk in memory (/dev/shm), receipts, tables and the manifest. The plan is made
beforehand.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Measure, Row, run
from benchmarks.table import alone
from shardprep.catalog.items import Item, Items
from shardprep.dataset.manifest import Fingerprint
from shardprep.dataset.schema import load_schema
from shardprep.processes import WorkerLimits
from shardprep.progress import Watch
from shardprep.recipe.recipe import Recipe, make_recipe
from shardprep.source.byte_range import PlainExtent
from shardprep.writer.chunk import EncodedChunk, Outcome
from shardprep.writer.engine.job import ShardJob
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.plan.build_plan import BuildPlan, Outline, make_outline
from shardprep.writer.plan.shard_plan import plan_shards
from shardprep.writer.run import make_dataset
from shardprep.writer.workspace.states import workspace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.writer.chunk import ChunkTask
    from shardprep.writer.engine.job import OnProgress
    from shardprep.writer.plan.shard_plan import ShardPlan
    from shardprep.writer.workspace.files import Folders

RATE = Measure("64 simulated workers: images a second", ">= 60000 /s", "/s")
PARENT = Measure("processor time of the parent during the build", "< 50 %", "% of a core")
PARENT_US = Measure("parent, per image", "", "µs")
ADMITTED = Measure("images per second that a parent with one core can handle", "", "/s")
WORKER_US = Measure("workers, per image, without encoding", "", "µs")
FINISH_US = Measure("tables and manifest in the end, per image", "", "µs")
MEASURES = (RATE, PARENT, PARENT_US, ADMITTED, WORKER_US, FINISH_US)

_NUM_WORKERS = 64
_IMAGES_A_SHARD = 1000
_WAIT_S = 0.66e-3
_RECORD_BYTES = 15_000
_SIMULATE = "import sys; from benchmarks.many_workers import simulate; simulate(*sys.argv[1:])"


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the images per second, and the time per image of the parent, workers and tables."""
    shards, workers = (4, 2) if quick else (4 * _NUM_WORKERS, _NUM_WORKERS)
    found = [_simulated(folder, shards, workers) for _ in range(rounds)]
    wall, parent, worker, finish = map(statistics.median, zip(*found, strict=True))
    number, store = shards * _IMAGES_A_SHARD, _RECORD_BYTES / wall / 1e3
    return [
        RATE.came_to(1e6 / wall, f"{number:,} images, {store:.2f} GB/s into shards"),
        PARENT.came_to(
            100 * parent / wall,
            f"{(parent + worker) / wall:.2f} cores in all, starts of workers included",
        ),
        PARENT_US.came_to(parent, "hands out chunks, counts results"),
        ADMITTED.came_to(1e6 / parent, "by arithmetic"),
        WORKER_US.came_to(worker, "start, hash, write, rows, receipt"),
        FINISH_US.came_to(finish, "one process, after the last shard"),
    ]


def _simulated(folder: Path, shards: int, workers: int) -> tuple[float, float, float, float]:
    """Return µs per image: wall time, and processor time of the parent, the workers and the tables.

    Wall time and time of the parent count from the first chunk to the last one.
    """
    report = folder / "simulated.json"
    memory = Path("/dev/shm")
    place = tempfile.mkdtemp(dir=memory if memory.is_dir() else folder)
    try:
        run([sys.executable, "-c", _SIMULATE, report, place, shards, workers], folder)
    finally:
        shutil.rmtree(place)
    wall, parent, worker, finish = json.loads(report.read_text())
    return wall, parent, worker, finish


def simulate(report: str, place: str, shards: str, workers: str) -> None:
    """Build once; write the figures of `_simulated` to a file, as JSON."""
    recipe = make_recipe({"source": "-", "out": place, "name": "simulated"}, "benchmark")
    number = int(shards) * _IMAGES_A_SHARD
    images, clock = _Simulated(recipe, _plan(number, int(shards)), int(workers)), _Clock()
    result = make_dataset(workspace_of(recipe), images, clock)
    assert result.manifest.totals.num_written == number
    finish = time.process_time() - clock.end[1]
    server: Any = forkserver
    server._forkserver._stop()  # noqa: SLF001 - else nobody waits for it, and its children count for no one
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall, parent = (end - start for start, end in zip(clock.first, clock.end, strict=True))
    workers_s = used.ru_utime + used.ru_stime
    each = (clock.num_between, clock.num_between, number, number)
    found = zip((wall, parent, workers_s, finish), each, strict=True)
    Path(report).write_text(json.dumps([1e6 * seconds / count for seconds, count in found]))


def _plan(number: int, shards: int) -> BuildPlan:
    items = Items.of(
        Item(f"photos/{i // 1000:04d}/{i:08d}.jpg", PlainExtent("-", i, 1), "train", 0)
        for i in range(number)
    )
    return BuildPlan(
        name="simulated",
        shards=plan_shards("simulated", items, shards, number * _RECORD_BYTES, 0),
        skipped=[],
        spec=make_recipe({"source": "-"}, "benchmark").image_spec,
        schema=load_schema("classification").filled((375, 500), "jpeg", ("one",), {}, {}),
        labels_from="a simulation",
        rows_without_image=(),
        columns=(),
        findings=[],
        annotations=None,
        estimated_bytes=number * _RECORD_BYTES,
    )


@dataclass(frozen=True)
class _Simulated:
    """Simulated images; implements `shardprep.writer.run.BuildImages`."""

    recipe: Recipe
    planned: BuildPlan
    num_workers: int
    work = "encoding"
    fingerprint = Fingerprint(inputs={}, options={"seed": 0}, versions={})

    def plan(self, scratch: Path, watcher: Watch) -> BuildPlan:
        del scratch, watcher
        return self.planned

    def outline(self, plan: BuildPlan, num_parts: int) -> Outline:
        return make_outline(plan, self.recipe, self.fingerprint, num_parts)

    def write(
        self,
        folders: Folders,
        plan: BuildPlan,
        shards: Sequence[ShardPlan],
        on_progress: OnProgress,
        watcher: Watch,
    ) -> None:
        del watcher
        job = ShardJob(folders, _Wait(), WorkerLimits.of(60, 10**8), plan.num_items, _RECORD_BYTES)
        write_shards(job, shards, self.num_workers, on_progress)

    def check(self) -> None:
        pass


@dataclass(frozen=True)
class _Wait:
    """Sleeps for as long as the encoding of a chunk takes."""

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        number = len(task.items)
        before_item()
        time.sleep(number * _WAIT_S)
        outcome = Outcome("", "", _RECORD_BYTES, 375, 500, "jpeg", 30_000, "5" * 64)
        return EncodedChunk(_records(number), (outcome,) * number)


@lru_cache
def _records(number: int) -> bytes:
    return bytes(range(250)) * (_RECORD_BYTES // 250) * number


class _Clock(Watch):
    """Wall and processor time at the first chunk and at the last one."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.first = self.end = (0.0, 0.0)
        self.num_between = 0

    def advance(self, number: int, num_rejected: int = 0) -> None:
        """Note the time."""
        del num_rejected
        self.end = time.perf_counter(), time.process_time()
        if self.first == (0.0, 0.0):
            self.first = self.end
        else:
            self.num_between += number


if __name__ == "__main__":
    alone(rows, __doc__)
