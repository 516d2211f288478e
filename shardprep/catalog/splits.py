"""Splits that the source gives, and groups of images that must stay in one split.

Splits come from folders, a column, lists or tables. A group can be a patient, a scene or a burst.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shardprep.catalog.items import Items
from shardprep.catalog.names import given_split, natural_order, split_places
from shardprep.catalog.patterns import ANY_FOLDER, Pattern, globs_match
from shardprep.catalog.tables.key_index import KeyIndex, origin_of, unused_entries
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import TableMatch, is_of_splits
from shardprep.dataset.leak_check import ratios_like
from shardprep.errors import OptionError, OptionName, SourceError, counted, shown, some_of
from shardprep.recipe.recipe import Recipe
from shardprep.recipe.rules import GroupRule, SplitRule
from shardprep.source.names import composed
from shardprep.source.string_column import Coded, Texts

REST = "*"
"""In `--split`, instead of a file: images on no list; instead of a cell: all other values."""
_MOST_SHOWN = 8
_MOST_CHARACTERS = 160
_PATIENT = re.compile(r"(patient|subject|case|study|participant)([-_ ]?id)?", re.IGNORECASE)


def is_cut(split: str, ratios: Mapping[str, float]) -> bool:
    """Return whether the ratios of `--split` divide a split: `train`, or a key of `ratios`."""
    return split == "train" or split in ratios


class GivenSplits(NamedTuple):
    """The split of each key, or None to leave the image out."""

    splits: Coded[str | None]
    notes: Sequence[str] = ()


def given_splits(
    index: KeyIndex,
    rule: SplitRule,
    match: TableMatch | None,
    documents: Documents,
    *,
    by_folders: bool = True,
) -> GivenSplits:
    """Return the split of each key by the rule; None leaves the image out.

    The rules "roots" and "list" leave out images that they do not name. With "column" and "tables",
    images without a stated split have the split of their folder, and images without a row are left
    out, except in folders of validation and test. Other rules use the folders. For tables of items,
    `by_folders` is False: ratios divide the splits in their column `split`, and without this column
    all images are in train. OptionError or SourceError if the rule does not fit the source.
    """
    if rule.kind == "roots":
        splits = _root_splits(index.keys, rule)
        flag = OptionName("split", f"{rule.text},train={REST}")
        number = counted(splits.count(None), "image")
        notes = [f"{number} in no split: {flag} puts them into train"] if None in splits else []
        return GivenSplits(Coded.of(splits), notes)
    if rule.kind == "list":
        return _listed_splits(index, rule, documents)
    by_folder: Coded[str | None] = Coded.constant("train", len(index.keys))
    if by_folders:
        by_folder = index.splits.filled("train")
    own = match.table if match is not None and match.table.is_own else None
    if match and own and not by_folders and rule.kind == "ratio" and "split" in own.header:
        stated = match.single("split").map(lambda cell: given_split([cell]))
        if stated.are_there.all():
            return GivenSplits(stated)
    if rule.kind in ("folders", "ratio"):
        return GivenSplits(by_folder, _idle_column(match, by_folder))
    stated = Coded.of(_splits_by_table(rule, match, by_folder))
    return GivenSplits(stated, _empty_cells(rule.column, match, stated) if match else ())


def _empty_cells(column: str, match: TableMatch, splits: Coded[str | None]) -> list[str]:
    """Return a note on images whose cell in the column of splits is empty."""
    if not column:
        return []
    is_empty = (match.row_of >= 0) & ~match.cells(column).fit(bool)
    counts = splits.take(np.flatnonzero(is_empty)).counts()
    many = counted(sum(counts.values()), "image", "has", "have")
    parts = ", ".join(f"{number:,} {split}" for split, number in counts.items())
    what = f"{many} an empty cell in column {column!r}: by folders, {parts}"
    return [what] if counts else []


def _idle_column(match: TableMatch | None, by_folder: Coded[str | None]) -> list[str]:
    """Return remarks on columns that state splits, if folders put all images in one split."""
    if match is None or len(by_folder.counts()) > 1:
        return []
    notes = []
    for title in match.table.header:
        cells = match.cells(title).counts().keys() - {""} if is_of_splits(title) else set()
        odd = _natural(one for one in cells if given_split([one]) is None)
        if len(odd) < len(cells) > 1:
            pairs = (f"{one}={given_split([one]) or 'SPLIT'}" for one in _natural(cells))
            places = f":{','.join(pairs)}" if odd else ""
            flag = OptionName("split", f"column:{title}{places}")
            notes.append(f"column {title!r} of {match.table.name} states splits: {flag} uses it")
    return notes


def _splits_by_table(
    rule: SplitRule, match: TableMatch | None, by_folder: Coded[str | None]
) -> Iterator[str | None]:
    if match is None:
        what = "needs a label table, but the source has none"
        hint = f"use {OptionName('join', 'FILE')}"
        hint = hint if rule.column else f"use {OptionName('labels', 'csv:FILE')}"
        raise SourceError(OptionName("split", rule.kind), what, hint)
    if rule.kind == "tables":
        tables = _splits_of_tables(match.table.parts_of_rows())
        of_rows = Coded(np.append(tables.codes, -1)[match.row_of], tables.values)
        return _filled(of_rows, match, by_folder)
    cells = match.single(rule.column)
    if not rule.places.keys() <= {*cells.firsts().values(), REST}:  # 0.0 of pandas beside NaN
        cells = cells.map(lambda cell: cell if cell in rule.places else cell.removesuffix(".0"))
    known = {*cells.firsts().values()}
    if unused := rule.places.keys() - known - {REST}:
        there = some_of(_natural(known - {""}), _MOST_SHOWN)
        what = f"no image has {', '.join(_natural(unused))} in column {rule.column!r}"
        hint = f"use cells such as {there}" if there else "fill the column, or name another column"
        raise SourceError(OptionName("split", "column"), what, hint)
    given = cells.map(lambda cell: _column_split(cell, rule, known) if cell else None)
    return _filled(given, match, by_folder)


def _splits_of_tables(names: Coded[str]) -> Coded[str]:
    splits = {name: origin_of(name).split for name in names.values}
    nameless = [name for name, split in splits.items() if split is None]
    if nameless and "train" in splits.values():
        what = f"the name of {some_of(nameless)} has no word for a split, but other names have one"
        flag = OptionName("split", "list:train=FILE,validation=FILE")
        raise SourceError(OptionName("split", "tables"), what, f"give each split its list: {flag}")
    return names.map(lambda name: splits[name] or "train")


def _filled(
    given: Iterable[str | None], match: TableMatch, by_folder: Iterable[str | None]
) -> Iterator[str | None]:
    """Yield the given split or the split of the folder; None in train without a row."""
    for own, row, folder in zip(given, match.row_of.tolist(), by_folder, strict=True):
        yield own or (None if row < 0 and folder == "train" else folder)


def _root_splits(keys: Sequence[str], rule: SplitRule) -> list[str | None]:
    """Return the split of the first glob that matches folders of a key, or None; case matters."""
    splits: list[str | None] = [None] * len(keys)
    for glob, split in rule.places.items():
        left = [i for i, known in enumerate(splits) if known is None]
        text = f"{ANY_FOLDER}{fnmatch.translate(composed(glob).rstrip('/') + '/*')}"
        pattern = Pattern(text, OptionName("split"), glob, is_whole=True)
        fits = globs_match([composed(keys[i]) for i in left], pattern)
        for i, is_below in zip(left, fits, strict=True):
            splits[i] = split if is_below else None
        if not any(fits):
            folders = _natural({folder for key in keys for folder in key.split("/")[:-1]})
            there = some_of(folders, _MOST_SHOWN)
            hint = f"write folders as in the source: {there}" if there else "leave this option out"
            what = f"{split}={glob} matches no image"
            if any(globs_match([*map(composed, keys)], pattern)):
                what = f"{split}={glob} matches only images of an earlier split"
                hint = "write it first, because the first folder that fits counts"
            raise SourceError(OptionName("split", "roots"), what, hint)
    return splits


def _listed_splits(index: KeyIndex, rule: SplitRule, documents: Documents) -> GivenSplits:
    splits: list[str | None] = [None] * len(index.keys)
    notes = list[str]()
    for file, split in rule.lists:
        if file == REST:
            continue
        ids = documents.ids(file, index, split)
        origin = origin_of(file, is_firm=False)._replace(split=split)
        places = index.find_all(Texts.of(ids), file, Coded.constant(origin, len(ids)))
        unused = [text for text, at in zip(ids, places.tolist(), strict=True) if at < 0]
        notes += unused_entries(file, unused, len(ids), index.keys)
        for place in places[places >= 0].tolist():
            if (other := splits[place]) not in (None, split):
                what = f"{index.keys[place]} is in two splits, {other} and {split}"
                raise SourceError(file, what, "list each image once")
            splits[place] = split
        if not (places >= 0).any():
            line = f"; the first is {shown(ids[0], _MOST_CHARACTERS)}" if ids else ": it is empty"
            hint = f"write keys such as {shown(index.keys[0], _MOST_CHARACTERS)}"
            raise SourceError(file, f"names no image of the source{line}", hint)
    rest = dict(rule.lists).get(REST)
    return GivenSplits(Coded.of(one or rest for one in splits), notes)


def _column_split(cell: str, rule: SplitRule, known: Collection[str]) -> str:
    if cell in rule.places:
        return rule.places[cell]
    split = rule.places.get(REST) or given_split([cell])
    if split is None or (rule.places and REST not in rule.places):
        what = f"column {rule.column!r} has a cell {cell!r}, which names no split"
        flag = OptionName("split", split_places(rule.column, known))
        hint = f"give it a split: {flag} (*=train for all others)"
        raise OptionError(OptionName("split"), what, hint)
    return split


def _natural(names: Iterable[str]) -> list[str]:
    return sorted(names, key=natural_order)


def group_keys(keys: Sequence[str], rule: GroupRule, match: TableMatch | None) -> Coded[str]:
    """Return the group of each key, or "" if it has none; SourceError if no key has a group.

    A regular expression is searched in the file name, then in the whole key. Columns need `match`.
    """
    if rule.kind == "none":
        return Coded.constant("", len(keys))
    option = OptionName("group", rule.text)
    if rule.kind == "regex":
        groups = Coded.of(_by_regex(keys, rule))
    elif rule.kind == "folder":
        above = rule.depth - 1
        groups = Texts.of(keys).folders.map(lambda one: "/".join(one.split("/")[: -above or None]))
    elif match is None:
        what = "needs a label table with this column, but the source has no label table"
        hint = f"use {OptionName('join', 'FILE')}, or {OptionName('group', 'regex:PATTERN')}"
        raise SourceError(option, what, hint)
    else:
        groups = match.single(rule.text)
    if not any(groups.firsts().values()):
        hint = "fill the column, or name another column"
        if rule.kind in ("regex", "folder"):
            what = "pattern" if rule.kind == "regex" else "folder"
            hint = f"give a {what} that fits {keys[0]}"
        raise SourceError(option, "gives no image a group", hint)
    return groups


def group_findings(items: Items, rule: str, ratios: Mapping[str, float]) -> list[str]:
    """Return remarks on the groups; `ratios` maps the splits of `--split` to their shares."""
    is_grouped = items.group.fit(bool)
    alone = int((~is_grouped).sum())
    number = len(np.unique(items.group.codes[is_grouped]))
    lines = [f"{counted(number, 'group')} by {rule}"]
    if alone:
        lines.append(f"{counted(alone, 'image')} without a group: each is a group of its own")
    return lines + _alike(items.group) + divided_groups(items, ratios)


def _alike(groups: Coded[str]) -> list[str]:
    """Return a note on groups whose names differ only in case."""
    known, twins = dict[str, str](), list[str]()
    for name in groups.firsts().values():
        if (other := known.setdefault(name.casefold(), name)) != name:
            twins.append(f"{other!r} and {name!r}")
    what = f"{counted(len(twins), 'pair')} of groups differ only in case, such as"
    return [f"{what} {twins[0]}: write them alike to keep their images together"] if twins else []


def divided_groups(items: Items, ratios: Mapping[str, float]) -> list[str]:
    """Return a remark on groups in several splits; `ratios` as in `group_findings`."""
    splits, is_counted = items.split.codes, items.group.fit(bool)
    if ratios:
        is_counted &= items.are_labelled
        splits = np.where(items.split.fit(lambda split: is_cut(split, ratios)), -1, splits)
    pairs = np.unique(np.stack((items.group.codes, splits))[:, is_counted], axis=1)
    mixed = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    what = f"{counted(mixed, 'group', 'is', 'are')} in several of the given splits, a leak"
    flag = OptionName("split", ratios_like(items.split.counts()))
    return [f"{what}: {flag} keeps each group in one split"] if mixed else []


def divided_patients(
    match: TableMatch | None, splits: Coded[str | None], recipe: Recipe, labels: Collection[str]
) -> list[str]:
    """Return a note on a column of patients whose images are in several splits, or may be.

    Columns in `labels` do not count as columns of patients.
    """
    titles = [] if match is None or recipe.group else match.table.header
    for title in filter(_PATIENT.fullmatch, (one for one in titles if one not in labels)):
        patients = match.cells(title)  # type: ignore[union-attr]
        is_known = patients.fit(bool) & splits.are_there
        num_images = np.bincount(patients.codes[is_known])
        base = np.int64(len(splits.values))
        pairs = np.unique((patients.codes * base + splits.codes)[is_known])
        number = int((np.bincount(pairs // base) > 1).sum())
        if number:
            return [f"{counted(number, 'value')} of {title!r} in several splits, a leak"]
        if recipe.rules.split.ratios and (num_images > 1).any():
            flag = OptionName("group", title)
            return [f"images of one {title!r} may be in several splits; {flag} keeps them together"]
    return []


def _by_regex(keys: Sequence[str], rule: GroupRule) -> list[str]:
    pattern = Pattern(rule.pattern, OptionName("group"), rule.text, group=1)
    groups = pattern.search([key.rpartition("/")[2] for key in keys])
    left = [i for i, group in enumerate(groups) if group is None]
    for i, group in zip(left, pattern.search([keys[i] for i in left]), strict=True):
        groups[i] = group
    return [group or "" for group in groups]
