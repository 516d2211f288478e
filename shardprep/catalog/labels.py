"""Labels of images as texts, from their paths or a table; `targets` turns them into targets."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.names import (
    UNTRAINED,
    are_parts,
    find_masks,
    folder_splits,
    given_split,
    natural_order,
    split_folders,
)
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.tables.key_index import SUBMISSION, AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.row_matching import TableMatch, find_ids, match_table, united
from shardprep.catalog.tables.table import OpenQuoteError, Table
from shardprep.catalog.target_values import OF_COLUMNS
from shardprep.catalog.targets import Cell
from shardprep.errors import OptionName, SourceError, counted
from shardprep.recipe.rules import CsvRule, LabelRule
from shardprep.source.names import is_shard_name, without_archive_suffix
from shardprep.source.string_column import Coded, Texts

Ints = NDArray[np.int64]
Column = tuple[str, Ints, Coded[str | None]]
"""Title of a target, and for each row the number of its image and its cell."""

_NUMBER_BACKWARDS = re.compile(r"\)?\d+\(?[\s._-]*")
"""Number at the end of a name, searched in the reversed name: a forward search is quadratic."""
_NUMBERED_END = re.compile(r"\d$")
_WORDS = re.compile(r"(?![A-Za-z]$)[^\W\d_][^\d]*$")
ENOUGH = 0.9
"""Share of the images that a rule must label to be used by `auto`."""
LABEL_COLUMNS = (
    "label", "class", "target", "category", "breed", "diagnosis", "species", "classname",
    "class_name", "label_name", "category_name", "variety", "labels", "tags", "class_id",
    "classid", "category_id", "label_id", "dx", "level", "flags", "image/class/text",
)  # fmt: skip
NO_LABEL_COLUMNS = frozenset(("split", "partition", "usage", "set", "fold", "subset", "dataset"))
_SAMPLES = re.compile(
    r"(patient|subject|study|series|case|tomo|scan|slide|clip|video)(_?(instance)?_?u?id)?",
    re.IGNORECASE,
)
"""Titles of columns whose cells are ids of samples, and not classes."""
_SET = frozenset(("1", "1.0", "true", "yes"))
_SET_OR_NOT = _SET | {"0", "0.0", "-1", "-1.0", "false", "no", ""}
_CAMERAS = re.compile(
    "(IMG|DSC[NF]?|DSC_|PXL|DJI|GOPR|GX|P|VID|WP|MVI|SAM|CIMG|Screenshot|image|photo)[-_ ]*",
    re.IGNORECASE,
)
"""Starts of file names that cameras, phones and drones give."""
_SIGNS = re.compile(r"[\W_]+")
_MOST_LOOKED_AT = 500
_MOST_CANDIDATES = 40
_MOST_TARGETS = 1_000


class TwoLabelsError(SourceError):
    """Rows of a table give one image different labels."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """The labels of all images, in the order of the keys, and how they were found."""

    names: Coded[Cell | None]
    """For each image a label, or a tuple of the titles of columns that hold 1, or None."""
    how: str
    rows_without_image: tuple[str, ...] = ()
    table_names: frozenset[Cell] = frozenset()
    """All labels in the table, so that classes do not depend on which images the source has."""
    match: TableMatch | None = None
    columns: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Titles of the columns of 1 and 0 for each class, in their order."""
    rule: str = "none"
    findings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    unclear: SourceError | None = None
    """The error of a table that has labels, if `auto` finds no image of its ids."""
    cells: Mapping[str, Coded[str | None]] = field(default_factory=dict)
    """Column → its cell for each image, for targets of several values; {} for a single one."""


def label_keys(index: KeyIndex, rule: LabelRule, tables: Sequence[Table]) -> Labelling:
    """Return the labels that a rule gives; "csv" reads the first table, "auto" tries all tables."""
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
    """Return the labels by the first rule that fits: table, folder or prefix; or no labels.

    Rules that often fit by accident come last. A rule fits if it labels nine tenths of the images
    outside test splits, and the labels look like classes (see `are_classes`).
    """
    keys = index.keys
    is_test = index.splits.fit(UNTRAINED.__contains__)
    considered = np.flatnonzero(~is_test if not is_test.all() else is_test)
    labelling, passed_over, unclear = _by_tables(index, tables, considered)
    if labelling is not None:
        return labelling
    no_classes = find_masks(keys).no_classes
    names = _folder_names(keys, 1, no_classes)
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
        return Labelling(Coded.constant(None, len(keys)), how, unclear=unclear)
    names, findings = _without_test_names(names, considered, rule)
    # The rule alone would label the test split as well.
    rule = rule if is_whole and not findings else "auto"
    return Labelling(names, how + passed_over, rule=rule, findings=findings)


