"""Split, order, shard and part of every item, as a pure function.

It follows from the keys, labels, options and the seed alone, never from the order in which a disk
lists its files, from the number of workers, or from time.

Splits of items with groups or several classes are cut by iterative stratification (Sechidis,
Tsoumakas, Vlahavas: On the Stratification of Multi-label Data, ECML PKDD 2011), with groups in
place of single examples: the rarest class is dealt out first, its largest groups first, each to
the split that still wants most of this class.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from shardprep.catalog.items import Item, Items
from shardprep.dataset.grammar import shard_name
from shardprep.errors import RecipeError
from shardprep.source.coded import Coded

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyarrow import Table

    from shardprep.source.texts import Texts

    Ints = NDArray[np.int64]

_Shard = TypeVar("_Shard")

SHARD_BYTES = 128 << 20
"""Size of a shard in bytes where no number is asked for: large enough to stream, small enough to
spread over readers."""
MAX_CHUNK_ITEMS = 256
_CHUNK_BYTES = 16 << 20
_CHUNKS_A_BUILD = 64
_HASH_BYTES = 16
_AT_ONCE = 1 << 16
"""Number of keys that are objects while they are hashed."""
_NO_CLASS = -1
"""Class index of items without a class."""


class ShardPlan(NamedTuple):
    """One shard to be written: the slice of the plan that travels to a worker."""

    name: str
    """File name."""
    split: str
    items: ShardItems | tuple[Item, ...]
    """Items in the order of their records; a slice of them is a tuple."""
    old: Table | None = None
    """A row for each item that `old_images` takes, of nulls where it has none; None: none has."""


class ShardItems(Sequence["Item"]):
    """The items of one shard: rows of the columns of all, or of its own once it has travelled."""

    __slots__ = ("_items", "_rows")

    def __init__(self, items: Items, rows: NDArray[Any]) -> None:
        """Take the columns, and the positions of the items in them."""
        self._items = items
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(at, slice):
            return self._items.listed(self._rows[at])
        return self._items[int(self._rows[at])]

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), MAX_CHUNK_ITEMS):
            yield from self[start : start + MAX_CHUNK_ITEMS]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardItems, (self._items.take(self._rows), np.arange(len(self), dtype=np.int32))

    def alone(self) -> ShardItems:
        """Return the items in columns of their own, which hold on to no others."""
        make, columns = self.__reduce__()
        alone: ShardItems = make(*columns)
        return alone

    def counted(self) -> ShardItems:
        """Return what knows the number of the items alone; to ask for one is an IndexError."""
        nothing = self._items.take(np.empty(0, np.int64))
        return ShardItems(nothing, np.broadcast_to(np.int32(0), len(self)))


@dataclass(frozen=True, slots=True)
class Part:
    """One of the equal parts of a build, which machines do independently: every N-th shard."""

    number: int
    """From 1 to `count`."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, shards: Sequence[_Shard]) -> Sequence[_Shard]:
        """Return the shards of this part, none where there are fewer shards than parts."""
        return shards[self.number - 1 :: self.count]


WHOLE = Part(1, 1)


class Cut(NamedTuple):
    """Items with their new splits, and those that are left out."""

    items: Items
    left_out: Items


def cut_splits(items: Sequence[Item], ratios: Mapping[str, float], seed: int) -> Cut:
    """Return the items with splits cut anew by ratio, the same share of every class in each.

    Per class and split, the count is the exact share rounded down or up; images of one group are
    not parted, and come as near to it as their groups allow. Where there are labels, an
    unlabelled set is not cut: it keeps its split, or is left out where the cut makes a split of
    that name of labelled items, which it would spoil.
    """
    stay, left_out = without_spoilers(items, ratios)
    labelled = stay.are_labelled
    pool = np.flatnonzero(labelled if labelled.any() else ~labelled)
    pool = pool[_order(stay.members.keys.take(pool), seed, b"split")]
    strata, group = stay.strata.take(pool), stay.group.take(pool)
    is_apart = all(len(several) < 2 for several in strata.firsts().values())
    if is_apart and not group.fit(bool).any():
        places = _cut_apart(strata, ratios)
    else:
        places = _cut_together(strata, group, ratios)
    names = list(dict.fromkeys((*ratios, *stay.split.values)))
    number = {name: i for i, name in enumerate(names)}
    codes = np.array([number[name] for name in stay.split.values])[stay.split.codes]
    codes[pool] = places
    return Cut(stay.in_splits(Coded(codes.astype(np.int32), names)), left_out)


