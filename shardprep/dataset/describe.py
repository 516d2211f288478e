"""Facts about a dataset from its manifest and item table, and about its boxes from its shards.

To read the boxes of a large record, its first feature (usually the image) is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table
from shardprep.dataset.card import Card
from shardprep.dataset.example import ExampleDecoder, of_entries, read_varint
from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.local_files import open_shard, read_index, way_out
from shardprep.dataset.manifest import Manifest, Shard
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX, BOX_LABEL, CLASS_PREFIX, HEIGHT, TARGETS, WIDTH, Schema
from shardprep.dataset.tfrecord import FOOTER_BYTES, HEADER_BYTES
from shardprep.errors import RecordError, counted
from shardprep.storage.regular_file import read_at

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

_EXAMPLE_COLUMNS = ("key", "status", "kind", "reason")
MOST_EXAMPLES = 3
LACKING = "^(no label|no target image|in no split)"
"""Matches the reason of an image that was skipped because it lacks a target or a split."""
TINY, _SMALL = 8, 32
"""Sides in pixels of the squares that `ObjectFacts` compares boxes with; 32 is COCO's "small"."""
_EDGE = 1e-6
"""Maximum distance from the edge of a box that touches it, as a share of the image's side."""
_SAME = 0.9
"""Two boxes are nearly equal if their intersection over union is above this."""
_MOST_PAIRS = 5_000_000
"""Maximum number of pairs to compare in a shard: a hostile image may have a million equal boxes."""
_WHOLE_BYTES = 8 << 10
"""Records of at most this size in bytes are read completely, including their first feature."""
_HEAD_BYTES = 64
"""Bytes at the start of a record that are enough to find the length of its first feature."""


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest, median and largest of several numbers."""

    smallest: float
    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class ComponentFacts:
    """Facts about one of several targets of the images, which is a number or a class."""

    num_missing: int
    """Number of images that have other targets, but not this one."""
    numbers: Range | None
    """Range of a number; null for a class, or if no image has a value."""
    classes: dict[str, int]
    """Number of images by class; empty for a number."""


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """Facts about the stored boxes of a dataset."""

    boxes_per_image: Range
    """Number of boxes in an image, images without a box included."""
    shorter_side: Range | None
    """Shorter side of a box in pixels of the stored image; null without a box."""
    num_below_8: int
    """Number of boxes with an area of less than 8 x 8 pixels of the stored image."""
    num_below_32: int
    """Number of boxes with an area of less than 32 x 32 pixels of the stored image."""
    num_at_edge: int
    """Number of boxes that touch the edge of the stored image."""
    num_near_duplicates: int
    """Number of pairs of boxes in one image that have the same class and an intersection over union
    above 0.9."""


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
    """The targets by name, in a dataset with several numbers or classes for each image; otherwise
    empty."""
    num_texts: Range | None
    """Number of texts of an image in a dataset with several texts; null in other datasets."""
    boxes: ObjectFacts | None
    """Facts about the stored boxes; null if the dataset has no boxes or is in object storage."""
    rejections: dict[str, tuple[Example, ...]]
    """A few rejected images by kind of rejection."""
    skipped: tuple[Example, ...]
    """Examples of images that were skipped because the source has no label or no split for them."""
    findings: tuple[str, ...] = ()
    """The worst findings of `report`, except findings that need pixels or repeat other facts."""

    def facts(self) -> dict[str, Any]:
        lines: dict[str, Any] = {"at": self.path, **self.manifest.facts(), "formats": self.formats}
        if self.original_width and self.original_height:
            lines["originals"] = size_text(self.original_width, self.original_height)
        rejections = {kind: [one.key for one in some] for kind, some in self.rejections.items()}
        lines |= {"such as": rejections} if rejections else {}
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
    """Return the facts about a dataset; boxes are measured only in local shards."""
    further = [
        name for name in dataset.item_columns.names if name in item_table.TARGET_COLUMNS.names
    ]
    columns = ("original_width", "original_height", "original_format", "target", *further)
    table = dataset.item_rows((*_EXAMPLE_COLUMNS, *columns))
    written = item_table.with_status(table, item_table.WRITTEN)
    return Facts(
        path=str(dataset),
        manifest=dataset.manifest,
        schema=dataset.schema,
        formats=_counts(written["original_format"]),
        original_width=_range(written["original_width"].drop_null()),
        original_height=_range(written["original_height"].drop_null()),
        target=_range(written["target"].drop_null()),
        components=read_components(dataset.schema, written),
        num_texts=_range(pc.list_value_length(written["texts"]).drop_null()) if further else None,
        boxes=_stored_boxes(dataset),
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
            counts = {one["values"]: one["counts"] for one in known.value_counts().to_pylist()}
            labels = schema.features[name].labels
            classes = {label: counts.get(i, 0) for i, label in enumerate(labels)}
        num_labelled = pc.count(written["classes" if is_class else TARGETS]).as_py()
        numbers = None if is_class else _range(known)
        short = name.removeprefix(CLASS_PREFIX)
        facts[short] = ComponentFacts(num_labelled - len(known), numbers, classes)
    return facts


def component_columns(schema: Schema, written: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return one column for each number, by its name, and each class, by its feature's name."""
    names = {TARGETS: schema.features[TARGETS].labels} if TARGETS in schema.features else {}
    names["classes"] = schema.class_features
    return {
        name: pc.list_element(written[column], place)
        for column, several in names.items()
        for place, name in enumerate(several)
    }


