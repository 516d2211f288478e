"""`reader.mean_std`: mean and deviation of the pixels of a split, for normalization."""

from __future__ import annotations

import contextlib
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import IMAGE
from shardprep.errors import StorageError
from shardprep.machine import usable_cores
from shardprep.reader.decode.features import ExampleReader, FeatureDecoder
from shardprep.reader.records.open import open_subset
from shardprep.reader.records.remote import NUM_READS
from shardprep.reader.selection.split_argument import AnySplit, numbers_of
from shardprep.reader.validators import Location, validated
from shardprep.storage.atomic_file import DurableFile
from shardprep.storage.cache import cache_root, make_cache

if TYPE_CHECKING:
    from pathlib import Path

    Triple = tuple[float, float, float]

_LEVELS = 256
_AT_ONCE = 64
"""Images that a thread counts before it takes others."""


class MeanStd(NamedTuple):
    """Mean and standard deviation of red, green and blue, of pixels in 0 to 1."""

    mean: Triple
    std: Triple


@validated("reader.mean_std")
def mean_std(path: Location, split: AnySplit = "train") -> MeanStd:
    """Return mean and standard deviation of the pixels of all images of a split, each decoded once.

    Of red, green and blue, 0 to 1, over all pixels: in a set of mixed sizes, large images count
    more. The deviation is that of the population, as `numpy.std`. For uint8 images multiply by
    255. The result is kept in the cache of this machine under the hash of the manifest.

    Raises:
        DatasetError: there is no such dataset or split.
        RecordError: a record is damaged.

    """
    dataset = open_dataset(path)
    made = hashlib.sha256(dataset.manifest.sha256.encode())
    made.update(numbers_of(dataset.manifest, split).tobytes())
    file = cache_root() / "channels" / f"{made.hexdigest()[:32]}.json"
    counts = _kept(file)
    if counts is None:
        records = open_subset(dataset, split).records
        examples = ExampleReader(records, FeatureDecoder(dataset.schema, (IMAGE,), decode=True))
        counts = _counted(examples)
        _keep(file, counts)
    levels = np.arange(_LEVELS) / (_LEVELS - 1)
    mean = counts @ levels / counts.sum(axis=1)
    squares = (levels - mean[:, None]) ** 2
    std = np.sqrt((counts * squares).sum(axis=1) / counts.sum(axis=1))
    return MeanStd(tuple(mean.tolist()), tuple(std.tolist()))


def _counted(examples: ExampleReader) -> Any:
    """Return how many pixels have each level of red, green and blue, int64[3, 256]."""

    def some(start: int) -> Any:
        counts = np.zeros(3 * _LEVELS, np.int64)
        for number in range(start, min(start + _AT_ONCE, len(examples.records))):
            counts += Image.fromarray(examples.item(number)[IMAGE]).histogram()
        return counts

    num_threads = max(usable_cores(), NUM_READS if examples.records.is_remote else 1)
    with ThreadPoolExecutor(num_threads, "shardprep-channels") as pool:
        try:
            parts = pool.map(some, range(0, len(examples.records), _AT_ONCE))
            return sum(parts, np.zeros(3 * _LEVELS, np.int64)).reshape(3, _LEVELS)
        except BaseException:  # Ctrl-C among them
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _kept(file: Path) -> Any:
    """Return what `_keep` has written, None where there is none."""
    with contextlib.suppress(OSError, ValueError):
        counts = np.array(json.loads(file.read_bytes()), np.int64)
        if counts.shape == (3, _LEVELS) and (counts >= 0).all() and counts.sum(axis=1).all():
            return counts
    return None


def _keep(file: Path, counts: Any) -> None:
    """Keep counts for the next call; without room, do not."""
    with contextlib.suppress(OSError, StorageError):
        make_cache(file.parent)
        with DurableFile(file, is_shared=True) as out:
            out.write(json.dumps(counts.tolist()).encode())
            out.commit()
