"""Parquet files and CSV files of pixels: columns of images or numbers, read batch by batch."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shardprep.catalog.arrays.array_file import (
    BLOCK_BYTES,
    UNKNOWN,
    ArrayFile,
    Block,
    ImageColumn,
    opened_file,
    reading,
    rows_at_once,
)
from shardprep.catalog.arrays.layout import MIN_FLAT, possible_layouts
from shardprep.catalog.tables.object_lists import value_at
from shardprep.catalog.tables.table import DELIMITERS
from shardprep.errors import SourceError
from shardprep.image.signatures import HEAD_BYTES, is_image
from shardprep.source.byte_range import PlainExtent
from shardprep.source.string_column import Texts, booleans, release
from shardprep.source.unpack import buffered
from shardprep.storage.text_file import encoding_of

_FILES_AT_ONCE = 32
_MOST_ROWS = 1024
_CSV_HEAD = 1 << 20
_READ_BYTES = 1 << 20
_NUMBER = re.compile(r"-?\d+\.?\d*", re.ASCII)
_PLACE = re.compile(r"\d{1,4}x\d{1,4}", re.ASCII)
"""Matches the title of a column for one pixel: its row and column, such as `1x28`."""
_NUMBERED = re.compile(r"(?P<name>.*?)_?(?P<number>\d{1,6})", re.DOTALL)
_PIXELS = re.compile(
    rf"[\s\[]*-?\d[\d.]*([\s,;]+-?\d[\d.]*){{{MIN_FLAT - 1}}}[-\d.\s,;\]]*", re.ASCII
)
"""Matches a cell that holds all pixels of an image."""
_NO_NUMBER = r"[\[\],;\s]+"
_INDEXES = ("time", "index", "__index_level_0__")
"""Columns of numbers that are not pixels of a matrix."""
_Batches = Callable[[Sequence[str], int], Iterator[Any]]
"""Yields batches of the columns with given titles, of at most the given number of rows."""


def open_parquet(place: PlainExtent, name: str) -> ArrayFile:
    """Return the columns of a Parquet file, which is read in batches instead of row groups."""

    def batches(titles: Sequence[str], most_rows: int) -> Iterator[Any]:
        with (
            reading(name),
            opened_file(place) as whole,
            pq.ParquetFile(whole, buffer_size=_READ_BYTES, pre_buffer=False) as file,
        ):
            some = file.iter_batches(most_rows, columns=list(titles), use_threads=False)
            for number, batch in enumerate(some):
                yield pa.record_batch([*map(_plain, batch.columns)], batch.schema.names)
                if number % _FILES_AT_ONCE == 0:
                    release()

    with reading(name), opened_file(place) as whole, pq.ParquetFile(whole) as file:
        schema, num_rows = file.schema_arrow, file.metadata.num_rows
    if twice := next((one for one in schema.names if schema.names.count(one) > 1), ""):
        raise SourceError(name, f"has several columns called {twice!r}", "rename or drop one")
    return _Rows(schema, num_rows, batches, _class_names(schema)).array_file()


def open_pixel_csv(place: PlainExtent, name: str) -> ArrayFile | None:
    """Return the columns of a CSV file of pixels; None if neither columns nor cells are pixels.

    If all titles are numbers, `_titles_by_place` replaces them.
    """
    head = place.read_range(0, _CSV_HEAD)
    encoding = encoding_of(head)
    text = head.decode(encoding, errors="replace").splitlines()
    delimiter = max(DELIMITERS, key=text[0].count) if text else ","
    lines = csv.reader(text, delimiter=delimiter)
    try:
        titles, first = [title.strip() for title in next(lines)], next(lines, [])
        has_header = len({*titles}) == len(titles)
        places = [one for one in titles if _PLACE.fullmatch(one)]
        if places == sorted(places, key=lambda one: [*map(int, one.split("x"))]):
            titles = [f"pixel{places.index(x)}" if x in places else x for x in titles]
        if len(titles) >= MIN_FLAT and all(map(_NUMBER.fullmatch, titles)):
            titles = _titles_by_place([*([] if has_header else [titles]), first, *lines])
    except (StopIteration, csv.Error):
        return None
    pixels = _pixel_titles(titles)
    texts = any(_PIXELS.fullmatch(cell) for cell in first)
    if not (pixels or texts) or len({*titles}) < len(titles):
        return None
    kinds = {title: pa.float32() if title in {*pixels} else pa.string() for title in titles}

    def batches(some: Sequence[str], most_rows: int) -> Iterator[Any]:
        convert = arrow_csv.ConvertOptions(
            column_types=kinds, include_columns=list(some), strings_can_be_null=False
        )
        read = arrow_csv.ReadOptions(
            use_threads=False, block_size=BLOCK_BYTES, column_names=titles,
            skip_rows=int(has_header), encoding=encoding.replace("-sig", ""),
        )  # fmt: skip
        parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        with reading(name), buffered(place) as stream:
            for batch in arrow_csv.open_csv(stream, read, parse, convert):
                yield from (batch[at : at + most_rows] for at in range(0, len(batch), most_rows))

    return _Rows(pa.schema([*kinds.items()]), UNKNOWN, batches).array_file()


def _pixel_titles(titles: Sequence[str]) -> list[str]:
    """Return the titles that count the pixels of an image: 0, 1, … or pixel1, pixel2, …."""
    groups: dict[str, dict[int, str]] = defaultdict(dict)
    for title in titles:
        if match := _NUMBERED.fullmatch(title):
            groups[match["name"]][int(match["number"])] = title
    for group in groups.values():
        first = min(group)
        if len(group) >= MIN_FLAT and first in (0, 1) and max(group) - first + 1 == len(group):
            return [group[number] for number in sorted(group)]
    return []


def _titles_by_place(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return titles for the columns of a headerless CSV; [] if it is unclear which has the labels.

    If there is one column more than pixels, the first or the last has the labels: the
    column that varies (corners of digits are black), or if both vary, the one with 0 to n.
    """
    pixels = [f"pixel{place}" for place in range(len(rows[0]))]
    if possible_layouts((1, len(pixels)), has_rows=True):
        return pixels
    ends = [{row[at] for row in rows if len(row) == len(pixels)} for at in (0, -1)]
    likely = [at for at in (0, -1) if len(ends[at]) > 1]
    if len(likely) > 1:
        likely = [at for at in likely if ends[at] <= {*map(str, range(len(ends[at]) + 1))}]
    if len(likely) != 1 or not possible_layouts((1, len(pixels) - 1), has_rows=True):
        return []
    return ["label", *pixels[:-1]] if likely == [0] else [*pixels[:-1], "label"]


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Return path of a column → class names, as Hugging Face's `datasets` stores them."""
    found: dict[str, list[str]] = {}

    def look(feature: Any, path: str) -> None:
        if isinstance(feature, list):
            feature = {"_type": "List", "feature": feature[0]}
        if "feature" in feature:
            look(feature["feature"], path)
        elif feature.get("_type") == "ClassLabel":
            found[path] = [*map(str, feature["names"])]
        for name, one in feature.items() if "_type" not in feature else ():
            look(one, f"{path}.{name}".lstrip("."))

    with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError, RecursionError):
        look(json.loads(schema.metadata[b"huggingface"])["info"]["features"], "")
    return found


