"""`shardprep fetch`: a dataset from object storage to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import EXIT_PROBLEMS, bar, console, picked, print_json
from shardprep.recipe.options import MAX_THREADS
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.dataset.fetch import Fetched

EPILOG = "Examples:\n\nshardprep fetch s3://bucket/dogs_vs_cats --to tfrecords"


def fetch(
    url: Annotated[
        str, o.argument("Address of the dataset or an address above it: s3://, gs:// or az://.")
    ],
    to: Annotated[
        Path, o.value("Folder of datasets.", "DIR", "tfrecords", parser=local_path)
    ] = Path("tfrecords"),
    check: Annotated[bool, o.switch("--check", "Hash every file of an existing copy.")] = False,
    damaged: Annotated[
        bool, o.switch("--damaged", "Leave out damaged and missing files, and name them.")
    ] = False,
    threads: Annotated[
        int, o.amount("Number of shards to download at a time.", "N", "8", most=MAX_THREADS)
    ] = 8,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Copy a dataset from object storage, and check every shard.

    If a copy exists, only missing and damaged files are downloaded. Exits with 3 if files are left
    out.
    """
    from shardprep.api.fetch import fetch as fetch_dataset

    with bar() as progress:
        found = fetch_dataset(
            url, to=to, check=check, damaged=damaged, threads=threads, progress=progress
        )
    if as_json:
        from shardprep.api.json_types import FetchJson, LeftOutJson

        left_out = [picked(LeftOutJson, one) for one in found.left_out]
        more = {"from": found.address, "left_out": left_out}
        print_json(picked(FetchJson, found, **more))
    else:
        _show(found)
    if found.left_out:
        raise typer.Exit(EXIT_PROBLEMS)


def _show(found: Fetched) -> None:
    from shardprep.storage.space import megabytes

    console().notice(str(found.path))
    how = f"{megabytes(found.num_new_bytes)} fetched"
    if found.was_there:
        how = "is there already" + (", mended" if found.renewed else "")
    size = megabytes(found.num_bytes)
    console().notice(f"{len(found.manifest.shards):,} shards, {size}: {how}")
    for name in found.renewed:
        console().notice(f"fetched anew: {name}")
    for error in found.left_out:
        console().notice(f"left out: {error.where}: {error.what}")
    if found.left_out:
        console().notice(f"next: shardprep verify {found.path} --repair --source …")
