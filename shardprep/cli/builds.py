"""The commands that write a dataset or prepare it: build, finalize, init and sample."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import console, picked, print_json
from shardprep.errors import OptionName, counted

if TYPE_CHECKING:
    from shardprep.api.builds import Plan, Sample
    from shardprep.api.json_types import Survey
    from shardprep.cli.console import Terminal
    from shardprep.cli.options import Call

_MOST_RULES = 8


def build(call: Call, *, as_json: bool) -> None:
    """Turn raw images into TFRecord shards.

    If a build is interrupted, the same command continues it.

    Examples:
        shardprep build dogs-vs-cats.zip --shards 20
        shardprep build photos/ --size 256x256 --fit pad --split validation=0.1
        shardprep build kaggle:dog-breed-identification --labels csv:labels.csv:id:breed
        shardprep build photos-v2.zip --name photos --version 1.1.0 --reuse tfrecords/photos
        shardprep build photos.zip --out /shared/tfrecords --part 3/16
    """
    result = call()  # first, as it starts workers, which import while this process imports
    if call.keywords.get("dry_run"):
        _show_plan(result, as_json=as_json)
        if (file := call.keywords.get("items_out")) and not as_json:
            console().notice(f"wrote {file}; to build from it: {OptionName('items', str(file))}")
        return
    from shardprep.cli.summary import show_part, show_result

    show = show_part if "part" in call.keywords else show_result
    show(result, as_json=as_json)


def _show_plan(found: Plan, *, as_json: bool) -> None:
    from shardprep.api.json_types import PlanJson
    from shardprep.cli.summary import print_plan

    if as_json:
        only_of_parts = {"part", "num_all_shards"}
        only_annotated = {
            "annotations_from", "object_classes", "num_objects", "dropped", "unmatched",
            "num_masks",
        }  # fmt: skip
        summary = picked(PlanJson, found, part=str(found.part))
        lacking = only_of_parts if found.part is None else set()
        lacking |= only_annotated if found.plan.annotations is None else set()
        print_json({key: value for key, value in summary.items() if key not in lacking})
        return
    plan = found.plan
    if found.part is not None:
        shards = f"{len(plan.shards):,} of {counted(found.num_all_shards, 'shard')}"
        typer.echo(f"part {found.part}: {shards}")
    print_plan(console(), plan)


def finalize(call: Call, *, as_json: bool) -> None:
    """Join the shards of `build --part` into a dataset, when all parts are done.

    The source and its options are not needed. If shards are missing, the error names the parts to
    run again.

    Examples:
        shardprep finalize
        shardprep finalize tfrecords/dogs_vs_cats
    """
    from shardprep.cli.summary import show_result

    show_result(call(), as_json=as_json)


def sample(found: Sample) -> None:
    """Write a small archive in the layout of a Kaggle competition, to try shardprep offline.

    Example:
        shardprep sample demo && cd demo && shardprep build --shards 20
    """
    from shardprep.storage.space import megabytes

    console().notice(f"{found.path} ({megabytes(found.num_bytes)}) and {found.recipe}")
    there = "" if found.path.parent == Path() else f"cd {found.path.parent} && "
    console().notice(f"next: {there}shardprep build --shards 20")


def init(survey: Survey) -> None:
    """Show the content of a source, and write a shardprep.toml for it.

    Example:
        shardprep init dogs-vs-cats.zip && shardprep build
    """
    from shardprep.recipe.document import RECIPE_FILE

    _print_survey(console(), survey)
    typer.echo(f"wrote {RECIPE_FILE}; next: shardprep build")


def _print_survey(terminal: Terminal, survey: Survey) -> None:
    from shardprep.cli.console import counts_line
    from shardprep.storage.space import megabytes

    terminal.heading(survey.source)
    size = f"{survey.num_images:,}, {megabytes(survey.num_bytes)}"
    terminal.entry("images", f"{size} ({counts_line(survey.suffixes)})")
    terminal.entry("splits", counts_line(survey.splits))
    for table in survey.tables:
        fits = table.problem
        if table.id_column:
            fits = f"column {table.id_column!r} names {counted(table.num_matched, 'image')}"
        columns = ", ".join(table.columns)
        rows = counted(table.num_rows, "row")
        terminal.entry("table", f"{table.name}: {rows}, {fits} ({columns})")
    for key, (value, *others) in survey.proposals.items():
        more = f" (or {', '.join(others)})" if others else ""
        terminal.entry("option", f"{OptionName(key)} {shlex.quote(value)}{more}")
    for title, counts in (("others", survey.others), ("skipped", survey.skipped)):
        if counts:
            terminal.entry(title, counts_line(counts))
    if survey.num_doubles:
        terminal.entry("twice", f"{counted(survey.num_doubles, 'image')}; --dedup leaves them out")
    _print_classes(terminal, survey)


def _print_classes(terminal: Terminal, survey: Survey) -> None:
    if survey.decided:
        terminal.entry("decided", survey.facts()["decided"])
    elif survey.chosen != "none":
        terminal.entry("labels", survey.chosen)
    for one in survey.choices:
        terminal.entry("choose", f"{one.flags} ({one.why})")
    for other in survey.rules[:_MOST_RULES]:
        terminal.entry("or", f"{other.flags} ({other.why})")
    if survey.classes:
        shown = [f"{name} ({count:,})" for name, count in list(survey.classes.items())[:6]]
        more = f", … {len(survey.classes):,} classes" if len(survey.classes) > 6 else ""
        terminal.entry("classes", ", ".join(shown) + more)
    elif survey.target == "none" and not survey.is_settled:
        terminal.entry("classes", "none found: set labels in shardprep.toml")
    for line in survey.findings:
        terminal.entry("note", line)
