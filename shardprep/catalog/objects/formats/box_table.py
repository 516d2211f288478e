"""Boxes in tables: four columns, or all boxes of a row in one cell, in the usual spellings."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np

from shardprep.catalog.objects.formats import box_format
from shardprep.catalog.objects.formats.box_cells import (
    NO_BOXES,
    Boxes,
    boxes_of_cells,
    boxes_of_columns,
)
from shardprep.catalog.objects.object_table import MALFORMED, MOST_SIDE, ObjectTable
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import KeyIndex, TableMatch, find_ids, match_table
from shardprep.catalog.tables.table import Table
from shardprep.errors import SourceError, shown
from shardprep.image.annotation_types import Floats
from shardprep.recipe.object_rules import (
    BoxColumns,
    BoxForm,
    BoxTableRule,
    letters,
    named_box_columns,
)

ONE_CLASS = "object"
"""Class of all boxes where no column says it."""
_BRACKETS = re.compile(r"\s*\[[\[(\s]*(-?[\d.]+\s*[,\s]\s*){3}-?[\d.]+\s*[\])]|\s*\[\s*\{.*:")
"""A cell with four numbers in brackets, or with dicts of them."""
_LABELS = re.compile(r"class|label|categor|type|species|breed|target|(^|_)name", re.IGNORECASE)
_MOST_COMPARED = 100_000
"""Boxes that are compared with stated sides."""
_ROUNDING = 1.01
"""Pixels by which a stated side may differ from the distance of its corners."""
_SIDES = ("height", "width"), ("imageheight", "imagewidth"), ("imgheight", "imgwidth")
_MOST_SHOWN = 80
"""Characters of a cell in an error."""
_MOST_HEADS = 256
"""Number of images whose heads are read to tell the dialect."""
_SAMPLE = 200
"""Number of rows that are looked at to recognise a table."""


def read_box_table(
    table: Table,
    rule: BoxTableRule,
    index: KeyIndex,
    size_of: Callable[[int], tuple[int, int] | None] = lambda _: None,
) -> Found:
    """Return the boxes of all rows by image, in the order of the rows; classes in natural order.

    A row with empty cells says that its image has no object.

    Args:
        table: the rows.
        rule: the columns.
        index: the images.
        size_of: height and width of an image by its position, asked of some where the reading of
            four numbers is open.

    Raises:
        SourceError: no row is of an image, no cell holds a box, or it cannot be told how four
            numbers are meant.

    """
    columns = rule.boxes or _find_columns(table)
    label = rule.label_column or ("" if rule.boxes else _find_label(table, columns, rule.id_column))
    match = match_table(index, table, rule.id_column)
    if (match.key_of < 0).all():
        such = shown(match.rows_without_image[0], _MOST_SHOWN) if table.rows else "none"
        hint = f"a key looks like {shown(index.keys[0], _MOST_SHOWN)}"
        raise SourceError(table.name, f"has no id of an image of the source ({such})", hint)
    places = [table.column(name) for name in columns.names]
    boxes = (
        boxes_of_columns(table, places) if len(places) == 4 else boxes_of_cells(table, places[0])
    )
    if not len(boxes.values) and boxes.malformed:
        row = min(boxes.malformed)
        cell = ", ".join(table.rows[row][place] for place in places)
        what = f"has no boxes in {', '.join(columns.names)}, but {shown(cell, _MOST_SHOWN)!r}"
        raise SourceError(table.name, what, "name the columns: csv:FILE:ID:x,y,w,h")
    findings: list[str] = []
    sides = _side_columns(table, columns)
    if sides is not None and _are_of_boxes(table, boxes, match, sides):
        titles = " and ".join(table.header[place] for place in sides)
        findings.append(f"{titles} of {table.name} are sizes of boxes, not of images")
        sides = None
    is_relative = box_format.is_relative(boxes.values)
    form, told = columns.form or boxes.form, ""
    if form is None:
        sizes = _sizes(table, boxes.rows, sides, match, size_of)
        sizes = np.ones_like(sizes) if is_relative else sizes
        form, told = box_format.told_form(boxes.values, sizes), ", told from the data"
    if form is None and len(boxes.values):
        name = ",".join(columns.names)
        what = f"boxes in {name} may be corner and size or two corners: the data do not tell"
        hint = f"write xywh({name}) or xyxy({name}) in place of {name}"
        raise SourceError(table.name, what, hint)
    form = form or "xyxy"
    objects = _objects(table, boxes, match, form, label)
    objects.is_relative = is_relative
    for row, image in enumerate(match.key_of.tolist()):
        if image >= 0:
            objects.list_image(image, _side(table.rows[row], sides))
    names, labels_of = objects.natural_names()
    unit = "shares of the sides" if is_relative else "pixels"
    return Found(
        annotations=objects.annotations(labels_of),
        names=names,
        how=f"{table.name}, boxes in {', '.join(columns.names)}: {box_format.WORDS[form]}{told}, "
        f"in {unit}",
        documents=tuple(name for name, _ in table.parts) or (table.name,),
        without_image=_without_image(boxes, match),
        findings=findings,
        notation=BoxColumns(columns.names, form),
        is_table=True,
    )


def _objects(
    table: Table, boxes: Boxes, match: TableMatch, form: BoxForm, label: str
) -> ObjectTable:
    objects = ObjectTable(len(match.row_of))
    place = table.column(label) if label else None
    if place is not None:
        table.check_quotes(table.header[place])
    rows = np.array(boxes.rows, np.int64)
    cells = repeat(ONE_CLASS) if place is None else table.cells(place).take(rows)
    names = [own or cell for own, cell in zip(boxes.labels, cells, strict=False)]
    corners = box_format.corners(boxes.values, form)
    objects.extend(match.key_of[rows].tolist(), corners, objects.numbers_of(names))
    for row, count in boxes.malformed.items():
        image = int(match.key_of[row])
        if image >= 0:
            objects.drop(image, MALFORMED, count)
    return objects


def _without_image(boxes: Boxes, match: TableMatch) -> dict[str, int]:
    """Return the ids of rows that are of no image, and how many boxes these rows have."""
    counts = Counter(boxes.rows)
    counts.update(boxes.malformed)
    found: dict[str, int] = {}
    rows = np.flatnonzero(match.key_of < 0).tolist()
    for row, text in zip(rows, match.rows_without_image, strict=True):
        found[text] = found.get(text, 0) + counts[row]
    return found


def _side_columns(table: Table, columns: BoxColumns) -> tuple[int, int] | None:
    """Return the columns of height and width of the images, if they are not of the boxes."""
    names = {letters(t): i for i, t in enumerate(table.header) if t not in columns.names}
    for height, width in _SIDES:
        if height in names and width in names:
            return names[height], names[width]
    return None


def _are_of_boxes(table: Table, boxes: Boxes, match: TableMatch, sides: tuple[int, int]) -> bool:
    """Return whether columns of sides are those of the boxes.

    They are the distances of most corners, or differ over the rows of most images.
    """
    num_distances = num_stated = 0
    sizes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    some = boxes.values[:_MOST_COMPARED].tolist()
    for row, (x1, y1, x2, y2) in zip(boxes.rows, some, strict=False):
        if size := _side(table.rows[row], sides):
            sizes[int(match.key_of[row])].append(size)
            misses = abs(abs(y2 - y1) - size[0]), abs(abs(x2 - x1) - size[1])
            num_distances += max(misses) <= _ROUNDING
            num_stated += 1
    several = [len(set(one)) > 1 for one in sizes.values() if len(one) > 1]
    return 2 * num_distances > num_stated or 2 * sum(several) > len(several)


def _side(row: Sequence[str], sides: tuple[int, int] | None) -> tuple[int, int] | None:
    if sides is None:
        return None
    try:
        height, width = (float(row[place]) for place in sides)
    except ValueError:
        return None
    is_sane = 1 <= height < MOST_SIDE and 1 <= width < MOST_SIDE
    return (int(height), int(width)) if is_sane else None


def _sizes(
    table: Table,
    rows: Sequence[int],
    sides: tuple[int, int] | None,
    match: TableMatch,
    size_of: Callable[[int], tuple[int, int] | None],
) -> Floats:
    """Return height and width for each box, float64[n, 2]: of the table, or of some images."""
    nothing = (np.nan, np.nan)
    if sides is not None:
        stated = [_side(table.rows[row], sides) or nothing for row in rows]
        return np.array(stated, np.float64).reshape(-1, 2)
    images = match.key_of[list(rows)].tolist()
    some = sorted({image for image in images if image >= 0})[:_MOST_HEADS]
    known = {image: size_of(image) or nothing for image in some}
    sizes = [known.get(image, nothing) for image in images]
    return np.array(sizes, np.float64).reshape(-1, 2)


def _find_columns(table: Table) -> BoxColumns:
    """Return the columns with boxes: by their names, or the one whose cells hold four numbers."""
    named = named_box_columns(table.header)
    if named is not None:
        return named
    sample = table.rows[:: max(1, len(table.rows) // _SAMPLE)]
    for place, title in enumerate(table.header):
        cells = [row[place] for row in sample if row[place] not in NO_BOXES]
        if cells and all(map(_BRACKETS.match, cells)):
            return BoxColumns((title,))
    what = f"it is not clear which columns are boxes: {', '.join(table.header)}"
    raise SourceError(table.name, what, "name them: --boxes csv:FILE:ID:x,y,w,h")


def _find_label(table: Table, columns: BoxColumns, id_column: str) -> str:
    """Return the column that is called like a class, "" without one."""
    others = (t for t in table.header if t not in (*columns.names, id_column))
    return next((title for title in others if _LABELS.search(title)), "")


def recognised_rule(table: Table, index: KeyIndex) -> tuple[str, str]:
    """Return the value of `--boxes` that reads a table, and its column of ids; "" if not sure.

    Its columns are called as those of boxes are and ids repeat over its rows, or a column holds
    four numbers in brackets.
    """
    try:
        columns = _find_columns(table)
        ids = find_ids(index, table)
    except SourceError:
        return "", ""
    place = table.column(ids)
    if len(columns.names) == 4 and len({row[place] for row in table.rows}) == len(table.rows):
        return "", ""
    label = _find_label(table, columns, ids)
    parts = ["csv", table.name, ids, ",".join(columns.names), label]
    rule = ":".join(part for part in parts if part)
    return ("", "") if ":" in "".join(parts[2:]) else (rule, ids)
