"""`shardprep sample`: something to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import console, print_json
from shardprep.storage.url import local_path

EPILOG = "Example:\n\nshardprep sample demo && cd demo && shardprep build --shards 20"


def sample(
    directory: Annotated[
        Path,
        typer.Argument(
            parser=local_path,
            metavar="DIRECTORY",
            help="Folder for shapes.zip and shardprep.toml.",
        ),
    ] = Path(),
    as_json: o.Json = False,
) -> None:
    """Write a small Kaggle-shaped archive to try everything on, without a network."""
    from shardprep.cli.sample_archive import write_sample

    archive = write_sample(directory)
    num_bytes = archive.stat().st_size
    recipe = archive.with_name("shardprep.toml")
    if as_json:
        from shardprep.cli.results import SampleJson

        print_json(SampleJson(path=str(archive), recipe=str(recipe), num_bytes=num_bytes))
        return
    console().notice(f"{archive} ({num_bytes / 1e6:.1f} MB) and {recipe}")
    there = "" if directory == Path() else f"cd {directory} && "
    console().notice(f"next: {there}shardprep build --shards 20")
