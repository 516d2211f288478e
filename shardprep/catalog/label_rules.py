"""Labels of images by a rule: a table, folders, file names, or the first of these that fits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.labels import (
    ENOUGH,
    LABEL_COLUMNS,
    Labelling,
    TwoLabelsError,
    are_classes,
    label_by_table,
    plain_title,
)
from shardprep.catalog.names import UNTRAINED, are_parts, find_masks, given_split, split_folders
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.tables.key_index import SUBMISSION, AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.row_matching import match_table
from shardprep.catalog.tables.table import Table, UnsureCellsError
from shardprep.catalog.tables.united_tables import united
from shardprep.catalog.targets import Cell
from shardprep.errors import OptionName, SourceError, counted
from shardprep.recipe.rules import CsvRule, LabelRule
from shardprep.source.names import is_shard_name, without_archive_suffix
from shardprep.source.string_column import Coded, Texts

Ints = NDArray[np.int64]
_NUMBER_BACKWARDS = re.compile(r"\)?\d+\(?[\s._-]*")
"""Matches the last number of a name in the reversed name; a forward search takes quadratic time."""
_NUMBERED_END = re.compile(r"\d$")
_WORDS = re.compile(r"(?![A-Za-z]$)[^\W\d_][^\d]*$")
_SAMPLES = re.compile(
    r"(patient|subject|study|series|case|tomo|scan|slide|clip|video)(_?(instance)?_?u?id)?",
    re.IGNORECASE,
)
"""Matches titles of columns with ids of samples, which are not classes."""
_CAMERAS = re.compile(
    "(IMG|DSC[NF]?|DSC_|PXL|DJI|GOPR|GX|P|VID|WP|MVI|SAM|CIMG|Screenshot|image|photo)[-_ ]*",
    re.IGNORECASE,
)
"""Prefixes of file names from cameras, phones and drones."""
_SIGNS = re.compile(r"[\W_]+")
_MOST_LOOKED_AT = 500


def label_keys(index: KeyIndex, rule: LabelRule, tables: Sequence[Table]) -> Labelling:
    """Return the labels by a rule; "csv" reads the first table, "auto" tries all tables."""
    keys = index.keys
    match rule.kind:
        case "folder":
            how = f"name of folder {rule.depth} above the image"
            name = "folder" if rule.depth == 1 else f"folder:{rule.depth}"
            return Labelling(_folder_names(keys, rule.depth), how, rule=name)
        case "prefix":
            how = "start of the file name, before the number"
            return Labelling(Coded.of(map(_prefix, keys)), how, rule="prefix")
        case "regex":
            pattern = Pattern(rule.pattern, OptionName("labels"), rule.text, group="label")
            names: Coded[Cell | None] = Coded.of(label or None for label in pattern.search(keys))
            return Labelling(names, f"regex {rule.pattern}")
        case "csv" | "column":
            return label_by_table(index, tables[0], rule.table)
        case "none":
            return Labelling(Coded.constant(None, len(keys)), "none asked for")
        case "auto":
            return auto_labels(index, tables)


def auto_labels(index: KeyIndex, tables: Sequence[Table]) -> Labelling:
    """Return the labels by the first rule that fits: tables, folders, prefixes; or no labels.

    A rule fits if it labels nine tenths of the images outside test splits, and if the labels look
    like classes (see `are_classes`). UnsureCellsError if a table that names images lacks rows,
    or has two columns of one title.
    """
    keys = index.keys
    is_test = index.splits.fit(UNTRAINED.__contains__)
    considered = np.flatnonzero(~is_test if not is_test.all() else is_test)
    labelling, passed_over, unclear = _by_tables(index, tables, considered)
    if labelling is not None:
        return labelling
    names = _folder_names(keys, 1, find_masks(keys).no_classes)
    how = "name of the folder that holds the image"
    rule, is_whole = "folder", True
    is_fit = _fits(names, considered) and not are_parts([*map(str, names.values)])
    if is_fit and (ids := ids_of_samples(map(str, names.counts()), tables)):
        is_fit, passed_over = False, f"{passed_over}; the folders are ids in {ids}"
    if not is_fit:
        prefixes = Coded.of(map(_prefix, keys))
        names = prefixes.map(lambda name: name if name and may_be_class(name) else None)
        is_fit = _fits(names, considered) and not are_parts([*map(str, names.values)])
        first = int(considered[0])
        example = keys[first].rpartition("/")[2]
        how = f"start of the file name, before the number ({example} → {names[first]})"
        rule, is_whole = "prefix", bool((names.are_there == prefixes.are_there).all())
    if unclear is not None and rule == "prefix":
        is_fit = False
    if not is_fit:
        how = f"none found{passed_over}; say where they are with {OptionName('labels')}"
        found = Labelling(Coded.constant(None, len(keys)), how, unclear=unclear)
        return replace(found, remarks=unused_tables(index, found, united(index, tables)))
    names, findings = _without_test_names(names, considered, rule)
    # The rule itself would also label the test split.
    rule = rule if is_whole and not findings else "auto"
    return Labelling(names, how + passed_over, rule=rule, findings=findings)


def _by_tables(
    index: KeyIndex, tables: Sequence[Table], considered: Ints
) -> tuple[Labelling | None, str, SourceError | None]:
    """Return labels by the first table that fits, remarks, and the error of an unclear table."""
    passed_over, unclear = "", list[SourceError]()
    several = united(index, tables)
    for table in several:
        try:
            labelling = label_by_table(index, table, CsvRule((table.name,)))
        except AmbiguousIdError as error:
            passed_over += f"; {table.name} is passed over: {error.what}"
            unclear.append(error)
            continue
        except UnsureCellsError:  # the table names images
            raise
        except TwoLabelsError as error:
            passed_over += f"; {table.name} is passed over: it {error.what}"
            continue
        except SourceError:
            unclear += _nearly_fitting(index, table)
            continue
        is_fit = _fits(labelling.names, considered)
        if is_fit or are_classes(len(labelling.table_names), len(table.rows)):  # not captions
            table.check_quotes(*labelling.columns)
        if is_fit:
            table.check_rows()
            others = [one for one in several if one is not table]
            return replace(labelling, remarks=unused_tables(index, labelling, others)), "", None
    return None, passed_over, unclear[0] if unclear else None


def unused_tables(
    index: KeyIndex, labelling: Labelling, tables: Sequence[Table]
) -> tuple[str, ...]:
    """Return remarks on `tables` that label further images, give other labels, or do not fit."""
    remarks, own = [], labelling.names
    for table in tables:
        if SUBMISSION.search(table.name):
            continue
        names = Coded[Cell | None].of([])
        try:
            names = label_by_table(index, table, CsvRule((table.name,))).names
            are_named = names.are_there
        except TwoLabelsError:
            are_named = match_table(index, table).row_of >= 0
        except AmbiguousIdError as error:
            if not own.are_there.all():
                remarks.append(f"{table.name} is not used: {error.what}")
            continue
        except SourceError as error:
            if not own.are_there.any() and {*map(plain_title, table.header)} & {*LABEL_COLUMNS}:
                remarks.append(f"{table.name} is not used: {error.what}")
            continue
        if number := int((are_named & ~own.are_there).sum()):
            named = counted(number, "unlabelled image")
            remarks.append(f"{table.name} is not used, although it labels {named}")
        elif number := _num_other(names, own):
            what = f"it gives {counted(number, 'image')} another label"
            remarks.append(f"{table.name} is not used; {what}")
    return tuple(remarks)


def _num_other(names: Coded[Cell | None], own: Coded[Cell | None]) -> int:
    """Return how many images get another class; 0 if the labellings share no class."""
    known = {name: code for code, name in enumerate(own.values)}
    codes = np.array([*(known.get(name, -2) for name in names.values), -1])
    if not len(names) or not (codes >= 0).any():
        return 0
    are_both = names.are_there & own.are_there
    return int((codes[names.codes] != own.codes)[are_both].sum())


def _nearly_fitting(index: KeyIndex, table: Table) -> list[SourceError]:
    """Return an error if ids of labels differ from image names only in case, zeros or signs."""
    if {*map(plain_title, table.header)}.isdisjoint(LABEL_COLUMNS):
        return []
    names = {_plain(key): key for key in index.keys}
    every = [(title, table.cells(i)[:_MOST_LOOKED_AT]) for i, title in enumerate(table.header)]
    for title, cells in every:
        near = [cell for cell in cells if _plain(cell) in names]
        if index.num_found(cells) >= len(cells) / 2:
            return []  # the ids fit, but the labels are not clear
        if near and len(near) >= len(cells) / 2:
            what = f"ids such as {near[0]!r} in column {title!r} do not match keys such as "
            hint = f"write the ids like the keys, or choose a rule with {OptionName('labels')}"
            return [SourceError(table.name, what + repr(names[_plain(near[0])]), hint)]
    return []


def _plain(name: str) -> str:
    bare = _SIGNS.sub("", name.rpartition("/")[2].rpartition(".")[0] or name)
    return re.sub(r"(?<!\d)0+(?=\d)", "", bare).casefold()


def may_be_class(prefix: str) -> bool:
    """Return whether a prefix of file names may be a class: neither a split nor used by cameras."""
    return bool(_WORDS.match(prefix)) and not (given_split([prefix]) or _CAMERAS.fullmatch(prefix))


def ids_of_samples(names: Iterable[str], tables: Sequence[Table]) -> str:
    """Return a text with the table and column of sample ids that has 90% of the names, or ""."""
    known = {*names}
    for table in tables:
        for place, title in enumerate(table.header):
            if not _SAMPLES.fullmatch(title):
                continue
            cells = set(table.cells(place).coded().values)
            if len(known & cells) >= ENOUGH * len(known):
                return f"{table.name}, column {title!r}"
    return ""


def _without_test_names(
    names: Coded[Cell | None], considered: Ints, rule: str
) -> tuple[Coded[Cell | None], tuple[str, ...]]:
    """Return `names` and a finding; test loses its labels if over 10% of them are new classes."""
    known = names.take(considered).counts()
    is_other = np.ones(len(names), bool)
    is_other[considered] = False
    named = names.take(np.flatnonzero(is_other)).counts()
    strange = sorted({str(name) for name in named if name not in known})
    num_known = sum(count for name, count in named.items() if name in known)
    if num_known >= ENOUGH * sum(named.values()):
        return names, ()
    shown = ", ".join(strange[:3]) + (", …" if strange[3:] else "")
    finding = (
        f"{counted(int(is_other.sum()), 'image')} of test without labels: the classes by {rule} "
        f"({shown}) are not in the other splits; {OptionName('labels', rule)} uses them"
    )
    return Coded(np.where(is_other, -1, names.codes), names.values), (finding,)


def _fits(names: Coded[Cell | None], considered: Ints) -> bool:
    counts = names.take(considered).counts()
    num_found = sum(counts.values())
    return num_found >= ENOUGH * len(considered) and are_classes(len(counts), num_found)


def _folder_names(
    keys: Sequence[str], depth: int, no_classes: Collection[str] = ()
) -> Coded[Cell | None]:
    folders = Texts.of(keys).folders
    splits = split_folders(folders.firsts().values())

    def named(folder: str) -> str | None:
        parts = folder.split("/") if folder else []
        name = without_archive_suffix(parts[-depth]) if len(parts) >= depth else None
        if name is not None and is_shard_name(parts[-depth]) and _NUMBERED_END.search(name):
            return None  # a part of a set, such as data_0.parquet
        path = "/".join(parts[: len(parts) - depth + 1])
        return None if name is None or name in no_classes or path in splits else name

    return folders.map(named)


def _prefix(key: str) -> str | None:
    """Return the text before the number that ends a file name; None without text or number."""
    name = key.rpartition("/")[2]
    at = name.rfind(".")
    stem = name[:at] if 0 < at < len(name) - 1 else name
    match = _NUMBER_BACKWARDS.match(stem[::-1])
    return stem[: -match.end()] or None if match else None
