"""`shardprep bench`: how fast a dataset is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import console, notice, print_json
from shardprep.recipe.options import Option
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.benchmark.result import Benchmark
    from shardprep.cli.results import BenchJson

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
        print_json(_as_json(found))
        return
    from shardprep.cli.display.benchmark import print_benchmark

    print_benchmark(console(), found)
    if plot is not None:
        notice(console(), f"wrote {plot}")


def _as_json(found: Benchmark) -> BenchJson:
    from shardprep.cli.results import BenchJson, WayJson

    ways = [
        WayJson(
            name=way.name,
            problem=way.problem,
            yields=way.yields,
            peak_bytes=way.peak_bytes,
            rounds=way.rounds,
            images_s=way.images_s,
            images_s_core=way.images_s_core,
            bytes_s=found.bytes_s(way),
            first_batch_s=way.first_batch_s,
        )
        for way in found.ways
    ]
    return BenchJson(
        path=str(found.path),
        split=found.split,
        num_records=found.num_records,
        num_bytes=found.num_bytes,
        settings=found.settings,
        num_cores=found.num_cores,
        ways=ways,
        timelines=found.timelines,
        step_s=found.step_s,
    )
