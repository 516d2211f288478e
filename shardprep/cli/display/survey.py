"""A survey in words and tables, for a terminal of 80 columns or more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.display.summary import (
    counts_line,
    megabytes,
    plain_table,
    print_line,
    print_title,
)

if TYPE_CHECKING:
    from rich.console import Console

    from shardprep.catalog.survey import Survey

_MOST_RULES = 8
_MOST_LETTERS = 16


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def print_survey(console: Console, survey: Survey) -> None:
    """Show what a source holds, and what each way to find labels would give."""
    print_title(console, survey.source)
    size = megabytes(survey.num_bytes)
    formats = counts_line(survey.suffixes)
    print_line(console, "images", f"{survey.num_images:,}, {size} ({formats})")
    print_line(console, "splits", counts_line(survey.splits))
    for table in survey.tables:
        fits = (
            f"column {table.id_column!r} names {table.num_matched:,} images"
            if table.id_column
            else table.problem
        )
        columns = ", ".join(table.columns)
        print_line(console, "table", f"{table.name}: {table.num_rows:,} rows, {fits} ({columns})")
    if survey.others:
        print_line(console, "others", counts_line(survey.others))
    if survey.skipped:
        print_line(console, "skipped", counts_line(survey.skipped))
    if survey.num_doubles:
        print_line(console, "twice", f"{survey.num_doubles:,} images; --dedup leaves them out")
    rules = plain_table("labels by", "labelled", "classes", "such as")
    rules.columns[3].justify = "left"
    rules.columns[0].overflow = "fold"
    for rule in survey.rules[:_MOST_RULES]:
        mark = " *" if rule.keys == {"labels": survey.chosen} else ""
        examples = ", ".join(_short(text) for text in rule.examples)
        counts = f"{rule.num_labelled:,}", f"{rule.num_classes:,}"
        name = rule.rule if len(rule.keys) == 1 else rule.flags
        rules.add_row(name + mark, *counts, examples)
    if survey.rules:
        console.print(rules)
    if survey.classes:
        shown = [f"{name} ({count:,})" for name, count in list(survey.classes.items())[:6]]
        more = f", … {len(survey.classes):,} classes" if len(survey.classes) > 6 else ""
        print_line(console, "classes", ", ".join(shown) + more)
    elif survey.target == "none":
        print_line(console, "classes", "none found: say where labels are in shardprep.toml")
    for line in survey.findings:
        print_line(console, "note", line)
