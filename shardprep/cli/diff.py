"""`shardprep diff`: compare two datasets item by item."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import EXIT_PROBLEMS, console, print_json
from shardprep.errors import counted

if TYPE_CHECKING:
    from shardprep.cli.options import Call
    from shardprep.cli.show.console import Terminal
    from shardprep.dataset.diff import Difference, ItemChange

EPILOG = (
    "Examples:\n\nshardprep diff tfrecords/pets/1.0.0 tfrecords/pets/1.1.0\n\n"
    "shardprep diff tfrecords/pets s3://bucket/sets/pets --json"
)


def run(call: Call, *, as_json: bool) -> None:
    """Show the differences between two datasets: items, splits, targets, classes, options.

    Reads the manifests and item tables. Where these cannot decide, it compares the records of
    shards that differ. Exits with 3 if records differ.
    """
    result = call()
    if as_json:
        print_json(result)
    else:
        _print(console(), result)
    if not result.is_equal:
        raise typer.Exit(EXIT_PROBLEMS)


def _print(terminal: Terminal, found: Difference) -> None:
    from shardprep.cli.show.console import print_changes
    from shardprep.dataset.diff import MEANINGS

    terminal.heading(found.before, f" → {found.after}")
    print_changes(terminal, found, MEANINGS, _line)
    for name in ("classes_added", "classes_removed"):
        if names := getattr(found, name):
            verb = name.removeprefix("classes_")
            terminal.entry("classes", f"{verb}: {', '.join(names)}")
    for title, lines in (("features", found.features), ("recipe", found.recipe)):
        for i, line in enumerate(lines):
            terminal.entry("" if i else title, line)
    records = f"{counted(found.num_before, 'record')} before, {found.num_after:,} after"
    verdict = "the same records" if found.is_equal else f"{found.num_same:,} items unchanged"
    if not found.is_equal and found.num_same == found.num_before == found.num_after:
        verdict = "the same items, but the shards differ (order, number of shards or encoding)"
    terminal.notice(f"{records}: {verdict}", style="green" if found.is_equal else "")


def _line(change: ItemChange) -> str:
    from shardprep.cli.show.console import HASH_DIGITS

    before, after = change.before, change.after
    if change.kind == "source":
        before, after = before[:HASH_DIGITS], after[:HASH_DIGITS]
    if change.kind == "record":
        before, after = f"{int(before):,}", f"{int(after):,} bytes"
        if change.before == change.after:
            after += ", other pixels"
    return f"{change.key}: {before or 'nothing'} → {after or 'nothing'}"
