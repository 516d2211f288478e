"""`shardprep bench`: measure the reading speed of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.streams import console, print_json
from shardprep.errors import counted

if TYPE_CHECKING:
    from shardprep.api.json_types import Benchmark
    from shardprep.cli.options import Call
    from shardprep.cli.show.console import Terminal

EPILOG = "Examples:\n\nshardprep bench\n\nshardprep bench tfrecords/dogs_vs_cats --plot bench.png"


def run(call: Call, *, as_json: bool) -> None:
    """Compare the reading speed of plain tf.data, tfds and this package's readers."""
    result = call()
    if as_json:
        print_json(result)
        return
    print_benchmark(console(), result)
    if "plot" in call.options:
        console().notice(f"wrote {call.options['plot']}")


def print_benchmark(terminal: Terminal, found: Benchmark) -> None:
    """Print a row for each pipeline, and the reason for each that did not run."""
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
        "core: images per second of CPU time; memory: peak of the process",
    )
