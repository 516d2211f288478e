"""Places of records: their shards, and offset and length of their frames."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from shardprep.dataset.manifest import Manifest, Shard
from shardprep.reader.array_types import Ints


class Places(NamedTuple):
    """Shard of each record, and its number there."""

    shards: tuple[Shard, ...]
    shard: Ints
    """int64[records], number of the shard in `shards`."""
    record: Ints
    """int64[records], number of the record in its shard."""

    @classmethod
    def of(cls, manifest: Manifest, numbers: Ints) -> Self:
        """Return the places of records by their numbers in the dataset."""
        every = list(manifest.shards.values())
        stops = np.cumsum([entry.num_records for entry in every])
        shard = np.searchsorted(stops, numbers, side="right")
        shards = list(dict.fromkeys(shard[starts_of(shard)].tolist()))
        new_numbers = np.zeros(len(every), np.int64)
        new_numbers[shards] = np.arange(len(shards))
        starts = np.append(0, stops)[shard]
        return cls(tuple(every[old] for old in shards), new_numbers[shard], numbers - starts)

    def numbers(self, manifest: Manifest) -> Ints:
        """Return the numbers of the records in the dataset."""
        shards = manifest.shards
        stops = np.cumsum([entry.num_records for entry in shards.values()])
        starts = dict(zip(shards, (0, *stops.tolist()), strict=False))
        numbers: Ints = np.array([starts[own.name] for own in self.shards])[self.shard]
        return numbers + self.record

    @classmethod
    def whole(cls, shard: Shard) -> Self:
        """Return the places of all records of a shard."""
        record = np.arange(shard.num_records, dtype=np.int64)
        return cls((shard,), np.zeros_like(record), record)


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of records in shards, as arrays of equal length."""

    shard: Ints
    """Number of the shard."""
    record: Ints
    """Number of the record in its shard."""
    offset: Ints
    """Offset of the frame in bytes."""
    length: Ints
    """Size of the whole frame in bytes."""

    def __getitem__(self, wanted: slice | Ints) -> Frames:
        return Frames(*(column[wanted] for column in self.columns()))

    def columns(self) -> tuple[Ints, ...]:
        """Return shards, records, offsets and lengths."""
        return self.shard, self.record, self.offset, self.length

    def starts_run(self, gap_bytes: int = 0) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return bool[records]: whether a frame is not within `gap_bytes` after the one before."""
        starts = np.ones(len(self.shard), bool)
        gaps = self.offset[1:] - (self.offset + self.length)[:-1]
        starts[1:] = (self.shard[1:] != self.shard[:-1]) | (gaps < 0) | (gaps > gap_bytes)
        return starts

    def runs(self, gap_bytes: int = 0) -> list[tuple[int, int]]:
        """Return start and stop of each run of neighbouring frames, as `starts_run` defines it."""
        starts = np.flatnonzero(self.starts_run(gap_bytes)).tolist()
        return list(pairwise([*starts, len(self.shard)]))


def starts_of(shard: Ints) -> Ints:
    """Return the positions where the shard changes, and 0."""
    return np.flatnonzero(np.append(True, shard[1:] != shard[:-1]))
