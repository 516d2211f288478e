"""After the build: `build --reuse`, `repack` and `export` against a fresh build, `cp` and `tar`.

All are whole processes. Shards are in the page cache. `cp` and `tar` do not sync their files,
except in the row that says so; our commands do.
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
from benchmarks.measure import (
    ROOT,
    Measure,
    Row,
    built,
    installed_environment,
    interleaved,
    run,
    shardprep,
)
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.measure import Cost

REUSE = Measure("`build --reuse` with 1% new of 25,000 photos / the fresh build", ">= 8")
REPACK = Measure("`repack` of them, 224 px, from 20 to 64 shards / `cp -r`", ">= 0.4")
REPACK_MANY = Measure("`repack` of 250,000 photos, from 20 to 64 shards / `cp -r`", ">= 0.5")
SYNCED = Measure("the same / `cp -r` and `sync`, as `repack` syncs")
EXPORT = Measure("`export --to webdataset` of them / `tar c` of the same files", ">= 0.4")
EXPORT_MANY = Measure("`export --to webdataset` of 250,000 / `tar c` of the same files", ">= 0.6")
MERGE_MB = Measure(
    "peak memory of a merge of two such sets − of the numpy reader", "<= 100 MB", "MB"
)
MEASURES = (REUSE, REPACK, REPACK_MANY, SYNCED, EXPORT, EXPORT_MANY, MERGE_MB)
_OPTIONS = ("--name", "photos", "--size", "224x224")
_READ = """
import sys
from shardprep import reader
for image in reader.Dataset(sys.argv[1], "train"):
    pass
"""


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios of times, and the difference of peak memory in one run of each program."""
    number = 200 if quick else 25_000
    old = photos.write_folder(folder / "old", number, links=True)
    path = built(folder / "sets", old, *_OPTIONS, "--shards", 20)
    other = built(folder / "others", old, *_OPTIONS, "--shards", 20)
    many = photos.write_folder(folder / "many", 10 * number, links=True)
    new, out = folder / "new", folder / "out"
    shutil.copytree(old, new, copy_function=os.link)
    for i, data in enumerate(photos.originals()[: number // 100]):
        (new / "cat" / f"new_{i}.jpg").write_bytes(data + b"%d" % i)
    build = ("build", new, *_OPTIONS, "--shards", 20, "--out", out)
    cost = interleaved(
        {
            "fresh": _cleared(out, lambda: shardprep(folder, *build)),
            "reuse": _cleared(out, lambda: shardprep(folder, *build, "--reuse", path)),
            **_copies(folder, path, ""),
            **_copies(folder, built(folder / "large", many, *_OPTIONS, "--shards", 20), " of many"),
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
        row(REPACK_MANY, "repack of many", "cp of many"),
        row(SYNCED, "repack of many", "synced of many"),
        row(EXPORT, "export", "tar"),
        row(EXPORT_MANY, "export of many", "tar of many"),
        MERGE_MB.came_to(peaks[0] - peaks[1], f"{peaks[0]:,.0f} − {peaks[1]:,.0f} MB"),
    ]


def _copies(folder: Path, path: Path, name: str) -> dict[str, Callable[[], Cost]]:
    """Return the ways to copy a dataset in the order of their runs: tar reads the export."""
    out, tars = folder / "out", folder / "export"
    repack = ("repack", path, "--shards", 64, "--out", out)
    export = ("export", path, "--to", "webdataset", "--out", tars)
    synced = ("sh", "-c", 'cp -r "$0" "$1" && sync', path, out)
    tar = ("sh", "-c", 'tar cf "$0" "$1"/*.tar', out, tars)
    return {
        f"cp{name}": _cleared(out, lambda: run(["cp", "-r", path, out], folder)),
        f"synced{name}": _cleared(out, lambda: run(synced, folder)),
        f"repack{name}": _cleared(out, lambda: shardprep(folder, *repack)),
        f"export{name}": _cleared(tars, lambda: shardprep(folder, *export)),
        f"tar{name}": _cleared(out, lambda: run(tar, folder)),
    }


def _cleared(place: Path, way: Callable[[], Cost]) -> Callable[[], Cost]:
    """Return a way that first removes the file or folder `place`."""

    def cleared() -> Cost:
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        return way()

    return cleared


def _peak_bytes(command: Sequence[object]) -> int:
    """Run a program; return the peak memory of its first process in bytes."""
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, env=installed_environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
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
