"""From keys to class names. One function per rule; a rule sees paths and tables, never pixels."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, get_args

from shardprep.errors import RecipeError, SourceError
from shardprep.source.splits import given_split, without_archive_suffix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.source.table import Table

RuleKind = Literal["auto", "folder", "prefix", "regex", "csv", "none"]

_LABEL_COLUMNS = (
    "label", "class", "target", "category", "breed", "diagnosis", "species", "classname",
    "class_name", "label_name", "category_name", "variety", "labels", "class_id", "classid",
    "category_id", "label_id", "dx", "level",
)  # fmt: skip
_NO_LABEL_COLUMNS = frozenset(("split", "partition", "usage", "set", "fold", "subset", "dataset"))
_PREFIX = re.compile(r"(?P<label>.*?)[\s._-]*\(?\d+\)?$")
_WORDS = re.compile(r"[^\W\d_][^\d]*$")
_ENOUGH = 0.9
_SAMPLE_ROWS = 500


@dataclass(frozen=True, slots=True)
class LabelRule:
    """Where class names come from."""

    kind: RuleKind
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Labelling:
    """A class name for each key, or None, in the order of the keys."""

    names: list[str | None]
    how: str
    """What was done, in one line for the user."""
    rows_without_image: tuple[str, ...] = ()
    """Ids of table rows that fit no key."""
    table_names: frozenset[str] = frozenset()
    """All class names of the table: the map must not depend on which images are there."""


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
    if kind == "folder" and argument and not (argument.isdigit() and int(argument) > 0):
        raise RecipeError("--labels", f"folder:{argument} is not folder:N", "N counts from 1")
    if kind == "csv" and not argument:
        raise RecipeError("--labels", "csv: names no file", "use csv:FILE or csv:FILE:ID:LABEL")
    if kind in ("auto", "prefix", "none") and argument:
        raise RecipeError("--labels", f"{kind} takes no argument, it has {argument!r}")
    if kind == "regex":
        try:
            groups = re.compile(argument).groupindex
        except re.error as error:
            raise RecipeError("--labels", f"regex:{argument} is not valid ({error})") from error
        if "label" not in groups:
            raise RecipeError(
                "--labels", f"regex:{argument} has no group named label", "write (?P<label>…)"
            )
    return rule


def label_keys(keys: Sequence[str], rule: LabelRule, tables: Sequence[Table]) -> Labelling:
    """Return the class names that the rule finds; `tables` are those it may use.

    Raises:
        SourceError: a table lacks a column, gives one image two labels, or an id of it fits
            several images.

    """
    if rule.kind == "folder":
        depth = int(rule.argument or 1)
        return Labelling(_by_folder(keys, depth), f"name of folder {depth} above the image")
    if rule.kind == "prefix":
        return Labelling(_by_prefix(keys), "start of the file name, before the number")
    if rule.kind == "regex":
        return Labelling(_by_regex(keys, rule.argument), f"regex {rule.argument}")
    if rule.kind == "csv":
        _, id_column, label_column = split_csv_argument(rule.argument)
        return _by_table(keys, tables[0], id_column, label_column)
    if rule.kind == "none":
        return Labelling([None] * len(keys), "none asked for")
    return _auto(keys, tables)


def split_csv_argument(argument: str) -> tuple[str, str, str]:
    """Return file, id column and label column of "FILE[:ID:LABEL]"; columns may be ""."""
    parts = argument.rsplit(":", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else (argument, "", "")


def natural_order(name: str) -> tuple[tuple[int, int | str], ...]:
    """Return a sort key under which 2 stands before 10 and case matters last."""
    parts = re.split(r"(\d+)", name)
    folded = [(0, int(part)) if part.isdigit() else (1, part.casefold()) for part in parts if part]
    return (*folded, (2, name))


def _by_folder(keys: Sequence[str], depth: int) -> list[str | None]:
    names: list[str | None] = []
    for key in keys:
        folders = key.split("/")[:-1]
        name = without_archive_suffix(folders[-depth]) if len(folders) >= depth else None
        names.append(None if name is None or given_split([name]) else name)
    return names


def _by_prefix(keys: Sequence[str]) -> list[str | None]:
    matches = (_PREFIX.match(PurePosixPath(key).stem) for key in keys)
    return [match["label"] or None if match else None for match in matches]


def _by_regex(keys: Sequence[str], pattern: str) -> list[str | None]:
    search = re.compile(pattern).search
    return [match["label"] or None if (match := search(key)) else None for key in keys]


def _auto(keys: Sequence[str], tables: Sequence[Table]) -> Labelling:
    """Try table, folder, prefix, in the order of how seldom they fit by accident."""
    considered = [i for i, key in enumerate(keys) if given_split(key.split("/")[:-1]) != "test"]
    considered = considered or list(range(len(keys)))
    for table in tables:
        try:
            labelling = _by_table(keys, table, "", "")
        except SourceError:
            continue
        if _fits(labelling.names, considered):
            return labelling
    depth = 1
    names = _by_folder(keys, depth)
    if _fits(names, considered):
        return Labelling(names, "name of the folder that holds the image")
    names = [name if name and _WORDS.match(name) else None for name in _by_prefix(keys)]
    if _fits(names, considered):
        example = PurePosixPath(keys[considered[0]]).name
        found = names[considered[0]]
        return Labelling(names, f"start of the file name, before the number ({example} → {found})")
    return Labelling([None] * len(keys), "none found; say where they are with --labels")


def _fits(names: list[str | None], considered: list[int]) -> bool:
    found = [names[i] for i in considered if names[i] is not None]
    num_classes = len(set(found))
    return len(found) >= _ENOUGH * len(considered) and 2 <= num_classes <= max(2, len(found) // 2)


class _KeyIndex:
    """Finds the one key that an id of a table means."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.by_name: dict[str, list[int]] = defaultdict(list)
        self.by_stem: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(keys):
            name = key.rpartition("/")[2]
            self.by_name[name].append(i)
            self.by_stem[name.rpartition(".")[0] or name].append(i)

    def find(self, text: str) -> list[int]:
        """Return the positions of all keys that the id fits: a name or path, extension or not."""
        path = text.replace("\\", "/").removeprefix("./")
        name = path.rpartition("/")[2]
        found = self.by_name.get(name) or self.by_stem.get(name) or []
        if "/" in path:
            wanted = "/" + path
            found = [
                i
                for i in found
                if ("/" + self.keys[i]).endswith(wanted)
                or ("/" + self.keys[i]).rpartition(".")[0].endswith(wanted)
            ]
        if len(found) > 1:  # an id list and a test set may count from 1 both
            found = [i for i in found if given_split(self.keys[i].split("/")) != "test"] or found
        return found


