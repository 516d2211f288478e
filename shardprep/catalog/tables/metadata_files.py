"""Label tables, lists and other documents, in the source or on disk."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from shardprep.catalog.names import given_split
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.tables.columns import DICOM
from shardprep.catalog.tables.json_table import json_rows
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.object_lists import object_rows
from shardprep.catalog.tables.row_matching import joined, listed_column, row_ids
from shardprep.catalog.tables.table import Table, parse_table, stacked, table_of
from shardprep.dataset.card import from_cell
from shardprep.errors import OptionName, RecipeError, SourceError, some_of
from shardprep.recipe.object_rules import BoxTableRule, FormatRule
from shardprep.recipe.recipe import Recipe, make_recipe
from shardprep.recipe.rules import TABLE_SUFFIXES, TEXT, WHOLE_NAME, JoinRule, parse_stack_rule
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member
from shardprep.source.names import composed
from shardprep.source.string_column import Texts
from shardprep.storage.cache import DATA_FRAME, FRAME, without_cache
from shardprep.storage.regular_file import read_named
from shardprep.storage.text_file import as_utf8, decoded

_JSON = (".json", ".jsonl")
_OF_IMAGES = (".xml", ".json", ".txt")
"""Suffixes of documents that may describe one image each."""
_YAML = (".yaml", ".yml")
_OF_IMAGE = partial(json_rows, is_of_image=True)
_BINARY = {
    b"PAR1": "a Parquet file", b"PK\3\4": "a workbook or a zip", b"\xd0\xcf\x11\xe0": "a workbook",
}  # fmt: skip
"""First bytes of a file that is not text → its kind."""
_OF_EXPORT = frozenset((
    "labels", "target", "classes", "columns", "boxes", "masks", "mask_values", "instances",
    "points", "unlisted", "exclude", "images", "crowds",
))  # fmt: skip
"""Options that an untrusted `export.json` may set; other options are ignored."""
_NUMBERED = re.compile(
    r"^(\S*(?:/\S+|\.[A-Za-z]{3,4})(?=\s)|\S+(?=(?:\s+[0-9]+){2}))(?:\s+[0-9]+)+$"
)
"""Matches a line of a list: a path and numbers, or a name and several numbers (Oxford Pets)."""


_Line = tuple[str, dict[str, str]]
"""A line of a document of one image, and the cells that all lines of the document have."""


class Documents:
    """The members that are not images, and the files on disk that the recipe names."""

    def __init__(
        self, others: Sequence[Member], recipe: Recipe, columns: Table | None = None
    ) -> None:
        """`columns` is the table of cells in array files or of items, or None."""
        self.of_images: set[str] = set()
        """Keys of files that describe one image each and were read as rows of a table."""
        self._others = others
        self._recipe = recipe
        self._columns = None if columns is None else columns.without(recipe.null)
        self.are_read = columns is not None

    def label_tables(self) -> list[Table]:
        rules = self._recipe.rules
        if rules.labels.kind == "csv":
            return [self._with(self.table(rules.labels.table.files, self._wanted), rules.join)]
        if rules.labels.kind == "column":
            return [self.only_table("labels")]
        return self.tables if rules.labels.kind == "auto" else []

    @property
    def _wanted(self) -> tuple[str, ...]:
        """Columns that labels, splits, groups and features need."""
        recipe, named = self._recipe, self._recipe.rules.labels.table
        further = recipe.pivot, recipe.group, recipe.rules.split.column
        return (named.id_column, *named.label_columns, *recipe.columns, *further)

    def object_table(self, rule: FormatRule, further: Sequence[str]) -> Table:
        """Return the table of objects: a row for each object, or JSON lists in its cells.

        Without a file in `rule`, it is the table of array files, or else the only table.
        SourceError for several tables or none. From a JSON document per image, fields that end in
        `further` are read, too.
        """
        if not rule.files:
            return self.only_table("boxes")
        return self.box_rows(rule.table, further)

    def box_rows(self, rule: BoxTableRule, further: Sequence[str] = ()) -> Table:
        """Return the rows of a table of boxes; for paths into JSON, a row for each object."""
        columns = [*(rule.boxes.names if rule.boxes else ()), *filter(None, [rule.label_column])]
        if "{" in (file := rule.files[0]) and file.lower().endswith(".json"):
            return self._of_pattern(file, columns, partial(object_rows, further=further))
        has_paths = file.lower().endswith(_JSON) and any("." in one for one in columns)
        wanted = (rule.id_column, *columns) if has_paths else ()
        return self.table(rule.files, wanted, columns, rule.label_column)

    def only_table(self, option: str) -> Table:
        """Return the columns of array files, or the only table; SourceError for several or none.

        Its hint has the columns that `option` of the recipe names.
        """
        tables = self.tables if self._columns is None else [self._columns]
        if len(tables) == 1:
            return self._with(tables[0].check_rows(), self._recipe.rules.join)
        there = f"several: {some_of([table.name for table in tables])}" if tables else "none"
        what = f"needs an array file or one label table, but the source has {there}"
        columns = str(getattr(self._recipe, option)).removeprefix("column")
        flag = OptionName(option, f"csv:FILE:ID{columns}" if columns else "csv:FILE")
        raise SourceError(OptionName(option, "column"), what, f"give {flag}")

    @cached_property
    def tables(self) -> list[Table]:
        found = []
        if self._columns is not None:
            found.append(self._with(self._columns, self._recipe.rules.join))
        members = self.members(*TABLE_SUFFIXES)
        folders = (f"/{member.key}".casefold().split("/")[:-1] for member in members)
        counts = Counter("/".join(one[i:]) for one in folders for i in range(len(one)))
        for member in members:
            number = counts[member.key.rpartition("/")[0].casefold()]
            with contextlib.suppress(SourceError):  # not a table: listed as skipped
                table = self._parse(_read(member), member.key)
                found.append(replace(table, num_beside=number))
        return found

    @cached_property
    def export_facts(self) -> dict[str, Any]:
        """Content of `export.json` if the source is an export of shardprep, otherwise {}."""
        for member in self.members("export.json"):
            with contextlib.suppress(MemberError, ValueError, RecursionError, TypeError, KeyError):
                facts = json.loads(member.extent.read())
                return dict(facts) if facts["shardprep_export"] and facts["layout"] else {}
        return {}

    @property
    def export_layout(self) -> str:
        """Layout if the source is an export of shardprep, otherwise ""."""
        return str(self.export_facts.get("layout", ""))

    def export_options(self) -> dict[str, Any]:
        """Return the options of `build` to read an export; {} if a file of it is missing."""
        with contextlib.suppress(RecipeError, LookupError, TypeError, AttributeError):
            stated = self.export_facts["build"].items()
            given = {key: value for key, value in stated if key in _OF_EXPORT}
            made = make_recipe({"source": self._recipe.source, **given}, "export.json")
            if self._has([one for one in made.named_files if "{" not in one]):
                return {key: getattr(made, key) for key in given}
        return {}

    def joined_table(self, wanted: Collection[str] | None = ()) -> Table | None:
        """Return the table for other options than labels, or None: of items, arrays or `--join`.

        Rows of one key must not differ in a column of `wanted`, or in any if it is None.
        """
        if self._columns is not None:
            return self._with(self._columns, self._recipe.rules.join, wanted)
        if not self._recipe.rules.join:
            return None
        first, *others = self._recipe.rules.join
        return self._with(self._table(first.file, self._wanted), others)

    def check_columns(self) -> None:
        """Raise a SourceError if a table in the source lacks a column that the recipe names."""
        rules, named = self._recipe.rules, self._recipe.rules.labels.table
        files = [*named.files, *(one.file for one in rules.join)]
        # These columns are read later.
        is_beside = rules.images or rules.labels.kind == "column" or self._recipe.items
        if files and not is_beside and self._has(files):
            table = self.label_tables()[0] if named.files else self.joined_table()
            ids = [] if "{" in named.id_column else [named.id_column]
            for name in [*ids, *named.label_columns, *self._recipe.columns, rules.split.column]:
                if table is not None and name not in ("", "*") and not name.startswith(DICOM):
                    table.column(name)
        boxes, runs, points = rules.boxes.table, rules.masks.runs, rules.points
        sides = boxes.boxes.names if boxes.boxes else ()
        named_columns = (
            (boxes, (*sides, boxes.label_column)),
            (runs, (runs.run_column, runs.label_column)),
            (rules.rows, rules.rows.label_columns),
            (rules.relabel, rules.relabel.label_columns),
            *([(points, (*points.columns, *points.name_columns))] if points.kind == "csv" else ()),
        )
        for part, names in named_columns:
            if part.files and self._has(part.files):
                wanted = (part.id_column, *names)
                is_of_boxes = isinstance(part, BoxTableRule)
                table = self.box_rows(part) if is_of_boxes else self.table(part.files, wanted)
                if part.id_column:
                    row_ids(table, part.id_column)
                for name in filter(None, names):
                    table.column(name)

    def _has(self, files: Sequence[str]) -> bool:
        return all(len(self._members(file)) == 1 for file in files)

    def named(self) -> set[str]:
        """Return the keys of the members that the recipe names."""
        return {one.key for file in self._recipe.named_files for one in self._members(file)}

    def read(self, file: str) -> bytes:
        return self.find(file)[1]

    def find(self, file: str) -> tuple[str, bytes]:
        """Return key and bytes of the member whose key ends in `file`, or of a file on disk.

        JSON is returned as UTF-8. SourceError if no or several files fit, or it is not a text.
        """
        found, is_json = self._members(file), file.lower().endswith(_JSON)
        if len(found) > 1:
            keys = some_of([member.key for member in found], 3)
            what = f"fits several files: {keys}"
            raise SourceError(file, what, "give the whole path of one file")
        try:
            data = _read(found[0]) if found else read_table(file, self._recipe.max_member_size)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                what = f"cannot be read ({(error.strerror or str(error)).lower()})"
                raise SourceError(file, what, "give a file that you may read") from error
            there = [m.key for m in self.members(*((".json",) if is_json else TABLE_SUFFIXES))]
            form = "document" if is_json else "label table or list"
            if file.lower().endswith(_YAML):
                form, there = "file", [one.key for one in self.members(*_YAML)] or there
            what = f"no such {form}, neither in the source nor on disk"
            hint = f"name a file on disk, or one of the source: {some_of(there, 5)}"
            hint = hint if there else "name a file on disk"
            if file == self._recipe.exclude_list and "." not in file:
                hint = "give a file on disk, or in Python a list of ids"
            raise SourceError(file, what, hint) from error
        data = as_utf8(data) if is_json else data
        check_text(data, file)
        return found[0].key if found else without_cache(file), data

    def members(self, *suffixes: str) -> list[Member]:
        """Return the members that are not images and whose key ends in one of `suffixes`."""
        return [member for member in self._others if member.key.lower().endswith(suffixes)]

    def table(
        self,
        files: Sequence[str],
        columns: Sequence[str] = (),
        cells: Collection[str] = (),
        last: str = "",
    ) -> Table:
        """Return the rows of all files; see `json_rows` for columns, and `find` for errors.

        `last` is the column of texts of a document per image that may have commas.
        """
        return stacked([self._table(file, columns, cells, last) for file in files])

    def ids(self, file: str, index: KeyIndex | None = None, split: str = "") -> list[str]:
        """Return the ids on a list: lines of a file, a column of a CSV, or names in a JSON.

        The column is `listed_column`, or without `index` the first column. Of lists by split in a
        JSON, the result is the list of `split`. If no id fits an image and all are names of
        annotation files, such as `a.xml`, the ids are without their suffixes.
        """
        found = self._listed(file, index, split)
        are_documents = bool(found) and all(one.lower().endswith(_OF_IMAGES) for one in found)
        if index is not None and are_documents and not index.num_found(Texts.of(found)):
            return [one.rpartition(".")[0] for one in found]
        return found

    def _listed(self, file: str, index: KeyIndex | None, split: str) -> list[str]:
        data = self.read(file)
        if lists := lists_of_names(data) if file.lower().endswith(".json") else {}:
            if split not in lists and {*lists} != {""}:
                there = some_of([*lists])
                what = f"has no list for {split}" if split else "has a list for each split"
                use = f"use its lists, which are for {there}"
                raise SourceError(file, what, use if split else "name a file of one list")
            return lists.get(split) or lists.get("", [])
        if file.lower().endswith((*TABLE_SUFFIXES, *_JSON)):
            table = self._parse(data, file).check_rows()
            column = table.header[0] if index is None else listed_column(index, table)
            return [from_cell(one) for one in row_ids(table, column)[1]]
        lines = [line.strip() for line in decoded(data).splitlines() if line.strip()]
        return [_NUMBERED.sub(r"\1", line) for line in lines]

    def _with(
        self, table: Table, others: Sequence[JoinRule], wanted: Collection[str] | None = ()
    ) -> Table:
        for other in others:
            further = self._table(other.file, self._wanted)
            checked = further.header if wanted is None else (*self._wanted, *wanted)
            table = joined(table, further, other.key, checked)
        return table

    def _table(
        self, file: str, columns: Sequence[str] = (), cells: Collection[str] = (), last: str = ""
    ) -> Table:
        if "{" in file:
            return self._of_pattern(file, columns, last=last).check_rows()
        if self._columns is not None and file == self._columns.name:
            return self._columns
        name, data = self.find(file)
        table = self._parse(data, name, columns, cells).check_rows()
        return replace(table, name=FRAME.sub(DATA_FRAME, name))

    def _of_pattern(
        self,
        file: str,
        columns: Sequence[str],
        read: Callable[..., Any] = _OF_IMAGE,
        last: str = "",
    ) -> Table:
        """Return the rows of all files that a pattern matches, with a column for each field."""
        option, keys = OptionName("FILE"), [member.key for member in self._others]
        rule = parse_stack_rule(file, option)
        found = [
            Pattern(rule.pattern, option, file, group, is_whole=True).search(keys)
            for group in (WHOLE_NAME, *(f"field_{name}" for name in rule.names))
        ]
        tables, rows, lines = list[Table](), list[dict[str, str]](), list[_Line]()
        for member, whole, *parts in zip(self._others, *found, strict=True):
            if whole is None:
                continue
            cells = dict(zip(rule.names, map(str, parts), strict=True))
            self.of_images.add(member.key)
            self.are_read = True
            data, name = _read(member), member.key.lower()
            if name.endswith(TABLE_SUFFIXES):
                tables.append(self._parse(data, member.key).with_cells(file, cells))
            elif name.endswith(_JSON):
                rows += [row | cells for row in read(data, member.key, columns)]
            else:
                text, own = decoded(data), {WHOLE_NAME: whole, **cells}
                if not self._recipe.header:
                    lines += [(line, own) for line in text.splitlines() if line.strip()]
                    continue
                texts = text.splitlines() if self._recipe.target == "texts" else [text]
                rows += [{TEXT: line.strip(), **own} for line in texts]
        rows += _numbered(lines, last)
        if not any(found[0]):
            hint = f"use files such as {keys[0]}" if keys else "use a source with such files"
            raise SourceError(file, "the pattern names no file of the source", hint)
        tables += [table_of(file, rows, self._recipe.null)] if rows or not tables else []
        return replace(stacked(tables), name=file, parts=())

    def _parse(
        self, data: bytes, name: str, columns: Sequence[str] = (), cells: Collection[str] = ()
    ) -> Table:
        recipe, self.are_read = self._recipe, True
        if name.lower().endswith(_JSON):
            return table_of(name, json_rows(data, name, columns, cells=cells), recipe.null)
        table = parse_table(data, name, has_header=recipe.header, null=recipe.null)
        return table.read_from_cells() if self.export_layout else table

    def _members(self, file: str) -> list[Member]:
        end = f"/{composed(file)}"
        found = [m for m in self._others if f"/{composed(m.key)}".endswith(end)]
        same = [m for m in found if f"/{m.key}".endswith(f"/{file}")] or found
        return [m for m in same if m.key == file] or same


def _numbered(lines: Sequence[_Line], last: str) -> Iterator[dict[str, str]]:
    """Yield number from 1 → cell of each line, split at commas, or at blanks without a comma.

    If most lines end with column `last`, it takes the rest of longer lines: a text with commas.
    """
    most = int(last) if last.isdecimal() else 0
    several = [line for line, _ in lines if most and "," in line]
    is_text = 2 * sum(line.count(",") + 1 == most for line in several) > len(several)
    is_text &= any("".join(line.split(",")[most:]).strip() for line in several)
    for line, own in lines:
        cells = line.split(",", most - 1 if is_text else -1) if "," in line else line.split()
        yield {str(number): cell.strip() for number, cell in enumerate(cells, 1)} | own


def lists_of_names(data: bytes) -> dict[str, list[str]]:
    """Return split → names in a JSON object of lists, or "" → names in a list; {} for others.

    Lists whose key means no split are left out.
    """
    try:
        document = json.loads(decoded(data))
    except (ValueError, RecursionError):
        return {}
    lists = document if isinstance(document, dict) else {"": document}
    names = defaultdict[str, list[str]](list)
    for key, several in lists.items():
        split = given_split([key]) if key else key
        if split is not None and isinstance(several, list) and {*map(type, several)} <= {str, int}:
            names[split] += [str(one).strip() for one in several]
    return {split: several for split, several in names.items() if several}


def check_text(data: bytes, name: str) -> None:
    """Raise a SourceError if bytes are a workbook or a Parquet file."""
    for start, what in _BINARY.items():
        if data.startswith(start):
            is_table = name.lower().endswith((*TABLE_SUFFIXES, ".xlsx"))
            hint = "save it as CSV" if is_table else "save it as text, or name the file inside"
            raise SourceError(name, f"is {what}, not a text", hint)


def read_table(file: str, most_bytes: int) -> bytes:
    """Return the bytes of a regular file.

    FileNotFoundError for a missing file or a pipe, which may never end. SourceError for a file that
    is larger than `most_bytes` or unreadable.
    """
    if not Path(file).is_file():
        raise FileNotFoundError
    if (num_bytes := Path(file).stat().st_size) > most_bytes:
        what = f"is larger than {OptionName('max_member_size', str(most_bytes))}"
        raise SourceError(file, what, f"raise this option to {num_bytes}")
    try:
        return read_named(file, most_bytes)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise SourceError(file, what, "name another file") from error


def _read(member: Member) -> bytes:
    try:
        return member.extent.read()
    except MemberError as error:
        raise SourceError(member.key, str(error), "download or pack it again") from error
