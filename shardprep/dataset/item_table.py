"""The item table, `items.parquet`: a row for every input, written or not."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardprep.dataset.folder import COPY_AGAIN
from shardprep.dataset.schema import ALL_POINTS, CLASS_PREFIX, TARGETS, Schema
from shardprep.errors import DatasetError
from shardprep.storage.regular_file import open_regular

if TYPE_CHECKING:
    from shardprep.storage.folder import Folder

Ints = np.ndarray[Any, np.dtype[np.int64]]

WRITTEN, REJECTED, SKIPPED = "written", "rejected", "skipped"

_WORD = pa.dictionary(pa.int32(), pa.string())
COLUMNS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("status", _WORD),
        pa.field("kind", _WORD),
        pa.field("reason", pa.string()),
        pa.field("split", _WORD),
        pa.field("shard", _WORD),
        pa.field("record", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("label", pa.int64()),
        pa.field("labels", pa.list_(pa.int64())),
        pa.field("target", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("group", pa.string()),
        pa.field("original_width", pa.int64()),
        pa.field("original_height", pa.int64()),
        pa.field("original_format", _WORD),
        pa.field("original_bytes", pa.int64()),
        pa.field("original_sha256", pa.string()),
    ]
)
"""Rows are in the order of splits, shards and records; skipped inputs come last, sorted by key.
`record`, `offset` and `length` (bytes, framing included) locate a written item in its shard and are
null for other items. `label` (index of a class name), `labels`, `target` or `text` is
filled if it is the target of the schema; the others are null."""

ANNOTATION_COLUMNS = pa.schema(
    [
        pa.field("num_objects", pa.int64()),
        pa.field("object_labels", pa.list_(pa.int64())),
        pa.field("num_dropped", pa.int64()),
        pa.field("dropped", pa.map_(pa.string(), pa.int64())),
        pa.field("num_clipped", pa.int64()),
        pa.field("mask_key", pa.string()),
        pa.field("mask_pixels", pa.map_(pa.int64(), pa.int64())),
    ]
)
"""Columns of a dataset with boxes or masks. `num_objects` and `object_labels` are about the stored
objects. `dropped` counts dropped objects by sorted reason. `mask_key` is the key of the item's
first mask file, and `mask_pixels` counts the pixels of the stored class mask by ascending value.
Null for items that were not written, and for features that the dataset does not have."""
POINT_COLUMNS = pa.schema(
    [
        pa.field("labelled_points", pa.list_(pa.int64())),
        pa.field("lost_points", pa.map_(pa.string(), pa.int64())),
    ]
)
"""Further columns of a dataset with keypoints. `labelled_points` counts labelled keypoints of each
stored object, then of the image. `lost_points` counts the unstored keypoints by sorted reason."""
TARGET_COLUMNS = pa.schema(
    [
        pa.field("targets", pa.list_(pa.float64())),
        pa.field("classes", pa.list_(pa.int64())),
        pa.field("texts", pa.list_(pa.string())),
    ]
)
"""Columns of a dataset whose target has several values; they precede `ANNOTATION_COLUMNS`.
`targets` has the numbers in the order of their names, null if missing; `classes` the class indices
in the order of the features `label/NAME`, −1 if missing. A list is null for an unlabelled image."""
_FURTHER = (TARGET_COLUMNS, ANNOTATION_COLUMNS, POINT_COLUMNS)
_FIXED = pa.schema([*COLUMNS, *chain.from_iterable(_FURTHER)])
_TYPES = {"int64": pa.int64(), "float32": pa.float64(), "bytes": pa.string()}
"""dtype of a feature → type of its column."""
LABEL_NAME, LABEL_NAMES = "label_name", "label_names"
"""Columns with the names of classes, which `reader.table` adds."""
OWN = frozenset((*_FIXED.names, LABEL_NAME, LABEL_NAMES))
"""Reserved column names; if a user's column has such a NAME, it is stored as `column/NAME`."""

