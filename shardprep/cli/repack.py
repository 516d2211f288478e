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
            "Folders or addresses of one or several datasets, or one above them. By default what "
            "./shardprep.toml builds, else the one dataset under ./tfrecords."
        ),
    ] = None,
    *,
    shards: Annotated[str | None, o.flag(replace(BUILD_OPTIONS["shards"], panel=""))] = None,
    name: Annotated[
        str | None,
        o.value("Name of the new dataset.", "NAME", "that of all the datasets"),
    ] = None,
    version: Annotated[str | None, o.value("Version of it.", "X.Y.Z", "1.0.0")] = None,
    out: Annotated[
        str | None, o.flag(replace(BUILD_OPTIONS["out"], panel="", shown="tfrecords"))
    ] = None,
    split: Annotated[
        str | None,
        o.value("Records to take of each dataset, such as train[:10%]+validation.", "SPLIT", "all"),
    ] = None,
    seed: Annotated[
        str | None, o.value("Random seed of the order.", "N", "that of the first dataset")
    ] = None,
    overwrite: Annotated[
        bool, o.switch("--overwrite", "Replace another dataset, once the new one is complete.")
    ] = False,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Make one dataset of the records of others, in other shards; nothing is decoded.

    Classes are united by name; keys that several datasets have get the name of theirs before them.
    Every checksum is compared on the way. What was interrupted goes on where it stopped.
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
