"""`shardprep inspect`: what a dataset holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import console, print_json
from shardprep.storage.url import local_path

EPILOG = (
    "Examples:\n\nshardprep inspect\n\nshardprep inspect tfrecords/dogs_vs_cats --json\n\n"
    "shardprep inspect tfrecords/bccd --boxes sheet.png"
)


def inspect(
    dataset: o.Dataset = None,
    boxes: Annotated[
        Path | None,
        o.value(
            "Draw boxes and masks of some images, from all parts of the dataset, into this PNG.",
            "FILE",
            parser=local_path,
        ),
    ] = None,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Show the splits, classes and totals of a dataset.

    Reads the manifest and the item table. Shards are read only for boxes.
    """
    from shardprep.api.inspect import inspect as read_facts

    facts = read_facts(dataset, boxes=boxes)
    if boxes is not None:
        console(stderr=True).notice(f"drawn: {boxes}")
    if as_json:
        print_json(facts)
        return
    from shardprep.cli.show.summary import print_facts

    terminal = console()
    print_facts(terminal, facts)
    for i, one in enumerate(facts.findings):
        terminal.entry("" if i else "findings", one)
