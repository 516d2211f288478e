"""`shardprep finalize`: the shards of a build in parts to a dataset."""

from __future__ import annotations

from typing import Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import bar

EPILOG = "Examples:\n\nshardprep finalize\n\nshardprep finalize tfrecords/dogs_vs_cats"


def finalize(
    dataset: Annotated[
        str | None,
        o.argument(
            "Folder of the dataset or a folder above it. Default: the dataset of ./shardprep.toml, "
            "otherwise the only unfinished build under ./tfrecords."
        ),
    ] = None,
    max_rejected: Annotated[float | None, o.max_rejected(shown="value of the parts")] = None,
    workers: Annotated[int | None, o.workers("Number of threads that check shards.")] = None,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Join the shards of `build --part` into a dataset, when all parts are done.

    It needs neither the source nor options. If shards are missing, it names the parts to run again.
    """
    from shardprep import TooManyRejectedError
    from shardprep.api.finalize import finalize as finalize_dataset
    from shardprep.cli.show.summary import show_refused, show_result

    try:
        with bar() as progress:
            result = finalize_dataset(
                dataset, max_rejected=max_rejected, workers=workers, progress=progress
            )
    except TooManyRejectedError as error:
        show_refused(error)
        raise
    show_result(result, as_json=as_json)
