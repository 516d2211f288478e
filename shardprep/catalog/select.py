"""Selection of images: below a root, matched by globs, not on an exclude list."""

from __future__ import annotations

import fnmatch
import itertools
from typing import TYPE_CHECKING

from shardprep.catalog.lookup import KeyIndex
from shardprep.catalog.patterns import Pattern, globs_match
from shardprep.source.listing import Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardprep.catalog.splits import SplitRule
    from shardprep.source.listing import Member

_ANY_FOLDER = "(?:.*/)?"
"""Pattern of the folders that may stand before what a glob fits."""


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
    wanted = list(members)
    left_out: list[Skipped] = []
    below = [f"{root.strip('/')}/*"] if root.strip("/.") else []
    for globs, option, start, is_kept, reason in (
        (below, "--root", "", True, "not below --root"),
        (include, "--include", _ANY_FOLDER, True, "not matched by --include"),
        (exclude, "--exclude", _ANY_FOLDER, False, "matched by --exclude"),
    ):
        if not globs:
            continue
        text = "|".join(start + _translated(glob) for glob in globs)
        pattern = Pattern(text, option, " ".join(globs), is_whole=True)
        kept = [
            fits == is_kept
            for fits in globs_match([member.key.lower() for member in wanted], pattern)
        ]
        left_out += [
            Skipped(member.key, reason, member.extent.num_bytes)
            for member, is_wanted in zip(wanted, kept, strict=True)
            if not is_wanted
        ]
        wanted = list(itertools.compress(wanted, kept))
    return wanted, sorted(left_out, key=lambda skipped: skipped.key)


def root_splits(keys: Sequence[str], rule: SplitRule) -> list[str | None]:
    """Return the split whose glob each key lies below, None where there is none; case matters."""
    splits: list[str | None] = [None] * len(keys)
    for split, glob in rule.places.items():
        left = [i for i, known in enumerate(splits) if known is None]
        text = f"{_ANY_FOLDER}{fnmatch.translate(glob.rstrip('/') + '/*')}"
        pattern = Pattern(text, "--split", glob, is_whole=True)
        for i, fits in zip(left, globs_match([keys[i] for i in left], pattern), strict=True):
            splits[i] = split if fits else None
    return splits


def leave_out(members: Sequence[Member], ids: Iterable[str]) -> tuple[list[Member], list[Skipped]]:
    """Return the members without those that a list names, and these with the reason."""
    index = KeyIndex([member.key for member in members])
    out = {position for text in set(ids) for position in index.find(text)}
    kept = [member for i, member in enumerate(members) if i not in out]
    skipped = [
        Skipped(members[i].key, "on the exclude list", members[i].extent.num_bytes)
        for i in sorted(out)
    ]
    return kept, skipped


def _translated(glob: str) -> str:
    """Return a glob as a regular expression for names in lower case."""
    return fnmatch.translate(glob.removeprefix("**/").lower())