def _stored_boxes(dataset: OpenDataset) -> ObjectFacts | None:
    if dataset.is_remote:
        return None
    with dataset.documents() as folder:
        return measure_objects(folder, dataset.manifest, dataset.schema)


def read_examples(folder: Path) -> LeftOutExamples:
    """Return examples of the inputs that were not written, from a folder's item table."""
    return _listed(item_table.read_items(folder / ITEMS_FILE, _EXAMPLE_COLUMNS))


def _listed(table: pa.Table) -> LeftOutExamples:
    rejected = item_table.with_status(table, item_table.REJECTED)
    skipped = item_table.with_status(table, item_table.SKIPPED)
    kinds = rejected["kind"].cast("string")
    lacking = skipped.filter(pc.match_substring_regex(skipped["reason"], LACKING))
    by_kind = {kind: rejected.filter(pc.equal(kinds, kind)) for kind in sorted(_counts(kinds))}
    rejections = {kind: _examples(rows) for kind, rows in by_kind.items()}
    return LeftOutExamples(rejections=rejections, skipped=_examples(lacking))


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


def _range_of(values: np.ndarray[Any, Any]) -> Range | None:
    if not len(values):
        return None
    median = np.quantile(values, 0.5, method="inverted_cdf")
    return Range(values.min().item(), median.item(), values.max().item())


def measure_objects(folder: Path, manifest: Manifest, schema: Schema) -> ObjectFacts | None:
    """Return the facts about the boxes of the dataset in a folder.

    None if the dataset has no boxes, no image sizes or no records. RecordError if a record cannot
    be decoded; checksums are not compared.
    """
    is_sized = schema.image_size or {HEIGHT, WIDTH} <= schema.features.keys()
    if BOX not in schema.features or not is_sized:
        return None
    counts: list[int] = []
    sides: list[Floats] = []
    sums = np.zeros(4, np.int64)
    for shard in manifest.shards.values():
        image, label, boxes, pixels = _boxes(folder, shard, schema, counts)
        lengths = (boxes[:, 2:] - boxes[:, :2]) * pixels
        areas = lengths.prod(axis=1)
        sides.append(lengths.min(axis=1))
        is_at_edge = (boxes[:, :2] <= _EDGE) | (boxes[:, 2:] >= 1 - _EDGE)
        sums += [
            (areas < TINY**2).sum(),
            (areas < _SMALL**2).sum(),
            is_at_edge.any(axis=1).sum(),
            len(near_duplicates(image, label, boxes)),
        ]
    per_image = _range_of(np.array(counts))
    if per_image is None:
        return None
    return ObjectFacts(per_image, _range_of(np.concatenate(sides).round(2)), *sums.tolist())