def _by_tables(
    index: KeyIndex, tables: Sequence[Table], considered: Ints
) -> tuple[Labelling | None, str, SourceError | None]:
    """Return the labels by the first table that fits, a remark on others, and the first error."""
    passed_over, unclear = "", list[SourceError]()
    several = united(index, tables)
    for table in several:
        try:
            labelling = label_by_table(index, table, CsvRule((table.name,)))
        except AmbiguousIdError as error:
            passed_over += f"; {table.name} is passed over: {error.what}"
            unclear.append(error)
            continue
        except OpenQuoteError:  # the table names images, but rows are missing
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
            others = [one for one in several if one is not table]
            return replace(labelling, remarks=unused_tables(index, labelling, others)), "", None
    return None, passed_over, unclear[0] if unclear else None


def unused_tables(
    index: KeyIndex, labelling: Labelling, tables: Sequence[Table]
) -> tuple[str, ...]:
    """Return a remark on each table that labels images which stay unlabelled."""
    remarks = []
    for table in tables:
        if SUBMISSION.search(table.name):
            continue
        with contextlib.suppress(SourceError):
            found = label_by_table(index, table, CsvRule((table.name,)))
            number = int((found.names.are_there & ~labelling.names.are_there).sum())
            if number:
                named = counted(number, "image", "stays", "stay")
                remarks.append(f"{table.name} is not used; {named} unlabelled that it labels")
    return tuple(remarks)


def _nearly_fitting(index: KeyIndex, table: Table) -> list[SourceError]:
    """Return an error if a table has a column of labels, and ids that are nearly names of images.

    Names are nearly equal if they differ in case, in zeros before numbers or in signs.
    """
    titles = {title.lower() for title in table.header}
    if titles.isdisjoint(LABEL_COLUMNS):
        return []
    names = {_plain(key): key for key in index.keys}
    every = [(title, table.cells(i)[:_MOST_LOOKED_AT]) for i, title in enumerate(table.header)]
    for title, cells in every:
        near = [cell for cell in cells if _plain(cell) in names]
        if index.num_found(cells) >= len(cells) / 2:
            return []  # the ids fit, but the labels are not clear
        if near and len(near) >= len(cells) / 2:
            what = f"column {title!r} has ids such as {near[0]!r}, and keys are like "
            hint = f"write ids as the keys are, or name a rule with {OptionName('labels')}"
            return [SourceError(table.name, what + repr(names[_plain(near[0])]), hint)]
    return []


def _plain(name: str) -> str:
    bare = _SIGNS.sub("", name.rpartition("/")[2].rpartition(".")[0] or name)
    return re.sub(r"(?<!\d)0+(?=\d)", "", bare).casefold()


def may_be_class(prefix: str) -> bool:
    """Return whether the start of file names may be a class: a word, and not that of a camera."""
    return bool(_WORDS.match(prefix)) and not (given_split([prefix]) or _CAMERAS.fullmatch(prefix))


def ids_of_samples(names: Iterable[str], tables: Sequence[Table]) -> str:
    """Return the column that has most names as ids of patients or the like; "" without one."""
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
    """Return names and remarks; a test split whose classes differ from the rest gets no labels."""
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
        f"{counted(int(is_other.sum()), 'image')} of test unlabelled: the classes by {rule} "
        f"({shown}) are not in the other splits; {OptionName('labels')} {rule} uses them"
    )
    return Coded(np.where(is_other, -1, names.codes), names.values), (finding,)


def _fits(names: Coded[Cell | None], considered: Ints) -> bool:
    counts = names.take(considered).counts()
    num_found = sum(counts.values())
    return num_found >= ENOUGH * len(considered) and are_classes(len(counts), num_found)


