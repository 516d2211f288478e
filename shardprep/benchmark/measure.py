"""The processes that measure and trace one pipeline.

    python -m shardprep.benchmark.measure rounds PIPELINE FOLDER SPLIT NUM_RECORDS BATCH_SIZE CHOSEN

Protocol with `shardprep.benchmark.run`: every line of stdout is a JSON object. The first follows
the first batch: `{"yields": dtype}`. Each line of stdin is a number of seconds; the answer is one
measured round, the fields of `Round` and `peak_bytes`. An object with `problem` says why the
pipeline cannot run here, and is the last one. The process ends when stdin does.

    python -m shardprep.benchmark.measure timeline PIPELINE … CHOSEN STEP_S

draws batches and sleeps `STEP_S` seconds after each, as if an accelerator trained on it while the
host's cores are free. It writes a `Timeline` to stdout. TensorFlow's work is recorded by its
profiler, the work of this package's threads by timing three methods.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardprep.benchmark.pipelines import PIPELINES, Source, images_of
from shardprep.benchmark.result import Round, Span, Timeline, union
from shardprep.errors import ShardprepError
from shardprep.reader.decode.features import FeatureDecoder
from shardprep.reader.records.records import Records

_WARM_UP_STEPS, _TRACED_STEPS = 20, 10
_MORE_TRACES = 2
"""Maximum number of further traces if no traced step had to read or decode."""
_PS = 1e-12
_NS = 1e-9
_READ = re.compile(r"Iterator::.*::TFRecord(V\d)?$")
_DECODE = re.compile(
    r".*:(ParseExampleV2|ParseSingleExample|Decode\w+|Resize\w+|ScaleAndTranslate|Cast|RealDiv|Mul)$"
)
_CLOCK = "shardprep clock"
"""Name of an event that relates the profiler's clock to `time.perf_counter`."""


def measure(make: Callable[[Source], Any], source: Source, seconds: float) -> Round:
    """Return a measured round. The first batch is timed apart, because it includes the setup."""
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
    """Return the timeline of some steps. If all their batches were ready, trace later steps."""
    batches = iter(PIPELINES[name].make(source))
    for _ in range(_WARM_UP_STEPS):  # until tf.data has adapted its number of threads
        next(batches)
        time.sleep(step_s)
    timeline = _traced(name, source, batches, step_s)
    for _ in range(_MORE_TRACES):
        if timeline.read and timeline.decode:
            break
        timeline = _traced(name, source, batches, step_s)
    return timeline


def _rounds(name: str, *arguments: str) -> None:
    try:
        make, source = PIPELINES[name].make, Source.parsed(*arguments)
        images = images_of(next(iter(make(source))))
        _write(yields=images.dtype.name)
        for line in sys.stdin:
            done = measure(make, source, float(line))
            _write(**asdict(done), peak_bytes=_peak_bytes())
    except ModuleNotFoundError as error:
        _write(problem=f"{error.name} is not installed")
    except ShardprepError as error:
        _write(problem=str(error))
    except Exception as error:  # an error of TensorFlow, for example; the table shows it
        _write(problem=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _write(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _peak_bytes() -> int:
    """Return the peak memory, 0 if not on Linux. `getrusage` would include the parent's peak."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def _traced(name: str, source: Source, batches: Iterator[Any], step_s: float) -> Timeline:
    steps: list[Span] = []
    with (
        _timed(Records, "payload") as read,
        _timed(Records, "read") as read_many,
        _timed(FeatureDecoder, "fill") as decode,
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
    """Record TensorFlow's events until the block ends: name, start and end by `perf_counter`."""
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
    """Yield name, start and end of the host's events, in seconds of the profiler's clock."""
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
    task, name, *rest = arguments
    if task == "rounds":
        _rounds(name, *rest)
    else:
        *source, step_s = rest
        _write(**asdict(trace(name, Source.parsed(*source), float(step_s))))


if __name__ == "__main__":
    main(sys.argv[1:])
