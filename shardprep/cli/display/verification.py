"""The problems that verify found, for a terminal of 80 columns or more."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from rich.text import Text

from shardprep.cli.display.summary import megabytes, plain_table, print_line, print_title
from shardprep.verifier.problem import MEANINGS, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from shardprep.verifier.problem import Verification

_SHOWN = 5
"""Problems of one kind."""
_SHOWN_FILES = 4
UPLOADS = "let a rule of the bucket end them"


def print_verification(
    console: Console, found: Verification, *, decode: bool, repair: bool
) -> None:
    """Show what was checked and what is wrong; `decode` and `repair` are asked for already."""
    print_title(console, found.location)
    if found.problems:
        _print_problems(console, found.problems)
    if found.unknown:
        shown = ", ".join(found.unknown[:_SHOWN_FILES])
        more = len(found.unknown) - _SHOWN_FILES
        shown += f" and {more:,} more" if more > 0 else ""
        print_line(console, "not ours", f"{shown}: no part of the dataset, and no harm to it")
    rate = found.num_bytes / max(found.elapsed_s, 1e-9)
    print_line(console, "time", f"{found.elapsed_s:.1f} s, {megabytes(rate)}/s")
    console.print(Text(summary(found), "red" if found.problems else "green"), soft_wrap=True)
    if found.address:
        print_line(console, "not seen", f"uploads that broke off: {UPLOADS}")
    if found.problems and not repair:
        print_line(
            console,
            "next",
            f"shardprep verify {found.location} --repair builds what is damaged again from the "
            "source",
        )
    elif not found.problems and not decode:
        print_line(console, "next", "--decode checks the pixels of every image as well")


def summary(found: Verification) -> str:
    """Return the finding in one line."""
    shards = f"{found.num_shards:,} {'shard' if found.num_shards == 1 else 'shards'}"
    records = f"{found.num_records:,} {'record' if found.num_records == 1 else 'records'}"
    number = len(found.problems)
    verdict = "no problem found"
    if number:
        files = len({problem.file for problem in found.problems})
        verdict = f"{number:,} {'problem' if number == 1 else 'problems'} found in "
        verdict += f"{files:,} {'file' if files == 1 else 'files'}"
    return f"{shards}, {records}, {megabytes(found.num_bytes)} checked: {verdict}"


def _print_problems(console: Console, problems: Sequence[Problem]) -> None:
    counts = Counter(problem.kind for problem in problems)
    table = plain_table("problem", "found", "what it means")
    table.columns[2].justify = "left"
    for kind, meaning in MEANINGS.items():
        if counts[kind]:
            table.add_row(kind, f"{counts[kind]:,}", meaning)
    console.print(table)
    by_kind: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_kind[problem.kind].append(problem)
    # Where there is no terminal each line is to be found by its kind.
    for kind in MEANINGS:
        for i, problem in enumerate(by_kind[kind][:_SHOWN]):
            is_named = i == 0 or not console.is_terminal
            print_line(console, kind if is_named else "", line(problem))
        more = len(by_kind[kind]) - _SHOWN
        if more > 0:
            print_line(console, "", f"and {more:,} more; --json lists them all", style="dim")


def line(problem: Problem) -> str:
    """Return a problem in words: file, record, offset, key, and what is wrong."""
    where = [problem.file]
    if problem.record is not None:
        where.append(f"record {problem.record:,}")
    if problem.offset is not None:
        where.append(f"offset {problem.offset:,}")
    if problem.key:
        where.append(problem.key)
    return f"{', '.join(where)}: {problem.what}"
