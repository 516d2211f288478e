"""Facts about a dataset, from its manifest and item table."""

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
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import CLASS_PREFIX, TARGETS, Schema

_EXAMPLE_COLUMNS = ("key", "status", "kind", "reason")
MOST_EXAMPLES = 3
LACKING = "^(no label|no target image|in no split)"
"""Matches the reason of an image that was skipped because it lacks a target or a split."""


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest, median and largest of several numbers."""

    smallest: float
    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class ComponentFacts:
    """Facts about one target (a number or a class) of images with several targets."""

    num_missing: int
    """Number of images that have other targets, but not this one."""
    numbers: Range | None
    """Range of a number; null for a class, or if no image has a value."""
    classes: dict[str, int]
    """Number of images by class; empty for a number."""


@dataclass(frozen=True, slots=True)
class Example:
    """An input that was not written."""

    key: str
    reason: str


class LeftOutExamples(TypedDict):
    """Examples of inputs that were not written; the keys are fields of `Facts`."""

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
    """Number of written images by original format, most frequent first."""
    original_width: Range | None
    """Width of the originals of written images in pixels; null if no image was written."""
    original_height: Range | None
    """Height of the originals of written images in pixels; null if no image was written."""
    target: Range | None
    """Range of the target in a regression dataset; null in other datasets."""
    components: dict[str, ComponentFacts]
    """The targets by name, if images have several numbers or classes; otherwise empty."""
    num_texts: Range | None
    """Number of texts of an image in a dataset with several texts; null in other datasets."""
    rejections: dict[str, tuple[Example, ...]]
    """A few rejected images by kind of rejection."""
    skipped: tuple[Example, ...]
    """Examples of images that were skipped because the source has no label or no split for them."""
    findings: tuple[str, ...] = ()
    """The worst findings of `report`, except findings that need pixels or repeat other facts."""
    missing: tuple[str, ...] = ()
    """Names of shards that are missing in the folder; not looked for in object storage."""

    def facts(self) -> dict[str, Any]:
        lines: dict[str, Any] = {"at": self.path, **self.manifest.facts(), "formats": self.formats}
        if self.original_width and self.original_height:
            lines["originals"] = size_text(self.original_width, self.original_height)
        rejections = {kind: [one.key for one in some] for kind, some in self.rejections.items()}
        lines |= {"such as": rejections} if rejections else {}
        lines |= {"missing": self.missing} if self.missing else {}
        return lines | ({"findings": self.findings} if self.findings else {})


def size_text(width: Range, height: Range) -> str:
    """Return the ranges of width and height, in pixels, as text."""
    if width.smallest == width.largest and height.smallest == height.largest:
        return f"{width.smallest}x{height.smallest} pixels"
    wide, high = (
        f"{one.smallest} to {one.largest} (median {one.median})" for one in (width, height)
    )
    return f"width {wide}, height {high} pixels"


def read_facts(dataset: OpenDataset) -> Facts:
    """Return facts about a dataset; reads its item table. DatasetError if the table is damaged."""
    further = item_table.TARGET_COLUMNS.names if dataset.schema.target_lists else []
    columns = ("original_width", "original_height", "original_format", "target", *further)
    table = dataset.item_rows((*_EXAMPLE_COLUMNS, *columns))
    written = item_table.with_status(table, item_table.WRITTEN)
    return Facts(
        path=str(dataset),
        manifest=dataset.manifest,
        schema=dataset.schema,
        formats=most_frequent(written["original_format"]),
        original_width=_range(written["original_width"].drop_null()),
        original_height=_range(written["original_height"].drop_null()),
        target=_range(written["target"].drop_null()),
        components=read_components(dataset.schema, written),
        num_texts=_range(pc.list_value_length(written["texts"]).drop_null()) if further else None,
        **_listed(table),
    )


def read_components(schema: Schema, written: pa.Table) -> dict[str, ComponentFacts]:
    """Return facts by target name for a dataset with several numbers or classes as targets."""
    facts: dict[str, ComponentFacts] = {}
    for name, values in component_columns(schema, written).items():
        known, classes = values.drop_null(), dict[str, int]()
        is_class = name in schema.class_features
        if is_class:
            known = known.filter(pc.greater_equal(known, 0))
            counts = item_table.value_counts(known)
            labels = schema.features[name].labels
            classes = {label: counts.get(i, 0) for i, label in enumerate(labels)}
        num_labelled = pc.count(written["classes" if is_class else TARGETS]).as_py()
        numbers = None if is_class else _range(known)
        short = name.removeprefix(CLASS_PREFIX)
        facts[short] = ComponentFacts(num_labelled - len(known), numbers, classes)
    return facts


def component_columns(schema: Schema, written: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of single targets: numbers by name, classes by feature name."""
    names = {TARGETS: schema.features[TARGETS].labels} if TARGETS in schema.features else {}
    names["classes"] = schema.class_features
    return {
        name: pc.list_element(written[column], place)
        for column, several in names.items()
        for place, name in enumerate(several)
    }


def read_examples(folder: Path) -> LeftOutExamples:
    """Return examples of unwritten inputs from a folder's item table; DatasetError if damaged."""
    return _listed(item_table.read_items(folder / ITEMS_FILE, _EXAMPLE_COLUMNS))


def _listed(table: pa.Table) -> LeftOutExamples:
    rejected = item_table.with_status(table, item_table.REJECTED)
    skipped = item_table.with_status(table, item_table.SKIPPED)
    kinds = rejected["kind"].cast("string")
    names = sorted(item_table.value_counts(kinds))
    lacking = skipped.filter(pc.match_substring_regex(skipped["reason"], LACKING))
    rejections = {one: _examples(rejected.filter(pc.equal(kinds, one))) for one in names}
    return LeftOutExamples(rejections=rejections, skipped=_examples(lacking))


def _examples(table: pa.Table) -> tuple[Example, ...]:
    rows = table.slice(0, MOST_EXAMPLES).select(["key", "reason"]).to_pylist()
    return tuple(Example(row["key"], row["reason"]) for row in rows)


def most_frequent(column: pa.ChunkedArray) -> dict[str, int]:
    """Return the number of rows with each text, most frequent first; nulls are left out."""
    counts = item_table.value_counts(column.cast("string"))
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _range(column: pa.ChunkedArray) -> Range | None:
    if not len(column):
        return None
    low_high = pc.min_max(column).as_py()
    median = pc.quantile(column, 0.5, interpolation="nearest")[0].as_py()
    return Range(low_high["min"], median, low_high["max"])
