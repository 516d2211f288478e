"""`shardprep bench`: how fast a dataset is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import console, notice, picked, print_json
from shardprep.recipe.options import Option
from shardprep.storage.url import local_path

EPILOG = "Examples:\n\nshardprep bench\n\nshardprep bench tfrecords/dogs_vs_cats --plot bench.png"


def bench(
    dataset: o.Dataset = None,
    split: Annotated[
        str, o.flag(Option("Split to read.", metavar="SPLIT", shown="train"))
    ] = "train",
    batch_size: Annotated[
        int, o.number(Option("Images in a batch.", metavar="N", shown="64", least=1), int)
    ] = 64,
    seconds: Annotated[
        float,
        o.number(
            Option(
                "Seconds that each pipeline is measured in each round.",
                metavar="SECONDS",
                shown="2",
                least=0.1,
            ),
            float,
        ),
    ] = 2.0,
    rounds: Annotated[
        int,
        o.number(
            Option("Rounds for each pipeline; the median counts.", metavar="N", shown="3", least=1),
            int,
        ),
    ] = 3,
    plot: Annotated[
        Path | None,
        o.flag(
            Option("Draw bars, and a timeline of read, decode and train.", metavar="FILE.png"),
            parser=local_path,
        ),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Measure how fast the shards are read: plain tf.data, tfds and this package's readers."""
    from shardprep.benchmark.plot import check_plot, write_plot
    from shardprep.benchmark.result import Settings
    from shardprep.benchmark.run import run_benchmark
    from shardprep.cli.resolve import dataset_at
    from shardprep.dataset.remote import local_only

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
        from shardprep.cli.results import BenchJson, WayJson

        ways = [picked(WayJson, way, bytes_s=found.bytes_s(way)) for way in found.ways]
        print_json(picked(BenchJson, found, path=str(found.path), ways=ways))
        return
    from shardprep.cli.display.benchmark import print_benchmark

    print_benchmark(console(), found)
    if plot is not None:
        notice(console(), f"wrote {plot}")
