"""The order of the records within one epoch: lanes of blocks, or draws by weight.

An order is a pure function of the records, the size of a global batch, the key of the seed and the
epoch. So every host and both readers compute the same order, and can begin at any place of an
epoch. Any number of hosts reads the same global batches.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from shardprep.reader.array_types import Floats, Ints
from shardprep.reader.order.global_batches import GlobalBatches, cut
from shardprep.reader.order.permutation import (
    mix,
    permutations,
    random_numbers,
    shuffled_ranges,
)

Size = tuple[int, int]
"""Height and width in pixels."""
BLOCK_LENGTH = 64
"""Number of records of a block if records are small, chosen to make seeks negligible."""
_MIN_BLOCK_LENGTH = 8
_BLOCK_BYTES = 2 << 20
_MIN_GROUP_WIDTH = 16
_GROUP_BYTES = 32 << 20
_GROUP_RECORDS = 1 << 14
_MOST_LANES = 16
_FEW_LANES = 8
"""Number of lanes up to which a lane may have fewer than `_LANE_RECORDS` records of a batch."""
_LANE_RECORDS = 8
_LANE_WIDTH = 4
"""Minimum number of blocks that a lane mixes at a time."""
_Key = TypeVar("_Key")
_GROUP, _LANE = 1, 3
"""Separate the keys of groups and lanes from other keys that are derived from a key."""


class Lane(NamedTuple):
    """Successive rows of a host that are read in blocks."""

    blocks: BlockShuffle
    start: int
    """First row of the lane."""


class LaneSpan(NamedTuple):
    """Successive places within one lane: `start` to before `stop`."""

    lane: int
    """Index of the lane in `Order.lanes`."""
    key: int
    """Key of the order within the lane in this epoch."""
    start: int
    stop: int


class EpochOrder(Protocol):
    """The order of the records of all hosts in an epoch, given the key of the seed.

    A *position* is the number of a record of a selection, from 0, in the order of the shards. A
    *place* is the number of a record of an epoch in training order (see `global_batches`). The
    elements of arguments `places` must increase.
    """

    @property
    def num_records(self) -> int:
        """Number of positions."""

    @property
    def description(self) -> str:
        """Settings that decide the order, except records and seed, as a part of `identity`."""

    def __len__(self) -> int:
        """Return the number of places of an epoch."""

    def at(self, key: int, epoch: int, places: Ints) -> Ints:
        """Return the positions of the records at `places`."""

    def own(self, batches: GlobalBatches) -> slice | Ints:
        """Return the positions that the host of `batches` may read in any epoch, sorted."""


class GroupPlace(NamedTuple):
    """Position of a place in a `BlockShuffle`: a group, and an offset in the group."""

    group: int
    skip: int
    """Number of records of the group before the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShuffle:
    """Order that has each record once: permuted blocks of neighbours, shuffled in groups of blocks.

    Positions are cut into *blocks* of equal length, also across shards. An epoch permutes the
    blocks, and shuffles the records of each *group* of successive blocks. So neighbours on the disk
    are read together, and only one group must be in memory. In a lane of a `LaneShuffle`, places
    and positions count from 0.
    """

    num_records: int
    block_length: int
    """Number of records of a block. The block with the last positions may be shorter."""
    group_width: int
    """Number of blocks of a group. The last group of an epoch may have fewer."""
    shuffle: bool
    """False keeps the order of positions."""

    @property
    def num_blocks(self) -> int:
        return -(-self.num_records // self.block_length)

    @property
    def num_groups(self) -> int:
        return -(-self.num_blocks // self.group_width)

    @property
    def group_records(self) -> int:
        return min(self.group_width, self.num_blocks) * self.block_length

    def positions(self, key: int, start: int, stop: int) -> Ints:
        """Return the positions at the places from `start` to before `stop`, which must exist."""
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        skip = self.find(key, start).skip
        parts = _group_positions(*self.groups(key, start, stop))
        return np.concatenate(parts)[skip : skip + stop - start]

    def groups(self, key: int, start: int, stop: int) -> list[tuple[BlockShuffle, int, int]]:
        """Return (self, key, group) of each group with places from `start` to before `stop`."""
        first, last = (self.find(key, place).group for place in (start, stop - 1))
        return [(self, key, group) for group in range(first, last + 1)]

    def blocks(self, key: int, group: int) -> Ints:
        places = slice(group * self.group_width, (group + 1) * self.group_width)
        if self.shuffle:
            return _permuted_blocks((self, key))[0][places]
        return np.arange(self.num_blocks, dtype=np.int64)[places]

    def find(self, key: int, place: int) -> GroupPlace:
        """Return the group of a place, 0 ≤ place ≤ `num_records`, and its offset in the group."""
        full = self.group_width * self.block_length
        missing = self.num_blocks * self.block_length - self.num_records
        short = self.num_blocks - 1
        if self.shuffle and missing:
            short = int(np.flatnonzero(_permuted_blocks((self, key))[0] == short)[0])
        # With groups of equal size, places after the short group would be larger by `missing`.
        if place >= (short // self.group_width + 1) * full - missing:
            place += missing
        return GroupPlace(place // full, place % full)


class Run(NamedTuple):
    """Some places of an epoch that are in one lane, and the span of the lane that contains them."""

    span: LaneSpan
    chosen: slice | Ints
    """Indices of the given places that are in this lane."""
    offsets: Ints
    """Place of each chosen record within the lane, minus the start of the span."""


def positions_of(
    runs: Iterable[Run], blocks: Sequence[BlockShuffle], starts: Sequence[int] | Ints, number: int
) -> Ints:
    """Return the positions of the `number` places that `runs` cover, int64[number], in order.

    `blocks` and `starts` have the order and the first position of each lane.
    """
    positions, runs = np.empty(number, np.int64), list(runs)
    # Computed for all lanes together; `BlockShuffle.positions` then takes cached results.
    shuffled = [(blocks[run.span.lane], run.span) for run in runs if blocks[run.span.lane].shuffle]
    _permuted_blocks(*[(of, span.key) for of, span in shuffled])
    groups = [of.groups(span.key, span.start, span.stop) for of, span in shuffled]
    _group_positions(*itertools.chain(*groups))
    for span, chosen, offsets in runs:
        found = blocks[span.lane].positions(span.key, span.start, span.stop)
        positions[chosen] = found[offsets] + starts[span.lane]
    return positions


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LaneShuffle:
    """Order that has each record once, and takes a fixed number from each lane per global batch.

    Positions are cut into successive ranges, the *lanes*, each an independent `BlockShuffle`. In a
    global batch of `m` places, lane `v` of `V` begins at ⌈v·m / V⌉. Hosts cut a batch in the same
    way (`GlobalBatches`). So if the number of hosts divides the number of lanes, each host has
    whole lanes: the same range of positions in every epoch.
    """

    batch_size: int
    """Number of places of a full global batch."""
    blocks: tuple[BlockShuffle, ...]
    """The order within each lane."""
    starts: Ints
    """First position of each lane, followed by the number of positions."""

    @property
    def num_records(self) -> int:
        return self.starts.item(-1)

    @property
    def description(self) -> str:
        first = self.blocks[0]
        return f"{len(self.blocks)}x{first.group_width}x{first.block_length}"

    def __len__(self) -> int:
        return self.num_records

    def at(self, key: int, epoch: int, places: Ints) -> Ints:
        runs = self._runs(key, epoch, places)
        return positions_of(runs, self.blocks, self.starts, len(places))

    def own(self, batches: GlobalBatches) -> slice:
        lanes = self._own_lanes(batches)
        return slice(self.starts.item(lanes.start), self.starts.item(lanes.stop))

    def lanes(self, batches: GlobalBatches) -> tuple[Lane, ...]:
        own = self._own_lanes(batches)
        first = self.starts.item(own.start)
        return tuple(Lane(self.blocks[i], self.starts.item(i) - first) for i in own)

    def spans(
        self, key: int, epoch: int, batches: GlobalBatches, start: int, stop: int
    ) -> Iterator[LaneSpan]:
        first = self._own_lanes(batches).start
        for span, _, _ in self._runs(key, epoch, batches.places(start, stop)):
            yield span._replace(lane=span.lane - first)

    def _own_lanes(self, batches: GlobalBatches) -> range:
        number, host = len(self.blocks), batches.host
        stop = cut(host + 1, number, batches.num_hosts)
        return range(host * number // batches.num_hosts, stop)

    def _runs(self, key: int, epoch: int, places: Ints) -> Iterator[Run]:
        """Yield a run for each lane with some of `places`, which must increase."""
        number, key = len(self.blocks), mix(key, epoch)
        if number == 1:
            start, stop = places.item(0), places.item(-1) + 1
            yield Run(LaneSpan(0, key, start, stop), slice(None), places - start)
            return
        batch, slot = np.divmod(places, self.batch_size)
        size = np.minimum(self.batch_size, self.num_records - batch * self.batch_size)
        lane = slot * number // size
        first = -(-np.arange(number + 1) * self.batch_size // number)
        index = batch * np.diff(first)[lane] + slot - -(-lane * size // number)
        for one in np.unique(lane).tolist():
            chosen = np.flatnonzero(lane == one)
            offsets = index[chosen]
            start, stop = offsets.item(0), offsets.item(-1) + 1
            yield Run(LaneSpan(one, mix(key, _LANE, one), start, stop), chosen, offsets - start)


def lane_shuffle(
    num_records: int,
    record_bytes: float,
    batch_size: int,
    *,
    block_length: int | None = None,
    group_width: int | None = None,
) -> LaneShuffle:
    """Return an order with each record once per epoch, for global batches of `batch_size`.

    `record_bytes` is the mean size of a record in the manifest, also for records of a decoded
    cache. `block_length` is by default the number of records in 2 MiB, 8 to `BLOCK_LENGTH`.
    `group_width` blocks are mixed at a time, by default the number in 32 MiB with at most 16,384
    records, but at least 16. Several lanes together mix twice as many, at least 4 each.

    The number of lanes is a power of 2, at most 16. Each lane has at least 8 records of a batch (1
    if a batch has fewer than 64) and at least 4 blocks. If all blocks are mixed at a time, there is
    a single lane.
    """
    length, width = block_sizes(record_bytes, block_length, group_width)
    num_blocks = -(-num_records // length)
    most = min(_MOST_LANES, max(min(batch_size, _FEW_LANES), batch_size // _LANE_RECORDS))
    number = 1
    while 2 * number <= most and num_blocks > width and 2 * number * _LANE_WIDTH <= num_blocks:
        number *= 2
    full, left = divmod(num_records, batch_size)
    starts = np.array(
        [full * cut(i, batch_size, number) + cut(i, left, number) for i in range(number + 1)]
    )
    blocks = tuple(
        BlockShuffle(
            num_records=size,
            block_length=length,
            group_width=width if number == 1 else max(_LANE_WIDTH, 2 * width // number),
            shuffle=True,
        )
        for size in np.diff(starts).tolist()
    )
    return LaneShuffle(batch_size=batch_size, blocks=blocks, starts=starts)


@dataclass(frozen=True, slots=True)
class StoredOrder:
    """Order that has each record once, in the order of the shards."""

    num_records: int
    block_length: int
    """Number of records of a block to read ahead."""
    group_width: int
    """Number of blocks to read ahead at a time."""

    @property
    def description(self) -> str:
        return "False"

    def __len__(self) -> int:
        return self.num_records

    def at(self, key: int, epoch: int, places: Ints) -> Ints:
        del key, epoch
        return places

    def own(self, batches: GlobalBatches) -> slice | Ints:
        return slice(0, self.num_records) if batches.num_hosts == 1 else _own_places(batches)

    def lanes(self, batches: GlobalBatches) -> tuple[Lane, ...]:
        blocks = BlockShuffle(
            num_records=len(batches),
            block_length=self.block_length,
            group_width=self.group_width,
            shuffle=False,
        )
        return (Lane(blocks, 0),)

    def spans(
        self, key: int, epoch: int, batches: GlobalBatches, start: int, stop: int
    ) -> Iterator[LaneSpan]:
        del batches
        yield LaneSpan(0, mix(key, epoch), start, stop)


def block_sizes(
    record_bytes: float, block_length: int | None = None, group_width: int | None = None
) -> tuple[int, int]:
    """Return block length in records, group width in blocks; defaults as in `lane_shuffle`."""
    fitting = int(_BLOCK_BYTES // max(1, record_bytes))
    length = block_length or min(BLOCK_LENGTH, max(_MIN_BLOCK_LENGTH, fitting))
    group_records = min(_GROUP_RECORDS, int(_GROUP_BYTES // max(1, record_bytes)))
    return length, group_width or max(_MIN_GROUP_WIDTH, group_records // length)


class _Latest(Generic[_Key]):
    """A cache of the latest results of a function that takes a list of keys. Thread-safe."""

    def __init__(self, function: Callable[[list[_Key]], list[Ints]]) -> None:
        self._function = function
        self._results: dict[_Key, Ints] = {}

    def __call__(self, *keys: _Key) -> list[Ints]:
        latest = self._results  # replaced by other threads, never changed
        known = {key: latest[key] for key in keys if key in latest}
        missing = [key for key in keys if key not in known]
        if missing:
            known.update(zip(missing, self._function(missing), strict=True))
            others = [(key, found) for key, found in latest.items() if key not in known]
            self._results = dict(others[-3 * _MOST_LANES :]) | known
        return [known[key] for key in keys]


@_Latest
def _permuted_blocks(passes: list[tuple[BlockShuffle, int]]) -> list[Ints]:
    """Return the permuted block numbers of each (order, key)."""
    return permutations([blocks.num_blocks for blocks, _ in passes], [key for _, key in passes])


@_Latest
def _group_positions(groups: list[tuple[BlockShuffle, int, int]]) -> list[Ints]:
    """Return the shuffled positions of each (order, key, group)."""
    stored = []
    for blocks, key, group in groups:
        first = blocks.blocks(key, group)[:, None] * blocks.block_length
        positions = (first + np.arange(blocks.block_length)).ravel()
        stored.append(positions[positions < blocks.num_records])  # the short block
    keys = [mix(key, _GROUP, group) for _, key, group in groups]
    chosen = shuffled_ranges([*map(len, stored)], keys)
    return [positions[rows] for positions, rows in zip(stored, chosen, strict=True)]


@lru_cache(maxsize=4)
def _own_places(batches: GlobalBatches) -> Ints:
    return batches.places(0, len(batches))  # cached, because each batch asks for these


@dataclass(frozen=True, slots=True, eq=False)
class WeightedDraws:
    """Order of records drawn at random by weight, in one series of draws for all hosts."""

    weights: Floats
    """float64[records], weight of each position, not negative."""
    cumulated: Floats
    replacement: bool
    num_draws: int
    """Number of draws of an epoch by all hosts together."""

    @property
    def num_records(self) -> int:
        return len(self.weights)

    @property
    def description(self) -> str:
        """A hash of the weights, `replacement` and `num_draws`."""
        digest = hashlib.sha256(self.weights.tobytes())
        digest.update(f"{self.replacement} {self.num_draws}".encode())
        return f"weights:{digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        return self.num_draws

    def at(self, key: int, epoch: int, places: Ints) -> Ints:
        key = mix(key, epoch)
        if not self.replacement:
            return _draw_without_replacement(self, key)[places]
        start = places.item(0)
        numbers = random_numbers(key, start, places.item(-1) + 1)[places - start]
        numbers *= self.cumulated[-1]
        drawn: Ints = np.searchsorted(self.cumulated, numbers, side="right")
        last = int(np.flatnonzero(self.weights)[-1])  # if rounding gives the sum of weights
        return np.minimum(drawn, last, out=drawn)

    def own(self, batches: GlobalBatches) -> slice:
        del batches
        return slice(0, self.num_records)


@lru_cache(maxsize=2)
def _draw_without_replacement(draws: WeightedDraws, key: int) -> Ints:
    # Sorting by exponential times with the weights as rates is the same as drawing one by one
    # among the records that are left (Efraimidis and Spirakis, "Weighted random sampling with a
    # reservoir", 2006).
    times = np.full(len(draws.weights), np.inf)
    positive = draws.weights > 0
    uniform = random_numbers(key, 0, len(times))[positive]
    times[positive] = -np.log1p(-uniform) / draws.weights[positive]
    return np.argsort(times, kind="stable")[: draws.num_draws]
