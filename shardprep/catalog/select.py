"""Which images are wanted: below a root, matched by globs, not on a list of those to leave out."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from shardprep.catalog.lookup import KeyIndex
from shardprep.catalog.splits import without_archive_suffix
from shardprep.source.archive import Member, Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def select(
    members: Sequence[Member],
    *,
    root: str,
    include: Sequence[str],
    exclude: Sequence[str],
) -> tuple[list[Member], list[Skipped]]:
    """Return the wanted members, and the others with the reason.

    A glob is tried, regardless of case, on the whole key and on every end of it that starts at a
    folder: `*.png`, `part_1/*`, `**/masks/**`. Inner archives count as folders, with or without
    their suffix.
    """
    wanted: list[Member] = []
    left_out: list[Skipped] = []
    below = _Globs([f"{root.strip('/')}/*"] if root.strip("/.") else [], anchored=True)
    included, excluded = _Globs(include), _Globs(exclude)
    for member in members:
        reason = ""
        if below and not below.match(member.key):
            reason = "not below --root"
        elif included and not included.match(member.key):
            reason = "not matched by --include"
        elif excluded.match(member.key):
            reason = "matched by --exclude"
        if reason:
            left_out.append(Skipped(member.key, reason, member.extent.num_bytes))
        else:
            wanted.append(member)
    return wanted, left_out


def leave_out(members: Sequence[Member], ids: Iterable[str]) -> tuple[list[Member], list[Skipped]]:
    """Return the members without those that a list names, and these with the reason."""
    index = KeyIndex([member.key for member in members])
    out = {position for text in ids for position in index.find(text)}
    kept = [member for i, member in enumerate(members) if i not in out]
    skipped = [
        Skipped(members[i].key, "on the exclude list", members[i].extent.num_bytes)
        for i in sorted(out)
    ]
    return kept, skipped


class _Globs:
    """Several globs as one regular expression."""

    def __init__(self, globs: Sequence[str], *, anchored: bool = False) -> None:
        parts = [fnmatch.translate(glob.removeprefix("**/").lower()) for glob in globs]
        start = "" if anchored else "(?:.*/)?"
        self._pattern = re.compile("|".join(f"{start}{part}" for part in parts)) if parts else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def match(self, key: str) -> bool:
        """Tell whether any of them fits the key."""
        if self._pattern is None:
            return False
        lowered = key.lower()
        plain = "/".join(without_archive_suffix(part) for part in lowered.split("/"))
        return bool(self._pattern.fullmatch(lowered) or self._pattern.fullmatch(plain))
