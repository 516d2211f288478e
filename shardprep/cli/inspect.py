"""`shardprep inspect`: describe a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.streams import console, print_json

if TYPE_CHECKING:
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\nshardprep inspect\n\nshardprep inspect tfrecords/dogs_vs_cats --json\n\n"
    "shardprep inspect tfrecords/bccd --boxes sheet.png"
)


def run(call: Call, *, as_json: bool) -> None:
    """Show the splits, classes and totals of a dataset.

    Reads the manifest and the item table. Shards are read only for boxes.
    """
    facts = call()
    if "boxes" in call.options:
        console(stderr=True).notice(f"drawn: {call.options['boxes']}")
    if as_json:
        print_json(facts)
        return
    from shardprep.cli.show.summary import print_facts

    terminal = console()
    print_facts(terminal, facts)
    for i, finding in enumerate(facts.findings):
        terminal.entry("" if i else "findings", finding)
