"""`shardprep fetch`: a dataset from object storage to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardprep import options as o
from shardprep.commands.terminal import console, notice, print_json
from shardprep.storage.url import ObjectUrl, local_path

EPILOG = "Examples:\n\nshardprep fetch s3://bucket/dogs_vs_cats --to tfrecords"


def fetch(
    url: Annotated[
        str,
        typer.Argument(
            help="The dataset's address, s3://, gs:// or az://, or one above it.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            parser=local_path, help="Folder of datasets.", metavar="DIR", show_default="tfrecords"
        ),
    ] = Path("tfrecords"),
    threads: Annotated[int, typer.Option(min=1, help="Shards that are got at a time.")] = 8,
    as_json: o.Json = False,
) -> None:
    """Copy a dataset from object storage, and check every shard; nothing is got twice."""
    from shardprep.fetch import fetch_dataset
    from shardprep.remote import find_remote
    from shardprep.report.summary import megabytes
    from shardprep.report.transfer import ByteProgress

    remote = find_remote(ObjectUrl.parse(url))
    with ByteProgress(console(stderr=True)) as progress:
        found = fetch_dataset(remote, to, num_threads=threads, watcher=progress)
    if as_json:
        from shardprep.commands.result import FetchJson

        facts: FetchJson = {
            "path": str(found.path),
            "from": str(remote),
            "was_there": found.was_there,
            "num_bytes": found.manifest.totals.num_bytes,
            "num_new_bytes": found.num_new_bytes,
        }
        print_json(facts)
        return
    notice(console(), str(found.path))
    size = megabytes(found.manifest.totals.num_bytes)
    how = "is there already" if found.was_there else f"{megabytes(found.num_new_bytes)} got now"
    typer.echo(f"{len(found.manifest.shards):,} shards, {size}: {how}")
