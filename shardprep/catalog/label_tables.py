"""Labels from a table: its label columns, and the label of each image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.catalog.lookup import find_ids, match_table
from shardprep.catalog.rules import CsvRule, Labelling
from shardprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.catalog.lookup import KeyIndex, TableMatch
    from shardprep.catalog.table import Table
    from shardprep.catalog.targets import Cell

_LABEL_COLUMNS = (
    "label", "class", "target", "category", "breed", "diagnosis", "species", "classname",
    "class_name", "label_name", "category_name", "variety", "labels", "tags", "class_id",
    "classid", "category_id", "label_id", "dx", "level",
)  # fmt: skip
_NO_LABEL_COLUMNS = frozenset(("split", "partition", "usage", "set", "fold", "subset", "dataset"))
_SET = frozenset(("1", "1.0", "true", "yes"))
_SET_OR_NOT = _SET | {"0", "0.0", "-1", "-1.0", "false", "no", ""}
_MOST_CANDIDATES = 40
"""Number of columns of names that are tried as labels."""


def label_by_table(index: KeyIndex, table: Table, rule: CsvRule) -> Labelling:
    """Return the labels that a table gives; columns that the rule leaves open are found.

    Raises:
        SourceError: a column is missing or not clear, or one image has two labels.
        AmbiguousIdError: an id fits several images.

    """
    id_title = find_ids(index, table, rule.id_column)
    _label_cells(table, rule.label_columns, id_title)  # unclear columns are told before ids are
    return label_by_columns(index.keys, match_table(index, table, id_title), rule)


def label_by_columns(keys: Sequence[str], match: TableMatch, rule: CsvRule) -> Labelling:
    """Return the labels that the label columns of a matched table give."""
    table = match.table
    titles, cell_of = _label_cells(table, rule.label_columns, match.id_column)
    names: list[Cell | None] = [None] * len(keys)
    cells = [cell_of(row) for row in table.rows]
    for cell, position in zip(cells, match.key_of, strict=True):
        if position is None:
            continue
        if names[position] is None:
            names[position] = cell
        elif cell not in (None, names[position]):
            what = f"gives {keys[position]} two labels, {names[position]!r} and {cell!r}"
            raise SourceError(table.name, what, "one row an image is needed")
    columns = f"column {titles[0]!r}" if len(titles) == 1 else f"{len(titles)} columns"
    classes = {(title,) for title in titles} if len(titles) > 1 else set()
    return Labelling(
        names,
        f"{table.name}, {columns} by {match.id_column!r}",
        match.rows_without_image,
        frozenset(cell for cell in cells if cell is not None) | classes,
        match,
        rule=f"csv:{table.name}:{match.id_column}:{','.join(titles)}",
    )


def candidate_columns(match: TableMatch) -> list[tuple[str, ...]]:
    """Return the label columns that a table may have, where its header does not tell which one.

    The columns that hold nothing but 1 and 0 (or −1), as one-hot labels do, are one candidate; of
    the others, the first of the table with two different cells or more, two rows each on average.
    """
    flags: list[str] = []
    others: list[str] = []
    rows = match.table.rows
    for place, title in enumerate(match.table.header):
        if title == match.id_column or title.lower() in _NO_LABEL_COLUMNS:
            continue
        if all(row[place].lower() in _SET_OR_NOT for row in rows):
            if any(row[place].lower() in _SET for row in rows):
                flags.append(title)
        elif len(others) < _MOST_CANDIDATES:
            num_cells = len({row[place] for row in rows} - {""})
            others += [title] * (2 <= num_cells <= max(2, len(rows) // 2))
    one_hot = [tuple(flags)] if len(flags) > 1 else []
    return [*one_hot, *((title,) for title in (others if one_hot else flags + others))]


def _label_cells(
    table: Table, columns: tuple[str, ...], id_title: str
) -> tuple[tuple[str, ...], Callable[[list[str]], Cell | None]]:
    """Return the titles of the label columns, and a function from a row to its cell."""
    columns = columns or (_label_column(table, id_title),)
    if columns == ("*",):
        own = table.header[: len(table.header) - table.num_joined]
        columns = tuple(title for title in own if title != id_title)
    places = {title: table.column(title) for title in columns}
    if len(places) == 1:
        place = next(iter(places.values()))
        return (table.header[place],), lambda row: row[place] or None

    def names_set(row: list[str]) -> tuple[str, ...] | None:
        if not any(row[place] for place in places.values()):
            return None  # another table without these columns lists it
        for title, place in places.items():
            if row[place].lower() not in _SET_OR_NOT:
                what = f"column {title!r} has {row[place]!r}, which is neither 1 nor 0 nor -1"
                hint = "several label columns must say which classes an image has"
                raise SourceError(table.name, what, hint)
        return tuple(title for title, place in places.items() if row[place].lower() in _SET)

    return tuple(places), names_set


def _label_column(table: Table, id_title: str) -> str:
    lowered = {title.lower(): title for title in table.header if title != id_title}
    for name in _LABEL_COLUMNS:
        if name in lowered:
            return lowered[name]
    others = [title for name, title in lowered.items() if name not in _NO_LABEL_COLUMNS]
    if len(others) == 1:
        return others[0]
    what = f"it is not clear which column is the label: {', '.join(table.header)}"
    hint = f"name the columns: --labels csv:{table.name}:{id_title}:LABEL"
    raise SourceError(table.name, what, hint)
