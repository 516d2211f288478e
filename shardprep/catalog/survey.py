"""What `shardprep init` sees in a source, and the recipe that follows from it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from shardprep.catalog.catalog import no_image
from shardprep.catalog.documents import TABLE_SUFFIXES, Documents
from shardprep.catalog.labels import (
    auto_labels,
    flag_columns,
    label_keys,
    match_table,
    parse_label_rule,
)
from shardprep.catalog.splits import given_split
from shardprep.catalog.targets import TargetSpec, make_targets
from shardprep.dataset.schema import TargetKind  # noqa: TC001 - a survey is JSON, and its types are read
from shardprep.errors import SourceError, printable, printable_json
from shardprep.recipe.recipe import make_recipe
from shardprep.source.extent import ZipExtent
from shardprep.source.limits import SourceLimits
from shardprep.source.listing import Member, list_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shardprep.catalog.labels import Labelling
    from shardprep.catalog.table import Table

_RULES = ("folder:1", "folder:2", "prefix")
_MOST_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class RuleSurvey:
    """What one way to find labels would give."""

    rule: str
    """As `--labels` takes it."""
    num_labelled: int
    num_classes: int
    """Different cells: class names, numbers or texts."""
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """What one CSV has to do with the images."""

    name: str
    num_rows: int
    columns: tuple[str, ...]
    id_column: str
    """The column that holds names of images, "" where none does."""
    num_matched: int
    """Images that have a row."""
    problem: str = ""
    """Why its rows cannot be told to images."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies in a source."""

    source: str
    num_images: int
    num_bytes: int
    """Of the images, as they are."""
    suffixes: dict[str, int]
    splits: dict[str, int]
    """Images by the split that folders give."""
    tables: tuple[TableSurvey, ...]
    rules: tuple[RuleSurvey, ...]
    chosen: str
    """The rule that auto takes."""
    target: TargetKind
    classes: dict[str, int]
    """Images by class, in label order."""
    others: dict[str, int]
    """Members that are no images, by suffix."""
    skipped: dict[str, int]
    """Members left out, by reason."""
    follow_links: bool
    """Whether links that lead outside were followed."""
    num_doubles: int
    """Images that, by size and CRC-32, are there already."""


def survey_source(
    source: Path | str,
    work_dir: Path,
    notice: Callable[[str], None],
    *,
    follow_links: bool = False,
) -> Survey:
    """Return what lies in a source.

    Arguments and errors are those of `list_source`; `follow_links` is one of its limits.
    """
    limits = SourceLimits(follow_links=follow_links)
    listing = list_source(source, work_dir, notice, limits=limits)
    if not listing.images:
        raise no_image(str(source), listing)
    keys = [member.key for member in listing.images]
    tables = Documents(listing.others, make_recipe({"source": str(source)}, "init")).tables()
    chosen = auto_labels(keys, tables)
    labellings = [label_keys(keys, parse_label_rule(rule), ()) for rule in _RULES]
    labellings += [found for table in tables if (found := _by_table(keys, table))]
    spec = TargetSpec(kind="auto" if chosen.match else "class")
    targets = make_targets(keys, chosen.names, spec, chosen.table_names)
    counts: Counter[int] = Counter()
    for value in targets.values:
        counts.update(value if isinstance(value, tuple) else [value] if type(value) is int else [])
    return Survey(
        source=str(source),
        num_images=len(keys),
        num_bytes=sum(member.extent.num_bytes for member in listing.images),
        suffixes=_suffixes(listing.images),
        splits=dict(Counter(given_split(key.split("/")[:-1]) or "train" for key in keys)),
        tables=tuple(_table(keys, table) for table in tables),
        rules=tuple(_rule(one) for one in labellings if any(one.names)),
        chosen=chosen.rule,
        target=targets.kind,
        classes={name: counts[i] for i, name in enumerate(targets.names)},
        others=_suffixes([m for m in listing.others if not m.key.lower().endswith(TABLE_SUFFIXES)]),
        skipped=dict(Counter(one.reason for one in listing.skipped)),
        follow_links=follow_links,
        num_doubles=_num_doubles(listing.images),
    )


