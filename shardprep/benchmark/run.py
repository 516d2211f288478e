"""Run a benchmark: each pipeline in a separate process, in turns.

A separate process has its own memory peak, and no pipeline warms up another one. The pipelines take
turns for several rounds, and the result is the median, so that other load on the machine affects
all of them alike. Only these processes import TensorFlow. They run this module:

    python -m shardprep.benchmark.run rounds PIPELINE SOURCE

`SOURCE` is JSON, and so is every line of stdout. The first line is written after the first batch:
`{"yields": dtype}`. Each line of stdin is a number of seconds. The answer is a line with the fields
of `Round` and `peak_bytes`. If the pipeline cannot run here, a line with `problem` says why, and
the process ends. Otherwise it ends at the end of stdin.

    python -m shardprep.benchmark.run timeline PIPELINE SOURCE STEP_S

draws batches and sleeps `STEP_S` seconds after each, as if an accelerator trained on it while the
cores of the host are free. It writes a `Timeline` to stdout. The work of TensorFlow is recorded by
its profiler, the work of threads of this package by timing three methods.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple
from pathlib import Path
from typing import IO, Any, Self

from pydantic import TypeAdapter

from shardprep.benchmark.pipelines import PIPELINES, Source
from shardprep.benchmark.result import Benchmark, Round, Settings, Span, Timeline, Way, union
from shardprep.dataset.folder import read_schema
from shardprep.dataset.manifest import Shard, Split, load_manifest
from shardprep.errors import DatasetError, ShardprepError
from shardprep.machine import usable_cores
from shardprep.reader.decode.features import FeatureDecoder
from shardprep.reader.diagnosis.diagnosis import images_of
from shardprep.reader.records.datasets import mean_record_bytes
from shardprep.reader.records.records import Places, Records
from shardprep.reader.selection.split_argument import AnySplit, as_selection

_MOST_BYTES = 1 << 30
"""Largest size of the records to read, in bytes; the first shard may be larger."""
_BLOCK_BYTES = 1 << 22
_PACE = "load"
"""If this pipeline runs here, its time per batch is the step time of timelines."""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""Environment variables against logs, and against use of a GPU: only work of the host counts."""

_WARM_UP_STEPS, _TRACED_STEPS = 20, 10
_MORE_TRACES = 2
"""Maximum number of further traces if a trace has recorded no reading or no decoding."""
_PS = 1e-12
_NS = 1e-9
_READ = re.compile(r"Iterator::.*::TFRecord(V\d)?$")
_DECODE = re.compile(
    r".*:(ParseExampleV2|ParseSingleExample|Decode\w+|Resize\w+|ScaleAndTranslate|Cast|RealDiv|Mul)$"
)
_CLOCK = "shardprep clock"
"""Name of an event, recorded to compare the profiler's clock with `time.perf_counter`."""
_MODULE = "shardprep.benchmark.run"


def run_benchmark(
    folder: Path, split: AnySplit, settings: Settings, notice: Callable[[str], None]
) -> Benchmark:
    """Return the speed of every pipeline on the first shards of a split, up to 1 GiB.

    A slice or a Selection is only read by the readers of this package. In timelines, a step takes
    as long as `reader.load` takes for a batch: the shortest step that it can keep up with.

    Raises:
        DatasetError: the split does not exist, a shard cannot be read, or the dataset has stacks.
    """
    if read_schema(folder).is_stack:
        what = "bench compares readers of single images, and the dataset has stacks"
        raise DatasetError(str(folder), what, "measure your training with reader.diagnose")
    with tempfile.TemporaryDirectory() as scratch:
        source, shards, num_bytes = _source(folder, split, settings.batch_size, Path(scratch))
        for shard in shards:
            _warm(folder / shard.name)
        return _measured(source, num_bytes, settings, notice)


def _measured(
    source: Source, num_bytes: int, settings: Settings, notice: Callable[[str], None]
) -> Benchmark:
    with ExitStack() as stack:
        notice("starting")  # all at the same time: this is not measured
        runs = [stack.enter_context(_PipelineProcess(name, source)) for name in PIPELINES]
        for run in runs:
            run.listen()  # for the first batch or a problem
        for turn in range(settings.rounds):
            for run in runs:
                if not run.problem:
                    notice(f"{PIPELINES[run.name].title}: round {turn + 1} of {settings.rounds}")
                    run.round(settings.seconds)
        ways = tuple(run.result(num_bytes / source.num_records) for run in runs)
    step_s, traced = 0.0, []
    rates = {way.name: way.images_s for way in ways if way.rounds}
    if settings.timelines and rates:
        step_s = settings.batch_size / rates.get(_PACE, max(rates.values()))
        for name in (name for name in rates if PIPELINES[name].is_traced):
            notice(f"{PIPELINES[name].title}: tracing")
            traced.append(_trace(name, source, step_s))
    return Benchmark(
        path=str(source.folder),
        split=source.split,
        num_records=source.num_records,
        num_bytes=num_bytes,
        settings=settings,
        num_cores=usable_cores(),
        ways=ways,
        timelines=tuple(timeline for timeline in traced if timeline is not None),
        step_s=step_s,
    )


