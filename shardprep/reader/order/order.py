"""The order of records in all epochs, for both readers.

The global batches depend only on the records, the order within an epoch (lanes, weights or a
mix), the batch size, the seed and the epoch. They do not depend on threads, caches or the
framework, nor on the number of hosts: each host takes its part of each global batch. So a state
that one reader saved can be resumed by the other, and on another number of hosts. A state is seed,
epoch, number of batches, and an identity of the batches.

A mix draws from several datasets in fixed shares, each dataset in an order of its own. A *cycle* of
places fixes which dataset each draw takes. It has at most 1,000 places and repeats for ever. Every
dataset is spread evenly over it: in the first `n` places, for any `n`, the number of draws of a
dataset with the share `s` differs from `s·n` by less than one. So the shares are exact in each
cycle, and in a batch the numbers differ by less than two.

A *pass* of a dataset is as many successive draws as the dataset has records. Each pass is an epoch
of its `BlockShuffle`, so a pass has every record once, also if it spans two epochs of the mix. The
dataset and the number of a draw are computed from its place alone. So reading can begin anywhere,
and any number of hosts computes the same order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, NamedTuple

import numpy as np

from shardprep.errors import DatasetError, counted
from shardprep.reader.array_types import Ints
from shardprep.reader.order.epoch import (
    BlockShuffle,
    EpochOrder,
    Lane,
    LaneShuffle,
    LaneSpan,
    Run,
    StoredOrder,
    WeightedDraws,
    positions_of,
)
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.permutation import key_of, mix
from shardprep.reader.validators import Arguments, Number, Seed, short_repr, whole

_PASS = 4
"""Separates the keys of passes from other keys that are derived from the key of a seed."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MixedDraws:
    """Order of the records of several datasets, drawn in fixed shares.

    Positions count through the datasets, one after the other. An epoch has as many places as the
    datasets have records, and continues the passes of the epoch before.
    """

    blocks: tuple[BlockShuffle, ...]
    """The order within each dataset."""
    shares: tuple[int, ...]
    """The share of each dataset as a whole number, at least 1; only their ratios matter."""

    @property
    def num_records(self) -> int:
        return sum(blocks.num_records for blocks in self.blocks)

    @property
    def description(self) -> str:
        """A hash of the shares, and of the sizes and blocks of the datasets."""
        digest = hashlib.sha256(str(self.shares).encode())
        for one in self.blocks:
            sizes = one.num_records, one.group_width, one.block_length, one.shuffle
            digest.update(str(sizes).encode())
        return f"mix:{digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        return self.num_records

    def at(self, key: int, epoch: int, places: Ints) -> Ints:
        runs = self._runs(key, epoch, places)
        return positions_of(runs, self.blocks, self._starts, len(places))

    def own(self, batches: GlobalBatches) -> slice:
        del batches
        return slice(0, self.num_records)

    def lanes(self, batches: GlobalBatches) -> tuple[Lane, ...]:
        """Return a lane for each dataset, or () with several hosts, which share all blocks."""
        if batches.num_hosts > 1:
            return ()
        return tuple(map(Lane, self.blocks, self._starts))

    def spans(
        self, key: int, epoch: int, batches: GlobalBatches, start: int, stop: int
    ) -> Iterator[LaneSpan]:
        return (run.span for run in self._runs(key, epoch, batches.places(start, stop)))

    @property
    def _starts(self) -> list[int]:
        return [0, *accumulate(blocks.num_records for blocks in self.blocks[:-1])]

    def _runs(self, key: int, epoch: int, places: Ints) -> Iterator[Run]:
        """Yield a run for each pass of a dataset with some of `places`."""
        cycle = _cycle(self.shares)
        turns, slots = np.divmod(places + epoch * len(self), len(cycle.dataset))
        of_place = cycle.dataset[slots]
        for number in np.unique(of_place).tolist():
            chosen = np.flatnonzero(of_place == number)
            draws = turns[chosen] * cycle.counts[number] + cycle.rank[slots[chosen]]
            passes, within = np.divmod(draws, self.blocks[number].num_records)
            for turn in np.unique(passes).tolist():
                inside = passes == turn
                own = within[inside]
                start, stop = own.item(0), own.item(-1) + 1
                span = LaneSpan(number, mix(key, _PASS, number, turn), start, stop)
                yield Run(span, chosen[inside], own - start)


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


