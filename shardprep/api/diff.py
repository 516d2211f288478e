"""`shardprep.diff`: the differences of two datasets, item by item."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at
from shardprep.dataset.diff import compare

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.diff import Difference


def diff(
    before: str | Path, after: str | Path, *, store_timeout: float | None = None
) -> Difference:
    """Return what differs between two datasets: items, splits, targets, classes, options.

    Manifests and item tables are read, and of shards that differ the records whose equality these
    cannot show.

    Args:
        before: folder or address of the first dataset.
        after: folder or address of the second.
        store_timeout: seconds that object storage may be silent.

    Raises:
        DatasetError: one of them is missing, or a document or shard of it.
        RecordError: a record is damaged.

    """
    with answering(store_timeout):
        return compare(dataset_at(before), dataset_at(after))
