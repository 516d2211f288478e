"""From keys to cells: what the source says of each image, by paths and tables, never pixels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, get_args

from shardprep.catalog.lookup import AmbiguousIdError, KeyIndex, row_ids
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.splits import given_split, without_archive_suffix
from shardprep.errors import RecipeError, SourceError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.catalog.table import Table
    from shardprep.catalog.targets import Cell

RuleKind = Literal["auto", "folder", "prefix", "regex", "csv", "none"]

_LABEL_COLUMNS = (
    "label", "class", "target", "category", "breed", "diagnosis", "species", "classname",
    "class_name", "label_name", "category_name", "variety", "labels", "tags", "class_id",
    "classid", "category_id", "label_id", "dx", "level",
)  # fmt: skip
_NO_LABEL_COLUMNS = frozenset(("split", "partition", "usage", "set", "fold", "subset", "dataset"))
_NUMBER_BACKWARDS = re.compile(r"\)?\d+\(?[\s._-]*")
"""A number at the end of a name, with what parts it from the label, read from the end on: to look
for its beginning from the left takes the square of the name's length."""
_WORDS = re.compile(r"[^\W\d_][^\d]*$")
_ENOUGH = 0.9
_MOST_SHOWN = 80
"""Characters of what the user gave, in an error."""
_SAMPLE_ROWS = 500
_SET = frozenset(("1", "1.0", "true", "yes"))
_NOT_SET = frozenset(("0", "0.0", "-1", "-1.0", "false", "no", ""))


@dataclass(frozen=True, slots=True)
class LabelRule:
    """Where class names come from."""

    kind: RuleKind
    argument: str = ""


@dataclass(frozen=True, slots=True)
class CsvRule:
    """The parts of "csv:FILE,FILE…:ID:LABEL"."""

    files: tuple[str, ...]
    id_column: str = ""
    """A column, or a path template over all of them; "" to find it."""
    label_columns: tuple[str, ...] = ()
    """One column, several that are set or not, ("*",) for all of these files but the id; () to
    find it."""


@dataclass(frozen=True, slots=True)
class TableMatch:
    """Which rows of a table belong to which image."""

    table: Table
    row_of: list[int | None]
    """For each key, its first row."""
    id_column: str
    """The column, or the template over several, by which rows were found."""

    def cells(self, column: str) -> list[str]:
        """Return a column's cell for each key, "" where it has no row."""
        place = self.table.column(column)
        rows = self.table.rows
        return ["" if row is None else rows[row][place] for row in self.row_of]


@dataclass(frozen=True, slots=True)
class Labelling:
    """What the source says of each image, in the order of the keys."""

    names: list[Cell | None]
    """A class name, the names of the columns that are set, or None."""
    how: str
    """What was done, in one line for the user."""
    rows_without_image: tuple[str, ...] = ()
    """Ids of table rows that fit no key."""
    table_names: frozenset[Cell] = frozenset()
    """All that the table says: the map must not depend on which images are there."""
    match: TableMatch | None = None
    rule: str = "none"
    """What `--labels` must say to get just this."""


def parse_label_rule(text: str) -> LabelRule:
    """Return the rule that a `--labels` value asks for.

    Raises:
        RecipeError: it is none of the forms, or its regular expression is not usable.

    """
    kind, _, argument = text.partition(":")
    rule = LabelRule(kind, argument)  # type: ignore[arg-type]
    if kind not in get_args(RuleKind):
        raise RecipeError(
            "--labels",
            f"{text!r} is not one of the ways to find labels",
            "use auto, folder, folder:N, prefix, regex:PATTERN, csv:FILE[:ID:LABEL] or none",
        )
    if kind == "folder":
        folder_depth(argument, "--labels")
    if kind == "csv" and not argument:
        raise RecipeError("--labels", "csv: names no file", "use csv:FILE or csv:FILE:ID:LABEL")
    if kind in ("auto", "prefix", "none") and argument:
        raise RecipeError("--labels", f"{kind} takes no argument, it has {argument!r}")
    if kind == "regex":
        check_regex(argument, "label", "--labels")
    return rule


def folder_depth(argument: str, where: str) -> int:
    """Return the N of "folder:N", 1 for "".

    Raises:
        RecipeError: it is no number from 1 to 9,999.

    """
    if not re.fullmatch("([1-9][0-9]{0,3})?", argument):
        problem = f"folder:{shown(argument, _MOST_SHOWN)} is not folder:N"
        raise RecipeError(where, problem, "N counts from 1")
    return int(argument or 1)


