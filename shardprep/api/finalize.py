"""`shardprep.finalize`: join the parts of a build into a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, num_workers, number, unfinished
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.recipe.options import ARGUMENTS, BUILD_OPTIONS, RUN_OPTIONS, Option

if TYPE_CHECKING:
    from shardprep.writer.finalize import BuildResult

OPTIONS = {
    "dataset": Option(
        "Folder of the dataset or a folder above it. Default: the dataset of ./shardprep.toml, "
        "otherwise the only unfinished build under ./tfrecords.",
        ARGUMENTS,
    ),
    "max_rejected": replace(BUILD_OPTIONS["max_rejected"], panel="", shown="value of the parts"),
    "workers": replace(
        RUN_OPTIONS["workers"], help="Number of threads that check shards.", panel=""
    ),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def finalize(
    dataset: str | Path | None = None,
    *,
    max_rejected: float | None = None,
    workers: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> BuildResult:
    """Join the shards of `build(part=...)` into a dataset, when all parts are done.

    Raises:
        DatasetError: no part of this dataset has been built.
        TooManyRejectedError: the share of rejected images is above `max_rejected`. The shards are
            kept.
        BuildError: shards are missing or damaged. The error names the parts to build again.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.writer.finalize import finalize_dataset

    share = None
    if max_rejected is not None:
        share = number("max_rejected", max_rejected, OPTIONS["max_rejected"], float)
    num = num_workers(workers)
    with answering(store_timeout), watched(progress) as watch:
        watch.start("checking the shards")
        return finalize_dataset(unfinished(dataset), num_threads=num, max_rejected=share)
