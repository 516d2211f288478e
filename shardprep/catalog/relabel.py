"""Apply `--relabel`: give images the labels of a table, and check that these are classes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardprep.catalog.labels import Labelling, TwoLabelsError, classes_in, label_by_table
from shardprep.catalog.selection import WholeKeyIndex, without_left_out
from shardprep.catalog.tables.key_index import unused_entries
from shardprep.catalog.tables.table import Table
from shardprep.catalog.targets import (
    SEPARATORS,
    Cell,
    Naming,
    class_names,
    listed,
    split_classes,
)
from shardprep.dataset.card import from_cell
from shardprep.errors import OptionName, SourceError, counted, nearest_name, some_of
from shardprep.recipe.rules import CsvRule
from shardprep.source.string_column import Coded

_PRINTED = re.compile(r"[\[(]\s*'")
"""Matches the start of a list of texts as Python or NumPy prints it."""


def relabelled(
    labelling: Labelling,
    keys: Sequence[str],
    fixes_of: tuple[Table, CsvRule],
    naming: Naming,
    left_out: Sequence[str] = (),
    *,
    adds: bool = False,
) -> Labelling:
    """Return the labels after `--relabel`, with remarks on the rows that were used.

    Rows of the images `left_out` are not reported as rows without an image. SourceError if no row
    fits, if rows of an image differ, or if labels are not classes. With `adds`, the hint names
    only the new classes for `--classes`.
    """
    option, (table, rule), separator = OptionName("relabel"), fixes_of, naming.separator
    fixes = _fixes(keys, table, rule, separator)
    mapped = naming.class_map
    before = {new: old for old, new in mapped.items()}  # the table has the new names
    # A class keeps its number if its last image gets another class.
    given = classes_in((*labelling.table_names, *labelling.names.values))
    known = {*given, *mapped.values()}
    _check_printed(table, fixes.names.values, known)
    cells = fixes.names.map(
        lambda cell: tuple(
            before.get(name := from_cell(one), name)
            for one in _classes_of(cell or (), {*known, *naming.classes}, separator)
        )
    )
    is_new = cells.are_there & labelling.names.are_there
    every = (*labelling.names.values, *fixes.names.values)
    if not is_new.any() or (separator is None and any(isinstance(one, tuple) for one in every)):
        what = f"no row of {table.name} gives one new label to an image that has one label"
        named = "id and label" if table.is_frame else "csv:FILE:ID:LABEL"
        hint = f"name the columns ({named}), and use keys such as {keys[0]}"
        if separator is not None:
            what = f"no row of {table.name} has labels for a labelled image"
            hint = f"write [] to remove all labels of an image, or {hint}"
        raise SourceError(option, what, hint)
    pairs = zip(is_new.tolist(), cells, labelling.names, strict=True)
    names: Coded[Cell | None] = Coded.of(
        (new and new[0] if separator is None else new) if is_one else old
        for is_one, new, old in pairs
    )
    at = np.flatnonzero(is_new)
    olds = labelling.names.take(at).map(lambda one: (one,) if isinstance(one, str) else one)
    changed = sum(
        {*(new or ())} != {*(old or ())} for new, old in zip(cells.take(at), olds, strict=True)
    )
    remark = f"{option}: {counted(is_new.sum(), 'row')} of {table.name}, "
    remark += f"{counted(changed, 'label')} changed"
    num_rows = int((fixes.match.row_of >= 0).sum()) if fixes.match else 0
    if (num_old := num_rows - is_new.sum()) > 0:
        has = counted(num_old, "image", "has", "have")
        remark += f"; {has} no label, or an empty cell there"
    remark = remark if changed else f"warning: {remark}; labels are read from {fixes.how}"
    found = classes_in(names.counts())
    whole = class_names({*known, *mapped, *naming.classes, *found})
    classes = naming.classes or tuple(dict.fromkeys(mapped.get(c, c) for c in whole if c in known))
    there = {whole[one] for one in (*known, *mapped, *naming.classes)}
    if added := [c for c in whole if c in found and whole[c] not in there]:
        kept = [c for c in classes if not (adds and c in known)]
        odd = _unknown_classes(added, classes, separator)
        raise _not_classes(option, table.name, odd, kept, classes, adds=adds)
    unknown, remarks = without_left_out(fixes.rows_without_image, left_out)
    remarks += [remark, *fixes.findings]
    remarks += unused_entries(table.name, unknown, len(table.rows), keys)
    lost = (*labelling.rows_without_image, *unknown)
    table_names = frozenset(one if separator is None else (one,) for one in given)
    how = f"{labelling.how}; then {fixes.how}"
    labelling = replace(labelling, names=names, table_names=table_names, how=how)
    return replace(labelling, rows_without_image=lost, remarks=(*labelling.remarks, *remarks))


def _fixes(keys: Sequence[str], table: Table, rule: CsvRule, separator: str | None) -> Labelling:
    """Return the labels in the table, with findings on its ids; SourceError if no id fits."""
    index = WholeKeyIndex(keys)
    try:
        fixes = label_by_table(index, table, rule, "relabel")
    except TwoLabelsError as error:
        hint = "" if separator is None else ", with several classes in one cell, as in a|b"
        raise SourceError(error.place, error.what, f"give one row for each image{hint}") from error
    if fixes.match is not None:
        fixes.match.check(keys[0])
    return replace(fixes, findings=tuple(index.remarks))


def _not_classes(
    option: OptionName,
    table: str,
    unknown: Mapping[str, str],
    kept: Sequence[str],
    classes: Sequence[str],
    *,
    adds: bool,
) -> SourceError:
    """Return the error about `unknown` labels; it proposes `kept` and the new ones as classes."""
    called = [f"{name} ({meant})" if meant else name for name, meant in unknown.items()]
    what = f"{table} has labels that are not classes: {some_of(called)}"
    new = [name for name, meant in unknown.items() if not meant or meant.endswith("?")]
    flag = OptionName("classes", ",".join((*kept, *new)))
    hint = f"correct them, or state all classes: {flag}"
    hint = f"correct them, or add them as classes: {flag}" if adds else hint
    return SourceError(option, what, hint if new else f"use one of {some_of(classes)}")


def _check_printed(table: Table, cells: Iterable[Cell | None], known: Collection[str]) -> None:
    texts = (one for one in cells if isinstance(one, str) and one not in known)
    if odd := next(filter(_PRINTED.match, texts), ""):
        hint = "give lists instead of texts" if table.is_frame else 'write lists such as ["a", "b"]'
        raise SourceError(table.name, f"label {odd!r} is not JSON", hint)


def _classes_of(cell: Cell, known: Collection[str], separator: str | None) -> tuple[str, ...]:
    """Return the classes in a cell, split so that all are `known`; if not possible, the cell."""
    cell = cell if separator is None else listed(cell) or ()
    if isinstance(cell, tuple) or separator is None or cell in known:
        return cell if isinstance(cell, tuple) else (cell,)
    several = (split_classes("", cell, "multilabel", one) for one in (separator or SEPARATORS))
    return next((own for own in several if {*own} <= {*known}), (cell,))


def _unknown_classes(
    names: Iterable[str], classes: Sequence[str], separator: str | None
) -> dict[str, str]:
    """Return name that is not a class → the remark on the class that it may mean, or "".

    Texts such as `mass|Nodule` are divided if `separator` is a text, "" to detect it.
    """
    folded = {one.casefold(): one for one in classes}

    def divided(name: str) -> tuple[str, ...]:
        for by in () if separator is None else separator or "|;,":
            own = split_classes("", name, "multilabel", by)
            if len(own) > 1 and (by in "|;" or folded.keys() & {*map(str.casefold, own)}):
                return own
        return (name,)

    meant = dict[str, str]()
    for name in (one for cell in names for one in divided(cell) if one not in classes):
        place = int(name) if name.isdecimal() and not any(map(str.isdecimal, classes)) else -1
        if same := folded.get(name.casefold()):
            meant[name] = f"{same} differs only in case"
        elif 0 <= place < len(classes):
            meant[name] = f"is the number of {classes[place]}"
        else:
            near = nearest_name(name, classes)
            meant[name] = f"is {near} meant?" if near else ""
    return meant
