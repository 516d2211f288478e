"""Splits of items with groups or several classes, as a pure function.

Iterative stratification (Sechidis, Tsoumakas, Vlahavas: On the Stratification of Multi-label Data,
ECML PKDD 2011), with groups in place of single examples: the rarest class is dealt out first, its
largest groups first, each to the split that still wants most of this class.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardprep.catalog.catalog import Item

_ANY = -1
"""Class index that stands for no class."""


def cut_together(pool: Sequence[Item], ratios: Mapping[str, float]) -> list[Item]:
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
    left: Counter[int] = Counter()
    for classes in counts.values():
        left.update(classes)
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
    return Counter(label for item in members for label in item.strata or (_ANY,))
