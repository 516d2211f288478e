"""`shardprep bench`: how fast a dataset is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import bar, console, print_json
from shardprep.errors import counted
from shardprep.recipe.options import MAX_BATCH, MAX_ROUNDS, MAX_SECONDS
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.api.json_types import Benchmark
    from shardprep.cli.show.console import Terminal

EPILOG = "Examples:\n\nshardprep bench\n\nshardprep bench tfrecords/dogs_vs_cats --plot bench.png"


def bench(
    dataset: o.Dataset = None,
    split: Annotated[str, o.value("Split or slice to read.", "SPLIT", "train")] = "train",
    batch_size: Annotated[int, o.amount("Images in a batch.", "N", "64", most=MAX_BATCH)] = 64,
    seconds: Annotated[
        float,
        o.amount(
            "Duration of each measurement in each round.",
            "SECONDS",
            "2",
            float,
            0.1,
            most=MAX_SECONDS,
        ),
    ] = 2.0,
    rounds: Annotated[
        int, o.amount("Number of rounds; the median is reported.", "N", "3", most=MAX_ROUNDS)
    ] = 3,
    plot: Annotated[
        Path | None,
        o.value(
            "Draw bars, and a timeline of reading, decoding and training.",
            "FILE.png",
            parser=local_path,
        ),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Compare the reading speed of plain tf.data, tfds and this package's readers."""
    from shardprep.api.bench import bench as measure

    with bar() as progress:
        found = measure(
            dataset,
            split=split,
            batch_size=batch_size,
            seconds=seconds,
            rounds=rounds,
            plot=plot,
            progress=progress,
        )
    if as_json:
        print_json(found)
        return
    print_benchmark(console(), found)
    if plot is not None:
        console().notice(f"wrote {plot}")


def print_benchmark(terminal: Terminal, found: Benchmark) -> None:
    """Print a row for each pipeline, and why one did not run."""
    from shardprep.cli.show.console import plain_table
    from shardprep.storage.space import megabytes

    what = f"{found.split}: {found.num_records:,} images, {megabytes(found.num_bytes)}"
    terminal.heading(found.path, f"  {what}")
    columns = ("way", "images/s", "a core", "MB/s", "first batch", "memory", "yields")
    table = plain_table(*columns, left=("yields",))
    for way in found.ways:
        cells = (
            f"{way.images_s:,.0f}",
            f"{way.images_s_core:,.0f}",
            f"{way.bytes_s / 1e6:,.1f}",
            f"{way.first_batch_s:.2f} s",
            megabytes(way.peak_bytes) if way.peak_bytes else "-",
            way.yields,
        )
        table.add_row(way.title, *(cells if way.rounds else "-" * len(cells)))
    terminal.print(table)
    for way in found.ways:
        if way.problem:
            terminal.entry("not run", f"{way.title}: {way.problem}", style="yellow")
    settings = found.settings
    terminal.entry(
        "measured",
        f"batches of {settings.batch_size}, {counted(found.num_cores, 'core')}, median of "
        f"{settings.rounds} x {settings.seconds:g} s after the first batch, files in memory; a "
        "core: images for each second of one core; memory: the most that the process held",
    )
