"""`shardprep.finalize`: the shards of a build in parts to a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, checked, num_workers, unfinished
from shardprep.api.progress import watched
from shardprep.writer.finalize import finalize_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.api.progress import Show
    from shardprep.writer.finalize import BuildResult


def finalize(
    dataset: str | Path | None = None,
    *,
    max_rejected: float | None = None,
    workers: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> BuildResult:
    """Make a dataset of the shards that `build` with `part` has written, once all parts are done.

    Args:
        dataset: its folder or one above it; None: what ./shardprep.toml builds, else the one
            unfinished build under ./tfrecords.
        max_rejected: share of rejected images, 0 to 1, up to which the dataset is published; None:
            the share that the parts were given.
        workers: threads that check shards; None: one a usable core.
        store_timeout: seconds that object storage may be silent.
        progress: takes each `Progress`; True shows them.

    Raises:
        DatasetError: no part was written here.
        TooManyRejectedError: more images are rejected than may be; the work is kept.
        BuildError: shards are missing or damaged, which names the parts to build again.

    """
    share = None if max_rejected is None else checked("max-rejected", max_rejected, float, 0, 1)
    with answering(store_timeout), watched(progress) as watch:
        watch.start("checking the shards")
        return finalize_dataset(
            unfinished(dataset), num_threads=num_workers(workers), max_rejected=share
        )
