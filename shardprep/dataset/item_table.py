"""The table of items, `items.parquet`: a row for every input, written or not; and its totals."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardprep.dataset.folder import COPY_AGAIN
from shardprep.dataset.manifest import Shard, Split, Totals
from shardprep.dataset.stats.annotation_counts import AnnotationTally
from shardprep.errors import DatasetError
from shardprep.image.spec import fitted_size
from shardprep.storage.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from io import FileIO
    from pathlib import Path

    from shardprep.dataset.schema import Schema
    from shardprep.dataset.stats.annotation_counts import AnnotationCounts
    from shardprep.image.spec import ImageSpec
    from shardprep.storage.folder import Folder

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
    ],
)
"""Rows stand in the order of splits, shards and plan; skipped inputs last, by key.

`record`, `offset` and `length` (bytes, framing included) say where a written item lies in its
shard; they are null for others. Of `label` (an index into the class names), `labels`, `target` and
`text`, the one that the dataset's schema has is filled; all are null where there is no target.
"""

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
"""Further columns of a dataset with boxes or masks, last.

Of a written item: its stored objects, their number and the class of each; those left out, their
number and that by reason, sorted; those clipped; the key of the first of its mask files; and the
pixels of its stored mask of classes by value, ascending. All are null for other items, and where no
such thing is stored.
"""
ANNOTATED_COLUMNS = pa.schema([*COLUMNS, *ANNOTATION_COLUMNS])

_MAX_ROWS_A_BYTE = 4
"""Largest number of rows per byte of the file; a million numbered names take 1.4."""
_MAX_UNPACKED_RATIO = 1000
"""Largest number of unpacked bytes per byte of the file; numbered names take 30."""
_MIN_UNPACKED_BYTES = 64 << 20
"""Number of unpacked bytes that any file may have."""
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, MemoryError, ArithmeticError, pa.ArrowException,
)  # fmt: skip
"""Errors that pyarrow and the checks raise for a damaged file."""


def index_text(table: pa.Table) -> str:
    """Return the index of a shard's rows as DALI's and vahidk's `tfrecord2idx` write it."""
    places = zip(table["offset"].to_pylist(), table["length"].to_pylist(), strict=True)
    return "".join(f"{offset} {length}\n" for offset, length in places if offset is not None)


def columns_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a table must have, given those that it has."""
    is_annotated = {*ANNOTATION_COLUMNS.names} <= {*schema.names}
    return ANNOTATED_COLUMNS if is_annotated else COLUMNS


def with_annotation_columns(table: pa.Table) -> pa.Table:
    """Return rows with the columns of a dataset with boxes or masks, null where they lack them."""
    missing = [one for one in ANNOTATION_COLUMNS if one.name not in table.column_names]
    for one in missing:
        table = table.append_column(one, pa.nulls(len(table), one.type))
    return table


def write_items(
    folder: Folder, name: str, tables: Iterable[pa.Table], columns: pa.Schema = COLUMNS
) -> None:
    """Write the tables one after the other into one parquet file; memory holds one at a time."""
    with folder.new_file(name) as file:
        with pq.ParquetWriter(file.stream, columns, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(None))
        file.commit()


def read_items(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return some columns of `items.parquet`, or all; every value is of its column's type.

    DatasetError where it is missing, damaged, or has other columns than a build writes.
    """
    with readable(path), open_regular(path) as raw:
        return bounded_table(parquet_file(raw, path), os.fstat(raw.fileno()).st_size, columns)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Make what is raised for a missing or damaged item table a DatasetError that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DatasetError(str(path), "is missing", COPY_AGAIN) from error
    except UNREADABLE as error:
        text = getattr(error, "strerror", None) or (str(error).splitlines() or ["empty"])[0]
        raise DatasetError(str(path), f"cannot be read ({text})", COPY_AGAIN) from error


def parquet_file(raw: FileIO, path: Path) -> pq.ParquetFile:
    """Return an open item table; DatasetError where it has other columns than a build writes."""
    file = pq.ParquetFile(pa.PythonFile(raw, mode="r"), pre_buffer=False)
    found = file.schema_arrow.remove_metadata()
    if not any(found.equals(known) for known in (COLUMNS, ANNOTATED_COLUMNS)):
        raise DatasetError(str(path), "has other columns than a build writes", COPY_AGAIN)
    return file


def bounded_table(
    file: pq.ParquetFile,
    num_bytes: int,
    columns: Sequence[str] | None = None,
    group: int | None = None,
) -> pa.Table:
    """Return some columns, or all, of one row group, or all, of an untrusted file.

    What it says of itself is bounded first, and with it the memory; it has `num_bytes` bytes.
    """
    facts = file.metadata
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    if facts.num_rows > _MAX_ROWS_A_BYTE * num_bytes:
        message = f"says that it has {facts.num_rows:,} rows in {num_bytes:,} bytes"
        raise ValueError(message)
    if unpacked > _MIN_UNPACKED_BYTES + _MAX_UNPACKED_RATIO * num_bytes:
        message = f"says that it unpacks to {unpacked:,} bytes"
        raise ValueError(message)
    # No threads of Arrow (`pre_buffer` has them too): one that drops its last buffer while the
    # interpreter ends aborts the process.
    names = columns_of(file.schema_arrow).names if columns is None else list(columns)
    wanted = range(file.num_row_groups) if group is None else [group]
    table = file.read_row_groups([*wanted], columns=names, use_threads=False)
    table.validate(full=True)
    return table


