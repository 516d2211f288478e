"""The order of the records within one epoch: blocks in random order, draws by weight, or buckets.

Each is a pure function of the key of the epoch, so every host and both readers compute the same,
and any place of an epoch is found without going through the ones before it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from shardprep.reader.array_types import Floats, Ints
from shardprep.reader.order.permutation import (
    group_key,
    mix,
    permute,
    random_numbers,
    shuffled_range,
)

Size = tuple[int, int]
"""Height and width in pixels."""
BLOCK_LENGTH = 64
"""Records of a block where records are small: the cost of locating a block is then negligible."""
_MIN_BLOCK_LENGTH = 8
_BLOCK_BYTES = 2 << 20
_MIN_GROUP_WIDTH = 16
_GROUP_BYTES = 32 << 20
_GROUP_RECORDS = 1 << 14


class EpochOrder(Protocol):
    """The order of one host's records in an epoch, given the key of the epoch.

    A *position* numbers the records of a selection from 0, in the order of the shards. A *place*
    numbers the records of an epoch from 0, in reading order.
    """

    @property
    def description(self) -> str:
        """What the order follows from in addition to the records and the seed, for states."""

    def __len__(self) -> int:
        """Return the number of places of an epoch."""

    def positions(self, key: int, start: int, stop: int) -> Ints:
        """Return the positions at the places from `start` to before `stop`, which exist."""

    def batch(self, key: int, number: int, size: int) -> tuple[Ints, Size | None]:
        """Return the positions of batch `number` of `size` records, and the size of its images.

        The size is None if images are not resized.
        """
        stop = min((number + 1) * size, len(self))
        return self.positions(key, number * size, stop), None

    def tags(self, epoch: int, start: int, positions: Ints) -> Ints:
        """Return numbers that name records of an epoch, see `Order.tags`."""
        del start
        return epoch * len(self) + positions


class GroupPlace(NamedTuple):
    """A place in an epoch of blocks."""

    group: int
    skip: int
    """Number of records of the group before the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShuffle(EpochOrder):
    """Each record once: blocks of neighbours in random order, groups of blocks mixed.

    Positions are cut into *blocks* of equal length, whatever shards they are in. An epoch permutes
    the blocks, and shuffles the records of each *group* of successive blocks. So neighbours on the
    disk are read together, and no more than one group need be in memory.
    """

    num_records: int
    block_length: int
    """Records of a block. The block of the last positions may be shorter."""
    group_width: int
    """Blocks of a group. The last group of an epoch may have fewer."""
    shuffle: bool
    """False keeps the order of positions."""

    @property
    def description(self) -> str:
        """Blocks of a group x records of a block, or "False" without shuffling."""
        return f"{self.group_width}x{self.block_length}" if self.shuffle else "False"

    @property
    def num_blocks(self) -> int:
        return -(-self.num_records // self.block_length)

    @property
    def num_groups(self) -> int:
        return -(-self.num_blocks // self.group_width)

    @property
    def group_records(self) -> int:
        return min(self.group_width, self.num_blocks) * self.block_length

    def __len__(self) -> int:
        return self.num_records

    def positions(self, key: int, start: int, stop: int) -> Ints:
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        group, skip = self.find(key, start)
        parts = [_group_positions(self, key, group)[skip:]]
        missing = stop - start - len(parts[0])
        while missing > 0:
            group += 1
            parts.append(_group_positions(self, key, group))
            missing -= len(parts[-1])
        return np.concatenate(parts)[: stop - start]

    def blocks(self, key: int, group: int) -> Ints:
        places = slice(group * self.group_width, (group + 1) * self.group_width)
        if self.shuffle:
            return _permuted_blocks(self, key)[places]
        return np.arange(self.num_blocks, dtype=np.int64)[places]

    def find(self, key: int, place: int) -> GroupPlace:
        """Return the group of a place, 0 ≤ place ≤ `num_records`."""
        full = self.group_width * self.block_length
        missing = self.num_blocks * self.block_length - self.num_records
        short = self.num_blocks - 1
        if self.shuffle and missing:
            short = int(np.flatnonzero(_permuted_blocks(self, key) == short)[0])
        # After the group with the short block, every place is `missing` further than with full
        # blocks alone.
        if place >= (short // self.group_width + 1) * full - missing:
            place += missing
        return GroupPlace(place // full, place % full)


def block_shuffle(
    num_records: int,
    record_bytes: float,
    *,
    shuffle: bool,
    block_length: int | None = None,
    group_width: int | None = None,
) -> BlockShuffle:
    """Return an order that reads each record once per epoch.

    `record_bytes` is the mean size of a record in the manifest, also for records of a decoded
    cache. By default a block has `BLOCK_LENGTH` records, or as many as are 2 MiB, at least 8; a
    group has as many blocks as are 32 MiB or 16,384 records, at least 16.
    """
    length = block_length or usual_block_length(record_bytes)
    group_records = min(_GROUP_RECORDS, int(_GROUP_BYTES // max(1, record_bytes)))
    width = group_width or max(_MIN_GROUP_WIDTH, group_records // length)
    return BlockShuffle(
        num_records=num_records, block_length=length, group_width=width, shuffle=shuffle
    )


def usual_block_length(record_bytes: float) -> int:
    """Return the default number of records of a block."""
    fitting = int(_BLOCK_BYTES // max(1, record_bytes))
    return min(BLOCK_LENGTH, max(_MIN_BLOCK_LENGTH, fitting))


@lru_cache(maxsize=4)
def _permuted_blocks(blocks: BlockShuffle, key: int) -> Ints:
    places = np.arange(blocks.num_blocks, dtype=np.int64)
    return permute(places, blocks.num_blocks, key)


@lru_cache(maxsize=4)
def _group_positions(blocks: BlockShuffle, key: int, group: int) -> Ints:
    first = blocks.blocks(key, group)[:, None] * blocks.block_length
    positions = (first + np.arange(blocks.block_length)).ravel()
    positions = positions[positions < blocks.num_records]  # the short block
    chosen: Ints = positions[shuffled_range(len(positions), group_key(key, group))]
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class WeightedDraws(EpochOrder):
    """Records drawn at random by weight. The draws of all hosts are parts of one series."""

    weights: Floats
    """float64[records], from 0 on."""
    cumulated: Floats
    replacement: bool
    num_all: int
    """Draws of an epoch by all hosts together."""
    part: slice
    """The draws of this host."""

    @property
    def description(self) -> str:
        """A hash of the weights and of how they are drawn."""
        digest = hashlib.sha256(self.weights.tobytes())
        digest.update(f"{self.replacement} {self.num_all} {self.part}".encode())
        return f"weights:{digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        return self.part.stop - self.part.start  # type: ignore[no-any-return]

    def positions(self, key: int, start: int, stop: int) -> Ints:
        start, stop = start + self.part.start, stop + self.part.start
        if not self.replacement:
            return _draw_without_replacement(self, key)[start:stop]
        numbers = random_numbers(key, start, stop) * self.cumulated[-1]
        drawn: Ints = np.searchsorted(self.cumulated, numbers, side="right")
        last = int(np.flatnonzero(self.weights)[-1])  # where rounding has reached the sum
        return np.minimum(drawn, last, out=drawn)

    def tags(self, epoch: int, start: int, positions: Ints) -> Ints:
        first = epoch * len(self) + start
        return np.arange(first, first + len(positions)) * len(self.weights) + positions


@lru_cache(maxsize=2)
def _draw_without_replacement(draws: WeightedDraws, key: int) -> Ints:
    # Sorting by exponential times with the weights as rates is the same as drawing one by one
    # among the records that are left (Efraimidis and Spirakis, "Weighted random sampling with a
    # reservoir", 2006).
    times = np.full(len(draws.weights), np.inf)
    positive = draws.weights > 0
    uniform = random_numbers(key, 0, len(times))[positive]
    times[positive] = -np.log1p(-uniform) / draws.weights[positive]
    return np.argsort(times, kind="stable")[: draws.num_all]


@dataclass(frozen=True, slots=True, eq=False)
class BucketBatches(EpochOrder):
    """Batches of images that are resized to one size each; hosts take batches in turn.

    An epoch permutes the records of each bucket, cuts them into batches, and permutes the batches
    of all buckets.
    """

    sizes: tuple[Size, ...]
    members: tuple[Ints, ...]
    """Positions of the records of each bucket."""
    batch_size: int
    drop_remainder: bool
    shuffle: bool
    host: tuple[int, int]
    """Number of this host, from 0, and number of hosts."""

    @property
    def description(self) -> str:
        """A hash of the buckets and of how hosts share them."""
        digest = hashlib.sha256(f"{self.sizes} {self.host} {self.shuffle}".encode())
        for members in self.members:
            digest.update(f"{len(members)} ".encode() + members.tobytes())
        return f"buckets:{digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        return sum(map(len, self.members))

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch of this host."""
        size, up = self.batch_size, 0 if self.drop_remainder else self.batch_size - 1
        total = sum((len(members) + up) // size for members in self.members)
        index, number = self.host
        return total // number + (not self.drop_remainder and index < total % number)

    def positions(self, key: int, start: int, stop: int) -> Ints:
        """Return the positions at places that count through the batches of all hosts."""
        batches = _bucket_batches(self, key)
        return np.concatenate([positions for _, positions in batches])[start:stop]

    def batch(self, key: int, number: int, size: int) -> tuple[Ints, Size | None]:
        del size  # of `batch_size` records
        index, num_hosts = self.host
        bucket, positions = _bucket_batches(self, key)[number * num_hosts + index]
        return positions, self.sizes[bucket]


@lru_cache(maxsize=2)
def _bucket_batches(buckets: BucketBatches, key: int) -> list[tuple[int, Ints]]:
    """Return number of bucket and positions of each batch of an epoch of all hosts."""
    batches: list[tuple[int, Ints]] = []
    for bucket, members in enumerate(buckets.members):
        positions = members
        if buckets.shuffle:
            random = random_numbers(mix(key, bucket), 0, len(members))
            positions = members[np.argsort(random, kind="stable")]
        size = buckets.batch_size
        full = positions[: len(positions) // size * size] if buckets.drop_remainder else positions
        batches += [(bucket, full[start : start + size]) for start in range(0, len(full), size)]
    if not buckets.shuffle:
        return batches
    random = random_numbers(mix(key, len(buckets.members)), 0, len(batches))
    return [batches[i] for i in np.argsort(random, kind="stable").tolist()]
