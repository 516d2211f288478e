"""Write Parquet files for Hugging Face `datasets`, a dataset card and a Croissant file.

The metadata of the Parquet schema has the features in the JSON form of `datasets`. It tells readers
which bytes are images and which numbers are classes. The card is README.md, which starts with the
YAML of https://huggingface.co/docs/hub/datasets-cards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml  # type: ignore[import-untyped]

from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    KEYPOINTS,
    LABEL,
    LABELS,
    MASK,
    OBJECT_MASK,
    OBJECTS,
    Feature,
    Schema,
)
from shardprep.exporter.cells import (
    TAKEN,
    VISIBLE,
    Role,
    pixel_boxes,
    pixel_points,
    point_cells,
    run_lengths,
    titles,
)
from shardprep.exporter.croissant import CROISSANT_FILE, IMAGE, parquet_croissant
from shardprep.exporter.samples import (
    Buffer,
    Export,
    ExportSample,
    Layout,
    ShardPlace,
    further_objects,
    table_columns,
)
from shardprep.storage.atomic_file import DurableFile, write_durably

_LICENCE = "# license:  # which of https://huggingface.co/docs/hub/repositories-licenses is it?\n"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGEST = "1M<n<10M"
_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1000
"""A row group ends at this many image bytes or rows. Viewers read groups of up to 300 MB."""
_VALUES = {"int64": "int64", "float32": "float32", "bytes": "string"}
"""dtype of a feature → its name in Hugging Face `datasets`."""


def _name(_: Export, place: ShardPlace) -> str:
    return f"data/{place.split}-{place.index:05d}-of-{place.count:05d}.parquet"


def _features(schema: Schema) -> dict[str, Any]:
    """Return the features of the columns in the JSON form of `datasets`."""
    columns: dict[str, Any] = {"image": {"_type": "Image"}}
    if schema.target is not None:
        columns[schema.target] = _form(schema.features[schema.target], schema.labels)
    columns |= {name: _form(schema.features[name]) for name in schema.class_features}
    if BOX_LABEL in schema.features:
        columns[OBJECTS] = _object_features(schema)
    if MASK in schema.features:
        columns[MASK] = {"_type": "Image"}
    columns |= {"key": _value("bytes"), "width": _value("int64"), "height": _value("int64")}
    points, further = (_titles(schema, role) for role in ("points", "column"))
    columns |= {n: _value("int64" if n.endswith(VISIBLE) else "float32") for n in points}
    return columns | dict(zip(further, map(_value, table_columns(schema).values()), strict=True))


def _titles(schema: Schema, wanted: Role) -> list[str]:
    return [title for title, role in titles(schema, TAKEN["parquet"]) if role == wanted]


def _object_features(schema: Schema) -> dict[str, Any]:
    features = {
        BOX: ("bbox", [_value("float32")]),
        BOX_LABEL: ("category", _form(schema.features[BOX_LABEL])),
        **{
            name: (name.removeprefix(f"{OBJECTS}/"), _form(feature))
            for name, feature in further_objects(schema).items()
        },
        OBJECT_MASK: ("segmentation", {"size": [_value("int64")], "counts": _value("bytes")}),
        KEYPOINTS: ("keypoints", [[_value("float32")]]),
    }
    return {column: [one] for name, (column, one) in features.items() if name in schema.features}


def _columns(schema: Schema) -> pa.Schema:
    columns = _features(schema)
    info = json.dumps({"info": {"features": columns}}, ensure_ascii=False)
    return pa.schema(
        {name: _arrow(one) for name, one in columns.items()}, metadata={"huggingface": info}
    )


def _value(dtype: str) -> dict[str, str]:
    return {"dtype": _VALUES[dtype], "_type": "Value"}


def _form(feature: Feature, names: Iterable[str] = ()) -> Any:
    form: Any = _value(feature.dtype)
    if feature.kind in ("label", "labels"):
        form = {"names": list(names or feature.labels), "_type": "ClassLabel"}
    for _ in feature.value_shape or [1] * KINDS[feature.kind].is_list:
        form = [form]
    return form


def _arrow(feature: Any) -> pa.DataType:
    if isinstance(feature, list):
        return pa.list_(_arrow(feature[0]))
    kind = feature.get("_type")
    if kind is None:
        return pa.struct({name: _arrow(one) for name, one in feature.items()})
    if kind == "Image":
        return IMAGE
    return pa.int64() if kind == "ClassLabel" else pa.type_for_alias(feature["dtype"])


def _write(
    export: Export, place: ShardPlace, samples: Iterable[ExportSample]
) -> Callable[[], None]:
    schema = _columns(export.schema)
    path = export.work / _name(export, place)
    path.parent.mkdir(exist_ok=True)
    leaves = _leaves(schema)
    plain = [name for name in leaves if not name.endswith((".bytes", ".path"))]
    with DurableFile(path) as file:
        with pq.ParquetWriter(
            file.stream,
            schema,
            compression={name: "zstd" if name in plain else "none" for name in leaves},
            use_dictionary=plain,
            write_statistics=plain,
        ) as writer:
            rows: list[dict[str, Any]] = []
            num_bytes = 0
            for sample in samples:
                if rows and (len(rows) >= _GROUP_ROWS or num_bytes >= _GROUP_BYTES):
                    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                    rows, num_bytes = [], 0
                rows.append(_row(sample, export.schema, schema.names))
                num_bytes += len(sample.image) + len(sample.mask or b"")
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        return file.hand_over()


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the names of the leaf columns in Parquet, such as "image.bytes"."""
    out = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), out)
    leaves = pq.ParquetFile(pa.BufferReader(out.getvalue())).schema
    return [leaves.column(i).path for i in range(len(leaves.names))]


