"""Columns of a label table, or elements of DICOM headers, as features of examples."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardprep.catalog.tables.row_matching import TableMatch
from shardprep.catalog.tables.table import Table
from shardprep.catalog.target_values import DECIMAL_COMMA, as_number
from shardprep.dataset.example import is_beyond_float32, vanishes_in_float32
from shardprep.dataset.schema import IMAGES, MISSING, PRESENT, PROVIDED, ROWS
from shardprep.errors import OptionName, RecipeError, SourceError, counted, nearest_name
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member
from shardprep.source.string_column import Coded

Value: TypeAlias = "int | float | str | tuple[int, ...] | tuple[bytes, ...] | array[float]"
"""Value of a feature; a feature of rows has a tuple or an array of float32."""
DType = Literal["int64", "float32", "bytes"]
_READ: dict[DType, Callable[[str], int | float | str]] = {
    "int64": lambda cell: int(cell.partition(".")[0]), "float32": float, "bytes": str,
}  # fmt: skip
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
"""Matches a whole number as Python prints it, with at most 18 digits."""
_WHOLE = re.compile(rf"({_INTEGER.pattern})(\.0+)?", re.ASCII)
_FLOAT = re.compile(
    r"(?![-+]?\d+$)([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?inf(inity)?|nan)",
    re.ASCII | re.IGNORECASE,
)
"""Matches a number with a point or an exponent; not 007 or +1, which may be ids."""

_SAMPLE = 1000
DICOM = "dicom/"
"""Prefix of the name of a DICOM column, before a keyword of the DICOM standard (PS3.6)."""
_HEAD_BYTES = 256 << 10
_COLUMNS = OptionName("columns")
RESERVED = {name.partition("/")[0] for name in (*PROVIDED, ROWS)} - {IMAGES}
"""First parts of names that other features have, except features of stacks."""


@dataclass(frozen=True, slots=True)
class Column:
    """A feature and the type of its values. An empty cell is stored as −1, NaN or ""."""

    name: str
    dtype: DType


def make_columns(
    names: Sequence[str], match: TableMatch | None, wanted: Sequence[bool] | NDArray[np.bool_]
) -> tuple[tuple[Column, ...], tuple[Coded[Value], ...]]:
    """Return the features of the columns, and the values of each feature for all keys.

    A column is int64 if all cells are whole numbers of at most 18 digits. They may end in .0, as
    pandas writes them, if float32 would change them. A column is float32 if all cells are numbers,
    otherwise text. Other spellings of whole numbers (007, 1_000, +1) are texts, because they may be
    ids. If an int64 column has an empty cell for a `wanted` key, the feature `<column>/present`
    follows it: 0 if empty, otherwise 1. SourceError without table, RecipeError for reserved names.
    """
    if not names:
        return (), ()
    if match is None:
        raise SourceError(_COLUMNS, "needs a label table", f"use {OptionName('join', 'FILE')}")
    columns: list[Column] = []
    values: list[Coded[Value]] = []
    for name in names:
        if name.split("/")[0] in RESERVED:
            what = f"{name!r} is a reserved name of features"
            raise RecipeError(_COLUMNS, what, "rename the column in its table")
        if name.endswith(PRESENT) and (other := name.removesuffix(PRESENT)) in names:
            what = f"{name!r} is the name of the feature that says whether {other!r} is empty"
            raise RecipeError(_COLUMNS, what, "rename the column in its table")
        cells = match.cells(name)
        dtype, read = _reader(cells.firsts().values(), name, match.table.name)
        columns.append(Column(name, dtype))
        values.append(cells.map(read))
        if dtype == "int64" and (~cells.fit(bool) & wanted).any():
            columns.append(Column(name + PRESENT, dtype))
            values.append(cells.map(lambda cell: int(bool(cell))))
    check_columns(columns)
    return tuple(columns), tuple(values)


def column_notes(
    names: Sequence[str], match: TableMatch | None, wanted: NDArray[np.bool_]
) -> list[str]:
    """Return notes on columns that differ between the rows of an image, or have empty cells."""
    if match is None or not names:
        return []
    notes, lacking = list[str](), list[str]()
    for name in names:
        differ = np.unique(match.key_of[match.odd_rows(name)])
        if number := int(np.count_nonzero(wanted[differ])):
            has = counted(number, "image", "has", "have")
            notes.append(f"column {name!r}: {has} rows that differ; the first row is stored")
        if number := int(np.count_nonzero(~match.cells(name).fit(bool) & wanted)):
            lacking.append(f"{name!r} {number:,}")
    if lacking:
        total = counted(int(np.count_nonzero(wanted)), "image")
        notes.append(f"columns without a value: {', '.join(lacking)} of {total}")
    return notes


def text_notes(columns: Sequence[Column], values: Sequence[Coded[Value]]) -> list[str]:
    """Return a note for each text column whose cells are mostly numbers."""
    texts = (
        (x.name, cells) for x, cells in zip(columns, values, strict=True) if x.dtype == "bytes"
    )
    notes = (
        mixed_note(f"column {name!r} is text", cells) or _comma_note(name, cells)
        for name, cells in texts
    )
    return [one for one in notes if one]


def _comma_note(name: str, cells: Coded[Any]) -> str:
    """Return a note if all values have a decimal comma, else ""."""
    first = next(iter(cells.counts()), "")
    are_numbers = bool(first) and all(map(DECIMAL_COMMA.fullmatch, filter(None, cells.counts())))
    return f"column {name!r} is text: values such as {first!r} have a decimal comma" * are_numbers


def mixed_note(what: str, cells: Coded[Any]) -> str:
    """Return a note that begins with `what` if most, but not all, cells are numbers; else ""."""
    counts = {str(cell): number for cell, number in cells.counts().items() if cell}
    some = [*counts][:: len(counts) // _SAMPLE + 1] if len(counts) > _SAMPLE else []
    if 2 * sum(as_number(cell) is None for cell in some) > len(some):
        return ""  # most are texts: no need to parse a million cells
    odd = {cell: n for cell, n in counts.items() if as_number(cell) is None}
    if not odd or 2 * sum(odd.values()) >= sum(counts.values()):
        return ""
    first = next(iter(odd))
    are = counted(sum(odd.values()), "value", "is not a number", "are not numbers")
    return f"{what}: {are}, such as {first!r}; {OptionName('null', first)} makes it empty"


class RowColumns(NamedTuple):
    """The features with the table rows of each image."""

    columns: tuple[Column, ...] = ()
    values: tuple[Coded[Value], ...] = ()
    without_image: tuple[str, ...] = ()
    """Id of each row without an image."""
    findings: tuple[str, ...] = ()


def make_rows(match: TableMatch, names: Sequence[str]) -> RowColumns:
    """Return the features `rows/COLUMN` and their values: for each key, its rows in order."""
    match.table.check_quotes()
    rows = np.flatnonzero(match.key_of >= 0)
    rows = rows[np.argsort(match.key_of[rows], kind="stable")]
    numbers = np.bincount(match.key_of[rows], minlength=len(match.row_of))
    columns: list[Column] = []
    values: list[Coded[Value]] = []
    for name in names:
        cells = match.table.cells(match.table.column(name)).take(rows).coded()
        dtype, lists = _lists(cells, numbers, name, match.table.name)
        columns.append(Column(f"{ROWS}{name}", dtype))
        values.append(lists)
    check_columns(columns)
    num_images = int((numbers > 0).sum())
    finding = f"{OptionName('rows')}: {counted(len(rows), 'row')} of {counted(num_images, 'image')}"
    finding += f", {counted(len(numbers) - num_images, 'image')} without rows"
    return RowColumns(tuple(columns), tuple(values), match.rows_without_image, (finding,))


def list_columns(match: TableMatch, names: Sequence[str]) -> RowColumns:
    """Return a feature of the same name for each column of JSON lists, and values for all keys."""
    columns: list[Column] = []
    values: list[Coded[Value]] = []
    for name in names:
        of_images = [*match.cells(name).map(_listed)]
        cells = Coded.of(cell for own in of_images for cell in own)
        dtype, lists = _lists(cells, [*map(len, of_images)], name, match.table.name)
        columns.append(Column(name, dtype))
        values.append(lists)
    return RowColumns(tuple(columns), tuple(values))


def _listed(cell: str) -> tuple[str, ...]:
    found = json.loads(cell or "[]")
    texts = (str(one).lower() if isinstance(one, bool | float) else str(one) for one in found)
    are_lost = (one is None or one != one for one in found)  # noqa: PLR0124 - NaN
    return tuple("" if is_lost else text for is_lost, text in zip(are_lost, texts, strict=True))


def _lists(
    cells: Coded[str], numbers: ArrayLike, column: str, table: str
) -> tuple[DType, Coded[Value]]:
    """Return the type of all cells, and their values: image i has `numbers[i]` of the cells."""
    dtype, read = _reader(cells.values, column, table)
    known = [one.encode() if isinstance(one, str) else one for one in map(read, cells.values)]
    every = np.array(known, np.object_ if dtype == "bytes" else dtype)[cells.codes]
    parts = np.split(every, np.cumsum(numbers)[:-1])
    if dtype == "float32":
        return dtype, Coded.apart(array("f", part.tobytes()) for part in parts)
    return dtype, Coded.apart(tuple(part.tolist()) for part in parts)


def check_columns(columns: Sequence[Column]) -> None:
    """Raise RecipeError if two columns have the same name."""
    for name, count in Counter(column.name for column in columns).items():
        if count > 1:
            option = OptionName("rows") if name.startswith("rows/") else _COLUMNS
            what = f"two features are named {name!r}"
            raise RecipeError(option, what, "name each column once, or rename one in its table")


def _reader(
    cells: Collection[str], column: str, table: str
) -> tuple[DType, Callable[[str], int | float | str]]:
    """Return the type of a column with these cells, and the function that parses a cell."""
    others = [cell for cell in cells if cell and not _INTEGER.fullmatch(cell)]
    if others and _are_ids(cells):
        others = []
    dtype: DType = "bytes" if others else "int64"
    if others and all(map(_FLOAT.fullmatch, others)):
        dtype = "float32"
        for cell in cells:
            value = float(cell or 0)
            is_small = bool(cell) and vanishes_in_float32(cell)
            is_infinite = math.isinf(value) and cell[-1].isdigit()  # 1e400, not inf
            if is_small or is_infinite or is_beyond_float32(value):
                number = cell if is_small or is_infinite else f"{value:g}"
                what = f"column {column!r} has {number}, which float32 cannot hold"
                hint = f"leave the column out, or name the cell with {OptionName('null')}"
                raise SourceError(table, what, "write 0, " * is_small + hint)
    return dtype, lambda cell: _READ[dtype](cell) if cell else MISSING[dtype]


def _are_ids(cells: Collection[str]) -> bool:
    """Return whether cells are whole numbers, also written with .0, that float32 would change."""
    whole = [cell for cell in cells if cell]
    return all(map(_WHOLE.fullmatch, whole)) and any(
        float(np.float32(one)) != one for one in map(float, whole)
    )


def with_headers(
    match: TableMatch | None, members: Sequence[Member], names: Sequence[str]
) -> TableMatch | None:
    """Return `match` with the DICOM elements in `names` as columns; missing elements are "".

    RecipeError without pydicom or for an unknown element, SourceError for an unreadable image.
    """
    asked = dict.fromkeys(name for name in names if name.startswith(DICOM))
    if not asked:
        return match
    keywords = [name.removeprefix(DICOM) for name in asked]
    try:
        from shardprep.image.dicom import header_texts, text_keywords
    except ModuleNotFoundError as error:
        hint = "pip install 'shardprep[dicom]'"
        what = "needs pydicom, which is not installed"
        raise RecipeError(next(iter(asked)), what, hint) from error
    known = text_keywords()
    for keyword in keywords:
        if keyword not in known:
            near = nearest_name(keyword, known)
            hint = f"is {DICOM}{near} meant?" if near else "use a name such as dicom/PatientID"
            what = "is not an element of DICOM with a text or a number"
            raise RecipeError(f"{DICOM}{keyword}", what, hint)
    cells = list[list[str]]()
    for one in members:
        try:
            cells.append(header_texts(one.extent.read_head(_HEAD_BYTES), keywords))
        except MemberError as error:
            raise SourceError(one.key, str(error), "download or copy it again") from error
    header: tuple[str, ...] = tuple(asked)
    name, rows = "DICOM headers", cells
    if match is not None:
        name, header = match.table.name, match.table.header + header
        nothing = [""] * len(match.table.header)
        own = (nothing if row < 0 else match.table.rows[row] for row in match.row_of.tolist())
        rows = [row + more for row, more in zip(own, cells, strict=True)]
    every = np.arange(len(rows))
    return TableMatch(Table(name, header, rows), every, every, "key", ())
