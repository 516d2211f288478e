"""`reader.buckets`: images of mixed sizes, grouped by the size with the nearest aspect ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import HEIGHT, WIDTH
from shardprep.errors import DatasetError
from shardprep.reader.array_types import Ints
from shardprep.reader.decode.features import ExampleReader, FeatureDecoder
from shardprep.reader.records.open import open_subset
from shardprep.reader.records.positions import Places
from shardprep.reader.selection.item_rows import rows_of
from shardprep.reader.selection.selection import Selection
from shardprep.reader.selection.split_argument import AnySplit
from shardprep.reader.validators import Kind, Location, Size, kind_of, validated, whole

_STEP = 32
"""Sides of default buckets are multiples of this; of a quarter of it for small images."""
_SMALL = 128
_MAX_ASPECT = 2.0
"""Maximum ratio of the longer to the shorter side of default buckets."""
_RECORDS_A_TASK = 256


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
    """Return the records of a split by the (height, width) with the nearest aspect ratio.

    For `Dataset.batches(64, buckets=…)`, which resizes each image to the size of its bucket, so
    that all images of a batch have one shape. Every record is in one bucket, and no bucket is
    empty. Image sizes are read from the records, without decoding images: the item table has the
    sizes before EXIF rotation.

    Args:
        path: as in `reader.load`.
        split: as in `reader.load`.
        num_pixels: approximate number of pixels of an image in every bucket. Sides are multiples
            of 32 (of 8 below 128 x 128), and the longer side is at most twice the shorter one.
        sizes: (height, width) of each bucket, instead of default sizes.

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
    """Return (height, width) of about `num_pixels` pixels, from the flattest to the tallest."""
    side = math.sqrt(num_pixels)
    step = _STEP if side >= _SMALL else _STEP // 4
    sizes = set[tuple[int, int]]()
    for short in range(step, round(side / step) * step + 1, step):
        long = round(num_pixels / short / step) * step
        if long <= _MAX_ASPECT * short:
            sizes |= {(short, long), (long, short)}
    return sorted(sizes)


def _stored_sizes(examples: ExampleReader) -> Any:
    """Return height and width of each image, float64[records, 2]."""

    def sizes(numbers: range) -> list[list[int]]:
        items = [examples.item(number) for number in numbers]
        return [[item[HEIGHT], item[WIDTH]] for item in items]

    parts = examples.records.map_ranges(sizes, _RECORDS_A_TASK)
    return np.array([size for part in parts for size in part], np.float64)


def bucket_members(
    buckets: Mapping[tuple[int, int], Selection], manifest: Manifest, places: Places
) -> tuple[Ints, ...]:
    """Return the positions of the records of each bucket among some places.

    Raises:
        DatasetError: a bucket is of another dataset, or a record is not in exactly one of them.

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
