"""The differences of two datasets, item by item, from their manifests and item tables alone.

Items are told apart by their keys, targets by the names of their classes, originals by their
SHA-256. No shard is opened.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table
from shardprep.dataset.card import Card
from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE
from shardprep.dataset.item_changes import (
    change_table,
    differ,
    first_changes,
    num_by_kind,
    places_of,
    rows_of,
)
from shardprep.dataset.manifest import fingerprint_differences
from shardprep.dataset.remote import RemoteDataset, described, documents_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema

    Mask = np.ndarray[Any, np.dtype[np.bool_]]

ADDED, REMOVED, SPLIT = "added", "removed", "split"
TARGET, SOURCE, RECORD = "target", "source", "record"
MEANINGS = {
    ADDED: "written in the second alone",
    REMOVED: "written in the first alone",
    SPLIT: "in another split",
    TARGET: "with another target",
    SOURCE: "made of other bytes of the source",
    RECORD: "of the same bytes, stored as a record of another length",
}
"""Kind of change → its meaning; the order of reports."""

_COLUMNS = (
    "key", "status", "kind", "reason", "split", "length",
    "label", "labels", "target", "text", "original_sha256",
)  # fmt: skip
_BETWEEN = "\x1f"
"""Separator of class names, which is in no name of a person's making."""


class Change(NamedTuple):
    """A change of one item."""

    key: str
    """The item."""
    kind: Literal["added", "removed", "split", "target", "source", "record"]
    """Only in the second dataset, only in the first, in another split, with another target, made
    of other bytes of the source, or stored as a record of another length."""
    before: str
    """Split, target, SHA-256 of the original or bytes of the record in the first dataset; why it
    is not written, or "" where it is no input."""
    after: str
    """The same of the second."""


@dataclass(frozen=True, slots=True, repr=False)
class Difference(Card):
    """The differences of two datasets. Where their records differ, the command exits with 3."""

    before: str
    """The first dataset: a folder, or an address in object storage."""
    after: str
    """The second."""
    is_equal: bool
    """Both have the same features, classes, splits and shards, byte for byte."""
    num_before: int
    """Records of the first."""
    num_after: int
    """Records of the second."""
    num_same: int
    """Items that are written in both and have no change of their own."""
    recipe: tuple[str, ...]
    """Options, versions and inputs that differ, in words: "quality (90, now 95)"."""
    features: tuple[str, ...]
    """Features of the examples that differ, in words."""
    classes_added: tuple[str, ...]
    """Class names of the second alone."""
    classes_removed: tuple[str, ...]
    """Class names of the first alone."""
    num_changes: dict[str, int]
    """Changes by kind; a kind without one is there with 0."""
    changes: Annotated[pa.Table, list[Change]]
    """Each change, by kind, then in the order of the dataset; in Python a table of them."""

    def facts(self) -> dict[str, Any]:
        """Return both datasets, and changes by kind."""
        found: dict[str, Any] = {
            "before": self.before,
            "after": self.after,
            "records": f"{self.num_before:,} before, {self.num_after:,} after",
            "same": "every record" if self.is_equal else f"{self.num_same:,} items",
            "changes": {kind: number for kind, number in self.num_changes.items() if number},
            "features": self.features,
            "classes added": self.classes_added,
            "classes removed": self.classes_removed,
            "recipe": self.recipe,
        }
        return {title: value for title, value in found.items() if value}

    def some(self, kind: str, number: int) -> list[Change]:
        """Return the first changes of a kind."""
        return [Change(**row) for row in first_changes(self.changes, kind, number)]  # type: ignore[arg-type]


class _Side(NamedTuple):
    """One of two datasets."""

    manifest: Manifest
    schema: Schema
    table: pa.Table
    """All its inputs; `target` in words."""


def compare(before: Path | RemoteDataset, after: Path | RemoteDataset) -> Difference:
    """Return the differences between two datasets.

    Raises:
        DatasetError: a document of one of them is missing or damaged.
        StorageError: object storage does not answer, or refuses.

    """
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(_side, (before, after))
    changes = pa.concat_tables(_changes(one.table, two.table))
    counts = num_by_kind(changes, MEANINGS)
    classes, classes_now = one.manifest.labels.names, two.manifest.labels.names
    features = tuple(feature_differences(one.schema, two.schema))
    num_before, num_after = (
        sum(split.num_records for split in side.manifest.splits.values()) for side in (one, two)
    )
    num_common = num_before - counts[REMOVED]
    return Difference(
        before=str(before),
        after=str(after),
        is_equal=not features and classes == classes_now and _shards(one) == _shards(two),
        num_before=num_before,
        num_after=num_after,
        num_same=num_common - _num_changed(changes),
        recipe=tuple(fingerprint_differences(one.manifest.fingerprint, two.manifest.fingerprint)),
        features=features,
        classes_added=tuple(name for name in classes_now if name not in {*classes}),
        classes_removed=tuple(name for name in classes if name not in {*classes_now}),
        num_changes=counts,
        changes=changes,
    )


