"""Run a benchmark: each pipeline in a separate process, in turns.

A separate process has its own memory peak, and no pipeline warms up another one. The pipelines take
turns for several rounds, and the result is the median, so that other load on the machine affects
all of them alike. Only these processes import TensorFlow.

A timeline says when a pipeline reads, decodes and trains: it is traced in the process of the
pipeline. An accelerator that trains on a batch while the cores of the host are free is represented
by a sleep. The work of TensorFlow is recorded by its profiler, the work of threads of this package
by timing three methods.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shardprep.benchmark.pipelines import PIPELINES, Source
from shardprep.benchmark.result import Benchmark, Round, Settings, Span, Timeline, Way, union
from shardprep.dataset.folder import read_schema
from shardprep.dataset.manifest import load_manifest
from shardprep.errors import DatasetError, ShardprepError
from shardprep.machine import usable_cores
from shardprep.processes import (
    SpawnedContext,
    die_with_parent,
    interrupts_blocked,
    silence_stderr,
)
from shardprep.reader.decode.features import FeatureDecoder
from shardprep.reader.diagnosis.diagnosis import images_of
from shardprep.reader.records.records import Records

_WARM_UP_STEPS, _TRACED_STEPS = 20, 10
_MOST_TRACES = 3
"""Maximum number of traces: if one has no reading or no decoding, batches were ready."""
_PS = 1e-12
_NS = 1e-9
_READ = re.compile(r"Iterator::.*::TFRecord(V\d)?$")
_DECODE = re.compile(
    r".*:(ParseExampleV2|ParseSingleExample|Decode\w+|Resize\w+|ScaleAndTranslate|Cast|RealDiv|Mul)$"
)
_CLOCK = "shardprep clock"
"""Name of an event, recorded to compare the profiler's clock with `time.perf_counter`."""


def trace(name: str, source: Source, step_s: float) -> Timeline:
    """Return the timeline of some steps of a pipeline; the process is of no use afterwards."""
    read = _timed(Records, "payload", "read")
    decode = _timed(FeatureDecoder, "_image")
    batches = iter(PIPELINES[name].make(source))
    for _ in range(_WARM_UP_STEPS):  # until tf.data has adapted its numbers of threads
        next(batches)
        time.sleep(step_s)
    found = Timeline(name, (), (), ())
    for _ in range(_MOST_TRACES):
        if found.read and found.decode:
            break
        steps: list[Span] = []
        with _profiled() as events:
            for _ in range(_TRACED_STEPS):
                next(batches)
                start = time.perf_counter()
                time.sleep(step_s)
                steps.append((start, time.perf_counter()))
        read += (span for event, span in events if _READ.match(event))
        decode += (span for event, span in events if _DECODE.match(event))
        found = Timeline(name, _within(steps, read), _within(steps, decode), _within(steps, steps))
    return found


