"""Tables of run lengths in the style of Kaggle: `rle:FILE:ID:RLE[:LABEL]`.

A cell has pairs of start and length; starts count from 1. Pixels are numbered in one of three
orders, which tables do not state.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardprep.catalog.objects.formats.annotated_source import AnnotatedSource, Sign
from shardprep.catalog.objects.formats.box_format import SizeOf
from shardprep.catalog.objects.object_table import NO_BOX, ONE_CLASS, Found, ObjectTable
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.row_matching import find_ids, find_rows, row_ids
from shardprep.catalog.tables.table import Table
from shardprep.errors import OptionName, SourceError, some_of
from shardprep.image.annotation_types import RunOrder, Runs
from shardprep.recipe.object_rules import RunTableRule
from shardprep.source.string_column import Texts

Pairs = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_NO_RUNS = ("", "-1")
_SAMPLE_IMAGES = 100
"""Maximum number of images that are not square to detect the order of pixels from."""
_SAMPLE_ROWS = 500
_MOST_LETTERS = 1 << 20
"""Maximum number of characters of a cell to detect the order from; parsing more is slow."""
_MOST_PIXELS = 1 << 26
_RUNS = re.compile(r"\d+ +\d+( +\d+ +\d+)* *")
_TITLE = re.compile("rle|encoded|runs?$|mask|segment|pixels", re.IGNORECASE)
_CLASS_COLUMNS = ("classid", "class_id", "class", "label", "category")
_WORDS = {
    "column": "down each column",
    "row": "along each row",
    "relative": "down each column, starts relative to the run before",
}


def read_runs(rule: RunTableRule, source: AnnotatedSource, order: RunOrder | None = None) -> Found:
    """Return the masks in a table, an object for each row; `order` None means to detect it.

    SourceError if no id is of an image.
    """
    table, index = source.documents.table(rule.files), source.index
    ids, cells, labels, facts = _objects(table, rule, index)
    images = find_rows(index, table, rule.id_column, Texts.of(ids)).tolist()
    if max(images, default=-1) < 0:
        such = some_of(ids, 1) or "the table has no rows"
        what = f"no id of column {rule.id_column!r} fits an image ({such})"
        raise SourceError(table.name, what, f"write ids such as {index.keys[0]}")
    findings: list[str] = []
    if order is None:
        of_image: defaultdict[int, list[str]] = defaultdict(list)
        for image, cell in zip(images, cells, strict=True):
            if image >= 0 and cell not in _NO_RUNS:
                of_image[image].append(cell)
        order, why = detected_order(of_image, source.size_of)
        if why:
            findings.append(why)
    found_objects = ObjectTable(len(index.keys))
    numbers = found_objects.numbers_of(labels or [ONE_CLASS] * len(ids))
    for image, text, cell, number in zip(images, ids, cells, numbers, strict=True):
        if image < 0:
            found_objects.missing[text] += cell not in _NO_RUNS
            continue
        found_objects.list_image(image)
        if cell not in _NO_RUNS:
            found_objects.add(image, NO_BOX, number, outline=Runs(cell, order))
    return found_objects.found(
        f"run lengths {_WORDS[order]}, {table.name}, {facts}",
        table.file_names,
        findings=findings,
    )


def _objects(
    table: Table, rule: RunTableRule, index: KeyIndex
) -> tuple[list[str], list[str], list[str], str]:
    """Return ids, cells and labels of all rows, and how they were read; labels may be [].

    The id "x.jpg_3" may mean image x.jpg, class 3.
    """
    title, texts = row_ids(table, rule.id_column)
    place = table.column(rule.run_column)
    ids, cells = list(texts), list(table.cells(place))
    how = f"column {table.header[place]!r} by {title!r}"
    if rule.label_column:
        column = table.column(rule.label_column)
        table.check_quotes(table.header[column])
        how = f"{how}, classes by {table.header[column]!r}"
        return ids, cells, list(table.cells(column)), how
    sample = ids[:: max(1, len(ids) // _SAMPLE_ROWS)]
    without_end = [text.rpartition("_")[0] for text in sample]
    if not any(map(index.find, sample)) and any(map(index.find, without_end)):
        split = [text.rpartition("_") for text in ids]
        how = f"{how}, which ends in the class"
        return [one[0] for one in split], cells, [one[2] for one in split], how
    return ids, cells, [], how


def detected_order(cells: Mapping[int, Sequence[str]], size_of: SizeOf) -> tuple[RunOrder, str]:
    """Return the order of pixels, and a remark for the user if the data do not show it, or "".

    If most cells have a start before the end of the previous run, starts are relative. Otherwise,
    the order with more neighbouring pixels of objects is chosen. `cells` maps images to runs.
    """
    sample = list(cells)[:: max(1, len(cells) // _SAMPLE_ROWS)]
    several = [
        pairs
        for image in sample
        for text in cells[image]
        if (pairs := _pairs(text)) is not None and len(pairs) > 1
    ]
    num_back = sum(bool((p[1:, 0] < p[:-1].sum(axis=1)).any()) for p in several)
    if num_back * 2 > len(several):
        return "relative", ""
    scores: dict[RunOrder, int] = {"column": 0, "row": 0}
    num_told = num_tried = 0
    for image, texts in cells.items():
        if num_told == _SAMPLE_IMAGES or num_tried == 2 * _SAMPLE_IMAGES:
            break
        num_tried += 1
        size = size_of(image)
        if size is None or size[0] == size[1] or size[0] * size[1] > _MOST_PIXELS:
            continue
        num_told += 1
        for text in texts:
            pairs = _pairs(text)
            if pairs is not None:
                for name, step in zip(scores, size, strict=True):
                    scores[name] += _num_neighbours(pairs, step, size[0] * size[1])
    if scores["column"] == scores["row"]:
        why = "all images are square" if num_told == 0 else "both orders fit alike"
        return (
            "column",
            f"run lengths are read down each column: {why}; {OptionName('rle', 'row')} reads rows",
        )
    return max(scores, key=lambda order: scores[order]), ""


def _num_neighbours(pairs: Pairs, step: int, num_pixels: int) -> int:
    ends = pairs.sum(axis=1)
    if pairs[:, 0].min() < 1 or ends.max() > num_pixels + 1:
        return 0
    marks = np.zeros(num_pixels + 1, np.int32)
    np.add.at(marks, pairs[:, 0] - 1, 1)
    np.add.at(marks, ends - 1, -1)
    inside = np.cumsum(marks)[:-1] > 0
    return int(np.count_nonzero(inside[:-step] & inside[step:]))


def _pairs(text: str) -> Pairs | None:
    """Return starts and lengths in a cell, int64[n, 2], or None if it has anything else."""
    if len(text) > _MOST_LETTERS:
        return None
    try:
        numbers = np.array(text.split(), np.int64)
    except (ValueError, OverflowError):
        return None
    if len(numbers) == 0 or len(numbers) % 2 or numbers.min() < 0 or numbers.max() > _MOST_PIXELS:
        return None
    return numbers.reshape(-1, 2)


def _are_runs(title: str, cells: Sequence[Pairs | None]) -> bool:
    several = [pairs for pairs in cells if pairs is not None and len(pairs) > 1]
    if not several or any(pairs is None for pairs in cells):
        return False
    if _TITLE.search(title):  # starts need not ascend: they may be relative
        return True
    is_box = {len(pairs) for pairs in cells if pairs is not None} == {2}
    return not is_box and all((p[1:, 0] >= p[:-1].sum(axis=1)).all() for p in several)


def runs_in(table: Table, index: KeyIndex, size_of: SizeOf) -> list[Sign]:
    """Return the `Sign` of a table if a column has run lengths, otherwise [].

    Columns of centers, boxes or ids have pairs of numbers, too. Only runs ascend, do not overlap
    and stay inside the image, and some cells have several runs.
    """
    rows = table.rows[:: max(1, len(table.rows) // _SAMPLE_ROWS)]
    for title, column in zip(table.header, zip(*rows, strict=True), strict=False):  # maybe no rows
        cells = [cell for cell in column if cell not in _NO_RUNS]
        runs = [_pairs(cell) if _RUNS.fullmatch(cell) else None for cell in cells]
        if not cells or not _are_runs(title, runs):
            continue
        halves = rows
        try:
            id_column = find_ids(index, table)
        except SourceError:
            halves = [[c.rpartition("_")[0] for c in row] for row in rows]
            try:
                id_column = find_ids(index, replace(table, rows=halves))
            except SourceError:
                return []
        of_id, both = table.header.index(id_column), zip(column, halves, strict=True)
        ids = [half[of_id] for cell, half in both if cell not in _NO_RUNS]
        images = [index.find(text)[:1] for text in ids]
        num_sizes = 0
        for image, pairs in zip(images, runs, strict=True):
            size = size_of(image[0]) if image and num_sizes < _SAMPLE_IMAGES else None
            num_sizes += bool(image)
            if size is not None and pairs is not None and pairs[-1].sum() > math.prod(size) + 1:
                break
        else:
            others = [x for x in table.header if x.lower() in _CLASS_COLUMNS and x != title]
            option = ":".join(["rle", table.files, id_column, title, *others[:1]])
            at = [table.header.index(x) for x in others[:1]]
            keys = [(half[of_id], *(half[x] for x in at)) for half in halves]
            are_apart = halves is rows and len({*keys}) < len(keys)
            how = f"{table.name}: run lengths in column {title!r}"
            how += ", several of an image" if are_apart else ""
            return [Sign("masks", option, how, instances=are_apart)]
    return []