def _by_table(keys: Sequence[str], table: Table, id_column: str, label_column: str) -> Labelling:
    index = _KeyIndex(keys)
    ids = table.column(id_column) if id_column else _id_column(table, index)
    labels = table.column(label_column) if label_column else _label_column(table, ids)
    names: list[str | None] = [None] * len(keys)
    missing: list[str] = []
    for row in table.rows:
        found = index.find(row[ids])
        if not found:
            missing.append(row[ids])
            continue
        if len(found) > 1:
            one, two = keys[found[0]], keys[found[1]]
            raise SourceError(
                table.name,
                f"id {row[ids]!r} fits several images: {one} and {two}",
                "write the path into the id column",
            )
        before = names[found[0]]
        if before is not None and before != row[labels]:
            raise SourceError(
                table.name, f"gives {keys[found[0]]} two labels, {before!r} and {row[labels]!r}"
            )
        names[found[0]] = row[labels] or None
    how = f"{table.name}, column {table.header[labels]!r} by {table.header[ids]!r}"
    table_names = frozenset(row[labels] for row in table.rows if row[labels])
    return Labelling(names, how, tuple(missing), table_names)


def _id_column(table: Table, index: _KeyIndex) -> int:
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


def _label_column(table: Table, ids: int) -> int:
    lowered = [title.lower() for title in table.header]
    for name in _LABEL_COLUMNS:
        if name in lowered and lowered.index(name) != ids:
            return lowered.index(name)
    others = [i for i in range(len(lowered)) if i != ids and lowered[i] not in _NO_LABEL_COLUMNS]
    if len(others) == 1:
        return others[0]
    raise SourceError(
        table.name,
        f"it is not clear which column is the label: {', '.join(table.header)}",
        f"name the columns: --labels csv:{table.name}:{table.header[ids]}:LABEL",
    )