def check_regex(pattern: str, group: str, where: str) -> None:
    """Raise a RecipeError unless the pattern is valid and has the named group, if one is asked."""
    try:
        groups = re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        problem = f"regex:{shown(pattern, _MOST_SHOWN)} is not valid ({error})"
        raise RecipeError(where, problem) from error
    if group and group not in groups:
        problem = f"regex:{shown(pattern, _MOST_SHOWN)} has no group named {group}"
        raise RecipeError(where, problem, f"write (?P<{group}>…)")


def parse_csv_rule(argument: str) -> CsvRule:
    """Return the parts of what follows "csv:"."""
    parts = argument.rsplit(":", 2)
    files = tuple(parts[0].split(",")) if len(parts) == 3 else tuple(argument.split(","))
    if len(parts) < 3:
        return CsvRule(files)
    return CsvRule(files, parts[1], tuple(n.strip() for n in parts[2].split(",") if n))


def label_keys(keys: Sequence[str], rule: LabelRule, tables: Sequence[Table]) -> Labelling:
    """Return what the rule finds; of `tables`, a csv rule uses the first, auto any that fits.

    Raises:
        SourceError: a table lacks a column, gives one image two labels, or an id of it fits
            several images.

    """
    if rule.kind == "folder":
        depth = folder_depth(rule.argument, "--labels")
        how = f"name of folder {depth} above the image"
        return Labelling(_by_folder(keys, depth), how, rule=f"folder:{depth}")
    if rule.kind == "prefix":
        how = "start of the file name, before the number"
        return Labelling(_by_prefix(keys), how, rule="prefix")
    if rule.kind == "regex":
        return Labelling(_by_regex(keys, rule.argument), f"regex {rule.argument}")
    if rule.kind == "csv":
        return _by_table(keys, tables[0], parse_csv_rule(rule.argument))
    if rule.kind == "none":
        return Labelling([None] * len(keys), "none asked for")
    return auto_labels(keys, tables)


def auto_labels(keys: Sequence[str], tables: Sequence[Table]) -> Labelling:
    """Try table, folder, prefix, in the order of how seldom they fit by accident."""
    folders = [key.rpartition("/")[0] for key in keys]
    is_test = {folder: given_split(folder.split("/")) == "test" for folder in set(folders)}
    considered = [i for i, folder in enumerate(folders) if not is_test[folder]]
    considered = considered or list(range(len(keys)))
    passed_over = ""
    for table in tables:
        try:
            labelling = _by_table(keys, table, CsvRule((table.name,)))
        except AmbiguousIdError:
            passed_over = f"; {table.name} is passed over: its ids fit several images each"
            continue
        except SourceError:
            continue
        if _fits(labelling.names, considered):
            return labelling
    names = _by_folder(keys, 1)
    if _fits(names, considered):
        how = f"name of the folder that holds the image{passed_over}"
        return Labelling(names, how, rule="folder")
    names = [
        name if isinstance(name, str) and _WORDS.match(name) else None for name in _by_prefix(keys)
    ]
    if _fits(names, considered):
        example = PurePosixPath(keys[considered[0]]).name
        found = names[considered[0]]
        how = f"start of the file name, before the number ({example} → {found}){passed_over}"
        return Labelling(names, how, rule="prefix")
    return Labelling(
        [None] * len(keys), f"none found{passed_over}; say where they are with --labels"
    )


def flag_columns(table: Table, id_column: str) -> tuple[str, ...]:
    """Return the columns that hold nothing but 1 and 0 (or −1), as one-hot labels do."""
    found = []
    for place, title in enumerate(table.header):
        cells = {row[place].lower() for row in table.rows}
        if title != id_column and cells & _SET and cells <= _SET | _NOT_SET:
            found.append(title)
    return tuple(found)


def match_table(keys: Sequence[str], table: Table, id_column: str = "") -> TableMatch:
    """Return which rows of a table belong to which image.

    Raises:
        SourceError: no column holds ids of images, or an id fits several.

    """
    index = KeyIndex(keys)
    title, id_of = row_ids(table, id_column or table.header[_id_column(table, index)])
    row_of: list[int | None] = [None] * len(keys)
    for number, row in enumerate(table.rows):
        found = index.find_one(id_of(row), table.name)
        if found is not None and row_of[found] is None:
            row_of[found] = number
    return TableMatch(table, row_of, title)


def _by_folder(keys: Sequence[str], depth: int) -> list[Cell | None]:
    folders = [key.rpartition("/")[0] for key in keys]
    name_of = {folder: _folder_name(folder, depth) for folder in set(folders)}
    return [name_of[folder] for folder in folders]


