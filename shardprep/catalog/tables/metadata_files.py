"""The files beside the images: label tables, lists, class names; in the source or on disk."""

from __future__ import annotations

import contextlib
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.catalog.rules import CsvRule, parse_csv_rule, parse_label_rule
from shardprep.catalog.splits import parse_split_rule
from shardprep.catalog.tables.dicom_columns import PREFIX
from shardprep.catalog.tables.row_matching import row_ids
from shardprep.catalog.tables.table import Table, joined, parse_json_table, parse_table, stacked
from shardprep.dataset.cells import from_cell
from shardprep.errors import SourceError, some_of
from shardprep.source.byte_range import MemberError
from shardprep.source.names import composed
from shardprep.storage.regular_file import read_named
from shardprep.storage.text_file import as_utf8, decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.recipe.recipe import Recipe
    from shardprep.source.members import Member

TABLE_SUFFIXES = (".csv", ".tsv")
_NUMBERED = re.compile(r"^(\S*(?:/\S+|\.[A-Za-z]{3,4}))(?:\s+[0-9]+)+$")
"""Line of a list: a path, and labels as numbers, as in those of ImageNet."""


class Documents:
    """The files beside the images: `others`, the members of the source that are no images."""

    def __init__(self, others: Sequence[Member], recipe: Recipe) -> None:
        self._others = others
        self._recipe = recipe

    def label_tables(self) -> list[Table]:
        """Return the tables that the label rule may use: the one it names, or all for auto."""
        rule = parse_label_rule(self._recipe.labels)
        if rule.kind == "csv":
            return [self._with(self.table(parse_csv_rule(rule.argument).files), self._recipe.join)]
        return self.tables() if rule.kind == "auto" else []

    def tables(self) -> list[Table]:
        """Return every CSV of the source that can be read."""
        return self._tables

    @cached_property
    def _tables(self) -> list[Table]:
        found = []
        for member in self._others:
            if member.key.lower().endswith(TABLE_SUFFIXES):
                with contextlib.suppress(SourceError):  # no table: it stays listed as skipped
                    found.append(self._parse(_read(member), member.key))
        return found

    def joined_table(self) -> Table | None:
        """Return the first table of `--join`, with the others joined to it; None without."""
        if not self._recipe.join:
            return None
        first, *others = self._recipe.join
        return self._with(self._table(_join_parts(first)[0]), others)

    def check_columns(self) -> None:
        """Check the columns that a recipe names of its tables, if the source has all of these.

        Raises:
            SourceError: a table cannot be read, or lacks a column.

        """
        recipe, rule = self._recipe, parse_label_rule(self._recipe.labels)
        named = parse_csv_rule(rule.argument) if rule.kind == "csv" else CsvRule(())
        files = [*named.files, *(_join_parts(text)[0] for text in recipe.join)]
        if not files or not all(len(self._members(file)) == 1 for file in files):
            return
        table = self.label_tables()[0] if named.files else self.joined_table()
        split = parse_split_rule(recipe.split).column if recipe.split else ""
        ids = [] if "{" in named.id_column else [named.id_column]
        for name in (*ids, *named.label_columns, *recipe.columns, split):
            if table is not None and name not in ("", "*") and not name.startswith(PREFIX):
                table.column(name)

    def check_table(self, files: Sequence[str], id_column: str, columns: Sequence[str]) -> None:
        """Check columns of a table, if the source has all of its files; "" is none.

        Raises:
            SourceError: the table cannot be read, or lacks a column.

        """
        if all(len(self._members(file)) == 1 for file in files):
            table = self.table(files)
            if id_column:
                row_ids(table, id_column)
            for name in filter(None, columns):
                table.column(name)

    def read(self, file: str) -> bytes:
        """Return the bytes of a member of the source, or else of a file on disk."""
        return self.find(file)[1]

    def find(self, file: str) -> tuple[str, bytes]:
        """Return the key and the bytes of the one member that a path is the end of.

        Without such a member it is a file on disk, and the path is its key.

        Raises:
            SourceError: there is neither, there are several members, or it cannot be read.

        """
        found, is_json = self._members(file), file.lower().endswith(".json")
        if len(found) == 1:
            data = _read(found[0])
            return found[0].key, as_utf8(data) if is_json else data
        if found:
            keys = some_of([member.key for member in found], 3)
            raise SourceError(file, f"the source has several: {keys}", "give the whole path")
        try:
            data = read_table(file, self._recipe.max_member_size)
        except OSError as error:
            there = [m.key for m in self.members(*((".json",) if is_json else TABLE_SUFFIXES))]
            form = "document" if is_json else "label table or list"
            what = f"no such {form}, neither in the source nor on disk"
            hint = f"the source has {some_of(there, 5) or ('no JSON' if is_json else 'no CSV')}"
            raise SourceError(file, what, hint) from error
        return file, as_utf8(data) if is_json else data

    def members(self, *suffixes: str) -> list[Member]:
        """Return the members of the source that are no images and end in a suffix, case aside."""
        return [member for member in self._others if member.key.lower().endswith(suffixes)]

    def table(self, files: Sequence[str]) -> Table:
        """Return the rows of all these tables below each other.

        Raises:
            SourceError: one cannot be found or read.

        """
        return stacked([self._table(file) for file in files])

    def ids(self, file: str) -> list[str]:
        """Return the ids on a list: the first column of a CSV, else a line each."""
        data = self.read(file)
        if file.lower().endswith(TABLE_SUFFIXES):
            table = self._parse(data, file)
            return [from_cell(one) for one in row_ids(table, table.header[0])[1]]
        lines = [line.strip() for line in decoded(data).splitlines() if line.strip()]
        return [_NUMBERED.sub(r"\1", line) for line in lines]

    def _with(self, table: Table, others: Sequence[str]) -> Table:
        """Join the other tables, "FILE" or "FILE:KEY" each, to a table."""
        for other in others:
            file, key = _join_parts(other)
            table = joined(table, self._table(file), key)
        return table

    def _table(self, file: str) -> Table:
        name, data = self.find(file)
        return self._parse(data, name)

    def _parse(self, data: bytes, name: str) -> Table:
        recipe = self._recipe
        if name.lower().endswith(".json"):
            return parse_json_table(data, name, null=recipe.null)
        return parse_table(data, name, has_header=recipe.header, null=recipe.null)

    def _members(self, file: str) -> list[Member]:
        end = f"/{composed(file)}"
        found = [m for m in self._others if f"/{composed(m.key)}".endswith(end)]
        same = [m for m in found if f"/{m.key}".endswith(f"/{file}")] or found
        return [m for m in same if m.key == file] or same


