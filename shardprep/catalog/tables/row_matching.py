"""Match table rows to images by id: a name or a path, with or without its extension."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.names import folder_splits
from shardprep.catalog.tables.table import Table
from shardprep.dataset.card import from_cell
from shardprep.errors import OptionName, SourceError, printable
from shardprep.recipe.rules import SLICE, letters_of
from shardprep.source.names import composed
from shardprep.source.string_column import Coded, Texts, booleans, positions

Ints = NDArray[np.int64]

_FIELD = re.compile(rf"\{{(?P<column>[^{{}}\[\]]+)(\[{SLICE}\])?\}}")
_MOST_FOLDERS = 16
"""Maximum number of folders in an id; ids with more are searched one by one."""
_SAMPLE_ROWS = 500
"""Approximate number of rows to search in order to detect the column of ids."""


class AmbiguousIdError(SourceError):
    """An id of a table fits several images."""

    found: Sequence[int] = ()
    """Positions of these images, if `Pairing` raised the error."""


class KeyIndex:
    """The keys of all images, searched for ids in time linear in the number of ids and keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = Texts.of(keys)
        self._names = self.keys.composed()
        """The keys in form NFC, so that accents in other forms are equal."""
        self._by_folder: dict[tuple[str, int], dict[str, list[int]]] = {}

    def find(self, text: str) -> Sequence[int]:
        """Return the positions of all keys that end in the id, with or without extension.

        Keys in test splits count only if no other key fits. If keys differ only in the Unicode form
        of their accents, only the key in the form of the id fits.
        """
        path = text.replace("\\", "/").removeprefix("./").lstrip("/")
        found = self._find(composed(path))
        if len(found) < 2 or path.isascii():
            return found
        keys = {i: f"/{self.keys[i]}" for i in found}
        same = [
            i
            for i, key in keys.items()
            if key.endswith(f"/{path}") or key.rpartition(".")[0].endswith(f"/{path}")
        ]
        return same or found

    def _find(self, path: str) -> Sequence[int]:
        folder, _, name = path.rpartition("/")
        by_name, by_stem = self._by_name
        named = by_name[name] if name in by_name else by_stem.get(name, ())
        if isinstance(named, int):
            lies_there = not folder or f"/{self._names[named]}".rpartition("/")[0].endswith(
                f"/{folder}"
            )
            return (named,) if lies_there else ()
        depth = folder.count("/") + 1 if folder else 0
        if not named or depth > self._most_folders:
            return ()
        if (name, depth) not in self._by_folder:
            self._by_folder[name, depth] = self._grouped(named, depth)
        return self._by_folder[name, depth].get(folder, ())

    def find_all(self, texts: Texts, where: str) -> Ints:
        """Return the position of the key of each id, or −1; errors as in `find_one`."""
        found, is_odd = self._find_names(texts)
        for row in np.flatnonzero(is_odd).tolist():
            position = self.find_one(texts[row], where)
            found[row] = -1 if position is None else position
        return found

    def num_found(self, texts: Texts) -> int:
        found, is_odd = self._find_names(texts)
        odd = np.flatnonzero(is_odd).tolist()
        return int((found >= 0).sum()) + sum(bool(self.find(texts[row])) for row in odd)

    def _find_names(self, texts: Texts) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the position of each id's key or −1, and whether the id needs `find`."""
        texts = texts.composed()
        found = np.full(len(texts), -1, np.int64)
        is_odd = pc.match_substring_regex(texts.array, r"\\|^\.?/")
        is_odd = booleans(is_odd)
        depths = np.minimum(texts.num_folders(), _MOST_FOLDERS + 1).astype(np.int8)
        is_odd = is_odd | (depths > _MOST_FOLDERS)
        for depth in np.flatnonzero(np.bincount(depths[~is_odd])).tolist():
            is_one = ~is_odd & (depths == depth)
            wanted = texts.where(is_one)
            first, is_many = positions(wanted, self._names, partial(Texts.ends, depth=depth))
            lost = first < 0
            if depth and lost.any():  # no stem, if this name is in another folder
                names = wanted.where(lost).ends(0)
                lost[lost] = positions(names, self._names, partial(Texts.ends, depth=0))[0] < 0
            if lost.any():
                first[lost], is_many[lost] = positions(
                    wanted.where(lost), self._names, partial(Texts.stems, depth=depth)
                )
            found[is_one] = first
            is_odd[is_one] = is_many
        found[is_odd] = -1
        return found, is_odd

    def find_one(self, text: str, where: str) -> int | None:
        """Return the position of the key that fits, or None; AmbiguousIdError if several do."""
        found = self.find(text)
        if len(found) > 1:
            one, two = self.keys[found[0]], self.keys[found[1]]
            what = f"id {text!r} fits several images: {one} and {two}"
            hint = "say which with a path, as in csv:FILE:{folder}/{id}.jpg:LABEL, or with "
            hint += f"{OptionName('root')}, or leave copies out with {OptionName('dedup')}"
            raise AmbiguousIdError(where, what, hint)
        return found[0] if found else None

    @cached_property
    def _by_name(self) -> tuple[dict[str, int | list[int]], dict[str, int | list[int]]]:
        by_name: dict[str, int | list[int]] = {}
        by_stem: dict[str, int | list[int]] = {}
        for i, key in enumerate(self._names):
            name = key.rpartition("/")[2]
            _add(by_name, name, i)
            _add(by_stem, name.rpartition(".")[0] or name, i)
        return by_name, by_stem

    @cached_property
    def _most_folders(self) -> int:
        return max((key.count("/") for key in self._names), default=0)

    @cached_property
    def _splits(self) -> list[str | None]:
        return list(folder_splits(self.keys))

    def _grouped(self, positions: Sequence[int], depth: int) -> dict[str, list[int]]:
        """Return the positions by their last `depth` folders; test splits only if no other fits."""
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for i in positions:
            *folders, _ = self._names[i].rsplit("/", depth + 1)
            if len(folders) >= depth:
                groups["/".join(folders[len(folders) - depth :])].append(i)
        return {
            folder: [i for i in group if self._splits[i] != "test"] or group
            for folder, group in groups.items()
        }


