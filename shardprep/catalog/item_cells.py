"""Check the cells of a table of items, and convert lists, vectors, outlines and points."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shardprep.catalog.items_file import LISTS, SINGLE, WRITE_LISTS, GivenItems, cell_list
from shardprep.catalog.names import given_split, split_places
from shardprep.catalog.objects.formats.box_cells import NO_SHAPE, keypoints_of
from shardprep.catalog.objects.formats.coco import outline_of
from shardprep.catalog.objects.object_table import NO_BOX
from shardprep.catalog.selection import MOST_SHOWN
from shardprep.catalog.targets import find_separator
from shardprep.errors import OptionName, SourceError, counted, shown
from shardprep.recipe.options import BUILD_DEFAULTS
from shardprep.recipe.recipe import Recipe
from shardprep.source.string_column import Texts

NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
_BESIDE = ("box_labels", "segmentation", "keypoints", "iscrowd")
"""Titles of columns with a value for each box."""
_CORNERS = "[xmin, ymin, xmax, ymax]"
_POINTS = "points"
_OF_VECTORS = ("auto", "vector", "soft")
_TEXTS = ("labels", "texts", "box_labels")
_PRINTED = (
    r"^[\[({]\s*'|^\[+\s*(\{'|\(|array|[-+.\de]+\s+[-+.\d\[])|^\[.*[\[,]\s*(None|nan|True|False)\b"
)
"""Matches what may be a list or a tuple as Python or NumPy prints it: ['a' 'b'], [1. 2.]."""
_HALF, _MOST_CELLS = 0.5, 100


def checked(items: GivenItems, recipe: Recipe) -> GivenItems:
    """Return the items with converted cells; `points` becomes columns of x and y.

    `faults` has the rows with a cell that its column does not allow. SourceError for lists that are
    not JSON.
    """
    _check_printed(items)
    items = _with_vectors(_with_lists(items, recipe), recipe)
    _check_single(items, recipe)
    if "segmentation" in items.columns:
        _check_outlines(items)
        items = items if "boxes" in items.columns else _with_no_boxes(items)
    if "boxes" in items.columns:
        _check_boxes(items)
    return _with_points(items)


def _with_lists(items: GivenItems, recipe: Recipe) -> GivenItems:
    """Return the items with JSON lists in the columns of `_TEXTS`; a single text becomes a list."""
    columns = dict(items.columns)
    for title in filter(columns.__contains__, () if recipe.separator else _TEXTS):
        cells = list[str]()
        for row, cell in enumerate(columns[title]):
            found = cell_list(cell) if cell.startswith("[") else [cell] if cell else None
            if found is not None and not all(isinstance(one, str | int | float) for one in found):
                items.refuse(row, title, 'is not a list of texts, such as ["a", "b"]')
            cells.append("" if found is None else json.dumps([str(one).strip() for one in found]))
        columns[title] = Texts.of(cells)
    is_single = "," not in recipe.labels  # `targets` checks several targets
    if is_single and not recipe.separator and recipe.target == BUILD_DEFAULTS["target"]:
        for title in {"label", "labels"} & items.columns.keys():
            if items.columns[title].matching("[|;, ]").any():
                _check_separators(items, title)
    return replace(items, columns=columns)


def _with_vectors(items: GivenItems, recipe: Recipe) -> GivenItems:
    """Return the items with target vectors as "0.5 1.0" instead of JSON lists of numbers."""
    columns = dict(items.columns)
    of_labels = recipe.labels.removeprefix("column:").split(",")
    titles = {*items.targets, *(of_labels if recipe.target in _OF_VECTORS else ())}
    for title in (titles - {*SINGLE, *LISTS}) & columns.keys():
        cells, rows, vectors = columns[title], list[int](), list[str]()
        for row in np.flatnonzero(cells.matching(r"^\[")).tolist():
            found = cell_list(cells[row])
            if {*map(type, found)} <= {int, float}:
                rows.append(row)
                vectors.append(" ".join(map(str, found)))
            elif isinstance(found, list):
                items.refuse(row, title, "is neither a single value nor a list of numbers")
        columns[title] = cells.replaced(np.array(rows), Texts.of(vectors)) if rows else cells
    return replace(items, columns=columns)


def _check_printed(items: GivenItems) -> None:
    """Raise a SourceError for a list as Python or NumPy prints it, as in a CSV of pandas."""
    for title in filter(items.columns.__contains__, (*LISTS, "label", *items.targets)):
        cells = items.columns[title]
        rows = np.flatnonzero(cells.matching(_PRINTED))
        for row in rows[:_MOST_CELLS].tolist():
            if isinstance(cell_list(cells[row]), tuple):
                cell = shown(cells[row], MOST_SHOWN)
                what = f"row {row + 1:,}: {items.titled(title)} {cell!r} is not JSON"
                hint = "give lists instead of texts" if items.is_frame else WRITE_LISTS
                raise SourceError(items.name, what, hint)


def _check_separators(items: GivenItems, title: str) -> None:
    """Record a fault for texts in a column of labels that may be several classes, such as "a;b".

    Texts with a blank or a comma count only if their parts recur in other cells.
    """
    cells = items.columns[title].coded().counts()
    texts = [cell for cell in cells if not cell.startswith("[")]
    alone = {*texts, *(str(x) for cell in cells if cell[:1] == "[" for x in cell_list(cell))}
    usual = find_separator(texts) if title == "label" else ""
    pairs = (pair for pair in itertools.product(texts, "|;, ") if pair[1] in pair[0])
    parts = {pair: [*filter(None, map(str.strip, str.split(*pair)))] for pair in pairs}
    uses = Counter(one for own in parts.values() for one in {*own})
    odd = dict[str, str]()
    for (text, by), own in parts.items():
        is_known = all(one in alone or (by != " " and uses[one] > 1) for one in own)
        is_odd = is_known if title == "labels" else by == usual or alone.issuperset(own)
        if own[1:] and (by in "|;" or is_odd):
            odd.setdefault(text, by)
    for row, cell in enumerate(items.columns[title] if odd else ()):
        if cell in odd:
            one, more = map(json.dumps, ([cell], parts[cell, odd[cell]]))
            flag = OptionName("separator", odd[cell])
            what = f"is one class or several: write {one} or {more}, or give {flag}"
            if title == "label":
                what = f"is one class or several: give {OptionName('target', 'class')} or {flag}"
            items.refuse(row, title, what)


def _check_single(items: GivenItems, recipe: Recipe) -> None:
    for title in filter(items.columns.__contains__, SINGLE):
        for row in np.flatnonzero(items.columns[title].matching(r"^[\[{]")).tolist():
            is_list = items.columns[title][row].startswith("[")
            hint = ": call the column labels" if title == "label" and is_list else ""
            items.refuse(row, title, f"is not a single value{hint}")
    if "sample" in items.columns:
        for row in np.flatnonzero(items.columns["sample"].coded().fit("".__eq__)).tolist():
            items.refuse(row, "sample", "is empty")
    if {"order", "sample"} <= items.columns.keys():
        are_numbers = share(NUMBER, items.columns["order"]) > _HALF
        is_odd = partial(_is_no_place, are_numbers=are_numbers)
        what = "is not a number as in other rows" if are_numbers else "is empty"
        num_images = items.columns["sample"].coded().counts()
        for row in np.flatnonzero(items.columns["order"].coded().fit(is_odd)).tolist():
            if num_images.get(items.columns["sample"][row], 0) > 1:
                items.refuse(row, "order", what)
    if "split" in items.columns and not recipe.split:
        cells, is_said = items.columns["split"].coded(), False
        for row in np.flatnonzero(cells.fit(lambda cell: given_split([cell]) is None)).tolist():
            flag = OptionName("split", split_places(items.titled("split"), cells.counts()))
            hint = f"; {flag} gives it a split" if cells[row] and not is_said else ""
            is_said = is_said or bool(hint)
            items.refuse(row, "split", f"is not train, validation or test{hint}")


def _is_no_place(cell: str, *, are_numbers: bool) -> bool:
    return not re.fullmatch(NUMBER, cell) if are_numbers else not cell


def _check_outlines(items: GivenItems) -> None:
    for row, cell in enumerate(items.columns["segmentation"]):
        found = cell_list(cell)
        for one in found if isinstance(found, list) else [cell]:
            try:
                shape = json.loads(one) if isinstance(one, str) else one
                if shape:
                    outline_of(shape)
            except NO_SHAPE:
                what = 'is not a list of polygons or of {"size": [height, width], "counts": …}'
                items.refuse(row, "segmentation", what)


def _with_no_boxes(items: GivenItems) -> GivenItems:
    """Return the items with a box of NaN for each outline, which means that it has no box."""
    outlines = items.columns["segmentation"]
    boxes = (json.dumps([NO_BOX] * len(cell_list(one))) if one else "" for one in outlines)
    return replace(items, columns={**items.columns, "boxes": Texts.of(boxes)}, has_boxes=False)


def _check_boxes(items: GivenItems) -> None:
    beside = [one for one in _BESIDE if one in items.columns]
    first = "boxes" if items.has_boxes else "segmentation"
    columns = [items.columns[one] for one in ("boxes", *beside)]
    joints = items.columns.get("keypoints", Texts.of([]))
    have_names = joints.matching(r"\{").any()
    for row, cells in enumerate(zip(*columns, strict=True)):
        boxes, *others = map(cell_list, cells)
        try:
            corners = np.array(boxes, np.float64)
        except NO_SHAPE:
            corners = np.empty(0)
        is_finite = np.isfinite(corners).all() or not items.has_boxes
        if boxes and (corners.shape != (len(boxes), 4) or not is_finite):
            odd = [one for one in boxes if isinstance(one, list) and not _is_box(one)]
            if len(boxes) > 1 and odd:
                items.refuse(row, "boxes", f"is not {_CORNERS}", str(odd[0]))
            items.refuse(row, "boxes", f"is not a list of {_CORNERS}")
            continue
        for title, values in zip(beside, others, strict=True):
            if len(values) != len(boxes) or isinstance(values, tuple):
                what = f"is not a list as long as {first} ({len(boxes):,})"
                items.refuse(row, title, what)
            elif title in _MEANT:
                fits, meant = _MEANT[title]
                if odd := [one for one in values if not fits(one)]:
                    items.refuse(row, title, f"is not {meant}", json.dumps(odd[0]))
                elif (
                    title == "keypoints" and have_names and list in {type(x or {}) for x in values}
                ):
                    items.refuse(row, title, "has no names, but other keypoints have names")


def _is_box(one: list[Any]) -> bool:
    return len(one) == 4 and all(isinstance(x, int | float) and abs(x) < math.inf for x in one)


def _are_keypoints(one: Any) -> bool:
    """Return whether a value is x, y and visibility of each keypoint of an object, or empty."""
    try:
        keypoints_of(one or [])
    except NO_SHAPE:
        return False
    return True


_MEANT: dict[str, tuple[Callable[[Any], bool], str]] = {
    "keypoints": (_are_keypoints, "x, y, visibility (0, 1 or 2) in turn"),
    "iscrowd": ((0, 1, "0", "1", None).__contains__, "0 or 1"),
}
"""Title of a column of objects → whether the value of an object fits, and what it must be."""


def _with_points(items: GivenItems) -> GivenItems:
    """Return the items with columns of x and y for each point instead of `points`.

    Points of dicts have names, which are the `titles` of the columns of x.
    """
    if _POINTS not in items.columns:
        return items
    rows = [_points_of(items, row) for row in range(len(items))]
    names = [*dict.fromkeys(name for one in rows for name in one)]
    lengths = Counter(len(one) for one in rows if one)
    usual = lengths.most_common(1)[0][0] if lengths else 0
    like = next((row for row, one in enumerate(rows) if len(one) == usual), 0) + 1
    have_names = any(isinstance(name, str) for name in names)
    for row, one in enumerate(rows):
        if have_names and one and 0 in one:
            items.refuse(row, _POINTS, "has no names, but other rows have names")
        elif not have_names and one and len(one) != usual:
            what = f"has {counted(len(one), 'keypoint')}, but row {like:,} has {usual:,}"
            items.refuse(row, _POINTS, f"{what}: write None for a missing one")
    columns = {title: cells for title, cells in items.columns.items() if title != _POINTS}
    for (i, name), (at, axis) in itertools.product(enumerate(names), enumerate("xy")):
        columns[f"{i} {axis}"] = Texts.of(str(one.get(name, ("", ""))[at]) for one in rows)
    titles = [f"{i} {axis}" for i in range(len(names)) for axis in "xy"]
    known = {f"{i} x": name for i, name in enumerate(names) if isinstance(name, str)}
    return replace(items, columns=columns, points=titles, titles={**items.titles, **known})


def _points_of(items: GivenItems, row: int) -> dict[str | int, tuple[Any, ...]]:
    """Return name, or number from 0, → x and y of each point of a row; "" for a missing point."""
    with contextlib.suppress(*NO_SHAPE):
        found = json.loads(items.columns[_POINTS][row] or "[]")
        several = found.items() if isinstance(found, dict) else enumerate(found)
        points = {name: tuple(map(float, one)) if one else ("", "") for name, one in several}
        if {*map(len, points.values())} <= {2}:
            return points
    items.refuse(row, _POINTS, "is not a list or dict of [x, y]")
    return {}


def share(pattern: str, cells: Texts) -> float:
    """Return the share, 0 to 1, of non-empty cells that match a regular expression."""
    fit = np.count_nonzero(cells.matching(rf"^({pattern})$"))
    return int(fit) / max(1, int(np.count_nonzero(cells.are_filled)))
