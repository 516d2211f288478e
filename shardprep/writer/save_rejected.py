"""Copies of rejected images for people to look at, under names that cannot lead elsewhere."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from shardprep.dataset import item_table
from shardprep.dataset.card import to_cell
from shardprep.dataset.folder import ITEMS_FILE
from shardprep.errors import SourceError
from shardprep.image.process import RejectionKind
from shardprep.recipe.recipe import Recipe, outputs
from shardprep.source.byte_range import MemberError
from shardprep.source.listing import list_source
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.regular_file import read_regular

LIST_FILE = "rejected.csv"
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 80
"""Characters of a key that the name of its copy ends with, after the key's hash."""
_MOST_BYTES = 256 << 20
"""Largest copy that is read."""


def save_rejected(
    folder: Path, recipe: Recipe, into: Path, notice: Callable[[str], None]
) -> tuple[int, int]:
    """Copy the bytes of every rejected item of a dataset to `into`/<kind>/.

    `rejected.csv` in the same folder has a row for each: key, kind, reason and file. The file is ""
    if the source no longer gives its bytes.

    Args:
        folder: the dataset, finished or not, with its `items.parquet`.
        recipe: names the source.
        into: created if needed; files of an earlier copy are replaced.
        notice: called with a line about work that takes long.

    Returns:
        The number of files that were written, and the number of rejected items.

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
            listing = list_source(
                recipe.source,
                Path(work),
                notice,
                zip_encoding=recipe.zip_encoding or None,
                limits=recipe.source_limits,
                leave_out=outputs(recipe),
            )
            extents = {member.key: member.extent for member in listing.images}
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
    """Return the copy of a rejected item from a folder that `save_rejected` has written.

    Raises:
        SourceError: the copy does not exist.

    """
    try:
        if kind not in get_args(RejectionKind):  # it names a folder, and may come from a request
            raise FileNotFoundError
        return read_regular(folder / _copy_name(key, kind), _MOST_BYTES)
    except OSError as error:
        what = (error.strerror or "the copy is missing").lower()
        raise SourceError(key, f"is not in {folder} ({what})") from error


def _copy_name(key: str, kind: str) -> str:
    mark = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{kind}/{mark}-{_ODD.sub('_', key.rpartition('/')[2])[-_MOST_NAME:]}"
