"""Which image a row of a table means: a name or a path, with or without its extension."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardprep.catalog.splits import given_split
from shardprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.catalog.table import Table

_FIELD = re.compile(
    r"\{(?P<column>[^{}\[\]]+)(\[(?P<start>-?\d{0,9})(?P<colon>:)?(?P<stop>-?\d{0,9})\])?\}"
)


class AmbiguousIdError(SourceError):
    """An id of a table fits several images."""


class KeyIndex:
    """Finds the keys that an id of a table fits."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Index the keys by base name and by base name without extension."""
        self.keys = keys
        self._by_name: dict[str, int | list[int]] = {}
        self._by_stem: dict[str, int | list[int]] = {}
        for i, key in enumerate(keys):
            name = key.rpartition("/")[2]
            _add(self._by_name, name, i)
            _add(self._by_stem, name.rpartition(".")[0] or name, i)

    def find(self, text: str) -> list[int]:
        """Return the positions of all keys that the id fits; a path must be the end of the key.

        Where a set for training and one for testing use the same names, training is meant.
        """
        path = text.replace("\\", "/").removeprefix("./").lstrip("/")
        name = path.rpartition("/")[2]
        named = self._by_name.get(name)
        if named is None:
            named = self._by_stem.get(name, [])
        found = [named] if isinstance(named, int) else named
        if "/" in path:
            found = [i for i in found if _ends_with(self.keys[i], path)]
        if len(found) > 1:
            found = [i for i in found if given_split(self.keys[i].split("/")) != "test"] or found
        return found

    def find_one(self, text: str, where: str) -> int | None:
        """Return the position of the one key that the id fits, None where there is none.

        Raises:
            SourceError: several fit; `where` is what the message calls the table.

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


def _add(places: dict[str, int | list[int]], name: str, place: int) -> None:
    """Add a place; a list for each of a million names that have one would take most of the time."""
    known = places.setdefault(name, place)
    if isinstance(known, list):
        known.append(place)
    elif known != place:
        places[name] = [known, place]


def row_ids(table: Table, column: str) -> tuple[str, Callable[[list[str]], str]]:
    """Return what the ids of a table are called, and how to get the id of a row.

    `column` names a column, or is a path template over all of them, where {id} stands for a
    column, {id[0]} for its first letter and {id[0:2]} for its first two.

    Raises:
        SourceError: a column is not there.

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
    if match["start"] is None:
        return cell
    start = int(match["start"]) if match["start"] else None
    if not match["colon"]:
        return cell[start : (start + 1) or None] if start is not None else cell
    return cell[start : int(match["stop"]) if match["stop"] else None]


def _ends_with(key: str, path: str) -> bool:
    key, path = "/" + key, "/" + path
    return key.endswith(path) or key.rpartition(".")[0].endswith(path)
