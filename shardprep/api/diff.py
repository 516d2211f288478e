"""`shardprep.diff`: compare two datasets item by item."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at
from shardprep.recipe.options import ARGUMENTS, RUN_OPTIONS, Option

if TYPE_CHECKING:
    from shardprep.dataset.diff import Difference

OPTIONS = {
    "before": Option("Folder or address of the first dataset.", ARGUMENTS),
    "after": Option("Folder or address of the second dataset.", ARGUMENTS),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def diff(
    before: str | Path, after: str | Path, *, store_timeout: float | None = None
) -> Difference:
    """Return the differences between two datasets: items, splits, targets, classes, options.

    Reads the manifests and item tables. Where these cannot decide, it compares the records of
    shards that differ.

    Raises:
        DatasetError: a dataset, or one of its documents or shards, is missing or damaged.
        RecordError: a record is damaged.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.dataset.diff import compare

    with answering(store_timeout):
        return compare(dataset_at(before), dataset_at(after))
