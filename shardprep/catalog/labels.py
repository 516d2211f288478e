"""Labels of images as texts, from a table; `targets` turns them into targets."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.names import folder_splits, natural_order
from shardprep.catalog.tables.key_index import (
    KeyIndex,
)
from shardprep.catalog.tables.row_matching import TableMatch, find_ids, match_table
from shardprep.catalog.tables.table import Table
from shardprep.catalog.target_values import OF_COLUMNS
from shardprep.catalog.targets import Cell
from shardprep.errors import OptionName, SourceError, counted
from shardprep.recipe.rules import CsvRule
from shardprep.source.string_column import Coded, Texts

Ints = NDArray[np.int64]
Column = tuple[str, Ints, Coded[str | None]]
"""Title of a target; position of each row's image, or −1; cell of each row."""

ENOUGH = 0.9
"""Minimum share of images that a rule must label, so that `auto` uses it."""
LABEL_COLUMNS = (
    "label", "class", "target", "category", "breed", "diagnosis", "species", "classname",
    "class_name", "label_name", "category_name", "variety", "labels", "tags", "class_id",
    "classid", "category_id", "label_id", "dx", "level", "flags", "image/class/text",
)  # fmt: skip
NO_LABEL_COLUMNS = frozenset(("split", "partition", "usage", "set", "fold", "subset", "dataset"))
_SET = frozenset(("1", "1.0", "true", "yes"))
_NOT = ("0", "0.0", "false", "no")
_SET_OR_NOT = _SET | {*_NOT, "-1", "-1.0", ""}
_MOST_TARGETS, _FEW, _MOST_DIGITS = 1_000, 100, 10


class TwoLabelsError(SourceError):
    """Several rows of a table give an image different labels."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """The labels of all images, in the order of the keys, and how they were determined."""

    names: Coded[Cell | None]
    """Label, tuple of labels or tuple of column titles of each image; None without a label."""
    how: str
    rows_without_image: tuple[str, ...] = ()
    table_names: frozenset[Cell] = frozenset()
    """All labels in the table, so that classes do not depend on the images in the source."""
    match: TableMatch | None = None
    columns: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Titles of columns of 1 and 0, each of which is a class; () for other labels."""
    rule: str = "none"
    findings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    unclear: SourceError | None = None
    """Error of the first table of labels whose ids are ambiguous or match no image; or None."""
    cells: Mapping[str, Coded[str | None]] = field(default_factory=dict)
    """Column → cell of each image, for targets of several values; {} for single values."""


def plain_title(title: str) -> str:
    """Return a title as `LABEL_COLUMNS` spells it: "Class Name" → "class_name"."""
    return title.lower().replace(" ", "_").replace("-", "_")


