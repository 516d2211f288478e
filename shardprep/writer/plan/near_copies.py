"""Near copies among the items of a build: left out, or kept in one split."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.catalog.items import Item, Items
from shardprep.errors import shown
from shardprep.image.phash import joined, near_groups
from shardprep.source.dictionary_column import Coded
from shardprep.source.listing import Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable

NEAR_COPY = "a near copy of another"
"""Reason for leaving out an image by `--dedup near`."""
_KEPT_FIRST = ("test", "validation", "train")
"""Splits in the order in which a copy is kept there; one of another name is for evaluation."""
_MOST_SHOWN = 60
"""Characters of a key in a remark."""


@dataclass(frozen=True)
class NearCopies:
    """Items, and the near copies among them."""

    items: Items
    groups: tuple[tuple[int, ...], ...]
    """Positions of the items of each group, two at least, ascending."""

    @classmethod
    def among(cls, items: Items, hashes: np.ndarray[Any, Any]) -> NearCopies:
        """Return those among items by their `phash.PHASH`."""
        numbers = near_groups(hashes)
        order = np.argsort(numbers, kind="stable")
        runs = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
        return cls(items, tuple(tuple(run.tolist()) for run in runs if len(run) > 1))

    @property
    def digest(self) -> str:
        """Hash of all that a plan takes from here, hex."""
        keys = [[self.items.members.keys[i] for i in group] for group in self.groups]
        return hashlib.sha256(repr(keys).encode()).hexdigest()

    @cached_property
    def _kept_of(self) -> dict[int, int]:
        """Position of each copy → that of the one of its group that stays.

        That one is in the test or validation set if any is; among these it is the first.
        """
        found: dict[int, int] = {}
        for group in self.groups:
            kept = min(group, key=lambda i: (_rank(self.items[i].split), i))
            found.update((i, kept) for i in group if i != kept)
        return found

    def without(self) -> tuple[Items, list[Skipped]]:
        """Return the items but all but one of each group, and those that are left out."""
        items, kept_of = self.items, self._kept_of
        skipped = [
            Skipped(items[i].key, NEAR_COPY, items[i].extent.num_bytes, items[kept].key)
            for i, kept in sorted(kept_of.items())
        ]
        return items.take(np.delete(np.arange(len(items)), sorted(kept_of))), skipped

    def together(self) -> Items:
        """Return the items, those of a group here in one that no split may part.

        Groups that names or tables give stay whole: those that near copies join are one, with the
        name of the first of them. Others have the key of their first item for a name.
        """
        items = self.items
        firsts: dict[str, int] = {}
        pairs = [(firsts.setdefault(own, i), i) for i, own in enumerate(items.group) if own]
        pairs += [(group[0], i) for group in self.groups for i in group]
        joints = np.array(pairs, np.int64).reshape(-1, 2)
        root: list[int] = joined(np.arange(len(items)), joints).tolist()
        names = {root[group[0]]: "" for group in self.groups}
        for first, own in zip(root, items.group, strict=True):
            if own and first in names:
                names[first] = names[first] or own
        keys = items.members.keys
        groups = (
            (names[first] or keys[first]) if first in names else own
            for first, own in zip(root, items.group, strict=True)
        )
        return replace(items, group=Coded.of(groups))

    def remarks(self, final: Iterable[Item], *, are_left_out: bool) -> list[str]:
        """Return remarks for the user, a line each; `final` are the items in their final splits."""
        if not self.groups:
            return ["no near copies are found"]
        sizes = [len(group) for group in self.groups]
        if are_left_out:
            targets = [{self.items[i].target for i in one} - {None} for one in self.groups]
            number = sum(len(one) > 1 for one in targets)
            odd = f"; {number:,} of these have one with another target" if number else ""
            copies = "copy" if len(self._kept_of) == 1 else "copies"
            kept = "1 image" if len(sizes) == 1 else f"{len(sizes):,} images"
            return [f"left out: {len(self._kept_of):,} near {copies} of {kept}{odd}"]
        groups = "1 group" if len(sizes) == 1 else f"{len(sizes):,} groups"
        found = f"{groups} of near copies, {sum(sizes):,} images in all"
        return [f"{found}; the largest has {max(sizes):,}", *self._across(final)]

    def _across(self, final: Iterable[Item]) -> list[str]:
        """Return a remark on the groups that are in several splits, none where there are none."""
        wanted = {self.items[i].key for group in self.groups for i in group}
        split_of = {one.key: one.split for one in final if one.key in wanted}
        parted: list[dict[str, str]] = []
        for group in self.groups:
            keys = [self.items[i].key for i in group]
            example_of = {split_of[key]: key for key in reversed(keys) if key in split_of}
            parted += [example_of] if len(example_of) > 1 else []
        if not parted:
            return []
        one, two = (shown(key, _MOST_SHOWN) for key in sorted(parted[0].values())[:2])
        found = f"{len(parted):,} of these are in several of the given splits, as {one} and {two}"
        cuts = "--split RATIOS that name these cut labelled images anew"
        return [f"{found}: {cuts}, --dedup near leaves copies out"]


def _rank(split: str) -> int:
    return _KEPT_FIRST.index(split) if split in _KEPT_FIRST else 0