class WholeKeyIndex(KeyIndex):
    """Keys, searched for ids as `report --list` prints them: a whole key fits only itself."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__([printable(key) for key in keys])

    def find(self, text: str) -> Sequence[int]:
        name = printable(text)
        position = self._whole.get(name, self._whole.get(composed(name)))
        return super().find(name) if position is None else (position,)

    def find_all(self, texts: Texts, where: str) -> Ints:
        return super().find_all(Texts.of([printable(from_cell(one)) for one in texts]), where)

    @cached_property
    def _whole(self) -> dict[str, int]:
        keys = {key: i for i, key in enumerate(self.keys)}
        return {composed(key): i for key, i in keys.items()} | keys


def _add(positions: dict[str, int | list[int]], name: str, position: int) -> None:
    """Add a position of a name. A single one is stored without a list: a million lists are slow."""
    known = positions.setdefault(name, position)
    if isinstance(known, list):
        known.append(position)
    elif known != position:
        positions[name] = [known, position]


@dataclass(frozen=True, slots=True)
class TableMatch:
    """The rows of a table and the images that they belong to."""

    table: Table
    row_of: Ints
    """First row of each key, or −1 if it has no row."""
    key_of: Ints
    id_column: str
    """The column of ids, or the path template that makes ids of several columns."""
    rows_without_image: tuple[str, ...]

    def cells(self, column: str) -> Coded[str]:
        """Return the cell of a column for each key, or "" if the key has no row."""
        cells = self.table.cells(self.table.column(column)).coded()
        codes = np.append(cells.codes, -1)[self.row_of]  # −1 is the last row
        return Coded(codes, cells.values).filled("")


def match_table(index: KeyIndex, table: Table, id_column: str = "") -> TableMatch:
    """Match the rows of a table to images; `id_column` "" means to detect the column."""
    title, ids = row_ids(table, find_ids(index, table, id_column))
    key_of = index.find_all(ids, table.name)
    row_of = np.full(len(index.keys), -1, np.int64)
    rows = np.flatnonzero(key_of >= 0)[::-1]  # the first of several rows is assigned last
    row_of[key_of[rows]] = rows
    missing = ids.take(np.flatnonzero(key_of < 0))
    return TableMatch(table, row_of, key_of, title, tuple(missing))


def find_ids(index: KeyIndex, table: Table, column: str = "") -> str:
    """Return the title of `column`, or if it is "", of the column that names the most images."""
    if column or table.is_own:
        return row_ids(table, column or table.header[0])[0]
    step = max(1, len(table.rows) // _SAMPLE_ROWS)
    hits = [index.num_found(table.cells(i)[::step]) for i in range(len(table.header))]
    if not any(hits):
        what = "none of its columns has names of images in the source"
        hint = "name the columns, as in csv:FILE:ID:LABEL"
        raise SourceError(table.name, what, hint)
    return table.header[hits.index(max(hits))]


def row_ids(table: Table, column: str) -> tuple[str, Texts]:
    """Return the title of the column of ids (or the template), and the id of each row.

    `column` is a column, or a path template: {id} means the cell of the column `id`, {id[0]} its
    first letter and {id[0:2]} its first two letters.
    """
    if "{" not in column:
        position = table.column(column)
        return table.header[position], table.checked_cells(position)
    fields = {match.group(): match for match in _FIELD.finditer(column)}
    parts = {
        text: (table.column(match["column"]), letters_of(match)) for text, match in fields.items()
    }
    table.check_quotes(*(table.header[position] for position, _ in parts.values()))

    def fill(row: list[str]) -> str:
        def cell(match: re.Match[str]) -> str:
            position, letters = parts[match.group()]
            return row[position][letters]

        return _FIELD.sub(cell, column)

    return column, Texts.of([fill(row) for row in table.rows])