_MAX_ROWS_A_BYTE = 4
"""Maximum number of rows per byte of the file; a table of a million numbered names has 1.4."""
_MAX_UNPACKED_RATIO = 1000
"""Maximum number of unpacked bytes per byte of the file; a table of numbered names has 30."""
_MIN_UNPACKED_BYTES = 64 << 20
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, MemoryError, ArithmeticError, pa.ArrowException,
)  # fmt: skip
"""Errors that pyarrow and the checks raise for a damaged file."""


def index_text(table: pa.Table) -> str:
    """Return the index for the rows of a shard, in the format of DALI and `tfrecord2idx`."""
    places = (table[name].cast("string") for name in ("offset", "length"))
    return "\n".join([*pc.binary_join_element_wise(*places, " ").drop_null().to_pylist(), ""])


def columns_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns that an item table with `schema` should have, in their order.

    These are `COLUMNS`, the further groups that are complete in `schema` (`POINT_COLUMNS` only with
    `ANNOTATION_COLUMNS`), and the user's columns.
    """
    names = {*schema.names}
    further = [one for one in _FURTHER if {*one.names} <= names]
    if ANNOTATION_COLUMNS not in further:
        further = [one for one in further if one is not POINT_COLUMNS]
    fixed, types = {*_FIXED.names}, [*_TYPES.values()]
    given = [one for one in schema if one.name not in fixed and one.type in types]
    return pa.schema([*COLUMNS, *chain.from_iterable(further), *given])


def given_columns(schema: Schema) -> dict[str, pa.Field]:
    """Return the column of each feature of `Schema.columns`, by feature name (see `OWN`)."""
    found, taken = dict[str, pa.Field](), {*OWN}
    for name, dtype in schema.columns.items():
        title = name
        while title in taken:
            title = f"column/{title}"
        taken.add(title)
        found[name] = pa.field(title, _TYPES[dtype])
    return found


def given_cells(values: Iterable[Any], are_there: Iterable[Any]) -> list[Any]:
    """Return the cells of a column: values of its feature, None for NaN, "" and absent values."""
    pairs = zip(values, are_there, strict=False)  # `are_there` may be endless
    return [one if is_there and one == one and one != "" else None for one, is_there in pairs]  # noqa: PLR0124 - NaN


def columns_for(schema: Schema) -> pa.Schema:
    """Return the columns of the item table of a dataset with this schema."""
    has = (schema.target_lists, schema.annotations, {*ALL_POINTS} & schema.features.keys())
    further = [columns for columns, names in zip(_FURTHER, has, strict=True) if names]
    return pa.schema([*COLUMNS, *chain.from_iterable(further), *given_columns(schema).values()])


def with_columns(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns; added columns are null."""
    nulls = {one.name: pa.nulls(len(table), one.type) for one in columns}
    known = {name: table[name] for name in table.column_names}
    return pa.table({name: known.get(name, nothing) for name, nothing in nulls.items()})


def write_items(
    folder: Folder, name: str, tables: Iterable[pa.Table], columns: pa.Schema = COLUMNS
) -> None:
    """Write tables with exactly these `columns` into one parquet file, a table at a time."""
    with folder.new_file(name) as file:
        with pq.ParquetWriter(file.stream, columns, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(None))
        file.commit()


