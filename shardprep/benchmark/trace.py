"""When reading, decoding and training were at work, as TensorFlow's own profiler saw it.

    python -m shardprep.benchmark.trace WAY FOLDER SPLIT NUM_RECORDS BATCH_SIZE STEP_S

draws batches and spends `STEP_S` seconds on each, as a training step on an accelerator would,
which leaves the host's cores alone; writes one object of JSON to stdout. The pipeline is traced
as it is: nothing is put into it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.benchmark.pipelines import WAYS, Source
from shardprep.benchmark.result import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WARM_UP_STEPS, _TRACED_STEPS = 20, 10
_PS = 1e-12
_NS = 1e-9
_READ = re.compile(r"Iterator::.*::TFRecord(V\d)?$")
_DECODE = re.compile(
    r".*:(ParseExampleV2|ParseSingleExample|Decode\w+|Resize\w+|ScaleAndTranslate|Cast|RealDiv|Mul)$"
)
_TRAIN = "shardprep train"


def trace(way: str, source: Source, step_s: float) -> Timeline:
    """Take some steps, and return what was at work when."""
    import tensorflow as tf

    batches = iter(WAYS[way](source))
    for _ in range(_WARM_UP_STEPS):  # until tf.data has found how many threads to use
        next(batches)
        time.sleep(step_s)
    with tempfile.TemporaryDirectory(prefix="shardprep-") as folder:
        tf.profiler.experimental.start(folder)
        for number in range(_TRACED_STEPS):
            next(batches)
            with tf.profiler.experimental.Trace(_TRAIN, step_num=number):
                time.sleep(step_s)
        tf.profiler.experimental.stop()
        events = list(_events(Path(folder)))
    steps = [(start, end) for name, start, end in events if name == _TRAIN]
    begin, stop = min(start for start, _ in steps), max(end for _, end in steps)

    def rows(spans: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        inside = ((max(start, begin), min(end, stop)) for start, end in spans)
        return tuple((a - begin, b - begin) for a, b in union(inside))

    return Timeline(
        way=way,
        num_images=(_TRACED_STEPS - 1) * source.batch_size,
        elapsed_s=max(start for start, _ in steps) - begin,
        read=rows((start, end) for name, start, end in events if _READ.match(name)),
        decode=rows((start, end) for name, start, end in events if _DECODE.match(name)),
        train=rows(steps),
    )


def union(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the times when at least one of the spans was running, in order."""
    current: tuple[float, float] | None = None
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if current is not None and start <= current[1]:
            current = (current[0], max(current[1], end))
            continue
        if current is not None:
            yield current
        current = (start, end)
    if current is not None:
        yield current


def _events(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Yield (name, start, end) of what the host did, seconds of one clock."""
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
    """Trace one way, and print what was seen."""
    way, folder, split, num_records, batch_size, step_s = arguments
    source = Source(Path(folder), split, int(num_records), int(batch_size))
    sys.stdout.write(json.dumps(asdict(trace(way, source, float(step_s)))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
