"""The changes of a comparison, as a table of their kinds and the first of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardprep.cli.show.console import plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardprep.cli.show.console import Terminal
    from shardprep.dataset.diff import Difference
    from shardprep.dataset.source_difference import SourceDifference

HASH_DIGITS = 12
"""Hex digits of a SHA-256 that are shown."""
_SHOWN = 3
"""Changes of one kind."""


def print_changes(
    terminal: Terminal,
    found: Difference | SourceDifference,
    meanings: Mapping[str, str],
    line: Callable[[Any], str],
) -> None:
    """Print how many changes there are of each kind, and the first ones in the words of `line`."""
    kinds = {kind: number for kind, number in found.num_changes.items() if number}
    if kinds:
        table = plain_table("change", "items", "what it means", left=("what it means",))
        for kind, number in kinds.items():
            table.add_row(kind, f"{number:,}", meanings[kind])
        terminal.print(table)
    for kind, number in kinds.items():
        for i, change in enumerate(found.some(kind, _SHOWN)):
            terminal.entry(kind if i == 0 else "", line(change))
        if number > _SHOWN:
            more = f"and {number - _SHOWN:,} more; --json lists them all"
            terminal.entry("", more, style="dim")