_PARTS = ("records", "global batch", "drop_remainder", "num_batches", "shuffle", "reshuffle")
"""Names of the values in an `identity` after the version, for errors."""
_VERSION = "2"
"""First part of an `identity`. It changes when equal options give another order."""
_HINT = "use the dataset, the split and the options it was saved with"
_NO_STATE = "use the result of state_dict()"
_IN_BLOCKS = LaneShuffle | StoredOrder | MixedDraws
_DRAWN = WeightedDraws | MixedDraws
"""Orders that may have a record several times in an epoch."""
_STRETCH = 2048
"""Number of places whose tags are computed together; in a lane, many tags cost as much as one."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of one host's records in every epoch.

    A *row* is the number of a record, from 0, among the records that the host may read in any
    epoch, in the order of the shards. `start` and `stop` are own places (see `GlobalBatches`).
    """

    within_epoch: EpochOrder
    batches: GlobalBatches
    seed: int
    reshuffle: bool = True

    def __len__(self) -> int:
        """Return the number of records that this host reads in an epoch."""
        return len(self.batches)

    @property
    def key(self) -> int:
        return key_of(self.seed)

    @property
    def num_records(self) -> int:
        """Number of records of all hosts."""
        return self.within_epoch.num_records

    @property
    def own(self) -> slice | Ints:
        """The positions that the host may read in any epoch, sorted."""
        return self.within_epoch.own(self.batches)

    def num_batches(self, *, drop: bool) -> int:
        """Return the number of global batches of an epoch; with `drop`, of full batches only."""
        return self.batches.num_full + (bool(self.batches.num_left) and not drop)

    def num_own_batches(self, *, drop: bool) -> int:
        """Return the number of global batches with a part for this host; with `drop`, full ones."""
        return min(self.num_batches(drop=drop), -(-len(self) // self.batches.host_size))

    def has_part(self, number: int) -> bool:
        """Return whether global batch `number` has a part for this host."""
        return number * self.batches.host_size < len(self)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes of this host; empty if records are not read in blocks."""
        within = self.within_epoch
        return within.lanes(self.batches) if isinstance(within, _IN_BLOCKS) else ()

    def spans(self, epoch: int, start: int, stop: int) -> Iterator[LaneSpan]:
        """Return the spans of lanes that contain the own places from `start` to before `stop`."""
        within = self.within_epoch
        if not isinstance(within, _IN_BLOCKS):
            return iter(())
        return within.spans(self.key, self._repeated(epoch), self.batches, start, stop)

    def _repeated(self, epoch: int) -> int:
        """Return the epoch that decides the order of `epoch`: 0 without `reshuffle`."""
        return epoch if self.reshuffle else 0

    def tags(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the tags of the own places from `start` to before `stop`, int64.

        A *tag* names a record of an epoch: epoch × records + position, or draw × records + position
        with weights or a mix, where draws are counted from epoch 0. Random crops and augmentations
        depend on tags, and not on the number of hosts.
        """
        if start >= stop:
            return np.empty(0, np.int64)
        first = start // _STRETCH
        parts = [_stretch(self, epoch, i) for i in range(first, (stop - 1) // _STRETCH + 1)]
        begin = first * _STRETCH
        tags: Ints = np.concatenate(parts)[start - begin : stop - begin]
        return tags

    def batch(self, epoch: int, number: int) -> Ints:
        """Return the tags of the host's part of global batch `number`."""
        size = self.batches.host_size
        return self.tags(epoch, number * size, min((number + 1) * size, len(self)))

    def rows(self, tags: Ints) -> Ints:
        """Return the rows of the records that tags name."""
        positions, own = tags % self.num_records, self.own
        return positions - own.start if isinstance(own, slice) else np.searchsorted(own, positions)

    def tags_at(self, epoch: int, places: Ints) -> Ints:
        within = self.within_epoch
        reads = epoch * len(within) + places if isinstance(within, _DRAWN) else epoch
        positions = within.at(self.key, self._repeated(epoch), places)
        tags: Ints = reads * within.num_records + positions
        return tags


@lru_cache(maxsize=8)
def _stretch(order: Order, epoch: int, number: int) -> Ints:
    start = number * _STRETCH
    places = order.batches.places(start, min(start + _STRETCH, len(order)))
    return order.tags_at(epoch, places)


class State(NamedTuple):
    """The state of an iteration between two batches."""

    seed: Seed
    epoch: Annotated[int, whole(0, bits=31)]
    batch: Number
    """Number of global batches of the epoch that were yielded."""
    of: str
    """`identity` of the batches."""


def identity(records_digest: str, order: Order, *, drop: bool) -> str:
    """Return a text of all values that decide the global batches, except seed and epoch."""
    values = (
        _VERSION, records_digest, order.batches.size, drop, order.num_batches(drop=drop),
        order.within_epoch.description, order.reshuffle,
    )  # fmt: skip
    return " ".join(map(str, values))


def check_state(where: str, state: object, of: str, num_batches: int) -> State:
    """Return the argument of `load_state_dict` as a State.

    `of` is the `identity` of the iterator, and `num_batches` its number of global batches per
    epoch. DatasetError if the state is malformed or of other batches. `where` is the call that the
    error names.
    """
    if not isinstance(state, Mapping):
        raise DatasetError(where, f"{short_repr(state)} is not a state", _NO_STATE)
    missing = [name for name in State._fields if name not in state]
    if missing:
        raise DatasetError(where, f"the state has no {', '.join(map(repr, missing))}", _NO_STATE)
    fields = {name: state[name] for name in State._fields}
    saved = State(**Arguments(where, State).converted(fields))
    version, *parts = saved.of.split(" ")
    if version != _VERSION:
        what = "the state was saved by an earlier version, which had another order of records"
        raise DatasetError(where, what, "finish its epoch with that version, or start again")
    if saved.of != of:
        pairs = zip(_PARTS, parts, of.split(" ")[1:], strict=False)
        other = [f"{name}={value}" for name, value, own in pairs if value != own]
        what = f"the state was saved with other records or settings: {', '.join(other)}"
        raise DatasetError(where, what, _HINT)
    if saved.batch > num_batches:
        what = f"batch={saved.batch}, but an epoch has {counted(num_batches, 'batch')}"
        raise DatasetError(where, what, _HINT)
    return saved
