"""Checks of `items.parquet` against the manifest, every number of which is counted again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.item_table import (
    COLUMNS,
    REJECTED,
    SKIPPED,
    WRITTEN,
    read_items,
    with_status,
)
from shardprep.dataset.manifest import Shard
from shardprep.dataset.totals import Tally
from shardprep.errors import DatasetError
from shardprep.verifier.documents import differences, is_readable
from shardprep.verifier.problem import Problem
from shardprep.writer.fingerprint import recorded_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest

_UNCOUNTABLE = (ValueError, TypeError, KeyError, ArithmeticError, pa.ArrowException)
"""Errors that counting raises where values are missing or impossible."""


def checked_table(
    folder: Path, manifest: Manifest | None, problems: list[Problem]
) -> pa.Table | None:
    """Return all rows, None where they cannot be read; faults are added to the problems."""
    if not is_readable(folder, ITEMS_FILE, manifest, problems):
        return None
    try:
        return read_items(folder / ITEMS_FILE, COLUMNS.names)
    except DatasetError as error:
        problems.append(Problem("items", ITEMS_FILE, error.what))
        return None


def table_problems(
    manifest: Manifest, table: pa.Table, rows: dict[str, pa.Table]
) -> Iterator[Problem]:
    """Yield the contradictions between the rows and the manifest."""
    for shard in rows:
        if shard not in manifest.shards:
            what = f"has rows of {shard}, which the manifest does not name"
            yield Problem("items", ITEMS_FILE, what)
    yield from _twice(table)
    try:
        counted = _counted(manifest, table, rows)
    except (*_UNCOUNTABLE, DatasetError) as error:
        what = f"cannot be counted ({str(error).splitlines()[0]})"
        yield Problem("items", ITEMS_FILE, what)
        return
    here = {"splits": manifest.splits, "totals": manifest.totals}
    document = manifest.model_copy(update=counted).model_dump(mode="json", include=set(here))
    for what in differences(manifest.model_dump(mode="json", include=set(here)), document):
        yield Problem("items", ITEMS_FILE, f"its rows disagree with the manifest: {what}")


def _counted(manifest: Manifest, table: pa.Table, rows: dict[str, pa.Table]) -> dict[str, object]:
    """Return the splits and totals of the manifest, counted from the rows."""
    tally = Tally(recorded_recipe(manifest, "-", "-").image_spec)
    statuses = Counter(table["status"].cast("string").to_pylist())
    if statuses.keys() - {WRITTEN, REJECTED, SKIPPED}:
        message = f"a status is none of {WRITTEN}, {REJECTED}, {SKIPPED}"
        raise ValueError(message)
    for name, split in manifest.splits.items():
        for shard in split.shards:
            here = rows.get(shard.name, COLUMNS.empty_table())
            if set(here["split"].cast("string").unique().to_pylist()) - {name}:
                message = f"a row of {shard.name} is of another split than {name}"
                raise ValueError(message)
            written = with_status(here, WRITTEN)
            if written["record"].to_pylist() != list(range(len(written))):
                message = f"the records of {shard.name} are not numbered 0, 1, 2 …"
                raise ValueError(message)
            num_bytes = pc.sum(written["length"]).as_py() or 0
            measured = Shard(
                name=shard.name,
                num_records=len(written),
                num_bytes=num_bytes,
                sha256=shard.sha256,
            )
            tally.add(measured, name, here)
    skipped = with_status(table, SKIPPED)
    known = sorted(manifest.totals.skipped, key=len, reverse=True)
    reasons = Counter(_reason(text or "", known) for text in skipped["reason"].to_pylist())
    return {"splits": tally.splits(manifest.labels.names), "totals": tally.totals(reasons)}


def _reason(text: str, known: list[str]) -> str:
    """Return the reason of a skipped input without the detail that may follow it."""
    for reason in known:
        if text == reason or text.startswith(f"{reason}: "):
            return reason
    return text


def _twice(table: pa.Table) -> Iterator[Problem]:
    written = with_status(table, WRITTEN)
    if pc.count_distinct(written["key"]).as_py() == len(written):
        return
    for key, count in Counter(written["key"].to_pylist()).items():
        if count > 1:
            yield Problem(
                "items", ITEMS_FILE, f"has {count} written rows of one key", key=key or ""
            )