def are_classes(num_names: int, num_images: int) -> bool:
    """Return whether names look like classes: two names, or on average two images for each name."""
    return 2 <= num_names <= max(2, num_images // 2)


def label_by_table(index: KeyIndex, table: Table, rule: CsvRule, option: str = "") -> Labelling:
    """Return the labels in a table; columns that `rule` does not name are detected.

    SourceError if a column is unclear. For other errors see `match_table` and `label_by_columns`.
    """
    id_title = find_ids(index, table, rule.id_column)
    _label_titles(table, rule.label_columns, id_title, option)  # report unclear columns before ids
    return label_by_columns(index.keys, match_table(index, table, id_title), rule)


def are_numbered(names: Collection[str]) -> bool:
    """Return whether names are 0, 1, 2 … up to nine, as numbers of classes are."""
    return len(names) <= _MOST_DIGITS and {*names} == {*map(str, range(len(names)))}


def classes_in(cells: Iterable[Cell | None]) -> set[str]:
    """Return all classes in cells; a cell is a text with one class or a tuple of classes."""
    several = ((cell,) if isinstance(cell, str) else cell or () for cell in cells)
    return {name for own in several for name in own}


def label_by_columns(keys: Sequence[str], match: TableMatch, rule: CsvRule) -> Labelling:
    """Return the labels in a matched table; TwoLabelsError if two rows of an image disagree."""
    table = match.table
    places = _label_titles(table, rule.label_columns, match.id_column)
    titles = tuple(places)
    if len(titles) == 1:
        titles = (table.header[places[titles[0]]],)
    first = table.titles.get(titles[0], titles[0])
    columns = f"column {first!r}" if len(titles) == 1 else f"{len(titles)} columns"
    by = "" if table.is_own else f" by {match.id_column!r}"
    by += f", a row for each {rule.pivot!r}" if rule.pivot else ""
    found = Labelling(
        Coded.constant(None, len(keys)),
        f"{_named(keys, match)}, {columns}{by}",
        match.rows_without_image,
        match=match,
        columns=(*titles, rule.pivot) if rule.pivot else titles,
        rule=table.label_rule(match.id_column, titles),
    )
    columns_of_rows: list[Column] = [
        (title, match.key_of, table.cells(place).coded().map(lambda cell: cell or None))
        for title, place in zip(titles, places.values(), strict=True)
    ]
    is_one = len(titles) == 1 and not rule.pivot
    is_set = is_one and have_several(match.key_of, columns_of_rows[0][2])
    if rule.target == "texts" or (rule.target == "multilabel" and is_set):
        cells_of_rows = [cells for _, _, cells in columns_of_rows]
        lists = _text_lists(len(keys), match.key_of, cells_of_rows)
        known = frozenset((cell,) for cells in cells_of_rows for cell in cells.values if cell)
        return replace(found, names=lists, table_names=known)
    if rule.pivot:
        columns_of_rows = list(_pivoted(match, rule.pivot, columns_of_rows))
    of_images = {
        title: _of_images(keys, table.name, rows, cells, title if len(columns_of_rows) > 1 else "")
        for title, rows, cells in columns_of_rows
    }
    all_cells = {
        title: [cell for cell in cells.firsts().values() if cell is not None]
        for title, _, cells in columns_of_rows
    }
    if is_one and rule.target not in OF_COLUMNS:
        names = cast("Coded[Cell | None]", of_images[titles[0]])
        number = int((match.key_of >= 0).sum() - (match.row_of >= 0).sum())
        repeat = counted(number, "row", "repeats", "repeat")
        what = f"{table.name}: {repeat} the label of an image"
        remarks = (what,) if number else ()
        every = frozenset(all_cells[titles[0]])
        return replace(found, names=names, table_names=every, remarks=remarks)
    if _are_flags(table.name, all_cells, rule.target):
        names, classes = _sets_of_flags(of_images), frozenset((title,) for title in of_images)
        found = replace(found, remarks=_unsure_flags(table.name, of_images, names.are_there))
        return replace(found, names=names, table_names=classes, flags=tuple(of_images))
    return replace(found, names=_titles_of_rows(of_images), cells=of_images)


def _named(keys: Sequence[str], match: TableMatch) -> str:
    """Return the name of the table, or names of its parts with their numbers of images by split."""
    if not match.table.parts:
        return match.table.name
    splits = folder_splits(keys)
    are_folders = any(splits.values)
    names, start = list[str](), 0
    for name, number in match.table.parts:
        images = match.key_of[start : start + number]
        found = np.flatnonzero(np.bincount(images[images >= 0]))
        counts = splits.filled("train").take(found).counts() if are_folders else {}
        of = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        names.append(f"{name} ({of or counted(len(found), 'image')})")
        start += number
    return " + ".join(names)


def _titles_of_rows(columns: Mapping[str, Coded[str | None]]) -> Coded[Cell | None]:
    """Return for each image the titles of the columns, or None if all its cells are empty."""
    is_there = reduce(np.logical_or, (cells.are_there for cells in columns.values()))
    return Coded(np.where(is_there, 0, -1), (tuple(columns),))


def _sets_of_flags(columns: Mapping[str, Coded[str | None]]) -> Coded[Cell | None]:
    """Return for each image the titles of columns with 1, 1.0, true or yes, in any case of letters.

    None if all its cells are empty.
    """
    is_there = _titles_of_rows(columns).are_there
    are_set = [cells.fit(lambda cell: str(cell).lower() in _SET) for cells in columns.values()]
    flags, codes = np.unique(np.stack(are_set), axis=1, return_inverse=True)
    values = [tuple(itertools.compress(columns, one)) for one in flags.T.tolist()]
    return Coded(np.where(is_there, codes.reshape(-1), -1), values)


def _unsure_flags(
    table: str, columns: Mapping[str, Coded[str | None]], is_there: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Return a remark on cells of −1, and on empty cells, in columns that also have 0."""
    num_empty, num_negative = 0, 0
    for cells in columns.values():
        counts = Counter[str]()
        for cell, number in cells.counts().items():
            counts[str(cell).lower()] += number
        if any(counts[zero] for zero in _NOT):
            num_empty += int((is_there & ~cells.are_there).sum())
            num_negative += counts["-1"] + counts["-1.0"]
    parts = [counted(num_negative, "cell") + " of -1"] if num_negative else []
    parts += [counted(num_empty, "empty cell")] if num_empty else []
    kept, many = OptionName("target", "vector"), " and ".join(parts)
    verb = "counts" if num_negative + num_empty == 1 else "count"
    return (f"{table}: {many} {verb} as 0; {kept} keeps them apart",) if parts else ()


def _of_images(
    keys: Sequence[str], table: str, key_of: Ints, cells: Coded[str | None], title: str
) -> Coded[str | None]:
    """Return the cell of each image; TwoLabelsError if two rows of an image differ."""
    rows = np.flatnonzero((key_of >= 0) & cells.are_there)
    images, codes = key_of[rows], cells.codes[rows]
    named = np.full(len(keys), -1, cells.codes.dtype)
    named[images[::-1]] = codes[::-1]  # the first of several rows is assigned last
    others = np.flatnonzero(named[images] != codes)
    if len(others):
        image, cell = int(images[others[0]]), cells[int(rows[others[0]])]
        of = f" of {title!r}" if title else ""
        what = f"gives {keys[image]} two labels{of}, {cells.values[named[image]]!r} and {cell!r}"
        many, texts = OptionName("target", "multilabel"), OptionName("target", "texts")
        pivot = OptionName("pivot", "COLUMN")
        hint = (
            f"give one row for each image. Or keep several rows with {many} (classes), "
            f"{texts} (texts) or {pivot} (a row for each image and target)"
        )
        raise TwoLabelsError(table, what, hint)
    return Coded(named, cells.values)


def have_several(key_of: Ints, cells: Coded[Any]) -> bool:
    """Return whether any image has rows with different cells; cells of None do not count."""
    rows = np.flatnonzero((key_of >= 0) & cells.are_there)
    last = np.zeros(int(key_of.max(initial=0)) + 1, cells.codes.dtype)
    last[key_of[rows]] = cells.codes[rows]
    return bool((last[key_of[rows]] != cells.codes[rows]).any())


def _text_lists(
    num_keys: int, key_of: Ints, columns: Sequence[Coded[str | None]]
) -> Coded[Cell | None]:
    texts: dict[int, list[str]] = {}
    for image, *cells in zip(key_of.tolist(), *columns, strict=True):
        if image >= 0:
            texts.setdefault(image, []).extend(cell for cell in cells if cell)
    return Coded.apart(tuple(texts.get(image, ())) or None for image in range(num_keys))


def _pivoted(match: TableMatch, pivot: str, columns: Sequence[Column]) -> Iterator[Column]:
    """Yield a column for each target, from a table with a row for each image and target."""
    table, option = match.table, OptionName("pivot")
    if len(columns) != 1:
        what = f"needs one column of values, but the labels are {len(columns)} columns"
        flag = OptionName("labels", "csv:FILE:ID:VALUE")
        raise SourceError(option, what, f"name one column: {flag}")
    ((title, key_of, values),) = columns
    names = table.checked_cells(table.column(pivot)).coded()
    known = sorted({*names.firsts().values()} - {""}, key=natural_order)
    if title == table.header[table.column(pivot)] or not 0 < len(known) <= _MOST_TARGETS:
        names_of = counted(len(known), "name")
        what = f"column {pivot!r} has {names_of} of targets, for the values of {title!r}"
        hint = f"choose a column without the values, and with 1 to {_MOST_TARGETS:,} names"
        raise SourceError(option, what, hint)
    if lost := int((names.fit(lambda name: not name) & values.are_there).sum()):
        what = f"{counted(lost, 'row', 'has', 'have')} a value, but no {pivot!r}"
        raise SourceError(table.name, what, "fill these cells, or delete the rows")
    for name in known:
        rows = np.flatnonzero(names.fit(name.__eq__))
        # `map` leaves out values that only other targets have.
        yield name, key_of[rows], values.take(rows).map(lambda cell: cell)


def flag_columns(match: TableMatch) -> tuple[str, ...]:
    """Return the columns of flags (see `flags_in`) of a matched table, except its ids."""
    titles = match.table.header
    columns = {one: match.table.cells(i) for i, one in enumerate(titles) if one != match.id_column}
    return flags_in(columns)


def flags_in(columns: Mapping[str, Texts]) -> tuple[str, ...]:
    """Return columns of only 1, 0, −1, true, false, yes or no; () unless two or more have a 1."""
    flags: list[str] = []
    num_set = 0
    for title, column in columns.items():
        if not _SET_OR_NOT.issuperset(map(str.lower, column[:_FEW])):
            continue  # the codes of a million ids would take 150 MB
        cells = {cell.lower() for cell in column.coded().values}
        if any(cells) and cells <= _SET_OR_NOT and title.lower() not in NO_LABEL_COLUMNS:
            flags.append(title)
            num_set += not _SET.isdisjoint(cells)
    return tuple(flags) if num_set > 1 else ()


def _are_flags(table: str, columns: Mapping[str, Collection[str]], target: str) -> bool:
    """Return whether each column is a class, with 1, 0 or −1; if not, each column is a target.

    SourceError for other values, unless `target` is "auto" and half of the columns have them.
    """
    others: dict[str, str] = {}
    for title, cells in columns.items():
        strange = next((cell for cell in cells if cell.lower() not in _SET_OR_NOT), None)
        others |= {} if strange is None else {title: strange}
    if target in OF_COLUMNS or (target == "auto" and 2 * len(others) >= len(columns)):
        return False
    for title, cell in others.items():
        what = f"column {title!r} has {cell!r}"
        hint = "with one column per class, use only 1, 0 or -1"
        flags = " or ".join(str(OptionName("target", one)) for one in OF_COLUMNS)
        raise SourceError(table, what, f"{hint}, or add {flags} for other numbers")
    return True


def _label_titles(
    table: Table, columns: tuple[str, ...], id_title: str, option: str = ""
) -> dict[str, int]:
    if not columns and table.is_frame and not option:
        columns = _only_flags(table, id_title)  # no option could name them
    columns = columns or (find_label_column(table, id_title, option),)
    if columns == ("*",):
        own = table.header[: len(table.header) - table.num_joined]
        of_images = id_title, table.titles.get("image")
        columns = tuple(title for title in own if title not in of_images)
    return {title: table.column(title) for title in columns}


def _only_flags(table: Table, id_title: str) -> tuple[str, ...]:
    """Return the columns of flags if all columns except the ids and splits are flags, else ()."""
    titles = {one: table.cells(i) for i, one in enumerate(table.header) if one != id_title}
    others = {title: one for title, one in titles.items() if title.lower() not in NO_LABEL_COLUMNS}
    if {*LABEL_COLUMNS} & {*map(plain_title, others)}:
        return ()
    flags = flags_in(others)
    return flags if len(flags) == len(others) else ()


def find_label_column(table: Table, id_title: str = "", option: str = "") -> str:
    """Return the title of the column of labels: the clearest usual title, or the only other column.

    If that column has numbers, and another usual column has one name for each number, the column of
    names is returned. SourceError if the column is unclear.
    """
    lowered = {plain_title(title): title for title in table.header if title != id_title}
    named = [lowered[name] for name in LABEL_COLUMNS if name in lowered]
    for other in named[1:]:
        numbers, names = (table.cells(table.column(one)).coded() for one in (named[0], other))
        pairs = len({*zip(numbers.codes.tolist(), names.codes.tolist(), strict=True)})
        are_numbers = all(cell.lstrip("-").isdecimal() for cell in numbers.counts())
        are_names = not any(cell.lstrip("-").isdecimal() for cell in names.counts())
        if are_numbers and are_names and pairs == len(names.counts()) == len(numbers.counts()):
            return other
    if named:
        return named[0]
    others = [title for name, title in lowered.items() if name not in NO_LABEL_COLUMNS]
    if len(others) == 1:
        return others[0]
    several = ", ".join(one for one in table.header if one != id_title) or f"only {id_title}"
    what = f"it is not clear which column is the label: {several}"
    flag = OptionName(option or "labels", table.label_rule(id_title, ["LABEL"]))
    hint = f"name the columns: {flag}"
    if table.is_frame:
        hint = "call the column label"
        if len(others) > 1 and not option:
            own = OptionName("labels", f"column:{','.join(others[:2])}")
            hint += f"; for several columns, give the frame as items, with {own}"
    raise SourceError(table.name, what, hint)
