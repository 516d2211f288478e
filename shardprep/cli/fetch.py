"""`shardprep fetch`: copy a dataset from object storage to a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import EXIT_PROBLEMS, console, picked, print_json

if TYPE_CHECKING:
    from shardprep.cli.options import Call
    from shardprep.dataset.fetch import Fetched

EPILOG = "Examples:\n\nshardprep fetch s3://bucket/dogs_vs_cats --to tfrecords"


def run(call: Call, *, as_json: bool) -> None:
    """Copy a dataset from object storage, and check every shard.

    If a copy exists, only missing and damaged files are downloaded. Exits with 3 if files are left
    out.
    """
    found = call()
    if as_json:
        from shardprep.api.json_types import FetchJson, LeftOutJson

        left_out = [picked(LeftOutJson, error) for error in found.left_out]
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
        how = "already exists" + (", repaired" if found.renewed else "")
    size = megabytes(found.num_bytes)
    console().notice(f"{len(found.manifest.shards):,} shards, {size}: {how}")
    for name in found.renewed:
        console().notice(f"fetched again: {name}")
    for error in found.left_out:
        console().notice(f"left out: {error.where}: {error.what}")
    if found.left_out:
        console().notice(f"next: shardprep verify {found.path} --repair --source …")