def _lists_in(kind: Any, title: str) -> list[str]:
    """Return the path of each list in a struct, or of each value in a list of structs."""
    inner = kind.value_type if _is_list(kind) else kind
    if not pa.types.is_struct(inner) or inner.get_field_index("bytes") >= 0:
        return []
    fields = [one for one in inner if _is_list(kind) or _is_list(one.type)]
    return [f"{title}.{one.name}" for one in fields if _are_cells(one.type)]


@dataclass(frozen=True, slots=True)
class _Rows:
    schema: Any
    num_rows: int
    batches: _Batches
    class_names: Mapping[str, list[str]] = field(default_factory=dict)

    def array_file(self) -> ArrayFile:
        images: dict[str, ImageColumn] = {}
        cells: list[str] = []
        left_out: list[str] = []
        kinds = {one.name: _plain_type(one.type) for one in self.schema}
        pixels = _pixel_titles([title for title, kind in kinds.items() if _is_number(kind)])
        if pixels:
            dtype, shape = kinds[pixels[0]].to_pandas_dtype(), (self.num_rows, len(pixels))
            blocks = partial(self._flat, pixels)
            images["pixels"] = ImageColumn(shape, np.dtype(dtype), blocks)
        for title in [title for title in kinds if title not in {*pixels}]:
            kind = kinds[title]
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
            is_files = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
            if isinstance(self.schema.field(title).type, pa.FixedShapeTensorType):
                left_out.append(f"{title} (a tensor; write it as nested lists)")
                continue
            if paths := _lists_in(kind, title):
                cells += paths
                continue
            some = [] if is_files or _is_number(kind) else self._some(title)
            if is_files or (_is_bytes(kind) and any(is_image(one[:HEAD_BYTES]) for one in some)):
                blocks = partial(self._files, f"{title}.bytes" if is_files else title)
                images[title] = ImageColumn((self.num_rows,), None, blocks)
                if is_files and kind.get_field_index("path") >= 0:
                    cells.append(f"{title}.path")
                continue
            first = _numbers(next(filter(None, some), None))
            are_boxes = first is not None and first.ndim == 2 and first.shape[1] == 4
            if first is not None and not are_boxes and first.size >= MIN_FLAT:
                blocks = partial(self._nested, title, rows_at_once(first.nbytes))
                images[title] = ImageColumn((self.num_rows, *first.shape), first.dtype, blocks)
            elif are_boxes or _is_cell(kind):
                cells.append(title)
            else:
                left_out.append(f"{title} ({kind})")
        rows = dict.fromkeys(cells, self.num_rows)
        numbers = [one for one in kinds if _is_number(kinds[one]) and one.lower() not in _INDEXES]
        shape = self.num_rows, len(numbers)
        matrix = ImageColumn(shape, np.dtype(np.float64), partial(self._matrix, numbers))
        return ArrayFile(images, rows, self._read_cells, tuple(left_out), matrix)

    def _some(self, title: str) -> list[Any]:
        """Return the values that are not null of the first batch that has any, otherwise []."""
        for batch in self.batches([title], _FILES_AT_ONCE):
            values: list[Any] = batch.column(0).drop_null().to_pylist()
            if values:
                return values
        return []

    def _files(self, path: str, _: int) -> Iterator[Block]:
        for batch in self.batches([path], _FILES_AT_ONCE):
            column = batch.column(0)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            yield pc.struct_field(column, "bytes") if path.endswith(".bytes") else column

    def _flat(self, titles: Sequence[str], _: int) -> Iterator[Block]:
        for batch in self.batches(titles, min(_MOST_ROWS, rows_at_once(4 * len(titles)))):
            values = np.stack([_values(batch.column(i)) for i in range(len(titles))], axis=1)
            lacks = np.zeros(len(values), bool)
            for column in batch.columns:
                if column.null_count:
                    lacks |= ~booleans(column.is_valid())
            pairs = zip(values, lacks.tolist(), strict=True)
            yield [None if no else row for row, no in pairs] if lacks.any() else values

    def _matrix(self, titles: Sequence[str], _: int) -> Iterator[Block]:
        rows = []
        for batch in self.batches(titles, _MOST_ROWS):
            columns = [one.cast(pa.float64(), safe=False) for one in batch.columns]
            rows.append(np.stack([_values(one.fill_null(np.nan)) for one in columns], axis=1))
        yield np.concatenate(rows)[np.newaxis]

    def _nested(self, title: str, most_rows: int, _: int) -> Iterator[Block]:
        for batch in self.batches([title], min(_MOST_ROWS, most_rows)):
            column = batch.column(0)
            try:
                yield _stacked(column)
            except (pa.ArrowInvalid, ValueError):  # rows differ in shape, or one has no numbers
                yield [_row(column.slice(i, 1)) for i in range(len(column))]

    def _read_cells(self, titles: Sequence[str]) -> list[Texts]:
        parts: list[list[Texts]] = [[] for _ in titles]
        known = {one.name: _plain_type(one.type) for one in self.schema}
        longest = sorted(known, key=len, reverse=True)  # "0.1" may be a column, not field 1 of "0"
        names = [next(n for n in longest if f"{one}.".startswith(f"{n}.")) for one in titles]
        pairs = [*zip(titles, names, strict=True)]
        stored = [name if _is_list(known[name]) else title for title, name in pairs]
        has_boxes = any(title == name and _is_nested(known[name]) for title, name in pairs)
        for batch in self.batches([*dict.fromkeys(stored)], _MOST_ROWS) if titles else ():
            for part, (title, name) in zip(parts, pairs, strict=True):
                column, inner = batch.column(name), title[len(name) + 1 :]
                if inner == "path" and pa.types.is_struct(column.type):
                    column, inner = pc.struct_field(column, inner), ""
                is_list = bool(inner) or (has_boxes and _is_list(column.type))
                read = self._lists if is_list else self._texts
                part.append(read(column, title, inner))
        return [Texts.joined(part) for part in parts]

    def _lists(self, column: Any, title: str, path: str) -> Texts:
        """Return the values at a path of structs and lists as JSON, with names of classes."""
        names = dict(enumerate(self.class_names.get(title, ())))
        parts, texts = path.split(".") if path else (), list[str]()
        for value in column.to_pylist():
            found = value_at(value, parts)
            found = [names.get(one, one) for one in found] if names and found else found
            texts.append("" if found is None else json.dumps(found, default=str))
        return Texts.of(texts)

    def _texts(self, column: Any, title: str, _: str) -> Texts:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        names = self.class_names.get(title)
        if _is_list(column.type):
            parts = column.cast(pa.list_(pa.string()))
            if names or pc.any(pc.match_substring(pc.list_flatten(parts), " ")).as_py():
                return self._lists(column, title, "")
            if parts.flatten().null_count:  # binary_join would make the row null
                gap = "nan" if _is_number(column.type.value_type) else ""
                rows = parts.to_pylist()
                return Texts.of(" ".join(one or gap for one in row or ()) for row in rows)
            column = pc.binary_join(parts, " ")
        texts = column.cast(pa.large_string()).fill_null("")
        if pa.types.is_floating(column.type):
            texts = pc.if_else(pc.is_nan(column).fill_null(False), "", texts)  # noqa: FBT003
        if names is None or not pa.types.is_integer(column.type):
            return Texts(texts)
        return Texts.of(names[int(text)] if _is_index(text, names) else "" for text in Texts(texts))