def recipe_text(survey: Survey) -> str:
    """Return the recipe of a survey as the text of a commented `shardprep.toml`."""
    size = f"{survey.num_images:,} images, {survey.num_bytes / 1e6:,.1f} MB"
    lines = [
        "# What `shardprep build` makes. A flag on the command line wins over this file;",
        "# `shardprep build --help` lists them; all that are not of one run alone are keys here.",
        "",
        f"# {size}.",
        f"source = {_quoted(survey.source)}",
        "",
        *(
            ["# Links that lead outside of the folder.", "follow_links = true", ""]
            * survey.follow_links
        ),
        "# Width x height of the stored images; how they come to it: crop, pad, stretch, within.",
        'size = "224x224"',
        'fit = "crop"',
        "",
        *_label_lines(survey),
        "",
        *_split_lines(survey),
        "",
        "# Shards of the largest split; without this, about 128 MiB each.",
        "# shards = 20",
    ]
    if survey.num_doubles:
        lines += ["", f"# {survey.num_doubles:,} images are there twice.", "# dedup = true"]
    # Comments may say what a file is called; in strings there is nothing more to escape.
    return "\n".join(map(printable, lines)) + "\n"


def _label_lines(survey: Survey) -> list[str]:
    if survey.chosen == "none":
        lines = [
            "# No labels were found: folder, prefix, regex:PATTERN or csv:FILE:ID:LABEL would",
            "# say where they are.",
        ]
    else:
        lines = ["# Where labels are found."]
    if survey.classes:
        names = list(survey.classes)
        shown = ", ".join(names[:6]) + (f", … {len(names):,} classes" if names[6:] else "")
        lines.append(f"# {' '.join(shown.split())}")
    for rule in survey.rules:
        if rule.rule != survey.chosen:
            found = f"{rule.num_labelled:,} images, {rule.num_classes:,} different"
            lines.append(f"# {rule.rule} would label {found}.")
    lines.append(f"labels = {_quoted(survey.chosen)}")
    if survey.target not in ("class", "none"):
        lines.append(f"target = {_quoted(survey.target)}")
    return lines


def _split_lines(survey: Survey) -> list[str]:
    given = ", ".join(f"{count:,} {split}" for split, count in survey.splits.items())
    lines = [f"# Folders give {given}; this would cut them anew:"]
    ratios = "train=0.9,validation=0.1" if "test" in survey.splits else ""
    lines.append(f"# split = {_quoted(ratios or 'train=0.8,validation=0.1,test=0.1')}")
    return lines


def _quoted(text: str) -> str:
    """Return a TOML string; its basic strings escape as JSON's do."""
    return printable_json(json.dumps(text, ensure_ascii=False))


def _by_table(keys: Sequence[str], table: Table) -> Labelling | None:
    """Return what a table gives: by its label column, or by columns that are set or not."""
    try:
        return label_keys(keys, parse_label_rule(f"csv:{table.name}"), (table,))
    except SourceError:
        pass
    try:
        id_column = match_table(keys, table).id_column
        flags = flag_columns(table, id_column)
        rule = f"csv:{table.name}:{id_column}:{','.join(flags)}"
        return label_keys(keys, parse_label_rule(rule), (table,)) if len(flags) > 1 else None
    except SourceError:
        return None


def _table(keys: Sequence[str], table: Table) -> TableSurvey:
    try:
        match = match_table(keys, table)
    except SourceError as error:
        columns = table.header[:_MOST_COLUMNS]
        return TableSurvey(table.name, len(table.rows), columns, "", 0, error.what)
    matched = sum(row is not None for row in match.row_of)
    return TableSurvey(
        table.name, len(table.rows), table.header[:_MOST_COLUMNS], match.id_column, matched
    )


def _rule(labelling: Labelling) -> RuleSurvey:
    cells = Counter(cell for cell in labelling.names if cell is not None)
    shown = tuple(str(cell) for cell, _ in cells.most_common(3))
    return RuleSurvey(labelling.rule, cells.total(), len(cells), shown)


def _suffixes(members: Sequence[Member]) -> dict[str, int]:
    counts = Counter(PurePosixPath(m.key).suffix.lower() or "no suffix" for m in members)
    return dict(counts.most_common())


def _num_doubles(members: Sequence[Member]) -> int:
    marks = Counter(
        (member.extent.num_bytes, member.extent.crc32)
        for member in members
        if isinstance(member.extent, ZipExtent)
    )
    return sum(count - 1 for count in marks.values())
