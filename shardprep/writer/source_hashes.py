"""The originals in a source that a dataset was built from, or would be: hashed, never decoded."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.init.notices import no_image
from shardprep.catalog.source_images import source_images
from shardprep.dataset.diff.source_difference import ORIGINALS
from shardprep.dataset.item_table import SKIPPED
from shardprep.progress import Watcher
from shardprep.recipe.recipe import Recipe, outputs
from shardprep.source.byte_range import MemberError
from shardprep.source.listing import list_source
from shardprep.source.members import Member
from shardprep.source.range_reads import read_ahead
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from shardprep.recipe.recipe import Recipe
    from shardprep.source.members import Member
_AT_ONCE = 64
"""Images that a thread reads before it tells of them."""


class _Original(NamedTuple):
    key: str
    sha256: str | None
    """Hex; None where the bytes cannot be had."""
    reason: str


def hash_originals(
    recipe: Recipe, items: pa.Table, *, is_annotated: bool, num_threads: int, watcher: Watcher
) -> pa.Table:
    """Return the `ORIGINALS` of a source that a dataset has, and of those it has no row for.

    Args:
        recipe: that of the dataset, for a source of today. A new image is one that it wants,
            whatever labels say of it.
        items: `key` and `status` of all inputs of the dataset.
        is_annotated: whether the dataset has boxes or masks.
        num_threads: threads that read and hash; images in object storage are fetched ahead.
        watcher: receives the progress.

    Raises:
        SourceError, StorageError: the source cannot be read, or has no image that is wanted.

    """
    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        members = _members(recipe, items, Path(work), watcher, is_annotated=is_annotated)
        watcher.start("hashing the source", len(members), "images")
        found = []
        with contextlib.closing(_hashed(members, num_threads)) as hashed:
            for some in hashed:
                watcher.advance(len(some))
                found += some
    place = {one.key: number for number, one in enumerate(found)}
    ordered = [found[place[member.key]] for member in sorted(members)]
    columns = zip(*ordered, strict=True) if ordered else ((),) * len(ORIGINALS)
    return pa.table(list(map(list, columns)), ORIGINALS)


def _members(
    recipe: Recipe, items: pa.Table, work: Path, watcher: Watcher, *, is_annotated: bool
) -> list[Member]:
    """Return the images of a source that are looked for, or new, in the order of their bytes."""
    listing = list_source(
        recipe.source,
        work,
        watcher.notice,
        zip_encoding=recipe.zip_encoding or None,
        limits=recipe.source_limits,
        leave_out=outputs(recipe),
    )
    if not listing.images:
        raise no_image(recipe.source, listing)
    if not (is_annotated and recipe.may_be_annotated):
        recipe = recipe.with_rules(labels="none")  # what they are need not be known
    known = {*items["key"].to_pylist()}
    is_item = pc.not_equal(items["status"].cast("string"), SKIPPED)
    stored = {*items["key"].filter(is_item).to_pylist()}
    wanted = [one for one in listing.images if one.key in stored]
    wanted += [one for one in source_images(recipe, listing).members if one.key not in known]
    return sorted(wanted, key=lambda one: one.extent.span)


def _hashed(members: Sequence[Member], num_threads: int) -> Generator[list[_Original]]:
    """Yield what is found of a few images after the other."""
    runs = [members[at : at + _AT_ONCE] for at in range(0, len(members), _AT_ONCE)]
    if any(is_url(one.extent.span.file) for one in members):
        with contextlib.closing(read_ahead([one.extent.span for one in members])) as ahead:
            for run in runs:
                yield [_original(one) for one, _ in zip(run, ahead, strict=False)]
        return
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            yield from pool.map(lambda run: [*map(_original, run)], runs)
        finally:
            pool.shutdown(cancel_futures=True)


def _original(member: Member) -> _Original:
    try:
        return _Original(member.key, hashlib.sha256(member.extent.read()).hexdigest(), "")
    except MemberError as error:
        return _Original(member.key, None, str(error))
    except MemoryError:
        return _Original(member.key, None, "is larger than the memory that there is")
