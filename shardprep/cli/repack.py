"""`shardprep repack`: the records of datasets in other shards, merged, or some of them alone."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, Any

from shardprep.cli import options as o
from shardprep.cli.streams import bar
from shardprep.recipe.options import BUILD_OPTIONS

EPILOG = (
    "Examples:\n\nshardprep repack tfrecords/pets --shards 64 --version 1.0.1\n\n"
    "shardprep repack tfrecords/cats tfrecords/dogs --name pets\n\n"
    "shardprep repack tfrecords/pets --split 'train[:10%]' --name pets_small\n\n"
    "shardprep repack tfrecords/pets --out s3://bucket/sets"
)


def repack(
    datasets: Annotated[
        list[str] | None,
        o.argument(
            "Folders or addresses of one or several datasets, or a folder above them. Default: the "
            "dataset of ./shardprep.toml, otherwise the only dataset under ./tfrecords."
        ),
    ] = None,
    *,
    shards: Annotated[str | None, o.flag(replace(BUILD_OPTIONS["shards"], panel=""))] = None,
    name: Annotated[
        str | None,
        o.value("Name of the new dataset.", "NAME", "the common name of the datasets"),
    ] = None,
    version: Annotated[str | None, o.value("Version of the new dataset.", "X.Y.Z", "1.0.0")] = None,
    out: Annotated[
        str | None, o.flag(replace(BUILD_OPTIONS["out"], panel="", shown="tfrecords"))
    ] = None,
    split: Annotated[
        str | None,
        o.value(
            "Records to take from each dataset, such as train[:10%]+validation.", "SPLIT", "all"
        ),
    ] = None,
    seed: Annotated[
        str | None, o.value("Random seed of the order.", "N", "seed of the first dataset")
    ] = None,
    overwrite: Annotated[
        bool, o.switch("--overwrite", "Replace an existing dataset when the new one is complete.")
    ] = False,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Merge datasets, or write the records of a dataset into other shards, without decoding.

    Classes are merged by name. If several datasets have the same key, the name of the dataset is
    put in front. Every checksum is compared. If the command is interrupted, run it again.
    """
    # What Arrow's own allocator keeps for later would be a fifth of the memory.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from shardprep.api.repack import repack as returned
    from shardprep.cli.show.summary import show_result
    from shardprep.writer.reuse.record_copier import share_heap

    share_heap()
    repack_datasets: Any = returned  # a shell gives numbers as texts
    with bar() as progress:
        done = repack_datasets(
            datasets or None,
            out,
            shards=shards,
            name=name,
            version=version,
            split=split,
            seed=seed,
            overwrite=overwrite,
            progress=progress,
        )
    show_result(done, as_json=as_json)
