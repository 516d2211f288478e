"""`shardprep build` against what people write for the same job: python -m benchmarks.build.

Every way reads the same folder of photos (405x361 pixels on average) and writes 224x224 JPEG of
quality 90 in TFRecords; what is timed is the whole process, imports included.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import photos
from benchmarks.measure import Cost, Row, interleaved, run

PYTHON = sys.executable


def _shardprep(folder: Path, source: Path, *options: object) -> Cost:
    shutil.rmtree(folder / "out", ignore_errors=True)
    command = [PYTHON, "-m", "shardprep", "build", source, "--out", folder / "out", *options]
    return run(command, folder)


def _rival(folder: Path, name: str, source: Path, *arguments: object) -> Cost:
    shutil.rmtree(folder / "rival", ignore_errors=True)
    return run([PYTHON, "-m", f"benchmarks.rivals.{name}", source, *arguments], folder)


def small_photos(folder: Path, number: int, rounds: int) -> list[Row]:
    """Compare on photos of the usual size."""
    source = photos.write_folder(folder / "photos", number)
    build = partial(_shardprep, folder, source)
    rival = partial(_rival, folder)
    seconds = interleaved(
        {
            "build": lambda: build("--workers", 2).wall_s,
            "pool": lambda: rival("pool", source, folder / "rival", 2).wall_s,
            "notebook": lambda: rival("notebook", source, folder / "rival").wall_s,
            "decode": lambda: rival("decode_only", source, 2).wall_s,
            "one worker": lambda: build("--workers", 1).wall_s,
            "keep": lambda: build("--workers", 2, "--format", "keep").wall_s,
        },
        rounds,
    )
    rate = {name: f"{number / value:,.0f}" for name, value in seconds.items()}

    def row(measure: str, one: str, two: str, bar: str) -> Row:
        detail = f"{rate[one]} / {rate[two]} images/s"
        return Row(measure, seconds[two] / seconds[one], bar, detail)

    return [
        row("build / spawn pool around Pillow + TFRecordWriter", "build", "pool", ">= 2.2"),
        row("build / one-process notebook loop", "build", "notebook", ">= 4"),
        row("build / pool that only decodes (simplejpeg)", "build", "decode", ">= 0.5"),
        row("2 workers / 1 worker", "build", "one worker", ">= 1.8"),
        row("`--format keep` / pool that only decodes", "keep", "decode", ">= 0.8"),
    ]


def large_photos(folder: Path, number: int, rounds: int) -> list[Row]:
    """Compare on photos of 12 megapixels."""
    source = photos.write_large_folder(folder / "large", number)
    seconds = interleaved(
        {
            "build": lambda: _shardprep(folder, source, "--workers", 2, "--labels", "none").wall_s,
            "pool": lambda: _rival(folder, "pool", source, folder / "rival", 2).wall_s,
        },
        rounds,
    )
    detail = f"{number / seconds['build']:.0f} / {number / seconds['pool']:.0f} images/s"
    ratio = seconds["pool"] / seconds["build"]
    return [Row("12 MP photos: build / full-decode Pillow pool", ratio, ">= 8", detail)]


def rows(folder: Path, rounds: int = 5) -> list[Row]:
    """Return all rows of the build."""
    return small_photos(folder, 8000, rounds) + large_photos(folder, 200, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--photos", type=int, default=8000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for row in small_photos(Path(name), arguments.photos, arguments.rounds):
            print(f"{row.measure}: {row.value:.2f} ({row.bar}; {row.detail})")
        for row in large_photos(Path(name), 200, arguments.rounds):
            print(f"{row.measure}: {row.value:.2f} ({row.bar}; {row.detail})")


if __name__ == "__main__":
    main()
