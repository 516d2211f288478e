"""`shardprep init`: write a recipe for a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import console, print_json
from shardprep.errors import counted

if TYPE_CHECKING:
    from rich.table import Table

    from shardprep.api.json_types import Survey
    from shardprep.cli.options import Call
    from shardprep.cli.show.console import Terminal

_MOST_RULES = 8
_MOST_LETTERS = 16
EPILOG = "Example:\n\nshardprep init dogs-vs-cats.zip && shardprep build"


def run(call: Call, *, as_json: bool) -> None:
    """Show the content of a source, and write a shardprep.toml for it."""
    survey = call()
    if as_json:
        print_json(survey)
        return
    from shardprep.recipe.document import RECIPE_FILE

    _print(console(), survey)
    typer.echo(f"wrote {RECIPE_FILE}; next: shardprep build")


def _print(terminal: Terminal, survey: Survey) -> None:
    """Print the content of a source, and the result of each label rule."""
    from shardprep.cli.show.console import counts_line
    from shardprep.storage.space import megabytes

    terminal.heading(survey.source)
    size = f"{survey.num_images:,}, {megabytes(survey.num_bytes)}"
    terminal.entry("images", f"{size} ({counts_line(survey.suffixes)})")
    terminal.entry("splits", counts_line(survey.splits))
    for table in survey.tables:
        fits = table.problem
        if table.id_column:
            fits = f"column {table.id_column!r} names {table.num_matched:,} images"
        columns = ", ".join(table.columns)
        rows = counted(table.num_rows, "row")
        terminal.entry("table", f"{table.name}: {rows}, {fits} ({columns})")
    for title, counts in (("others", survey.others), ("skipped", survey.skipped)):
        if counts:
            terminal.entry(title, counts_line(counts))
    if survey.num_doubles:
        terminal.entry("twice", f"{survey.num_doubles:,} images; --dedup leaves them out")
    if survey.rules:
        terminal.print(_rule_table(survey))
    _print_found(terminal, survey)


def _print_found(terminal: Terminal, survey: Survey) -> None:
    for sign in survey.annotations:
        mark = " *" if sign is survey.taken else ""
        terminal.entry(sign.key, f"{sign.flag}{mark} ({sign.how})")
    if survey.classes:
        shown = [f"{name} ({count:,})" for name, count in list(survey.classes.items())[:6]]
        more = f", … {len(survey.classes):,} classes" if len(survey.classes) > 6 else ""
        terminal.entry("classes", ", ".join(shown) + more)
    elif survey.target == "none" and survey.taken is None:
        terminal.entry("classes", "none found: set labels in shardprep.toml")
    for line in survey.findings:
        terminal.entry("note", line)


def _rule_table(survey: Survey) -> Table:
    from shardprep.cli.show.console import plain_table

    rules = plain_table("labels by", "labelled", "classes", "such as", left=("such as",))
    rules.columns[0].overflow = "fold"
    for rule in survey.rules[:_MOST_RULES]:
        mark = " *" if rule.keys == {"labels": survey.chosen} else ""
        examples = ", ".join(
            text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
            for text in rule.examples
        )
        name = rule.rule if len(rule.keys) == 1 else rule.flags
        numbers = f"{rule.num_labelled:,}", f"{rule.num_classes:,}"
        rules.add_row(name + mark, *numbers, examples)
    return rules
