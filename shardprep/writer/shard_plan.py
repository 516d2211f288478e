"""Split, order and shard of every item, as a pure function.

It follows from the keys, labels, options and the seed alone, never from the order in which a disk
lists its files, from the number of workers, or from time.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.errors import RecipeError
from shardprep.writer.stratify import cut_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardprep.catalog.catalog import Item

SHARD_BYTES = 128 << 20
"""Size of a shard in bytes where no number is asked for: large enough to stream, small enough to
spread over readers."""
MAX_CHUNK_ITEMS = 256
_CHUNK_BYTES = 16 << 20
_CHUNKS_A_BUILD = 64


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The items of one shard, in the order of its records."""

    split: str
    index: int
    """From 0 to `count` - 1."""
    count: int
    """Number of shards of this split."""
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Cut:
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
    labelled = [item for item in items if item.target is not None]
    pool = sorted(labelled or items, key=lambda item: _rank(item.key, seed, b"split"))
    rest = [item for item in items if item.target is None] if labelled else []
    if any(item.group or len(item.strata) > 1 for item in pool):
        cut = cut_together(pool, ratios)
    else:
        cut = _cut_apart(pool, ratios)
    cut.extend(item for item in rest if item.split not in ratios)
    return Cut(cut, [item for item in rest if item.split in ratios])


def plan_shards(
    items: Sequence[Item], num_shards: int | None, estimated_bytes: int, seed: int
) -> tuple[ShardPlan, ...]:
    """Return the shards of all splits, each split shuffled by the seed and cut evenly.

    Args:
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
            ShardPlan(split, i, count, tuple(members[bounds[i] : bounds[i + 1]]))
            for i in range(count)
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


def _rank(key: str, seed: int, purpose: bytes) -> bytes:
    """Return the sort key of an item in a shuffle, which no other item has an influence on."""
    digest = hashlib.blake2b(key.encode(), digest_size=16, key=b"%s %d" % (purpose, seed))
    return digest.digest()


def _split_order(split: str) -> tuple[int, str]:
    known = ("train", "validation", "test")
    return (known.index(split) if split in known else len(known), split)