def read_items(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return `columns` of an item table, or all; DatasetError if the file is missing or damaged."""
    with readable(path), open_regular(path) as raw:
        return bounded_table(parquet_file(raw, path), os.fstat(raw.fileno()).st_size, columns)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of the block that mean a damaged item table into a DatasetError with `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise DatasetError(str(path), "is missing", COPY_AGAIN) from error
    except UNREADABLE as error:
        text = getattr(error, "strerror", None) or (str(error).splitlines() or ["empty"])[0]
        raise DatasetError(str(path), f"cannot be read ({text})", COPY_AGAIN) from error


def parquet_file(raw: FileIO, path: Path) -> pq.ParquetFile:
    """Return an opened item table; DatasetError if it has other columns than a build writes."""
    file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), pre_buffer=False)
    schema = file.schema_arrow.remove_metadata()
    if not schema.equals(columns_of(schema)):
        raise DatasetError(str(path), "has other columns than an item table", COPY_AGAIN)
    return file


def bounded_table(
    file: pq.ParquetFile,
    num_bytes: int,
    columns: Sequence[str] | None = None,
    group: int | None = None,
) -> pa.Table:
    """Return `columns` (None for all) of a row group (None for all) of an untrusted file.

    ValueError, before memory is allocated, if a file of `num_bytes` states too many rows or bytes.
    """
    facts = file.metadata
    unpacked = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
    if facts.num_rows > _MAX_ROWS_A_BYTE * num_bytes:
        raise ValueError(f"says that it has {facts.num_rows:,} rows in {num_bytes:,} bytes")
    if unpacked > _MIN_UNPACKED_BYTES + _MAX_UNPACKED_RATIO * num_bytes:
        raise ValueError(f"says that it unpacks to {unpacked:,} bytes")
    # Arrow must not use threads (`pre_buffer` starts them too): a thread that drops its last buffer
    # while the interpreter ends aborts the process.
    names = columns_of(file.schema_arrow).names if columns is None else list(columns)
    wanted = range(file.num_row_groups) if group is None else [group]
    table = file.read_row_groups([*wanted], columns=names, use_threads=False)
    table.validate(full=True)
    return table


def value_counts(column: pa.ChunkedArray) -> dict[Any, int]:
    """Return the number of rows with each value, without nulls, in the order of first rows."""
    counts = column.drop_null().value_counts()
    return dict(zip(*(one.to_pylist() for one in counts.flatten()), strict=True))


def with_status(table: pa.Table, status: str) -> pa.Table:
    """Return the rows with this status, in their order."""
    return table.filter(pc.equal(table["status"].cast("string"), status))


def rows_by_shard(table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each shard, by shard name, in order; skipped inputs are left out."""
    ends = pc.run_end_encode(table["shard"].cast("string").combine_chunks())
    tables: dict[str, list[pa.Table]] = {}
    start = 0
    for shard, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        if shard is not None:
            tables.setdefault(shard, []).append(table.slice(start, end - start))
        start = end
    return {shard: pa.concat_tables(runs) for shard, runs in tables.items()}


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Offsets, lengths and keys of a shard's records, in order; no keys if read from an index."""

    offsets: Sequence[int]
    lengths: Sequence[int]
    """In bytes, framing included."""
    keys: Sequence[str] = ()

    @classmethod
    def of(cls, written: pa.Table) -> ShardRows:
        """Return the values from the table of a shard's records; missing numbers become -1."""
        offsets, lengths = (
            pc.fill_null(written[name], -1).to_numpy().tolist() for name in ("offset", "length")
        )
        return cls(offsets, lengths, [key or "" for key in written["key"].to_pylist()])

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, record: int) -> str:
        return self.keys[record] if record < len(self.keys) else ""


