"""Records and left-out inputs of a dataset, by its documents; no shard is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table
from shardprep.dataset.folder import COPY_AGAIN, ITEMS_FILE, SCHEMA_FILE
from shardprep.dataset.remote import described, documents_of
from shardprep.dataset.schema import LABEL, LABELS
from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.dataset.schema import Schema

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Numbers = np.ndarray[Any, np.dtype[np.float64]]

_COLUMNS = (
    "key", "status", "kind", "reason", "shard", "label", "labels", "target", "text",
    "original_width", "original_height", "original_format", "original_bytes", "original_sha256",
)  # fmt: skip
_ANNOTATED = ("num_objects", "num_dropped", "mask_pixels")
"""Columns that tables of datasets with boxes or masks have besides."""
_KEPT_FIRST = ("test", "validation", "train")
"""Splits in the order in which a copy is kept there: sets for evaluation stay whole, as with
`--dedup`."""


_LARGEST = (1 << 31) - 1
"""Pixels or bytes above which a size is not told apart."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """A record as a person finds it."""

    key: str
    split: str
    record: int
    """Number in its split: `reader.Dataset(path, split)[record]`."""
    shard: str
    """File name of its shard."""
    shard_record: int
    """Number in its shard."""
    label: str
    """Target in words: class names, a number or a text; "" where there is none."""


@dataclass(frozen=True)
class Contents:
    """The records of a dataset by number, through its splits, shards and their records."""

    manifest: Manifest
    schema: Schema
    written: pa.Table
    """Rows of the records, in their order."""
    left_out: pa.Table
    """Rows of rejected and skipped inputs."""

    def __len__(self) -> int:
        return len(self.written)

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self.manifest.splits)

    @cached_property
    def split(self) -> Ints:
        """Position in `splits` of each record."""
        counts = [one.num_records for one in self.manifest.splits.values()]
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def keys(self) -> list[str]:
        """Key of each record."""
        return [key or "" for key in self.written["key"].to_pylist()]

    @cached_property
    def classes(self) -> list[list[int]]:
        """Class numbers of each record: one, several or none."""
        if self.schema.target != LABELS:
            return [[one] if one >= 0 else [] for one in self.label.tolist()]
        there = range(len(self.schema.labels))
        lists = self.written["labels"].to_pylist()
        return [[label for label in one or () if label in there] for one in lists]

    @cached_property
    def label(self) -> Ints:
        """Class number of each record, −1 for none and in sets without single classes."""
        if self.schema.target != LABEL:
            return np.full(len(self), -1)
        found = _whole(self.written["label"], -1)
        found[(found < 0) | (found >= len(self.schema.labels))] = -1
        return found

    @cached_property
    def target_codes(self) -> Ints:
        """A number for each record, equal where the targets are, −1 where there is none."""
        target = self.schema.target
        if target is None or target == LABEL:
            return self.label
        values = self.written[target]
        if target == LABELS:
            texts = [" ".join(map(str, one)) if one else None for one in values.to_pylist()]
            values = pa.chunked_array([pa.array(texts, pa.string())])
        return _codes(values)

    @cached_property
    def original_codes(self) -> Ints:
        """A number for each record, equal where the bytes of the originals are."""
        return _codes(self.written["original_sha256"])

    @cached_property
    def height(self) -> Ints:
        """Height of each original in pixels, 0 where it is not known."""
        return _measure(self.written["original_height"])

    @cached_property
    def width(self) -> Ints:
        """Width of each original in pixels, 0 where it is not known."""
        return _measure(self.written["original_width"])

    @cached_property
    def original_bytes(self) -> Ints:
        """Size of each original in bytes, 0 where it is not known."""
        return _measure(self.written["original_bytes"])

    @cached_property
    def formats(self) -> dict[str, int]:
        """Records by the format of their originals, the most frequent first."""
        pairs = pc.value_counts(self.written["original_format"].cast("string")).to_pylist()
        counts = {one["values"] or "unknown": one["counts"] for one in pairs}
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))

    def place(self, number: int) -> RecordPlace:
        """Return a record as a person finds it."""
        shards = [*self.manifest.shards.values()]
        shard = int(np.searchsorted(self._shard_ends, number, "right"))
        split = int(self.split[number])
        before = int(np.searchsorted(self.split, split))
        return RecordPlace(
            self.keys[number],
            self.splits[split],
            number - before,
            shards[shard].name,
            number - int(self._shard_ends[shard]) + shards[shard].num_records,
            self.target_text(number),
        )

    @cached_property
    def _shard_ends(self) -> Ints:
        return np.cumsum([one.num_records for one in self.manifest.shards.values()])

    def target_text(self, number: int) -> str:
        """Return the target of a record in words, "" where it has none."""
        names, target = self.schema.labels, self.schema.target
        if target in (LABEL, LABELS):
            return ", ".join(names[one] for one in self.classes[number])
        value = self.written[target][number].as_py() if target else None
        if value is None:
            return ""
        return f"{value:g}" if isinstance(value, float) else str(value)

    def keys_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Return the keys of some records."""
        return tuple(self.keys[number] for number in numbers)

    def kept_of(self, group: Iterable[int]) -> int:
        """Return the record of a group that stays where the others are left out, as by `--dedup`.

        One of the test or validation set if there is one, else of train; then the first by key.
        """
        return min(group, key=self._rank)

    def _rank(self, number: int) -> tuple[int, str]:
        split = self.splits[self.split[number]]
        place = _KEPT_FIRST.index(split) if split in _KEPT_FIRST else 0
        return place, self.keys[number]


def read_contents(dataset: Path | RemoteDataset) -> Contents:
    """Return what the documents say.

    Raises:
        DatasetError: one is missing, damaged, or contradicts another.

    """
    manifest, schema = described(dataset)
    path = documents_of(dataset, (SCHEMA_FILE, ITEMS_FILE)) / ITEMS_FILE
    columns = (*_COLUMNS, *(_ANNOTATED if schema.annotations else ()))
    table = item_table.read_items(path, columns)
    is_written = pc.equal(table["status"].cast("string"), item_table.WRITTEN)
    written = table.filter(is_written)
    runs = pc.run_end_encode(written["shard"].cast("string").combine_chunks())
    ends = [0, *runs.run_ends.to_pylist()]
    counts = [last - first for first, last in pairwise(ends)]
    expected = [(one.name, one.num_records) for one in manifest.shards.values() if one.num_records]
    if list(zip(runs.values.to_pylist(), counts, strict=True)) != expected:
        what = "its rows are not the records that the manifest says"
        raise DatasetError(f"{dataset}/{ITEMS_FILE}", what, COPY_AGAIN)
    return Contents(manifest, schema, written, table.filter(pc.invert(is_written)))


def _codes(values: pa.ChunkedArray) -> Ints:
    """Return a number for each value, equal for equal ones, −1 for none."""
    if not len(values):
        return np.empty(0, np.int64)
    return _whole(values.combine_chunks().dictionary_encode().indices, -1)


def _measure(column: pa.ChunkedArray) -> Ints:
    """Return sizes, 0 for none, none so large that a product of two could pass 64 bits."""
    return np.clip(_whole(column, 0), 0, _LARGEST)


def _whole(column: pa.ChunkedArray, nothing: int) -> Ints:
    found: Ints = pc.fill_null(column, nothing).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)
