"""Find boxes among the numbers in rows of tables and lines of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shardprep.catalog.tables.table import Table
from shardprep.catalog.target_values import as_number
from shardprep.recipe.object_rules import NUM_CORNERS

_SAMPLE, _FEW, _NEARLY, _MOST_UNEVEN = 100, 5, 0.9, 3


def numbered_boxes(table: Table) -> list[str]:
    """Return the `--boxes` rules that fit a headerless table of two corners and a class."""
    if table.header[:6] != ("1", "2", "3", "4", "5", "6"):
        return []
    places = box_columns(table.rows[:_SAMPLE], ((2, 6), (3, 2), (4, 2)))
    return [f"csv:{table.files}:1:{one}" for one in places]


def box_columns(rows: Sequence[Sequence[str]], places: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield a rule such as `xyxy(2,3,4,5):6` for each item of `places` that fits the rows.

    An item has the first column of the box and the column of the class; columns count from 1. The
    class is left out if no row has its column.
    """
    for first, label in places:
        numbers = [[*map(as_number, row[first - 1 : first + 3])] for row in rows]
        boxes = [[one or 0 for one in row] for row in numbers if None not in row and row[3:]]
        is_enough = len(boxes) >= max(_FEW, len(rows) / 2)
        if is_enough and all(x < right and y < bottom for x, y, right, bottom in boxes):
            title = f":{label}" if any(len(row) >= label for row in rows) else ""
            yield f"xyxy({','.join(map(str, range(first, first + 4)))}){title}"


def have_corners(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether nearly all rows start with four corners, in turn, of a convex area.

    Opposite sides must have similar lengths. Rows of more than four points do not fit.
    """
    some = [row for row in rows if starts_with_numbers(row)]
    are_longer = sum(starts_with_numbers(row, NUM_CORNERS + 2) for row in some)
    if len(some) < max(_FEW, len(rows) / 2) or 2 * are_longer > len(some):
        return False
    corners = np.array([row[:NUM_CORNERS] for row in some], np.float64).reshape(-1, 4, 2)
    x, y = np.moveaxis(np.roll(corners, -1, axis=1) - corners, 2, 0)
    turns, lengths = x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1), np.hypot(x, y)
    ratios = lengths[:, :2] / np.maximum(lengths[:, 2:], 1e-9)
    are_even = ((ratios < _MOST_UNEVEN) & (ratios > 1 / _MOST_UNEVEN)).all(axis=1)
    is_convex = (turns > 0).all(axis=1) | (turns < 0).all(axis=1)
    return float((are_even & is_convex).mean()) >= _NEARLY


def starts_with_numbers(row: Sequence[str], count: int = NUM_CORNERS) -> bool:
    """Return whether the first cells of a row are numbers."""
    return len(row) >= count and None not in map(as_number, row[:count])
