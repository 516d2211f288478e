"""Read the originals of a dataset again, to hash them or to copy the rejected ones for the user."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import re
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table
from shardprep.dataset.card import to_cell
from shardprep.dataset.diff import ORIGINALS
from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.item_table import SKIPPED
from shardprep.errors import SourceError
from shardprep.image.process import RejectionKind
from shardprep.progress import Watcher
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member
from shardprep.source.range_reads import read_ahead
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.regular_file import read_regular
from shardprep.storage.url import is_url

_AT_ONCE = 64


_Original = tuple[str, str | None, str]
"""A row of `ORIGINALS`: key, SHA-256 or None, and the reason if it cannot be read, otherwise ""."""


def hash_originals(
    recipe: Recipe, items: pa.Table, *, is_annotated: bool, num_threads: int, watcher: Watcher
) -> pa.Table:
    """Return a table of `ORIGINALS`: the images of a source that are items of a dataset or new.

    Rows are in the order of keys. `recipe` is the recipe of the dataset with the current source. It
    selects the new images, labelled or not, that are not inputs of the dataset. `items` has
    `key` and `status` of all inputs of the dataset. `is_annotated` means that the dataset has boxes
    or masks.
    """
    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        members = _members(recipe, items, Path(work), watcher, is_annotated=is_annotated)
        if recipe.tile is not None:
            from shardprep.catalog.items import Item, Items
            from shardprep.writer.plan.tiles import cut_tiles

            whole = Items.of(Item(*member, split="") for member in members)
            cut, _ = cut_tiles(whole, recipe, None, Path(work), num_threads, watcher)
            is_out = pc.equal(items["status"].cast("string"), SKIPPED)
            excluded = {*items["key"].filter(is_out).to_pylist()}
            members = sorted(one for one in cut.members if one.key not in excluded)
        watcher.start("hashing the source", len(members), "images")
        by_key: dict[str, _Original] = {}
        with contextlib.closing(_hashed(members, num_threads)) as hashed:
            for some in hashed:
                watcher.advance(len(some))
                by_key.update((original[0], original) for original in some)
    ordered = [by_key[member.key] for member in sorted(members)]
    columns = zip(*ordered, strict=True) if ordered else ((),) * len(ORIGINALS)
    return pa.table(list(map(list, columns)), ORIGINALS)


def _members(
    recipe: Recipe, items: pa.Table, work: Path, watcher: Watcher, *, is_annotated: bool
) -> list[Member]:
    from shardprep.catalog.source_images import list_images, no_image, source_images

    listing = list_images(recipe, work, watcher.notice)
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


def _hashed(members: Sequence[Member], num_threads: int) -> Generator[list[_Original]]:
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


def _original(member: Member) -> _Original:
    try:
        return member.key, hashlib.sha256(member.extent.read()).hexdigest(), ""
    except MemberError as error:
        return member.key, None, str(error)
    except MemoryError:
        return member.key, None, "does not fit in the free memory"


LIST_FILE = "rejected.csv"
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 80
_MOST_BYTES = 256 << 20


def save_rejected(
    folder: Path, recipe: Recipe, into: Path, notice: Callable[[str], None]
) -> tuple[int, int]:
    """Copy the originals of a dataset's rejected items to `into`/<kind>/; return two counts.

    The counts are the number of written files and the number of rejected items. `rejected.csv` in
    `into` has a row for each item: key, kind, reason and file. The file is "" if the original
    cannot be read. The dataset may be unfinished. Existing copies are overwritten.
    """
    table = item_table.read_items(folder / ITEMS_FILE, ("key", "status", "kind", "reason"))
    table = item_table.with_status(table, item_table.REJECTED)
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(("key", "kind", "reason", "file"))
    num_files = 0
    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        extents = {}
        if len(table):
            from shardprep.catalog.source_images import files_by_key, list_images

            extents = files_by_key(list_images(recipe, Path(work), notice))
        for row in table.to_pylist():
            key = row["key"]
            file = _copy_name(key, row["kind"])
            try:
                data = extents[key].read()
            except (KeyError, MemberError):
                file = ""
            else:
                (into / file).parent.mkdir(parents=True, exist_ok=True)
                (into / file).write_bytes(data)
                num_files += 1
            rows.writerow(map(to_cell, (key, row["kind"], row["reason"], file)))
    into.mkdir(parents=True, exist_ok=True)
    write_durably(into / LIST_FILE, out.getvalue().encode())
    return num_files, len(table)


def read_copy(folder: Path, key: str, kind: str) -> bytes:
    """Return the original of an item that `save_rejected` copied; SourceError if it is missing."""
    try:
        if kind not in get_args(RejectionKind):  # it names a folder and may come from a request
            raise FileNotFoundError
        return read_regular(folder / _copy_name(key, kind), _MOST_BYTES)
    except OSError as error:
        what = (error.strerror or "the copy is missing").lower()
        raise SourceError(key, f"is not in {folder} ({what})") from error


def _copy_name(key: str, kind: str) -> str:
    mark = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{kind}/{mark}-{_ODD.sub('_', key.rpartition('/')[2])[-_MOST_NAME:]}"
