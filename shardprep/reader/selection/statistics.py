"""Passes over all records of a split: `reader.mean_std` and `reader.buckets`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import Image

from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import HEIGHT, WIDTH
from shardprep.errors import DatasetError, StorageError
from shardprep.reader.array_types import Ints
from shardprep.reader.decode.features import ExampleReader, FeatureDecoder
from shardprep.reader.records.records import Places
from shardprep.reader.records.subset import open_subset
from shardprep.reader.selection.query import rows_of
from shardprep.reader.selection.selection import Selection
from shardprep.reader.selection.split_argument import AnySplit, numbers_of
from shardprep.reader.validators import Kind, Location, Size, kind_of, validated, whole
from shardprep.storage.atomic_file import DurableFile
from shardprep.storage.cache import cache_root, make_cache

_LEVELS = 256
_IMAGES_A_TASK = 64
_STEP = 32
"""Sides of default buckets are multiples of this, or of a quarter of it for small buckets."""
_SMALL = 128
_MAX_ASPECT = 2.0
"""Maximum ratio of the longer to the shorter side of default buckets."""
_RECORDS_A_TASK = 256


class MeanStd(NamedTuple):
    """Mean and standard deviation of red, green and blue, for pixels in 0 to 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@validated("reader.mean_std")
def mean_std(path: Location, split: AnySplit = "train") -> MeanStd:
    """Return mean and standard deviation of red, green and blue in the images of a split.

    Pixels count as 0 to 1: multiply the result by 255 for uint8 images. All pixels count equally,
    so larger images count more. The deviation is of the population, as with `numpy.std`. The first
    call decodes each image; the result is cached on this machine for the same records.

    Raises:
        DatasetError: the dataset or split does not exist.
        RecordError: a record is damaged.
    """
    dataset = open_dataset(path)
    digest = hashlib.sha256(dataset.manifest.sha256.encode())
    digest.update(numbers_of(dataset.manifest, split).tobytes())
    file = cache_root() / "channels" / f"{digest.hexdigest()[:32]}.json"
    counts = _load(file)
    if dataset.schema.image.is_deep:
        what = "mean_std needs images of 8 bits, but these have 16"
        raise DatasetError(str(dataset), what, "compute it from Dataset.batches")
    if counts is None:
        records = open_subset(dataset, split).records
        names = (dataset.schema.image_name,)
        examples = ExampleReader(records, FeatureDecoder(dataset.schema, names, decode=True))
        counts = _histograms(examples)
        _save(file, counts)
    levels = np.arange(_LEVELS) / (_LEVELS - 1)
    mean = counts @ levels / counts.sum(axis=1)
    squares = (levels - mean[:, None]) ** 2
    std = np.sqrt((counts * squares).sum(axis=1) / counts.sum(axis=1))
    return MeanStd(tuple(mean.tolist()), tuple(std.tolist()))


def _histograms(examples: ExampleReader) -> Any:
    """Return int64[3, 256], the number of pixels with each level of red, green and blue."""

    def count(numbers: range) -> Any:
        counts = np.zeros(3 * _LEVELS, np.int64)
        for number in numbers:
            (pixels,) = examples.item(number).values()
            rows = pixels.reshape(-1, *pixels.shape[-2:])  # the images of a stack below each other
            counts += Image.fromarray(rows).histogram()
        return counts

    parts = examples.records.map_ranges(count, _IMAGES_A_TASK)
    return sum(parts, np.zeros(3 * _LEVELS, np.int64)).reshape(3, _LEVELS)


