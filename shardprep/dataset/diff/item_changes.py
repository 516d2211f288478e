"""Tables of items compared by their keys, and the table of what has changed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    Rows = np.ndarray[Any, np.dtype[np.int64]]

_ROWS = pa.schema([(name, pa.string()) for name in ("key", "kind", "before", "after")])


def places_of(keys: pa.ChunkedArray, others: pa.ChunkedArray, is_there: Mask) -> Rows:
    """Return the row of each key among the other keys that are there, −1 for none."""
    if len(keys) == len(others) and keys.equals(others):
        return np.where(is_there, np.arange(len(keys)), -1)
    rows = np.flatnonzero(is_there)
    found = pc.index_in(keys, rows_of(others, rows))
    return np.append(rows, -1).take(np.asarray(pc.fill_null(found, -1)))


def rows_of(column: pa.ChunkedArray, rows: Rows) -> pa.ChunkedArray:
    """Return some rows; all of them in their order, as most sets compared are alike, as they are.

    To gather a million strings takes longer than to compare them.
    """
    is_all = len(rows) == len(column) and np.array_equal(rows, np.arange(len(rows)))
    return column if is_all else column.take(rows)


def differ(one: pa.ChunkedArray, two: pa.ChunkedArray) -> Mask:
    """Tell of each row whether two columns differ; null equals null alone."""
    same = pc.fill_null(pc.equal(one, two), False)  # noqa: FBT003 - the value
    both_null = pc.and_(pc.is_null(one), pc.is_null(two))
    return ~np.asarray(pc.or_(same, both_null))


def change_table(kind: str, key: Any, before: Any, after: Any) -> pa.Table:
    """Return the changes of a kind."""
    kinds = pa.array([kind] * len(key), pa.string())
    return pa.table((key, kinds, before, after), _ROWS)


def num_by_kind(changes: pa.Table, kinds: Iterable[str]) -> dict[str, int]:
    """Return the number of changes of each kind, 0 for one without any."""
    return {kind: pc.sum(pc.equal(changes["kind"], kind)).as_py() or 0 for kind in kinds}


def first_changes(changes: pa.Table, kind: str, number: int) -> list[dict[str, str]]:
    """Return the first changes of a kind, as keyword arguments."""
    found: list[dict[str, str]] = (
        changes.filter(pc.equal(changes["kind"], kind)).slice(0, number).to_pylist()
    )
    return found
