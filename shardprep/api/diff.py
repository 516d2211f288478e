"""`shardprep.diff`: the differences of two datasets, item by item."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at
from shardprep.recipe.options import ARGUMENTS, RUN_OPTIONS, Option

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.diff import Difference


OPTIONS = {
    "before": Option("Folder or address of the first dataset.", ARGUMENTS),
    "after": Option("Folder or address of the second dataset.", ARGUMENTS),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def diff(
    before: str | Path, after: str | Path, *, store_timeout: float | None = None
) -> Difference:
    """Return what differs between two datasets: items, splits, targets, classes, options.

    Manifests and item tables are read, and of shards that differ the records whose equality these
    cannot show.

    Raises:
        DatasetError: one of them is missing, or a document or shard of it.
        RecordError: a record is damaged.

    """
    from shardprep.dataset.diff import compare

    with answering(store_timeout):
        return compare(dataset_at(before), dataset_at(after))
