"""Columns of a label table that become features of the examples."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardprep.dataset.example import is_beyond_float32
from shardprep.errors import RecipeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardprep.catalog.tables.row_matching import TableMatch
    from shardprep.source.dictionary_column import Coded

Value = int | float | str
DType = Literal["int64", "float32", "bytes"]
_READ: dict[DType, tuple[Callable[[str], Value], Value]] = {
    "int64": (int, -1),
    "float32": (float, math.nan),
    "bytes": (str, ""),
}
"""Function that reads a cell, and the value of an empty one."""
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
"""A whole number that is written in the one way in which int64 gives it back."""
_FLOAT = re.compile(
    r"(?![-+]?\d+$)([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?inf(inity)?|nan)",
    re.ASCII | re.IGNORECASE,
)
"""A number with a point or an exponent; whole numbers written in other ways are texts (ids)."""


_PRESENT = "/present"
"""End of the name of the feature beside a column of whole numbers, some of which are missing."""


@dataclass(frozen=True, slots=True)
class Column:
    """A feature and the type of its values; that of an empty cell is −1, NaN or ""."""

    name: str
    dtype: DType


def make_columns(
    names: Sequence[str], match: TableMatch | None, wanted: Sequence[bool] | NDArray[np.bool_]
) -> tuple[tuple[Column, ...], tuple[Coded[Value], ...]]:
    """Return the features of the columns, and the values of each for all keys.

    A column is int64 if all of its cells are whole numbers of at most 18 digits, float32 if all
    are numbers, else text. Whole numbers that are written otherwise (007, 1_000, +1) are texts:
    an id must come out as it went in.

    An int64 column in which a `wanted` key has an empty cell is followed by `<column>/present`:
    1, or 0 where the cell is empty, for no number of int64 says that there is none.
    """
    if not names:
        return (), ()
    if match is None:
        raise SourceError("--columns", "needs a label table, and there is none", "use --join FILE")
    columns: list[Column] = []
    values: list[Coded[Value]] = []
    for name in names:
        if name.split("/")[0] in ("image", "label", "labels", "target", "text"):
            raise RecipeError("--columns", f"{name!r} is the name of another feature")
        cells = match.cells(name)
        dtype = _dtype(cells)
        read, nothing = _READ[dtype]
        columns.append(Column(name, dtype))
        values.append(_read_cells(cells, read, nothing))
        if dtype == "float32":
            _check_range(values[-1], name, match.table.name)
        if dtype == "int64" and (~cells.fit(bool) & wanted).any():
            columns.append(Column(name + _PRESENT, dtype))
            values.append(cells.map(lambda cell: int(bool(cell))))
    for name, count in Counter(column.name for column in columns).items():
        if count > 1:
            raise RecipeError("--columns", f"{name!r} is the name of two features")
    return tuple(columns), tuple(values)


def _read_cells(cells: Coded[str], read: Callable[[str], Value], nothing: Value) -> Coded[Value]:
    return cells.map(lambda cell: read(cell) if cell else nothing)


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
            hint = "leave it out of --columns, or name the cell with --null"
            raise SourceError(table, what, hint)
