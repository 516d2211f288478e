"""Draws from several datasets in fixed shares, each dataset in an order of its own.

A *cycle* of places fixes which dataset each draw takes. It has at most 1,000 places and repeats for
ever. Every dataset is spread evenly over it: in the first `n` places, for any `n`, the number of
draws of a dataset with the share `s` differs from `s·n` by less than one. So the shares are exact
in each cycle, and in a batch the numbers differ by less than two.

Draws of a dataset are counted. A *pass* is as many of them as it has records. Each pass is an epoch
of its `BlockShuffle`, so it has every record once, also if it begins in one epoch and ends in the
next. The dataset and the number of any draw follow from its place by arithmetic, so reading can
begin anywhere, and any number of hosts computes the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from shardprep.reader.array_types import Ints
from shardprep.reader.order.epoch import BlockShuffle, Lane, LaneSpan
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.permutation import mix

_PASS = 4
"""Separates the keys of passes from other keys derived from the key of a seed."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MixedDraws:
    """Records of several datasets, drawn in fixed shares.

    The positions of each dataset follow the positions of the dataset before. An epoch has as many
    places as the datasets have records, and continues the passes of the epoch before. With
    `stops_first`, every epoch begins a new pass of each dataset, and ends when a dataset has no
    record left.
    """

    blocks: tuple[BlockShuffle, ...]
    """The order within each dataset."""
    shares: tuple[int, ...]
    """The share of each dataset as a whole number, at least 1; only their ratios matter."""
    stops_first: bool

    @property
    def num_records(self) -> int:
        return sum(blocks.num_records for blocks in self.blocks)

    @property
    def description(self) -> str:
        """A hash of the shares, the sizes and blocks of the datasets, and `stops_first`."""
        digest = hashlib.sha256(f"{self.shares} {self.stops_first}".encode())
        for one in self.blocks:
            sizes = one.num_records, one.group_width, one.block_length, one.shuffle
            digest.update(str(sizes).encode())
        return f"mix:{digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        if not self.stops_first:
            return self.num_records
        cycle = _cycle(self.shares)
        ends = []
        for number, blocks in enumerate(self.blocks):
            slots = np.flatnonzero(cycle.dataset == number)
            turns, left = divmod(blocks.num_records - 1, len(slots))
            ends.append(turns * len(cycle.dataset) + slots.item(left) + 1)
        return min(ends)

    def at(self, key: int, epoch: int, places: Ints) -> Ints:
        positions = np.empty(len(places), np.int64)
        starts = self._starts
        for span, chosen, own in self._runs(key, epoch, places):
            found = self.blocks[span.lane].positions(span.key, span.start, span.stop)
            positions[chosen] = found[own - span.start] + starts[span.lane]
        return positions

    def own(self, batches: GlobalBatches) -> slice:
        del batches
        return slice(0, self.num_records)

    def lanes(self, batches: GlobalBatches) -> tuple[Lane, ...]:
        """Return a lane for each dataset, or none with several hosts, which share all blocks."""
        if batches.num_hosts > 1:
            return ()
        return tuple(map(Lane, self.blocks, self._starts))

    def spans(
        self, key: int, epoch: int, batches: GlobalBatches, start: int, stop: int
    ) -> Iterator[LaneSpan]:
        return (span for span, _, _ in self._runs(key, epoch, batches.places(start, stop)))

    @property
    def _starts(self) -> list[int]:
        return [0, *accumulate(blocks.num_records for blocks in self.blocks[:-1])]

    def _runs(self, key: int, epoch: int, places: Ints) -> Iterator[tuple[LaneSpan, Ints, Ints]]:
        """Yield the span of each pass with some places, their indices, and their places there."""
        cycle = _cycle(self.shares)
        drawn = places if self.stops_first else places + epoch * len(self)
        turns, slots = np.divmod(drawn, len(cycle.dataset))
        of_place = cycle.dataset[slots]
        for number in np.unique(of_place).tolist():
            chosen = np.flatnonzero(of_place == number)
            draws = turns[chosen] * cycle.counts[number] + cycle.rank[slots[chosen]]
            passes, within = np.divmod(draws, self.blocks[number].num_records)
            for turn in np.unique(passes).tolist():
                inside = passes == turn
                own = within[inside]
                pass_key = mix(key, _PASS, number, epoch if self.stops_first else turn)
                span = LaneSpan(number, pass_key, own.item(0), own.item(-1) + 1)
                yield span, chosen[inside], own


class _Cycle(NamedTuple):
    dataset: Ints
    """Number of the dataset of each place."""
    rank: Ints
    """Number of earlier places of the cycle with the same dataset."""
    counts: tuple[int, ...]
    """Number of places of each dataset."""


@lru_cache(maxsize=8)
def _cycle(shares: tuple[int, ...]) -> _Cycle:
    # Draw k of a dataset with n of T places has a window: places ⌊kT / n⌋ to ⌈(k + 1)T / n⌉ − 1. A
    # schedule that keeps every draw in its window exists, and "earliest deadline first" finds it
    # (Baruah and others, "Proportionate progress", Algorithmica 1996).
    divisor = math.gcd(*shares)
    counts = tuple(share // divisor for share in shares)
    length, done = sum(counts), [0] * len(counts)
    datasets, ranks = [], []
    for place in range(length):
        _, dataset = min(
            (-(-(k + 1) * length // n), i)
            for i, (k, n) in enumerate(zip(done, counts, strict=True))
            if k * length < (place + 1) * n
        )
        datasets.append(dataset)
        ranks.append(done[dataset])
        done[dataset] += 1
    return _Cycle(np.array(datasets), np.array(ranks), counts)
