"""A benchmark in a table, for a terminal of 80 columns or more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.benchmark.pipelines import PIPELINES
from shardprep.cli.display.summary import megabytes, plain_table, print_line, print_title

if TYPE_CHECKING:
    from rich.console import Console

    from shardprep.benchmark.result import Benchmark, Way


def print_benchmark(console: Console, found: Benchmark) -> None:
    """Print a row for each pipeline, and why one did not run."""
    size = megabytes(found.num_bytes)
    what = f"{found.split}: {found.num_records:,} images, {size}"
    print_title(console, str(found.path), f"  {what}")
    table = plain_table("way", "images/s", "a core", "MB/s", "first batch", "memory", "yields")
    table.columns[6].justify = "left"
    for way in found.ways:
        table.add_row(PIPELINES[way.name].title, *_cells(found, way))
    console.print(table)
    for way in found.ways:
        if way.problem:
            print_line(
                console, "not run", f"{PIPELINES[way.name].title}: {way.problem}", style="yellow"
            )
    cores = "1 core" if found.num_cores == 1 else f"{found.num_cores} cores"
    settings = found.settings
    print_line(
        console,
        "measured",
        f"batches of {settings.batch_size}, {cores}, median of {settings.rounds} x "
        f"{settings.seconds:g} s after the first batch, files in memory; a core: images for each "
        "second of one core; memory: the most that the process held",
    )


def _cells(found: Benchmark, way: Way) -> tuple[str, ...]:
    if not way.rounds:
        return ("-",) * 6
    return (
        f"{way.images_s:,.0f}",
        f"{way.images_s_core:,.0f}",
        f"{found.bytes_s(way) / 1e6:,.1f}",
        f"{way.first_batch_s:.2f} s",
        megabytes(way.peak_bytes),
        way.yields,
    )
