"""Processor time of the parent of a build, which is the serial part, and of its workers.

Each run is a whole `shardprep build` that reports the time of the parent and of the workers at its
end. A build of two photos gives the cost of starting, which is subtracted; the rest grows with the
dataset. There are many shards, as with many workers, so that workers own all shards except one.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from typing import TYPE_CHECKING

from benchmarks import photos
from benchmarks.measure import Measure, Row, run
from benchmarks.table import alone

if TYPE_CHECKING:
    from pathlib import Path

SHARE = Measure("parent's share of processor time, 2 workers, without start-up", "<= 8 %", "%")
SHARE_WHOLE = Measure("the same, start-up and imports included", "", "%")
PARENT_US = Measure("parent, per image", "", "µs")
WORKER_US = Measure("workers, per image", "", "µs")
IMAGE_BYTES = Measure("a stored record", "", "bytes")
MEASURES = (SHARE, SHARE_WHOLE, PARENT_US, WORKER_US, IMAGE_BYTES)

_FEW = 2
_SHARDS = 32
_ACCOUNT = """
import json, resource, sys
from multiprocessing import forkserver
from pathlib import Path
from shardprep.cli.app import main
report = Path(sys.argv.pop(1))
try:
    main()
finally:
    forkserver._forkserver._stop()  # else nobody waits for it, and its children count for no one
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    report.write_text(json.dumps([one.ru_utime + one.ru_stime for one in used]))
"""


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the shares of the parent, and the costs per image that `scaling` needs."""
    number = 200 if quick else 16_000
    many = photos.write_folder(folder / "many", number, links=True)
    few = photos.write_folder(folder / "few", _FEW)
    runs = []
    for _ in range(rounds):
        start, whole = (_used(folder, source) for source in (few, many))
        runs.append((*whole, *(a - b for a, b in zip(whole, start, strict=True))))
    num_bytes = sum(path.stat().st_size for path in (folder / "out").glob("*/*/*.tfrecord-*"))
    parent, workers, more_parent, more_workers = map(statistics.median, zip(*runs, strict=True))
    each_us = 1e6 / (number - _FEW)
    figures = f"{more_parent:.1f} s of {more_parent + more_workers:.1f} s, {number:,} photos"
    return [
        SHARE.came_to(100 * more_parent / (more_parent + more_workers), figures),
        SHARE_WHOLE.came_to(
            100 * parent / (parent + workers), f"{parent:.1f} s of {parent + workers:.1f} s"
        ),
        PARENT_US.came_to(more_parent * each_us, "gives out chunks, counts, plan and tables"),
        WORKER_US.came_to(more_workers * each_us, "read, decode, resize, encode"),
        IMAGE_BYTES.came_to(num_bytes / number, "on the average"),
    ]


def scaling(found: list[Row]) -> str:
    """Return a text on the number of workers that one parent can feed, from the rows of a run."""
    value = {row.measure: row.value for row in found}
    parent, worker = value[PARENT_US], value[WORKER_US]
    rate = 1e6 / parent
    return (
        f"The parent needs *p* = {parent:,.0f} µs of one core for each image, a worker *w* = "
        f"{worker:,.0f} µs. One parent can feed *w* / *p* = {worker:,.0f} / {parent:,.0f} = "
        f"**{worker / parent:,.0f} workers**. This is {rate:,.0f} images/s, if the parent and each "
        f"worker have a core of their own. With {value[IMAGE_BYTES]:,.0f} bytes for each record, "
        f"{rate * value[IMAGE_BYTES] / 1e6:,.0f} MB/s are written into the shards."
    )


def _used(folder: Path, source: Path) -> tuple[float, float]:
    """Return processor seconds of the parent and of its workers, for a build from nothing."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    report = folder / "used.json"
    shards = max(1, min(_SHARDS, len(list(source.glob("*/*")))))
    build = ["build", source, "--out", out, "--workers", 2, "--shards", shards]
    run([sys.executable, "-c", _ACCOUNT, report, *build], folder)
    parent, workers = json.loads(report.read_text())
    return parent, workers


if __name__ == "__main__":
    alone(rows, __doc__)
