"""Which records a batch holds. Pure: everything follows from the fields and the batch's place.

So a place in the middle of an epoch is two numbers, and to go on from it nothing is read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """The batches of every epoch of one reader among several (`num_shards`)."""

    num_records: int
    batch_size: int
    shuffle: bool
    seed: int
    drop_remainder: bool
    num_shards: int = 1
    shard_index: int = 0

    @property
    def num_batches(self) -> int:
        """Batches an epoch. With `drop_remainder` every shard has as many."""
        if self.drop_remainder:
            return self.num_records // self.num_shards // self.batch_size
        mine = len(range(self.shard_index, self.num_records, self.num_shards))
        return -(-mine // self.batch_size)

    def batch(self, epoch: int, number: int) -> Numbers:
        """Return the numbers of the records of a batch, 0 ≤ number < `num_batches`.

        The shards take turns at the records of one order, so the batches of one number of all
        shards together are the batch that a single reader with batches as large would get.
        """
        start = self.shard_index + number * self.batch_size * self.num_shards
        stop = start + self.batch_size * self.num_shards
        if not self.shuffle:
            return np.arange(start, min(stop, self.num_records), self.num_shards)
        return _shuffled(self.num_records, self.seed, epoch)[start : stop : self.num_shards]


@lru_cache(maxsize=2)
def _shuffled(num_records: int, seed: int, epoch: int) -> Numbers:
    """Return the order of an epoch: a permutation of 0 … num_records - 1.

    Sorted by random bits: numpy keeps the bits that PCG64 gives for a seed the same for ever, which
    it does not promise of `Generator.permutation`.
    """
    keys = np.random.PCG64([seed, epoch]).random_raw(num_records)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
