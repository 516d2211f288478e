"""Croissant 1.0 description (JSON-LD) of a dataset, or of its export to Parquet.

Croissant (https://docs.mlcommons.org/croissant/docs/croissant-spec.html) lists files with their
hashes, and the columns of tables. It cannot describe the records of TFRecord files. So a dataset is
described by its shard files and its item table, and an export by its tables, with images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.item_table import columns_of
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX_LABEL, LABEL, LABELS, Schema
from shardprep.errors import BuildError, OptionName
from shardprep.exporter.export import Exported
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.regular_file import sha256_of

CROISSANT_FILE = "croissant.json"
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
"""Type of an image column in Hugging Face `datasets`."""
_WORDS = (
    *("citeAs", "column", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("equivalentProperty", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField"),
    *("path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("separator", "source", "subField", "transform"),
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{word: f"cr:{word}" for word in _WORDS},
}
_PARQUET, _TFRECORD = "application/x-parquet", "application/x-tfrecord"
_SPLIT = "(?:data/)?([a-z0-9_]+)(?:-.*)?"
"""Finds the split in a file path. Also matches a split: mlcroissant applies the pattern twice."""
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_./-]")
_Node = dict[str, Any]
_Classes = Mapping[str, Sequence[str]]
"""Field of class indices → class names."""


def write_croissant(dataset: OpenDataset, *, overwrite: bool = False) -> Exported:
    """Write `croissant.json` into the folder of a dataset, and return what was written.

    The file describes the item table, the splits and the classes. BuildError if it exists with
    other content, unless `overwrite`. RecipeError if the dataset is in object storage.
    """
    folder = dataset.folder("export --croissant")
    manifest, schema = dataset.manifest, dataset.schema
    with dataset.documents(ITEMS_FILE):
        columns = columns_of(pq.read_schema(folder / ITEMS_FILE))
        size, digest = (folder / ITEMS_FILE).stat().st_size, sha256_of(folder / ITEMS_FILE)
    files = [(ITEMS_FILE, _PARQUET, size, digest)]
    files += [(one.name, _TFRECORD, one.num_bytes, one.sha256) for one in manifest.shards.values()]
    distribution = [
        {"@type": "cr:FileObject", "@id": name, "name": name, "contentUrl": name,
         "contentSize": f"{num_bytes} B", "encodingFormat": encoding, "sha256": sha256}
        for name, encoding, num_bytes, sha256 in files
    ]  # fmt: skip
    classes = _classes(schema, objects="object_labels")
    fields = _fields("items", columns, classes, {"fileObject": {"@id": ITEMS_FILE}})
    data = _document(manifest, distribution, "items", fields, classes)
    path = folder / CROISSANT_FILE
    was_there = path.is_file() and path.read_bytes() == data
    if path.exists() and not was_there and not overwrite:
        hint = f"move it, or add {OptionName('overwrite')} to replace it"
        raise BuildError(str(path), "already exists with other content", hint)
    if not was_there:
        write_durably(path, data)
    splits = {name: split.num_records for name, split in manifest.splits.items()}
    return Exported(path, "croissant", was_there, splits, 0, num_files=1, num_bytes=len(data))


def parquet_croissant(manifest: Manifest, schema: Schema, columns: pa.Schema) -> bytes:
    """Return the content of `croissant.json` for an export to Parquet files with `columns`."""
    files = {"@type": "cr:FileSet", "@id": "parquet", "encodingFormat": _PARQUET,
             "includes": "data/*.parquet"}  # fmt: skip
    source = {"fileSet": {"@id": "parquet"}}
    classes = _classes(schema, objects="objects/category")
    place = {"extract": {"fileProperty": "fullpath"}, "transform": {"regex": _SPLIT}}
    split = {"@type": "cr:Field", "@id": "records/split", "name": "split", "dataType": "sc:Text",
             "source": {**source, **place}, "references": _SPLIT_NAME}  # fmt: skip
    fields = [split, *_fields("records", columns, classes, source)]
    return _document(manifest, [files], "records", fields, classes)


_SPLIT_NAME = {"field": {"@id": "splits/name"}}


def _classes(schema: Schema, *, objects: str) -> _Classes:
    classes = {name: schema.labels for name in (LABEL, LABELS) if schema.target == name}
    classes |= {name: schema.features[name].labels for name in schema.class_features}
    if BOX_LABEL in schema.features:
        classes[objects] = schema.features[BOX_LABEL].labels
    return {_id(name): labels for name, labels in classes.items() if labels}


def _document(
    manifest: Manifest, files: list[_Node], table: str, fields: list[_Node], classes: _Classes
) -> bytes:
    splits = [(name, split.num_records) for name, split in manifest.splits.items()]
    counts = ", ".join(f"{number:,} {name}" for name, number in splits)
    facts = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": manifest.name,
        "version": manifest.version,
        "description": f"Images and annotations, prepared by shardprep. Records: {counts}.",
        **({"rai:dataPreprocessingProtocol": [manifest.leaks.details]} if manifest.leaks else {}),
        "distribution": files,
        "recordSet": [
            _rows("splits", ("name", "num_records"), splits, "cr:Split"),
            *(
                _rows(
                    f"classes_of_{name}", ("index", "name"), [*enumerate(labels)], "sc:Enumeration"
                )
                for name, labels in classes.items()
            ),
            {"@type": "cr:RecordSet", "@id": table, "name": table, "field": fields},
        ],
    }
    return (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode()


def _rows(table: str, names: tuple[str, str], rows: Sequence[Any], data_type: str) -> _Node:
    """Return a record set with two fields and inline data. The first field is its key."""
    ids = [f"{table}/{name}" for name in names]
    fields = [
        {"@type": "cr:Field", "@id": place, "name": name,
         "dataType": "sc:Integer" if isinstance(value, int) else "sc:Text"}
        for place, name, value in zip(ids, names, rows[0], strict=True)
    ]  # fmt: skip
    data = [dict(zip(ids, row, strict=True)) for row in rows]
    return {"@type": "cr:RecordSet", "@id": table, "name": table, "dataType": data_type,
            "key": {"@id": ids[0]}, "field": fields, "data": data}  # fmt: skip


def _fields(table: str, columns: pa.Schema, classes: _Classes, source: _Node) -> list[_Node]:
    """Return the fields of all columns except maps, which Croissant does not support."""
    found = []
    for column in columns:
        extract = {**source, "extract": {"column": column.name}}
        if not pa.types.is_map(column.type):
            found.append(_field(f"{table}/{_id(column.name)}", column, classes, extract, []))
    return found


def _id(name: str) -> str:
    """Escape the characters of a name that mlcroissant refuses in an `@id`."""
    return _NOT_IN_IDS.sub(lambda match: f"~{ord(match[0]):x}~", name)


def _field(
    place: str, column: pa.Field, classes: _Classes, extract: _Node, steps: list[_Node]
) -> _Node:
    """Return a field. For a member of a struct, `steps` are the transforms to get it."""
    kind = column.type
    field = {"@type": "cr:Field", "@id": place, "name": column.name}
    while pa.types.is_list(kind):
        field["repeated"] = True
        kind = kind.value_type
    if pa.types.is_struct(kind) and kind != IMAGE:
        members = [
            _field(f"{place}/{one.name}", one, classes, extract, [*steps, {"jsonPath": one.name}])
            for one in kind
            if not (pa.types.is_list(one.type) and pa.types.is_struct(one.type.value_type))
        ]
        return {**field, "subField": members}
    field["dataType"] = "sc:Text"
    if kind == IMAGE:
        field["dataType"], steps = "sc:ImageObject", [*steps, {"jsonPath": "bytes"}]
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        field["dataType"] = "sc:Integer" if pa.types.is_integer(kind) else "sc:Float"
    field["source"] = {**extract, **({"transform": steps} if steps else {})}
    if (name := place.partition("/")[2]) in classes:
        field["references"] = {"field": {"@id": f"classes_of_{name}/index"}}
    elif name == "split":
        field["references"] = _SPLIT_NAME
    return field
