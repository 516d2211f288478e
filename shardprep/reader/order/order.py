"""The order of records, one for both readers: a function of (dataset, seed, epoch, record).

Positions count the records of a selection from 0. Runs of positions of equal length are blocks,
whichever shards they lie in. An epoch is a permutation of the blocks; so many blocks in a row are
a group, whose records are mixed among themselves. So a place in an epoch is found by arithmetic,
what lies together on a disk is read together, and no more than a group need be in memory.

`mixed` and `permuted` are written with operators alone: they take and give Python's
integers, NumPy's int64 arrays and TensorFlow's int64 tensors, so that one order serves all three.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from shardprep.reader.selection.bucketing import BucketOrder
    from shardprep.reader.selection.weights import Draws

    Ints = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_LENGTH = 64
"""Records of a block where they are small: enough that finding it costs nothing beside reading."""
_MIN_BLOCK_LENGTH = 8
_BLOCK_BYTES = 2 << 20
_MIN_GROUP_WIDTH = 16
_GROUP_BYTES = 32 << 20
_GROUP_RECORDS = 1 << 14

_PRIME = (1 << 31) - 1
_A_COUNTER = 4
"""Numbers of 64 bits of one counter of Philox4x64."""
_UINT32 = (1 << 32) - 1
_ROUNDS = 6
_APART = 0x5BD1E995
"""Difference of the keys of two rounds."""
_GROUP = 1
"""Tells the keys of groups from other keys that are made of an epoch's."""
_T = TypeVar("_T")


