"""Table rows to images: an id is a name or a path, with or without its extension."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from shardprep.catalog.splits import folder_splits
from shardprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.catalog.table import Table

_FIELD = re.compile(
    r"\{(?P<column>[^{}\[\]]+)(\[(?P<start>-?\d{0,9})(?P<colon>:)?(?P<stop>-?\d{0,9})\])?\}"
)
_SAMPLE_ROWS = 500
"""Number of rows, about, from which the column of ids is found."""


class AmbiguousIdError(SourceError):
    """An id of a table fits several images."""


class KeyIndex:
    """The keys of all images, and the search for those that an id fits.

    All searches of a table together take time in proportion to its rows and the keys, however
    many keys share a name.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Take the keys; they are indexed when an id is first looked for."""
        self.keys = keys
        self._by_folder: dict[tuple[str, int], dict[str, list[int]]] = {}

    def find(self, text: str) -> Sequence[int]:
        """Return the positions of all keys that the id fits; a path must be the end of the key.

        Where a training set and a test set use the same names, training is meant.
        """
        path = text.replace("\\", "/").removeprefix("./").lstrip("/")
        folder, _, name = path.rpartition("/")
        by_name, by_stem = self._by_name
        named = by_name[name] if name in by_name else by_stem.get(name, ())
        if isinstance(named, int):
            lies_there = not folder or f"/{self.keys[named]}".rpartition("/")[0].endswith(
                f"/{folder}"
            )
            return (named,) if lies_there else ()
        depth = folder.count("/") + 1 if folder else 0
        if not named or depth > self._most_folders:
            return ()
        if (name, depth) not in self._by_folder:
            self._by_folder[name, depth] = self._grouped(named, depth)
        return self._by_folder[name, depth].get(folder, ())

    def find_one(self, text: str, where: str) -> int | None:
        """Return the position of the one key that the id fits, None where there is none.

        Raises:
            AmbiguousIdError: several fit; `where` is the name of the table in the message.

        """
        found = self.find(text)
        if len(found) > 1:
            one, two = self.keys[found[0]], self.keys[found[1]]
            raise AmbiguousIdError(
                where,
                f"id {text!r} fits several images: {one} and {two}",
                "say which with a path, as in csv:FILE:{folder}/{id}.jpg:LABEL, or with --root, or "
                "leave copies out with --dedup",
            )
        return found[0] if found else None

    @cached_property
    def _by_name(self) -> tuple[dict[str, int | list[int]], dict[str, int | list[int]]]:
        """Positions by base name, and by base name without extension."""
        by_name: dict[str, int | list[int]] = {}
        by_stem: dict[str, int | list[int]] = {}
        for i, key in enumerate(self.keys):
            name = key.rpartition("/")[2]
            _add(by_name, name, i)
            _add(by_stem, name.rpartition(".")[0] or name, i)
        return by_name, by_stem

    @cached_property
    def _most_folders(self) -> int:
        return max((key.count("/") for key in self.keys), default=0)

    @cached_property
    def _splits(self) -> list[str | None]:
        return folder_splits(self.keys)

    def _grouped(self, positions: Sequence[int], depth: int) -> dict[str, list[int]]:
        """Return positions by the `depth` folders that hold them, without test if others fit."""
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for i in positions:
            *folders, _ = self.keys[i].rsplit("/", depth + 1)
            if len(folders) >= depth:
                groups["/".join(folders[len(folders) - depth :])].append(i)
        return {
            folder: [i for i in group if self._splits[i] != "test"] or group
            for folder, group in groups.items()
        }


def _add(positions: dict[str, int | list[int]], name: str, position: int) -> None:
    """Add a position. A name that occurs once has no list: a million lists would take long."""
    known = positions.setdefault(name, position)
    if isinstance(known, list):
        known.append(position)
    elif known != position:
        positions[name] = [known, position]


@dataclass(frozen=True, slots=True)
class TableMatch:
    """The rows of a table and the images that they belong to."""

    table: Table
    row_of: list[int | None]
    """For each key, its first row."""
    key_of: list[int | None]
    """For each row, the position of its key."""
    id_column: str
    """The column, or the template over several, by which rows were found."""
    rows_without_image: tuple[str, ...]
    """Ids of the rows that fit no key."""

    def cells(self, column: str) -> list[str]:
        """Return a column's cell for each key, "" where it has no row."""
        place = self.table.column(column)
        rows = self.table.rows
        return ["" if row is None else rows[row][place] for row in self.row_of]


def match_table(index: KeyIndex, table: Table, id_column: str = "") -> TableMatch:
    """Return which rows of a table belong to which image, by a column, a template or "" to find it.

    Raises:
        SourceError: no column holds ids of images, or there is no such column.
        AmbiguousIdError: an id fits several images.

    """
    title, id_of = row_ids(table, find_ids(index, table, id_column))
    row_of: list[int | None] = [None] * len(index.keys)
    key_of: list[int | None] = []
    missing: list[str] = []
    for number, row in enumerate(table.rows):
        text = id_of(row)
        found = index.find_one(text, table.name)
        key_of.append(found)
        if found is None:
            missing.append(text)
        elif row_of[found] is None:
            row_of[found] = number
    return TableMatch(table, row_of, key_of, title, tuple(missing))


def find_ids(index: KeyIndex, table: Table, column: str = "") -> str:
    """Return the given column or template, or else the column that holds most names of images."""
    if column:
        return row_ids(table, column)[0]
    sample = table.rows[:: max(1, len(table.rows) // _SAMPLE_ROWS)]
    hits = [sum(bool(index.find(row[i])) for row in sample) for i in range(len(table.header))]
    if not any(hits):
        what = "no column of it holds names of images of the source"
        raise SourceError(table.name, what, "name the columns: --labels csv:FILE:ID:LABEL")
    return table.header[hits.index(max(hits))]


def row_ids(table: Table, column: str) -> tuple[str, Callable[[list[str]], str]]:
    """Return the name of a table's ids, and a function from a row to its id.

    `column` names a column, or is a path template over all of them, where {id} stands for a
    column, {id[0]} for its first letter and {id[0:2]} for its first two.
    """
    if "{" not in column:
        position = table.column(column)
        return table.header[position], lambda row: row[position]
    fields = {match.group(): match for match in _FIELD.finditer(column)}
    positions = {text: table.column(match["column"]) for text, match in fields.items()}

    def fill(row: list[str]) -> str:
        return _FIELD.sub(lambda match: _cut(row[positions[match.group()]], match), column)

    return column, fill


def _cut(cell: str, match: re.Match[str]) -> str:
    """Return the letters of a cell that a field such as {id[0:2]} names."""
    if match["start"] is None:
        return cell
    start = int(match["start"]) if match["start"] else None
    if not match["colon"]:
        return cell[start : (start + 1) or None] if start is not None else cell
    return cell[start : int(match["stop"]) if match["stop"] else None]
