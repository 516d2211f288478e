"""`shardprep.fetch`: a dataset from object storage to a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, checked
from shardprep.api.progress import watched
from shardprep.dataset.fetch import fetch_dataset
from shardprep.dataset.locate import locate
from shardprep.recipe.options import MAX_THREADS
from shardprep.storage.url import ObjectUrl, local_path

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.api.progress import Show
    from shardprep.dataset.fetch import Fetched


def fetch(
    url: str,
    *,
    to: str | Path = "tfrecords",
    check: bool = False,
    damaged: bool = False,
    threads: int = 8,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Fetched:
    """Copy a dataset from object storage, and check every shard; a copy is only completed.

    Args:
        url: address of the dataset or one above it: s3://, gs:// or az://.
        to: a folder of datasets.
        check: hash every file of a copy that is there already.
        damaged: leave out files that are damaged or missing; `left_out` names them.
        threads: number of shards fetched at a time.
        store_timeout: seconds that object storage may be silent.
        progress: takes each `Progress`; True shows them.

    Raises:
        DatasetError: there is no such dataset, or a file of it is damaged.
        BuildError: another dataset is there, it does not fit, or another fetch is at work.
        StorageError: object storage does not answer, or refuses.

    """
    num = checked("threads", threads, int, 1, MAX_THREADS)
    with answering(store_timeout), watched(progress) as watch:
        remote = locate(ObjectUrl.parse(url))
        folder = local_path(to)
        return fetch_dataset(
            remote, folder, num_threads=num, watcher=watch, check=check, damaged=damaged
        )
