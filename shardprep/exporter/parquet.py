"""Parquet as `datasets` of Hugging Face has it: images and classes by its features, and a card.

The features stand in the schema's metadata as JSON, as `datasets` writes them, so that a file says
for itself that its bytes are images and its numbers classes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardprep.dataset.schema import BOX_LABEL, CROWD, LABEL, LABELS, MASK, OBJECT_MASK, OBJECTS
from shardprep.exporter.card import CARD_FILE, card
from shardprep.exporter.coco import pixel_boxes
from shardprep.exporter.layout import Layout
from shardprep.exporter.samples import table_columns
from shardprep.storage.atomic_file import DurableFile, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardprep.dataset.schema import Schema
    from shardprep.exporter.layout import Export, Place
    from shardprep.exporter.samples import Buffer, Sample

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1000
"""Most bytes of images and rows of a row group: a viewer reads whole groups, of up to 300 MB."""
_IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_VALUES = {"int64": "int64", "float32": "float32", "bytes": "string"}
"""dtype of a feature → the type that `datasets` calls it."""


def file_name(export: Export, place: Place) -> str:
    """Return the name of a shard's file, as Hugging Face's hub has it."""
    del export
    return f"data/{place.split}-{place.index:05d}-of-{place.count:05d}.parquet"


def features(schema: Schema) -> dict[str, Any]:
    """Return the features of `datasets`, as its JSON has them."""
    found: dict[str, Any] = {"image": {"_type": "Image"}}
    if schema.target == LABEL:
        found[LABEL] = _classes(schema.labels)
    elif schema.target == LABELS:
        found[LABELS] = [_classes(schema.labels)]
    elif schema.target is not None:
        found[schema.target] = _value(schema.dtypes[schema.target])
    if BOX_LABEL in schema.features:
        objects: dict[str, Any] = {
            "bbox": [[_value("float32")]],
            "category": [_classes(schema.features[BOX_LABEL].labels)],
        }
        if CROWD in schema.features:
            objects["is_crowd"] = [_value("int64")]
        if OBJECT_MASK in schema.features:
            objects["mask"] = [{"_type": "Image"}]
        found[OBJECTS] = objects
    if MASK in schema.features:
        found[MASK] = {"_type": "Image"}
    found |= {"key": _value("bytes"), "width": _value("int64"), "height": _value("int64")}
    further = {n: _value(dtype) for n, dtype in table_columns(schema).items()}
    return found | {f"column/{n}" if n in found else n: one for n, one in further.items()}


def _value(dtype: str) -> dict[str, str]:
    return {"dtype": _VALUES[dtype], "_type": "Value"}


def _classes(names: Iterable[str]) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def _arrow(feature: Any) -> pa.DataType:
    """Return the type in which a feature is stored."""
    if isinstance(feature, list):
        return pa.list_(_arrow(feature[0]))
    kind = feature.get("_type")
    if kind is None:
        return pa.struct({name: _arrow(one) for name, one in feature.items()})
    if kind == "Image":
        return _IMAGE
    return pa.int64() if kind == "ClassLabel" else pa.type_for_alias(feature["dtype"])


def write_rows(export: Export, place: Place, samples: Iterable[Sample]) -> Callable[[], None]:
    """Write the file of a shard, a row group at a time; return its commit."""
    found = features(export.schema)
    info = json.dumps({"info": {"features": found}}, ensure_ascii=False)
    schema = pa.schema(
        {name: _arrow(one) for name, one in found.items()}, metadata={"huggingface": info}
    )
    path = export.work / file_name(export, place)
    path.parent.mkdir(exist_ok=True)
    blobs = [name for name in _leaves(schema) if name.endswith((".bytes", ".path"))]
    with DurableFile(path) as file:
        with pq.ParquetWriter(
            file.stream,
            schema,
            compression={name: "none" if name in blobs else "zstd" for name in _leaves(schema)},
            use_dictionary=[name for name in _leaves(schema) if name not in blobs],
            write_statistics=[name for name in _leaves(schema) if name not in blobs],
        ) as writer:
            rows: list[dict[str, Any]] = []
            num_bytes = 0
            for sample in samples:
                if rows and (len(rows) >= _GROUP_ROWS or num_bytes >= _GROUP_BYTES):
                    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                    rows, num_bytes = [], 0
                rows.append(_row(sample, export.schema, schema.names))
                num_bytes += _num_bytes(sample)
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        return file.hand_over()


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the paths of the columns of a file as Parquet names them."""
    found = pq.ParquetFile(pa.BufferReader(_empty(schema))).schema
    return [found.column(i).path for i in range(len(found.names))]


def _empty(schema: pa.Schema) -> pa.Buffer:
    out = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), out)
    return out.getvalue()


def _num_bytes(sample: Sample) -> int:
    masks = sum(map(len, sample.objects.masks)) if sample.objects is not None else 0
    return len(sample.image) + len(sample.mask or b"") + masks


def _row(sample: Sample, schema: Schema, names: list[str]) -> dict[str, Any]:
    height, width = sample.size
    row: dict[str, Any] = {"image": _image(sample.image, f"{sample.name}.{sample.suffix}")}
    if schema.target is not None:
        row[schema.target] = sample.target
    if sample.objects is not None:
        found = sample.objects
        row[OBJECTS] = {
            "bbox": pixel_boxes(sample),
            "category": found.labels,
            "is_crowd": found.crowds,
            "mask": [_image(mask, f"{sample.name}.{i}.png") for i, mask in enumerate(found.masks)],
        }
    if sample.mask is not None:
        row[MASK] = _image(sample.mask, f"{sample.name}.png")
    row |= {"key": sample.key, "width": width, "height": height}
    further = names[len(names) - len(sample.columns) :]
    return row | dict(zip(further, sample.columns.values(), strict=True))


def _image(data: Buffer, path: str) -> dict[str, Any]:
    """Return an image as `datasets` has it; a copy, for a row group would hold many blocks."""
    return {"bytes": bytes(data), "path": path}


def write_card(export: Export, places: Mapping[str, list[Place]]) -> None:
    """Write the card by which `datasets` and the hub know splits and features."""
    sizes = {
        split: sum((export.work / file_name(export, one)).stat().st_size for one in shards)
        for split, shards in places.items()
    }
    text = card(export.manifest, export.schema, features(export.schema), sizes)
    write_durably(export.work / CARD_FILE, text.encode())


LAYOUT = Layout(write_rows, file_name, write_card, record_bytes=1024)
