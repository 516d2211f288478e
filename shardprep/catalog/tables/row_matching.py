"""Find the ids of a table, match its rows to images, and join tables."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from shardprep.catalog.names import given_split, stem, words_of, words_of_split
from shardprep.catalog.tables.key_index import (
    AmbiguousIdError,
    Ints,
    KeyIndex,
    Origin,
    origin_of,
    other_case,
    padded_keys,
)
from shardprep.catalog.tables.table import Table
from shardprep.errors import OptionName, SourceError, shown, some_of
from shardprep.recipe.rules import SLICE, letters_of
from shardprep.source.string_column import Coded, Texts, booleans, positions
from shardprep.storage.text_file import INDEX

_FIELD = re.compile(rf"\{{(?P<column>[^{{}}\[\]]+)(\[{SLICE}\])?\}}")
_SPLIT_COLUMNS = frozenset(("split", "subset", "set", "partition", "usage", "dataset", "phase"))
_WORD_AT_END = re.compile("[-_][A-Za-z]+$")
_BETWEEN = re.compile(r"[\s\[\](),;|\"']+")
"""Matches what is before, between and after values that a cell lists."""
_OF_IDS = frozenset(("id", "image", "img", "file", "filename", "name", "path", "photo", "key"))
SAMPLE_ROWS = 500
"""Approximate number of rows that are searched to detect the column of ids."""
_MOST_COMPOSED = 200_000
"""Maximum number of images to search in `_composed`."""


class NoIdsError(SourceError):
    """No column of a table has the names of images."""


@dataclass(frozen=True, slots=True)
class TableMatch:
    """The rows of a table, and the images that they belong to."""

    table: Table
    row_of: Ints
    """First row of each key, or −1 without a row."""
    key_of: Ints
    """Position of the key of each row, or −1 without an image."""
    id_column: str
    """The column of ids, or the path template that combines columns to ids."""
    rows_without_image: tuple[str, ...]

    def check(self, key: str) -> None:
        """Raise SourceError, with `key` as an example of a key, if no row belongs to an image."""
        if (self.key_of < 0).all():
            if not self.table.rows:
                raise SourceError(self.table.name, "has no rows", "write a row for each image")
            such = shown(self.rows_without_image[0])
            what = f"no id in its column {self.id_column!r} names an image, such as {such}"
            hint = f"write ids such as {shown(key)}, or name the column of ids"
            raise SourceError(self.table.name, what, hint)

    def with_columns(
        self, other: TableMatch | None, names: Collection[str], single: Collection[str] = ()
    ) -> TableMatch:
        """Return the match with columns of `names` and `single` that only the rows of `other` have.

        SourceError if rows of an image differ in a column of `single`.
        """
        if other is None or other.table.is_own:
            return self
        known = {title.lower() for title in self.table.header}
        wanted = {one.lower() for one in (*names, *single)} - known
        new = [i for i, title in enumerate(other.table.header) if title.lower() in wanted]
        for title in (other.table.header[i] for i in new):
            if title.lower() in map(str.lower, single):
                other.single(title)
        rows = np.append(other.row_of, -1)[self.key_of]  # key −1 gets the appended row
        rows = np.where(rows < 0, len(other.table.rows), rows)
        return replace(self, table=self.table.with_columns(other.table, new, rows))

    def cells(self, column: str) -> Coded[str]:
        """Return the cell of a column for each key, or "" for a key without a row."""
        cells = self._cells_of_rows(column)
        codes = np.append(cells.codes, -1)[self.row_of]  # row −1 gets the appended code of None
        return Coded(codes, cells.values).filled("")

    def single(self, column: str) -> Coded[str]:
        """Return `cells`; SourceError if the rows of an image have different cells."""
        if len(odd := self.odd_rows(column)):
            one, two = int(self.row_of[self.key_of[odd[0]]]), int(odd[0])
            cells = " and ".join(repr(self._cells_of_rows(column)[row]) for row in (one, two))
            what = f"rows {one + 1:,} and {two + 1:,} of an image have {cells} in column {column!r}"
            raise SourceError(self.table.name, what, "give each image one value in this column")
        return self.cells(column)

    def odd_rows(self, column: str) -> Ints:
        """Return the rows, in order, that differ in a column from the first row of their image."""
        codes = self._cells_of_rows(column).codes
        rows: Ints = np.flatnonzero(self.key_of >= 0)
        return rows[np.flatnonzero(codes[rows] != codes[self.row_of[self.key_of[rows]]])]

    def _cells_of_rows(self, column: str) -> Coded[str]:
        return self.table.cells(self.table.column(column)).coded()


def match_table(index: KeyIndex, table: Table, id_column: str = "") -> TableMatch:
    """Return the match of rows to images; `id_column` "" means to detect the column of ids.

    It may have no image (see `TableMatch.check`). For errors see `find_ids` and `find_rows`.
    """
    column = id_column if "{" in id_column else find_ids(index, table, id_column)
    key = "match", id(table), column
    if key not in index.known:
        index.known[key] = table, _match(index, table, column)
    found: TableMatch = index.known[key][1]
    return found


def _match(index: KeyIndex, table: Table, id_column: str) -> TableMatch:
    title, ids = row_ids(table, id_column)
    # In tables of array files and items, the first column has whole keys.
    is_whole = table.is_own and title == table.header[0]
    key_of = positions(ids, index.keys)[0] if is_whole else find_rows(index, table, title, ids)
    row_of = np.full(len(index.keys), -1, np.int64)
    rows = np.flatnonzero(key_of >= 0)[::-1]  # assigned last, the first of several rows stays
    row_of[key_of[rows]] = rows
    return TableMatch(table, row_of, key_of, title, tuple(ids.take(np.flatnonzero(key_of < 0))))


def find_rows(index: KeyIndex, table: Table, id_column: str, ids: Texts) -> Ints:
    """Return the position of the key of each row, or −1; errors as in `KeyIndex.find_all`."""
    try:
        return index.find_all(ids, table.name, _origins(table))
    except AmbiguousIdError as error:
        folders = dict.fromkeys(index.keys[at].rpartition("/")[0] for at in error.found[:2])
        short, long = min(folders, key=len, default=""), max(folders, key=len, default="")
        if (start := long.removesuffix(f"/{short}")) != long:
            copies = OptionName("exclude", f"{glob.escape(start)}/*")
            error.hint = f"{copies} leaves out one of them"  # a path cannot mean `short` alone
            raise
        field = id_column if "{" in id_column else f"{{{id_column}}}"
        paths = " or ".join(f"{folder}/{field}" for folder in folders if folder)
        error.hint = f"write {paths} instead of {id_column}" if paths else error.hint
        raise


def _origins(table: Table) -> Coded[Origin]:
    """Return the origin of each row: its table, and its split if a column states all splits."""
    origins = table.parts_of_rows().map(origin_of)
    _, stated = stated_splits(table)
    if not len(stated):
        return origins
    return Coded.of(one._replace(split=split) for one, split in zip(origins, stated, strict=True))


def is_of_splits(title: str) -> bool:
    """Return whether a title usually means a column of splits, such as subset or train-valid."""
    name = title.lower().rpartition(".")[2]
    return name in _SPLIT_COLUMNS or len(words_of_split(name)[0]) > 1  # such as train-valid


def stated_splits(table: Table) -> tuple[str, Coded[str | None]]:
    """Return the column that states splits, or "", and the split of each row."""
    for place, title in enumerate(table.header):
        if is_of_splits(title):
            stated = table.cells(place).coded().map(lambda cell: given_split([cell]))
            if len(stated) and stated.are_there.all():
                return title, stated
    return "", Coded.of([])


def joined(table: Table, other: Table, key: str, wanted: Collection[str] = ()) -> Table:
    """Return `table` with the additional columns of `other`, joined by the column `key`.

    `key` "" means the only common column, or the first if `other` has no header. All rows of
    `table` are kept. If `other` has several rows for a key, the first row of the same split is
    used, or of an unknown split. SourceError if the tables share no key, or if rows of one key and
    split have different cells in a `wanted` column.
    """
    if other.has_numbers:
        key = key or ("1" if "1" in table.header else "")
        titles = {one: joined_title(table, other, one) for one in other.header if one != key}
        other = replace(other, header=tuple(titles.get(one, one) for one in other.header))
    key = key or _shared_column(table, other)
    theirs = other.checked_cells(other.column(key))
    ours = table.checked_cells(table.column(key))
    found, _ = positions(ours, theirs)
    if key in table.keys:
        by_key, _ = positions(table.keys[key], theirs)
        found = np.where(found < 0, by_key, found)
    splits, others = (_origins(one).map(lambda origin: origin.split) for one in (table, other))
    if splits.are_there.any() and others.are_there.any():
        own, _ = positions(_of_split(ours, splits), _of_split(theirs, others))
        unknown, _ = positions(
            _of_split(ours, Coded.constant(None, len(ours))), _of_split(theirs, others)
        )
        is_other = splits.are_there & (found >= 0) & others.are_there[found]
        found = np.where(own >= 0, own, np.where(is_other, unknown, found))
    if len(ours) and len(other.rows) and (found < 0).all():
        what = f"no cell of its column {key!r}, such as {shown(theirs[0])!r}, is in {table.name}"
        raise SourceError(other.name, what, f"write cells such as {shown(ours[0])!r}")
    _check_equal(other, _of_split(theirs, others), key, wanted)
    new = [i for i, title in enumerate(other.header) if title not in table.header]
    return table.with_columns(other, new, np.where(found < 0, len(theirs), found))


def _shared_column(table: Table, other: Table) -> str:
    shared = [title for title in table.header if title in other.header]
    if len(shared) == 1:
        return shared[0]
    what = f"shares no column with {table.name}, which has {some_of(table.header, 8)}"
    hint = "give the column that joins the tables the same title in both"
    if shared:
        what = f"shares {len(shared)} columns with {table.name}: {some_of(shared)}"
        hint = "drop or rename all but one of these columns"
        if not other.is_frame:
            hint = f"name the column that joins: {OptionName('join', f'{other.name}:COLUMN')}"
    raise SourceError(other.name, what, hint)


def _check_equal(table: Table, keys: Texts, key: str, wanted: Collection[str]) -> None:
    """Raise a SourceError if rows of one key in `keys` differ in a column of `wanted`."""
    columns = [title for title in table.header if title in wanted and title != key]
    firsts = positions(keys, keys)[0] if columns else np.arange(len(keys))
    if (firsts == np.arange(len(keys))).all():
        return
    for title in columns:
        cells = table.cells(table.column(title))
        codes = cells.coded().codes
        if len(odd := np.flatnonzero(codes != codes[firsts])):
            row, first = int(odd[0]), int(firsts[odd[0]])
            both = f"{cells[first]!r} and {cells[row]!r} in column {title!r}"
            of = f"{key} {shown(table.cells(table.column(key))[row])!r}"
            what = f"gives {of} both {both} (rows {first + 1:,} and {row + 1:,})"
            raise SourceError(table.name, what, f"give one row for each {key}")


def joined_title(table: Table, other: Table, title: str) -> str:
    """Return the title of a column of `other` after a join: `classes.2` if both tables have a 2."""
    is_taken = other.has_numbers and title in table.header
    return f"{stem(other.name)}.{title}" if is_taken else title


def _of_split(cells: Texts, splits: Coded[str | None]) -> Texts:
    """Return split and cell of each row, combined in one text."""
    codes = np.where(splits.codes < 0, len(splits.values), splits.codes)
    lead = Texts.of([*(f"{split}\n" for split in splits.values), "\n"]).take(codes)
    return Texts(pc.binary_join_element_wise(lead.array, cells.array, Texts.of([""]).array[0]))


def find_ids(index: KeyIndex, table: Table, column: str = "") -> str:
    """Return the title of `column`; "" means the column that names the most images.

    The result may be a template that cuts a common ending of the ids. NoIdsError if no column names
    images, AmbiguousIdError if two columns name different images in a row.
    """
    if column or table.is_own:
        return row_ids(table, column or table.header[0])[0]
    key, step = ("ids", id(table)), max(1, len(table.rows) // SAMPLE_ROWS)
    if key not in index.known:
        several = [table.cells(i)[::step] for i in range(len(table.header))]
        hits = [index.num_found(cells) for cells in several]
        if hits and not any(hits) and table.rows:  # once for all columns: it reads all keys
            fits = index.are_found(Texts.joined(several), in_any_case=True)
            sums = fits.reshape(len(several), -1).sum(axis=1).tolist()
            hits = [n if 2 * n > len(several[0]) else 0 for n in sums]
        index.known[key] = table, hits
    hits = index.known[key][1]
    titled = [0 if INDEX.fullmatch(one) else n for one, n in zip(table.header, hits, strict=True)]
    hits = titled if any(titled) else hits
    if not any(hits):
        for i, title in enumerate(table.header):
            if ids := _ids_before_ending(index, title, table.cells(i)[::step]):
                return ids
        if not table.rows:
            raise NoIdsError(table.name, "has no rows", "write a row for each image")
        numbers = {
            one for i in range(len(hits)) for one in table.cells(i)[::step] if one.isdecimal()
        }
        if lost := without_zeros(index.keys, numbers):
            hint = f"write {lost}, and so on"
            hint = "read the table as texts (pandas: dtype=str)" if table.is_frame else hint
            raise NoIdsError(table.name, f"its ids lack the zeros of {lost}", hint)
        what = "none of its columns has names of images in the source"
        hint = f"write names such as {shown(index.keys[0])}"
        hint += "" if table.is_frame else ", or name a path of columns such as {study}/{series}"
        firsts = table.rows[0] if table.rows else [""] * len(table.header)
        cells = [f"{a} ({shown(b, 40)})" for a, b in zip(table.header, firsts, strict=True)]
        same = next(filter(None, (other_case(one, index.keys) for one in firsts if one)), "")
        raise NoIdsError(table.name, f"{what}: {some_of(cells, 8)}{same}", hint)
    best = hits.index(max(hits))
    named = [best, *(i for i in range(len(hits)) if i != best and _are_pairs(table, best, i, hits))]
    titles = [table.header[i] for i in named]
    usual = [one for one in titles if _OF_IDS.intersection(words_of(one))]
    if len(titles) > 1 and len(usual) != 1:
        what = f"columns {' and '.join(map(repr, titles[:2]))} name different images in a row"
        hint = f"say which has the ids, as in csv:{table.files}:{titles[0]}:LABEL"
        hint = "drop one of these columns" if table.is_frame else hint
        raise AmbiguousIdError(table.name, what, hint)
    return usual[0] if len(titles) > 1 else titles[0]


def without_zeros(keys: Sequence[str], cells: Iterable[str]) -> str:
    """Return the key that a number in the cells means if zeros are put before it, or ""."""
    numbers = {one for one in cells if one.isdecimal()}
    padded = padded_keys(keys) if numbers else {}
    return next((padded[one] for one in sorted(numbers) if one in padded), "")


def listed_column(index: KeyIndex, table: Table) -> str:
    """Return the title of the column of ids in a list, such as an exclude list.

    It is the only column with a usual title, otherwise the column that names the most images. An
    unnamed index of pandas is not considered, because its numbers may be names of other images.
    """
    titles = [one for one in table.header if not INDEX.fullmatch(one)] or [table.header[0]]
    usual = [one for one in titles if _OF_IDS.intersection(words_of(one))]
    if len(titles) == 1 or len(usual) == 1:
        return (usual or titles)[0]
    with contextlib.suppress(NoIdsError):
        titles = [one for one in (find_ids(index, table),) if one in titles] or titles
    return titles[0]


def listed_images(match: TableMatch, keys: Sequence[str]) -> str:
    """Return a cell of ids that is a list with the name of an image, or ""."""
    index = KeyIndex(keys)
    for cell in row_ids(match.table, match.id_column)[1][:SAMPLE_ROWS]:
        values = [*filter(None, _BETWEEN.split(cell))]
        if values != [cell] and any(map(index.find, values)):
            return cell
    return ""


def _are_pairs(table: Table, first: int, second: int, hits: Sequence[int]) -> bool:
    """Return whether two columns have the same ids in different rows, as in a list of pairs."""
    if 2 * hits[second] <= hits[first]:
        return False
    own, others = (table.cells(place)[:SAMPLE_ROWS] for place in (first, second))
    shared = {*own.coded().values} & {*others.coded().values}
    differ = sum(one != other for one, other in zip(own, others, strict=True))
    return 2 * min(len(shared), differ) > len(own)


def _ids_before_ending(index: KeyIndex, title: str, cells: Texts) -> str:
    """Return a template that cuts the common ending of all cells, such as `{id[:-6]}`, or ""."""
    endings = {match and match[0] for match in map(_WORD_AT_END.search, cells)}
    ending = endings.pop() if len(endings) == 1 else None
    if not ending or _FIELD.fullmatch(f"{{{title}}}") is None or ":" in title:
        return ""
    number = index.num_found(Texts.of([one.removesuffix(ending) for one in cells]))
    return f"{{{title}[:-{len(ending)}]}}" if 2 * number > len(cells) else ""


def match_ids(index: KeyIndex, table: Table) -> TableMatch:
    """Return the match of rows to images by an id column or a path template; else SourceError."""
    try:
        return match_table(index, table)
    except SourceError:
        for ids in _paths_of_columns(index, table):
            with contextlib.suppress(SourceError):
                return match_table(index, table, ids)
        raise


def clear_ids(index: KeyIndex, table: Table) -> str:
    """Return the column or path template of the ids, even if some ids fit several images."""
    try:
        return match_ids(index, table).id_column
    except AmbiguousIdError:
        return find_ids(index, table)


def _paths_of_columns(index: KeyIndex, table: Table) -> list[str]:
    """Return the templates of `_paths`; templates whose ids fit one image most often come first."""
    ids = {path: {*row_ids(table, path)[1][:SAMPLE_ROWS]} for path in _paths(index, table)}
    return sorted(ids, key=lambda path: -sum(len(index.find(one)) == 1 for one in ids[path]))


def _paths(index: KeyIndex, table: Table) -> Iterator[str]:
    """Yield path templates that fit an image of one row: `{dataset}/{image}`, `v{n}/{i}`.

    A folder is a cell, or the first part of a title with a cell: `video_0` for 0 in `video_id`. The
    row is the first row without equal cells, or else the first row.
    """
    some = [table.rows[at] for at in range(min(SAMPLE_ROWS, len(table.rows)))]
    row = next((one for one in some if len({*one}) == len(one)), [*some, []][0])
    pairs = [*zip(row, table.header, strict=False)]
    fields = dict[str, str]()
    for cell, title in pairs:
        word = title.rpartition("_")[0] or title
        fields |= {f"{word}{sign}{cell}": f"{word}{sign}{{{title}}}" for sign in ("", "_", "-")}
    fields |= {cell: f"{{{title}}}" for cell, title in reversed(pairs)}
    for cell, title in pairs:
        for at in index.find(cell):
            folders = index.keys[at].split("/")[:-1]
            first = next((i for i, one in enumerate(folders) if one in fields), None)
            if first is not None:
                parts = [fields.get(one, one) for one in folders[first:]]
                yield "/".join([*parts, f"{{{title}}}"])
    yield from _composed(index, {cell: title for cell, title in reversed(pairs) if cell})


def _composed(index: KeyIndex, titles: Mapping[str, str]) -> Iterator[str]:
    """Yield the template of the name that has most letters from cells: `p_{patient}_x_{x_coord}`.

    `titles` maps cells to titles of columns. The name must have two or more of the cells as words.
    """
    titles = {cell: one for cell, one in titles.items() if _FIELD.fullmatch(f"{{{one}}}")}
    letters = np.zeros(len(index.keys), np.int64)
    for cell in titles if len(letters) <= _MOST_COMPOSED else ():
        letters += len(cell) * booleans(pc.match_substring(index.keys.array, cell))
    if not letters.any():
        return
    name = index.keys[int(letters.argmax())].rpartition("/")[2]
    words = "|".join(map(re.escape, sorted(titles, key=len, reverse=True)))
    word = re.compile(rf"(?<![^\W_])({words})(?![^\W_])")
    found = word.findall(name)
    if len({*found}) == len(found) > 1:
        ids = word.sub(lambda match: f"{{{titles[match[1]]}}}", name)
        yield ids.removesuffix(f".{name.rpartition('.')[2]}")


def row_ids(table: Table, column: str) -> tuple[str, Texts]:
    """Return the title of the column of ids, or the template, and the id of each row.

    `column` is a title or a path template: {id} means the cell of the column `id`, {id[0]} its
    first letter and {id[0:2]} its first two letters. SourceError without such a column.
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