def _within(steps: Sequence[Span], spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the union of spans during the steps, in seconds from the start of the first step."""
    begin, stop = steps[0][0], steps[-1][1]
    inside = ((max(start, begin) - begin, min(end, stop) - begin) for start, end in spans)
    return tuple(union(inside))


def _timed(owner: type, *methods: str) -> list[Span]:
    """Return a list that gets the spans of all later calls of some methods."""
    spans: list[Span] = []

    def timing(original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = original(*arguments, **options)
            spans.append((start, time.perf_counter()))
            return result

        return timed

    for method in methods:
        setattr(owner, method, timing(getattr(owner, method)))
    return spans


@contextmanager
def _profiled() -> Iterator[list[tuple[str, Span]]]:
    """Yield a list that gets TensorFlow's events at the end, with times by `perf_counter`."""
    events: list[tuple[str, Span]] = []
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:  # a pipeline without TensorFlow
        yield events
        return
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    with tempfile.TemporaryDirectory(prefix="shardprep-") as folder:
        tf.profiler.experimental.start(folder)
        now = time.perf_counter()
        with tf.profiler.experimental.Trace(_CLOCK):
            pass
        yield events
        tf.profiler.experimental.stop()
        (path,) = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        space.ParseFromString(path.read_bytes())
    for plane in (one for one in space.planes if one.name.startswith("/host:CPU")):
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name.split("#")[0]
                start = line.timestamp_ns * _NS + event.offset_ps * _PS
                events.append((name, (start, start + event.duration_ps * _PS)))
    behind = now - next(start for name, (start, _) in events if name == _CLOCK)
    events[:] = [(name, (start + behind, end + behind)) for name, (start, end) in events]


_MOST_BYTES = 1 << 30
"""Largest size of the records to read, in bytes; the first shard may be larger."""
_BLOCK_BYTES = 1 << 22
_PACE = "load"
"""If this pipeline runs here, its time per batch is the step time of timelines."""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""Environment variables against logs, and against use of a GPU: only work of the host counts."""


def run_benchmark(
    folder: Path, split: str, settings: Settings, notice: Callable[[str], None]
) -> Benchmark:
    """Return the speed of every pipeline on the first shards of a split, up to 1 GiB.

    In timelines, a step takes as long as `reader.load` takes for a batch: the shortest step that
    it can keep up with.

    Raises:
        DatasetError: the split does not exist, a shard cannot be read, or the dataset has stacks.
    """
    if read_schema(folder).is_stack:
        what = "bench compares readers of single images, and the dataset has stacks"
        raise DatasetError(str(folder), what, "measure your training with reader.diagnose")
    splits = load_manifest(folder).splits
    if split not in splits:
        raise DatasetError(str(folder), f"has no split {split!r}", f"it has {', '.join(splits)}")
    shards = splits[split].shards
    ends = itertools.accumulate(shard.num_bytes for shard in shards)
    shards = shards[: max(1, sum(end <= _MOST_BYTES for end in ends))]
    num_records = sum(shard.num_records for shard in shards)
    names = tuple(shard.name for shard in shards)
    source = Source(folder, f"{split}[:{num_records}]", names, settings.batch_size)
    for file in source.files:
        _warm(Path(file))
    traces = []
    with ExitStack() as stack:
        pools = {name: stack.enter_context(_process()) for name in PIPELINES}
        ways = _ways(pools, source, settings, notice)
        rates = {way.name: way.images_s for way in ways if way.rounds}
        step_s = settings.batch_size / rates.get(_PACE, max(rates.values(), default=1.0))
        for name in rates:
            if settings.timelines and PIPELINES[name].is_traced:
                notice(f"{PIPELINES[name].title}: tracing")
                traces.append(pools[name].submit(trace, name, source, step_s))
                traces[-1].exception()  # waits
    return Benchmark(
        path=str(folder),
        split=split,
        num_records=num_records,
        num_bytes=sum(shard.num_bytes for shard in shards),
        settings=settings,
        num_cores=usable_cores(),
        ways=ways,
        # Tracing fails without the profiler, for example.
        timelines=tuple(job.result() for job in traces if job.exception() is None),
        step_s=step_s if traces else 0.0,
    )


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, SpawnedContext(), _begin)


def _ways(
    pools: dict[str, ProcessPoolExecutor],
    source: Source,
    settings: Settings,
    notice: Callable[[str], None],
) -> tuple[Way, ...]:
    notice("starting")  # all at the same time: this is not measured
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
        raise DatasetError(str(path), what, "build the set again") from error


# --- in the process of a pipeline ---


def _begin() -> None:
    """Let Ctrl-C or the end of the parent end this process, without a message."""
    die_with_parent()
    silence_stderr()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # SIGINT was blocked when the process started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(_QUIET)


def measure(name: str, source: Source, seconds: float) -> tuple[Round, str, int]:
    """Return a round of a new pipeline, the dtype of its images and the process's memory peak.

    The time to the first batch is separate: it includes opening files, building a graph and filling
    shuffle windows.
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
    """Return the memory peak of this process in bytes, or 0 if the system is not Linux.

    `getrusage` would include the peak of the parent process.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
