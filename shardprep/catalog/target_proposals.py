"""Proposals of targets with several values: the columns of a label table that may form one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.labels import ENOUGH, are_classes, have_several
from shardprep.catalog.tables.row_matching import TableMatch
from shardprep.catalog.tables.table import Table
from shardprep.catalog.target_values import as_number
from shardprep.recipe.rules import CsvRule

_SUBMISSION, _VOTES = re.compile("submission", re.IGNORECASE), re.compile("votes?$", re.IGNORECASE)
_VALUES = re.compile("target|value|label|class", re.IGNORECASE)
_MOST_NAMES = 100
"""Maximum number of targets in a table that has a row for each image and target."""
_MOST_TOGETHER = 8
"""Maximum number of columns of classes that are proposed together."""
_MANY_VALUES = 20
_LONG = 1.5
"""Minimum mean number of rows per image in a table that has a row for each image and target."""


def target_proposals(
    match: TableMatch, tables: Sequence[Table], titles: Collection[str]
) -> Iterator[CsvRule]:
    """Yield a rule for each possible target, with its columns among `titles` or its pivot."""
    rows = np.flatnonzero(match.key_of >= 0)
    num_images = int((match.row_of >= 0).sum())
    if _LONG * num_images < len(rows):
        yield from _of_long_table(match, rows, titles) if num_images > 1 else ()
        return
    titles = [one for one in match.table.header if one in titles and not is_id(match, one)]
    table = match.table
    cells = {one: {*table.cells(table.column(one)).coded().values} - {""} for one in titles}
    numbers = {title: found for title in titles if (found := _numbers(cells[title]))}
    shown = [
        tuple(title for title in other.header if title in titles)
        for other in tables
        if _SUBMISSION.search(other.name)
    ]
    alike = defaultdict[frozenset[str], list[str]](list)
    for title in titles:
        if title not in numbers and 1 < len(cells[title]) <= min(_MANY_VALUES, len(rows) - 1):
            alike[frozenset(cells[title])].append(title)
    for columns in dict.fromkeys((*shown, *map(tuple, alike.values()), *_groups(numbers))):
        if len(columns) > 1 or columns in shown:
            is_soft = all(_VOTES.search(title) for title in columns)
            yield CsvRule((), "", columns, target="soft" if is_soft else "auto")
    classes = [
        title
        for title, values in numbers.items()
        if not (_VOTES.search(title) or title.lower().endswith("id"))
        and are_classes(len(values), len(rows))
        and not values <= {-1, 0, 1}
        and all(value == int(value) >= 0 for value in values)
    ]
    if 1 < len(classes) <= _MOST_TOGETHER:
        yield CsvRule((), "", tuple(classes), target="classes")


def is_id(match: TableMatch, title: str) -> bool:
    """Return whether a column has the ids, or is the last column in the template of the ids."""
    last = match.id_column.rpartition("{")[2]
    return title == match.id_column or last.partition("[")[0].partition("}")[0] == title


def counts_rows(match: TableMatch, title: str) -> bool:
    """Return whether a column counts the rows of each image, such as captions, from 0 or 1."""
    rows = np.flatnonzero(match.key_of >= 0)
    if not len(rows) or len(rows) < _LONG * (match.row_of >= 0).sum():
        return False
    images = match.key_of[rows].astype(np.int64)
    num_rows = np.bincount(images)
    cells = match.table.cells(match.table.column(title)).coded().take(rows)
    known = np.array([np.nan if (one := as_number(x)) is None else one for x in cells.values])
    if len(known) > 2 * num_rows.max() or np.isnan(known).all():
        return False
    # The sum of different numbers from 0 is minimal only if none is left out.
    sums = np.bincount(images, known[cells.codes] - min(1, np.nanmin(known)))
    are_different = bool(np.diff(np.sort(images * len(known) + cells.codes)).all())
    are_counted = (2 * sums == num_rows * (num_rows - 1))[num_rows > 0]
    return are_different and bool(are_counted.mean() >= ENOUGH)


def _numbers(cells: Collection[str]) -> set[float]:
    """Return the different numbers in cells; empty if a cell is not a number."""
    numbers = {as_number(cell) for cell in cells}
    return set() if None in numbers else {one for one in numbers if one is not None}


def _groups(numbers: dict[str, set[float]]) -> list[tuple[str, ...]]:
    """Return groups of columns of measured numbers with similar names; the last group is the rest.

    `X4_mean` and `X11_mean` are similar, and so are `Dry_Dead_g` and `Dry_Green_g`.
    """
    measured = [
        title
        for title, values in numbers.items()
        if _VOTES.search(title)
        or (len(values) > _MANY_VALUES and any(one != int(one) for one in values))
    ]
    groups: list[tuple[str, ...]] = []
    for key in (lambda title: re.sub(r"\d+", "#", title), lambda title: title.rpartition("_")[2]):
        by_key: defaultdict[str, list[str]] = defaultdict(list)
        for title in measured:
            by_key[key(title)].append(title)
        alike = [tuple(group) for group in by_key.values() if len(group) > 1]
        groups += sorted(alike, key=len)
        measured = [title for title in measured if not any(title in group for group in alike)]
    return [*groups, tuple(measured)]


def _of_long_table(
    match: TableMatch, rows: NDArray[np.int64], titles: Collection[str]
) -> Iterator[CsvRule]:
    """Yield rules with a pivot for a table that has several rows for an image.

    Columns with equal cells in all rows of an image, such as its site, are not used as values.
    """
    table, images = match.table, match.key_of[rows]
    others = [one for one in table.header if one in titles and one != match.id_column]
    most_rows = min(_MOST_NAMES, int(np.bincount(images).max()))
    values = sorted(others, key=lambda title: not _VALUES.fullmatch(title))
    cells = {one: table.cells(table.column(one)).coded().take(rows) for one in others}
    is_of_row = {
        one: have_several(images, column)
        and not (one.lower().endswith("id") and len(column.values) >= len(rows))
        for one, column in cells.items()
    }
    for pivot in [one for one in others if not counts_rows(match, one)]:
        names = cells[pivot]
        number = len(np.unique(names.codes))
        pairs = images.astype(np.int64) * len(names.values) + names.codes
        if 1 < number <= 2 * most_rows and _LONG * len(np.unique(pairs)) > len(pairs):
            value = next((one for one in values if one != pivot and is_of_row[one]), None)
            if value is not None:
                yield CsvRule((), "", (value,), pivot=pivot)
