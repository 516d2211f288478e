"""Label tables: parse CSV into a header and rows of stripped texts, and stack tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import PurePath
from typing import TextIO, cast, overload

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.tables.long_rows import REMEDY, LongRows
from shardprep.dataset.card import from_cell
from shardprep.errors import OptionName, SourceError, use_one_of
from shardprep.image.signatures import IMAGE_SUFFIXES
from shardprep.source.string_column import Coded, ColumnView, Texts, release
from shardprep.storage.cache import DATA_FRAME, ITEMS
from shardprep.storage.text_file import WHOLE, CsvRows, text_lines

DELIMITERS = ",;\t|"
_AT_ONCE = 1 << 14
_LOOKED_AT = 64
"""Number of first lines that are read to detect columns separated by blanks."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_FILE = re.compile(r"\S+\.[A-Za-z]\w{1,3}")
_SIGNS = re.compile(r"[*?\[\]{}:,]")
MANY_PARTS = 16
"""Number of parts above which a table is named by a pattern of its files."""
_LONG = "\n"
"""Key of a fault that no title is equal to."""


class Rows(ColumnView[list[str]]):
    """The rows of a table, stored as columns; indexing creates a list of cells."""

    __slots__ = ("_number", "columns")

    def __init__(self, columns: Sequence[Texts], number: int) -> None:
        self.columns = columns
        self._number = number

    @classmethod
    def of(cls, rows: Iterable[list[str]], width: int) -> Rows:
        if isinstance(rows, Rows):
            return rows
        number, parts = 0, list[list[Texts]]()
        waiting = iter(rows)
        while some := list(islice(waiting, _AT_ONCE)):
            number += len(some)
            parts.append([Texts.of(list(cells)) for cells in zip(*some, strict=True)])
        columns = [Texts.joined([part[i] for part in parts]) for i in range(width if parts else 0)]
        parts.clear()
        release()
        return cls(columns or [Texts.of([])] * width, number)

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, at: int) -> list[str]: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def __getitem__(self, at: int | slice) -> list[str] | Rows:
        if isinstance(at, slice):
            number = len(range(self._number)[at])
            return Rows([column[at] for column in self.columns], number)
        return [column[at] for column in self.columns]

    def __iter__(self) -> Iterator[list[str]]:
        return map(list, zip(*self.columns, strict=True))


class UnsureCellsError(SourceError):
    """It is not sure which cells a column has: a quote is open, or two columns have its title."""


