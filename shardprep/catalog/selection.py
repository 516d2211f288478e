"""Select images by `--root`, `--include`, `--exclude`, `--exclude-list` and `--dedup`."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, compress
from typing import NamedTuple

import numpy as np

from shardprep.catalog.names import given_split
from shardprep.catalog.objects.mask_files import skipped
from shardprep.catalog.patterns import matched, unused_globs
from shardprep.catalog.tables.key_index import (
    Ints,
    KeyIndex,
    Origin,
    origin_of,
    other_case,
    unused_entries,
)
from shardprep.dataset.card import from_cell
from shardprep.errors import OptionName, SourceError, counted, printable, shown, some_of
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import MemberError, ZipExtent
from shardprep.source.file_listing import NOT_BELOW
from shardprep.source.listing import Skipped
from shardprep.source.members import Members
from shardprep.source.string_column import Coded, Texts, positions
from shardprep.storage.cache import FRAME, without_cache

_KEPT_FIRST = ("test", "validation", "train")
MOST_SHOWN = 160
EXCLUDED, COPY = "on the exclude list", "a copy of another"
NOT_INCLUDED, NOT_EXCLUDED = "not matched by --include", "matched by --exclude"
NOT_LISTED = "not in the table of items"


class Selected(NamedTuple):
    """The wanted images, and the members that options leave out."""

    members: Members
    left_out: list[Skipped]
    notes: list[str]
    unused: list[str]
    """Entries of the exclude list that match no image."""


def select(
    images: Members,
    recipe: Recipe,
    excluded: Sequence[str],
    others: Sequence[str],
    unlisted: Sequence[str] = (),
) -> Selected:
    """Return the wanted images, and the left-out images with the reasons.

    A glob matches a whole key, or its end from a folder on, regardless of case: `*.png`,
    `part_1/*`, `**/masks/**`. `excluded` are the ids of the exclude list. A glob that matches none
    of `images` and `others` gets a remark. `unlisted` are images without a row in `--items`, which
    ids may name. SourceError if no image is left or no id fits.
    """
    wanted, left_out = images, list[Skipped]()
    notes, unused = list[str](), list[str]()
    below = [f"{recipe.root.strip('/')}/*"] if recipe.root.strip("/.") else []
    for globs, option, is_kept, reason in (
        (below, "root", True, NOT_BELOW),
        (recipe.include, "include", True, NOT_INCLUDED),
        (recipe.exclude, "exclude", False, NOT_EXCLUDED),
    ):
        if globs:
            fits = matched(wanted.keys, globs, option)
            out = {i: "" for i, fit in enumerate(fits) if fit != is_kept}
            kept, wanted = wanted, _without(wanted, out, reason, left_out)
            hits = wanted.keys if is_kept else [kept.keys[i] for i in out]
            if option != "root":
                lost = unused_globs(globs, chain(hits, others, images.keys))
                _check_ids(lost, option, kept)
                notes += [f"{OptionName(option)}: {some_of(lost)} fits nothing"] if lost else []
    left_out.sort(key=lambda one: one.key)
    if excluded:
        file = FRAME.sub("the exclude list", without_cache(recipe.exclude_list))
        index = WholeKeyIndex(wanted.keys)
        origins = Coded.constant(origin_of(file, is_firm=False), len(excluded))
        found = index.find_keys(excluded, file, origins).tolist()
        notes += index.remarks
        unused += [text for text, at in zip(excluded, found, strict=True) if at < 0]
        # Other options, or a table of items, may leave these out.
        if unused and (rest := [*(images.keys if len(wanted) < len(images) else ()), *unlisted]):
            every = WholeKeyIndex(rest)
            unused = [text for text in unused if not every.find(printable(text))]
        if len(unused) == len(excluded) and not recipe.tile:
            first = shown(unused[0], MOST_SHOWN) + other_case(unused[0], images.keys)
            what = f"none of its entries ({len(unused):,}) fits an image; the first is {first}"
            raise SourceError(file, what, f"write keys such as {shown(images[0].key, MOST_SHOWN)}")
        if not recipe.tile:  # with tiles, unused entries may name tiles
            notes += unused_entries(file, unused, len(excluded), images.keys)
        listed = dict.fromkeys(filter(lambda at: at >= 0, found), "")
        wanted = _without(wanted, listed, EXCLUDED, left_out)
    if recipe.dedup:
        wanted = _without(wanted, _copies(wanted), COPY, left_out)
    if not wanted:
        reasons = Counter(one.reason for one in left_out)
        numbers = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        what = f"every image is left out ({numbers})"
        hint = f"change the options to keep images such as {shown(images[0].key, MOST_SHOWN)}"
        raise SourceError(recipe.source, what, hint)
    return Selected(wanted, left_out, notes, unused)


def _without(
    members: Members, out: Mapping[int, str], reason: str, left_out: list[Skipped]
) -> Members:
    left = np.array(sorted(out), np.int64)
    for i, member in zip(left.tolist(), members.take(left), strict=True):
        left_out.append(skipped(member, reason, out[i]))
    return members.take(np.delete(np.arange(len(members)), left))


def _check_ids(globs: Sequence[str], option: str, images: Members) -> None:
    """Raise a SourceError if globs without a sign, which match nothing, are ids of images."""
    ids = [one for one in globs if not {*one} & {*"*?["}]
    if ids and (at := KeyIndex(images.keys).find(ids[0])):
        what = f"{ids[0]} is an id, of {shown(images.keys[at[0]], MOST_SHOWN)}, and no glob"
        more = f", or give ids in {OptionName('exclude_list')}" if option == "exclude" else ""
        raise SourceError(OptionName(option), what, f"write {ids[0]}.*{more}")


def _copies(images: Members) -> dict[int, str]:
    """Return position of each exact copy → key of the image that is kept.

    The copy in test is kept, else the copy in validation, so that these splits stay complete and
    apart from training. Otherwise, the first key is kept. Only images of equal size, and equal
    CRC-32 if known for all, are read.
    """
    members = images.listed()
    crcs = [m.extent.crc32 if isinstance(m.extent, ZipExtent) else -1 for m in members]
    if -1 in crcs:  # files in folders have no CRC: sizes alone decide which are read
        crcs = [-1] * len(crcs)
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, member in enumerate(members):
        alike[member.extent.num_bytes, crcs[i]].append(i)
    copies: dict[int, str] = {}
    for group in alike.values():
        by_hash: defaultdict[bytes, list[int]] = defaultdict(list)
        for i in group if len(group) > 1 else ():
            try:
                by_hash[hashlib.sha256(members[i].extent.read()).digest()].append(i)
            except MemberError:
                continue  # the build rejects it later, with the reason
        for same in by_hash.values():
            first, *others = sorted(same, key=lambda i: _rank(members[i].key))
            copies.update(dict.fromkeys(others, members[first].key))
    return copies


def _rank(key: str) -> tuple[int, str]:
    return _KEPT_FIRST.index(given_split(key.split("/")[:-1]) or "train"), key


def without_left_out(rows: Sequence[str], left_out: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the ids in `rows` that fit no key in `left_out`, and a remark on the other ids."""
    out = np.zeros(len(rows), np.bool_)
    if rows and left_out:
        out = KeyIndex(left_out).are_found(Texts.of(rows), in_any_case=True)
    excluded = [*compress(rows, out)]
    remark = f"{counted(len(excluded), 'row', 'is', 'are')} of images that are left out: "
    return [*compress(rows, ~out)], [remark + some_of(excluded, 3)] if excluded else []


class WholeKeyIndex(KeyIndex):
    """Keys, searched for ids from `report --list`: an id that is a whole key fits only this key."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__([printable(key) for key in keys])

    def find_all(
        self,
        texts: Texts,
        where: str,
        origins: Coded[Origin] | None = None,
        *,
        fitting: Collection[Origin] = (),  # noqa: ARG002 - whole keys decide this
    ) -> Ints:
        """Return positions as `KeyIndex.find_all` does; `texts` are cells of a table."""
        return self.find_keys([from_cell(one) for one in texts], where, origins)

    def find_keys(
        self, ids: Iterable[str], where: str, origins: Coded[Origin] | None = None
    ) -> Ints:
        """Return positions as `find_all` does; `ids` are results of `from_cell`."""
        texts = Texts.of(map(printable, ids))
        origins = origins or Coded.constant(Origin(), len(texts))
        found, _ = positions(texts, self.keys)
        left = np.flatnonzero(found < 0)
        found[left], _ = positions(texts.take(left).composed(), self._names)
        left = np.flatnonzero(found < 0)
        own = texts.take(left), where, origins.take(left)
        whole = origins.take(np.flatnonzero(found >= 0)).counts()
        found[left] = super().find_all(*own, fitting=whole)
        return found
