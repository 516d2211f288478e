"""Near copies: how many of each kind are found, compared with a perceptual hash, and at which cost.

Copies of real photographs are planted, of one kind at a time, and processed as a build stores them.
Recall is the share of the copies that are found as a copy of their original. Precision is the share
of pairs of an original and its copy among all found pairs. The hash is pHash as published (64 bits
of a DCT of 32x32 pixels, at most 10 bits apart), as imagededup and ImageHash compute it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks import photos
from benchmarks.changes import CHANGES, changed
from benchmarks.measure import Measure, Row, shardprep
from benchmarks.memory import high_water
from benchmarks.table import alone
from shardprep.dataset.open_dataset import open_dataset
from shardprep.image.decode import stored_pixels
from shardprep.image.near_candidates import turned
from shardprep.image.near_pairs import Pairs, Thumbnails, near_pairs
from shardprep.image.process import Rejection, process_image
from shardprep.image.spec import ImageSpec
from shardprep.image.thumbnail import LEAST_SIDE, THUMBNAIL, thumbnail
from shardprep.progress import Watch
from shardprep.reporter.pixels import measured, sharpness, tile
from shardprep.reporter.report import make_report
from shardprep.reporter.report_data import ReportOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardprep.image.thumbnail import Pixels

RECALL = {
    kind: Measure(f"recall of copies: {kind}", ">= 0.90" if "cropped" in kind else ">= 0.98")
    for kind in CHANGES
}
PRECISION = Measure("precision, the worst of these", ">= 0.99")
HASH_PRECISION = Measure("precision of pHash, the worst of these")
UNRELATED = Measure("near pairs among the photos themselves")
FIRST = Measure("pixel pass with thumbnails / without", "<= 2.0")
PAIRS_S = Measure("near pairs of 100,000 kept thumbnails", "< 60 s", "s")
PAIRS_GB = Measure("peak memory of that process", "< 1 GB", "GB")
GROUPED = Measure("time of `build --group near` / of `build`, without cached thumbnails")
ACROSS = Measure("near pairs across splits afterwards", "<= 0")
MEASURES = (
    *RECALL.values(), PRECISION, HASH_PRECISION, UNRELATED, FIRST, PAIRS_S, PAIRS_GB, GROUPED,
    ACROSS,
)  # fmt: skip
_BITS = 10
_MORE = ("bears.zip", "dog-breed-identification.zip")


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return recall, precision and cost."""
    originals = _originals(40 if quick else None)
    with mock.patch.dict(os.environ, SHARDPREP_CACHE=str(folder / "cache")):
        return [
            *_copies(originals),
            _first_pass(originals[:256], rounds),
            *_pairs(originals, 1000 if quick else 100_000),
            *_grouped(folder, originals[: 40 if quick else 1000]),
        ]


def _originals(most: int | None) -> list[bytes]:
    """Return at most `most` photos of pets; for None also bears and dog breeds, if available."""
    found = photos.originals()
    for name in _MORE:
        path = photos.SHARED / name
        if path.is_file() and most is None:
            with zipfile.ZipFile(path) as archive:
                names = (one for one in archive.namelist() if one.endswith((".jpg", ".jpeg")))
                found += [archive.read(one) for one in names]
    return [data for data in found[:most] if not isinstance(_processed(data), Rejection)]


def _processed(data: bytes) -> Rejection | bytes:
    done = process_image(data, ImageSpec())
    return done if isinstance(done, Rejection) else done.data


def _stored(files: Sequence[bytes]) -> list[Pixels]:
    stored = (_processed(data) for data in files)
    return [stored_pixels(data, None, LEAST_SIDE) for data in stored if isinstance(data, bytes)]


def _copies(originals: Sequence[bytes]) -> Iterator[Row]:
    number, own = len(originals), _stored(originals)
    alone_thumbnails, alone_hashes = _thumbnails(own), _phashes(own)
    beside = {0: _found(alone_thumbnails), 1: _near_hashes(alone_hashes)}
    worst = [(1.0, ""), (1.0, "")]
    for kind, measure in RECALL.items():
        copies = _stored([changed(data, kind, i) for i, data in enumerate(originals)])
        ways = (
            _found(np.concatenate([alone_thumbnails, _thumbnails(copies)])),
            _near_hashes(np.concatenate([alone_hashes, _phashes(copies)])),
        )
        right = [sum(other - one == number for one, other in pairs) for pairs in ways]
        for way, pairs in enumerate(ways):
            # If two originals are near copies, their copies are too.
            places = {tuple(sorted((one % number, other % number))) for one, other in pairs}
            wrong = sum(one != other and (one, other) not in beside[way] for one, other in places)
            if right[way] + wrong:
                worst[way] = min(worst[way], (right[way] / (right[way] + wrong), kind))
        detail = f"{right[0]:,} of {number:,} photos; pHash {right[1] / number:.3f}"
        yield measure.came_to(right[0] / number, detail)
    for measure, (value, kind) in zip((PRECISION, HASH_PRECISION), worst, strict=True):
        yield measure.came_to(value, kind)
    detail = f"of {number * (number - 1) // 2:,}; pHash {len(beside[1]):,}"
    yield UNRELATED.came_to(len(beside[0]), detail)


