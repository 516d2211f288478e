"""What all commands share: the terminal, and how the result of a build is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from shardprep.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from shardprep.complete import BuildResult


def console(*, stderr: bool = False) -> Console:
    """Return the terminal: results go to stdout, progress and notices to stderr."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def notice(terminal: Console, line: str) -> None:
    """Print one line that others may have written."""
    terminal.print(printable(line), highlight=False, markup=False, soft_wrap=True)


def show_result(result: BuildResult, *, as_json: bool) -> None:
    """Print what a build has come to."""
    from shardprep import stages
    from shardprep.dataset import read_schema
    from shardprep.report.facts import read_rejections
    from shardprep.report.summary import print_result

    seconds = stages.taken()
    if as_json:
        profile = {"profile": {name: round(value, 4) for name, value in seconds.items()}}
        summary = {
            "path": result.location,
            "was_there": result.was_there,
            "num_new_items": result.num_new_items,
            "elapsed_s": round(result.elapsed_s, 3),
            "manifest": result.manifest.model_dump(mode="json"),
            **(profile if stages.is_on() else {}),
        }
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    schema = read_schema(result.path)
    print_result(console(), result, schema, read_rejections(result.path))
    if stages.is_on() and result.num_new_items:
        from shardprep.report.profile import print_profile

        print_profile(console(), seconds, result.num_new_items, result.elapsed_s)
