"""Columns of a dataset's records and left-out inputs, read from its documents, not its shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table, tally
from shardprep.dataset.describe import most_frequent
from shardprep.dataset.folder import COPY_AGAIN, ITEMS_FILE
from shardprep.dataset.item_table import (
    TARGET_COLUMNS,
    ItemFile,
    ItemView,
    target_text,
    target_texts,
)
from shardprep.dataset.leak_check import kept_rank
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import LABEL, LABELS, TARGET_IMAGE, Schema
from shardprep.errors import DatasetError, counted

if TYPE_CHECKING:
    from shardprep.reader.selection.selection import Selection
    from shardprep.reader.selection.split_argument import AnySplit

Ints = np.ndarray[Any, np.dtype[np.int64]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]

STATUSES = (item_table.WRITTEN, item_table.REJECTED, item_table.SKIPPED)
_LARGEST = (1 << 31) - 1
"""Maximum of sizes in pixels or bytes, so that width × height fits 64 bits."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Location and target of a record."""

    key: str
    split: str
    record: int
    """Index in its split: `reader.Dataset(path, split)[record]`."""
    shard: str
    shard_record: int
    label: str
    """Target as text: class names, a number or a text; "" without a target."""

    @property
    def title(self) -> str:
        """Caption of the record's picture: the target, if it has one, and the key."""
        return f"{self.label}: {self.key}" if self.label else self.key


@dataclass(frozen=True, slots=True)
class Scope:
    """The split or selection that a report covers."""

    selection: Selection
    whole: Manifest

    @property
    def title(self) -> str:
        total = sum(one.num_records for one in self.whole.splits.values())
        return f"{self.selection.name}: {len(self.selection):,} of {counted(total, 'record')}"


