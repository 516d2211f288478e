"""The rules of `--labels`: their forms as text, and the labels that one of them finds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from shardprep.errors import RecipeError, shown

if TYPE_CHECKING:
    from shardprep.catalog.labels.targets import Cell
    from shardprep.catalog.tables.row_matching import TableMatch
    from shardprep.source.dictionary_column import Coded

RuleKind = Literal["auto", "folder", "prefix", "regex", "csv", "none"]

_MOST_SHOWN = 80
"""Characters of an option's value in an error."""


@dataclass(frozen=True, slots=True)
class LabelRule:
    """One `--labels` value: its kind, and the text after the colon."""

    kind: RuleKind
    argument: str = ""


@dataclass(frozen=True, slots=True)
class CsvRule:
    """The parts of "csv:FILE,FILE…:ID:LABEL"."""

    files: tuple[str, ...]
    id_column: str = ""
    """A column, or a path template over several columns; "" to find the column."""
    label_columns: tuple[str, ...] = ()
    """One column of names, or several columns of 1 and 0; ("*",) for all columns of these files but
    the id; () to find the column."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """The label of every image, in the order of the keys."""

    names: Coded[Cell | None]
    """A class name, the names of the columns that are set, or None."""
    how: str
    """The rule in words, one line for the user."""
    rows_without_image: tuple[str, ...] = ()
    """Ids of table rows that fit no key."""
    table_names: frozenset[Cell] = frozenset()
    """All labels of the table: the class list must not depend on which images are there."""
    match: TableMatch | None = None
    columns: tuple[str, ...] = ()
    """The label columns of the table."""
    rule: str = "none"
    """The value of `--labels` that gives the same labels."""
    findings: tuple[str, ...] = ()
    """Remarks for the user, a line each."""


def parse_label_rule(text: str) -> LabelRule:
    """Return the rule that a `--labels` value asks for."""
    kind, _, argument = text.partition(":")
    rule = LabelRule(kind, argument)  # type: ignore[arg-type]
    if kind not in get_args(RuleKind):
        hint = "use auto, folder, folder:N, prefix, regex:PATTERN, csv:FILE[:ID:LABEL] or none"
        raise RecipeError("--labels", f"{text!r} is not one of the ways to find labels", hint)
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
    """Return the N of "folder:N", 1 for ""."""
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
    files, *columns = argument.rsplit(":", 2) if argument.count(":") >= 2 else (argument,)
    id_column, labels = columns or ("", "")
    names = tuple(name.strip() for name in labels.split(",") if name)
    return CsvRule(tuple(files.split(",")), id_column, names)