def _trace(name: str, source: Source, step_s: float) -> Timeline | None:
    """Return the timeline of a pipeline, or None if tracing fails, e.g. without the profiler."""
    done = subprocess.run(  # noqa: S603 - a module of ours
        _command("timeline", name, source, str(step_s)),
        capture_output=True, text=True, check=False, env={**os.environ, **_QUIET},
    )  # fmt: skip
    if done.returncode:
        return None
    return TypeAdapter(Timeline).validate_json(done.stdout)


def _command(task: str, name: str, source: Source, *arguments: str) -> list[str]:
    given = json.dumps(astuple(source), default=str)
    return [sys.executable, "-m", _MODULE, task, name, given, *arguments]


def _source(
    folder: Path, split: AnySplit, batch_size: int, scratch: Path
) -> tuple[Source, Sequence[Shard], int]:
    """Return the records to read, their shards, and their size in bytes.

    If `split` is not the name of a split, a Selection of its records is saved in `scratch`.
    """
    manifest = load_manifest(folder)
    if isinstance(split, str) and split in manifest.splits:
        shards = _first_shards(manifest.splits[split])
        num_records = sum(shard.num_records for shard in shards)
        source = Source(folder, split, num_records, batch_size)
        return source, shards, sum(shard.num_bytes for shard in shards)
    mean = mean_record_bytes(manifest)
    chosen = as_selection(manifest, split)[: int(_MOST_BYTES / mean) or 1]
    file = chosen.save(scratch / "selection.npz")
    source = Source(folder, chosen.name, len(chosen), batch_size, str(file))
    return source, Places.of(manifest, chosen.numbers).shards, round(mean * len(chosen))


def _first_shards(split: Split) -> list[Shard]:
    shards: list[Shard] = []
    num_bytes = 0
    for shard in split.shards:
        num_bytes += shard.num_bytes
        if shards and num_bytes > _MOST_BYTES:
            break
        shards.append(shard)
    return shards


def _warm(path: Path) -> None:
    """Read a file into the page cache, so that no pipeline waits for the disk."""
    try:
        with path.open("rb") as file:
            while file.read(_BLOCK_BYTES):
                pass
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise DatasetError(str(path), what, "build the set again") from error


