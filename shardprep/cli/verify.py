"""`shardprep verify`: whether a dataset is what was built, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import EXIT_PROBLEMS, bar, console, picked, print_json
from shardprep.errors import some_of

if TYPE_CHECKING:
    from shardprep.cli.display.console import Terminal
    from shardprep.commands.results import Problem, Verification

EPILOG = (
    "Examples:\n\nshardprep verify\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --decode\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --repair --source dogs-vs-cats.zip"
)

_SHOWN = 5
"""Problems of one kind."""


def verify(
    dataset: o.Dataset = None,
    decode: Annotated[bool, o.switch("--decode", "Decode every image as well.")] = False,
    repair: Annotated[
        bool,
        o.switch("--repair", "Build what is damaged again from the source, with the same bytes."),
    ] = False,
    source: Annotated[
        str | None,
        o.value(
            "Source that the dataset was built from, for --repair.",
            "SOURCE",
            "source of ./shardprep.toml",
        ),
    ] = None,
    workers: Annotated[int | None, o.workers("Number of processes that read.")] = None,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Check that a dataset is what was built: every byte, record, label and document.

    Exits with 3 where problems are found, or remain after --repair.
    """
    from shardprep.commands import resolve
    from shardprep.commands.progress import watched
    from shardprep.commands.verify import checks

    place, origin = resolve.dataset_at(dataset, damaged=True), None
    if repair:
        origin = resolve.repair_source(str(place), source)
    num_workers = resolve.num_workers(workers)
    with bar() as progress, watched(progress) as watch:
        for found in checks(place, origin, watch, decode=decode, num_workers=num_workers):
            if not as_json:
                _print(console(), found, decode=decode, repair=repair)
    if as_json:
        from shardprep.commands.results import VerifyJson

        more = {} if found.repaired is None else {"repaired": found.repaired}
        summary = picked(VerifyJson, found, path=found.location)
        del summary["repaired"]
        print_json({**summary, **more})
    if found.problems:
        raise typer.Exit(EXIT_PROBLEMS)


def _print(terminal: Terminal, found: Verification, *, decode: bool, repair: bool) -> None:
    """Print what was checked and what is wrong; `decode` and `repair` are asked for already."""
    from shardprep.cli.display.console import counted
    from shardprep.storage.space import megabytes

    terminal.heading(found.location)
    if found.problems:
        _print_problems(terminal, found)
    if found.unknown:
        shown = f"{some_of(found.unknown)}: no part of the dataset, and no harm to it"
        terminal.entry("not ours", shown)
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
        terminal.entry("not seen", "uploads that broke off: let a rule of the bucket end them")
    if found.problems and not repair:
        command = f"shardprep verify {found.location} --repair"
        terminal.entry("next", f"{command} builds what is damaged again from the source")
    elif not found.problems and not decode:
        terminal.entry("next", "--decode checks the pixels of every image as well")


def _print_problems(terminal: Terminal, verification: Verification) -> None:
    """Print how many there are of each kind, and the first ones."""
    from shardprep.cli.display.console import plain_table

    by_kind = verification.by_kind
    table = plain_table("problem", "found", "what it means", left=("what it means",))
    for kind, found in by_kind.items():
        table.add_row(kind, f"{len(found):,}", found[0].meaning)
    terminal.print(table)
    # Where there is no terminal each line is to be found by its kind.
    for kind, found in by_kind.items():
        for i, problem in enumerate(found[:_SHOWN]):
            terminal.entry(kind if i == 0 or not terminal.is_terminal else "", _line(problem))
        if found[_SHOWN:]:
            more = f"and {len(found) - _SHOWN:,} more; --json lists them all"
            terminal.entry("", more, style="dim")


def _line(problem: Problem) -> str:
    """Return a problem in words: file, record, offset, key, and what is wrong."""
    where = [problem.file]
    if problem.record is not None:
        where.append(f"record {problem.record:,}")
    if problem.offset is not None:
        where.append(f"offset {problem.offset:,}")
    if problem.key:
        where.append(problem.key)
    return f"{', '.join(where)}: {problem.what}"
