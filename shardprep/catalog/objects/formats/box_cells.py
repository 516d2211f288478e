"""Boxes in the cells of a table: four columns of numbers, or all boxes of a row in one cell."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardprep.image.annotation_types import Floats
from shardprep.recipe.object_rules import BoxColumns, BoxForm, named_box_columns

if TYPE_CHECKING:
    from shardprep.catalog.tables.table import Table

NO_BOXES = frozenset(("", "[]", "[[]]", "{}", "-1", "none", "None", "nan", "NaN"))
"""Cells that say that an image has no object."""
_NO_OBJECT = frozenset(("none",))
"""Labels within a cell that stand for no object: `none 1 0 0 1 1`."""
_SPACES = str.maketrans("[](){},;\"'", " " * 10)
_DICT = re.compile(r"\{([^{}]*)\}")
_ENTRY = re.compile(r"['\"]?([A-Za-z_]\w*)['\"]?\s*:\s*([-+.\w]+)")
_MOST_ODD = 0.01
"""Share of cells that may have another number of values than the rest."""
_SAMPLE = 200
"""Number of cells of which one has a dict if all have."""


class Boxes(NamedTuple):
    """All boxes of a table as they are written, in the order of the rows."""

    rows: array[int]
    values: Floats
    """float64[n, 4]."""
    labels: list[str | None]
    """None: the row's."""
    malformed: Counter[int]
    """Number of boxes that cannot be read, by row."""
    form: BoxForm | None


def boxes_of_columns(table: Table, places: Sequence[int]) -> Boxes:
    """Return the boxes of four columns, one a row or none where all four are empty."""
    rows, values, malformed = array("q"), array("d"), Counter[int]()
    for number, row in enumerate(table.rows):
        cells = [row[place] for place in places]
        if not any(cells):
            continue
        try:
            values.fromlist([float(cell) for cell in cells])
            rows.append(number)
        except ValueError:
            malformed[number] += 1
    boxes = np.array(values).reshape(-1, 4)
    return Boxes(rows, boxes, [None] * len(rows), malformed, None)


def boxes_of_cells(table: Table, place: int) -> Boxes:
    """Return the boxes of one column: `[x, y, w, h]`, dicts, or `label confidence x y w h …`."""
    cells = [(i, row[place]) for i, row in enumerate(table.rows) if row[place] not in NO_BOXES]
    if any("{" in cell for _, cell in cells[:_SAMPLE]):
        return _of_dicts(cells)
    words = [(i, cell.translate(_SPACES).split()) for i, cell in cells]
    size, has_label = _tuple_size([several for _, several in words])
    rows, values, malformed = array("q"), array("d"), Counter[int]()
    labels: list[str | None] = []
    for number, several in words:
        if not size or len(several) % size:
            malformed[number] += 1
            continue
        for at in range(0, len(several), size):
            label = several[at] if has_label else None
            if label in _NO_OBJECT:
                continue
            try:
                values.fromlist([float(word) for word in several[at + size - 4 : at + size]])
            except ValueError:
                malformed[number] += 1
            else:
                rows.append(number)
                labels.append(label)
    return Boxes(rows, np.array(values).reshape(-1, 4), labels, malformed, None)


def _tuple_size(cells: Sequence[Sequence[str]]) -> tuple[int, bool]:
    """Return how many words a box takes, 0 if that is not clear, and whether the first is a class.

    Four are numbers alone, five have a class or a confidence before them, six have both.
    """
    texts = [any(not _is_number(word) for word in words) for words in cells]
    for size in (6, 5) if any(texts) else (4, 6, 5):
        fitting = [words for words in cells if len(words) % size == 0]
        others = (word for words in fitting for i, word in enumerate(words) if i % size)
        if len(fitting) >= (1 - _MOST_ODD) * len(cells) and all(map(_is_number, others)):
            firsts = [words[at] for words in fitting for at in range(0, len(words), size)]
            is_class = any(texts) or all(word.isdecimal() for word in firsts)
            return size, size == 6 or (size == 5 and is_class)
    return 0, False


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _of_dicts(cells: Sequence[tuple[int, str]]) -> Boxes:
    """Return boxes such as `[{'x': 1, 'y': 2, 'width': 3, 'height': 4}]`, by their keys."""
    rows, values, malformed = array("q"), array("d"), Counter[int]()
    form: BoxForm | None = None
    known: dict[tuple[str, ...], BoxColumns | None] = {}
    for number, cell in cells:
        for entries in _dicts(cell):
            keys = tuple(entries)
            columns = known.setdefault(keys, named_box_columns(keys))
            if columns is None or form not in (None, columns.form):
                malformed[number] += 1
                continue
            form = columns.form
            try:
                values.fromlist([float(entries[name]) for name in columns.names])
                rows.append(number)
            except ValueError:
                malformed[number] += 1
    boxes = np.array(values).reshape(-1, 4)
    return Boxes(rows, boxes, [None] * len(rows), malformed, form)


def _dicts(cell: str) -> Iterator[dict[str, str]]:
    for match in _DICT.finditer(cell):
        yield dict(_ENTRY.findall(match[1]))
