"""The process that measures one pipeline.

    python -m shardprep.benchmark.measure PIPELINE FOLDER SPLIT NUM_RECORDS BATCH_SIZE CHOSEN

Its contract with `shardprep.benchmark.run`: every line of stdout is an object of JSON. The first
comes when the pipeline has given a batch, `{"yields": dtype}`. Each line of stdin is a number of
seconds and is answered by one measured round: the fields of `Round`, and `peak_bytes`. An object
with `problem` says in one line why the pipeline cannot run here, and is the last one. The process
ends when stdin does.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.benchmark.pipelines import PIPELINES, Source, images_of
from shardprep.benchmark.result import Round
from shardprep.errors import ShardprepError

if TYPE_CHECKING:
    from collections.abc import Callable


def measure(make: Callable[[Source], Any], source: Source, seconds: float) -> Round:
    """Return a round of so many seconds on a pipeline that is built for it.

    The first batch is timed apart: it is opening files, building a graph, filling windows.
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


def _peak_bytes() -> int:
    """Return the most memory that this program has held, 0 where the system is not Linux.

    `getrusage` would count what its parent held.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Measure rounds of one pipeline until stdin ends."""
    name, *rest = arguments
    try:
        make, source = PIPELINES[name].make, Source.parsed(*rest)
        images = images_of(next(iter(make(source))))
        _say(yields=images.dtype.name)
        for line in sys.stdin:
            done = measure(make, source, float(line))
            _say(**asdict(done), peak_bytes=_peak_bytes())
    except ModuleNotFoundError as error:
        _say(problem=f"{error.name} is not installed")
    except ShardprepError as error:
        _say(problem=str(error))
    except Exception as error:  # TensorFlow raises what it likes; the row says it
        _say(problem=f"{type(error).__name__}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