class OpenQuoteError(UnsureCellsError):
    """A quote is not closed: a cell that is needed spans several lines, or rows are missing."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; each row has exactly one cell for each column of the header."""

    name: str
    header: tuple[str, ...]
    rows: Sequence[list[str]]
    num_joined: int = 0
    """Number of the last columns that come from joined tables."""
    parts: tuple[tuple[str, int], ...] = ()
    """Name and number of rows of each table that was stacked; () for a single table."""
    num_beside: int = 0
    """Number of tables in folders whose path ends like the folder of this file; 0 if unknown."""
    faults: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Column with a cell that spans lines → file and problem; "" if rows are missing, `_LONG` if
    rows are too long."""
    is_own: bool = False
    """Whether the table is of array files or items, so that its first column has keys of images."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Column of a table of items → its title in the file, if it differs from the header's."""
    keys: Mapping[str, Texts] = field(default_factory=dict)
    """Title of the column of images in `--items` → key of each row, for joins by keys."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Rows.of(self.rows, len(self.header)))

    def label_rule(self, id_column: str, columns: Iterable[str]) -> str:
        """Return the value of `--labels` that names columns of this table."""
        names = ",".join(columns)
        return f"column:{names}" if self.is_own else f"csv:{self.files}:{id_column}:{names}"

    def naming(self, option: str, columns: str) -> str:
        """Return the hint to name columns of this table, such as x,y, with an option."""
        rule = "column" if self.is_own else "csv:FILE:ID"
        return f"name the columns: {OptionName(option, f'{rule}:{columns}')}"

    @property
    def is_frame(self) -> bool:
        """Whether Python passed the table as an object, so that no option names its columns."""
        return self.name == DATA_FRAME

    @property
    def has_numbers(self) -> bool:
        """Whether the columns are called 1, 2, 3, …, because the table has no header."""
        return all(map(str.isdecimal, self.header))

    @property
    def file_names(self) -> list[str]:
        return [name for name, _ in self.parts] or [self.name]

    @property
    def files(self) -> str:
        """The name of the table in options: names of files with commas between, or their pattern.

        Many files have a pattern such as `boxes/{id}.csv`, if it fits no other file.
        """
        names = self.file_names
        if MANY_PARTS < len(names) == self.num_beside:
            ends = {(one.rpartition("/")[0], PurePath(one).suffix) for one in names}
            (folder, suffix), *others = ends
            names_of_field = [one for one in ("id", "file") if one not in self.header]
            if folder and names_of_field and not (others or _SIGNS.search(folder)):
                return f"{folder}/{{{names_of_field[0]}}}{suffix}"
        return ",".join(names)

    def with_cells(self, name: str, cells: Mapping[str, str]) -> Table:
        """Return the table with another name, and a column of equal cells for each of `cells`."""
        number = np.zeros(len(self.rows), np.int64)
        kept = [i for i, title in enumerate(self.header) if title not in cells]
        columns = [Texts.of([cell]).take(number) for cell in cells.values()]
        rows = Rows([*columns, *map(self.cells, kept)], len(number))
        return replace(self, name=name, header=(*cells, *(self.header[i] for i in kept)), rows=rows)

    def with_columns(self, other: Table, places: Sequence[int], rows: NDArray[np.int64]) -> Table:
        """Return the table with columns of `other` added.

        `rows` has the row of `other` for each row, or the length of `other` for empty cells.
        """
        nothing = Texts.of([""])
        columns = [self.cells(i) for i in range(len(self.header))]
        columns += [Texts.joined([other.cells(i), nothing]).take(rows) for i in places]
        added = [other.header[i] for i in places]
        faults = {title: other.faults[title] for title in added if title in other.faults}
        return replace(
            self,
            header=(*self.header, *added),
            rows=Rows(columns, len(self.rows)),
            num_joined=self.num_joined + len(places),
            faults=faults | dict(self.faults),
        )

    def cells(self, place: int) -> Texts:
        return cast("Rows", self.rows).columns[place]

    def checked_cells(self, place: int) -> Texts:
        """Return the cells of a column; OpenQuoteError if rows are missing or cells span lines."""
        self.check_quotes(self.header[place])
        return self.cells(place)

    def without(self, null: Collection[str]) -> Table:
        """Return the table with "" for the cells in `null`."""
        values, nothing = Texts.of(null).array, Texts.of([""]).array[0]
        columns = []
        for column in cast("Rows", self.rows).columns:
            is_null = pc.is_in(column.array, value_set=values)
            is_any = pc.any(is_null).as_py()  # columns without such cells are not copied
            columns.append(Texts(pc.if_else(is_null, nothing, column.array)) if is_any else column)
        return replace(self, rows=Rows(columns, len(self.rows)))

    def read_from_cells(self) -> Table:
        """Return the table without the `'` that exports write before cells like formulas."""
        columns = [
            Texts.of(map(from_cell, one)) if pc.any(pc.starts_with(one.array, "'")).as_py() else one
            for one in cast("Rows", self.rows).columns
        ]
        header = tuple(map(from_cell, self.header))
        return replace(self, header=header, rows=Rows(columns, len(self.rows)))

    def parts_of_rows(self) -> Coded[str]:
        if not self.parts:
            return Coded.constant(self.name, len(self.rows))
        numbers = [number for _, number in self.parts]
        return Coded(np.repeat(np.arange(len(numbers)), numbers), [name for name, _ in self.parts])

    def column(self, name: str) -> int:
        """Return the index of a column, by its exact name or regardless of case; or SourceError."""
        titles = [self.titles.get(title, title) for title in self.header]
        lowered = [title.lower() for title in self.header]
        for known, one in ((self.header, name), (titles, name), (lowered, name.lower())):
            if one in known:
                place = known.index(one)
                if self.has_twins(title := self.header[place]):
                    what = f"has two columns {title!r}"
                    raise UnsureCellsError(self.name, what, "rename or drop one")
                return place
        hint = use_one_of(name, [*dict.fromkeys(titles)], len(titles))
        if name == "index" and self.name in (DATA_FRAME, ITEMS):
            hint += ", or frame.reset_index(), which makes the index a column"
        raise SourceError(self.name, f"has no column {name!r}", hint)

    def has_twins(self, title: str) -> bool:
        """Return whether several columns have this title, but different cells."""
        own = [self.cells(i).array for i, one in enumerate(self.header) if one == title and title]
        return not all(map(own[0].equals, own[1:])) if own else False

    def check_rows(self) -> Table:
        """Return the table; SourceError if a row has more cells than the table has columns."""
        if _LONG in self.faults:
            raise SourceError(*self.faults[_LONG], REMEDY)
        return self

    def check_quotes(self, *names: str) -> None:
        """Raise an OpenQuoteError if rows are missing, or if a cell of the columns spans lines."""
        for name in ("", *names):
            if name in self.faults:
                hint = "close the quote; a quote within a quoted cell is written twice"
                raise OpenQuoteError(*self.faults[name], hint)


def parse_table(
    data: bytes, name: str, *, has_header: bool = True, null: Collection[str] = ()
) -> Table:
    """Return the table in the bytes of a CSV file; SourceError if it is empty or not a CSV.

    The delimiter is the most frequent of comma, semicolon, tab and bar in the first line, or runs
    of blanks if these make columns. Short rows are filled with "". Without a header, columns are
    called 1, 2, 3 …; a table of blanks has a header if its first line is unlike the others. A first
    line with the name of an image file, in a column of such names, is a row. Cells
    in `null` become "". Open quotes and long rows (see `LongRows`) only become `faults`, because
    files that are not label tables may have them.
    """
    stream = text_lines(data)
    num_above, words = _columns_of_blanks(stream)
    stream.seek(0)
    line = stream.readline()
    stream.seek(0)
    in_blanks = (f"{line.strip()}\n" for line in islice(stream, num_above, None))
    sign = " " if words else max(DELIMITERS, key=line.count)
    lines = CsvRows(in_blanks if words else stream, sign)
    stated = _titles(words)
    rows: Iterator[list[str]] = ([cell.strip() for cell in line] for line in lines if any(line))
    try:
        first = next(rows, None)
        if first is None:
            raise SourceError(name, "is empty", "give it a header line and a row for each image")
        header = stated or _without_ending(first)
        second = next(rows, None)
        rows = rows if second is None else chain([second], rows)
        is_row = not has_header or bool(words) or _names_image(first, second or first)
        if is_row and not stated:
            header, rows = tuple(str(i + 1) for i in range(len(first))), chain([first], rows)
        long = LongRows(lines, len(header), sign)
        read = Rows.of(long.fitted(rows, frozenset(null)), len(header))
        titles = {WHOLE: "", **dict(enumerate(header))}
        faults = {titles[i]: (name, what) for i, what in lines.faults.items() if i in titles}
        if texts := long.texts(read.columns, header[-1]):
            last = read.columns[-1].replaced(np.array([*texts]), Texts.of(texts.values()))
            read = Rows([*read.columns[:-1], last], len(read))
        elif what := long.fault:
            faults[_LONG] = name, what
        return Table(name, header, read, faults=faults)
    except csv.Error as error:
        hint = "close its quotes, or shorten the cell"
        raise SourceError(name, f"is not readable as CSV ({error})", hint) from error


def _names_image(first: Sequence[str], second: Sequence[str]) -> bool:
    pairs = zip(first, second, strict=False)
    return any(
        all(PurePath(one).suffix.lower() in IMAGE_SUFFIXES for one in pair) for pair in pairs
    )


def _columns_of_blanks(stream: TextIO) -> tuple[int, list[list[str]]]:
    """Return the number of lines above a table with blanks between columns, and its first rows.

    Lines above are comments, or the number of rows. All rows must have the same number of words,
    but the first line may lack a title for the ids, and one column must have numbers or file names.
    The result is (0, []) for other texts.
    """
    lines = [*islice(stream, _LOOKED_AT)]
    above = next((i for i, one in enumerate(lines) if one.strip() and one[:1] != "#"), 0)
    start = lines[above : above + 2]
    if len(start) > 1 and start[0].strip().isdecimal() and len(start[1].split()) > 1:
        number = sum(bool(one.strip()) for one in chain(lines[above + 1 :], stream))
        above += int(lines[above]) in (number, number - 1)
    words = [one.split() for one in lines[above:] if one.strip()]
    width = len(words[-1]) if words else 0
    is_even = width > 1 and all(len(row) == width for row in words[1:])
    if not is_even or len(words[0]) not in (width, max(2, width - 1)):
        return 0, []
    has_sign = any(sign in lines[above] for sign in DELIMITERS)
    return (above, words) if _marks(words) and not has_sign else (0, [])


def _marks(words: Sequence[Sequence[str]]) -> dict[int, re.Pattern[str]]:
    """Return position of a column → form that all its cells below the first line have."""
    columns = enumerate(zip(*words[1:], strict=True))
    forms = ((i, form, column) for i, column in columns for form in (_NUMBER, _FILE))
    return {i: form for i, form, column in forms if all(map(form.fullmatch, column))}


def _titles(words: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the titles in the first line of a table of blanks, or () if this line is a row."""
    if words and len(words[0]) < len(words[-1]):
        return ("1", *words[0])
    is_row = any(form.fullmatch(words[0][at]) for at, form in _marks(words).items())
    return () if is_row or not words else tuple(words[0])


