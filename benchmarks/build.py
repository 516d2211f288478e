"""`shardprep build` against what people write for the same job: python -m benchmarks.build.

Every program reads the same folder of photos (405x361 pixels on average). Except for the pool that
only decodes, it writes 224x224 JPEG of quality 90 in TFRecords. The whole process is timed, imports
included.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import photos
from benchmarks.measure import Cost, Measure, Row, interleaved, run, shardprep
from benchmarks.table import alone

if TYPE_CHECKING:
    from pathlib import Path

POOL = Measure("build / spawn pool around Pillow + TFRecordWriter", ">= 2.2")
NOTEBOOK = Measure("build / one-process notebook loop", ">= 4")
DECODE = Measure("build / pool that only decodes (simplejpeg)", ">= 0.5")
WORKERS = Measure("2 workers / 1 worker", ">= 1.8")
DECODE_WORKERS = Measure("pool that only decodes: 2 workers / 1 worker")
KEEP = Measure("`--format keep` / pool that only decodes", ">= 0.8")
LARGE = Measure("12 MP photos: build / full-decode Pillow pool", ">= 8")
HELP = Measure("`shardprep --help`", "< 0.3 s", "s")
_NUMBER = 25_000
"""Number of photos, as in Dogs vs. Cats."""
_NUMBER_LARGE = 400
MEASURES = (POOL, NOTEBOOK, DECODE, WORKERS, DECODE_WORKERS, KEEP, LARGE, HELP)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return all rows of the build."""
    number, number_large = (60, 4) if quick else (_NUMBER, _NUMBER_LARGE)
    start = interleaved({"help": lambda: shardprep(folder, "--help")}, max(rounds, 3))["help"]
    return [
        *small_photos(folder, number, rounds),
        *large_photos(folder, number_large, rounds),
        HELP.came_to(start.wall_s, "a whole process"),
    ]


def small_photos(folder: Path, number: int, rounds: int) -> list[Row]:
    """Return the rows for photos of 405x361 pixels on average."""
    source = photos.write_folder(folder / "photos", number, links=True)
    build = partial(built_from, folder, source)
    rival = partial(_rival, folder)
    cost = interleaved(
        {
            "build": lambda: build("--workers", 2),
            "pool": lambda: pooled(folder, source, 2),
            "notebook": lambda: rival("notebook", source, folder / "rival"),
            "decode": lambda: rival("decode_only", source, 2),
            "one worker": lambda: build("--workers", 1),
            "decode, one worker": lambda: rival("decode_only", source, 1),
            "keep": lambda: build("--workers", 2, "--format", "keep"),
        },
        rounds,
    )

    def row(measure: Measure, one: str, two: str) -> Row:
        rates = [f"{number / cost[way].wall_s:,.0f}" for way in (one, two)]
        ratio = cost[two].wall_s / cost[one].wall_s
        return measure.came_to(ratio, f"{rates[0]} / {rates[1]} images/s")

    return [
        row(POOL, "build", "pool"),
        row(NOTEBOOK, "build", "notebook"),
        row(DECODE, "build", "decode"),
        row(WORKERS, "build", "one worker"),
        row(DECODE_WORKERS, "decode", "decode, one worker"),
        row(KEEP, "keep", "decode"),
    ]


def large_photos(folder: Path, number: int, rounds: int) -> list[Row]:
    """Return the row for photos of 12 megapixels."""
    source = photos.write_large_folder(folder / "large", number)
    cost = interleaved(
        {
            "build": lambda: built_from(folder, source, "--workers", 2, "--labels", "none"),
            "pool": lambda: pooled(folder, source, 2),
        },
        rounds,
    )
    build, pool = cost["build"].wall_s, cost["pool"].wall_s
    return [LARGE.came_to(pool / build, f"{number / build:.0f} / {number / pool:.0f} images/s")]


def built_from(folder: Path, source: Path, *options: object) -> Cost:
    """Return the cost of a whole process that builds a source from nothing."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    return shardprep(folder, "build", source, "--out", folder / "out", *options)


def pooled(folder: Path, source: Path, workers: int) -> Cost:
    """Return the cost of a whole process that runs the pool around Pillow on a source."""
    return _rival(folder, "pool", source, folder / "rival", workers)


def _rival(folder: Path, name: str, source: Path, *arguments: object) -> Cost:
    shutil.rmtree(folder / "rival", ignore_errors=True)
    return run([sys.executable, "-m", f"benchmarks.rivals.{name}", source, *arguments], folder)


if __name__ == "__main__":
    alone(rows, __doc__)