def _side(found: Path | RemoteDataset) -> _Side:
    manifest, schema = described(found)
    with documents_of(found, manifest, (SCHEMA_FILE, ITEMS_FILE)) as folder:
        table = item_table.read_items(folder / ITEMS_FILE, _COLUMNS)
    for name in ("status", "kind", "split"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast("string"))
    place = table.schema.get_field_index("target")
    return _Side(manifest, schema, table.set_column(place, "target", _targets(table, manifest)))


def _targets(table: pa.Table, manifest: Manifest) -> pa.ChunkedArray:
    """Return the target of each item in words, null where there is none."""
    names = pa.array(manifest.labels.names, pa.string())
    known = pc.if_else(pc.greater_equal(table["label"], 0), table["label"], None)
    label = pc.take(names, known)
    lists = table["labels"].combine_chunks()
    named = pa.ListArray.from_arrays(
        lists.offsets, pc.take(names, lists.values), mask=lists.is_null() if len(lists) else None
    )
    return pc.coalesce(
        label,
        table["text"],
        pc.cast(table["target"], pa.string()),
        pc.binary_join(named, _BETWEEN),
    )


def _shards(side: _Side) -> dict[str, list[str]]:
    splits = side.manifest.splits
    return {name: [shard.sha256 for shard in split.shards] for name, split in splits.items()}


def feature_differences(one: Schema, two: Schema) -> list[str]:
    """Return the differences of the features of two schemas, in words."""
    found = [f"{name} is gone" for name in one.features if name not in two.features]
    found += [f"{name} is new" for name in two.features if name not in one.features]
    for name, feature in one.features.items():
        other = two.features.get(name)
        if other is None:
            continue
        before, after = feature.model_dump(exclude={"doc"}), other.model_dump(exclude={"doc"})
        found += [
            f"{name}: {key} {_words(before.get(key))}, now {_words(after.get(key))}"
            for key in before.keys() | after.keys()
            if before.get(key) != after.get(key)
        ]
    return sorted(found)


def _words(value: object) -> str:
    if isinstance(value, tuple):
        between = "x" if any(isinstance(one, int) for one in value) else ", "
        return between.join("?" if one is None else str(one) for one in value) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _changes(one: pa.Table, two: pa.Table) -> list[pa.Table]:
    """Return the changes of each kind, in the order of `MEANINGS`."""
    one_there, two_there = _is_written(one), _is_written(two)
    in_two = places_of(one["key"], two["key"], two_there)
    is_common = one_there & (in_two >= 0)
    removed, common = np.flatnonzero(one_there & ~is_common), np.flatnonzero(is_common)
    is_new = two_there.copy()
    is_new[in_two[common]] = False
    added = np.flatnonzero(is_new)
    aspects = {SPLIT: "split", TARGET: "target", SOURCE: "original_sha256", RECORD: "length"}
    is_other = {
        kind: differ(rows_of(one[column], common), rows_of(two[column], in_two[common]))
        for kind, column in aspects.items()
    }
    is_other[RECORD] &= ~(is_other[SOURCE] | is_other[TARGET])
    appeared, gone = two.take(added), one.take(removed)
    found = [
        change_table(ADDED, appeared["key"], _outcome(appeared["key"], one), appeared["split"]),
        change_table(REMOVED, gone["key"], gone["split"], _outcome(gone["key"], two)),
    ]
    for kind, column in aspects.items():
        rows = common[is_other[kind]]
        before, after = one[column].take(rows), two[column].take(in_two[rows])
        found.append(change_table(kind, one["key"].take(rows), _text(before), _text(after)))
    return found


def _is_written(table: pa.Table) -> Mask:
    return np.asarray(pc.equal(table["status"], item_table.WRITTEN))


def _outcome(keys: pa.ChunkedArray, other: pa.Table) -> pa.Array:
    """Return the reasons for which another dataset does not have some items, "" for no item."""
    places = pc.index_in(keys.combine_chunks(), other["key"])
    status, reason = (
        pc.fill_null(other[name].combine_chunks().take(places), "") for name in ("status", "reason")
    )
    said = pc.binary_join_element_wise(status, reason, ": ")
    return pc.if_else(pc.equal(reason, ""), status, said)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = pc.fill_null(pc.cast(column, pa.string()), "")
    return pc.replace_substring(text, _BETWEEN, ", ")


def _num_changed(changes: pa.Table) -> int:
    """Return the number of items of both datasets that have a change."""
    inside = pc.is_in(changes["kind"], pa.array([SPLIT, TARGET, SOURCE, RECORD]))
    return len(pc.unique(changes.filter(inside)["key"]))
