"""Columns of a label table that become features of the examples."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardprep.dataset.example import is_beyond_float32
from shardprep.errors import RecipeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardprep.catalog.lookup import TableMatch

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


@dataclass(frozen=True, slots=True)
class Column:
    """A column and the type of its cells; an empty cell is −1, NaN or ""."""

    name: str
    dtype: DType


def make_columns(
    names: Sequence[str], match: TableMatch | None, num_keys: int
) -> tuple[tuple[Column, ...], list[tuple[Value, ...]]]:
    """Return the columns and, for each key, its values in their order.

    A column is int64 if all of its cells are whole numbers of at most 18 digits, float32 if all
    are numbers, else text. Whole numbers that are written otherwise (007, 1_000, +1) are texts:
    an id must come out as it went in.
    """
    if not names:
        return (), [()] * num_keys
    if match is None:
        raise SourceError("--columns", "needs a label table, and there is none", "use --join FILE")
    columns: list[Column] = []
    values: list[list[Value]] = []
    for name in names:
        if name.split("/")[0] in ("image", "label", "labels", "target", "text"):
            raise RecipeError("--columns", f"{name!r} is the name of another feature")
        cells = match.cells(name)
        dtype = _dtype(cells)
        read, nothing = _READ[dtype]
        columns.append(Column(name, dtype))
        values.append([read(cell) if cell else nothing for cell in cells])
        if dtype == "float32":
            _check_range(values[-1], name, match.table.name)
    return tuple(columns), list(zip(*values, strict=True))


def _dtype(cells: Sequence[str]) -> DType:
    others = [cell for cell in set(cells) if cell and not _INTEGER.fullmatch(cell)]
    if not others:
        return "int64"
    return "float32" if all(_FLOAT.fullmatch(cell) for cell in others) else "bytes"


def _check_range(numbers: Iterable[Value], column: str, table: str) -> None:
    for number in numbers:
        if isinstance(number, float) and is_beyond_float32(number):
            what = f"column {column!r} has {number:g}, which float32 cannot hold"
            hint = "leave it out of --columns, or name the cell with --null"
            raise SourceError(table, what, hint)
