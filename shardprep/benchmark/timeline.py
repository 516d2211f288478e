"""When a pipeline reads, decodes and trains: traced in the process of the pipeline.

An accelerator that trains on a batch while the cores of the host are free is represented by a
sleep. The work of TensorFlow is recorded by its profiler, the work of threads of this package by
timing three methods.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardprep.benchmark.pipelines import PIPELINES, Source
from shardprep.benchmark.result import Span, Timeline, union
from shardprep.reader.decode.features import FeatureDecoder
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
