"""Encode the stored images of finished datasets anew, with their annotations.

A record becomes an item whose files are in memory, and the encoder of a build makes the new record
from the item. Features other than images, annotations and targets are passed on. In the item table,
an item keeps the facts of its original and its counts of dropped objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc

from shardprep.catalog.items import Item
from shardprep.dataset import schema as names
from shardprep.dataset import tfrecord
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.item_table import WRITTEN
from shardprep.dataset.schema import Schema
from shardprep.errors import RecordError
from shardprep.image.annotation_types import Annotation, AnnotationSpec, Skeleton, StoredMask
from shardprep.image.netpbm import netpbm_start
from shardprep.source.byte_range import HeldExtent
from shardprep.source.members import Member, Members, StackExtent
from shardprep.source.range_reads import read_ahead
from shardprep.writer.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.chunk_encoder import ChunkEncoder, encode_item, read_item, wait_for
from shardprep.writer.record_copier import StoredRecords

_Values = Mapping[str, Sequence[Any]]

_FACTS = (
    "status", "reason", "object_labels", "dropped", "num_clipped", "lost_points", "original_width",
    "original_height", "original_format", "original_bytes", "original_sha256",
)  # fmt: skip
"""Columns of the item table that an item keeps or that its annotation needs."""


def further_features(schema: Schema) -> tuple[str, ...]:
    """Return the features that hold columns and rows of tables."""
    made = {*names.PROVIDED, *schema.class_features}
    return tuple(name for name in schema.features if name not in made)


def annotation_spec(schema: Schema, min_visible: float) -> AnnotationSpec | None:
    """Return the form of annotations in records of this schema, or None without annotations."""
    features = schema.features
    if features.keys().isdisjoint(names.ANNOTATIONS):
        return None
    skeletons = {
        name: Skeleton(one.points, one.edges, one.mirrored)
        for name in names.ALL_POINTS
        if (one := features.get(name))
    }
    masks = names.OBJECT_MASK in features, names.MASK in features
    return AnnotationSpec(
        boxes=names.BOX in features,
        masks="instances" if masks[0] else "classes" if masks[1] else "none",
        attributes=tuple(one for name, one in names.ATTRIBUTES.items() if name in features),
        keypoints=skeletons.get(names.KEYPOINTS),
        points=skeletons.get(names.POINTS),
        num_classes=len(schema.annotation_labels),
        min_visible=min_visible,
        frames=("upright",),
    )


@dataclass(frozen=True, slots=True)
class RecordEncoder:
    """Encodes the images in the records of `ChunkTask.old`; implements `Encode`."""

    encoder: ChunkEncoder
    """Encodes the items; its `columns` are `further_features` of the new schema."""
    schema: Schema
    """Schema of the stored records, apart from class names."""
    columns: tuple[str, ...]
    """Features that the items add to their records."""

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Return the encoded chunk; RecordError or DatasetError if a record is damaged."""
        framed: list[bytes] = []
        outcomes: list[Outcome] = []
        for item, row, values in stored_values(task, self.schema, before_item):
            record, read = b"", read_item(item) if values is None else None
            if values is not None:
                try:
                    own = self._item(item, row, values)
                except (ValueError, LookupError) as error:
                    what = f"does not fit the schema ({error})"
                    hint = "run `shardprep verify DATASET` for details"
                    raise RecordError(item.key, what, hint) from error
                before_item()
                record, read = self._encoded(own, row["original_sha256"] or "", before_item)
            framed.append(record)
            outcomes.append(_with_facts(cast("Outcome", read), row))
        return EncodedChunk(b"".join(framed), tuple(outcomes))

    def _encoded(
        self, item: Item, sha256: str, before_item: Callable[[], None]
    ) -> tuple[bytes, Outcome]:
        if isinstance(item.extent, StackExtent):
            return self.encoder.stack(item, item.extent, before_item)
        return encode_item(item, item.extent.read(), sha256, self.encoder)

    def _item(self, item: Item, row: Mapping[str, Any], values: _Values) -> Item:
        own = dict(zip(self.columns, item.columns, strict=True))
        further = (
            own[name] if name in own else tuple(values[name]) for name in self.encoder.columns
        )
        files = values.get(names.TARGET_IMAGE) or values.get(names.MASK) or ()
        annotated = self.encoder.annotations
        return item._replace(
            extent=self._extent(item.key, values),
            columns=tuple(further),
            annotation=None if annotated is None else _annotation(row, values, annotated),
            companions=_members(item.key, files),
        )

    def _extent(self, key: str, values: _Values) -> HeldExtent | StackExtent:
        image, images = self.schema.image, values[self.schema.image_name]
        if image.encoding == "raw":
            height, width, channels = (side or 0 for side in image.shape)
            start = netpbm_start(height, width, channels, 255)
            images = [start + pixels for pixels in images]
        if not self.schema.is_stack:
            return HeldExtent(images[0])
        return StackExtent(Members.of(_members(key, images)), bool(image.channels))


