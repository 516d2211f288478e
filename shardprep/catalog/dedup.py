"""Duplicate images: those that are equal byte for byte."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

from shardprep.catalog.splits import given_split
from shardprep.source.extent import MemberError, ZipExtent
from shardprep.source.listing import Member, Skipped

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEPT_FIRST = ("test", "validation", "train")


def drop_duplicates(members: Sequence[Member]) -> tuple[list[Member], list[Skipped]]:
    """Return the members without copies, and the copies with the key of the one that is kept.

    Of equal images, the one in a test or validation folder is kept, so that given sets for
    evaluation stay whole and training does not see them; among the others, the first by key. Only
    images of equal size (and CRC-32, in a zip) are read.
    """
    crcs = [m.extent.crc32 if isinstance(m.extent, ZipExtent) else -1 for m in members]
    if -1 in crcs:  # a folder has no CRCs: sizes alone tell which files to read
        crcs = [-1] * len(crcs)
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, member in enumerate(members):
        alike[member.extent.num_bytes, crcs[i]].append(i)
    copies: dict[int, int] = {}
    for group in alike.values():
        if len(group) > 1:
            copies.update(_copies(members, group))
    kept = [member for i, member in enumerate(members) if i not in copies]
    dropped = [
        Skipped(members[i].key, "a copy of another", members[i].extent.num_bytes, members[j].key)
        for i, j in sorted(copies.items())
    ]
    return kept, dropped


def _copies(members: Sequence[Member], group: Sequence[int]) -> dict[int, int]:
    by_hash: dict[bytes, list[int]] = defaultdict(list)
    for i in group:
        try:
            by_hash[hashlib.sha256(members[i].extent.read()).digest()].append(i)
        except MemberError:
            continue  # it stays an item, and the build rejects it with the reason
    found = {}
    for same in by_hash.values():
        first, *others = sorted(same, key=lambda i: _rank(members[i].key))
        found.update(dict.fromkeys(others, first))
    return found


def _rank(key: str) -> tuple[int, str]:
    return _KEPT_FIRST.index(given_split(key.split("/")[:-1]) or "train"), key