def _row(sample: ExportSample, schema: Schema, names: list[str]) -> dict[str, Any]:
    height, width = sample.size
    row: dict[str, Any] = {"image": _image(sample.image, f"{sample.name}.{sample.suffix}")}
    if schema.target is not None:
        row[schema.target] = sample.target
    row |= sample.classes
    if BOX_LABEL in schema.features:
        objects = sample.objects
        row[OBJECTS] = {
            "bbox": pixel_boxes(sample),
            "category": objects.labels,
            "segmentation": run_lengths(sample),
            "keypoints": [pixel_points(sample, one) for one in objects.keypoints],
            **objects.more,
        }
    if sample.mask is not None:
        row[MASK] = _image(sample.mask, f"{sample.name}.png")
    row |= {"key": sample.key, "width": width, "height": height}
    cells = [*point_cells(sample), *sample.columns.values()]
    return row | dict(zip(names[len(names) - len(cells) :], cells, strict=True))


def _image(data: Buffer, path: str) -> dict[str, Any]:
    """Return an image cell with a copy of the bytes: a view would keep its block in memory."""
    return {"bytes": bytes(data), "path": path}


def _write_documents(export: Export) -> None:
    manifest = export.manifest
    sizes = {
        split: sum((export.work / _name(export, one)).stat().st_size for one in shards)
        for split, shards in export.places.items()
    }
    features = _features(export.schema)
    num_records = sum(split.num_records for split in manifest.splits.values())
    facts = {
        "pretty_name": manifest.name,
        **({"task_categories": tasks} if (tasks := _tasks(export.schema)) else {}),
        "size_categories": [next((n for most, n in _SIZES if num_records < most), _LARGEST)],
        "dataset_info": {
            "features": [{"name": name, **_plain(one)} for name, one in features.items()],
            "splits": [
                {"name": name, "num_bytes": sizes[name], "num_examples": split.num_records}
                for name, split in manifest.splits.items()
            ],
            "download_size": sum(sizes.values()),
            "dataset_size": sum(sizes.values()),
        },
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": name, "path": f"data/{name}-*.parquet"} for name in manifest.splits
                ],
            }
        ],
    }
    head = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)
    rows = "".join(f"| {n} | {one.num_records:,} |\n" for n, one in manifest.splits.items())
    text = (
        f"---\n{_LICENCE}{head}---\n\n# {manifest.name} {manifest.version}\n\n"
        f"| split | images |\n|---|---|\n{rows}\n"
        "```python\nfrom datasets import load_dataset\n\n"
        'dataset = load_dataset("path/to/this/folder")\n```\n\n'
        "Exported by shardprep; images are the bytes that its shards hold.\n"
    )
    write_durably(export.work / "README.md", text.encode())
    croissant = parquet_croissant(manifest, export.schema, _columns(export.schema))
    write_durably(export.work / CROISSANT_FILE, croissant)


def _tasks(schema: Schema) -> list[str]:
    tasks = []
    if schema.target in (LABEL, LABELS) or schema.class_features:
        tasks.append("image-classification")
    if BOX in schema.features:
        tasks.append("object-detection")
    if MASK in schema.features or OBJECT_MASK in schema.features:
        tasks.append("image-segmentation")
    return tasks


def _plain(feature: Any) -> dict[str, Any]:
    """Return a feature in the YAML form of a dataset card."""
    if isinstance(feature, list):
        inner = _plain(feature[0])
        short = next(iter(inner.values())) if list(inner) in (["dtype"], ["struct"]) else inner
        return {"list": short}
    kind = feature.get("_type")
    if kind is None:
        return {"struct": [{"name": name, **_plain(one)} for name, one in feature.items()]}
    if kind == "ClassLabel":
        names = {str(i): name for i, name in enumerate(feature["names"])}
        return {"dtype": {"class_label": {"names": names}}}
    return {"dtype": "image" if kind == "Image" else feature["dtype"]}


WRITERS = {"parquet": Layout(_write, _name, _write_documents, record_bytes=1024, version=2)}
