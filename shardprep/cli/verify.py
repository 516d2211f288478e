"""`shardprep verify`: find and repair damage of a dataset."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import EXIT_PROBLEMS, console, picked, print_json
from shardprep.errors import counted, some_of

if TYPE_CHECKING:
    from shardprep.api.json_types import Problem, Verification
    from shardprep.cli.options import Call
    from shardprep.cli.show.console import Terminal
    from shardprep.dataset.diff import SourceChange, SourceDifference

EPILOG = (
    "Examples:\n\nshardprep verify\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --decode\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --repair --source dogs-vs-cats.zip\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --against dogs-vs-cats.zip"
)

_SHOWN = 5
"""Maximum number of printed problems of each kind."""


def run(call: Call, *, as_json: bool) -> None:
    """Check every byte, record, label and document of a dataset.

    Exits with 3 if problems are found or remain after --repair, or if the source of --against
    differs.
    """
    found = call()
    if not as_json:
        if found.before is not None:
            _print(console(), found.before)
        _print(console(), found)
        if found.against is not None:
            _print_difference(console(), found.against)
        decode, repair = (bool(call.options.get(name)) for name in ("decode", "repair"))
        _print_next(console(), found, decode=decode, repair=repair)
    else:
        from shardprep.api.json_types import VerifyJson

        summary = picked(VerifyJson, found, path=found.location)
        for name in ("repaired", "against"):
            if summary[name] is None:
                del summary[name]
        print_json(summary)
    if found.problems or (found.against is not None and not found.against.is_equal):
        raise typer.Exit(EXIT_PROBLEMS)


def _print(terminal: Terminal, found: Verification) -> None:
    from shardprep.storage.space import megabytes

    terminal.heading(found.location)
    if found.problems:
        _print_problems(terminal, found)
    if found.unknown:
        shown = f"{some_of(found.unknown)}: not part of the dataset, harmless"
        terminal.entry("unknown", shown)
    rate = found.num_bytes / max(found.elapsed_s, 1e-9)
    terminal.entry("time", f"{found.elapsed_s:.1f} s, {megabytes(rate)}/s")
    verdict = "no problem found"
    if found.problems:
        num_files = len({problem.file for problem in found.problems})
        verdict = f"{counted(len(found.problems), 'problem')} found in {counted(num_files, 'file')}"
    records = f"{counted(found.num_shards, 'shard')}, {counted(found.num_records, 'record')}"
    terminal.notice(
        f"{records}, {megabytes(found.num_bytes)} checked: {verdict}",
        style="red" if found.problems else "green",
    )
    if found.address:
        terminal.entry("not seen", "incomplete uploads: add a lifecycle rule that aborts them")


def _print_next(terminal: Terminal, found: Verification, *, decode: bool, repair: bool) -> None:
    """Print the next command to run; `decode` and `repair` are options of this run."""
    if found.problems and not repair:
        from shardprep.api.verify import repairing

        terminal.entry("next", f"{repairing(found)} rebuilds the damaged files from the source")
    elif found.against is not None and not found.against.is_equal:
        command = f"shardprep build {found.against.source} --reuse {found.location}"
        terminal.entry("next", f"{command} with another --version builds from the current source")
    elif not found.problems and not decode:
        command = f"shardprep verify {shlex.quote(found.location)} --decode"
        terminal.entry("next", f"{command} also checks the pixels of every image")


def _print_difference(terminal: Terminal, found: SourceDifference) -> None:
    from shardprep.cli.show.console import print_changes
    from shardprep.dataset.diff import SOURCE_MEANINGS

    terminal.entry("against", found.source)
    print_changes(terminal, found, SOURCE_MEANINGS, _difference_line)
    images = counted(found.num_before, "image")
    which = f"all {images}" if found.is_equal else f"{found.num_same:,} of {images}"
    style = "green" if found.is_equal else "red"
    terminal.notice(f"{which} are equal to the source, byte for byte", style=style)


def _difference_line(change: SourceChange) -> str:
    from shardprep.cli.show.console import HASH_DIGITS

    if change.kind == "changed":
        return f"{change.key}: {change.before[:HASH_DIGITS]} → {change.after[:HASH_DIGITS]}"
    if change.kind == "moved":
        return f"{change.key} → {change.after}"
    return f"{change.key}: {change.after}" if change.kind == "unreadable" else change.key


def _print_problems(terminal: Terminal, verification: Verification) -> None:
    """Print the number of problems of each kind, and the first problems of each."""
    from shardprep.cli.show.console import plain_table

    by_kind = verification.by_kind
    table = plain_table("problem", "found", "what it means", left=("what it means",))
    for kind, found in by_kind.items():
        table.add_row(kind, f"{len(found):,}", found[0].meaning)
    terminal.print(table)
    # Outside a terminal, each line starts with its kind, so that grep finds it.
    for kind, found in by_kind.items():
        for i, problem in enumerate(found[:_SHOWN]):
            terminal.entry(kind if i == 0 or not terminal.is_terminal else "", _line(problem))
        if found[_SHOWN:]:
            more = f"and {len(found) - _SHOWN:,} more; --json lists them all"
            terminal.entry("", more, style="dim")


def _line(problem: Problem) -> str:
    """Return a line about a problem: file, record, offset, key, and message."""
    where = [problem.file]
    if problem.record is not None:
        where.append(f"record {problem.record:,}")
    if problem.offset is not None:
        where.append(f"offset {problem.offset:,}")
    if problem.key:
        where.append(problem.key)
    return f"{', '.join(where)}: {problem.what}"