def _without_ending(titles: list[str]) -> tuple[str, ...]:
    """Return the titles without the empty ones at the end, which spreadsheets add."""
    number = max((place for place, title in enumerate(titles, 1) if title), default=0)
    return tuple(titles[:number] or titles)


def table_of(name: str, rows: Sequence[dict[str, str]], null: Collection[str] = ()) -> Table:
    """Return rows, each given as column → cell, as a table; cells in `null` become ""."""
    header = tuple(dict.fromkeys(key for row in rows for key in row))
    table = Table(name, header, [[row.get(key, "") for key in header] for row in rows])
    return table.without(null) if null else table


def stacked(tables: list[Table]) -> Table:
    """Return the rows of all tables as one table; "" in columns that a table lacks."""
    if len(tables) == 1:
        return tables[0]
    header = tuple(dict.fromkeys(title for table in tables for title in table.header))

    def cells(table: Table, title: str) -> Texts:
        if title in table.header:
            return table.cells(table.header.index(title))
        return Texts.of([""]).take(np.zeros(len(table.rows), np.int64))

    columns = [Texts.joined([cells(table, title) for table in tables]) for title in header]
    parts = tuple((table.name, len(table.rows)) for table in tables)
    rows = Rows(columns, sum(number for _, number in parts))
    faults = {title: fault for table in reversed(tables) for title, fault in table.faults.items()}
    name = " + ".join(table.name for table in tables)
    number = tables[0].num_beside
    found = Table(name, header, rows, parts=parts, num_beside=number, faults=faults)
    return found if "," in found.files else replace(found, name=found.files)
