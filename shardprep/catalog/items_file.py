"""Read a table of items, from a file or a data frame; `item_columns` finds roles of its columns."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from shardprep.catalog.arrays.array_file import reading
from shardprep.catalog.labels import LABEL_COLUMNS
from shardprep.catalog.selection import MOST_SHOWN
from shardprep.catalog.tables.metadata_files import check_text, read_table
from shardprep.catalog.tables.table import OpenQuoteError, parse_table
from shardprep.errors import OptionName, RecipeError, SourceError, counted, shown
from shardprep.recipe.recipe import Recipe
from shardprep.source.string_column import Texts, release
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.cache import ITEMS, cache_root, make_cache
from shardprep.storage.text_file import decoded

_CACHE = "items"
"""Folder in the cache for tables that were given as Python values."""
LISTS = (
    "labels", "texts", "box_labels", "mask", "target_image", "segmentation", "keypoints", "points",
    "boxes", "iscrowd",
)  # fmt: skip
"""Columns whose cells are lists."""
SINGLE = ("image", "label", "text", "split", "group", "sample", "order", "box_format")
"""Columns whose cells are single values."""
WRITE_LISTS = "write lists as JSON (json.dumps), or save the table as Parquet"
TARGET = "target/"
"""Prefix of the title of a target column."""
_JSON = (".json", ".jsonl", ".ndjson")
_FEW = 5
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())


@dataclass(frozen=True)
class GivenItems:
    """A table of items with the faults of its rows."""

    name: str
    columns: dict[str, Texts]
    targets: Sequence[str] = ()
    others: Sequence[str] = ()
    """Columns without a role that are stored as features; () if the recipe has `--columns`."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Role → title in the file."""
    joined: Collection[str] = ()
    """Titles of the columns of `--join`."""
    has_boxes: bool = True
    """False if the table has outlines without boxes; then `boxes` has only boxes of NaN."""
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Title in the file → values in order, of an ordered Categorical of pandas."""
    points: Sequence[str] = ()
    """Columns of coordinates: x and y of the first point, then of the second point, …"""
    notes: Sequence[str] = ()
    faults: dict[int, str] = field(default_factory=dict)
    """Row number from 0 → first fault of the row."""

    @property
    def is_frame(self) -> bool:
        """Whether Python passed the table as an object."""
        return self.name == ITEMS

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def refuse(self, row: int, title: str, what: str, cell: str | None = None) -> None:
        cell = shown(self.columns[title][row] if cell is None else cell, MOST_SHOWN)
        self.faults.setdefault(row, f"row {row + 1:,}: {self.titled(title)} {cell!r} {what}")

    def titled(self, column: str) -> str:
        """Return the title of a column as the file has it, for messages."""
        return self.titles.get(column, column)

    def check(self, hint: str) -> None:
        """Raise a SourceError that lists the first rows with a fault."""
        if self.faults:
            rows = [self.faults[row] for row in sorted(self.faults)]
            more = [f"and {counted(len(rows) - _FEW, 'more row')}"] if len(rows) > _FEW else []
            parts = [*rows[:_FEW], *more]
            error = SourceError(self.name, "; ".join(parts), hint)
            error.parts = parts
            raise error


def kept(table: Any, option: str) -> str:
    """Return the path of a table; a data frame or list of dicts is first written into the cache.

    Its file name is the hash of its rows, so the same rows continue an interrupted build. A table
    for the option `items` becomes Parquet or JSON lines, for other options CSV or JSON lines.
    RecipeError for other values, SourceError for two equal titles.
    """
    if isinstance(table, str | os.PathLike):
        return os.fspath(table)
    table = [*table] if are_rows(table) else _as_columns(table, option)
    if hasattr(getattr(table, "index", None), "step"):  # pyarrow leaves out a range
        table = _with_index(table)
    suffix = "parquet" if option == "items" else "csv"
    data = None if isinstance(table, list) else _of_columns(table, suffix)
    if data is None:
        suffix, rows = "jsonl", table if isinstance(table, list) else _records(table, option)
        data = "\n".join(_line(row, i, option) for i, row in enumerate(rows, 1)).encode()
    path = make_cache(cache_root() / _CACHE) / f"{hashlib.sha256(data).hexdigest()}.{suffix}"
    write_durably(path, data)
    return str(path)


def orders(table: Any) -> dict[str, Sequence[str]]:
    """Return title → values in order, of columns that are ordered Categoricals of texts."""
    found = dict[str, Sequence[str]]()
    with contextlib.suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
        columns = pa.table(table)
        for field_, column in zip(columns.schema, columns.columns, strict=True):
            kind = field_.type
            is_text = pa.types.is_dictionary(kind) and kind.value_type in _TEXTS
            if is_text and kind.ordered and column.num_chunks:
                values = column.chunk(0).dictionary.to_pylist()
                found[field_.name.strip()] = [*map(str.strip, values)]
    return found


def order_of_labels(table: Any) -> Sequence[str]:
    """Return the values of the column of labels, if it is an ordered Categorical; otherwise ()."""
    found = orders(table)
    titles = [one.strip() for one in pa.table(table).column_names] if found else []
    titles = [one for one in titles if not one.startswith("__index_level_")]
    usual = [one for name in LABEL_COLUMNS for one in titles if one.lower() == name]
    usual = usual or (titles[1:] if len(titles) == 2 else [])
    return found.get(usual[0], ()) if usual else ()


def are_rows(table: object) -> bool:
    """Return whether a value is a list of one or more dicts, which is a table."""
    is_list = isinstance(table, list | tuple) and len(table) > 0
    return is_list and all(isinstance(row, Mapping) for row in table)  # type: ignore[attr-defined]


def _as_columns(table: Any, option: str) -> Any:
    """Return a dict, or the ids of an exclude list, as columns; other tables unchanged.

    A dict of labels or of classes becomes two columns. RecipeError for columns that are not lists,
    or that have different lengths.
    """
    if not isinstance(table, Mapping):
        if option != "exclude_list" or hasattr(table, "columns") or not hasattr(table, "__iter__"):
            return table
        ids = map(str, table)
        return {"id": sorted(ids) if isinstance(table, AbstractSet) else [*ids]}
    if option == "class_map":
        return {"old": [*map(str, table)], "new": [*map(str, table.values())]}
    are_lists = {key: hasattr(x, "__len__") and not isinstance(x, str) for key, x in table.items()}
    if option in ("labels", "relabel") and not any(are_lists.values()):
        return {"id": [*map(str, table)], "label": [*table.values()]}
    if single := [key for key, is_list in are_lists.items() if not is_list]:
        what = f"{single[0]!r} is not a list"
    elif len({*map(len, table.values())}) > 1:
        what = "the lists of the dict have different lengths"
    else:
        return table
    raise RecipeError(OptionName(option), what, "give a list for each column, all of one length")


def _of_columns(table: Any, suffix: str) -> bytes | None:
    """Return a table as Parquet or CSV; None for columns of paths, periods or of several types.

    The numbers of an unnamed pandas index are left out, because they may be names of other images.
    """
    stream = io.BytesIO()
    try:
        columns = pa.table(table)
        if any(isinstance(field.type, pa.BaseExtensionType) for field in columns.schema):
            return None  # their numbers mean nothing
        types = columns.schema.types
        kinds = [pa.large_string() if pa.types.is_string_view(one) else one for one in types]
        if kinds != types:
            columns = columns.cast(pa.schema(zip(columns.column_names, kinds, strict=True)))
        names = [
            field.name
            for field in columns.schema
            if not (field.name.startswith("__index_level_") and pa.types.is_integer(field.type))
        ]
        write = pq.write_table if suffix == "parquet" else arrow_csv.write_csv
        write(columns.select(names), stream)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return stream.getvalue()


def _with_index(table: Any) -> Any:
    """Return a data frame of pandas with its named index as columns."""
    names = {*getattr(table.index, "names", ())} - {None}
    return table.reset_index() if names and names.isdisjoint(table.columns) else table


def _records(table: Any, option: str) -> list[Any]:
    titles = [*map(str, getattr(table, "column_names", getattr(table, "columns", ())))]
    _check_titles(titles, option)
    if isinstance(table, Mapping):
        cells = [list(column) for column in table.values()]
        return [dict(zip(table, row, strict=True)) for row in zip(*cells, strict=True)]
    if titles and hasattr(table, "iloc"):
        return list(_with_index(table).to_dict("records"))
    with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
        return list(pa.table(table).to_pylist())
    what = f"a value of the type {type(table).__name__} is not a table"
    raise RecipeError(OptionName(option), what, "give a data frame, a list of dicts or a file")


def _line(row: Any, number: int, option: str) -> str:
    """Return a row as a JSON object, with lists as JSON texts unless the option is `items`."""
    if not isinstance(row, Mapping):
        what = f"row {number:,} is not a dict"
        raise RecipeError(OptionName(option), what, "give a data frame or a list of dicts")
    parts = []
    for title, value in row.items():
        try:
            text = json.dumps(value, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            what = f"row {number:,}: {title} ({type(value).__name__}) cannot be stored: {error}"
            raise RecipeError(OptionName(option), what, "give a text, number or list") from None
        is_list = option != "items" and text.startswith("[")
        parts.append(f"{json.dumps(str(title))}: {json.dumps(text) if is_list else text}")
    return f"{{{', '.join(parts)}}}"


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.tolist() if hasattr(value, "tolist") else str(value)


def cell_list(cell: str) -> Any:
    """Return the JSON list in a cell; [] for an empty cell, (None,) if it is not a list."""
    try:
        found = json.loads(cell or "[]")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, list) else (None,)


def cell_paths(cell: str) -> list[str]:
    """Return the paths in a cell, which is a path or a JSON list of paths."""
    several = cell_list(cell) if cell.startswith("[") else [cell] if cell else []
    return ["" if one is None else str(one) for one in several]


_latest: dict[tuple[object, ...], GivenItems] = {}
"""The table that was read last, until its last use: three steps of a build read it."""


def read_file(recipe: Recipe, *, is_last: bool) -> GivenItems:
    """Return the table of `--items` with the column titles of the file.

    With `is_last`, the table is not kept for another call. SourceError if it is unreadable.
    """
    file = Path(recipe.items)
    status = file.stat() if file.is_file() else None
    of_file = (status.st_ino, status.st_size, status.st_mtime_ns) if status else ()
    key = (file, of_file, recipe.header, recipe.null, recipe.labels, recipe.max_member_size)
    found = _latest.get(key) or _read_file(recipe, file)
    _latest.clear()
    if not is_last:
        _latest[key] = found
    return replace(found, faults={})


def _read_file(recipe: Recipe, file: Path) -> GivenItems:
    name = ITEMS if file.is_relative_to(cache_root() / _CACHE) else recipe.items
    suffix = file.suffix.lower()
    if not file.is_file():
        what = "is not a file on this machine"
        hint = "name a CSV, Parquet or JSON file"
        raise SourceError(OptionName("items", recipe.items), what, hint)
    if suffix == ".parquet":
        with reading(name):
            table = pq.ParquetFile(file).read(use_threads=False)
        _check_titles([*map(str.strip, table.column_names)], name)
        items = GivenItems(name, _of_arrow(table), orders=orders(table))
        del table
        release()
        return items
    data = read_table(recipe.items, recipe.max_member_size)
    check_text(data, name)
    if suffix in _JSON:
        return GivenItems(name, _of_objects(_json_objects(data, name), name))
    table = parse_table(data, name, has_header=recipe.header, null=recipe.null).check_rows()
    try:
        table.check_quotes(*table.header)
    except OpenQuoteError as error:
        error.hint = f"{error.hint}; {WRITE_LISTS}"
        raise
    _check_titles(table.header, name)
    return GivenItems(name, {title: table.cells(i) for i, title in enumerate(table.header)})


def _check_titles(titles: Sequence[str], name: str) -> None:
    if twice := next((one for one in titles if titles.count(one) > 1), ""):
        raise SourceError(name, f"has two columns {twice!r}", "rename or drop one")


def _json_objects(data: bytes, name: str) -> list[Mapping[str, Any]]:
    text = decoded(data)
    lines = [text] if text.lstrip().startswith("[") else filter(str.strip, text.splitlines())
    try:
        rows = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        what = f"is neither JSON lines nor a list of JSON objects ({error})"
        raise SourceError(name, what, "write a JSON object for each image") from None
    rows = rows[0] if rows and isinstance(rows[0], list) else rows
    if wrong := next((i for i, row in enumerate(rows, 1) if not isinstance(row, dict)), 0):
        raise SourceError(name, f"row {wrong:,} is not an object", "write a JSON object per image")
    return rows


def _of_objects(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Texts]:
    titles = dict.fromkeys(title for row in rows for title in row)
    _check_titles([one.strip() for one in titles], name)
    return {one.strip(): Texts.of(_text(row.get(one)) for row in rows) for one in titles}


def _of_arrow(table: Any) -> dict[str, Texts]:
    """Return the columns of a table as texts, except the unnamed index of pandas."""
    found = dict[str, Texts]()
    for title, column in zip(map(str.strip, table.column_names), table.columns, strict=True):
        kind = column.type
        if title.startswith("__index_level_"):
            continue
        try:
            if pa.types.is_duration(kind):
                column = column.cast(pa.duration("us"), safe=False)  # noqa: PLW2901
                found[title] = Texts.of(map(_text, column.to_pylist()))
                continue
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
                column = column.cast(kind)  # noqa: PLW2901
            texts = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
        except pa.ArrowException:  # lists and other types without a cast to text
            found[title] = Texts.of(map(_text, column.to_pylist()))
            continue
        if pa.types.is_floating(kind):  # whole numbers get ".0", as in a CSV of pandas
            is_whole = pc.match_substring_regex(texts, r"^-?\d+$")
            zero, nothing = pa.array([".0", ""], pa.large_string())
            longer = pc.binary_join_element_wise(texts, zero, nothing)
            texts = pc.if_else(is_whole, longer, texts)
            texts = pc.if_else(pc.is_nan(column), "", texts)
        found[title] = Texts(texts.fill_null("").combine_chunks())
    return found


def _text(value: Any) -> str:
    """Return a value as text; lists and dicts as JSON."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return json.dumps(value, default=_plain)
    return str(_plain(value)).strip()