class Start(NamedTuple):
    """A place in an epoch."""

    group: int
    """The first group to read."""
    skip: int
    """Number of its records that come before the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of every epoch of a selection."""

    num_records: int
    """Records of an epoch, at least 1."""
    block_length: int
    """Records of a block; the one with the last positions may have fewer."""
    group_width: int
    """Blocks of a group; the last group of an epoch may have fewer."""
    seed: int
    shuffle: bool
    reshuffle: bool = True
    """Whether epochs differ in their order."""
    draws: Draws | None = None
    """Draws by weight that take the place of blocks and groups."""
    buckets: BucketOrder | None = None
    """Batches of one shape each that do."""

    @property
    def key(self) -> int:
        """The seed as a key of `mixed`."""
        return key_of(self.seed)

    @property
    def num_blocks(self) -> int:
        """Blocks of an epoch."""
        return -(-self.num_records // self.block_length)

    @property
    def num_groups(self) -> int:
        """Groups of an epoch."""
        return -(-self.num_blocks // self.group_width)

    @property
    def group_records(self) -> int:
        """Records of a group without a short block."""
        return min(self.group_width, self.num_blocks) * self.block_length

    def drawn_by(self, draws: Draws | None) -> Order:
        """Return the order of epochs of these draws; itself, where there are none."""
        return self if draws is None else replace(self, num_records=len(draws), draws=draws)

    def epoch_key(self, epoch: Any) -> Any:
        """Return the key of an epoch."""
        return mixed(self.key, epoch if self.reshuffle else 0)

    def positions(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the positions that come at the places from `start` to before `stop`.

        Places count the records of an epoch from 0; 0 ≤ start ≤ stop ≤ `num_records`.
        """
        if self.draws is not None:
            return self.draws.positions(self.epoch_key(epoch), start, stop)
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        number, skip = self.find(epoch, start)
        found = [_group(self, epoch, number)[skip:]]
        missing = stop - start - len(found[0])
        while missing > 0:
            number += 1
            found.append(_group(self, epoch, number))
            missing -= len(found[-1])
        return np.concatenate(found)[: stop - start]

    def blocks(self, epoch: int, group: int) -> Ints:
        """Return the blocks of a group of an epoch."""
        places = slice(group * self.group_width, (group + 1) * self.group_width)
        if self.shuffle:
            return _blocks(self, epoch)[places]
        return np.arange(self.num_blocks, dtype=np.int64)[places]

    def tags(self, epoch: int, start: int, positions: Ints, num_records: int) -> Ints:
        """Return what names the records at the places of an epoch from `start` on, int64.

        Epoch × records + position; where records are drawn by weight, and the same one may come
        again, draw × records + position. `num_records` are those of the selection.
        """
        place = epoch * self.num_records
        if self.draws is None:
            return place + positions
        draws = np.arange(place + start, place + start + len(positions))
        return draws * num_records + positions

    def batch(self, epoch: int, number: int, size: int) -> tuple[Ints, tuple[int, int] | None]:
        """Return the positions of a batch of so many records, and height and width of its images.

        None where these are what they are.
        """
        if self.buckets is not None:
            return self.buckets.batch(self.epoch_key(epoch), number)
        stop = min((number + 1) * size, self.num_records)
        return self.positions(epoch, number * size, stop), None

    def find(self, epoch: int, place: int) -> Start:
        """Return where a place of an epoch is, 0 ≤ place ≤ `num_records`."""
        full = self.group_width * self.block_length
        missing = self.num_blocks * self.block_length - self.num_records
        short = self.num_blocks - 1
        if self.shuffle and missing:
            short = int(np.flatnonzero(_blocks(self, epoch) == short)[0])
        # Behind the group of the short block, places are those of full blocks, less what it lacks.
        if place >= (short // self.group_width + 1) * full - missing:
            place += missing
        return Start(place // full, place % full)


def make_order(
    num_records: int,
    record_bytes: float,
    *,
    seed: int,
    shuffle: bool,
    block_length: int | None = None,
    group_width: int | None = None,
) -> Order:
    """Return the order of so many records.

    Args:
        num_records: records of the selection.
        record_bytes: mean size of a record of the dataset, as its manifest has it. What is read in
            the shards' place, such as a cache, has no say.
        seed: any integer.
        shuffle: False keeps the positions as they are.
        block_length: records; by default `BLOCK_LENGTH`, or as many as are 2 MiB, at least 8.
        group_width: blocks; by default as many as are 32 MiB or 16,384 records, at least 16.

    """
    block_length = block_length or usual_block_length(record_bytes)
    if group_width is None:
        most = min(_GROUP_RECORDS, int(_GROUP_BYTES // max(1, record_bytes)))
        group_width = max(_MIN_GROUP_WIDTH, most // block_length)
    return Order(
        num_records=num_records,
        block_length=block_length,
        group_width=group_width,
        seed=seed,
        shuffle=shuffle,
    )


def usual_block_length(record_bytes: float) -> int:
    """Return the records of a block, unless something else is asked for."""
    most = int(_BLOCK_BYTES // max(1, record_bytes))
    return min(BLOCK_LENGTH, max(_MIN_BLOCK_LENGTH, most))


def key_of(seed: int) -> int:
    """Return any integer as a key of `mixed`."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=8).digest()
    return int.from_bytes(digest) % _PRIME


def random_numbers(key: int, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the random numbers of a key from place `start` to before `stop`, 0 to below 1.

    Those of Philox4x64-10, four a counter: any place is found at once, on any machine.
    """
    skip = start % _A_COUNTER
    bits = np.random.Philox(key=key, counter=start // _A_COUNTER)
    raw = bits.random_raw(stop - start + skip)[skip:]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mixed(key: _T, *numbers: Any) -> _T:
    """Return a pseudo-random hash of its arguments, from 0 to 2³¹ − 2; none is negative."""
    found: Any = key
    for number in numbers:
        found = ((found ^ (number % _PRIME)) * 48271 + 0x2545F491) % _PRIME  # never overflows
        found = ((found ^ (found // (1 << 15))) * 69621) % _PRIME
        found = found ^ (found // (1 << 13))
    return found % _PRIME  # type: ignore[no-any-return]


def group_key(epoch_key: Any, group: Any) -> Any:
    """Return the key by which the records of a group are drawn."""
    return mixed(epoch_key, _GROUP, group)


def draw_seeds(key: Any) -> tuple[Any, Any]:
    """Return the two seeds by which the records of a group, or of a window, are drawn."""
    return key + 1, mixed(key, 1)  # two zeros would mean any seed to TensorFlow


def drawn(num_records: int, key: int) -> list[int]:
    """Return a permutation of so many records: those that `tf.data` draws from a full window.

    A Fisher-Yates shuffle by the numbers of Philox4x32-10 (Salmon et al., 2011), for which the
    graph has an op that moves records and copies none.
    """
    left = np.arange(num_records, 0, -1)
    steps = _philox(*draw_seeds(key), num_records) % left.astype(np.uint64)
    found = list(range(num_records))
    for i, j in enumerate((steps.astype(np.int64) + np.arange(num_records)).tolist()):
        found[i], found[j] = found[j], found[i]
    return found


def _philox(seed: int, seed2: int, number: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the first so many of the 32-bit numbers that two seeds below 2³² give."""
    blocks = np.arange(-(-number // 4), dtype=np.uint64)
    zero, half = np.zeros_like(blocks), np.uint64(32)
    counters = [blocks, zero, zero + np.uint64(seed2), zero]
    keys = [seed, 0]
    for _ in range(10):
        low = counters[0] * np.uint64(0xD2511F53)
        high = counters[2] * np.uint64(0xCD9E8D57)
        counters = [
            (high >> half) ^ counters[1] ^ np.uint64(keys[0]),
            high & np.uint64(_UINT32),
            (low >> half) ^ counters[3] ^ np.uint64(keys[1]),
            low & np.uint64(_UINT32),
        ]
        keys = [(keys[0] + 0x9E3779B9) & _UINT32, (keys[1] + 0xBB67AE85) & _UINT32]
    return np.stack(counters, axis=1).ravel()[:number]


def table(size: int) -> tuple[int, int]:
    """Return rows and columns of a table with at least `size` fields, but not a row too many."""
    columns = max(1, math.isqrt(size - 1) + 1)
    return -(-size // columns), columns


def permuted(places: _T, rows: Any, columns: Any, key: Any) -> _T:
    """Return what stands at some places of a permutation of the fields of a table.

    A Feistel network: each round turns every row by a value derived from the column and every
    column by one derived from the row, so that no two fields ever meet. A permutation of fewer
    things than there are fields comes from walking on from a field that is none of them (`walked`).
    """
    row, column = places // columns, places % columns
    for turn in range(_ROUNDS):
        row = (row + mixed(key + 2 * turn * _APART, column)) % rows
        column = (column + mixed(key + (2 * turn + 1) * _APART, row)) % columns
    return row * columns + column  # type: ignore[no-any-return]


def walked(places: Ints, size: int, key: int) -> Ints:
    """Return what stands at some places of the permutation of `size` things that a key means."""
    fields = table(size)
    found = permuted(places, *fields, key)
    while (outside := found >= size).any():
        found[outside] = permuted(found[outside], *fields, key)
    return found


@lru_cache(maxsize=4)
def _blocks(order: Order, epoch: int) -> Ints:
    """Return the blocks of an epoch as they come."""
    places = np.arange(order.num_blocks, dtype=np.int64)
    return walked(places, order.num_blocks, order.epoch_key(epoch))


@lru_cache(maxsize=4)
def _group(order: Order, epoch: int, number: int) -> Ints:
    """Return the positions of a group of an epoch as they come."""
    found = order.blocks(epoch, number)[:, None] * order.block_length
    found = (found + np.arange(order.block_length)).ravel()
    found = found[found < order.num_records]  # of the short block, those that there are
    key = group_key(order.epoch_key(epoch), number)
    chosen: Ints = found[drawn(len(found), key)]
    return chosen
