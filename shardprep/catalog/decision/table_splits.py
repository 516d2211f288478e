"""Find the splits of a table's rows, and tables of other splits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.decision.column_evidence import LabelColumns
from shardprep.catalog.decision.split_evidence import PARTITION, partition, split_column
from shardprep.catalog.decision.view import Options, Reading, View, head_of
from shardprep.catalog.names import document_split
from shardprep.catalog.tables.key_index import SUBMISSION, paths_of
from shardprep.catalog.tables.row_matching import TableMatch
from shardprep.catalog.tables.table import Table
from shardprep.errors import SourceError
from shardprep.source.string_column import Lookup, Texts

TEXTS = (".txt", ".json", ".jsonl")
"""Suffixes of documents that may be tables."""
_FIRST_FEW = 100
_MOST_DOCUMENTS, _MOST_BYTES = 12, 256 << 20
_OF_TRAIN, _OF_TEST = "1=train,0=test", "0=train,1=test"
_FLAGS_OF_SPLITS = dict.fromkeys(("train", "is_train", "training"), _OF_TRAIN)
_FLAGS_OF_SPLITS |= dict.fromkeys(("test", "is_test", "testing"), _OF_TEST)
"""Title of a column of 0 and 1 → meaning of 0 and 1 for `--split column:`."""
_SOLUTION = re.compile("solution|answers?", re.IGNORECASE)
_TEXT_LIST = re.compile(r'"(\w+)"\s*:\s*\[\s*"[^"\s]+(?: [^"\s]+){3,}"')
"""Matches a list of texts in JSON, such as captions."""


def other_tables(view: View, may_be: Callable[[str], bool] = bool) -> list[Table]:
    """Return the texts and JSON documents that are tables and have a suitable name."""
    found = list[Table]()
    members = [one for one in view.documents.members(*TEXTS) if may_be(one.key)]
    for member in members if len(members) <= _MOST_DOCUMENTS else ():
        name = member.key.rpartition("/")[2]
        if member.extent.num_bytes <= _MOST_BYTES and not PARTITION.search(name):
            with contextlib.suppress(SourceError):
                table = view.documents.table([member.key])
                texts = dict.fromkeys(_TEXT_LIST.findall(head_of(member)))
                columns = (*table.header, *texts) if len(texts) == 1 else ()
                found.append(view.documents.table([member.key], columns) if columns else table)
    return found


def with_splits(view: View, one: LabelColumns, options: Options) -> Options:
    """Return the options, with `split` added if names of tables, or a column, state splits."""
    table = one.match.table
    ids = one.match.id_column
    if not _are_open(view, one):
        return options
    own, are_there = split_column(table), _are_given(view)
    others = [] if table.is_own else [*_of_other_splits(view, one)]
    files = [name for name, _ in table.parts] or [table.name]
    key = "boxes" if "boxes" in options else "labels"
    rule = str(options[key]).replace(table.files, ",".join([*files, *others]))
    if own and own.is_certain:
        return {**options, **own.options, **({key: rule} if are_there.any() else {})}
    if table.is_own or are_there.any():
        return options
    for column in (x for x in table.header if x.strip().lower() in _FLAGS_OF_SPLITS):
        if {*table.cells(table.column(column))} == {"0", "1"}:
            flags = _FLAGS_OF_SPLITS[column.strip().lower()]
            return {**options, "split": f"column:{column}:{flags}"}
    splits = {_split_of(name) or "train" for name in [*files, *others]}
    if len(splits) > 1 and "," not in "".join(files):
        return {**options, key: rule, "split": "tables"}
    return {**options, **partition(view, table, ids)}


def _are_given(view: View) -> NDArray[np.bool_]:
    return view.index.splits.fit(lambda split: split not in (None, "train"))


def _are_open(view: View, one: LabelColumns) -> bool:
    return view.is_open("split") and not _are_given(view)[one.match.row_of >= 0].any()


def with_unclear_splits(view: View, one: LabelColumns, reading: Reading) -> Iterator[Reading]:
    """Yield the reading with and without a column that states splits, if some cells are unclear."""
    own = split_column(one.match.table) if _are_open(view, one) else None
    if own and not own.is_certain and "split" not in reading.options:
        why = f"{reading.why}; {own.why}"
        yield replace(own, options={**reading.options, **own.options}, why=why)
    yield reading


def with_solution(view: View, one: LabelColumns, reading: Reading) -> Iterator[Reading]:
    """Yield the reading, with labels of test images if a table with the solution states them.

    If the table's column `Usage` has Public and Private, and splits are open, the same reading with
    these as validation and test comes first.
    """
    ids, table = one.match.id_column, one.match.table
    for other in view.documents.tables:
        has_all = {ids, *one.titles} <= {*other.header} and not (table.is_own or table.parts)
        if not (has_all and _SOLUTION.search(other.name) and "split" not in reading.options):
            continue
        own = other.cells(other.column(ids))
        if _is_disjoint(own, one.match) and view.index.num_found(own):
            usage = [one for one in other.header if one.lower() == "usage"]
            files = f"{table.files},{other.name}"
            rule = table.label_rule(ids, one.titles).replace(table.files, files)
            options, why = {**reading.options, "labels": rule}, f"{reading.why}; {other.name}"
            for title in usage if view.is_open("split") else ():
                if {"Public", "Private"} <= {*other.cells(other.column(title)).coded().values}:
                    split = f"column:{title}:Public=validation,Private=test"
                    yield Reading({**options, "split": split}, f"{why}, column {title!r}")
            yield Reading(options, why)
            return
    yield reading


def _of_other_splits(view: View, one: LabelColumns) -> Iterator[str]:
    """Yield names of tables of other splits, which name images that the matched table lacks.

    A sample submission that has the label columns is left out, because its labels mean nothing.
    """
    match, own = one.match, {one.match.table.name, *dict(one.match.table.parts)}

    def may_be(name: str) -> bool:
        return bool(_split_of(name)) and "," not in name and name not in own

    is_text = match.table.name.endswith(TEXTS)
    tables = other_tables(view, may_be) if is_text else view.documents.tables
    for other in (x for x in tables if may_be(x.name) and match.id_column in x.header):
        if SUBMISSION.search(other.name) and not {*one.titles}.isdisjoint(other.header):
            continue
        ids = other.cells(other.column(match.id_column))
        if view.index.num_found(ids) and _is_disjoint(ids, match):
            yield other.name


def _split_of(name: str) -> str | None:
    return document_split(name) or ("test" if SUBMISSION.search(name) else None)


def _is_disjoint(ids: Texts, match: TableMatch) -> bool:
    known = Lookup(paths_of(match.table.cells(match.table.column(match.id_column))))
    return all((known.positions(some)[0] < 0).all() for some in (ids[:_FIRST_FEW], paths_of(ids)))