def without_spoilers(items: Sequence[Item], ratios: Mapping[str, float]) -> Cut:
    """Return the items but those without a label whose split a cut makes of labelled ones."""
    columns = Items.of(items)
    labelled = columns.are_labelled
    spoils = ~labelled & columns.split.fit(lambda split: split in ratios) & labelled.any()
    if not spoils.any():
        return Cut(columns, columns.take(np.empty(0, np.int64)))
    return Cut(columns.take(np.flatnonzero(~spoils)), columns.take(np.flatnonzero(spoils)))


def plan_shards(
    dataset: str,
    items: Sequence[Item],
    num_shards: int | None,
    estimated_bytes: int,
    seed: int,
) -> tuple[ShardPlan, ...]:
    """Return the shards of all splits, each split shuffled by the seed and cut evenly.

    Args:
        dataset: name of the dataset.
        items: with their final splits.
        num_shards: of the largest split; the others get as many as keep shards of equal size, at
            least 1. None: by size, about `SHARD_BYTES` each.
        estimated_bytes: of all records together.
        seed: of the order.

    Raises:
        RecipeError: more shards are asked for than the largest split has items.

    """
    columns = Items.of(items)
    sizes = columns.split.counts()
    largest = max(sizes.values())
    if num_shards is None:
        share = estimated_bytes * largest / len(items)
        num_shards = min(largest, max(1, round(share / SHARD_BYTES)))
    if num_shards > largest:
        raise RecipeError(
            "--shards",
            f"{num_shards:,} shards are asked for, the largest split has {largest:,} images",
            f"use --shards {largest} or fewer",
        )
    order = _order(columns.members.keys, seed, b"order").astype(np.int32)
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


