"""Copy the originals of rejected items for the user."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from shardprep.dataset import item_table
from shardprep.dataset.card import to_cell
from shardprep.dataset.folder import ITEMS_FILE
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import MemberError
from shardprep.storage.atomic_file import write_durably

LIST_FILE = "rejected.csv"
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 80


def save_rejected(
    folder: Path, recipe: Recipe, into: Path, notice: Callable[[str], None]
) -> tuple[int, int]:
    """Copy the originals of a dataset's rejected items to `into`/<kind>/; return two counts.

    The counts are the number of written files and the number of rejected items. `rejected.csv` in
    `into` has a row for each item: key, kind, reason and file. The column `file` is "" if the
    original cannot be read. The dataset may be unfinished. Existing copies are overwritten.
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


def _copy_name(key: str, kind: str) -> str:
    mark = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{kind}/{mark}-{_ODD.sub('_', key.rpartition('/')[2])[-_MOST_NAME:]}"