class _PipelineProcess:
    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.problem = ""
        self._facts: dict[str, Any] = {}
        self._rounds: list[Round] = []
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process: Any = subprocess.Popen(  # noqa: S603 - a module of ours
            _command("rounds", name, source),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, **_QUIET},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def round(self, seconds: float) -> None:
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        facts = self.listen()
        if facts is not None:
            self._rounds.append(Round(**{key: facts[key] for key in Round.__slots__}))

    def result(self, image_bytes: float) -> Way:
        if self.problem:
            return Way(self.name, self.problem)
        yields, peak_bytes = self._facts["yields"], self._facts["peak_bytes"]
        return Way.measured(self.name, self._rounds, yields, peak_bytes, image_bytes)

    def listen(self) -> dict[str, Any] | None:
        """Return the next line of the process, or None after setting `problem`."""
        line = self._process.stdout.readline()
        facts: dict[str, Any] = json.loads(line) if line else {"problem": self._ending()}
        self.problem = facts.get("problem", "")
        self._facts |= facts
        return None if self.problem else facts

    def _ending(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"ended {how}: {lines[-1]}" if lines else f"ended {how}"


# --- in the process of a pipeline ---


def measure(make: Callable[[Source], Any], source: Source, seconds: float) -> Round:
    """Return a measured round of a new pipeline.

    The time to the first batch is separate: it includes opening files, building a graph and filling
    shuffle windows.
    """
    start = time.perf_counter()
    batches = iter(make(source))
    next(batches)
    begin, cpu = time.perf_counter(), time.process_time()
    num_images, end = 0, begin
    while end - begin < seconds:
        num_images += len(images_of(next(batches)))
        end = time.perf_counter()
    return Round(begin - start, num_images, end - begin, time.process_time() - cpu)


def trace(name: str, source: Source, step_s: float) -> Timeline:
    """Return the timeline of some steps of a pipeline.

    If nothing was read or nothing decoded, because batches were ready, later steps are traced.
    """
    batches = iter(PIPELINES[name].make(source))
    for _ in range(_WARM_UP_STEPS):  # until tf.data has adapted its numbers of threads
        next(batches)
        time.sleep(step_s)
    timeline, left = _traced(name, source, batches, step_s), _MORE_TRACES
    while left and not (timeline.read and timeline.decode):
        timeline, left = _traced(name, source, batches, step_s), left - 1
    return timeline


def _rounds(name: str, source: Source) -> None:
    try:
        make = PIPELINES[name].make
        images = images_of(next(iter(make(source))))
        _write(yields=images.dtype.name)
        for line in sys.stdin:
            done = measure(make, source, float(line))
            _write(**asdict(done), peak_bytes=_peak_bytes())
    except ModuleNotFoundError as error:
        _write(problem=f"{error.name} is not installed")
    except ShardprepError as error:
        _write(problem=str(error))
    except Exception as error:  # from TensorFlow, for example; the table shows it
        _write(problem=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _write(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _peak_bytes() -> int:
    """Return the memory peak of this process in bytes, or 0 if the system is not Linux.

    `getrusage` would include the peak of the parent process.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def _traced(name: str, source: Source, batches: Iterator[Any], step_s: float) -> Timeline:
    steps: list[Span] = []
    with (
        _timed(Records, "payload") as read,
        _timed(Records, "read") as read_many,
        _timed(FeatureDecoder, "_image") as decode,
        _profiled() as events,
    ):
        for _ in range(_TRACED_STEPS):
            next(batches)
            start = time.perf_counter()
            time.sleep(step_s)
            steps.append((start, time.perf_counter()))
    begin, stop = steps[0][0], steps[-1][1]

    def rows(spans: Iterable[Span]) -> tuple[Span, ...]:
        inside = ((max(start, begin), min(end, stop)) for start, end in spans)
        return tuple((a - begin, b - begin) for a, b in union(inside))

    read += read_many
    read += [(start, end) for event, start, end in events if _READ.match(event)]
    decode += [(start, end) for event, start, end in events if _DECODE.match(event)]
    return Timeline(
        way=name,
        num_images=(_TRACED_STEPS - 1) * source.batch_size,
        elapsed_s=steps[-1][0] - begin,
        read=rows(read),
        decode=rows(decode),
        train=rows(steps),
    )


@contextmanager
def _timed(owner: type, method: str) -> Iterator[list[Span]]:
    """Yield a list that gets the spans of all calls of a method while the block runs."""
    original = getattr(owner, method)
    spans: list[Span] = []

    @functools.wraps(original)
    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*arguments, **options)
        finally:
            spans.append((start, time.perf_counter()))

    setattr(owner, method, timed)
    try:
        yield spans
    finally:
        setattr(owner, method, original)


@contextmanager
def _profiled() -> Iterator[list[tuple[str, float, float]]]:
    """Yield a list that gets TensorFlow's events at the end: name, start, end by `perf_counter`."""
    events: list[tuple[str, float, float]] = []
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:  # a pipeline without TensorFlow
        yield events
        return
    with tempfile.TemporaryDirectory(prefix="shardprep-") as folder:
        tf.profiler.experimental.start(folder)
        now = time.perf_counter()
        with tf.profiler.experimental.Trace(_CLOCK):
            pass
        yield events
        tf.profiler.experimental.stop()
        recorded = list(_events(Path(folder)))
    behind = now - next(start for name, start, _ in recorded if name == _CLOCK)
    events += [(name, start + behind, end + behind) for name, start, end in recorded]


def _events(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Yield (name, start, end) of the events of the host, in seconds of the profiler's clock."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    for plane in space.planes:
        if not plane.name.startswith("/host:CPU"):
            continue
        names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns * _NS + event.offset_ps * _PS
                name = names[event.metadata_id].split("#")[0]
                yield name, start, start + event.duration_ps * _PS


def main(arguments: list[str]) -> None:
    """Measure rounds of a pipeline until stdin ends, or trace its timeline once."""
    task, name, given, *step_s = arguments
    folder, *others = json.loads(given)
    source = Source(Path(folder), *others)
    if task == "rounds":
        _rounds(name, source)
    else:
        _write(**asdict(trace(name, source, float(*step_s))))


if __name__ == "__main__":
    main(sys.argv[1:])
