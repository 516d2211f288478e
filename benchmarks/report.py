"""`shardprep report`: its time, size and memory, and how well near copies are found.

Copies are made of real photographs, re-encoded, resized, brightened or cut by a pixel, and built as
any images are. Precision counts pairs: of all that are found among originals and copies of one
kind, those of an original and its own copy. A few originals are near copies of each other (that is
a row of its own); pairs of these and of their copies are not held against it.
"""

from __future__ import annotations

import io
import os
import sys
import time
import zipfile
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
from PIL import Image
from shardprep.image.phash import NEAR_BITS, PHASH, joined, near_groups

from benchmarks import photos
from benchmarks.measure import Cost, Measure, Row, built, interleaved, run, shardprep
from benchmarks.table import alone
from shardprep.api.progress import Watch
from shardprep.dataset.open_dataset import open_dataset
from shardprep.reporter.report import make_report
from shardprep.reporter.report_data import ReportOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

WITH_PIXELS = Measure("report of 2,000 photos, without cached measurements", "< 6 s", "s")
NO_PIXELS = Measure("the same with `--no-pixels`", "< 1 s", "s")
LARGE_S = Measure("report of 100,000 records of 32x32", "< 60 s", "s")
LARGE_MB = Measure("size of that page", "<= 5 MB", "MB")
LARGE_GB = Measure("peak memory of that report", "< 1 GB", "GB")
PAIRS = Measure("near pairs among 100,000 hashes, by bands", "< 3 s", "s")
PAIRS_SAME = Measure("hashes grouped as by brute force", ">= 1")
RECALL = {
    "re-encoded, q30 to q95": Measure("recall of copies re-encoded, q30 to q95", ">= 0.97"),
    "resized, 0.5 to 2": Measure("recall of copies resized, 0.5 to 2", ">= 0.97"),
    "brightness ±10 %": Measure("recall of copies of brightness ±10 %"),
    "cut by 1 pixel": Measure("recall of copies cut by 1 pixel"),
}
PRECISION = Measure("precision, the worst of these", ">= 0.99")
UNRELATED = Measure("near pairs among the photos themselves")
GROUPED = Measure("time of `build --group near` / of `build`, without cached hashes")
ACROSS = Measure("near pairs across splits afterwards, by brute force", "<= 0")
MEASURES = (
    WITH_PIXELS, NO_PIXELS, LARGE_S, LARGE_MB, LARGE_GB, PAIRS, PAIRS_SAME, *RECALL.values(),
    PRECISION, UNRELATED, GROUPED, ACROSS,
)  # fmt: skip

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
    """Return times and sizes of reports, and the recall of each kind of copy."""
    with mock.patch.dict(os.environ, SHARDPREP_CACHE=str(folder / "cache")):
        return [
            *_times(folder, rounds, 40 if quick else 2000),
            *_large(folder, 300 if quick else 100_000),
            *_pairs(1000 if quick else 100_000),
            *_copies(folder, 60 if quick else 2000),
            *_grouped(folder, 60 if quick else 1000),
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


def _pairs(number: int) -> Iterator[Row]:
    """Measure the search among random hashes, a fiftieth of them planted near others."""
    draw = np.random.default_rng(0)
    hashes = draw.integers(0, 2**64, number, np.uint64)
    for one, other in draw.integers(0, number, (number // 50, 2)):
        flipped = draw.choice(64, draw.integers(0, 8), replace=False)
        hashes[other] = hashes[one] ^ np.uint64(sum(1 << int(bit) for bit in flipped))
    unique = np.unique(hashes)
    start = time.perf_counter()
    images = np.zeros(len(unique), PHASH)
    images["hash"], images["contrast"], images["decoded"] = unique, 50, True
    groups = near_groups(images)
    taken = time.perf_counter() - start
    start = time.perf_counter()
    brute = [
        (i, i + 1 + int(j))
        for i in range(len(unique))
        for j in np.flatnonzero(np.bitwise_count(unique[i + 1 :] ^ unique[i]) <= NEAR_BITS)
    ]
    compared = time.perf_counter() - start
    yield PAIRS.came_to(taken, f"{number:,} hashes; brute force {compared:.1f} s")
    joined_by_brute_force = joined(np.arange(len(unique)), np.array(brute).reshape(-1, 2))
    same = float(np.mean(groups == joined_by_brute_force))
    yield PAIRS_SAME.came_to(same, f"{len(brute):,} pairs")


def _copies(folder: Path, most: int) -> Iterator[Row]:
    originals = photos.originals()[:most]
    number = len(originals)
    beside = _pairs_of(folder / "alone", originals)
    precision = []
    for name, recall in RECALL.items():
        copies = [_changed(data, name, i) for i, data in enumerate(originals)]
        found = _pairs_of(folder / name.partition(",")[0], [*originals, *copies])
        right = sum(j - i == number for i, j in found)
        # A copy of one of two originals that are near each other is near both.
        places = [(min(i % number, j % number), max(i % number, j % number))
                  for i, j in found if j - i != number]  # fmt: skip
        wrong = sum(pair not in beside for pair in places)
        precision.append(right / max(right + wrong, 1))
        yield recall.came_to(right / number, f"{right:,} of {number:,} photos")
    shown = ", ".join(f"{one:.4f}" for one in precision)
    yield PRECISION.came_to(min(precision), shown)
    detail = f"of {number * (number - 1) // 2:,}; they are near copies"
    yield UNRELATED.came_to(len(beside), detail)


def _grouped(folder: Path, most: int) -> Iterator[Row]:
    """Measure a build of photos and a copy of each, half of them for the test set."""
    originals = photos.originals()[:most]
    copies = [_changed(data, [*RECALL][i % 2], i) for i, data in enumerate(originals)]
    source = folder / "twice"
    for i, data in enumerate([*originals, *copies]):
        path = source / f"{i:05d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    rule = ("--labels", "none", "--split", "train=0.5,test=0.5")
    plain = shardprep(folder, "build", source, "--out", folder / "parted", *rule)
    cost = shardprep(folder, "build", source, "--out", folder / "kept", *rule, "--group", "near")
    ratio = cost.wall_s / plain.wall_s
    yield GROUPED.came_to(ratio, f"{cost.wall_s:.1f} s / {plain.wall_s:.1f} s")
    parted, kept = (_num_across(next((folder / name).glob("*/*"))) for name in ("parted", "kept"))
    yield ACROSS.came_to(kept, f"{2 * len(originals):,} photos; {parted:,} without it")


def _num_across(dataset: Path) -> int:
    """Count the near pairs of stored images in different splits, each two compared."""
    found = make_report(open_dataset(dataset), ReportOptions(thumbs=0), Watch(lambda _: None))
    assert found.measured is not None  # nothing asked it to leave pixels out
    hashes, split = found.measured.measures["hash"], found.contents.split
    apart = (np.bitwise_count(one ^ hashes) for one in hashes)
    return (
        sum(
            int(((bits <= NEAR_BITS) & (split != here)).sum())
            for bits, here in zip(apart, split, strict=True)
        )
        // 2
    )


def _pairs_of(folder: Path, files: Sequence[bytes]) -> set[tuple[int, int]]:
    """Return the pairs in the groups of near copies and copies that a report has of files."""
    for i, data in enumerate(files):
        path = folder / "files" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    dataset = built(folder / "out", folder / "files", "--labels", "none")
    found = make_report(open_dataset(dataset), ReportOptions(thumbs=0), Watch(lambda _: None))
    pairs = set()
    for one in found.copies:
        numbers = sorted(int(key[-9:-4]) for key in found.contents.keys_of(one.numbers))
        pairs |= set(combinations(numbers, 2))
    return pairs


def _changed(data: bytes, name: str, number: int) -> bytes:
    """Return a copy of a photo, changed as the name says, each a little otherwise."""
    draw, image = np.random.default_rng(number), Image.open(io.BytesIO(data)).convert("RGB")
    quality = 95
    if name.startswith("re-encoded"):
        quality = int(draw.integers(30, 96))
    elif name.startswith("resized"):
        ratio = 2 ** draw.uniform(-1, 1)
        size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
        image = image.resize(size, Image.Resampling.BICUBIC)
    elif name.startswith("brightness"):
        factor = (0.9, 1.1)[number % 2]
        image = image.point([min(255, round(level * factor)) for level in range(256)] * 3)
    else:
        image = image.crop((1, 1, image.width - 1, image.height - 1))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


if __name__ == "__main__":
    alone(rows, __doc__)
