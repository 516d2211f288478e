"""The differences between two datasets.

Items are matched by key. Targets are compared by class name, originals by SHA-256. Two records are
read only if the item tables cannot decide: both datasets have boxes, masks or table columns, or
both records have the same length. Records of equal shards are read only if the class names of
objects or masks differ.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table
from shardprep.dataset.card import Card
from shardprep.dataset.folder import COPY_AGAIN, ITEMS_FILE
from shardprep.dataset.item_check import check_values
from shardprep.dataset.item_table import TARGET_COLUMNS, target_texts
from shardprep.dataset.leak_check import leak_check_differences
from shardprep.dataset.manifest import fingerprint_differences
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.record_changes import (
    FEATURE,
    MASK_PIXELS,
    RECORD,
    ComparedSide,
    has_only_images,
    has_other_classes,
    record_changes,
)
from shardprep.dataset.schema import OBJECTS, Schema
from shardprep.errors import DatasetError, counted

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


ADDED, REMOVED, SPLIT = "added", "removed", "split"
TARGET, SOURCE = "target", "source"
MEANINGS = {
    ADDED: "written in the second alone",
    REMOVED: "written in the first alone",
    SPLIT: "in another split",
    TARGET: "with another target",
    OBJECTS: "with other boxes, outlines or classes of objects in the stored image",
    MASK_PIXELS: "with another mask",
    FEATURE: "with another value of a further feature",
    SOURCE: "made of other bytes of the source",
    RECORD: "from the same bytes and target, but stored with another size, fit or encoding",
}

_COLUMNS = (
    "key", "status", "kind", "reason", "split", "shard", "offset", "length",
    "label", "labels", "target", "text", "original_sha256",
)  # fmt: skip
_ASPECTS = {SPLIT: "split", TARGET: "target", SOURCE: "original_sha256"}
_BETWEEN = "\x1f"
"""Separator of class names; no class name contains it."""


class ItemChange(NamedTuple):
    """A change of one item."""

    key: str
    kind: Literal[
        "added", "removed", "split", "target", "objects", "mask", "feature", "source", "record"
    ]
    """`added`: written only in the second dataset. `removed`: written only in the first. `source`:
    made from other bytes. `record`: same bytes and target, but stored with another size, fit or
    encoding. For the other kinds, the split, target, objects, mask or a further feature differs."""
    before: str
    """Value in the first dataset: split, target, objects that the second lacks, pixels of classes,
    value of the feature, SHA-256 of the original, or length of the record in bytes. If the item was
    not written: its status and the reason, or "" if it is not an input."""
    after: str
    """Value in the second dataset, as in `before`."""


@dataclass(frozen=True, slots=True, repr=False)
class Difference(Card):
    """The differences between two datasets. The command exits with 3 unless they are equal."""

    before: str
    """The first dataset: a folder, or an address in object storage."""
    after: str
    """The second dataset: a folder, or an address in object storage."""
    is_equal: bool
    """True if both have the same features, classes and splits, and shards with the same bytes."""
    num_before: int
    """Number of records of the first dataset."""
    num_after: int
    """Number of records of the second dataset."""
    num_same: int
    """Number of items that are written in both and did not change."""
    recipe: tuple[str, ...]
    """Options, versions and inputs that differ, in words: "quality (90, now 95)"."""
    features: tuple[str, ...]
    """Differences between the features of the records, in words."""
    classes_added: tuple[str, ...]
    """Class names that only the second dataset has."""
    classes_removed: tuple[str, ...]
    """Class names that only the first dataset has."""
    num_changes: dict[str, int]
    """Number of changes by kind; 0 for kinds without a change."""
    changes: Annotated[pa.Table, list[ItemChange]]
    """All changes, sorted by kind, then in the order of the dataset; in Python a pyarrow table."""

    def facts(self) -> dict[str, Any]:
        lines: dict[str, Any] = {
            "before": self.before,
            "after": self.after,
            "records": f"{self.num_before:,} before, {self.num_after:,} after",
            "same": "every record" if self.is_equal else counted(self.num_same, "item"),
            "changes": {kind: number for kind, number in self.num_changes.items() if number},
            "features": self.features,
            "classes added": self.classes_added,
            "classes removed": self.classes_removed,
            "recipe": self.recipe,
        }
        return {title: value for title, value in lines.items() if value}

    def some(self, kind: str, number: int) -> list[ItemChange]:
        rows = self.changes.filter(pc.equal(self.changes["kind"], kind)).slice(0, number)
        return [ItemChange(**row) for row in rows.to_pylist()]


def compare(before: OpenDataset, after: OpenDataset) -> Difference:
    """Return the differences between two datasets; reads records only where necessary."""
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(_side, (before, after))
    changes = pa.concat_tables(_changes(one, two))
    counts = {kind: pc.sum(pc.equal(changes["kind"], kind)).as_py() or 0 for kind in MEANINGS}
    classes, classes_now = before.manifest.labels.names, after.manifest.labels.names
    features = tuple(feature_differences(before.schema, after.schema))
    num_before, num_after = (
        sum(split.num_records for split in side.manifest.splits.values())
        for side in (before, after)
    )
    is_apart = pc.is_in(changes["kind"], pa.array([ADDED, REMOVED]))
    changed = changes.filter(pc.invert(is_apart))["key"].unique()
    return Difference(
        before=str(before),
        after=str(after),
        is_equal=not features and classes == classes_now and _shards(before) == _shards(after),
        num_before=num_before,
        num_after=num_after,
        num_same=num_before - counts[REMOVED] - len(changed),
        recipe=(
            *fingerprint_differences(before.manifest.fingerprint, after.manifest.fingerprint),
            *leak_check_differences(before.manifest.leaks, after.manifest.leaks),
        ),
        features=features,
        classes_added=tuple(name for name in classes_now if name not in {*classes}),
        classes_removed=tuple(name for name in classes if name not in {*classes_now}),
        num_changes=counts,
        changes=changes,
    )


def _side(dataset: OpenDataset) -> ComparedSide:
    further = TARGET_COLUMNS.names if dataset.schema.target_lists else []
    table = dataset.item_rows((*_COLUMNS, *further))
    check_values(dataset, table)
    for name in ("status", "kind", "split", "shard"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast("string"))
    place = table.schema.get_field_index("target")
    compared = table.set_column(place, "target", _targets(table, dataset.schema))
    return ComparedSide(dataset, compared.drop_columns(further))


def _targets(table: pa.Table, schema: Schema) -> pa.ChunkedArray:
    names = pa.array(schema.labels, pa.string())
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
        target_texts(schema, table),
    )


def _shards(dataset: OpenDataset) -> dict[str, list[str]]:
    splits = dataset.manifest.splits
    return {name: [shard.sha256 for shard in split.shards] for name, split in splits.items()}


def feature_differences(one: Schema, two: Schema) -> list[str]:
    """Return the differences between the features of two schemas, in words."""
    differences = [f"{name} is gone" for name in one.features if name not in two.features]
    differences += [f"{name} is new" for name in two.features if name not in one.features]
    for name, feature in one.features.items():
        other = two.features.get(name)
        if other is None:
            continue
        before, after = feature.model_dump(exclude={"doc"}), other.model_dump(exclude={"doc"})
        differences += [
            f"{name}: {key} {_words(before.get(key))}, now {_words(after.get(key))}"
            for key in before.keys() | after.keys()
            if before.get(key) != after.get(key)
        ]
    return sorted(differences)


def _words(value: object) -> str:
    if isinstance(value, tuple):
        between = "x" if any(isinstance(one, int) for one in value) else ", "
        return between.join("?" if one is None else str(one) for one in value) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _changes(before: ComparedSide, after: ComparedSide) -> list[pa.Table]:
    one, two = before.table, after.table
    one_there, two_there = _is_written(one), _is_written(two)
    in_two = _places_of(one["key"], two["key"], two_there)
    is_common = one_there & (in_two >= 0)
    removed, common = np.flatnonzero(one_there & ~is_common), np.flatnonzero(is_common)
    is_new = two_there.copy()
    is_new[in_two[common]] = False
    appeared, gone = two.take(np.flatnonzero(is_new)), one.take(removed)
    by_kind = {
        ADDED: (appeared["key"], _outcome(appeared["key"], one), appeared["split"]),
        REMOVED: (gone["key"], gone["split"], _outcome(gone["key"], two)),
    }
    is_other = {}
    for kind, column in _ASPECTS.items():
        was, now = one[column].take(common), two[column].take(in_two[common])
        is_other[kind] = _differ(was, now)
        rows = np.flatnonzero(is_other[kind])
        key = one["key"].take(common[rows])
        by_kind[kind] = key, _text(was.take(rows)), _text(now.take(rows))
    is_same_item = ~(is_other[SOURCE] | is_other[TARGET])
    by_kind |= _changes_of_records(before, after, common, in_two[common], is_same_item)
    return [_change_table(kind, *by_kind[kind]) for kind in MEANINGS if kind in by_kind]


def _changes_of_records(
    before: ComparedSide, after: ComparedSide, rows: Rows, others: Rows, is_same_item: Mask
) -> dict[str, tuple[Any, Any, Any]]:
    """Return kind → columns `key`, `before` and `after` of the changes inside records.

    `rows` and `others` are the row numbers of the items that both tables have, in the first and in
    the second table. `is_same_item` is True for items with equal original and target.
    """
    sides = [_records(before, rows), _records(after, others)]
    keys, lengths = before.table["key"].take(rows), [side.table["length"] for side in sides]
    is_longer = _differ(*lengths)
    is_read = ~_are_in_equal_shards(*sides) | has_other_classes(*sides)
    if has_only_images(*sides):
        is_read &= is_same_item & ~is_longer
    read = np.flatnonzero(is_read)
    compared = [side._replace(table=side.table.take(read)) for side in sides]
    by_kind: dict[str, list[tuple[int, str, str]]] = {}
    for difference in record_changes(*compared):
        change = int(read[difference.number]), difference.before, difference.after
        by_kind.setdefault(difference.kind, []).append(change)
    is_stored_anew = is_longer & ~is_read if has_only_images(*sides) else np.zeros(len(rows), bool)
    is_stored_anew[[row for row, *_ in by_kind.pop(RECORD, ())]] = True
    stored = np.flatnonzero(is_stored_anew & is_same_item)
    tables = {}
    for kind, changes in by_kind.items():
        changed, was_of, now_of = zip(*changes, strict=True)
        tables[kind] = keys.take(pa.array(changed)), was_of, now_of
    was, now = (_text(column.take(stored)) for column in lengths)
    return tables | {RECORD: (keys.take(stored), was, now)}


def _records(side: ComparedSide, rows: Rows) -> ComparedSide:
    table = side.table.select(["shard", "offset", "length"]).take(rows)
    for place, name in ((1, "offset"), (2, "length")):
        table = table.set_column(place, name, pc.fill_null(table[name], 0))
    shards = side.dataset.manifest.shards
    for shard in table["shard"].unique().to_pylist():
        if shard not in shards:
            what = f"has a record in {str(shard)[:200]!r}, which the manifest does not list"
            raise DatasetError(f"{side.dataset}/{ITEMS_FILE}", what, COPY_AGAIN)
    return side._replace(table=table)


def _are_in_equal_shards(one: ComparedSide, two: ComparedSide) -> Mask:
    hashes = []
    for side in (one, two):
        shards = side.dataset.manifest.shards
        places = pc.index_in(side.table["shard"].combine_chunks(), pa.array([*shards], pa.string()))
        sums = pa.array([shard.sha256 for shard in shards.values()], pa.string())
        hashes.append(pc.take(sums, places))
    same = ~_differ(*(pa.chunked_array([column]) for column in hashes))
    return same & ~_differ(one.table["offset"], two.table["offset"])


def _is_written(table: pa.Table) -> Mask:
    return np.asarray(pc.equal(table["status"], item_table.WRITTEN))


def _outcome(keys: pa.ChunkedArray, other: pa.Table) -> pa.Array:
    places = pc.index_in(keys.combine_chunks(), other["key"])
    status, reason = (
        pc.fill_null(other[name].combine_chunks().take(places), "") for name in ("status", "reason")
    )
    said = pc.binary_join_element_wise(status, reason, ": ")
    return pc.if_else(pc.equal(reason, ""), status, said)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.replace_substring(pc.fill_null(pc.cast(column, pa.string()), ""), _BETWEEN, ", ")


_ROWS = pa.schema([(name, pa.string()) for name in ("key", "kind", "before", "after")])


def _places_of(keys: pa.ChunkedArray, others: pa.ChunkedArray, is_there: Mask) -> Rows:
    """Return the row in `others` of each key, int64[n]; -1 if no row with `is_there` has it."""
    rows = np.flatnonzero(is_there)
    positions = pc.index_in(keys, others.take(rows))
    return np.append(rows, -1).take(np.asarray(pc.fill_null(positions, -1)))


def _differ(one: pa.ChunkedArray, two: pa.ChunkedArray) -> Mask:
    """Return whether each row of two columns differs, bool[n]; null equals only null."""
    same = pc.fill_null(pc.equal(one, two), False)  # noqa: FBT003 - the value
    return ~np.asarray(pc.or_(same, pc.and_(pc.is_null(one), pc.is_null(two))))


def _change_table(kind: str, key: Any, before: Any, after: Any) -> pa.Table:
    table = pa.table([key, [kind] * len(key), before, after], _ROWS)
    return pa.table([pc.fill_null(column, "") for column in table.columns], _ROWS)