@dataclass(frozen=True)
class Contents:
    """Columns of the records of a dataset or of a scope, by record number."""

    dataset: OpenDataset
    manifest: Manifest
    """Manifest of the dataset, or the excerpt for the scope."""
    items: ItemFile
    status: np.ndarray[Any, np.dtype[np.int8]]
    """Index into `STATUSES` for each row of the item table; an unknown status counts as skipped."""
    written: ItemView
    """Rows of the records, in record order."""
    others: ItemView
    scope: Scope | None = None

    def __len__(self) -> int:
        return len(self.written)

    @property
    def schema(self) -> Schema:
        return self.dataset.schema

    @property
    def mark(self) -> str:
        """Cache key of these records: the manifest's SHA-256, and a hash of the scope."""
        sign = self.manifest.sha256
        if self.scope is not None:
            sign += f" {hashlib.sha256(self.scope.selection.numbers.tobytes()).hexdigest()}"
        return sign

    def anew(self) -> Contents:
        return replace(self, written=self.written.anew(), others=self.others.anew())

    @cached_property
    def left_out(self) -> pa.Table:
        names = ("key", "status", "kind", "reason")
        return pa.table({name: self.others.read(name) for name in names})

    @cached_property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.manifest.splits)

    @cached_property
    def split(self) -> Ints:
        """Index into `splits` for each record."""
        counts = [one.num_records for one in self.manifest.splits.values()]
        return np.repeat(np.arange(len(counts)), counts)

    def key(self, number: int) -> str:
        return self.written.value("key", number) or ""

    @cached_property
    def classes(self) -> list[list[int]]:
        if self.schema.target != LABELS:
            return [[one] if one >= 0 else [] for one in self.label.tolist()]
        there = range(len(self.schema.labels))
        lists = self.written["labels"].to_pylist()
        return [[label for label in one or () if label in there] for one in lists]

    @cached_property
    def label(self) -> Ints:
        """Class number of each record, −1 if unlabelled; all −1 if the target is not one class."""
        if self.schema.target != LABEL:
            return np.full(len(self), -1)
        labels = _whole(self.written.read("label"), -1)
        labels[(labels < 0) | (labels >= len(self.schema.labels))] = -1
        return labels

    @cached_property
    def target_codes(self) -> Ints:
        """A code for each record: equal codes mean equal targets, −1 means no target."""
        target = self.schema.target
        if self.schema.target_lists:
            rows = pa.table({name: self.written[name] for name in TARGET_COLUMNS.names})
            return _codes(pa.chunked_array([target_texts(self.schema, rows)]))
        if target is None or target == LABEL:
            return self.label
        values = self.written[target]
        if target == LABELS:
            texts = [" ".join(map(str, one)) if one else None for one in values.to_pylist()]
            values = pa.chunked_array([pa.array(texts, pa.string())])
        return _codes(values)

    @cached_property
    def is_spared(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each record is an unlabelled image outside train, which a submission needs."""
        schema, spared = self.schema, np.zeros(len(self), bool)
        annotations = schema.annotations.keys() - {TARGET_IMAGE}
        if schema.has_target or annotations:
            spared = np.array([name != "train" for name in self.splits], bool)[self.split]
        if schema.has_target:
            spared &= self.target_codes < 0
        if annotations:
            spared &= _whole(self.written.read("num_objects"), 0) == 0
            masks = self.written.read("mask_pixels").combine_chunks()
            spared &= np.diff(masks.offsets.to_numpy()) == 0
        return spared

    @cached_property
    def original_codes(self) -> Ints:
        """A code for each record: equal codes mean equal original bytes, −1 means unknown."""
        # Encode all rows, then select: selecting first would copy 70 MB for a million hashes.
        return _codes(self.items.column("original_sha256"))[self.written.numbers]

    @cached_property
    def height(self) -> Ints:
        """Height of each original in pixels, 0 if unknown."""
        return _measure(self.written.read("original_height"))

    @cached_property
    def width(self) -> Ints:
        """Width of each original in pixels, 0 if unknown."""
        return _measure(self.written.read("original_width"))

    @cached_property
    def original_bytes(self) -> Ints:
        """Size of each original in bytes, 0 if unknown."""
        return _measure(self.written.read("original_bytes"))

    @cached_property
    def formats(self) -> dict[str, int]:
        texts = self.written["original_format"].cast("string")
        return most_frequent(pc.if_else(pc.equal(pc.fill_null(texts, ""), ""), "unknown", texts))

    def place(self, number: int) -> RecordPlace:
        from shardprep.reader.records.records import Places

        manifest, record = self.manifest, number
        if self.scope is not None:
            manifest, record = self.scope.whole, int(self.scope.selection.numbers[number])
        places = Places.of(manifest, np.array([record]))
        split = self.splits[self.split[number]]
        names = [*manifest.splits]
        before = [manifest.splits[one].num_records for one in names[: names.index(split)]]
        return RecordPlace(
            key=self.key(number),
            split=split,
            record=record - sum(before),
            shard=places.shards[0].name,
            shard_record=int(places.record[0]),
            label=self.target_text(number),
        )

    def target_text(self, number: int) -> str:
        names, target = self.schema.labels, self.schema.target
        if self.schema.target_lists:
            values = (self.written.value(name, number) for name in TARGET_COLUMNS.names)
            return target_text(self.schema, *values) or ""
        if target == LABEL:
            label = int(self.label[number])
            return names[label] if label >= 0 else ""
        value = self.written.value(target, number) if target else None
        if target == LABELS:
            return ", ".join(names[one] for one in value or () if 0 <= one < len(names))
        if value is None:
            return ""
        return f"{value:g}" if isinstance(value, float) else str(value)

    def keys_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        wanted = self.written["key"].take(pa.array(numbers, pa.int64()))
        return tuple(key or "" for key in wanted.to_pylist())

    def kept_of(self, group: Iterable[int]) -> int:
        """Return the record of a group of copies that `--dedup` keeps."""
        return min(group, key=lambda i: (kept_rank(self.splits[self.split[i]]), self.key(i)))


def read_contents(dataset: OpenDataset, split: AnySplit | None = None) -> Contents:
    """Return the columns of the records of `split`; if None, of all records and left-out inputs.

    DatasetError if the rows of the item table differ from the records in the manifest.
    """
    manifest, items = dataset.manifest, dataset.item_file()
    words, known = coded(items.column("status"))
    places = [STATUSES.index(one) if one in STATUSES else len(STATUSES) - 1 for one in known]
    status = np.array(places, np.int8)[words]
    written, others = ItemView(items, status == 0), ItemView(items, status != 0)
    codes, names = coded(written.read("shard"))
    starts = np.flatnonzero(np.diff(codes, prepend=-2))
    counts = np.diff(starts, append=len(codes)).tolist()
    runs = [(names[code], count) for code, count in zip(codes[starts], counts, strict=True)]
    expected = [(one.name, one.num_records) for one in manifest.shards.values() if one.num_records]
    if runs != expected:
        what = "its rows differ from the records in the manifest"
        raise DatasetError(f"{dataset}/{ITEMS_FILE}", what, COPY_AGAIN)
    contents = Contents(dataset, manifest, items, status, written, others)
    return contents if split is None else _narrowed(contents, split)


def _narrowed(contents: Contents, split: AnySplit) -> Contents:
    from shardprep.reader.selection.split_argument import as_selection

    manifest, schema, items = contents.manifest, contents.schema, contents.items
    selection = as_selection(manifest, split)
    is_of = np.zeros(len(contents.status), bool)
    is_of[contents.written.numbers[selection.numbers]] = True
    written = ItemView(items, is_of)
    rows = pa.table({name: written.read(name) for name in tally.counted_columns(schema)})
    return replace(
        contents,
        manifest=tally.excerpt(manifest, schema, rows),
        written=written,
        others=ItemView(items, np.zeros(len(is_of), bool)),
        scope=Scope(selection, manifest),
    )


def coded(words: pa.ChunkedArray) -> tuple[Ints, list[str | None]]:
    """Return the codes of a dictionary column, −1 for null, and its values followed by None."""
    found = words.unify_dictionaries().combine_chunks()
    return pc.fill_null(found.indices, -1).to_numpy(), [*found.dictionary.to_pylist(), None]


def _codes(values: pa.ChunkedArray) -> Ints:
    # Sort instead of dictionary encoding, which takes 200 MB for a million hashes.
    order = pc.sort_indices(values)
    ranked = values.take(order)
    is_next = pc.fill_null(pc.not_equal(ranked[1:], ranked[:-1]), False)  # noqa: FBT003 - of pyarrow
    ranks = np.concatenate([np.zeros(len(values[:1]), np.int64), np.cumsum(is_next.to_numpy())])
    ranks[pc.is_null(ranked).to_numpy()] = -1
    codes = np.empty(len(values), np.int64)
    codes[order.to_numpy()] = ranks
    return codes


def _measure(column: pa.ChunkedArray) -> Ints:
    return np.clip(_whole(column, 0), 0, _LARGEST)


def _whole(column: pa.ChunkedArray, nothing: int) -> Ints:
    found: Ints = pc.fill_null(column, nothing).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)