def _thumbnails(images: Sequence[Pixels]) -> Thumbnails:
    return np.array([thumbnail(image) for image in images])


def _found(thumbnails: Thumbnails) -> set[tuple[int, int]]:
    pairs = near_pairs(thumbnails)
    pairs = pairs[pairs["is_copy"]]
    ends = zip(pairs["inner"].tolist(), pairs["outer"].tolist(), strict=True)
    return {(min(pair), max(pair)) for pair in ends}


def _phashes(images: Sequence[Pixels]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    angles = np.pi * np.arange(8)[:, None] * (2 * np.arange(32) + 1) / 64
    found = []
    for pixels in images:
        small = Image.fromarray(pixels).convert("L").resize((32, 32), Image.Resampling.LANCZOS)
        low = (np.cos(angles) @ np.asarray(small, float) @ np.cos(angles).T).ravel()
        found.append(np.packbits(low > np.median(low[1:])).view(np.uint64)[0])
    return np.array(found)


def _near_hashes(hashes: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> set[tuple[int, int]]:
    return {
        (i, i + 1 + int(j))
        for i in range(len(hashes))
        for j in np.flatnonzero(np.bitwise_count(hashes[i + 1 :] ^ hashes[i]) <= _BITS)
    }


def _first_pass(originals: Sequence[bytes], rounds: int) -> Row:
    """Return the ratio of processor times of the pixel pass with thumbnails and without them."""
    stored = [data for data in map(_processed, originals) if isinstance(data, bytes)]
    spent: list[tuple[float, float]] = []
    for _ in range(rounds):
        start = time.thread_time()
        small = [stored_pixels(data, None, LEAST_SIDE) for data in stored]
        measured(np.stack([tile(pixels) for pixels in small]))
        for pixels in small:
            sharpness(pixels)
        middle = time.thread_time()
        _thumbnails(small)
        spent.append((middle - start, time.thread_time() - middle))
    without, more = np.median(spent, axis=0) / len(stored) * 1e6
    detail = f"{without + more:.0f} µs / {without:.0f} µs of processor for each image"
    return FIRST.came_to((without + more) / without, detail)


def _pairs(originals: Sequence[bytes], number: int) -> Iterator[Row]:
    """Measure the search among blends of two photos; a hundredth are mirrored copies."""
    base, draw = _thumbnails(_stored(originals))["grey"], np.random.default_rng(0)
    images = np.zeros(number, THUMBNAIL)
    images["decoded"], images["box"] = True, (0, 0, 1, 1)
    for i in range(number):
        one, other = base[draw.integers(0, len(base), 2)]
        share = draw.uniform(0.3, 0.7)
        images["grey"][i] = share * one + (1 - share) * turned(other, int(draw.integers(8)))
    planted = number // 100
    images["grey"][-planted:] = images["grey"][:planted, :, ::-1]
    with (
        mock.patch.dict(os.environ, OPENBLAS_NUM_THREADS="1"),  # as the command line does
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        pairs, wall, cpu, peak = pool.submit(_searched, images).result()
    right = int((np.abs(pairs["inner"] - pairs["outer"]) == number - planted).sum())
    detail = f"{cpu:.0f} s of processor; {right:,} of {planted:,} planted pairs found"
    yield PAIRS_S.came_to(wall, detail)
    yield PAIRS_GB.came_to(peak / 1e9, f"thumbnails included: {images.nbytes / 1e9:.2f} GB")


def _searched(images: Thumbnails) -> tuple[Pairs, float, float, int]:
    """Return near pairs, wall seconds, processor seconds and peak memory in bytes."""
    wall, cpu = time.perf_counter(), time.process_time()
    pairs = near_pairs(images)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return pairs, wall, cpu, high_water(os.getpid())


def _grouped(folder: Path, originals: Sequence[bytes]) -> Iterator[Row]:
    """Measure a build of photos and a copy of each, half of them for the test set."""
    kinds = [*CHANGES]
    source = folder / "twice"
    source.mkdir()
    copies = [changed(data, kinds[i % len(kinds)], i) for i, data in enumerate(originals)]
    for i, data in enumerate([*originals, *copies]):
        (source / f"{i:05d}.jpg").write_bytes(data)
    rule = ("--labels", "none", "--split", "train=0.5,test=0.5")
    plain = shardprep(folder, "build", source, "--out", folder / "parted", *rule)
    cost = shardprep(folder, "build", source, "--out", folder / "kept", *rule, "--group", "near")
    ratio = cost.cpu_s / plain.cpu_s
    yield GROUPED.came_to(ratio, f"{cost.cpu_s:.1f} s / {plain.cpu_s:.1f} s of processor")
    parted, kept = (_num_across(next((folder / name).glob("*/*"))) for name in ("parted", "kept"))
    yield ACROSS.came_to(kept, f"{2 * len(originals):,} photos; {parted:,} without it")


def _num_across(dataset: Path) -> int:
    found = make_report(open_dataset(dataset), ReportOptions(thumbs=0), Watch(lambda _: None))
    assert found.measured is not None  # nothing asked it to leave pixels out
    pairs, split = near_pairs(found.measured.measures), found.contents.split
    return int((split[pairs["inner"]] != split[pairs["outer"]]).sum())


if __name__ == "__main__":
    alone(rows, __doc__)