def _folder_name(folder: str, depth: int) -> str | None:
    parts = folder.split("/") if folder else []
    name = without_archive_suffix(parts[-depth]) if len(parts) >= depth else None
    return None if name is None or given_split([name]) else name


def _by_prefix(keys: Sequence[str]) -> list[Cell | None]:
    stems = (PurePosixPath(key).stem for key in keys)
    return [
        stem[: -match.end()] or None if (match := _NUMBER_BACKWARDS.match(stem[::-1])) else None
        for stem in stems
    ]


def _by_regex(keys: Sequence[str], pattern: str) -> list[Cell | None]:
    found = Pattern(pattern, "--labels", f"regex:{pattern}", group="label").search(keys)
    return [label or None for label in found]


def _fits(names: Sequence[Cell | None], considered: list[int]) -> bool:
    found = [names[i] for i in considered if names[i] is not None]
    num_classes = len(set(found))
    return len(found) >= _ENOUGH * len(considered) and 2 <= num_classes <= max(2, len(found) // 2)


def _by_table(keys: Sequence[str], table: Table, rule: CsvRule) -> Labelling:
    index = KeyIndex(keys)
    id_title, id_of = row_ids(table, rule.id_column or table.header[_id_column(table, index)])
    titles, cell_of = _label_cells(table, rule, id_title)
    classes = {(title,) for title in titles} if len(titles) > 1 else set()
    how = f"column {titles[0]!r}" if len(titles) == 1 else f"{len(titles)} columns"
    names: list[Cell | None] = [None] * len(keys)
    row_of: list[int | None] = [None] * len(keys)
    missing: list[str] = []
    for number, row in enumerate(table.rows):
        text = id_of(row)
        found = index.find_one(text, table.name)
        if found is None:
            missing.append(text)
            continue
        if row_of[found] is None:
            row_of[found] = number
            names[found] = cell_of(row)
        elif names[found] is None:
            names[found] = cell_of(row)
        elif cell_of(row) not in (None, names[found]):
            raise SourceError(
                table.name,
                f"gives {keys[found]} two labels, {names[found]!r} and {cell_of(row)!r}",
                "one row an image is needed",
            )
    return Labelling(
        names,
        f"{table.name}, {how} by {id_title!r}",
        tuple(missing),
        frozenset(cell for row in table.rows if (cell := cell_of(row)) is not None) | classes,
        TableMatch(table, row_of, id_title),
        rule=f"csv:{table.name}:{id_title}:{','.join(titles)}",
    )


def _label_cells(
    table: Table, rule: CsvRule, id_title: str
) -> tuple[tuple[str, ...], Callable[[list[str]], Cell | None]]:
    """Return what the label columns are called, and how to get the cell of a row."""
    columns = rule.label_columns or (_label_column(table, id_title),)
    if columns == ("*",):
        own = table.header[: len(table.header) - table.num_joined]
        columns = tuple(title for title in own if title != id_title)
    places = {title: table.column(title) for title in columns}
    if len(places) == 1:
        place = next(iter(places.values()))
        return (table.header[place],), lambda row: row[place] or None

    def names_set(row: list[str]) -> tuple[str, ...] | None:
        if not any(row[place] for place in places.values()):
            return None  # another table without these columns lists it
        for title, place in places.items():
            if row[place].lower() not in _SET | _NOT_SET:
                raise SourceError(
                    table.name,
                    f"column {title!r} has {row[place]!r}, which is neither 1 nor 0 nor -1",
                    "several label columns must say which classes an image has",
                )
        return tuple(title for title, place in places.items() if row[place].lower() in _SET)

    return tuple(places), names_set


def _id_column(table: Table, index: KeyIndex) -> int:
    step = max(1, len(table.rows) // _SAMPLE_ROWS)
    sample = table.rows[::step]
    hits = [sum(bool(index.find(row[i])) for row in sample) for i in range(len(table.header))]
    if not any(hits):
        raise SourceError(
            table.name,
            "no column of it holds names of images of the source",
            "name the columns: --labels csv:FILE:ID:LABEL",
        )
    return hits.index(max(hits))


def _label_column(table: Table, id_title: str) -> str:
    lowered = {title.lower(): title for title in table.header if title != id_title}
    for name in _LABEL_COLUMNS:
        if name in lowered:
            return lowered[name]
    others = [title for name, title in lowered.items() if name not in _NO_LABEL_COLUMNS]
    if len(others) == 1:
        return others[0]
    raise SourceError(
        table.name,
        f"it is not clear which column is the label: {', '.join(table.header)}",
        f"name the columns: --labels csv:{table.name}:{id_title}:LABEL",
    )
