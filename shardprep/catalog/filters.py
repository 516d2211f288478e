"""Images by name: below a root, matched by globs, not on an exclude list, and each once."""

from __future__ import annotations

import fnmatch
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardprep.catalog.names import given_split
from shardprep.catalog.patterns import ANY_FOLDER, Pattern, globs_match
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import OptionName, SourceError, printable, shown
from shardprep.source.byte_range import MemberError, ZipExtent
from shardprep.source.listing import Skipped
from shardprep.source.members import Member, Members
from shardprep.source.names import composed

if TYPE_CHECKING:
    from shardprep.recipe.recipe import Recipe

_KEPT_FIRST = ("test", "validation", "train")
MOST_SHOWN = 160
"""Characters of a key in an error."""


def select(
    images: Members, recipe: Recipe, excluded: Sequence[str]
) -> tuple[Members, list[Skipped]]:
    """Return the wanted images, and the others with the reason.

    A glob is tried, regardless of case, on the whole key and on every end of it that starts at a
    folder: `*.png`, `part_1/*`, `**/masks/**`. Inner archives count as folders, with or without
    their suffix. `excluded` are the ids of the exclude list.
    """
    wanted, skipped = images, list[Skipped]()
    below = [f"{recipe.root.strip('/')}/*"] if recipe.root.strip("/.") else []
    for globs, option, is_kept, reason in (
        (below, "root", True, "not below --root"),
        (recipe.include, "include", True, "not matched by --include"),
        (recipe.exclude, "exclude", False, "matched by --exclude"),
    ):
        if globs:
            fits = matched(wanted.keys, globs, option)
            out = {i: "" for i, fit in enumerate(fits) if fit != is_kept}
            wanted = _without(wanted, out, reason, skipped)
    skipped.sort(key=lambda one: one.key)
    if excluded:
        listed = dict.fromkeys(_listed(wanted.keys, excluded), "")
        wanted = _without(wanted, listed, "on the exclude list", skipped)
    if recipe.dedup:
        wanted = _without(wanted, _copies(wanted), "a copy of another", skipped)
    if not wanted:
        reasons = Counter(one.reason for one in skipped)
        counted = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        what = f"none of its {len(images):,} images is wanted ({counted})"
        hint = f"a key looks like {shown(images[0].key, MOST_SHOWN)}"
        raise SourceError(recipe.source, what, hint)
    return wanted, skipped


def matched(keys: Sequence[str], globs: Sequence[str], option: str) -> list[bool]:
    """Tell of each key whether one of the globs of an option fits it; none fits if none is."""
    if not globs:
        return [False] * len(keys)
    start = "" if option == "root" else ANY_FOLDER
    text = "|".join(start + _translated(composed(glob)) for glob in globs)
    pattern = Pattern(text, OptionName(option), " ".join(globs), is_whole=True)
    return globs_match([composed(key).lower() for key in keys], pattern)


def _listed(keys: Sequence[str], texts: Sequence[str]) -> Iterator[int]:
    """Yield the positions of the keys on a list.

    A whole key, also with the escapes that it is printed with, means this one alone; another text
    is an id, which may be the end of several keys.
    """
    index, whole = KeyIndex(keys), {printable(key): i for i, key in enumerate(keys)}
    alike = {composed(key): i for key, i in whole.items()}
    for text in set(texts):
        name = printable(text)
        position = whole.get(name, alike.get(composed(name)))
        if position is None:
            yield from index.find(text)
        else:
            yield position


def _translated(glob: str) -> str:
    """Return a glob as a regular expression for names in lower case."""
    return fnmatch.translate(glob.removeprefix("**/").lower())


def _without(
    members: Members, out: Mapping[int, str], reason: str, skipped: list[Skipped]
) -> Members:
    """Return the members but those at the positions in `out`, which are skipped with a detail."""
    left = np.array(sorted(out), np.int64)
    for i, member in zip(left.tolist(), members.take(left), strict=True):
        skipped.append(Skipped(member.key, reason, member.extent.num_bytes, out[i]))
    return members.take(np.delete(np.arange(len(members)), left))


def _copies(images: Members) -> dict[int, str]:
    """Return the positions of images that equal another byte for byte, and the key of that one.

    Of equal images, the one in a test or validation folder is kept, so that given sets for
    evaluation stay whole and training does not see them; among the others, the first by key. Only
    images of equal size (and CRC-32, in a zip) are read.
    """
    members = images.listed()
    crcs = [m.extent.crc32 if isinstance(m.extent, ZipExtent) else -1 for m in members]
    if -1 in crcs:  # a folder has no CRCs: sizes alone tell which files to read
        crcs = [-1] * len(crcs)
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, member in enumerate(members):
        alike[member.extent.num_bytes, crcs[i]].append(i)
    copies: dict[int, str] = {}
    for group in alike.values():
        for same in _equal(members, group) if len(group) > 1 else ():
            first, *others = sorted(same, key=lambda i: _rank(members[i].key))
            copies.update(dict.fromkeys(others, members[first].key))
    return copies


def _equal(members: Sequence[Member], group: Iterable[int]) -> Iterable[list[int]]:
    by_hash: dict[bytes, list[int]] = defaultdict(list)
    for i in group:
        try:
            by_hash[hashlib.sha256(members[i].extent.read()).digest()].append(i)
        except MemberError:
            continue  # it stays an item, and the build rejects it with the reason
    return by_hash.values()


def _rank(key: str) -> tuple[int, str]:
    return _KEPT_FIRST.index(given_split(key.split("/")[:-1]) or "train"), key
