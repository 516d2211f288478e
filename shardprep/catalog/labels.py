"""Labels of images as texts, from their paths or a table; `targets` turns them into targets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.names import find_masks, folder_splits, given_split
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.tables.row_matching import (
    AmbiguousIdError,
    KeyIndex,
    TableMatch,
    find_ids,
    match_table,
)
from shardprep.catalog.tables.table import OpenQuoteError, Table
from shardprep.catalog.targets import Cell
from shardprep.errors import OptionName, SourceError
from shardprep.recipe.rules import CsvRule, LabelRule
from shardprep.source.names import is_array_name, without_archive_suffix
from shardprep.source.string_column import Coded, Texts

Ints = NDArray[np.int64]

_NUMBER_BACKWARDS = re.compile(r"\)?\d+\(?[\s._-]*")
"""Number at the end of a name, searched in the reversed name: a forward search is quadratic."""
_NUMBERED_END = re.compile(r"\d$")
_WORDS = re.compile(r"[^\W\d_][^\d]*$")
ENOUGH = 0.9
"""Share of the images that a rule must label to be used by `auto`."""
_LABEL_COLUMNS = (
    "label", "class", "target", "category", "breed", "diagnosis", "species", "classname",
    "class_name", "label_name", "category_name", "variety", "labels", "tags", "class_id",
    "classid", "category_id", "label_id", "dx", "level",
)  # fmt: skip
_NO_LABEL_COLUMNS = frozenset(("split", "partition", "usage", "set", "fold", "subset", "dataset"))
_SET = frozenset(("1", "1.0", "true", "yes"))
_SET_OR_NOT = _SET | {"0", "0.0", "-1", "-1.0", "false", "no", ""}
_MOST_CANDIDATES = 40


@dataclass(frozen=True, slots=True)
class Labelling:
    """The labels of all images, in the order of the keys, and how they were found."""

    names: Coded[Cell | None]
    """For each image a label, or a tuple of the titles of columns that hold 1, or None."""
    how: str
    rows_without_image: tuple[str, ...] = ()
    table_names: frozenset[Cell] = frozenset()
    """All labels in the table, so that classes do not depend on which images the source has."""
    match: TableMatch | None = None
    columns: tuple[str, ...] = ()
    rule: str = "none"
    findings: tuple[str, ...] = ()


def label_keys(index: KeyIndex, rule: LabelRule, tables: Sequence[Table]) -> Labelling:
    """Return the labels that a rule gives; "csv" reads the first table, "auto" tries all tables."""
    keys = index.keys
    match rule.kind:
        case "folder":
            how = f"name of folder {rule.depth} above the image"
            name = "folder" if rule.depth == 1 else f"folder:{rule.depth}"
            return Labelling(_folder_names(keys, rule.depth), how, rule=name)
        case "prefix":
            how = "start of the file name, before the number"
            return Labelling(Coded.of(map(_prefix, keys)), how, rule="prefix")
        case "regex":
            pattern = Pattern(rule.pattern, OptionName("labels"), rule.text, group="label")
            names: Coded[Cell | None] = Coded.of(label or None for label in pattern.search(keys))
            return Labelling(names, f"regex {rule.pattern}")
        case "csv" | "column":
            return label_by_table(index, tables[0], rule.table)
        case "none":
            return Labelling(Coded.constant(None, len(keys)), "none asked for")
        case "auto":
            return auto_labels(index, tables)


def auto_labels(index: KeyIndex, tables: Iterable[Table]) -> Labelling:
    """Return the labels by the first rule that fits: table, folder or prefix; or no labels.

    Rules that often fit by accident come last. A rule fits if it labels nine tenths of the images
    outside test splits, and the labels look like classes (see `are_classes`).
    """
    keys = index.keys
    is_test = folder_splits(keys).fit(lambda split: split == "test")
    considered = np.flatnonzero(~is_test if not is_test.all() else is_test)
    passed_over = ""
    for table in tables:
        try:
            labelling = label_by_table(index, table, CsvRule((table.name,)))
        except AmbiguousIdError:
            passed_over = f"; {table.name} is passed over: its ids fit several images each"
            continue
        except OpenQuoteError:  # the table names images, but rows are missing
            raise
        except SourceError:
            continue
        is_fit = _fits(labelling.names, considered)
        if is_fit or are_classes(len(labelling.table_names), len(table.rows)):  # not captions
            table.check_quotes(*labelling.columns)
        if is_fit:
            return labelling
    no_classes = find_masks(keys).no_classes
    names = _folder_names(keys, 1, no_classes)
    how = "name of the folder that holds the image"
    rule = "folder"
    if not _fits(names, considered):
        prefixes = Coded.of(map(_prefix, keys))
        names = prefixes.map(
            lambda name: name if name and _WORDS.match(name) and not given_split([name]) else None
        )
        first = int(considered[0])
        example = keys[first].rpartition("/")[2]
        how = f"start of the file name, before the number ({example} → {names[first]})"
        rule = "prefix"
    if not _fits(names, considered):
        how = f"none found{passed_over}; say where they are with {OptionName('labels')}"
        return Labelling(Coded.constant(None, len(keys)), how)
    names, findings = _without_test_names(names, considered, rule)
    # The rule alone would label the test split as well.
    return Labelling(names, how + passed_over, rule="auto" if findings else rule, findings=findings)


def _without_test_names(
    names: Coded[Cell | None], considered: Ints, rule: str
) -> tuple[Coded[Cell | None], tuple[str, ...]]:
    """Return names and remarks; a test split whose classes differ from the rest gets no labels."""
    known = names.take(considered).counts()
    is_other = np.ones(len(names), bool)
    is_other[considered] = False
    named = names.take(np.flatnonzero(is_other)).counts()
    strange = sorted({str(name) for name in named if name not in known})
    num_known = sum(count for name, count in named.items() if name in known)
    if num_known >= ENOUGH * sum(named.values()):
        return names, ()
    shown = ", ".join(strange[:3]) + (", …" if strange[3:] else "")
    finding = (
        f"{int(is_other.sum()):,} images of test are unlabelled: their classes by {rule} ({shown}) "
        f"are not in the other splits; {OptionName('labels')} {rule} uses them"
    )
    return Coded(np.where(is_other, -1, names.codes), names.values), (finding,)


def _fits(names: Coded[Cell | None], considered: Ints) -> bool:
    counts = names.take(considered).counts()
    num_found = sum(counts.values())
    return num_found >= ENOUGH * len(considered) and are_classes(len(counts), num_found)


def are_classes(num_names: int, num_images: int) -> bool:
    """Return whether names look like classes: two, or more with two images each on average."""
    return 2 <= num_names <= max(2, num_images // 2)


def _folder_names(
    keys: Sequence[str], depth: int, no_classes: Collection[str] = ()
) -> Coded[Cell | None]:
    def named(folder: str) -> str | None:
        parts = folder.split("/") if folder else []
        name = without_archive_suffix(parts[-depth]) if len(parts) >= depth else None
        if name is not None and is_array_name(parts[-depth]) and _NUMBERED_END.search(name):
            return None  # a part of a set, such as data_0.parquet
        return None if name is None or name in no_classes or given_split([name]) else name

    return Texts.of(keys).folders.map(named)


def _prefix(key: str) -> str | None:
    """Return the start of a file name, before the number at its end; None if one is missing."""
    name = key.rpartition("/")[2]
    at = name.rfind(".")
    stem = name[:at] if 0 < at < len(name) - 1 else name
    match = _NUMBER_BACKWARDS.match(stem[::-1])
    return stem[: -match.end()] or None if match else None


def label_by_table(index: KeyIndex, table: Table, rule: CsvRule) -> Labelling:
    """Return the labels in a table; columns that the rule does not name are detected."""
    id_title = find_ids(index, table, rule.id_column)
    _label_titles(table, rule.label_columns, id_title)  # report unclear columns before ids
    return label_by_columns(index.keys, match_table(index, table, id_title), rule)


def label_by_columns(keys: Sequence[str], match: TableMatch, rule: CsvRule) -> Labelling:
    """Return the labels in a matched table; SourceError if two rows of an image disagree."""
    table = match.table
    titles, cells = _label_cells(table, rule.label_columns, match.id_column)
    rows = np.flatnonzero((match.key_of >= 0) & cells.are_there)
    images, codes = match.key_of[rows], cells.codes[rows]
    named = np.full(len(keys), -1, cells.codes.dtype)
    named[images[::-1]] = codes[::-1]  # the first of several rows is assigned last
    others = np.flatnonzero(named[images] != codes)
    if len(others):
        image, cell = int(images[others[0]]), cells[int(rows[others[0]])]
        what = f"gives {keys[image]} two labels, {cells.values[named[image]]!r} and {cell!r}"
        raise SourceError(table.name, what, "one row an image is needed")
    columns = f"column {titles[0]!r}" if len(titles) == 1 else f"{len(titles)} columns"
    classes = {(title,) for title in titles} if len(titles) > 1 else set()
    return Labelling(
        Coded(named, cells.values),
        f"{table.name}, {columns} by {match.id_column!r}",
        match.rows_without_image,
        frozenset(cell for cell in cells.firsts().values() if cell is not None) | classes,
        match,
        titles,
        rule=table.label_rule(match.id_column, titles),
    )


def candidate_columns(match: TableMatch) -> list[tuple[str, ...]]:
    """Return the possible label columns of a table whose header does not show the label.

    Each candidate is a tuple of titles. All one-hot columns, which only hold 1 and 0 (or −1), are
    one candidate together. Each other column is a candidate if its cells look like classes.
    """
    flags: list[str] = []
    others: list[str] = []
    for place, title in enumerate(match.table.header):
        if title == match.id_column or title.lower() in _NO_LABEL_COLUMNS:
            continue
        cells = set(match.table.cells(place).coded().values)
        if all(cell.lower() in _SET_OR_NOT for cell in cells):
            if any(cell.lower() in _SET for cell in cells):
                flags.append(title)
        elif len(others) < _MOST_CANDIDATES:
            others += [title] * are_classes(len(cells - {""}), len(match.table.rows))
    one_hot = [tuple(flags)] if len(flags) > 1 else []
    return [*one_hot, *((title,) for title in (others if one_hot else flags + others))]


def _label_cells(
    table: Table, columns: tuple[str, ...], id_title: str
) -> tuple[tuple[str, ...], Coded[Cell | None]]:
    places = _label_titles(table, columns, id_title)
    if len(places) == 1:
        place = next(iter(places.values()))
        return (table.header[place],), table.cells(place).coded().map(lambda cell: cell or None)

    def names_set(row: list[str]) -> tuple[str, ...] | None:
        if not any(row[place] for place in places.values()):
            return None  # a row of another stacked table without these columns
        for title, place in places.items():
            if row[place].lower() not in _SET_OR_NOT:
                what = f"column {title!r} has {row[place]!r}, which is neither 1 nor 0 nor -1"
                hint = "several label columns must say which classes an image has"
                raise SourceError(table.name, what, hint)
        return tuple(title for title, place in places.items() if row[place].lower() in _SET)

    return tuple(places), Coded.of(map(names_set, table.rows))


def _label_titles(table: Table, columns: tuple[str, ...], id_title: str) -> dict[str, int]:
    columns = columns or (_label_column(table, id_title),)
    if columns == ("*",):
        own = table.header[: len(table.header) - table.num_joined]
        columns = tuple(title for title in own if title != id_title)
    return {title: table.column(title) for title in columns}


def _label_column(table: Table, id_title: str) -> str:
    lowered = {title.lower(): title for title in table.header if title != id_title}
    for name in _LABEL_COLUMNS:
        if name in lowered:
            return lowered[name]
    others = [title for name, title in lowered.items() if name not in _NO_LABEL_COLUMNS]
    if len(others) == 1:
        return others[0]
    what = f"it is not clear which column is the label: {', '.join(table.header)}"
    hint = f"name the columns: {OptionName('labels')} {table.label_rule(id_title, ['LABEL'])}"
    raise SourceError(table.name, what, hint)
