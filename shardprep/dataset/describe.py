"""Facts on a dataset: from its manifest and item table, and on boxes from its shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table
from shardprep.dataset.card import Card
from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.object_stats import ObjectFacts, Range, measure_objects
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import Schema

_EXAMPLE_COLUMNS = ("key", "status", "kind", "reason")
MOST_EXAMPLES = 3
LACKING = "^(no label|in no split)"
"""Matches the reasons for skipped images that no option asked for."""


@dataclass(frozen=True, slots=True)
class Example:
    """An input that was not written."""

    key: str
    reason: str


class LeftOutExamples(TypedDict):
    """Examples of inputs that were not written: fields of `Facts`."""

    rejections: dict[str, tuple[Example, ...]]
    skipped: tuple[Example, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Facts(Card):
    """The contents of a dataset."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    manifest: Manifest
    """The dataset's `manifest.json`."""
    schema: Schema
    """The dataset's `schema.json`."""
    formats: dict[str, int]
    """Written images by original format, most frequent first."""
    original_width: Range | None
    """Width of the written originals in pixels; null without any."""
    original_height: Range | None
    """Height of the written originals in pixels; null without any."""
    target: Range | None
    """Range of the target of a regression dataset; otherwise null."""
    boxes: ObjectFacts | None
    """Facts about the stored boxes; null without boxes, and in object storage."""
    rejections: dict[str, tuple[Example, ...]]
    """A few examples for each kind of rejection."""
    skipped: tuple[Example, ...]
    """Examples of images that were skipped because the source has no label or no split for them."""
    findings: tuple[str, ...] = ()
    """The worst findings of `report` that need no pixels and are not in the other facts."""

    def facts(self) -> dict[str, Any]:
        """Return location, records by split and class, and sizes of the originals."""
        lines: dict[str, Any] = {"at": self.path, **self.manifest.facts(), "formats": self.formats}
        if self.original_width and self.original_height:
            low, high = self.original_width, self.original_height
            lines["originals"] = (
                f"{low.smallest}x{high.smallest} to {low.largest}x{high.largest} pixels, "
                f"median {low.median}x{high.median}"
            )
        rejections = {kind: [one.key for one in some] for kind, some in self.rejections.items()}
        lines |= {"such as": rejections} if rejections else {}
        return lines | ({"findings": self.findings} if self.findings else {})


def read_facts(dataset: OpenDataset) -> Facts:
    """Return the facts on a dataset; boxes are measured only if its shards are local.

    Raises:
        DatasetError: the item table is damaged, or a shard with boxes is missing.
        RecordError: a record with boxes is damaged.

    """
    table = dataset.item_rows(
        (*_EXAMPLE_COLUMNS, "original_width", "original_height", "original_format", "target")
    )
    written = item_table.with_status(table, item_table.WRITTEN)
    return Facts(
        path=str(dataset),
        manifest=dataset.manifest,
        schema=dataset.schema,
        formats=_counts(written["original_format"]),
        original_width=_range(written["original_width"].drop_null()),
        original_height=_range(written["original_height"].drop_null()),
        target=_range(written["target"].drop_null()),
        boxes=_boxes(dataset),
        **_listed(table),
    )


def _boxes(dataset: OpenDataset) -> ObjectFacts | None:
    if dataset.is_remote:
        return None
    with dataset.documents() as folder:
        return measure_objects(folder, dataset.manifest, dataset.schema)


def read_examples(folder: Path) -> LeftOutExamples:
    """Return examples of inputs that a folder's item table lists as not written."""
    return _listed(item_table.read_items(folder / ITEMS_FILE, _EXAMPLE_COLUMNS))


def _listed(table: pa.Table) -> LeftOutExamples:
    rejected = item_table.with_status(table, item_table.REJECTED)
    skipped = item_table.with_status(table, item_table.SKIPPED)
    kinds = rejected["kind"].cast("string")
    return LeftOutExamples(
        rejections={
            kind: _examples(rejected.filter(pc.equal(kinds, kind)))
            for kind in sorted(_counts(kinds))
        },
        skipped=_examples(skipped.filter(pc.match_substring_regex(skipped["reason"], LACKING))),
    )


def _examples(table: pa.Table) -> tuple[Example, ...]:
    rows = table.slice(0, MOST_EXAMPLES).select(["key", "reason"]).to_pylist()
    return tuple(Example(row["key"], row["reason"]) for row in rows)


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    pairs = pc.value_counts(column.cast("string")).to_pylist()
    counted = {pair["values"]: pair["counts"] for pair in pairs if pair["values"] is not None}
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def _range(column: pa.ChunkedArray) -> Range | None:
    if not len(column):
        return None
    low_high = pc.min_max(column).as_py()
    median = pc.quantile(column, 0.5, interpolation="nearest")[0].as_py()
    return Range(low_high["min"], median, low_high["max"])