def chunks(plan: ShardPlan, num_items: int, record_bytes: int) -> Iterator[tuple[Item, ...]]:
    """Yield the items of a shard in chunks, the unit of parallel work. No bytes depend on its size.

    Small enough that a build of `num_items` keeps many workers busy to its end and that a chunk
    of records of about `record_bytes` fits in memory many times over.
    """
    size = min(MAX_CHUNK_ITEMS, max(1, _CHUNK_BYTES // max(1, record_bytes)))
    size = max(1, min(size, -(-num_items // _CHUNKS_A_BUILD)))
    for start in range(0, len(plan.items), size):
        yield plan.items[start : start + size]


def numbers_of(shards: Iterable[int], count: int) -> str:
    """Return the numbers of the parts, of `count`, that hold some shards, as "2,5,7-9".

    Shards are counted from 0, parts from 1. Array jobs take the text as it is.
    """
    numbers = sorted({shard % count + 1 for shard in shards})
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _cut_apart(strata: Coded[tuple[int, ...]], ratios: Mapping[str, float]) -> Ints:
    """Return the place among `ratios` of the split of each item, cut class by class.

    Items have no groups and one class at most, `strata`; they are given in a shuffled order.
    """
    counts = strata.counts()
    ordered = sorted(counts)
    rank = {stratum: i for i, stratum in enumerate(ordered)}
    ranks = np.array([rank.get(stratum, -1) for stratum in strata.values])
    by_stratum = np.argsort(ranks[strata.codes], kind="stable")
    debts = dict.fromkeys(ratios, 0.0)
    shares = [list(_shares(counts[one], ratios, debts).values()) for one in ordered]
    places = np.empty(len(strata), np.int64)
    places[by_stratum] = np.repeat(
        np.tile(np.arange(len(ratios)), len(ordered)), np.array(shares, np.int64).ravel()
    )
    return places


def _shares(num_items: int, ratios: Mapping[str, float], debts: dict[str, float]) -> dict[str, int]:
    """Return the items of a class per split; rounding favours splits that it disfavoured before."""
    total = sum(ratios.values())  # 1 within a rounding error, which would cost items
    exact = {split: num_items * ratio / total for split, ratio in ratios.items()}
    counts = {split: int(share + 1e-9) for split, share in exact.items()}
    for split in ratios:
        debts[split] += exact[split] - counts[split]
    by_debt = sorted(ratios, key=lambda split: -debts[split])
    owed = [split for split in by_debt if exact[split] - counts[split] > 1e-9]
    for split in owed[: num_items - sum(counts.values())]:
        counts[split] += 1
        debts[split] -= 1.0
    return counts


def _cut_together(
    strata: Coded[tuple[int, ...]], group: Coded[str], ratios: Mapping[str, float]
) -> Ints:
    """Return the place of the split of each item, near the ratios in total and for every class.

    No group is parted. The order of the items decides between what is otherwise equal.
    """
    alone = ~group.fit(bool)
    names = np.where(alone, len(group.values) + np.arange(len(group)), group.codes)
    _, first_rows, groups = np.unique(names, return_index=True, return_inverse=True)
    number = np.empty(len(first_rows), np.int64)  # of each group, in the order of its first item
    number[np.argsort(first_rows)] = np.arange(len(first_rows))
    group_of = number[groups].tolist()
    counts: list[Counter[int]] = [Counter() for _ in range(len(first_rows))]
    sizes = np.bincount(group_of, minlength=len(counts)).tolist()
    left: Counter[int] = Counter()
    for one, labels in zip(group_of, strata, strict=True):
        counts[one].update(labels or (_NO_CLASS,))
        left.update(labels or (_NO_CLASS,))
    by_class: dict[int, list[int]] = defaultdict(list)
    for one, classes in enumerate(counts):
        for label in classes:
            by_class[label].append(one)
    wanted = {
        split: Counter({k: n * share for k, n in left.items()}) for split, share in ratios.items()
    }
    room = {split: len(group_of) * share for split, share in ratios.items()}
    owed = dict.fromkeys(ratios, 0.0)
    split_of: dict[int, str] = {}
    while left:
        label = min(left, key=lambda label: (left[label], label))
        waiting = [one for one in by_class[label] if one not in split_of]
        for one in sorted(waiting, key=lambda one: -counts[one][label]):
            split = max(ratios, key=lambda s: (wanted[s][label] + owed[s], room[s]))
            split_of[one] = split
            wanted[split].subtract(counts[one])
            room[split] -= sizes[one]
            left.subtract(counts[one])
        for split in ratios:  # what rounding left: over many small classes it adds up
            owed[split] += wanted[split][label]
        left = +left
    place = {split: i for i, split in enumerate(ratios)}
    places: Ints = np.array([place[split_of[one]] for one in range(len(counts))], np.int64)
    return places[np.array(group_of, np.int64)]


def _order(keys: Texts, seed: int, purpose: bytes) -> Ints:
    """Return the order of a shuffle, by a hash of each key: no other key has an influence on it."""
    begun = hashlib.blake2b(digest_size=_HASH_BYTES, key=b"%s %d" % (purpose, seed))
    hashes = np.empty((len(keys), 2), ">u8")
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        digests = []
        for key in some.encoded():
            own = begun.copy()
            own.update(key)
            digests.append(own.digest())
        found = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)
        hashes[start : start + len(some)] = found
    high = hashes[:, 0].astype(np.uint64)
    order = np.argsort(high)
    if (high[order[1:]] == high[order[:-1]]).any():
        order = np.lexsort((hashes[:, 1].astype(np.uint64), high))
    return order


def _split_order(split: str) -> tuple[int, str]:
    known = ("train", "validation", "test")
    return (known.index(split) if split in known else len(known), split)
