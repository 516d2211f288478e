"""Label tables: CSV or JSON bytes in, a header and stripped rows out. All cells are strings."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection

_DELIMITERS = ",;\t|"
_MAX_CELL = 1 << 30


@dataclass(frozen=True, slots=True)
class Table:
    """A CSV file: every row has exactly the columns of the header."""

    name: str
    header: tuple[str, ...]
    rows: list[list[str]]
    num_joined: int = 0
    """Columns, the last ones, that another table has added."""
    parts: tuple[tuple[str, int], ...] = ()
    """Name and number of rows of the tables that were stacked to this one; () for one alone."""

    def part_of(self, row: int) -> str:
        """Return the name of the table that a row comes from."""
        end = 0
        for name, num_rows in self.parts:
            end += num_rows
            if row < end:
                return name
        return self.name

    def column(self, name: str) -> int:
        """Return the index of a column, by exact name first and else regardless of case."""
        lowered = [title.lower() for title in self.header]
        if name in self.header:
            return self.header.index(name)
        if name.lower() in lowered:
            return lowered.index(name.lower())
        raise SourceError(
            self.name, f"has no column {name!r}", f"its columns are {', '.join(self.header)}"
        )


def parse_table(
    data: bytes, name: str, *, has_header: bool = True, null: Collection[str] = ()
) -> Table:
    """Return the table in the bytes of a CSV file.

    It is separated by comma, semicolon, tab or bar, whichever the first line has most of. Short
    rows are filled with "", long ones cut. Without a header columns are called 1, 2, 3 …; cells
    that mean nothing (`null`) are read as "".

    Raises:
        SourceError: it is empty or no CSV; messages call it by `name`.

    """
    csv.field_size_limit(_MAX_CELL)
    text = decoded(data)
    first_line = text.split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=first_line.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        rows = [[cell.strip() for cell in line] for line in lines if any(line)]
    except csv.Error as error:
        raise SourceError(name, f"is no CSV that can be read ({error})") from error
    if not rows:
        raise SourceError(name, "is empty: a header line is needed")
    header = tuple(rows.pop(0)) if has_header else tuple(str(i + 1) for i in range(len(rows[0])))
    width = len(header)
    for i, row in enumerate(rows):
        if len(row) != width:
            rows[i] = row[:width] + [""] * (width - len(row))
    if null:
        nothing = frozenset(null)
        rows = [["" if cell in nothing else cell for cell in row] for row in rows]
    return Table(name, header, rows)


def parse_json_table(data: bytes, name: str, *, null: Collection[str] = ()) -> Table:
    """Return the table in a list of JSON objects, or in a COCO document.

    A row of COCO is an annotation, with the keys of its image and the name of its category as
    `category`; values that are no texts or numbers are left out.

    Raises:
        SourceError: it is neither; messages call it by `name`.

    """
    try:
        document = json.loads(decoded(data))
        rows = _of_coco(document) if isinstance(document, dict) else document
        cells = [
            {key: _cell(value) for key, value in row.items() if not isinstance(value, dict | list)}
            for row in rows
        ]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        what = "is neither a list of JSON objects nor a COCO document"
        raise SourceError(name, what, "name a CSV, or such a JSON") from error
    header = tuple(dict.fromkeys(key for row in cells for key in row))
    nothing = frozenset(null)
    table = [[row.get(key, "") for key in header] for row in cells]
    return Table(name, header, [["" if c in nothing else c for c in row] for row in table])


def _of_coco(document: dict[str, Any]) -> list[dict[str, Any]]:
    images = {image["id"]: image for image in document["images"]}
    names = {one["id"]: one["name"] for one in document.get("categories", ())}
    return [
        {
            **{key: value for key, value in one.items() if key != "id"},
            **images.get(one["image_id"], {}),
            "category": names.get(one.get("category_id"), ""),
        }
        for one in document["annotations"]
    ]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def decoded(data: bytes) -> str:
    """Return a text of UTF-8, with or without a byte order mark, or else of Windows-1252."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def stacked(tables: list[Table]) -> Table:
    """Return the rows of all tables below each other, with all their columns and "" in the gaps."""
    if len(tables) == 1:
        return tables[0]
    header = tuple(dict.fromkeys(title for table in tables for title in table.header))
    rows: list[list[str]] = []
    for table in tables:
        places = [table.header.index(title) if title in table.header else -1 for title in header]
        rows.extend(["" if place < 0 else row[place] for place in places] for row in table.rows)
    parts = tuple((table.name, len(table.rows)) for table in tables)
    return Table(" + ".join(table.name for table in tables), header, rows, parts=parts)


def joined(table: Table, other: Table, key: str) -> Table:
    """Return the table with the columns of another, row by row where their `key` agrees.

    `key` may be "" where they share just one column. Every row of `table` stays; where `other` has
    several rows of a key, the first counts.
    """
    if not key:
        shared = [title for title in table.header if title in other.header]
        if len(shared) != 1:
            hint = f"say which one joins them: --join {other.name}:COLUMN"
            raise SourceError(other.name, f"shares {len(shared)} columns with {table.name}", hint)
        key = shared[0]
    ours, theirs = table.column(key), other.column(key)
    new = [i for i, title in enumerate(other.header) if title not in table.header]
    first: dict[str, list[str]] = {}
    for row in other.rows:
        first.setdefault(row[theirs], row)
    nothing = [""] * len(other.header)
    rows: list[list[str]] = []
    for row in table.rows:
        match = first.get(row[ours], nothing)
        rows.append(row + [match[i] for i in new])
    header = (*table.header, *(other.header[i] for i in new))
    return replace(table, header=header, rows=rows, num_joined=table.num_joined + len(new))
