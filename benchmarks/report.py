"""`shardprep report`: its time, size and memory."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks import photos
from benchmarks.measure import Cost, Measure, Row, built, interleaved, run, shardprep
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WITH_PIXELS = Measure("report of 2,000 photos, without cached measurements", "< 6 s", "s")
NO_PIXELS = Measure("the same with `--no-pixels`", "< 1 s", "s")
LARGE_S = Measure("report of 100,000 records of 32x32", "< 60 s", "s")
LARGE_MB = Measure("size of that page", "<= 5 MB", "MB")
LARGE_GB = Measure("peak memory of that report", "< 1 GB", "GB")
MEASURES = (WITH_PIXELS, NO_PIXELS, LARGE_S, LARGE_MB, LARGE_GB)

_PEAK = """
import os, sys
from shardprep.cli.app import main
sys.argv[0] = "shardprep"
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print("peak", int(status.split("VmHWM:")[1].split()[0]) * 1024, file=open("peak.txt", "w"))
"""


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return times and sizes of reports."""
    with mock.patch.dict(os.environ, SHARDPREP_CACHE=str(folder / "cache")):
        return [
            *_times(folder, rounds, 40 if quick else 2000),
            *_large(folder, 300 if quick else 100_000),
        ]


def _times(folder: Path, rounds: int, number: int) -> Iterator[Row]:
    source = photos.write_folder(folder / "photos", number)
    path = built(folder / "out", source, "--split", "train=0.9,test=0.1")

    def report(*options: str) -> Cost:
        for one in folder.glob("cache/pixels/*"):
            one.unlink()
        return shardprep(folder, "report", path, "-o", "page.html", *options)

    ways: dict[str, Callable[[], Cost]] = {"all": report, "none": partial(report, "--no-pixels")}
    cost = interleaved(ways, rounds)
    for one, way in ((WITH_PIXELS, "all"), (NO_PIXELS, "none")):
        detail = f"{cost[way].cpu_s:.2f} s of processor, {number:,} records, imports included"
        yield one.came_to(cost[way].wall_s, detail)


def _large(folder: Path, number: int) -> Iterator[Row]:
    """Measure a set of tiny crops; many of them are near copies of each other."""
    base = [
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((64, 64)))
        for data in photos.originals()[:1800]
    ]
    draw = np.random.default_rng(0)
    archive = folder / "crops.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for i in range(number):
            y, x = draw.integers(0, 33, 2)
            out = io.BytesIO()
            crop = np.ascontiguousarray(base[i % len(base)][y : y + 32, x : x + 32])
            Image.fromarray(crop).save(out, "PNG", compress_level=1)
            file.writestr(f"{i % 10}/{i:06d}.png", out.getvalue())
    path = built(
        folder / "large", archive, "--size", "32x32", "--format", "raw", "--labels", "folder",
        "--split", "train=0.9,test=0.1",
    )  # fmt: skip
    command = [sys.executable, "-c", _PEAK, "report", path, "-o", "large.html", "--quiet"]
    cost = run(command, folder)
    peak = int((folder / "peak.txt").read_text().split()[1])
    size = (folder / "large.html").stat().st_size
    yield LARGE_S.came_to(cost.wall_s, f"{cost.cpu_s:.1f} s of processor, {number:,} records")
    yield LARGE_MB.came_to(size / 1e6, f"{size:,} bytes")
    yield LARGE_GB.came_to(peak / 1e9, "of the one process")


if __name__ == "__main__":
    alone(rows, __doc__)