def are_classes(num_names: int, num_images: int) -> bool:
    """Return whether names look like classes: two, or more with two images each on average."""
    return 2 <= num_names <= max(2, num_images // 2)


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
    """Return the start of a file name, before the number at its end; None if one is missing."""
    name = key.rpartition("/")[2]
    at = name.rfind(".")
    stem = name[:at] if 0 < at < len(name) - 1 else name
    match = _NUMBER_BACKWARDS.match(stem[::-1])
    return stem[: -match.end()] or None if match else None


def label_by_table(index: KeyIndex, table: Table, rule: CsvRule) -> Labelling:
    """Return the labels in a table; columns that the rule does not name are detected."""
    id_title = find_ids(index, table, rule.id_column)
    _label_titles(table, rule.label_columns, id_title)  # report unclear columns before ids
    return label_by_columns(index.keys, match_table(index, table, id_title), rule)


def label_by_columns(keys: Sequence[str], match: TableMatch, rule: CsvRule) -> Labelling:
    """Return the labels in a matched table; SourceError if two rows of an image disagree."""
    table = match.table
    places = _label_titles(table, rule.label_columns, match.id_column)
    titles = tuple(places)
    if len(titles) == 1:
        titles = (table.header[places[titles[0]]],)
    columns = f"column {titles[0]!r}" if len(titles) == 1 else f"{len(titles)} columns"
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
        (title, match.key_of, table.cells(place).coded().map(_filled))
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
        return replace(found, names=names, table_names=frozenset(all_cells[titles[0]]))
    if _are_flags(table.name, all_cells, rule.target):
        names, classes = _sets_of_flags(of_images), frozenset((title,) for title in of_images)
        return replace(found, names=names, table_names=classes, flags=tuple(of_images))
    return replace(found, names=_titles_of_rows(of_images), cells=of_images)


def _named(keys: Sequence[str], match: TableMatch) -> str:
    """Return the name of the table; of several tables, with the images that each names by split."""
    if not match.table.parts:
        return match.table.name
    splits = folder_splits(keys).filled("train")
    names, start = list[str](), 0
    for name, number in match.table.parts:
        images = np.unique(match.key_of[start : start + number])
        counts = splits.take(images[images >= 0]).counts()
        of = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        names.append(f"{name} ({of or 'no image'})")
        start += number
    return " + ".join(names)


def _same(cell: str | None) -> str | None:
    return cell


def _filled(cell: str) -> str | None:
    return cell or None


def _titles_of_rows(columns: Mapping[str, Coded[str | None]]) -> Coded[Cell | None]:
    """Return for each image the titles of all columns, or None if all its cells are empty."""
    is_there = reduce(np.logical_or, (cells.are_there for cells in columns.values()))
    return Coded(np.where(is_there, 0, -1), (tuple(columns),))


def _sets_of_flags(columns: Mapping[str, Coded[str | None]]) -> Coded[Cell | None]:
    """Return for each image the titles of the columns that hold 1."""
    is_there = _titles_of_rows(columns).are_there
    is_set = np.stack(
        [cells.fit(lambda cell: str(cell).lower() in _SET) for cells in columns.values()]
    )
    flags, codes = np.unique(is_set, axis=1, return_inverse=True)
    values = [tuple(itertools.compress(columns, one)) for one in flags.T.tolist()]
    return Coded(np.where(is_there, codes.reshape(-1), -1), values)


def _of_images(
    keys: Sequence[str], table: str, key_of: Ints, cells: Coded[str | None], title: str
) -> Coded[str | None]:
    """Return the cell of each image; SourceError if two rows of an image differ."""
    rows = np.flatnonzero((key_of >= 0) & cells.are_there)
    images, codes = key_of[rows], cells.codes[rows]
    named = np.full(len(keys), -1, cells.codes.dtype)
    named[images[::-1]] = codes[::-1]  # the first of several rows is assigned last
    others = np.flatnonzero(named[images] != codes)
    if len(others):
        image, cell = int(images[others[0]]), cells[int(rows[others[0]])]
        of = f" of {title!r}" if title else ""
        what = f"gives {keys[image]} two labels{of}, {cells.values[named[image]]!r} and {cell!r}"
        hint = f"{OptionName('pivot')} COLUMN takes a row for each image and target"
        texts = f"{OptionName('target')} multilabel several classes, texts several texts"
        raise TwoLabelsError(table, what, f"one row an image is needed; {hint}, {texts}")
    return Coded(named, cells.values)


def have_several(key_of: Ints, cells: Coded[Any]) -> bool:
    """Return whether the rows of an image have different cells."""
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
    """Yield the rows of each target in a table with a row for each image and target."""
    table, option = match.table, OptionName("pivot")
    if len(columns) != 1:
        what = f"needs one column of values, and the labels are {len(columns)} columns"
        raise SourceError(option, what, f"name it: {OptionName('labels')} csv:FILE:ID:VALUE")
    ((title, key_of, values),) = columns
    names = table.checked_cells(table.column(pivot)).coded()
    known = sorted({*names.firsts().values()} - {""}, key=natural_order)
    if title == table.header[table.column(pivot)] or not 0 < len(known) <= _MOST_TARGETS:
        what = f"{pivot!r} names {len(known):,} targets of the column {title!r}"
        raise SourceError(option, what, f"it must name 1 to {_MOST_TARGETS:,} in another column")
    if lost := int((names.fit(lambda name: not name) & values.are_there).sum()):
        what = f"{counted(lost, 'row', 'has', 'have')} a value and no {pivot!r}"
        raise SourceError(table.name, what, "fill these cells, or delete the rows")
    for name in known:
        rows = np.flatnonzero(names.fit(name.__eq__))
        # `map` leaves out values that only other targets have.
        yield name, key_of[rows], values.take(rows).map(_same)


def candidate_columns(match: TableMatch) -> list[tuple[str, ...]]:
    """Return the possible label columns of a table whose header does not show the label.

    Each candidate is a tuple of titles. All one-hot columns, which only hold 1 and 0 (or −1), are
    one candidate together. Each other column is a candidate if its cells look like classes.
    """
    flags: list[str] = []
    unset: list[str] = []
    others: list[str] = []
    for place, title in enumerate(match.table.header):
        if title == match.id_column or title.lower() in NO_LABEL_COLUMNS:
            continue
        cells = set(match.table.cells(place).coded().values)
        if all(cell.lower() in _SET_OR_NOT for cell in cells):
            if any(cell.lower() in _SET for cell in cells):
                flags.append(title)
            elif any(cells):
                unset.append(title)
        elif len(others) < _MOST_CANDIDATES:
            others += [title] * are_classes(len(cells - {""}), len(match.table.rows))
    together = tuple(title for title in match.table.header if title in {*flags, *unset})
    one_hot = [together] if len(flags) > 1 else []
    return [*one_hot, *((title,) for title in (others if one_hot else flags + others))]


def _are_flags(table: str, columns: Mapping[str, Collection[str]], target: str) -> bool:
    """Return whether several columns say which classes an image has, by 1, 0 and −1.

    Otherwise each column is a target. SourceError if that is unclear: most columns are flags, but
    not all.
    """
    others: dict[str, str] = {}
    for title, cells in columns.items():
        strange = next((cell for cell in cells if cell.lower() not in _SET_OR_NOT), None)
        others |= {} if strange is None else {title: strange}
    if target in OF_COLUMNS or (target == "auto" and 2 * len(others) >= len(columns)):
        return False
    for title, cell in others.items():
        what = f"column {title!r} has {cell!r}, which is neither 1 nor 0 nor -1"
        hint = "several label columns must say which classes an image has"
        more = f"; {OptionName('target')} {' or '.join(OF_COLUMNS)} takes other values"
        raise SourceError(table, what, hint + more)
    return True


def _label_titles(table: Table, columns: tuple[str, ...], id_title: str) -> dict[str, int]:
    columns = columns or (find_label_column(table, id_title),)
    if columns == ("*",):
        own = table.header[: len(table.header) - table.num_joined]
        columns = tuple(title for title in own if title != id_title)
    return {title: table.column(title) for title in columns}


def find_label_column(table: Table, id_title: str = "") -> str:
    """Return the title of the only column of labels; SourceError if it is unclear.

    Of a column of numbers and a column of a name for each number, the names are the labels.
    """
    lowered = {title.lower(): title for title in table.header if title != id_title}
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
    what = f"it is not clear which column is the label: {', '.join(table.header)}"
    hint = f"name the columns: {OptionName('labels')} {table.label_rule(id_title, ['LABEL'])}"
    raise SourceError(table.name, what, hint)
