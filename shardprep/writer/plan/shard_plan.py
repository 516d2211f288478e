"""Compute order, shard and part of every item, as a pure function.

The result follows from keys, splits, options, seed and the estimated size of the records. It does
not depend on the order of files on a disk, on the number of workers, or on time. Items are sorted
by a hash of each key, so adding an item does not change the order of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.items import Item, Items
from shardprep.dataset.documents import shard_name
from shardprep.errors import OptionName, RecipeError, counted
from shardprep.source.members import Members
from shardprep.source.string_column import ColumnView, Texts

if TYPE_CHECKING:
    from pyarrow import Table

_Shard = TypeVar("_Shard")

SHARD_BYTES = 128 << 20
"""Default size of a shard: large enough to stream, small enough to spread over readers."""
MAX_CHUNK_ITEMS = 256
_FEW_ITEMS = 16
"""Maximum number of items to pickle as objects; more are pickled faster as columns."""
_CHUNK_BYTES = 16 << 20
_CHUNKS_A_BUILD = 64


class ShardPlan(NamedTuple):
    """Name, split and items of a shard to write."""

    name: str
    split: str
    items: ShardItems
    """Items in the order of their records."""
    old: Table | None = None
    """Row of each item in the item table of `reuse` or the repacked datasets; all null if new."""

    @property
    def columns(self) -> Items:
        return self.items.part(slice(None))


class ShardItems(ColumnView["Item"]):
    """Items of one shard: positions `rows` in the columns of all items."""

    __slots__ = ("_items", "rows")

    def __init__(self, items: Items, rows: NDArray[Any]) -> None:
        self._items = items
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(at, slice):
            return self._items.listed(self.rows[at])
        return self._items[int(self.rows[at])]

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), MAX_CHUNK_ITEMS):
            yield from self[start : start + MAX_CHUNK_ITEMS]

    @property
    def members(self) -> Members:
        return self._items.members.take(self.rows)

    def alone(self) -> ShardItems:
        """Return a copy with only the columns of this shard, so that other items can be freed."""
        return ShardItems(self._items.take(self.rows), np.arange(len(self), dtype=np.int32))

    def part(self, rows: slice) -> Items:
        return self._items.take(self.rows[rows])

    def counted(self) -> ShardItems:
        """Return a placeholder of the same length, without the items."""
        nothing = self._items.take(np.empty(0, np.int64))
        return ShardItems(nothing, np.broadcast_to(np.int32(0), len(self)))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a build: every `count`-th shard, starting with shard `number` (1 to `count`)."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, shards: Sequence[_Shard]) -> Sequence[_Shard]:
        return shards[self.number - 1 :: self.count]


WHOLE = Part(1, 1)


def plan_shards(
    dataset: str, items: Sequence[Item], num_shards: int | None, estimated_bytes: int, seed: int
) -> tuple[ShardPlan, ...]:
    """Return the shards of all splits. Each split is shuffled by the seed and cut evenly.

    `num_shards` applies to the largest split; each other split gets at least one shard, of a
    similar size. None chooses shards of about `SHARD_BYTES` from `estimated_bytes`, the size of all
    records. RecipeError if the largest split has fewer items than shards.
    """
    columns = Items.of(items)
    sizes = columns.split.counts()
    largest = max(sizes.values())
    if num_shards is None:
        share = estimated_bytes * largest / len(items)
        num_shards = min(largest, max(1, round(share / SHARD_BYTES)))
    if num_shards > largest:
        what = f"asks for {num_shards:,}, but the largest split has {counted(largest, 'image')}"
        hint = f"use {OptionName('shards', str(largest))} or fewer"
        raise RecipeError(OptionName("shards"), what, hint)
    order = shuffled(columns.members.keys, seed, b"order").astype(np.int32)
    codes = columns.split.codes[order]
    plans: list[ShardPlan] = []
    for split in sorted(sizes, key=_split_order):
        rows = order[codes == columns.split.values.index(split)]
        count = max(1, round(num_shards * len(rows) / largest))
        bounds = [len(rows) * i // count for i in range(count + 1)]
        plans.extend(
            ShardPlan(
                shard_name(dataset, split, i, count), split, ShardItems(columns, rows[start:end])
            )
            for i, (start, end) in enumerate(pairwise(bounds))
        )
    return tuple(plans)


def chunks(plan: ShardPlan, num_items: int, record_bytes: int) -> Iterator[Sequence[Item]]:
    """Yield the items of a shard in chunks that keep many workers busy and fit in memory."""
    size = min(MAX_CHUNK_ITEMS, max(1, _CHUNK_BYTES // max(1, record_bytes)))
    size = max(1, min(size, -(-num_items // _CHUNKS_A_BUILD)))
    for start in range(0, len(plan.items), size):
        rows = slice(start, start + size)
        yield plan.items[rows] if size <= _FEW_ITEMS else plan.items.part(rows)


def numbers_of(shards: Iterable[int], count: int) -> str:
    """Return the parts (from 1) that these shards (from 0) belong to, as text like "2,5,7-9"."""
    numbers = sorted({shard % count + 1 for shard in shards})
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _split_order(split: str) -> tuple[int, str]:
    known = ("train", "validation", "test")
    return (known.index(split) if split in known else len(known), split)


_HASH_BYTES = 16
_AT_ONCE = 1 << 16


def shuffled(keys: Texts, seed: int, purpose: bytes) -> NDArray[np.int64]:
    """Return the positions of keys, int64[keys], in the random order of `seed` and `purpose`."""
    begun = hashlib.blake2b(digest_size=_HASH_BYTES, key=b"%s %d" % (purpose, seed))
    hashes = np.empty((len(keys), 2), ">u8")
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        digests = []
        for key in some.encoded():
            own = begun.copy()
            own.update(key)
            digests.append(own.digest())
        hashes[start : start + len(some)] = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)
    high = hashes[:, 0].astype(np.uint64)
    order = np.argsort(high)
    if (high[order[1:]] == high[order[:-1]]).any():
        order = np.lexsort((hashes[:, 1].astype(np.uint64), high))
    return order
