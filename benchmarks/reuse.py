"""After the build: `build --reuse`, `repack` and `export` against a fresh build, `cp` and `tar`.

All are whole processes; shards are in the page cache, and what is written is synced by ours alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import photos
from benchmarks.measure import ROOT, Measure, Row, built, interleaved, run, shardprep
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.measure import Cost

REUSE = Measure("`build --reuse` with 1% new of 25,000 photos / the fresh build", ">= 8")
REPACK = Measure("`repack` of them, 224 px, from 20 to 64 shards / `cp -r`", ">= 0.4")
EXPORT = Measure("`export --to webdataset` of them / `tar c` of the same files", ">= 0.4")
MERGE_MB = Measure(
    "peak memory of a merge of two such sets − of the numpy reader", "<= 100 MB", "MB"
)
MEASURES = (REUSE, REPACK, EXPORT, MERGE_MB)
_OPTIONS = ("--name", "photos", "--size", "224x224")
_READ = """
import sys
from shardprep import reader
for image in reader.Dataset(sys.argv[1], "train"):
    pass
"""


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios of times, and the difference of peaks, of which one run is made."""
    number = 200 if quick else 25_000
    old = photos.write_folder(folder / "old", number, links=True)
    path = built(folder / "sets", old, *_OPTIONS, "--shards", 20)
    other = built(folder / "others", old, *_OPTIONS, "--shards", 20)
    new = folder / "new"
    shutil.copytree(old, new, copy_function=os.link)
    for i, data in enumerate(photos.originals()[: number // 100]):
        (new / "cat" / f"new_{i}.jpg").write_bytes(data + b"%d" % i)
    export = ("export", path, "--to", "webdataset", "--out", folder / "export")
    shardprep(folder, *export)
    files = sorted((folder / "export").glob("*.tar"))
    build = ("build", new, *_OPTIONS, "--shards", 20, "--out", folder / "out")
    repack = ("repack", path, "--shards", 64, "--out", folder / "out")
    cost = interleaved(
        {
            "fresh": _cleared(folder / "out", lambda: shardprep(folder, *build)),
            "reuse": _cleared(folder / "out", lambda: shardprep(folder, *build, "--reuse", path)),
            "cp": _cleared(folder / "out", lambda: run(["cp", "-r", path, folder / "out"], folder)),
            "repack": _cleared(folder / "out", lambda: shardprep(folder, *repack)),
            "tar": _cleared(
                folder / "out", lambda: run(["tar", "cf", folder / "out", *files], folder)
            ),
            "export": _cleared(folder / "export", lambda: shardprep(folder, *export)),
        },
        rounds,
    )
    merge = [sys.executable, "-m", "shardprep", "repack", path, other, "--name", "both"]
    peaks = [
        _peak_bytes([*merge, "--shards", 20, "--out", folder / "merged"]) / 1e6,
        _peak_bytes([sys.executable, "-c", _READ, path]) / 1e6,
    ]

    def row(measure: Measure, ours: str, theirs: str) -> Row:
        one, two = cost[ours].wall_s, cost[theirs].wall_s
        return measure.came_to(two / one, f"{one:.2f} / {two:.2f} s")

    return [
        row(REUSE, "reuse", "fresh"),
        row(REPACK, "repack", "cp"),
        row(EXPORT, "export", "tar"),
        MERGE_MB.came_to(peaks[0] - peaks[1], f"{peaks[0]:,.0f} − {peaks[1]:,.0f} MB"),
    ]


def _cleared(place: Path, way: Callable[[], Cost]) -> Callable[[], Cost]:
    """Return a way that finds nothing of what it or another has written before."""

    def cleared() -> Cost:
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        return way()

    return cleared


def _peak_bytes(command: Sequence[object]) -> int:
    """Return the largest memory that one process had, by the kernel's mark."""
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, int(status.split("VmHWM:")[1].split()[0]) * 1024)
        time.sleep(0.01)
    if process.returncode:
        sys.exit(f"{command}: exit code {process.returncode}")
    return peak


if __name__ == "__main__":
    alone(rows, __doc__)
