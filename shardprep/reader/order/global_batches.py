"""Cut the places of an epoch into global batches, and each global batch into parts for hosts.

A *place* numbers the records of an epoch from 0, in training order, for all hosts together. A
*global batch* is `size` successive places, and the last one of an epoch may be shorter. A batch of
`m` places is cut into `R` parts at ⌈r·m / R⌉ for r = 0 … R: parts differ by one place at most, the
first is the longest, and the cuts for 2R hosts include those for R hosts. For any number of hosts,
their parts together are the same global batches.

Each batch of images of mixed sizes is of one bucket, so that all its images have one shape.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardprep.reader.array_types import Ints
from shardprep.reader.order.permutation import mix, random_numbers


def cut(number: int, size: int, parts: int) -> int:
    """Return where part `number` begins if `size` places are cut into `parts`."""
    return -(-number * size // parts)


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """The global batches of an epoch, and the part of each that one host takes.

    An *own place* numbers the records of this host from 0, in reading order.
    """

    num_places: int
    """Number of places of an epoch."""
    size: int
    """Number of places of a full global batch: a multiple of `num_hosts`."""
    host: int = 0
    num_hosts: int = 1

    @property
    def num_full(self) -> int:
        return self.num_places // self.size

    @property
    def num_left(self) -> int:
        """Number of places of the incomplete global batch at the end, or 0 if all are full."""
        return self.num_places % self.size

    @property
    def host_size(self) -> int:
        """Number of places of this host in a full global batch."""
        return self.size // self.num_hosts

    def part(self, size: int) -> range:
        """Return the part of this host in a batch of `size` places, counted from its start."""
        return range(*(cut(host, size, self.num_hosts) for host in (self.host, self.host + 1)))

    def __len__(self) -> int:
        """Return the number of own places of an epoch."""
        return self.num_full * self.host_size + len(self.part(self.num_left))

    def places(self, start: int, stop: int) -> Ints:
        """Return the own places from `start` to before `stop`, converted to places."""
        own = np.arange(start, stop, dtype=np.int64)
        if self.num_hosts == 1:
            return own
        batch = np.minimum(own // self.host_size, self.num_full)
        first = np.where(
            batch < self.num_full, self.part(self.size).start, self.part(self.num_left).start
        )
        places: Ints = own + batch * (self.size - self.host_size) + first
        return places


@dataclass(frozen=True, slots=True, eq=False)
class BucketBatches:
    """Global batches of one bucket each; all images of a bucket are resized to one size.

    With `shuffle`, an epoch permutes the records of each bucket before it cuts them into batches,
    and then permutes the batches of all buckets.
    """

    sizes: tuple[tuple[int, int], ...]
    """Height and width of the images of each bucket."""
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

    def places_of(self, key: int, epoch: int, number: int) -> tuple[range, tuple[int, int]]:
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
