"""Candidates: readings that label a source or a part of it, from which the user chooses."""

from __future__ import annotations

import contextlib
import glob
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from posixpath import commonpath

from shardprep.catalog.decision.box_documents import MOST_LISTS, ODD_SIGNS, first_rows
from shardprep.catalog.decision.column_evidence import STRONG, LabelColumns, found_columns
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.label_rules import label_keys
from shardprep.catalog.labels import Labelling, are_classes, have_several
from shardprep.catalog.names import find_masks, stem
from shardprep.catalog.objects.detect import text_files
from shardprep.catalog.stacks import sample_keys, stack_patterns
from shardprep.catalog.tables.key_index import SUBMISSION, KeyIndex
from shardprep.catalog.tables.row_matching import TableMatch, joined, match_ids, match_table
from shardprep.catalog.tables.table import Table
from shardprep.catalog.tables.united_tables import united
from shardprep.errors import SourceError, counted
from shardprep.recipe.rules import LabelRule

_MOST_PARTS = 6
"""If a source has more sibling folders than this, none is proposed as `--root`."""


def candidates(view: View) -> list[Reading]:
    """Return candidates from stacks, tables and texts, and from paths if `auto` finds no labels."""
    tables = view.documents.tables
    found = stack_candidates(view.index.keys, tables)
    found += [one for table in view.tables for one in table_candidates(view.index, table, tables)]
    if pattern := text_files(view.index.keys, view.documents):
        options = {"labels": f"text:{pattern}", "target": "text"}
        found.append(Reading(options, "a text of each image"))
    return found if view.automatic.rule != "none" else [*found, *path_candidates(view)]


def path_candidates(view: View) -> Iterator[Reading]:
    """Yield readings with folders as labels, and readings with a single folder as the root."""
    masks = find_masks(view.index.keys).no_classes
    for depth in (1, 2):
        labelling = label_keys(view.index, LabelRule("folder", depth=depth), ())
        names = labelling.names.counts()
        is_whole = 2 * sum(names.values()) > len(labelling.names)
        if is_whole and masks.isdisjoint(names) and are_classes(len(names), sum(names.values())):
            yield Reading({"labels": labelling.rule}, _counts(labelling))
    depth = len([one for one in commonpath(view.folders).split("/") if one])
    parts = {"/".join(path.split("/")[: depth + 1]) for path in view.folders} - {""}
    for path in sorted(parts) if 1 < len(parts) <= _MOST_PARTS else ():
        root = {"root": glob.escape(path)}
        labelling = view.of(view.recipe.with_rules(**root)).automatic
        if labelling.rule != "none":
            yield Reading({**root, "labels": labelling.rule}, _counts(labelling))


def _counts(labelling: Labelling) -> str:
    names = labelling.names.counts()
    images = f"{sum(names.values()):,} of {counted(len(labelling.names), 'image')}"
    return f"{images}, {counted(len(names), 'class', 'classes')}"


def table_candidates(index: KeyIndex, table: Table, tables: Sequence[Table]) -> list[Reading]:
    """Return the candidates for columns of a table, the likeliest first; [] if no row has an image.

    Candidates with columns of another table follow, with the option `join`. If the rows of an image
    differ, the last candidate stores all rows by the option `rows`.
    """
    try:
        match = match_ids(index, table)
    except SourceError:
        return []
    if not (match.row_of >= 0).any():
        return []
    readings = _readings(found_columns(match, index, tables))
    parts = [one for one in tables if one.name in dict(table.parts)] or [table]
    others = [one for one in tables if not SUBMISSION.search(one.name)]
    for own, other in itertools.product(parts, others):
        with contextlib.suppress(SourceError):  # no shared column, or several
            if match.id_column not in other.header:
                more = match_table(index, joined(own, other, ""), match.id_column)
                found = found_columns(more, index, tables, more.table.header[len(own.header) :])
                together = [one for one in found if len(one.titles) > 1]
                readings += _readings(together, join=(other.name,))
    return [*readings, *_row_candidates(match)]


def json_candidates(view: View) -> list[Reading]:
    """Return readings of labels in JSON lists that name images."""
    files = [x for x in view.documents.members(".json") if not view.index.find(stem(x.key))]
    files = [one for one in files if ODD_SIGNS.isdisjoint(one.key)]
    known = defaultdict[frozenset[str], list[str]](list)
    for one in files if len(files) <= MOST_LISTS else ():
        for row in first_rows(one)[:1]:
            if any(view.index.find(cell) for cell in row.values() if isinstance(cell, str)):
                known[frozenset(row)].append(one.key)
    found = list[Reading]()
    for keys in known.values():
        with contextlib.suppress(SourceError):
            table = view.documents.table(keys)
            found += table_candidates(view.index, table, [table])
    return found


def _readings(found: Sequence[LabelColumns], **join: tuple[str, ...]) -> list[Reading]:
    found = sorted(filter(_is_usable, found), key=lambda one: -one.strength)
    best = found[0].strength if found else 0
    found = [one for one in found if best < STRONG or one.strength == best]
    return [Reading({**options, **join}, one.why) for one in found for options in one.options]


def _is_usable(one: LabelColumns) -> bool:
    if "pivot" in one.options[0]:
        return True
    if len(one.titles) != 1:
        return {*one.titles}.isdisjoint(_titles_of_rows(one.match))
    cells = one.match.cells(one.titles[0])
    return "target" in one.options[0] or are_classes(len(cells.counts().keys() - {""}), len(cells))


def _titles_of_rows(match: TableMatch) -> list[str]:
    """Return the titles of columns whose cells differ between the rows of an image."""
    cells = {title: match.table.cells(i).coded() for i, title in enumerate(match.table.header)}
    return [title for title, column in cells.items() if have_several(match.key_of, column)]


def _row_candidates(match: TableMatch) -> list[Reading]:
    titles = [one for one in _titles_of_rows(match) if not one.lower().endswith("id")]
    rows = match.table.label_rule(match.id_column, titles)
    why = f"{(match.key_of >= 0).sum():,} rows of {(match.row_of >= 0).sum():,} images"
    return [Reading({"labels": "none", "rows": rows}, why)] if titles else []


def stack_candidates(
    keys: Sequence[str], tables: Sequence[Table], patterns: Sequence[str] | None = None
) -> list[Reading]:
    """Return candidates that label stacks by tables that name over half of the samples.

    `patterns` are values of `--stack`; None means the result of `stack_patterns`.
    """
    return [
        Reading({"stack": pattern, **one.options}, one.why)
        for pattern in (stack_patterns(keys, tables) if patterns is None else patterns)
        for index in [KeyIndex(sample_keys(keys, pattern))]
        for table in united(index, tables)
        if _names_most(index, table)
        for one in table_candidates(index, table, tables)
    ]


def _names_most(index: KeyIndex, table: Table) -> bool:
    with contextlib.suppress(SourceError):
        return bool(2 * (match_ids(index, table).row_of >= 0).sum() > len(index.keys))
    return False
