"""Run a benchmark: each pipeline in a separate process, in turns.

A separate process has its own memory peak, and no pipeline warms up another one. The pipelines take
turns for several rounds, and the result is the median, so that other load on the machine affects
all of them alike. Only these processes import TensorFlow.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

from shardprep.benchmark.pipelines import PIPELINES, Source
from shardprep.benchmark.result import Benchmark, Round, Settings, Way
from shardprep.dataset.folder import read_schema
from shardprep.dataset.manifest import load_manifest
from shardprep.errors import DatasetError, ShardprepError, use_one_of
from shardprep.machine import usable_cores
from shardprep.processes import (
    SpawnedContext,
    begin_worker,
    die_with_parent,
    interrupts_blocked,
    silence_stderr,
)
from shardprep.reader.diagnosis.steps import images_of

_MOST_BYTES = 1 << 30
"""Largest size of the records to read, in bytes; the first shard may be larger."""
_BLOCK_BYTES = 1 << 22
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""Environment variables that silence logs and hide GPUs, because only work of the host counts."""


def run_benchmark(
    folder: Path, split: str, settings: Settings, notice: Callable[[str], None]
) -> Benchmark:
    """Return the speed of every pipeline on the first shards of a split, up to 1 GiB.

    DatasetError if the split is missing, a shard cannot be read, or the dataset has stacks.
    """
    if read_schema(folder).is_stack:
        what = "bench compares readers of single images, and the dataset has stacks"
        raise DatasetError(str(folder), what, "measure your training with reader.diagnose")
    splits = load_manifest(folder).splits
    if split not in splits:
        raise DatasetError(str(folder), f"has no split {split!r}", use_one_of(split, splits))
    shards = splits[split].shards
    ends = itertools.accumulate(shard.num_bytes for shard in shards)
    shards = shards[: max(1, sum(end <= _MOST_BYTES for end in ends))]
    num_records = sum(shard.num_records for shard in shards)
    names = tuple(shard.name for shard in shards)
    source = Source(folder, f"{split}[:{num_records}]", names, settings.batch_size)
    for file in source.files:
        _warm(Path(file))
    with ExitStack() as stack:
        pools = {
            name: stack.enter_context(ProcessPoolExecutor(1, SpawnedContext(), _begin))
            for name in PIPELINES
        }
        ways = _ways(pools, source, settings, notice)
    return Benchmark(
        path=str(folder),
        split=split,
        num_records=num_records,
        num_bytes=sum(shard.num_bytes for shard in shards),
        settings=settings,
        num_cores=usable_cores(),
        ways=ways,
    )


def _ways(
    pools: dict[str, ProcessPoolExecutor],
    source: Source,
    settings: Settings,
    notice: Callable[[str], None],
) -> tuple[Way, ...]:
    notice("starting")  # all pipelines at once, because starting is not measured
    with interrupts_blocked():
        jobs = {name: [pool.submit(measure, name, source, 0.0)] for name, pool in pools.items()}
    wait(job for (job,) in jobs.values())
    for turn, (name, pool) in itertools.product(range(settings.rounds), pools.items()):
        if jobs[name][-1].exception() is None:
            notice(f"{PIPELINES[name].title}: round {turn + 1} of {settings.rounds}")
            jobs[name].append(pool.submit(measure, name, source, settings.seconds))
            wait(jobs[name])
    return tuple(_way(name, done) for name, done in jobs.items())


def _way(name: str, jobs: list[Future[tuple[Round, str, int]]]) -> Way:
    if error := jobs[-1].exception():  # from TensorFlow, for example; the table shows it
        kind = "" if isinstance(error, ShardprepError) else f"{type(error).__name__}: "
        return Way(name, f"{kind}{error}".splitlines()[0])
    rounds, (*_, yields), (*_, peak_bytes) = zip(*(job.result() for job in jobs), strict=True)
    return Way.measured(name, rounds[1:], yields, peak_bytes)


def _warm(path: Path) -> None:
    """Read a file into the page cache, so that no pipeline waits for the disk."""
    try:
        with path.open("rb") as file:
            while file.read(_BLOCK_BYTES):
                pass
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise DatasetError(str(path), what, "copy or build the dataset again") from error


# --- in the process of a pipeline ---


def _begin() -> None:
    """Let Ctrl-C or the end of the parent end this process, without a message."""
    die_with_parent()
    silence_stderr()
    begin_worker()
    os.environ.update(_QUIET)


def measure(name: str, source: Source, seconds: float) -> tuple[Round, str, int]:
    """Return a round of a new pipeline, the dtype of its images, and the process's peak memory.

    The round takes `seconds` after the first batch. The time to the first batch is separate: it
    includes opening files, building a graph and filling shuffle windows. Memory is in bytes.
    """
    start = time.perf_counter()
    batches = iter(PIPELINES[name].make(source))
    dtype = images_of(next(batches)).dtype.name
    begin, cpu = time.perf_counter(), time.process_time()
    num_images, end = 0, begin
    while end - begin < seconds:
        num_images += len(images_of(next(batches)))
        end = time.perf_counter()
    measured = Round(begin - start, num_images, end - begin, time.process_time() - cpu)
    return measured, dtype, _peak_bytes()


def _peak_bytes() -> int:
    """Return the peak memory in bytes, 0 outside Linux. `getrusage` would include the parent's."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