def stored_values(
    task: ChunkTask, schema: Schema, before_item: Callable[[], None]
) -> Iterator[tuple[Item, dict[str, Any], _Values | None]]:
    """Yield each item, its `_FACTS` from `ChunkTask.old`, and the values of its record.

    The values of a rejected item are None. RecordError or DatasetError if a record is damaged.
    """
    assert task.old is not None  # noqa: S101 - of a repack
    old, dtypes = task.old, schema.dtypes
    is_record = pc.equal(old["status"].cast("string"), WRITTEN)
    records = StoredRecords(old.filter(is_record), have_keys=names.FILENAME in dtypes)
    payloads, decoder = _payloads(records, before_item), _decoder((*dtypes.items(),))
    known = [name for name in _FACTS if name in old.column_names]
    for item, row in zip(task.items, old.select(known).to_pylist(), strict=True):
        is_there = row["status"] == WRITTEN
        yield item, row, decoder.decode(next(payloads)) if is_there else None


@functools.lru_cache(maxsize=4)
def _decoder(dtypes: tuple[tuple[str, str], ...]) -> ExampleDecoder:
    return ExampleDecoder(dict(dtypes), dict(dtypes))


def _payloads(records: StoredRecords, before_item: Callable[[], None]) -> Iterator[bytes]:
    records.check_places()
    runs = records.runs()
    with closing(read_ahead([run.extent for run in runs])) as ahead:
        for run in runs:
            wait_for(ahead)
            before_item()
            for number, record in enumerate(records.read(run.start, run.stop), run.start):
                sound = records.read_alone(number) if record is None else record  # or raises
                yield bytes(sound[tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES])


def _members(key: str, files: Sequence[bytes]) -> tuple[Member, ...]:
    return tuple(Member(f"{key}/{number:06}", HeldExtent(one)) for number, one in enumerate(files))


def _annotation(row: Mapping[str, Any], values: _Values, spec: AnnotationSpec) -> Annotation:
    boxes = np.array(values.get(names.BOX, ()), np.float64).reshape(-1, 4)
    keypoints = points = None
    if spec.keypoints is not None:
        keypoints = _points(values, names.KEYPOINTS, (len(boxes), len(spec.keypoints.names)))
    if spec.points is not None:
        points = _points(values, names.POINTS, (len(spec.points.names),))
    return Annotation(
        boxes=boxes[:, [1, 0, 3, 2]],
        labels=tuple(row["object_labels"] or ()),
        attributes={
            one: np.array(values[name], np.float64)
            for name, one in names.ATTRIBUTES.items()
            if name in values
        },
        outlines=tuple(map(StoredMask, values.get(names.OBJECT_MASK, ()))),
        keypoints=keypoints,
        points=points,
        has_relative_points=True,
        lost_points=dict(row.get("lost_points") or ()),
        is_relative=True,
        dropped=dict(row["dropped"] or ()),
        are_distinct=True,
    )


def _points(values: _Values, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return x, y and visibility, float32[*shape, 3]."""
    places = np.array(values[name], np.float32).reshape(*shape, 2)[..., ::-1]
    visible = np.array(values[names.ALL_POINTS[name]], np.float32).reshape(*shape, 1)
    return np.concatenate((places, visible), axis=-1)


def _with_facts(outcome: Outcome, row: Mapping[str, Any]) -> Outcome:
    objects = outcome.objects
    if objects is not None and objects.labels is not None:
        num_clipped = min(row["num_clipped"] or 0, len(objects.labels))
        objects = objects._replace(num_clipped=num_clipped)
    return outcome._replace(
        reason=outcome.reason or row["reason"] or "",
        height=row["original_height"] or 0,
        width=row["original_width"] or 0,
        format=row["original_format"] or "",
        num_bytes=row["original_bytes"] or 0,
        sha256=row["original_sha256"] or "",
        objects=objects,
    )
