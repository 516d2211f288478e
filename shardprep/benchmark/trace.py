"""The process that traces one pipeline: when it read, decoded and trained.

    python -m shardprep.benchmark.trace PIPELINE FOLDER SPLIT NUM_RECORDS BATCH_SIZE CHOSEN STEP_S

draws batches and spends `STEP_S` seconds on each, as a training step on an accelerator would,
which leaves the host's cores alone; writes one object of JSON, a `Timeline`, to stdout. Work of
TensorFlow is seen by its own profiler, work of this package's threads by timing two methods.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.benchmark.pipelines import PIPELINES, Source
from shardprep.benchmark.result import Timeline, union
from shardprep.reader.decode.features import Values
from shardprep.reader.records.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardprep.benchmark.result import Span

_WARM_UP_STEPS, _TRACED_STEPS = 20, 10
_MORE_TRACES = 2
"""Times that steps are traced again, at most, where none of them had to read or decode."""
_PS = 1e-12
_NS = 1e-9
_READ = re.compile(r"Iterator::.*::TFRecord(V\d)?$")
_DECODE = re.compile(
    r".*:(ParseExampleV2|ParseSingleExample|Decode\w+|Resize\w+|ScaleAndTranslate|Cast|RealDiv|Mul)$"
)
_CLOCK = "shardprep clock"
"""Name of the event by which the profiler's clock is set to that of this module."""


def trace(name: str, source: Source, step_s: float) -> Timeline:
    """Return the timeline of some steps of a pipeline.

    A pipeline may have all that these steps take ready before them: then later ones are traced.
    """
    batches = iter(PIPELINES[name].make(source))
    for _ in range(_WARM_UP_STEPS):  # until tf.data has found how many threads to use
        next(batches)
        time.sleep(step_s)
    timeline = _traced(name, source, batches, step_s)
    for _ in range(_MORE_TRACES):
        if timeline.read and timeline.decode:
            break
        timeline = _traced(name, source, batches, step_s)
    return timeline


def _traced(name: str, source: Source, batches: Iterator[Any], step_s: float) -> Timeline:
    steps: list[Span] = []
    with (
        _timed(Records, "payload") as read,
        _timed(Records, "read") as read_many,
        _timed(Values, "fill") as decode,
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
    """Record the calls of a method, in whichever thread, until the block ends."""
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
    if tf is None:  # the pipeline does without
        yield events
        return
    with tempfile.TemporaryDirectory(prefix="shardprep-") as folder:
        tf.profiler.experimental.start(folder)
        now = time.perf_counter()
        with tf.profiler.experimental.Trace(_CLOCK):
            pass
        yield events
        tf.profiler.experimental.stop()
        found = list(_events(Path(folder)))
    behind = now - next(start for name, start, _ in found if name == _CLOCK)
    events += [(name, start + behind, end + behind) for name, start, end in found]


def _events(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and end of the events of the host, seconds of one clock."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    for plane in space.planes:
        if not plane.name.startswith("/host:CPU"):
            continue
        names = {number: one.name for number, one in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns * _NS + event.offset_ps * _PS
                name = names[event.metadata_id].split("#")[0]
                yield name, start, start + event.duration_ps * _PS


def main(arguments: list[str]) -> None:
    """Write the timeline of one pipeline to stdout."""
    name, *rest, step_s = arguments
    timeline = trace(name, Source.parsed(*rest), float(step_s))
    sys.stdout.write(json.dumps(asdict(timeline)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