def with_status(table: pa.Table, status: str) -> pa.Table:
    """Return the rows of one status, in their order."""
    return table.filter(pc.equal(table["status"].cast("string"), status))


def rows_by_shard(table: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each shard, in their order; skipped inputs have none."""
    shards = table["shard"].cast("string").combine_chunks()
    ends = pc.run_end_encode(shards)
    found: dict[str, list[pa.Table]] = {}
    start = 0
    for shard, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        if shard is not None:
            found.setdefault(shard, []).append(table.slice(start, end - start))
        start = end
    return {shard: pa.concat_tables(runs) for shard, runs in found.items()}


def _counts(column: pa.ChunkedArray) -> dict[Any, int]:
    """Return the number of rows of each value, in the order of their first rows; not of nulls."""
    found = column.drop_null().value_counts()
    return dict(zip(*(one.to_pylist() for one in found.flatten()), strict=True))


@dataclass(slots=True)
class _SplitTally:
    shards: list[Shard] = field(default_factory=list)
    labels: Counter[int] = field(default_factory=Counter)
    num_unlabelled: int = 0
    annotations: AnnotationTally = field(default_factory=AnnotationTally)


@dataclass(slots=True)
class Tally:
    """Counts of the shards added so far, in their order; memory does not grow with their rows."""

    spec: ImageSpec
    """Size and format of the written images."""
    _splits: dict[str, _SplitTally] = field(default_factory=dict)
    _rejected: Counter[str] = field(default_factory=Counter)
    _marks: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = field(default_factory=list)
    """First 8 bytes of the SHA-256 of each written original, an array per shard."""
    _places: list[int] = field(default_factory=list)
    """Position of each shard's split."""
    _are_enlarged: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Whether an original of each height and width has fewer pixels than what is stored of it."""
    _num_damaged: int = 0
    _num_enlarged: int = 0
    _original_bytes: int = 0

    def add(self, shard: Shard, split: str, table: pa.Table) -> None:
        """Count the rows of a shard, written and rejected ones."""
        tally = self._splits.setdefault(split, _SplitTally())
        tally.shards.append(shard)
        self._rejected.update(_counts(table["kind"].cast("string")))
        written = with_status(table, WRITTEN)
        tally.labels.update(_counts(written["label"]))
        tally.labels.update(_counts(pc.list_flatten(written["labels"])))
        tally.num_unlabelled += len(written) - sum(
            pc.count(written[name]).as_py() for name in ("label", "labels", "target", "text")
        )
        if columns_of(table.schema) is ANNOTATED_COLUMNS:
            tally.annotations.add(written)
        self._num_damaged += pc.count(written["reason"]).as_py()
        marks = "".join(pc.utf8_slice_codeunits(written["original_sha256"], 0, 16).to_pylist())
        self._marks.append(np.frombuffer(bytes.fromhex(marks), ">u8").astype(np.uint64))
        self._places.append(list(self._splits).index(split))
        self._original_bytes += pc.sum(written["original_bytes"]).as_py() or 0
        if self.spec.fixed_size is not None:
            sizes = Counter(
                zip(
                    written["original_height"].to_pylist(),
                    written["original_width"].to_pylist(),
                    strict=True,
                )
            )
            for size in sizes.keys() - self._are_enlarged.keys():
                fitted = fitted_size(*size, self.spec)
                self._are_enlarged[size] = math.prod(fitted) > math.prod(size)
            self._num_enlarged += sum(
                count for size, count in sizes.items() if self._are_enlarged[size]
            )

    def splits(self, labels: Sequence[str]) -> dict[str, Split]:
        """Return the splits, in the order in which their first shards came."""
        return {
            name: Split(
                num_records=sum(shard.num_records for shard in tally.shards),
                num_bytes=sum(shard.num_bytes for shard in tally.shards),
                label_counts={label: tally.labels[i] for i, label in enumerate(labels)},
                num_unlabelled=tally.num_unlabelled,
                shards=tuple(tally.shards),
            )
            for name, tally in self._splits.items()
        }

    def annotations(self, schema: Schema) -> dict[str, AnnotationCounts]:
        """Return the counts of objects and masks by split; none where a schema has neither."""
        if not schema.annotations:
            return {}
        return {name: tally.annotations.counts(schema) for name, tally in self._splits.items()}

    def totals(self, skipped: Counter[str]) -> Totals:
        """Return the totals; `skipped` counts the inputs that never became items, by reason."""
        num_copies, num_leaks = self._copies()
        shards = [shard for tally in self._splits.values() for shard in tally.shards]
        num_written = sum(shard.num_records for shard in shards)
        return Totals(
            num_inputs=num_written + self._rejected.total() + skipped.total(),
            num_written=num_written,
            num_rejected=self._rejected.total(),
            num_skipped=skipped.total(),
            rejected=dict(sorted(self._rejected.items())),
            skipped=dict(sorted(skipped.items())),
            num_copies=num_copies,
            num_leaks=num_leaks,
            num_damaged=self._num_damaged,
            num_enlarged=self._num_enlarged,
            original_bytes=self._original_bytes,
            num_bytes=sum(shard.num_bytes for shard in shards),
        )

    def _copies(self) -> tuple[int, int]:
        """Return the number of originals that are copies, and of those in another split too."""
        marks = np.concatenate(self._marks)
        places = np.repeat(self._places, [len(marks) for marks in self._marks])
        order = np.lexsort((places, marks))
        same = marks[order][1:] == marks[order][:-1]
        apart = places[order][1:] != places[order][:-1]
        return int(same.sum()), int((same & apart).sum())
