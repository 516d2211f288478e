"""Columns of a label table, or elements of DICOM headers, that become features of examples."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.tables.row_matching import TableMatch
from shardprep.catalog.tables.table import Table
from shardprep.dataset.example import is_beyond_float32
from shardprep.errors import OptionName, RecipeError, SourceError
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member
from shardprep.source.string_column import Coded

Value = int | float | str
DType = Literal["int64", "float32", "bytes"]
_READ: dict[DType, tuple[Callable[[str], Value], Value]] = {
    "int64": (int, -1),
    "float32": (float, math.nan),
    "bytes": (str, ""),
}
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
"""Matches a whole number in the form that Python prints."""
_FLOAT = re.compile(
    r"(?![-+]?\d+$)([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?inf(inity)?|nan)",
    re.ASCII | re.IGNORECASE,
)
"""Matches a number with a point or an exponent, but no other spelling of a whole number (an id)."""

DICOM = "dicom/"
"""Prefix of the name of a DICOM column, before a keyword of the DICOM standard (PS3.6)."""
_HEAD_BYTES = 256 << 10
_PRESENT = "/present"
"""Suffix of the feature that is 0 for empty cells of a whole-number column, otherwise 1."""
_COLUMNS = OptionName("columns")


@dataclass(frozen=True, slots=True)
class Column:
    """A feature and the type of its values. An empty cell is stored as −1, NaN or ""."""

    name: str
    dtype: DType


def make_columns(
    names: Sequence[str], match: TableMatch | None, wanted: Sequence[bool] | NDArray[np.bool_]
) -> tuple[tuple[Column, ...], tuple[Coded[Value], ...]]:
    """Return the features of the columns, and the values of each feature for all keys.

    A column is int64 if all cells are whole numbers of at most 18 digits, float32 if all are
    numbers, otherwise text. Other spellings of whole numbers (007, 1_000, +1) are texts, because
    ids must not change. If an int64 column has an empty cell for a `wanted` key,
    `<column>/present` follows it: 0 for an empty cell, otherwise 1.
    """
    if not names:
        return (), ()
    if match is None:
        hint = f"use {OptionName('join')} FILE"
        raise SourceError(_COLUMNS, "needs a label table", hint)
    columns: list[Column] = []
    values: list[Coded[Value]] = []
    for name in names:
        if name.split("/")[0] in ("image", "label", "labels", "target", "targets", "text", "texts"):
            raise RecipeError(_COLUMNS, f"{name!r} is the name of another feature")
        cells = match.cells(name)
        dtype = _dtype(cells)
        read, nothing = _READ[dtype]
        columns.append(Column(name, dtype))
        values.append(cells.map(partial(_read_cell, read=read, nothing=nothing)))
        if dtype == "float32":
            _check_range(values[-1], name, match.table.name)
        if dtype == "int64" and (~cells.fit(bool) & wanted).any():
            columns.append(Column(name + _PRESENT, dtype))
            values.append(cells.map(lambda cell: int(bool(cell))))
    check_columns(columns)
    return tuple(columns), tuple(values)


def check_columns(columns: Sequence[Column]) -> None:
    """Raise RecipeError if two columns have one name."""
    for name, count in Counter(column.name for column in columns).items():
        if count > 1:
            raise RecipeError(_COLUMNS, f"{name!r} is the name of two features")


def _read_cell(cell: str, read: Callable[[str], Value], nothing: Value) -> Value:
    return read(cell) if cell else nothing


def _dtype(cells: Coded[str]) -> DType:
    there = cells.firsts().values()
    others = [cell for cell in there if cell and not _INTEGER.fullmatch(cell)]
    if not others:
        return "int64"
    return "float32" if all(_FLOAT.fullmatch(cell) for cell in others) else "bytes"


def _check_range(numbers: Coded[Value], column: str, table: str) -> None:
    for number in numbers.firsts().values():
        if isinstance(number, float) and is_beyond_float32(number):
            what = f"column {column!r} has {number:g}, which float32 cannot hold"
            hint = f"leave it out of {_COLUMNS}, or name the cell with {OptionName('null')}"
            raise SourceError(table, what, hint)


def with_headers(
    match: TableMatch | None, members: Sequence[Member], names: Sequence[str]
) -> TableMatch | None:
    """Return `match` with the DICOM elements in `names` as columns; missing elements are ""."""
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
            near = difflib.get_close_matches(keyword, known, 1)
            hint = f"is {DICOM}{near[0]} meant?" if near else "such as dicom/PatientID"
            what = "is not an element of DICOM with a text or a number"
            raise RecipeError(f"{DICOM}{keyword}", what, hint)
    try:
        cells = [header_texts(one.extent.read_head(_HEAD_BYTES), keywords) for one in members]
    except MemberError as error:
        raise SourceError(next(iter(asked)), f"an image {error}") from error
    header: tuple[str, ...] = tuple(asked)
    name, rows = "DICOM headers", cells
    if match is not None:
        name, header = match.table.name, match.table.header + header
        nothing = [""] * len(match.table.header)
        own = (nothing if row < 0 else match.table.rows[row] for row in match.row_of.tolist())
        rows = [row + more for row, more in zip(own, cells, strict=True)]
    every = np.arange(len(rows))
    return TableMatch(Table(name, header, rows), every, every, "key", ())
