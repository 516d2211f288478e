"""Labels by tables: which columns of a table label the images, and which table is used."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.decision.class_level import PIECE, class_folders, unproved
from shardprep.catalog.decision.column_evidence import (
    CERTAIN,
    LIKELY,
    SHARED,
    STRONG,
    LabelColumns,
    found_columns,
    has_words,
    may_be_target,
)
from shardprep.catalog.decision.copies import apart
from shardprep.catalog.decision.name_evidence import are_wide
from shardprep.catalog.decision.split_evidence import numbered_splits
from shardprep.catalog.decision.table_splits import (
    TEXTS,
    other_tables,
    with_solution,
    with_splits,
    with_unclear_splits,
)
from shardprep.catalog.decision.unread_documents import documents_of_images
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.label_rules import auto_labels, label_keys
from shardprep.catalog.labels import ENOUGH, Labelling
from shardprep.catalog.names import words_of, words_of_split
from shardprep.catalog.objects.detect import text_files, usual
from shardprep.catalog.objects.formats.annotated_source import Sign
from shardprep.catalog.stacks import sample_keys, stack_patterns
from shardprep.catalog.tables.key_index import SUBMISSION, AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.row_matching import is_of_splits, joined, match_ids, match_table
from shardprep.catalog.tables.table import Table
from shardprep.catalog.tables.united_tables import united
from shardprep.catalog.target_values import as_number
from shardprep.errors import SourceError, counted, some_of
from shardprep.recipe.rules import LabelRule
from shardprep.source.string_column import Texts

_OPTIONS = (
    "labels", "pivot", "target", "separator", "rows", "join", "class_map",
    "boxes", "masks", "points", "target_image", "stack",
)  # fmt: skip
_MOST_JOINED, _MOST_SOUGHT = 4, 64
_MOST_SHOWN, _A_PAIR = 6, 2
_BITS = 24
"""Bits of a code of cells or folders, which are combined with codes of tables in one integer."""
_MOST_KEYS = 20_000
_WITH_NAMES = (".txt", ".csv", ".tsv", ".json")
"""Suffixes of documents that may name the images that texts describe."""
_CHANNELS = re.compile(r"\{id\}_\{([^{}]+)\}(\.\w+)")
_NAMED = 0.5
"""Minimum share of the images outside of test splits that a table must name to label them. It is
low, because a table may name only one of two pictures of a sample."""


def by_tables(view: View) -> Sequence[Reading]:
    """Return the readings of labels in tables; [] if `auto` finds the same labels."""
    if not (view.is_open(*_OPTIONS) and view.has_documents):
        return []
    readings = _of_tables(view, view.tables) or _of_channels(view)
    links = [*_of_links(view)]
    if readings or links:
        automatic = Reading({"labels": view.automatic.rule}, view.automatic.how)
        return [*links, *(readings or [automatic])]
    if not view.documents.members(*TEXTS):
        return []
    rule = view.automatic.rule
    is_proved = rule == "folder" and next(unproved(view), None) is None
    if is_proved or rule not in ("none", "prefix", "folder") or _signs(view, view.automatic):
        return []
    if rule == "none" and (pattern := text_files(view.index.keys, view.documents)):
        texts = {f"{key.rpartition('.')[0]}.txt" for key in view.members.keys}
        others = [x for x in view.documents.members(*_WITH_NAMES) if x.key not in texts]
        own = Reading({"labels": f"text:{pattern}", "target": "text"}, "a text for each image")
        named = next(documents_of_images(view, others), None)
        why = f"images alone; {named.key} names them and is not read" if named else ""
        return [own, Reading({"labels": "none"}, why)] if named else [own]
    tables = other_tables(view)
    if rule != "none":  # skip the search for columns that form paths
        some = KeyIndex(view.index.keys[:: len(view.index.keys) // _MOST_SOUGHT + 1])
        tables = [one for one in tables if _has_ids(some, one)]
    found = [*_of_tables(view, united(view.index, tables))]
    found += _of_joined(view, tables) if rule == "none" and not found else []
    found = [one for one in found if rule == "none" or one.options.keys() - {"header"}]
    is_labelled = any("labels" in one.options for one in found) and rule != "none"
    rest = [Reading({"labels": rule}, view.automatic.how)] if is_labelled else []
    return [*found[: _MOST_SHOWN - len(rest)], *(one for one in rest if one not in found)]


def _of_channels(view: View) -> list[Reading]:
    """Return readings of a table whose ids are samples of channels: 1 for `1_red` and `1_green`."""
    keys, tables = list(view.index.keys[:_MOST_KEYS]), view.documents.tables
    own = [one for one in tables if not SUBMISSION.search(one.name)]
    own = own if view.automatic.match is None else []
    pattern = next(iter(stack_patterns(keys, own) if own else ()), "")
    names = _CHANNELS.fullmatch(pattern)
    if names is None:
        return []
    index = KeyIndex(sample_keys(keys, pattern))
    for table in own:
        with contextlib.suppress(SourceError):
            match = match_ids(index, table)
            found = found_columns(match, index, tables)
            first = max(found, key=lambda one: one.strength, default=None)
            is_most = 2 * (match.row_of >= 0).sum() > len(index.keys)
            if first is not None and first.strength >= LIKELY and is_most:
                stacks = {"stack": pattern, **first.options[0]}
                readings = [Reading(stacks, f"{names[1]} as channels; {first.why}")]
                for one in names[1].split(","):
                    rule = table.label_rule(f"{{{match.id_column}}}_{one}", first.titles)
                    more = {"labels": rule, "include": (f"*_{one}{names[2]}",)}
                    readings.append(
                        Reading({**first.options[0], **more}, f"{one} alone; {first.why}")
                    )
                return readings
    return []


def labels_of_few(view: View) -> Sequence[Reading]:
    """Return readings of tables that label only some images, if no rule labels images."""
    if not view.is_open(*_OPTIONS):
        return []
    found: list[LabelColumns] = []
    is_test = view.index.splits.fit(lambda one: one == "test")
    tables = view.tables if view.automatic.rule == "none" and not view.automatic.unclear else ()
    for table in tables:
        with contextlib.suppress(SourceError):
            match = match_ids(view.index, table)
            if (~is_test & (match.row_of >= 0)).any() and not SUBMISSION.search(table.name):
                found += found_columns(match, view.index, tables)
    likely = [one for one in found if one.strength >= STRONG][: _MOST_SHOWN - 1]
    readings = [Reading(with_splits(view, one, one.options[0]), one.why) for one in likely]
    readings = readings or [*_of_joined(view, tables)][: _MOST_SHOWN - 1]
    return [*readings, Reading({"labels": "none"}, "images without labels")] if readings else []


def _of_links(view: View) -> Iterator[Reading]:
    """Yield readings of labels that a table of two columns links to images.

    A table whose second column differs in each row only renames the rows, and gives no reading.
    """
    tables = {one.name: one for one in view.documents.tables if not SUBMISSION.search(one.name)}
    ids = {one.header[0] for one in tables.values() if one.header[1:]}
    links = [one for one in tables.values() if len(one.header) == _A_PAIR]
    several = _of_joined(view, [*tables.values()]) if ids & {x.header[1] for x in links} else ()
    for reading in several:
        other = tables[reading.options["join"][0]]
        cells = other.cells(other.column(reading.options["labels"].rpartition(":")[2]))
        if reading.options.keys() - {"labels", "join"} or len({*cells}) < len(cells):
            yield reading


def _considered(view: View) -> NDArray[np.int64]:
    """Return the positions of images outside of test, or of all if all are in test."""
    is_test = view.index.splits.fit(lambda split: split == "test")
    return np.flatnonzero(~is_test if not is_test.all() else is_test)


def _of_joined(view: View, tables: Sequence[Table]) -> Iterator[Reading]:
    """Yield readings of labels in a second table that is joined to the table of images."""
    every = [one for one in view.documents.tables if not SUBMISSION.search(one.name)]
    considered = _considered(view)
    for own, other in itertools.permutations(tables, 2) if len(every) <= _MOST_JOINED else ():
        with contextlib.suppress(SourceError):  # they share no column, or several
            match = match_ids(view.index, own)
            if (match.row_of[considered] >= 0).mean() < ENOUGH or own.parts:
                continue
            more = match_table(view.index, joined(own, other, ""), match.id_column)
            new = [one for one in other.header if one not in own.header]
            for one in found_columns(more, view.index, every, new):
                is_whole = 2 * _num_empty(one) <= len(view.index.keys)
                if one.strength >= LIKELY and len(one.titles) == 1 and is_whole:
                    split = next(numbered_splits(view, [own]), Reading({}, one.why))
                    join = {"join": (other.name, *split.options.get("join", ())[1:])}
                    yield replace(split, options={**one.options[0], **split.options, **join})


def unlabelled_tests(view: View) -> Sequence[Reading]:
    """Return the reading that treats the label -1 as empty, if exactly the test images have it."""
    if not view.is_open("labels", "null", "target") or view.automatic.match is None:
        return []
    names, is_test = view.automatic.names, view.index.splits.fit(lambda one: one == "test")
    if "-1" not in names.values or not is_test.any():
        return []
    is_none = names.fit(lambda one: one == "-1")
    why = f"{counted(int(is_test.sum()), 'image')} of test have no label but -1"
    null = (*view.recipe.null, "-1")
    return [Reading({"null": null}, why)] if (is_none == is_test).all() else []


def _has_ids(index: KeyIndex, table: Table) -> bool:
    cells = (table.cells(i) for i in range(len(table.header)))
    return any(index.are_found(one).any() for one in (Texts.of(table.header), *cells))


def _of_tables(view: View, tables: Sequence[Table]) -> Sequence[Reading]:
    tables = [one for one in tables if not SUBMISSION.search(one.name)]
    titled = [one for one in tables if view.is_open("header") and not one.has_numbers]
    first = {cell: one for one in titled for cell in one.header}
    if first and (known := [*itertools.compress(first, view.index.are_found(Texts.of(first)))]):
        bare = {"header": False}
        why = f"the first line of {first[known[0]].name} names an image"
        readings = by_tables(view.read_as(Reading(bare, ""))) or [Reading({}, why)]
        rule = {"labels": view.automatic.rule}
        return [
            one if one.options == rule else Reading({**bare, **one.options}, one.why)
            for one in readings
        ]
    considered = _considered(view)
    found: list[LabelColumns] = []
    for table in tables:
        try:
            match = match_ids(view.index, table)
        except AmbiguousIdError as error:
            if readings := apart(view, error.found):
                return readings
            continue
        except SourceError:
            continue
        if (match.row_of[considered] >= 0).sum() >= _NAMED * len(considered):
            found += found_columns(match, view.index, view.documents.tables)
    if not any(one.strength >= LIKELY for one in found):
        return []
    automatic = view.automatic
    signs = _signs(view, automatic)
    if any(sign.option.partition(":")[0] not in ("csv", "rle") for sign in signs):
        return []
    found = [one for one in found if not any(one.match.table.files in s.option for s in signs)]
    found = _as_rivals(found)
    best = max((one.strength for one in found), default=0)
    readings = _compared(view, found, automatic) if best >= (STRONG if signs else LIKELY) else []
    if readings and all(sign.key == "points" for sign in signs):
        return readings
    return [*(Reading({sign.key: sign.option}, sign.how) for sign in signs), *readings]


def _signs(view: View, automatic: Labelling) -> list[Sign]:
    """Return the boxes that tables state, or all annotations if no rule labels the images."""
    if automatic.rule == "none":
        return usual(view.signs)
    return [s for s in view.signs if s.key == "boxes" and s.option.startswith(("csv:", "column:"))]


def _as_rivals(found: Sequence[LabelColumns]) -> list[LabelColumns]:
    """Return the columns; if one column is STRONG, column 2 of a headerless table is not stronger.

    Two strong columns make the user choose, also if one is a type that divides the classes of the
    other, such as healthy and sick within "no tuberculosis".
    """
    clear = [one for one in found if STRONG <= one.strength < SHARED]
    finer = [one for one in found if len(clear) == 1 and _divides(one, clear[0])]
    found = [replace(x, strength=clear[0].strength) if x in finer else x for x in found]
    most = STRONG if any(one.strength == STRONG for one in found) else SHARED
    bare = ((one, most if one.titles == ("2",) else SHARED) for one in found)
    return [replace(one, strength=min(one.strength, most)) for one, most in bare]


def _divides(one: LabelColumns, other: LabelColumns) -> bool:
    """Return whether a column of types has more classes than another, each within one of it."""
    if one.match is not other.match or {len(one.titles), len(other.titles)} != {1}:
        return False
    cells, coarse = (x.match.table.cells(x.match.table.column(x.titles[0])) for x in (one, other))
    pairs = {*zip(cells, coarse, strict=True)}
    is_finer = len(pairs) == len({*cells}) > len({*coarse})
    return is_finer and words_of(one.titles[0])[-1:] == ["type"] and "" not in {*cells}


def _compared(view: View, found: Sequence[LabelColumns], automatic: Labelling) -> list[Reading]:
    """Return readings of the strongest columns and of rival folders; [] if `auto` agrees."""
    best = max(one.strength for one in found)
    rule = automatic.rule
    folders = label_keys(view.index, LabelRule("folder"), ())
    strongest = [one for one in found if one.strength == best]
    is_proved = best < SHARED and folders.names.are_there.all()
    if is_proved and all(_number_folders(one, folders) for one in strongest):
        return [Reading({"labels": "folder"}, f"{strongest[0].why} has the numbers of the folders")]
    is_folder = class_folders(folders) and auto_labels(view.index, ()).rule == "folder"
    for one in strongest if is_folder else ():
        if unlike := _unlike(one, folders):
            folder = Reading({"labels": "folder"}, f"the folders, which {unlike}")
            groups = [x for x in strongest if x is one or len(x.titles) > 1]
            return [*(Reading(own, x.why) for x in groups for own in x.options), folder]
    is_by_path = rule in ("folder", "prefix", "auto")
    likely = [one for one in found if one.strength >= LIKELY]  # others may be ids of folders
    if is_by_path and best < SHARED and any(_are_same(one, automatic) for one in likely):
        return []
    rivals = [one for one in found if best == LIKELY and may_be_target(one)]
    weak = [one for one in found if one.strength < LIKELY and len(one.titles) == 1]
    others = [one for one in weak if has_words(one.match, one.titles[0])]
    found = [one for one in found if one.strength >= LIKELY or one in rivals]
    first = [one for one in found if one.strength == best]
    first = [one for one in first if not _is_of_split(one)] or first
    is_open = best < CERTAIN and len(first) + len(rivals) > 1
    shown = found if is_open else first
    readings = [
        reading
        for one in sorted(shown, key=lambda one: -one.strength)
        for options in (one.options[:1] if one in rivals or _is_word(view, one) else one.options)
        for reading in with_solution(view, one, Reading(with_splits(view, one, options), one.why))
    ]
    unclear = [*with_unclear_splits(view, first[0], readings[0])]
    are_alike = readings == [one for one in readings if one.options == {"labels": rule}]
    if are_alike and len(unclear) == 1:  # `auto` agrees
        pairs = _renamed(first[0], folders) if readings and is_folder else ""
        return [Reading({}, f"{first[0].why} renames the class folders: {pairs}")] if pairs else []
    are_pieces = all(map(PIECE.fullmatch, map(str, folders.names.counts())))
    if rule == "folder" and best < SHARED and not are_pieces:
        several = counted(len(automatic.names.counts()), "class", "classes")
        readings = [*readings[: _MOST_SHOWN - 1], Reading({"labels": rule}, several)]
    if len(readings) > 1:
        pairs = _renamed(first[0], folders) if is_folder else ""
        own = Reading({"labels": "folder"}, f"the folders, with other names: {pairs}")
        readings[1:1] = [own] * bool(pairs)
        rest = [*(one for one in found if one not in shown), *(others if is_open else ())]
        readings += [Reading(with_splits(view, x, x.options[0]), x.why) for x in rest]
        readings = _or_none(readings, first[0])
    number, num_rows = _num_empty(first[0]), (first[0].match.row_of >= 0).sum()
    is_text = any(str(one.options.get("target")).startswith("text") for one in readings[:1])
    if len(readings) == 1 and not is_text and number > (1 - ENOUGH) * num_rows:  # texts may be ""
        why = f"all images, also {number:,} with an empty cell"
        readings = [*_of_empty(first[0], readings[0]), *readings, Reading({"labels": "none"}, why)]
    has_no_row = first[0].match.row_of < 0
    has_no_row &= ~view.index.splits.fit(lambda split: split == "test")
    if len(readings) == 1 and has_no_row.sum() == num_rows:
        readings.append(Reading({"labels": "none"}, f"all images, also {num_rows:,} without a row"))
    readings = unclear if len(readings) == 1 else readings
    return readings[:_MOST_SHOWN]


def _or_none(readings: list[Reading], best: LabelColumns) -> list[Reading]:
    """Return the readings, and that of no label if only cells of a file of images speak for one."""
    if best.strength > LIKELY or not best.match.table.is_own:
        return readings
    nothing = Reading({"labels": "none"}, "none of its columns is a label")
    return [*readings[: _MOST_SHOWN - 1], nothing]


def _is_word(view: View, one: LabelColumns) -> bool:
    targets = [options.get("target") for options in one.options]
    return targets == ["text", None] and are_wide(view)


def _is_of_split(one: LabelColumns) -> bool:
    """Return whether a title has a word of a split, such as `service_test`."""
    return len(one.titles) == 1 and bool(words_of_split(one.titles[0])[0])


def _num_empty(one: LabelColumns) -> int:
    """Return the number of images that have a row with only empty cells in the columns."""
    have_row = one.match.row_of >= 0
    for title in one.titles:
        have_row &= ~one.match.cells(title).fit(bool)
    return int(have_row.sum()) if one.titles else 0


def _of_empty(one: LabelColumns, reading: Reading) -> Iterator[Reading]:
    """Yield the reading with a split column, if exactly the rows of one split have no label."""
    names = one.match.cells(one.titles[0])
    titles = [*filter(is_of_splits, one.match.table.header)] if len(one.titles) == 1 else []
    for title in titles if "split" not in reading.options else ():
        cells = one.match.cells(title)
        pairs = sorted({(not name, cell) for name, cell in zip(names, cells, strict=True) if cell})
        if [is_empty for is_empty, _ in pairs] == [False, True] and pairs[0][1] != pairs[1][1]:
            (_, train), (_, test) = pairs
            split = {"split": f"column:{title}:{train}=train,{test}=test"}
            why = f"{reading.why}; no {test!r} has a label"
            yield replace(reading, options={**reading.options, **split}, why=why)


def _are_same(one: LabelColumns, automatic: Labelling) -> bool:
    """Return whether a column and the labels of `automatic` divide the images equally."""
    return len(one.titles) == 1 and _num_pairs(*_codes(one, automatic)[:2]) > 1


def _number_folders(one: LabelColumns, folders: Labelling) -> bool:
    """Return whether a column numbers the folders; numbers may differ between stacked tables.

    Then folders need two images on average: a folder of one image has one number in any case.
    """
    if len(one.titles) != 1 or None in map(as_number, one.match.cells(one.titles[0]).counts()):
        return False
    own, other, rows = _codes(one, folders)
    if "target" not in one.options[0] and _num_pairs(own, other) > 1:
        return True
    parts = one.match.table.parts_of_rows().codes[rows].astype(np.int64) << _BITS
    own, other = (np.unique(x + parts, return_inverse=True)[1] for x in (own, other))
    return 2 < 2 * _num_pairs(own, other) <= len(own)


def _codes(one: LabelColumns, automatic: Labelling) -> Sequence[NDArray[np.int64]]:
    """Return codes of cells, codes of labels, and rows of the images that have both."""
    cells, names = one.match.cells(one.titles[0]), automatic.names
    there = names.are_there & (one.match.row_of >= 0)
    every = (cells.codes, names.codes, one.match.row_of)
    return [codes[there].astype(np.int64) for codes in every]


def _num_pairs(own: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return the number of distinct pairs if the values map one to one, otherwise 0."""
    numbers = [len(np.unique(one)) for one in (own, other)]
    number = int(other.max(initial=0)) + 1
    pairs = len(np.unique(own * number + other)) if numbers[0] == numbers[1] else -1
    return pairs if pairs == numbers[0] else 0


def _unlike(one: LabelColumns, folders: Labelling) -> str:
    """Return how the classes of a column differ from folders; "" if they only have other names."""
    if len(one.titles) != 1 or "target" in one.options[0] or _are_same(one, folders):
        return ""
    title, cells = one.titles[0], one.match.cells(one.titles[0])
    pairs = [two for two in zip(cells, folders.names, strict=True) if all(two)]
    if {cell for cell, _ in pairs} == {name for _, name in pairs}:
        number = sum(cell != name for cell, name in pairs)
        return f"differ from {title!r} for {counted(number, 'image')}" if number else ""
    return f"are other classes than {title!r}" if one.strength < SHARED else ""


def _renamed(one: LabelColumns, folders: Labelling) -> str:
    """Return examples of folders and new names, if a column only renames folders; otherwise ""."""
    if not _are_same(one, folders):
        return ""
    pairs = filter(all, {*zip(folders.names, one.match.cells(one.titles[0]), strict=True)})
    return some_of([f"{name} is {cell}" for name, cell in sorted(pairs) if name != cell])
