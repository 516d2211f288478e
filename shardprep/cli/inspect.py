"""`shardprep inspect`: what a dataset holds."""

from __future__ import annotations

from shardprep.cli import options as o
from shardprep.cli.streams import console, print_json

EPILOG = "Examples:\n\nshardprep inspect\n\nshardprep inspect tfrecords/dogs_vs_cats --json"


def inspect(
    dataset: o.Dataset = None,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Show what a dataset holds. Reads its manifest and item table, never the shards."""
    from shardprep.cli.resolve import dataset_at
    from shardprep.dataset.describe import read_facts
    from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE
    from shardprep.dataset.remote import documents_of

    found = dataset_at(dataset)
    facts = read_facts(documents_of(found, (SCHEMA_FILE, ITEMS_FILE)), str(found))
    if as_json:
        print_json(facts)
        return
    from shardprep.cli.display.summary import print_facts

    print_facts(console(), facts)
