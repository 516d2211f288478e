"""The cut of items into splits by ratio, as a pure function of keys, labels, groups and a seed.

The train split is cut, and every split that the ratios name; other splits stay whole.

Items with groups or several classes are cut by iterative stratification (Sechidis, Tsoumakas,
Vlahavas: On the Stratification of Multi-label Data, ECML PKDD 2011), with groups instead of single
examples: the rarest class is distributed first, its largest groups first, each to the split that
still needs most of this class.

"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.items import Item, Items
from shardprep.catalog.splits import is_cut
from shardprep.source.string_column import Coded
from shardprep.writer.plan.shard_plan import shuffled

Ints = NDArray[np.int64]

_NO_CLASS = -1


class Cut(NamedTuple):
    """Items with their new splits, and the left out ones."""

    items: Items
    left_out: Items


def cut_splits(items: Sequence[Item], ratios: Mapping[str, float], seed: int) -> Cut:
    """Return the items with splits cut by ratio, the same share of every class in each.

    Per class and split, the count is the exact share rounded down or up. Groups are not divided,
    and the counts come as near to the shares as the groups allow. If there are labels, unlabelled
    items are not cut: they keep their split, or are left out if the cut makes a split of that name.

    """
    stay, left_out = without_spoilers(items, ratios)
    pool = rows_to_cut(stay, ratios)
    pool = pool[shuffled(stay.members.keys.take(pool), seed, b"split")]
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


def rows_to_cut(items: Items, ratios: Mapping[str, float]) -> Ints:
    """Return the positions of the items to cut: labelled ones if the source has any."""
    labelled = items.are_labelled
    is_cut_split = items.split.fit(lambda split: is_cut(split, ratios))
    return np.flatnonzero(is_cut_split & (labelled if labelled.any() else ~labelled))


def without_spoilers(items: Sequence[Item], ratios: Mapping[str, float]) -> Cut:
    """Return the items without unlabelled ones in splits that a cut makes of labelled ones."""
    columns = Items.of(items)
    labelled = columns.are_labelled
    spoils = ~labelled & columns.split.fit(lambda split: split in ratios) & labelled.any()
    if not spoils.any():
        return Cut(columns, columns.take(np.empty(0, np.int64)))
    return Cut(columns.take(np.flatnonzero(~spoils)), columns.take(np.flatnonzero(spoils)))


def _cut_apart(strata: Coded[tuple[int, ...]], ratios: Mapping[str, float]) -> Ints:
    """Return the index into `ratios` for each item, cut class by class.

    Items have no groups and at most one class, `strata`, and are in shuffled order.

    """
    counts = strata.counts()
    ordered = sorted(counts)
    rank = {stratum: i for i, stratum in enumerate(ordered)}
    ranks = np.array([rank.get(stratum, -1) for stratum in strata.values])
    by_stratum = np.argsort(ranks[strata.codes], kind="stable")
    debts = dict.fromkeys(ratios, 0.0)
    shares = [list(_shares(counts[stratum], ratios, debts).values()) for stratum in ordered]
    places = np.empty(len(strata), np.int64)
    places[by_stratum] = np.repeat(
        np.tile(np.arange(len(ratios)), len(ordered)), np.array(shares, np.int64).ravel()
    )
    return places


def _shares(num_items: int, ratios: Mapping[str, float], debts: dict[str, float]) -> dict[str, int]:
    """Return the number of items of a class per split; rounding evens out over classes."""
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
    """Return the index into `ratios` for each item, near the ratios in total and per class.

    Groups are not divided. Ties are decided by the order of the items.

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
    for unit, labels in zip(group_of, strata, strict=True):
        counts[unit].update(labels or (_NO_CLASS,))
        left.update(labels or (_NO_CLASS,))
    by_class: dict[int, list[int]] = defaultdict(list)
    for unit, classes in enumerate(counts):
        for label in classes:
            by_class[label].append(unit)
    wanted = {
        split: Counter({k: n * share for k, n in left.items()}) for split, share in ratios.items()
    }
    room = {split: len(group_of) * share for split, share in ratios.items()}
    owed = dict.fromkeys(ratios, 0.0)
    split_of: dict[int, str] = {}
    while left:
        label = min(left, key=lambda label: (left[label], label))
        waiting = [unit for unit in by_class[label] if unit not in split_of]
        for unit in sorted(waiting, key=lambda unit: -counts[unit][label]):
            split = max(ratios, key=lambda s: (wanted[s][label] + owed[s], room[s]))
            split_of[unit] = split
            wanted[split].subtract(counts[unit])
            room[split] -= sizes[unit]
            left.subtract(counts[unit])
        for split in ratios:  # what rounding left: over many small classes it adds up
            owed[split] += wanted[split][label]
        left = +left
    place = {split: i for i, split in enumerate(ratios)}
    places: Ints = np.array([place[split_of[unit]] for unit in range(len(counts))], np.int64)
    return places[np.array(group_of, np.int64)]
