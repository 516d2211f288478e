"""TFRecords with the keys of TensorFlow's Object Detection API and model garden.

https://github.com/tensorflow/models/blob/master/research/object_detection/core/standard_fields.py
and official/vision/data/tfrecord_lib.py: box edges are four lists, classes count from 1, names are
in `label_map.pbtxt`. Features without a key there keep their own name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shardprep.dataset import documents, example, tfrecord
from shardprep.dataset.schema import (
    BOX_LABEL,
    KEYPOINTS,
    LABEL,
    LABELS,
    MASK,
    OBJECT_MASK,
    POINTS,
    Schema,
)
from shardprep.exporter.samples import Export, ExportSample, Keypoints, Layout, ShardPlace
from shardprep.storage.atomic_file import DurableFile, write_durably

_CORNERS = ("ymin", "xmin", "ymax", "xmax")
_BOX, _OF_IMAGE, _OF_OBJECT = "image/object/bbox", "image/class", "image/object/class"
_DTYPES = {
    **{f"{_BOX}/{corner}": "float32" for corner in _CORNERS},
    f"{_OF_IMAGE}/label": "int64",
    f"{_OF_IMAGE}/text": "bytes",
    f"{_OF_OBJECT}/label": "int64",
    f"{_OF_OBJECT}/text": "bytes",
    "image/object/is_crowd": "int64",
    "image/object/mask": "bytes",
    "image/object/keypoint/num": "int64",
    "image/object/keypoint/text": "bytes",
    "image/object/keypoint/visibility": "int64",
    "image/object/keypoint/x": "float32",
    "image/object/keypoint/y": "float32",
    "target": "float32",
}
"""dtype of each list that can be empty."""


def _name(export: Export, place: ShardPlace) -> str:
    return documents.shard_name(export.manifest.name, place.split, place.index, place.count)


def _write(
    export: Export, place: ShardPlace, samples: Iterable[ExportSample]
) -> Callable[[], None]:
    dtypes = {**_DTYPES, **export.schema.dtypes}
    with DurableFile(export.work / _name(export, place)) as file:
        for sample in samples:
            values = _values(sample, export.schema)
            file.write(tfrecord.frame(example.encode(values, dtypes)))
        return file.hand_over()


def _values(sample: ExportSample, schema: Schema) -> dict[str, Any]:
    key = sample.key.encode()
    height, width = sample.size
    values: dict[str, Any] = {
        "image/encoded": [bytes(sample.image)],
        "image/format": [sample.encoding.encode()],
        "image/filename": [key],
        "image/source_id": [key],
        "image/key/sha256": [hashlib.sha256(sample.image).hexdigest().encode()],
        "image/height": [height],
        "image/width": [width],
    }
    target = sample.target
    if schema.target in (LABEL, LABELS):
        classes = target if isinstance(target, tuple) else (target,)
        labels = [one for one in classes if isinstance(one, int) and one >= 0]
        values |= _named(_OF_IMAGE, labels, schema.labels)
    elif schema.target is not None:
        several = target if isinstance(target, list) else [target]
        values[schema.target] = [
            one.encode() if isinstance(one, str) else math.nan if one is None else one
            for one in several
            if one is not None or isinstance(target, list)
        ]
    values |= {name: [label] for name, label in sample.classes.items()}
    if BOX_LABEL in schema.features:
        objects = sample.objects
        for i, corner in enumerate(_CORNERS):
            values[f"{_BOX}/{corner}"] = [box[i] for box in objects.boxes]
        values |= _named(_OF_OBJECT, objects.labels, schema.features[BOX_LABEL].labels)
        values["image/object/is_crowd"] = objects.crowds or [0] * len(objects.labels)
        if OBJECT_MASK in schema.features:
            values["image/object/mask"] = [bytes(mask) for mask in objects.masks]
        values |= _points("image/object/keypoint", objects.keypoints, schema, KEYPOINTS)
    values |= _points("image/keypoint", [sample.points], schema, POINTS)
    if sample.mask is not None:
        values["image/segmentation/class/encoded"] = [bytes(sample.mask)]
        values["image/segmentation/class/format"] = [b"png"]
    for name, cell in sample.columns.items():
        plain = cell.encode() if isinstance(cell, str) else cell
        values.setdefault(name, [] if plain is None else [plain])
    return values


def _points(prefix: str, several: Sequence[Keypoints], schema: Schema, name: str) -> dict[str, Any]:
    if name not in schema.features:
        return {}
    places = [one for points in several for one in points]
    return {
        f"{prefix}/y": [y for y, _, _ in places],
        f"{prefix}/x": [x for _, x, _ in places],
        f"{prefix}/visibility": [visible for _, _, visible in places],
        f"{prefix}/text": [one.encode() for one in schema.features[name].points] * len(several),
        **({f"{prefix}/num": [len(one) for one in several]} if name == KEYPOINTS else {}),
    }


def _named(prefix: str, labels: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    return {
        f"{prefix}/label": [one + 1 for one in labels],
        f"{prefix}/text": [names[one].encode() for one in labels],
    }


def _write_label_maps(export: Export) -> None:
    """Write the label maps. Classes of masks and of `label/NAME` count from 0, as stored."""
    schema = export.schema
    objects = schema.features[BOX_LABEL].labels if BOX_LABEL in schema.features else ()
    maps = {"label_map.pbtxt": (objects or schema.labels, 1)}
    if objects and schema.labels:
        maps["image_label_map.pbtxt"] = (schema.labels, 1)
    if MASK in schema.features:
        maps["mask_label_map.pbtxt"] = (schema.features[MASK].labels, 0)
    for name in schema.class_features:
        maps[f"{name.replace('/', '_')}_map.pbtxt"] = (schema.features[name].labels, 0)
    for file, (names, first) in maps.items():
        if names:
            items = (_item(number, name) for number, name in enumerate(names, first))
            write_durably(export.work / file, "".join(items).encode())


def _item(number: int, name: str) -> str:
    """Return an item of a label map; special and non-ASCII characters are octal escapes."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"'\"\\" else f"\\{byte:03o}"
        for byte in name.encode()
    )
    return f"item {{\n  id: {number}\n  name: '{plain}'\n}}\n"


WRITERS = {"tfod": Layout(_write, _name, _write_label_maps, record_bytes=512)}
