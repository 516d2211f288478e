"""`shardprep inspect`: what a dataset holds."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from shardprep import options as o
from shardprep.commands.terminal import console

EPILOG = "Examples:\n\nshardprep inspect\n\nshardprep inspect tfrecords/dogs_vs_cats --json"


def inspect(
    dataset: o.Dataset = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a dataset holds. Reads its manifest and item table, never the shards."""
    from shardprep.arguments import dataset_folder
    from shardprep.report.facts import read_facts

    facts = read_facts(dataset_folder(dataset))
    if as_json:
        typer.echo(json.dumps(facts.as_json(), indent=2, ensure_ascii=False))
        return
    from shardprep.report.summary import print_facts

    print_facts(console(), facts)