class ItemFile:
    """An open item table that reads single columns and rows. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_ended = False
        with readable(path):
            self._raw = open_regular(path)
            self._file = parquet_file(self._raw, path)
            facts = self._file.metadata
            groups = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
        self._ends = np.cumsum(groups, dtype=np.int64)

    def close(self) -> None:
        """Wait for the current read, then close the file; later reads raise an error."""
        self._is_ended = True
        with self._lock:
            self._raw.close()

    def column(self, name: str) -> pa.ChunkedArray:
        return self._read((name,))[name]

    def part(self, name: str, row: int) -> tuple[range, pa.ChunkedArray]:
        """Return the row numbers and the column values of the row group that contains `row`."""
        rows, table = self._row_group((name,), row)
        return rows, table[name]

    def row(self, number: int) -> dict[str, Any]:
        rows, table = self._row_group(None, number)
        values: dict[str, Any] = table.slice(number - rows.start, 1).to_pylist()[0]
        return values

    def _row_group(self, names: Sequence[str] | None, row: int) -> tuple[range, pa.Table]:
        group = int(np.searchsorted(self._ends, row, "right"))
        table, end = self._read(names, group), int(self._ends[group])
        return range(end - len(table), end), table

    def _read(self, names: Sequence[str] | None, group: int | None = None) -> pa.Table:
        with readable(self._path), self._lock:
            if self._is_ended:  # `close` waits for this lock; the read must fail now
                self._raw.close()
            return bounded_table(self._file, os.fstat(self._raw.fileno()).st_size, names, group)


_MOST_PARTS = 4
"""Maximum number of row groups of a column to cache before the whole column is read."""


class ItemView:
    """The rows of an item table where `is_of`, bool[n], is True. Read columns are cached."""

    def __init__(self, file: ItemFile, is_of: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        self._file = file
        self._is_of = is_of
        self._number = int(is_of.sum())
        # Made from a buffer, because Arrow imports numpy.ma to convert an array.
        bits = pa.py_buffer(np.packbits(is_of, bitorder="little"))
        self._bits = pa.BooleanArray.from_buffers(pa.bool_(), len(is_of), [None, bits])
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._parts: dict[str, dict[range, pa.ChunkedArray]] = {}

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        if name not in self._columns:
            self._columns[name] = self.read(name)
            self._parts.pop(name, None)
        return self._columns[name]

    def value(self, name: str, number: int) -> Any:
        """Return the value of a column in a row.

        Reads and keeps one row group at a time; after `_MOST_PARTS` of them, the whole column.
        """
        if name in self._columns:
            return self._columns[name][number].as_py()
        row, parts = int(self.numbers[number]), self._parts.setdefault(name, {})
        for rows, values in parts.items():
            if row in rows:
                return values[row - rows.start].as_py()
        if len(parts) == _MOST_PARTS:
            return self[name][number].as_py()
        rows, values = self._file.part(name, row)
        self._parts[name] = {**parts, rows: values}
        return values[row - rows.start].as_py()

    def read(self, name: str) -> pa.ChunkedArray:
        """Return a column without caching it; DatasetError if the table is damaged."""
        return self._file.column(name).filter(self._bits)

    def anew(self) -> ItemView:
        return ItemView(self._file, self._is_of)

    @cached_property
    def numbers(self) -> Ints:
        return np.flatnonzero(self._is_of)


def target_text(
    schema: Schema,
    numbers: Sequence[float | None] | None,
    classes: Sequence[int] | None,
    texts: Sequence[str] | None,
) -> str | None:
    """Return several target values as "name=value, …" or "text | text"; None if all are missing."""
    parts: list[str] = []
    if numbers:
        names = schema.features[TARGETS].labels
        words = ("none" if one is None else str(one) for one in numbers)
        parts += [f"{name}={word}" for name, word in zip(names, words, strict=False)]
    for name, label in zip(schema.class_features, classes or (), strict=False):
        labels = schema.features[name].labels
        word = labels[label] if 0 <= label < len(labels) else "none"
        parts.append(f"{name.removeprefix(CLASS_PREFIX)}={word}")
    parts += [" | ".join(texts)] if texts else []
    return ", ".join(parts) or None


def target_texts(schema: Schema, rows: pa.Table) -> pa.Array:
    """Return the target of each row as text; null if it is missing or a single value."""
    if not schema.target_lists:
        return pa.nulls(len(rows), pa.string())
    columns = (rows[name].to_pylist() for name in TARGET_COLUMNS.names)
    return pa.array([target_text(schema, *one) for one in zip(*columns, strict=True)], pa.string())
