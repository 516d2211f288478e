"""Batches of images that are resized to one shape each: the plan of an epoch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from shardprep.errors import DatasetError
from shardprep.reader.order.order import mixed, random_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardprep.dataset.manifest import Manifest
    from shardprep.reader.order.order import Ints
    from shardprep.reader.records.positions import Places
    from shardprep.reader.selection.selection import Selection

    Size = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class BucketOrder:
    """The batches of one reader: which records each has, and the size they are resized to.

    An epoch is a permutation of each bucket, cut into batches, and one of all batches. It is a
    function of (records, buckets, seed, epoch) alone; several readers take its batches in turn.
    """

    sizes: tuple[Size, ...]
    """Height and width of each bucket."""
    members: tuple[Ints, ...]
    """Positions of the records of each."""
    batch_size: int
    drop_remainder: bool
    shuffle: bool
    part: tuple[int, int]
    """Number of this reader, from 0, and number of all."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch of this reader."""
        total = sum(self._num_batches(len(one)) for one in self.members)
        index, number = self.part
        return total // number + (not self.drop_remainder and index < total % number)

    @property
    def digest(self) -> str:
        """A hash of what the batches follow from beside the records and the seed."""
        made = hashlib.sha256(f"{self.sizes} {self.part} {self.shuffle}".encode())
        for one in self.members:
            made.update(f"{len(one)} ".encode() + one.tobytes())
        return made.hexdigest()[:16]

    def batch(self, key: int, number: int) -> tuple[Ints, Size]:
        """Return the positions of the records of a batch of the epoch of a key, and their size."""
        index, readers = self.part
        bucket, positions = _batches(self, key)[number * readers + index]
        return positions, self.sizes[bucket]

    def _num_batches(self, num_records: int) -> int:
        size = self.batch_size
        return num_records // size if self.drop_remainder else -(-num_records // size)

    def batches(self, key: int) -> list[tuple[int, Ints]]:
        """Return the bucket and the positions of each batch of an epoch of all readers."""
        found: list[tuple[int, Ints]] = []
        for bucket, members in enumerate(self.members):
            own = members
            if self.shuffle:
                random = random_numbers(mixed(key, bucket), 0, len(members))
                own = members[np.argsort(random, kind="stable")]
            starts = range(0, self._num_batches(len(own)) * self.batch_size, self.batch_size)
            found += [(bucket, own[start : start + self.batch_size]) for start in starts]
        if not self.shuffle:
            return found
        random = random_numbers(mixed(key, len(self.members)), 0, len(found))
        return [found[i] for i in np.argsort(random, kind="stable").tolist()]


_batches = lru_cache(maxsize=2)(BucketOrder.batches)


def members_of(
    buckets: Mapping[Size, Selection], manifest: Manifest, places: Places
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
