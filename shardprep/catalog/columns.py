"""Columns of a label table that are carried into the examples as features of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardprep.errors import RecipeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.lookup import TableMatch

Value = int | float | str
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Column:
    """One column and what its cells are; an empty cell is −1, NaN or ""."""

    name: str
    dtype: Literal["int64", "float32", "bytes"]


def make_columns(
    names: Sequence[str], match: TableMatch | None, num_keys: int
) -> tuple[tuple[Column, ...], list[tuple[Value, ...]]]:
    """Return the columns and, for each key, its values in their order.

    A column is int64 if all of its cells are whole numbers, float32 if all are numbers, else text.

    Raises:
        SourceError: there is no table, or no such column in it.
        RecipeError: a column would hide a feature of every example.

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
        columns.append(Column(name, dtype))
        values.append([_value(cell, dtype) for cell in cells])
    return tuple(columns), list(zip(*values, strict=True))


def _dtype(cells: Sequence[str]) -> Literal["int64", "float32", "bytes"]:
    filled = [cell for cell in cells if cell]
    try:
        if all(-_INT64 <= int(cell) < _INT64 for cell in filled):
            return "int64"
    except ValueError:
        pass
    try:
        for cell in filled:
            float(cell)
    except ValueError:
        return "bytes"
    return "float32"


def _value(cell: str, dtype: str) -> Value:
    if dtype == "int64":
        return int(cell) if cell else -1
    if dtype == "float32":
        return float(cell) if cell else math.nan
    return cell
