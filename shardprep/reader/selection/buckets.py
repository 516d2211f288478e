"""`reader.buckets`: images of mixed sizes by the shape that is nearest to their own."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import HEIGHT, WIDTH
from shardprep.errors import DatasetError
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Ints
from shardprep.reader.decode.features import ExampleReader, FeatureDecoder
from shardprep.reader.records.open import open_subset
from shardprep.reader.records.positions import Places
from shardprep.reader.records.remote import NUM_READS
from shardprep.reader.selection.item_rows import rows_of
from shardprep.reader.selection.selection import Selection
from shardprep.reader.selection.split_argument import AnySplit
from shardprep.reader.validators import Kind, Location, Size, kind_of, validated, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STEP = 32
"""Pixels that the sides of usual buckets are multiples of; a quarter of that for small ones."""
_SMALL = 128
_MOST_ASPECT = 2.0
"""Width by height, or the other way round, of usual buckets at most."""
_AT_ONCE = 256


def _sizes(value: Any) -> tuple[tuple[int, int], ...]:
    kind = kind_of(Size)
    found = tuple(kind.take(one) for one in value)
    if not found or len(set(found)) < len(found):
        raise ValueError
    return found


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
    """Return the records of a split by the (height, width) whose aspect is nearest to their own.

    For `Dataset.batches(64, buckets=…)`, which resizes each image to the size of its bucket, so
    that all images of a batch have one shape. Every record is in one bucket; none is empty. The
    sizes are read from the records, upright as they are stored: EXIF may have turned what the item
    table has. That reads each record once, and decodes none.

    Args:
        path: as of `reader.load`.
        split: as of `reader.load`.
        num_pixels: pixels of an image of any bucket, about: sides are multiples of 32 (of 8 below
            128 x 128), the one up to twice the other.
        sizes: (height, width) of the buckets, in place of these.

    Raises:
        DatasetError: there is no such dataset or split, or its records do not tell their sizes.
        RecordError: a record is damaged.

    """
    dataset = open_dataset(path)
    missing = {HEIGHT, WIDTH} - dataset.schema.features.keys()
    if missing:
        hint = "make a dict of (height, width) and reader.select yourself"
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
    """Return (height, width) of about so many pixels, from the flattest to the tallest."""
    side = math.sqrt(num_pixels)
    step = _STEP if side >= _SMALL else _STEP // 4
    found = set[tuple[int, int]]()
    for short in range(step, round(side / step) * step + 1, step):
        long = round(num_pixels / short / step) * step
        if long <= _MOST_ASPECT * short:
            found |= {(short, long), (long, short)}
    return sorted(found)


def _stored_sizes(examples: ExampleReader) -> Any:
    """Return height and width of each image, float64[records, 2]."""

    def some(start: int) -> list[list[int]]:
        stop = min(start + _AT_ONCE, len(examples.records))
        found = [examples.item(number) for number in range(start, stop)]
        return [[one[HEIGHT], one[WIDTH]] for one in found]

    num_threads = max(usable_cores(), NUM_READS if examples.records.is_remote else 1)
    with ThreadPoolExecutor(num_threads, "shardprep-sizes") as pool:
        try:
            parts = [*pool.map(some, range(0, len(examples.records), _AT_ONCE))]
        except BaseException:  # Ctrl-C among them
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return np.array([size for part in parts for size in part], np.float64)


def members_of(
    buckets: Mapping[tuple[int, int], Selection], manifest: Manifest, places: Places
) -> tuple[Ints, ...]:
    """Return the positions of the records of each bucket among those at some places.

    Raises:
        DatasetError: a bucket is of another dataset, or not each record is in one of them.

    """
    numbers = places.numbers(manifest)
    count = np.zeros(len(numbers), np.int64)
    found = []
    for selection in buckets.values():
        if len(selection):
            selection.check(manifest)
        is_in = np.isin(numbers, selection.numbers)
        count += is_in
        found.append(np.flatnonzero(is_in))
    if (count != 1).any():
        what = f"{(count == 0).sum():,} of {len(numbers):,} records are in no bucket, "
        what += f"{(count > 1).sum():,} in several"
        raise DatasetError("Dataset.batches", what, "make them by reader.buckets of this split")
    return tuple(found)