def _plain_type(kind: Any) -> Any:
    """Return the type with plain values instead of views and extensions."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_plain_type(one.type)) for one in kind])
    if _is_list(kind) and (inner := _plain_type(kind.value_type)) != kind.value_type:
        return pa.large_list(inner)
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def _plain(column: Any) -> Any:
    kind = _plain_type(column.type)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column if column.type == kind else column.cast(kind)


def _is_index(text: str, names: Sequence[str]) -> bool:
    return text.isdigit() and int(text) < len(names)


def _is_number(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_bytes(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _is_list(kind: Any) -> bool:
    types = pa.types
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    is_plain = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_view or is_plain)


def _is_nested(kind: Any) -> bool:
    return _is_list(kind) and _is_list(kind.value_type)


def _is_cell(kind: Any) -> bool:
    types = pa.types
    if _is_list(kind):
        kind = kind.value_type
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or _is_number(kind) or types.is_temporal(kind) or types.is_decimal(kind))


def _are_cells(kind: Any) -> bool:
    """Return whether the innermost values of nested lists are cells, or run lengths of COCO."""
    while _is_nested(kind) or (_is_list(kind) and pa.types.is_struct(kind.value_type)):
        kind = kind.value_type
    is_runs = pa.types.is_struct(kind) and {one.name for one in kind} == {"size", "counts"}
    return is_runs or _is_cell(kind)


def _numbers(value: Any) -> NDArray[Any] | None:
    """Return the array of a nested list or of a text of pixels; None for other values."""
    if isinstance(value, str) and _PIXELS.fullmatch(value):
        return np.array(re.split(_NO_NUMBER, value.strip(" []")), np.float32)
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value)
    except ValueError:
        return None
    return array if array.dtype.kind in "buif" else None


def _values(column: Any) -> NDArray[Any]:
    """Return an Arrow array of numbers as NumPy; the value of a null is undefined."""
    if pa.types.is_boolean(column.type):
        return booleans(column.fill_null(False))  # noqa: FBT003
    dtype = np.dtype(column.type.to_pandas_dtype())
    values: NDArray[Any] = np.frombuffer(column.buffers()[1] or b"", dtype)
    return values[column.offset :][: len(column)]


def _stacked(column: Any) -> NDArray[Any]:
    """Return numbers, lists or texts of numbers as [rows, …]; ValueError if shapes differ."""
    if column.null_count:
        raise ValueError("a row has no value")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(column, _NO_NUMBER, " "))
        column = pc.split_pattern(plain, " ")
        inner = _values(column.flatten().cast(pa.float32()))
    elif not _is_list(column.type):
        return _values(column)
    else:
        inner = _stacked(column.flatten())
    lengths = _values(pc.list_value_length(column).cast(pa.int64()))
    if len(lengths) and (lengths != lengths[0]).any():
        raise ValueError("rows differ in length")
    return inner.reshape(len(column), -1, *inner.shape[1:])


def _row(column: Any) -> NDArray[Any] | None:
    try:
        row: NDArray[Any] = _stacked(column)[0]
    except (pa.ArrowInvalid, ValueError):
        return None
    return row