def _load(file: Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        counts = np.array(json.loads(file.read_bytes()), np.int64)
        if counts.shape == (3, _LEVELS) and (counts >= 0).all() and counts.sum(axis=1).all():
            return counts
    return None


def _save(file: Path, counts: Any) -> None:
    with contextlib.suppress(OSError, StorageError):
        make_cache(file.parent)
        with DurableFile(file, is_shared=True) as out:
            out.write(json.dumps(counts.tolist()).encode())
            out.commit()


def _sizes(value: Any) -> tuple[tuple[int, int], ...]:
    kind = kind_of(Size)
    sizes = tuple(kind.take(size) for size in value)
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError
    return sizes


Sizes = Annotated[Any, Kind(_sizes, ("a list of different (height, width)",))]
Pixels = Annotated[int, whole(_STEP**2)]


@validated("reader.buckets")
def buckets(
    path: Location,
    split: AnySplit = "train",
    *,
    num_pixels: Pixels = 224 * 224,
    sizes: Sizes | None = None,
) -> dict[tuple[int, int], Selection]:
    """Return a dict of (height, width) → the records with the nearest aspect ratio.

    For `Dataset.batches(64, buckets=…)`, which resizes each image to the size of its bucket, so
    that all images of a batch have one shape. Every record is in one bucket, and no bucket is
    empty. Image sizes are read from the records, without decoding images, because the item table
    has the sizes before EXIF rotation.

    Args:
        path: as in `reader.load`.
        split: as in `reader.load`.
        num_pixels: approximate number of pixels of an image in every bucket. Sides are multiples
            of 32 (of 8 below 128 x 128 pixels). The longer side is at most twice the shorter side.
        sizes: (height, width) of each bucket, instead of sizes that follow from `num_pixels`.

    Raises:
        DatasetError: the dataset or split does not exist, or its records have no image sizes.
        RecordError: a record is damaged.
    """
    dataset = open_dataset(path)
    missing = {HEIGHT, WIDTH} - dataset.schema.features.keys()
    if missing:
        hint = "make a dict of (height, width) and selections of reader.select"
        raise DatasetError(str(dataset), f"its records have no {' and '.join(missing)}", hint)
    rows = rows_of(dataset, split)
    every = rows.selection()
    values = FeatureDecoder(dataset.schema, (HEIGHT, WIDTH), decode=False)
    stored = _stored_sizes(ExampleReader(open_subset(dataset, every).records, values))
    wanted = np.array(sizes or _usual_sizes(num_pixels))
    logs = [np.log(one[:, 1] / one[:, 0]) for one in (stored, wanted)]
    nearest = np.abs(logs[0][:, None] - logs[1]).argmin(axis=1)
    return {
        (int(height), int(width)): every.at(nearest == i, f"{rows.split} as {width}x{height}")
        for i, (height, width) in enumerate(wanted.tolist())
        if (nearest == i).any()
    }


def _usual_sizes(num_pixels: int) -> Sequence[tuple[int, int]]:
    """Return sizes (height, width) of about `num_pixels` pixels, from the lowest to the highest."""
    side = math.sqrt(num_pixels)
    step = _STEP if side >= _SMALL else _STEP // 4
    sizes = set[tuple[int, int]]()
    for short in range(step, round(side / step) * step + 1, step):
        long = round(num_pixels / short / step) * step
        if long <= _MAX_ASPECT * short:
            sizes |= {(short, long), (long, short)}
    return sorted(sizes)


def _stored_sizes(examples: ExampleReader) -> Any:
    """Return float64[records, 2], height and width of each image."""

    def sizes(numbers: range) -> list[list[int]]:
        items = [examples.item(number) for number in numbers]
        return [[item[HEIGHT], item[WIDTH]] for item in items]

    parts = examples.records.map_ranges(sizes, _RECORDS_A_TASK)
    return np.array([size for part in parts for size in part], np.float64)


def bucket_members(
    buckets: Mapping[tuple[int, int], Selection], manifest: Manifest, places: Places
) -> tuple[Ints, ...]:
    """Return the positions of the records of each bucket in `places`, increasing.

    DatasetError if a bucket is of another dataset, or a record is not in exactly one bucket.
    """
    numbers = places.numbers(manifest)
    count = np.zeros(len(numbers), np.int64)
    members = []
    for selection in buckets.values():
        if len(selection):
            selection.check(manifest)
        is_in = np.isin(numbers, selection.numbers)
        count += is_in
        members.append(np.flatnonzero(is_in))
    if (count != 1).any():
        what = f"{(count == 0).sum():,} of {len(numbers):,} records are in no bucket, "
        what += f"{(count > 1).sum():,} in several"
        raise DatasetError("Dataset.batches", what, "use reader.buckets of this split")
    return tuple(members)
