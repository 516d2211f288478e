"""Candidates: possible ways to label a source, from which the user chooses."""

from __future__ import annotations

import contextlib
import glob
import itertools
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardprep.catalog.label_rules import auto_labels, label_keys
from shardprep.catalog.labels import (
    Labelling,
    are_classes,
    candidate_columns,
    have_several,
    label_by_columns,
    label_by_table,
)
from shardprep.catalog.names import find_masks, given_split
from shardprep.catalog.stacks import sample_keys, stack_patterns
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.row_matching import TableMatch, joined, match_table, united
from shardprep.catalog.tables.table import Table
from shardprep.catalog.target_proposals import has_texts, target_proposals
from shardprep.errors import SourceError, counted
from shardprep.recipe.rules import CsvRule, LabelRule

_MOST_PARTS = 6
"""Maximum number of sibling folders that count as parts of a source; more folders are classes."""
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to label a source or a part of it, with its result."""

    rule: str
    """The value of `--labels`."""
    num_labelled: int
    num_images: int
    """Number of images of the part, or of the whole source."""
    num_classes: int
    """Number of different labels: class names, numbers or texts."""
    examples: tuple[str, ...]
    """The most frequent labels, at most three."""
    root: str = ""
    """The value of `--root` that selects the part; "" for the whole source."""
    include: tuple[str, ...] = ()
    """The values of `--include` that select the part."""
    exclude: tuple[str, ...] = ()
    """The values of `--exclude` that remove the rest."""
    stack: str = ""
    """The value of `--stack` whose samples are labelled; "" for single images."""
    join: str = ""
    """The value of `--join` that adds the columns."""
    rows: str = ""
    """The value of `--rows` that stores all rows of an image."""
    pivot: str = ""
    """The value of `--pivot`; "" if a row has all targets of an image."""
    target: str = ""
    """The value of `--target`; "" to detect it."""
    unit: str = "class"
    """What `num_classes` counts: "class", "target" if each image has several, "text" or "row"."""

    @property
    def keys(self) -> dict[str, str | tuple[str, ...]]:
        keys: dict[str, str | tuple[str, ...]] = {
            "root": self.root,
            "include": self.include,
            "exclude": self.exclude,
            "stack": self.stack,
            "labels": self.rule,
            "join": (self.join,) if self.join else (),
            "rows": self.rows,
            "pivot": self.pivot,
            "target": self.target,
        }
        return {key: value for key, value in keys.items() if value}

    @property
    def is_likely(self) -> bool:
        return are_classes(self.num_classes, self.num_labelled)

    @property
    def counts(self) -> str:
        what = "stack" if self.stack else "image"
        labelled = f"{self.num_labelled:,} of {counted(self.num_images, what)}"
        return f"{labelled}, {counted(self.num_classes, self.unit)}"

    @property
    def flags(self) -> str:
        return " ".join(
            f"--{key} {shlex.quote(value)}"
            for key, values in self.keys.items()
            for value in ((values,) if isinstance(values, str) else values)
        )


def candidate(labelling: Labelling, **part: str | tuple[str, ...]) -> Candidate:
    """Return a candidate with this labelling; `part` sets `root`, `include` or `exclude`."""
    cells = Counter(cell for cell in labelling.names if cell is not None)
    shown = tuple(str(cell) for cell, _ in cells.most_common(3))
    counts = cells.total(), len(labelling.names), len(cells)
    return Candidate(labelling.rule, *counts, shown, **part)  # type: ignore[arg-type]


def path_candidates(index: KeyIndex) -> list[Candidate]:
    """Return the likely candidates by folders and file names.

    Candidates that would use folders of masks as classes are left out.
    """
    masks = find_masks(index.keys).no_classes
    rules = (LabelRule("folder"), LabelRule("folder", depth=2), LabelRule("prefix"))
    found = [candidate(label_keys(index, rule, ())) for rule in rules]
    return [one for one in found if one.is_likely and masks.isdisjoint(one.examples)]


def table_candidates(
    index: KeyIndex, table: Table, tables: Sequence[Table] = ()
) -> list[Candidate]:
    """Return a candidate for the label column of a table, or if unclear, for each likely column.

    `tables` are all tables, not united. The columns that a sample submission shares with this one
    are targets.
    """
    try:
        labelling = label_by_table(index, table, CsvRule((table.name,)))
    except SourceError:
        pass
    else:
        of_text = {"target": "text", "unit": "text"}
        return [candidate(labelling, **of_text if has_texts(table, labelling.columns[0]) else {})]
    try:
        match = match_ids(index, table)
    except SourceError:
        return []
    found = []
    for columns in candidate_columns(match):
        try:
            rule = CsvRule((table.name,), match.id_column, columns)
            one = candidate(label_by_columns(index.keys, match, rule))
        except SourceError:
            continue  # two rows of an image disagree
        if len(columns) > 1 or one.is_likely:
            found.append(one)
    found.sort(key=lambda one: -one.num_labelled)
    several = _target_candidates(index, match, tables)
    parts = [one for one in tables if one.name in dict(table.parts)] or [table]
    for own, other in itertools.product(parts, tables):
        with contextlib.suppress(SourceError):  # they share no column, or several
            if match.id_column not in other.header:
                more = match_table(index, joined(own, other, ""), match.id_column)
                new = more.table.header[len(table.header) :]
                there = _target_candidates(index, more, tables, new)
                several += [replace(one, join=other.name) for one in there]
    return [*dict.fromkeys((*several, *found, *_row_candidates(match)))]


def match_ids(index: KeyIndex, table: Table) -> TableMatch:
    """Return the rows of the images, by a column or a path of columns; SourceError if none fits."""
    try:
        return match_table(index, table)
    except SourceError:
        for ids in _paths_of_columns(index, table):
            with contextlib.suppress(SourceError):
                return match_table(index, table, ids)
        raise


def _paths_of_columns(index: KeyIndex, table: Table) -> Iterator[str]:
    """Yield paths of columns that fit an image of the first row, such as `{dataset}/{image}`."""
    fields = [f"{{{title}}}" for title in table.header]
    row = table.rows[0] if table.rows else []
    for cell, field in zip(row, fields, strict=False):
        for at in index.find(cell):
            folders = index.keys[at].split("/")[:-1]
            parts = [fields[row.index(one)] if one in row else one for one in folders]
            if first := [i for i, part in enumerate(parts) if part in fields]:
                yield "/".join([*parts[first[0] :], field])


def _row_candidates(match: TableMatch) -> list[Candidate]:
    """Return a candidate for the columns in which the rows of an image differ, if there are any."""
    cells = {title: match.table.cells(i).coded() for i, title in enumerate(match.table.header)}
    titles = [one for one, column in cells.items() if have_several(match.key_of, column)]
    titles = [one for one in titles if not one.lower().endswith("id")]
    rows = match.table.label_rule(match.id_column, titles)
    counts = int((match.row_of >= 0).sum()), len(match.row_of), int((match.key_of >= 0).sum())
    is_likely = titles and 2 * counts[0] > counts[1]
    return [Candidate("none", *counts, (), rows=rows, unit="row")] if is_likely else []


def _target_candidates(
    index: KeyIndex, match: TableMatch, tables: Sequence[Table], titles: Sequence[str] = ()
) -> list[Candidate]:
    """Return the proposals for targets in a matched table; `titles` are its possible targets."""
    found = []
    for proposal in target_proposals(match, tables, titles or match.table.header):
        own = proposal._replace(files=(match.table.name,), id_column=match.id_column)
        try:
            labelling = label_by_columns(index.keys, match, own)
        except SourceError:
            continue
        one = candidate(labelling, pivot=own.pivot, target=own.target.replace("auto", ""))
        number = len(labelling.cells) or one.num_classes
        unit = "target" if labelling.cells else "text" if "text" in own.target else "class"
        examples = tuple(labelling.cells)[:_MOST_SHOWN] or one.examples
        found.append(replace(one, num_classes=number, unit=unit, examples=examples))
    return found


def stack_candidates(
    keys: Sequence[str], tables: Sequence[Table], patterns: Sequence[str] | None = None
) -> list[Candidate]:
    """Return candidates for the samples of stacks; `patterns` are by default `stack_patterns`."""
    return [
        replace(one, stack=pattern)
        for pattern in (stack_patterns(keys, tables) if patterns is None else patterns)
        for index in [KeyIndex(sample_keys(keys, pattern))]
        for table in united(index, tables)
        for one in table_candidates(index, table, tables)
        if 2 * one.num_labelled > one.num_images
    ]


def part_candidates(keys: Sequence[str], tables: Sequence[Table]) -> list[Candidate]:
    """Return candidates for the parts of a source that `auto` can label.

    A part is all images except masks, all folders of splits, or one of a few sibling folders. Call
    this only if `auto` cannot label the whole source.
    """
    found: list[Candidate] = []
    if masks := find_masks(keys).num_masks:
        images = [key for key in keys if masks.keys().isdisjoint(key.split("/")[:-1])]
        found += _labelled(images, tables, exclude=tuple(f"{name}/*" for name in masks))
    parts = _folders_side_by_side(keys)
    splits = [path for path in parts if given_split([path.rpartition("/")[2]])]
    if 1 < len(splits) < len(parts):
        images = sorted(key for path in splits for key in parts[path])
        globs = tuple(f"{glob.escape(path)}/*" for path in splits)
        if together := _labelled(images, tables, include=globs):
            found += together
            parts = {path: part for path, part in parts.items() if path not in splits}
    for path, part in parts.items():
        found += _labelled(part, tables, root=glob.escape(path))
    return found


def label_findings(index: KeyIndex, tables: Sequence[Table]) -> list[str]:
    """Return a line about each of the first three candidates, and a line about the others."""
    found = stack_candidates(index.keys, tables)
    found += [
        one for table in united(index, tables) for one in table_candidates(index, table, tables)
    ]
    found += part_candidates(index.keys, tables)
    lines = [f"labels could be {one.flags} ({one.counts})" for one in found[:_MOST_SHOWN]]
    if found[_MOST_SHOWN:]:
        more = len(found) - _MOST_SHOWN
        lines.append(f"{more:,} more ways to label the source: shardprep init lists them")
    return lines


def _labelled(
    keys: Sequence[str], tables: Sequence[Table], **part: str | tuple[str, ...]
) -> list[Candidate]:
    labelling = auto_labels(KeyIndex(keys), tables)
    return [] if labelling.rule == "none" else [candidate(labelling, **part)]


def _folders_side_by_side(keys: Sequence[str]) -> dict[str, list[str]]:
    folders = [key.split("/")[:-1] for key in keys]
    depth = 0
    while all(len(folder) > depth and folder[depth] == folders[0][depth] for folder in folders):
        depth += 1
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for key, folder in zip(keys, folders, strict=True):
        if len(folder) > depth:
            parts["/".join(folder[: depth + 1])].append(key)
    return dict(parts) if len(parts) <= _MOST_PARTS else {}
