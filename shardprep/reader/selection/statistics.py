"""`reader.mean_std`: mean and standard deviation of the pixels of a split, by channel."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import DatasetError
from shardprep.reader.decode.features import ExampleReader, FeatureDecoder
from shardprep.reader.records.subset import open_subset
from shardprep.reader.selection.split_argument import AnySplit, numbers_of
from shardprep.reader.validators import Location, validated
from shardprep.storage.cache import array_file, keep_arrays, kept_arrays

_LEVELS = 256
_IMAGES_A_TASK = 64


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
        DatasetError: the dataset or split does not exist, or its images have 16 bits.
        RecordError: a record is damaged.
    """
    dataset = open_dataset(path)
    digest = hashlib.sha256(dataset.manifest.sha256.encode())
    digest.update(numbers_of(dataset.manifest, split).tobytes())
    file = array_file("channels", digest.hexdigest()[:32])
    if dataset.schema.image.is_deep:
        what = "mean_std needs images of 8 bits, but these have 16"
        raise DatasetError(str(dataset), what, "compute it from Dataset.batches")
    counts = (kept_arrays(file) or {}).get("counts")
    if counts is None or counts.shape != (3, _LEVELS) or not counts.sum(axis=1).all():
        records = open_subset(dataset, split).records
        names = (dataset.schema.image_name,)
        examples = ExampleReader(records, FeatureDecoder(dataset.schema, names, decode=True))
        counts = _histograms(examples)
        keep_arrays(file, {"counts": counts})
    levels = np.arange(_LEVELS) / (_LEVELS - 1)
    mean = counts @ levels / counts.sum(axis=1)
    squares = (levels - mean[:, None]) ** 2
    std = np.sqrt((counts * squares).sum(axis=1) / counts.sum(axis=1))
    return MeanStd(tuple(mean.tolist()), tuple(std.tolist()))


def _histograms(examples: ExampleReader) -> Any:
    """Return int64[3, 256]: number of pixels with each level of red, green and blue."""

    def count(numbers: range) -> Any:
        counts = np.zeros(3 * _LEVELS, np.int64)
        for number in numbers:
            (pixels,) = examples.item(number).values()
            rows = pixels.reshape(-1, *pixels.shape[-2:])  # the images of a stack below each other
            counts += Image.fromarray(rows).histogram()
        return counts

    parts = examples.records.map_ranges(count, _IMAGES_A_TASK)
    return sum(parts, np.zeros(3 * _LEVELS, np.int64)).reshape(3, _LEVELS)
