"""Hashes of the originals in a source, which are never decoded."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.source_images import no_image, source_images
from shardprep.dataset.diff import ORIGINALS
from shardprep.dataset.item_table import SKIPPED
from shardprep.progress import Watcher
from shardprep.recipe.recipe import Recipe, outputs
from shardprep.source.byte_range import MemberError
from shardprep.source.listing import list_source
from shardprep.source.members import Member
from shardprep.source.range_reads import read_ahead
from shardprep.storage.url import is_url

_AT_ONCE = 64
"""Images that a thread reads before it reports them."""


class _HashedImage(NamedTuple):
    key: str
    sha256: str | None
    """Hexadecimal; None if the bytes cannot be read."""
    reason: str


def hash_originals(
    recipe: Recipe, items: pa.Table, *, is_annotated: bool, num_threads: int, watcher: Watcher
) -> pa.Table:
    """Return the `ORIGINALS` of a source: images of a dataset, and new ones.

    Args:
        recipe: of the dataset, with the source of today. New images are those the recipe
            selects, whatever their labels.
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
        originals = []
        with contextlib.closing(_hashed(members, num_threads)) as hashed:
            for some in hashed:
                watcher.advance(len(some))
                originals += some
    place = {original.key: number for number, original in enumerate(originals)}
    ordered = [originals[place[member.key]] for member in sorted(members)]
    columns = zip(*ordered, strict=True) if ordered else ((),) * len(ORIGINALS)
    return pa.table(list(map(list, columns)), ORIGINALS)


def _members(
    recipe: Recipe, items: pa.Table, work: Path, watcher: Watcher, *, is_annotated: bool
) -> list[Member]:
    """Return the images of the dataset and new ones, in the order of their bytes."""
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
        recipe = recipe.with_rules(labels="none")  # labels are not needed
    known = {*items["key"].to_pylist()}
    is_item = pc.not_equal(items["status"].cast("string"), SKIPPED)
    stored = {*items["key"].filter(is_item).to_pylist()}
    wanted = [member for member in listing.images if member.key in stored]
    wanted += [
        member for member in source_images(recipe, listing).members if member.key not in known
    ]
    return sorted(wanted, key=lambda member: member.extent.span)


def _hashed(members: Sequence[Member], num_threads: int) -> Generator[list[_HashedImage]]:
    runs = [members[at : at + _AT_ONCE] for at in range(0, len(members), _AT_ONCE)]
    if any(is_url(member.extent.span.file) for member in members):
        with contextlib.closing(read_ahead([member.extent.span for member in members])) as ahead:
            for run in runs:
                yield [_original(member) for member, _ in zip(run, ahead, strict=False)]
        return
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            yield from pool.map(lambda run: [*map(_original, run)], runs)
        finally:
            pool.shutdown(cancel_futures=True)


def _original(member: Member) -> _HashedImage:
    try:
        return _HashedImage(member.key, hashlib.sha256(member.extent.read()).hexdigest(), "")
    except MemberError as error:
        return _HashedImage(member.key, None, str(error))
    except MemoryError:
        return _HashedImage(member.key, None, "is larger than the memory that there is")