def named_files(recipe: Recipe) -> list[str]:
    """Return the files that a recipe names beside its source; they may lie in it or on disk."""
    files = [_join_parts(text)[0] for text in recipe.join]
    files += [file for file in (recipe.class_map, recipe.exclude_list) if file]
    rule = parse_label_rule(recipe.labels)
    if rule.kind == "csv":
        files += parse_csv_rule(rule.argument).files
    if recipe.split:
        split = parse_split_rule(recipe.split)
        files += split.places.values() if split.kind == "list" else ()
    return files


def _join_parts(text: str) -> tuple[str, str]:
    file, colon, key = text.rpartition(":")
    has_key = colon and not key.lower().endswith(TABLE_SUFFIXES)  # a path may hold a colon
    return (file, key) if has_key else (text, "")


def read_table(file: str, most_bytes: int) -> bytes:
    """Return the bytes of a file on disk that the user has named: a pipe would never end.

    Raises:
        SourceError: it is too large, or cannot be read.
        FileNotFoundError: there is no such regular file.

    """
    if not Path(file).is_file():
        raise FileNotFoundError
    if Path(file).stat().st_size > most_bytes:
        hint = f"tables of {most_bytes:,} bytes are read"
        raise SourceError(file, "is larger than --max-member-size", hint)
    try:
        return read_named(file, most_bytes)
    except OSError as error:
        raise SourceError(file, f"cannot be read ({error.strerror})") from error


def _read(member: Member) -> bytes:
    try:
        return member.extent.read()
    except MemberError as error:
        raise SourceError(member.key, str(error), "download or pack it again") from error
