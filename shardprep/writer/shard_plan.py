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
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardprep.dataset.grammar import shard_name
from shardprep.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyarrow import Table

    from shardprep.catalog.catalog import Item

_Shard = TypeVar("_Shard")

SHARD_BYTES = 128 << 20
"""Size of a shard in bytes where no number is asked for: large enough to stream, small enough to
spread over readers."""
MAX_CHUNK_ITEMS = 256
_CHUNK_BYTES = 16 << 20
_CHUNKS_A_BUILD = 64
_NO_CLASS = -1
"""Class index of items without a class."""


class ShardPlan(NamedTuple):
    """One shard to be written: the slice of the plan that travels to a worker."""

    name: str
    """File name."""
    split: str
    items: tuple[Item, ...]
    """Items in the order of their records."""
    old: Table | None = None
    """A row for each item that `old_images` takes, of nulls where it has none; None: none has."""


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

    items: list[Item]
    left_out: list[Item]


def cut_splits(items: Sequence[Item], ratios: Mapping[str, float], seed: int) -> Cut:
    """Return the items with splits cut anew by ratio, the same share of every class in each.

    Per class and split, the count is the exact share rounded down or up; images of one group are
    not parted, and come as near to it as their groups allow. Where there are labels, an
    unlabelled set is not cut: it keeps its split, or is left out where the cut makes a split of
    that name of labelled items, which it would spoil.
    """
    items, left_out = without_spoilers(items, ratios)
    labelled = [item for item in items if item.is_labelled]
    pool = sorted(labelled or items, key=lambda item: _rank(item.key, seed, b"split"))
    rest = [item for item in items if not item.is_labelled] if labelled else []
    if any(item.group or len(item.strata) > 1 for item in pool):
        cut = _cut_together(pool, ratios)
    else:
        cut = _cut_apart(pool, ratios)
    return Cut(cut + rest, left_out)


def without_spoilers(items: Sequence[Item], ratios: Mapping[str, float]) -> Cut:
    """Return the items but those without a label whose split a cut makes of labelled ones."""
    if not any(item.is_labelled for item in items):
        return Cut(list(items), [])
    stays = [item.is_labelled or item.split not in ratios for item in items]
    return Cut(
        [item for item, is_in in zip(items, stays, strict=True) if is_in],
        [item for item, is_in in zip(items, stays, strict=True) if not is_in],
    )


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
    sizes = Counter(item.split for item in items)
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
    by_split: dict[str, list[Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: _rank(item.key, seed, b"order")):
        by_split[item.split].append(item)
    plans: list[ShardPlan] = []
    for split in sorted(by_split, key=_split_order):
        members = by_split[split]
        count = max(1, round(num_shards * len(members) / largest))
        bounds = [len(members) * i // count for i in range(count + 1)]
        plans.extend(
            ShardPlan(shard_name(dataset, split, i, count), split, tuple(members[start:end]))
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


def _cut_apart(pool: Sequence[Item], ratios: Mapping[str, float]) -> list[Item]:
    """Cut items without groups and with one class at most, class by class."""
    by_stratum: dict[tuple[int, ...], list[Item]] = defaultdict(list)
    for item in pool:
        by_stratum[item.strata].append(item)
    cut: list[Item] = []
    debts = dict.fromkeys(ratios, 0.0)
    for stratum in sorted(by_stratum):
        members = by_stratum[stratum]
        at = 0
        for split, count in _shares(len(members), ratios, debts).items():
            cut.extend(item.in_split(split) for item in members[at : at + count])
            at += count
    return cut


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


def _cut_together(pool: Sequence[Item], ratios: Mapping[str, float]) -> list[Item]:
    """Return the items with splits near the ratios, in total and for every class.

    No group is parted. The order of `pool` decides between what is otherwise equal.
    """
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in pool:
        groups[(item.group and f"group {item.group}") or f"item {item.key}"].append(item)
    counts = {name: _classes(members) for name, members in groups.items()}
    by_class: dict[int, list[str]] = defaultdict(list)
    for name, classes in counts.items():
        for label in classes:
            by_class[label].append(name)
    left = _classes(pool)
    wanted = {
        split: Counter({k: n * share for k, n in left.items()}) for split, share in ratios.items()
    }
    room = {split: len(pool) * share for split, share in ratios.items()}
    owed = dict.fromkeys(ratios, 0.0)
    split_of: dict[str, str] = {}
    while left:
        label = min(left, key=lambda label: (left[label], label))
        waiting = [name for name in by_class[label] if name not in split_of]
        for name in sorted(waiting, key=lambda name: -counts[name][label]):
            split = max(ratios, key=lambda s: (wanted[s][label] + owed[s], room[s]))
            split_of[name] = split
            wanted[split].subtract(counts[name])
            room[split] -= len(groups[name])
            left.subtract(counts[name])
        for split in ratios:  # what rounding left: over many small classes it adds up
            owed[split] += wanted[split][label]
        left = +left
    return [item.in_split(split_of[name]) for name, members in groups.items() for item in members]


def _classes(members: Sequence[Item]) -> Counter[int]:
    """Count the items of a group by class."""
    return Counter(label for item in members for label in item.strata or (_NO_CLASS,))


def _rank(key: str, seed: int, purpose: bytes) -> bytes:
    """Return the sort key of an item in a shuffle, which no other item has an influence on."""
    digest = hashlib.blake2b(key.encode(), digest_size=16, key=b"%s %d" % (purpose, seed))
    return digest.digest()


def _split_order(split: str) -> tuple[int, str]:
    known = ("train", "validation", "test")
    return (known.index(split) if split in known else len(known), split)
