"""Global batches of images of mixed sizes: each of one bucket, so that all have one shape."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardprep.reader.array_types import Ints
from shardprep.reader.order.epoch import Size
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.permutation import mix, random_numbers


@dataclass(frozen=True, slots=True, eq=False)
class BucketBatches:
    """Global batches of one bucket each; all images of a bucket are resized to one size.

    With `shuffle`, an epoch permutes the records of each bucket before it cuts them into batches,
    and then permutes the batches of all buckets.
    """

    sizes: tuple[Size, ...]
    members: tuple[Ints, ...]
    """Positions of the records of each bucket."""
    batch_size: int
    """Number of records of a global batch. The last batch of a bucket may be shorter."""
    drop_remainder: bool
    shuffle: bool

    @property
    def num_records(self) -> int:
        return sum(map(len, self.members))

    @property
    def description(self) -> str:
        """A hash of the buckets and `shuffle`."""
        digest = hashlib.sha256(f"{self.sizes} {self.shuffle}".encode())
        for members in self.members:
            digest.update(f"{len(members)} ".encode() + members.tobytes())
        return f"buckets:{digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        return self.num_records

    @property
    def num_batches(self) -> int:
        more = 0 if self.drop_remainder else self.batch_size - 1
        return sum((len(members) + more) // self.batch_size for members in self.members)

    def at(self, key: int, epoch: int, places: Ints) -> Ints:
        return _bucket_epoch(self, mix(key, epoch)).positions[places]

    def own(self, batches: GlobalBatches) -> slice:
        del batches
        return slice(0, self.num_records)

    def places_of(self, key: int, epoch: int, number: int) -> tuple[range, Size]:
        """Return the places of global batch `number`, and the size of its images."""
        own = _bucket_epoch(self, mix(key, epoch))
        start = own.stops[number - 1] if number else 0
        return range(start, own.stops[number]), self.sizes[own.buckets[number]]


class _BucketEpoch(NamedTuple):
    positions: Ints
    """The positions of all batches, concatenated."""
    stops: list[int]
    """End of each batch in `positions`."""
    buckets: list[int]
    """Index of the bucket of each batch."""


@lru_cache(maxsize=2)
def _bucket_epoch(buckets: BucketBatches, key: int) -> _BucketEpoch:
    batches: list[tuple[int, Ints]] = []
    for bucket, members in enumerate(buckets.members):
        positions = members
        if buckets.shuffle:
            random = random_numbers(mix(key, bucket), 0, len(members))
            positions = members[np.argsort(random, kind="stable")]
        size = buckets.batch_size
        full = positions[: len(positions) // size * size] if buckets.drop_remainder else positions
        batches += [(bucket, full[start : start + size]) for start in range(0, len(full), size)]
    if buckets.shuffle:
        random = random_numbers(mix(key, len(buckets.members)), 0, len(batches))
        batches = [batches[i] for i in np.argsort(random, kind="stable").tolist()]
    parts = [positions for _, positions in batches]
    stops = np.cumsum([len(part) for part in parts]).tolist()
    none = np.empty(0, np.int64)
    return _BucketEpoch(np.concatenate([none, *parts]), stops, [bucket for bucket, _ in batches])