def _boxes(
    folder: Path, shard: Shard, schema: Schema, counts: list[int]
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return image number, label, corners and image size of each box; append counts by image."""
    first = len(counts)
    labels: list[int] = []
    sides: list[float] = []
    sizes: list[tuple[int, int]] = []
    for features in _features(folder, shard, schema):
        sides += features.get(BOX, [])
        counts.append(len(features.get(BOX, [])) // 4)
        labels += features.get(BOX_LABEL, [0] * counts[-1])
        sizes.append(schema.image_size or (features[HEIGHT][0], features[WIDTH][0]))
    num_boxes = counts[first:]
    image = np.repeat(np.arange(len(num_boxes)), num_boxes)
    pixels = np.repeat(np.array(sizes, np.float64).reshape(-1, 2), num_boxes, axis=0)
    return image, np.array(labels, np.int64), np.array(sides).reshape(-1, 4), pixels


def _features(folder: Path, shard: Shard, schema: Schema) -> Iterator[Mapping[str, Any]]:
    wanted = [BOX, BOX_LABEL, *(() if schema.image_size else (HEIGHT, WIDTH))]
    wanted = [name for name in wanted if name in schema.features]
    dtypes = schema.dtypes
    first = min(dtypes)
    whole, rest = ExampleDecoder(dtypes, wanted), None
    if first not in wanted:
        rest = ExampleDecoder({name: one for name, one in dtypes.items() if name != first}, wanted)
    path, descriptor = folder / shard.name, open_shard(folder, shard)
    try:
        for number, (offset, length) in enumerate(read_index(folder, shard).tolist()):
            start, size = offset + HEADER_BYTES, length - HEADER_BYTES - FOOTER_BYTES
            features: Mapping[str, Any] | None = None
            if rest is not None and length > _WHOLE_BYTES:
                features = rest.find(_without_first(descriptor, start, size))
            if features is None:
                try:
                    features = whole.decode(read_at(descriptor, size, start))
                except RecordError as error:
                    raise _damaged(path, number, offset, error.what) from error
            if what := _fault(features, wanted):
                raise _damaged(path, number, offset, what)
            yield features
    finally:
        os.close(descriptor)


def _without_first(descriptor: int, start: int, size: int) -> bytes:
    """Return a serialized Example without its first feature (the image), or b"" if damaged."""
    head = read_at(descriptor, _HEAD_BYTES, start)
    try:
        _, at = read_varint(head, 1)
        length, at = read_varint(head, at + 1)
    except (IndexError, ValueError):
        return b""
    at += length
    if at > size:
        return b""
    return of_entries(read_at(descriptor, size - at, start + at))


def _fault(features: Mapping[str, Sequence[Any]], wanted: Sequence[str]) -> str:
    number = len(features.get(BOX, ())) // 4
    counts = {BOX: 4 * number, BOX_LABEL: number, HEIGHT: 1, WIDTH: 1}
    for name in wanted:
        values = features.get(name, ())
        kind = float if name == BOX else int
        if len(values) != counts[name] or not isinstance(next(iter(values), kind()), kind):
            return f"{name}: has {counted(len(values), 'value')} for {counted(number, 'box')}"
    return ""


def _damaged(path: Path, number: int, offset: int, what: str) -> RecordError:
    return RecordError(f"{path}, record {number}", what, way_out(path.parent), offset=offset)


def near_duplicates(image: Ints, label: Ints, boxes: Floats) -> Ints:
    """Return the image number of each pair of nearly equal boxes with the same image and class.

    `boxes`, float[n, 4], are ymin, xmin, ymax, xmax. A box is compared only with boxes that begin
    less than a tenth of its height below its top; others overlap too little. The search ends
    after about `_MOST_PAIRS` comparisons.
    """
    order = np.lexsort((boxes[:, 0], label, image))
    image, label, boxes = image[order], label[order], boxes[order]
    height = boxes[:, 2] - boxes[:, 0]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    first = np.arange(len(boxes))
    num_compared = 0
    images = [image[:0]]
    for step in range(1, len(boxes)):
        first = first[first + step < len(boxes)]
        second = first + step
        is_near = (
            (image[first] == image[second])
            & (label[first] == label[second])
            & (boxes[second, 0] - boxes[first, 0] < (1 - _SAME) * height[first])
        )
        first, second = first[is_near], second[is_near]
        num_compared += len(first)
        if not len(first) or num_compared > _MOST_PAIRS:
            break
        low = np.maximum(boxes[first, :2], boxes[second, :2])
        high = np.minimum(boxes[first, 2:], boxes[second, 2:])
        common = (high - low).clip(0).prod(axis=1)
        images.append(image[first[common > _SAME * (area[first] + area[second] - common)]])
    return np.concatenate(images)
