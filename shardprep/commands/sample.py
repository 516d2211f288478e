"""`shardprep sample`: something to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example:\n\nshardprep sample demo && cd demo && shardprep build --shards 20"


def sample(
    directory: Annotated[
        Path, typer.Argument(help="Where to write shapes.zip and shardprep.toml.")
    ] = Path(),
) -> None:
    """Write a small Kaggle-shaped archive to try everything on, without a network."""
    from shardprep.source.sample import write_sample

    archive = write_sample(directory)
    size = archive.stat().st_size / 1e6
    typer.echo(f"{archive} ({size:.1f} MB) and {archive.with_name('shardprep.toml')}")
    there = "" if directory == Path() else f"cd {directory} && "
    typer.echo(f"next: {there}shardprep build --shards 20")
