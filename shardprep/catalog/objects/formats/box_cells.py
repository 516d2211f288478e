"""Read the boxes in cells of a table: in several columns, or all boxes of a row in one cell."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardprep.catalog.objects.formats.annotated_source import AnnotatedSource
from shardprep.catalog.tables.table import Table
from shardprep.image.annotation_types import Floats
from shardprep.recipe.object_rules import NUM_CORNERS, BoxColumns, BoxForm, named_box_columns

NO_BOXES = frozenset(("", "[]", "[[]]", "{}", "-1", "none", "None", "nan", "NaN"))
_NO_OBJECT = "none"
"""Label that means "no object" in a cell of boxes: `none 1 0 0 1 1`."""
SPACES = str.maketrans("[](){},;\"'", " " * 10)
_DICT = re.compile(r"\{([^{}]*)\}")
_ENTRY = re.compile(r"['\"]?([A-Za-z_]\w*)['\"]?\s*:\s*([-+.\w]+)")
POLYGON = re.compile(
    r"[\[(]\s*([\[(]\s*-?[\d.]+[,\s]+-?[\d.]+\s*[\])][,\s]*){3,}[\])]"
    r"|POLYGON\s*\(\(\s*(-?[\d.]+\s+-?[\d.]+[,\s]*){3,}\)\)"
)
"""Matches a cell with the points of a polygon, x before y."""
_MOST_ODD = 0.01
"""Maximum share of cells with a number of words that is not a multiple of the words of a box."""
NO_SHAPE = (TypeError, ValueError, LookupError, OverflowError, RecursionError)
"""Errors of cells that are not outlines or keypoints in JSON."""
SAMPLE_ROWS = 200
"""Approximate number of rows that are searched for the form of boxes."""


class CellBoxes:
    """Four numbers of each box of a table, in row order."""

    def __init__(self, *, keeps_outlines: bool) -> None:
        self._keeps_outlines = keeps_outlines
        self.rows = array("q")
        self.labels: list[str | None] = []
        """Label of each box; None if the row has the label."""
        self.malformed: Counter[int] = Counter()
        self.polygons: dict[int, list[float]] = {}
        self.form: BoxForm | None = None
        self._values = array("d")

    def add(self, row: int, cells: Iterable[str | float], label: str | None = None) -> None:
        """Add a box of four numbers in the form of the table, or count it as malformed."""
        try:
            self._values.fromlist([float(cell) for cell in cells])
        except ValueError:
            self.malformed[row] += 1
        else:
            self.rows.append(row)
            self.labels.append(label)

    def add_numbers(self, row: int, cells: Sequence[str]) -> None:
        """Add a box of four numbers, or of x and y of four corners."""
        if len(cells) == NUM_CORNERS:
            self.form = "xyxy"
            self.add_polygon(row, cells)
        else:
            self.add(row, cells)

    def add_polygon(self, row: int, words: Sequence[str]) -> None:
        """Add the box around x, y, x, y, …; the word POLYGON of WKT before them is left out."""
        try:
            points = np.array(words[len(words) % 2 :], np.float64).reshape(-1, 2)
        except ValueError:
            points = np.full((1, 2), np.nan)
        if not np.isfinite(points).all():
            self.malformed[row] += 1
        else:
            if self._keeps_outlines:
                self.polygons[len(self.rows)] = points.ravel().tolist()
            self.add(row, (*points.min(0), *points.max(0)))

    def array(self) -> Floats:
        return np.array(self._values).reshape(-1, 4)


def boxes_of_columns(table: Table, places: Sequence[int], source: AnnotatedSource) -> CellBoxes:
    """Return the boxes whose four numbers, or whose four corners, are in columns.

    A row with only one text, such as the headings in DOTA's files, has no box.
    """
    boxes = CellBoxes(keeps_outlines=source.outlines)
    for number, row in enumerate(table.rows):
        cells = [row[place] for place in places]
        if any(cells[1:]) or is_number(cells[0]):
            boxes.add_numbers(number, cells)
    return boxes


def boxes_of_cells(table: Table, place: int, source: AnnotatedSource) -> CellBoxes:
    """Return the boxes in one column: `[x, y, w, h]`, dicts, `label confidence x y w h …`.

    A polygon, written `[(x, y), …]` or as WKT, gives a box and an outline.
    """
    cells = [(i, row[place]) for i, row in enumerate(table.rows) if row[place] not in NO_BOXES]
    if any("{" in cell for _, cell in cells[:SAMPLE_ROWS]):
        return _of_dicts(cells, source)
    words = [(i, cell.translate(SPACES).split()) for i, cell in cells]
    boxes = CellBoxes(keeps_outlines=source.outlines)
    if cells and all(POLYGON.fullmatch(cell) for _, cell in cells):
        boxes.form = "xyxy"
        for number, several in words:
            boxes.add_polygon(number, several)
        return boxes
    size, has_label = tuple_size([several for _, several in words])
    for number, several in words:
        if not size or len(several) % size:
            boxes.malformed[number] += 1
            continue
        for at in range(0, len(several), size):
            label = several[at] if has_label else None
            if label != _NO_OBJECT:
                boxes.add(number, several[at + size - 4 : at + size], label)
    return boxes


def tuple_size(cells: Sequence[Sequence[str]]) -> tuple[int, bool]:
    """Return the number of words of a box, 0 if unclear, and whether the first word is a class.

    A box has four words, or five with a class or a confidence first, or six with both first.
    """
    texts = [any(not is_number(word) for word in words) for words in cells]
    for size in (6, 5) if any(texts) else (4, 6, 5):
        fitting = [words for words in cells if len(words) % size == 0]
        others = (word for words in fitting for i, word in enumerate(words) if i % size)
        if len(fitting) >= (1 - _MOST_ODD) * len(cells) and all(map(is_number, others)):
            firsts = [words[at] for words in fitting for at in range(0, len(words), size)]
            is_class = any(texts) or all(word.isdecimal() for word in firsts)
            return size, size == 6 or (size == 5 and is_class)
    return 0, False


def is_number(word: str) -> bool:
    """Return whether a word is a number, also with fraction, exponent or sign."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def keypoints_of(value: Any) -> tuple[Floats, tuple[str, ...]]:
    """Return x, y, visibility of each keypoint, float64[K, 3], and their names or ().

    `value`, perhaps as JSON, is a list of numbers, a list of three numbers for each keypoint, or a
    dict of such lists by name, where an empty list is (0, 0, 0). An error in `NO_SHAPE` for others.
    """
    value = json.loads(value) if isinstance(value, str) else value
    names = tuple(value) if isinstance(value, dict) else ()
    rows = [one or (0, 0, 0) for one in value.values()] if names else value
    points = np.array(rows or [], np.float64)
    if points.shape[-1:] != (3,) and (names or points.ndim > 1):
        raise ValueError("not three numbers for each keypoint")
    points = points.reshape(-1, 3)
    if not np.isin(points[:, 2], (0, 1, 2)).all():
        raise ValueError("not 0, 1 or 2 as visibility")
    return points, names


def _of_dicts(cells: Sequence[tuple[int, str]], source: AnnotatedSource) -> CellBoxes:
    boxes = CellBoxes(keeps_outlines=source.outlines)
    known: dict[tuple[str, ...], BoxColumns | None] = {}
    for number, cell in cells:
        for match in _DICT.finditer(cell):
            entries = dict(_ENTRY.findall(match[1]))
            keys = tuple(entries)
            columns = known.setdefault(keys, named_box_columns(keys))
            if columns is None or boxes.form not in (None, columns.form):
                boxes.malformed[number] += 1
            else:
                boxes.form = columns.form
                values = [entries[name] for name in columns.names]
                boxes.add_numbers(number, values)
    return boxes
