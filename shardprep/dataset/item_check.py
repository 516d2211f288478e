"""Checks of an item table before its numbers are used to count, to index and to copy.

A table that matches the SHA-256 in the manifest can still be wrong: both may have been changed.
Diff, repack and export check the table first. Report and view show it unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.folder import COPY_AGAIN, ITEMS_FILE
from shardprep.dataset.item_table import REJECTED, SKIPPED, WRITTEN, rows_by_shard, with_status
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX_LABEL, TARGET_FEATURES, Schema
from shardprep.errors import DatasetError, counted

_COUNTS = (
    "record", "offset", "length", "original_width", "original_height", "original_bytes",
    "num_objects", "num_dropped", "num_clipped",
)  # fmt: skip
_MOST = 1 << 62
"""The sum of a column must be less than this, like each `Count` of a manifest."""


def check_items(dataset: OpenDataset, table: pa.Table) -> None:
    """Raise DatasetError if a value is impossible, or contradicts the manifest or the schema."""
    check_values(dataset, table)
    for what in (
        *_other_kinds(table),
        *_other_targets(table, dataset.schema),
        *_other_records(table, dataset.manifest),
    ):
        raise _error(dataset, what)


def check_values(dataset: OpenDataset, table: pa.Table) -> None:
    """Raise DatasetError if a number is out of range, or a key or status is not valid."""
    for what in (*_wrong_numbers(table, dataset.manifest, dataset.schema), *_wrong_texts(table)):
        raise _error(dataset, what)


def _error(dataset: OpenDataset, what: str) -> DatasetError:
    return DatasetError(f"{dataset}/{ITEMS_FILE}", what, COPY_AGAIN)


def _wrong_numbers(table: pa.Table, manifest: Manifest, schema: Schema) -> Iterator[str]:
    names = {*table.column_names}
    classes = len(manifest.labels.names)
    of_objects = len(schema.features[BOX_LABEL].labels) if BOX_LABEL in schema.features else 0
    of_columns = [len(schema.features[name].labels) for name in schema.class_features]
    ranges: dict[str, tuple[int, int | None]] = {
        **dict.fromkeys(_COUNTS, (0, None)),
        "label": (-1, classes),
        "labels": (0, classes),
        "object_labels": (0, of_objects),
        "classes": (-1, max(of_columns, default=0)),
    }
    for name in names & ranges.keys():
        yield from _outside(table, name, *ranges[name])
    for name in names & {"dropped", "mask_pixels"}:
        values = table[name].combine_chunks().items
        if len(values) and (values.null_count or pc.min(values).as_py() < 0):
            yield f"has a number in {name!r} that is negative or missing"


def _wrong_texts(table: pa.Table) -> Iterator[str]:
    names = {*table.column_names}
    if "key" in names and table["key"].null_count:
        yield "has a row without a key"
    if "status" in names:
        known = {WRITTEN, REJECTED, SKIPPED}
        if {*table["status"].cast("string").unique().to_pylist()} - known:
            yield f"has a status other than {', '.join(sorted(known))}"


def _outside(table: pa.Table, name: str, first: int, number: int | None) -> Iterator[str]:
    values = table[name].combine_chunks()
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
        if values.null_count:
            yield f"has an empty value in {name!r}"
    low, high = pc.min_max(values).as_py().values()
    if low is not None and low < first:
        yield f"has {low:,} in {name!r}, which is less than {first}"
    if number is None and (pc.sum(pc.cast(values, "float64", safe=False)).as_py() or 0) >= _MOST:
        yield f"has numbers in {name!r} whose sum is beyond 62 bits"
    if number is not None and high is not None and high >= number:
        yield f"has {high:,} in {name!r}, but there are {number:,} classes"


def _other_kinds(table: pa.Table) -> Iterator[str]:
    if "kind" in table.column_names:
        written, rejected = (with_status(table, one)["kind"] for one in (WRITTEN, REJECTED))
        if written.null_count < len(written) or rejected.null_count:
            yield "has a written image with a kind of rejection, or a rejected image without one"


def _other_targets(table: pa.Table, schema: Schema) -> Iterator[str]:
    for name in sorted({*table.column_names} & {*TARGET_FEATURES.values()} - {schema.target}):
        if table[name].null_count < len(table):
            yield f"has a value in {name!r}, which is not the target of the schema"


def _other_records(table: pa.Table, manifest: Manifest) -> Iterator[str]:
    written = with_status(table, WRITTEN)
    rows = rows_by_shard(written)
    for split_name, split in manifest.splits.items():
        for shard in split.shards:
            own = rows.pop(shard.name, None)
            number = 0 if own is None else len(own)
            if number != shard.num_records:
                yield f"has {counted(number, 'record')} in {shard.name}, not {shard.num_records:,}"
            if own is None:
                continue
            if {*own["split"].cast("string").unique().to_pylist()} != {split_name}:
                yield f"has records in {shard.name} that are of another split than {split_name}"
            if "record" in own.column_names and own["record"].to_pylist() != [*range(number)]:
                yield f"does not number the records of {shard.name} 0, 1, 2 …"
    if rows or written["shard"].null_count:
        yield "has records in shards that the manifest does not name"
