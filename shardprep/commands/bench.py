"""`shardprep bench`: how fast a dataset is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shardprep import options as o
from shardprep.commands.terminal import console

EPILOG = "Examples:\n\nshardprep bench\n\nshardprep bench tfrecords/dogs_vs_cats --plot bench.png"


def bench(
    dataset: o.Dataset = None,
    split: Annotated[str, typer.Option(help="Which split to read.")] = "train",
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Measured for each way in each round.")
    ] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each way; the median counts.")] = 3,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Draw bars, and a timeline of read, decode and train.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how fast the shards are read: plain tf.data, tfds and this package's readers."""
    from shardprep.arguments import dataset_at
    from shardprep.bench.result import Settings
    from shardprep.bench.run import run_benchmark
    from shardprep.remote import local_only
    from shardprep.report.plot import check_plot, write_plot

    if plot is not None:
        check_plot(plot)
    folder = local_only(dataset_at(dataset), "shardprep bench")
    with console(stderr=True).status("starting") as status:
        settings = Settings(
            batch_size=batch_size, seconds=seconds, rounds=rounds, timelines=plot is not None
        )
        found = run_benchmark(folder, split, settings, status.update)
    if plot is not None:
        write_plot(found, plot)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
        return
    from shardprep.report.benchmark import print_benchmark

    print_benchmark(console(), found)
    if plot is not None:
        typer.echo(f"wrote {plot}")
