"""`shardprep sample`: something to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import console, picked, print_json
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
    """Write a small archive like those of Kaggle, to try everything without a network."""
    from shardprep.api.sample import sample as write_sample

    found = write_sample(directory)
    if as_json:
        from shardprep.api.json_types import SampleJson

        print_json(picked(SampleJson, found))
        return
    console().notice(f"{found.path} ({found.num_bytes / 1e6:.1f} MB) and {found.recipe}")
    there = "" if directory == Path() else f"cd {directory} && "
    console().notice(f"next: {there}shardprep build --shards 20")
