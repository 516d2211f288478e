"""Places of records in the shards of a dataset, and of their bytes in these."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from shardprep.dataset.manifest import Manifest, Shard
from shardprep.reader.array_types import Ints


class Places(NamedTuple):
    """Places of records in shards."""

    shards: tuple[Shard, ...]
    shard: Ints
    """Number in `shards` of each record's shard."""
    record: Ints
    """Number of each record in its shard."""

    @classmethod
    def of(cls, manifest: Manifest, numbers: Ints) -> Self:
        """Return the places of the records of a dataset with some numbers, in their order."""
        every = list(manifest.shards.values())
        stops = np.cumsum([one.num_records for one in every])
        shard = np.searchsorted(stops, numbers, side="right")
        shards = list(dict.fromkeys(shard[starts_of(shard)].tolist()))
        places = np.zeros(len(every), np.int64)
        places[shards] = np.arange(len(shards))
        starts = np.append(0, stops)[shard]
        return cls(tuple(every[one] for one in shards), places[shard], numbers - starts)

    def numbers(self, manifest: Manifest) -> Ints:
        """Return the numbers of the records in the dataset that the shards are of."""
        shards = manifest.shards
        stops = np.cumsum([one.num_records for one in shards.values()])
        starts = dict(zip(shards, (0, *stops.tolist()), strict=False))
        found: Ints = np.array([starts[one.name] for one in self.shards])[self.shard] + self.record
        return found

    @classmethod
    def whole(cls, shard: Shard) -> Self:
        """Return the places of all records of a shard."""
        record = np.arange(shard.num_records, dtype=np.int64)
        return cls((shard,), np.zeros_like(record), record)


@dataclass(frozen=True, slots=True)
class Frames:
    """Where the frames of records are; arrays of equal length."""

    shard: Ints
    """Number of the shard."""
    record: Ints
    """Number of the record in its shard."""
    offset: Ints
    """Bytes from the beginning of the shard to the frame."""
    length: Ints
    """Bytes of the whole frame."""

    def __getitem__(self, wanted: slice | Ints) -> Frames:
        return Frames(*(column[wanted] for column in self.columns()))

    def columns(self) -> tuple[Ints, ...]:
        """Return shards, records, offsets and lengths."""
        return self.shard, self.record, self.offset, self.length

    def starts_run(self, gap_bytes: int = 0) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each record whether its frame does not lie right behind the one before.

        There may be so many bytes between the two.
        """
        found = np.ones(len(self.shard), bool)
        gaps = self.offset[1:] - (self.offset + self.length)[:-1]
        found[1:] = (self.shard[1:] != self.shard[:-1]) | (gaps < 0) | (gaps > gap_bytes)
        return found

    def runs(self, gap_bytes: int = 0) -> list[tuple[int, int]]:
        """Return first and stop of the records that lie together, as `starts_run` finds them."""
        starts = np.flatnonzero(self.starts_run(gap_bytes)).tolist()
        return list(pairwise([*starts, len(self.shard)]))


def starts_of(shard: Ints) -> Ints:
    """Return where the records of another shard begin, 0 first."""
    return np.flatnonzero(np.append(True, shard[1:] != shard[:-1]))
