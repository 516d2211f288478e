"""Images that are there twice, byte for byte."""

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
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, member in enumerate(members):
        extent = member.extent
        crc = extent.crc32 if isinstance(extent, ZipExtent) else -1
        alike[extent.num_bytes, crc].append(i)
    # A zip tells CRCs and a folder does not: where both are about, sizes alone must do.
    if len({crc == -1 for _, crc in alike}) > 1:
        alike = _by_size(alike)
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


def _by_size(alike: dict[tuple[int, int], list[int]]) -> dict[tuple[int, int], list[int]]:
    merged: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (num_bytes, _), group in alike.items():
        merged[num_bytes, -1].extend(group)
    return merged


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
