"""Tables of images, from Parquet, TFRecord or JSON, with JSON lists of objects in their cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from shardprep.catalog.tables.table import Rows, Table
from shardprep.errors import SourceError
from shardprep.recipe.object_rules import letters
from shardprep.source.string_column import Texts
from shardprep.storage.text_file import decoded

_MOST_NAMES = 100
_MOSTLY = 0.5
"""Minimum share of rows in which a list has one value for each object."""


def unfolded(table: Table, sides: Sequence[str]) -> tuple[Table, list[str]]:
    """Return the table with a row for each object, and the columns that are lists of objects.

    The table is unchanged unless `sides`, the columns of boxes, are lists. Cells that are not lists
    of objects are repeated. An image without objects keeps one row, with empty cells for lists.
    """
    places = [table.column(one) for one in sides]
    cells = [table.cells(place) for place in range(len(table.header))]
    lists = {place: found for place in places if (found := _lists(cells[place])) is not None}
    first = next((box for several in lists.get(places[0], ()) for box in several), None)
    is_flat = len(places) == 1 and (not isinstance(first, list) or len(first) == 2)  # x, y
    if len(lists) < len(places) or is_flat:
        return table, []
    counts = np.max([[*map(len, one)] for one in lists.values()], axis=0)
    for place in set(range(len(cells))) - set(places):
        found = _lists(cells[place])
        if found is not None and np.mean([*map(len, found)] == counts) > _MOSTLY:
            lists[place] = found
    numbers = np.maximum(counts, 1)
    rows = np.repeat(np.arange(len(numbers)), numbers)
    columns = [
        Texts.of(_in_rows(lists[place], numbers.tolist())) if place in lists else own.take(rows)
        for place, own in enumerate(cells)
    ]
    ends = np.cumsum([number for _, number in table.parts], dtype=np.int64)
    totals = np.diff(np.append(0, np.cumsum(numbers))[ends], prepend=0).tolist()
    parts = tuple((name, total) for (name, _), total in zip(table.parts, totals, strict=True))
    titles = [table.header[place] for place in sorted(lists)]
    return replace(table, rows=Rows(columns, len(rows)), parts=parts), titles


def value_at(value: Any, names: Sequence[str]) -> Any:
    """Return the value at a path of keys; in a list, the values of all its elements."""
    if not names or value is None:
        return value
    if isinstance(value, list):
        return [value_at(one, names) for one in value]
    return value_at(value.get(names[0]), names[1:]) if isinstance(value, dict) else None


def paths_of_lists(value: Any, path: str = "", *, is_listed: bool = False) -> Iterator[str]:
    """Yield the path of each list in a JSON value, and of each value in a list of objects."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value, is_listed = value[0], True
    if isinstance(value, dict):
        for name, one in islice(value.items(), _MOST_NAMES):
            yield from paths_of_lists(one, f"{path}.{name}".lstrip("."), is_listed=is_listed)
    elif isinstance(value, list) or is_listed:
        yield path


def object_rows(
    data: bytes, name: str, columns: Sequence[str] = (), further: Sequence[str] = ()
) -> list[dict[str, str]]:
    """Return the JSON document of an image as one row: path → value as JSON.

    The paths are `columns`, and fields next to the first column that end in `further`. Without
    `columns`, they are the paths of all lists. SourceError for other documents.
    """
    try:
        document = json.loads(decoded(data))
    except (ValueError, RecursionError) as error:
        raise SourceError(name, "is not JSON", "download or write it again") from error
    paths = [*columns] or [*paths_of_lists(document)]
    if columns:
        start = columns[0].rpartition(".")[0]
        inner = value_at(document, start.split(".") if start else ())
        beside = inner[0] if isinstance(inner, list) and inner else inner
        fields = beside if isinstance(beside, dict) else ()
        paths += [
            f"{start}.{one}".lstrip(".") for one in fields if letters(one).endswith((*further,))
        ]
    values = {one: value_at(document, one.split(".")) for one in paths}
    return [{title: "" if one is None else json.dumps(one) for title, one in values.items()}]


def _lists(cells: Texts) -> list[list[Any]] | None:
    """Return the JSON list in each cell; None if a cell is not a JSON list."""
    if not next(filter(None, cells), "").startswith("["):
        return None
    try:
        found = [json.loads(cell) if cell else [] for cell in cells]
    except (ValueError, RecursionError):
        return None
    return found if all(isinstance(one, list) for one in found) else None


def _in_rows(lists: Sequence[Sequence[Any]], numbers: Sequence[int]) -> Iterator[str]:
    for values, number in zip(lists, numbers, strict=True):
        for value in (*values[:number], *[None] * (number - len(values))):
            text = value if isinstance(value, str) else json.dumps(value)
            yield "" if value is None else text
