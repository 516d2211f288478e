"""`shardprep.fetch`: copy a dataset from object storage to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, number
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.recipe.options import ARGUMENTS, RUN_OPTIONS, Option
from shardprep.storage.url import ObjectUrl, local_path

if TYPE_CHECKING:
    from shardprep.dataset.fetch import Fetched

OPTIONS = {
    "url": Option(
        "Address of the dataset or an address above it: s3://, gs:// or az://.", ARGUMENTS
    ),
    "to": Option("Folder of datasets.", metavar="DIR"),
    "check": Option("Hash every file of an existing copy."),
    "damaged": Option("Leave out damaged and missing files, and name them."),
    "threads": Option("Number of shards to download at a time.", metavar="N", least=1, most=1_000),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


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
    """Copy a dataset from object storage, and check every shard.

    If a copy exists, only missing and damaged files are downloaded.

    Raises:
        DatasetError: the dataset does not exist, or one of its files is damaged.
        BuildError: the target folder contains another dataset, the disk has too little space, or
            another fetch writes to the folder.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.dataset.fetch import fetch_dataset
    from shardprep.dataset.locate import locate

    num = number("threads", threads, OPTIONS["threads"], int)
    folder = local_path(to)
    with answering(store_timeout), watched(progress) as watch:
        remote = locate(ObjectUrl.parse(url))
        return fetch_dataset(
            remote, folder, num_threads=num, watcher=watch, check=check, damaged=damaged
        )
