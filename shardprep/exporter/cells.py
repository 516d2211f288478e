"""Columns, COCO annotations and file names of the images of an export.

In COCO, coordinates are in pixels, and class numbers start at 1
(https://cocodataset.org/#format-data). A COCO document is written entry by entry, to save memory.

A file name is valid on any file system, and unique in its split. It is the last part of the key,
without the suffix. If such a name is repeated in a split or too long, all names are whole keys with
`__` for `/`. Names that are still repeated or too long end in `~` and a hash of the key. No other
name contains `~`, so no key can be chosen to get the name of another key.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from shardprep.dataset.schema import (
    BOX_LABEL,
    CLASS_PREFIX,
    KEYPOINTS,
    LABEL,
    LABELS,
    POINTS,
    TARGETS,
    UNLABELLED,
    Feature,
    Schema,
)
from shardprep.errors import RecordError
from shardprep.exporter.samples import ExportSample, Keypoints, table_columns

_DIGITS = 4
"""Decimal places of pixel coordinates. Float32 boxes of a large image are not more precise."""


def pixel_boxes(sample: ExportSample) -> list[list[float]]:
    """Return the boxes of a sample in pixels: left, top, width and height."""
    height, width = sample.size
    boxes = [
        (left * width, top * height, (right - left) * width, (bottom - top) * height)
        for top, left, bottom, right in sample.objects.boxes
    ]
    return [[round(one, _DIGITS) for one in box] for box in boxes]


def pixel_points(sample: ExportSample, keypoints: Keypoints) -> list[list[float]]:
    """Return [x, y, visibility] of each keypoint, with x and y in pixels."""
    height, width = sample.size
    return [
        [round(x * width, _DIGITS), round(y * height, _DIGITS), visible]
        for y, x, visible in keypoints
    ]


def mask_pixels(sample: ExportSample) -> Iterator[NDArray[np.uint8]]:
    """Yield the mask of each object, uint8[height, width] of 0 and 1. RecordError if damaged."""
    from shardprep.dataset.stored_size import open_stored

    for i, mask in enumerate(sample.objects.masks):
        try:
            with open_stored(mask, "PNG") as image:
                yield np.asfortranarray(np.asarray(image) != 0, np.uint8)
        except Exception as error:  # decoders raise any type of exception
            what = f"the mask of object {i} cannot be decoded"
            raise RecordError(
                sample.key, what, "run `shardprep verify DATASET --decode`"
            ) from error


def run_lengths(sample: ExportSample) -> list[dict[str, Any]]:
    """Return the masks in COCO's compressed run-length encoding; RecordError if one is damaged."""
    if not sample.objects.masks:
        return []
    from pycocotools import mask as coco

    encoded = map(coco.encode, mask_pixels(sample))
    return [{"size": [*one["size"]], "counts": one["counts"].decode()} for one in encoded]


def coco_entry(sample: ExportSample, file_name: str, image_id: int) -> dict[str, Any]:
    """Return COCO's `image` and `annotations` of a sample. `write_coco` adds the annotation ids."""
    from pycocotools import mask as coco

    height, width = sample.size
    image = {"id": image_id, "file_name": file_name, "width": width, "height": height}
    boxes, crowds, masks = pixel_boxes(sample), sample.objects.crowds, run_lengths(sample)
    keypoints = [
        {
            "keypoints": [*itertools.chain(*pixel_points(sample, one))],
            "num_keypoints": sum(visible > 0 for _, _, visible in one),
        }
        for one in sample.objects.keypoints
    ]
    annotations = [
        {
            "image_id": image_id,
            "category_id": label + 1,
            "bbox": box,
            "area": int(coco.area(masks[i])) if masks else box[2] * box[3],
            "iscrowd": crowds[i] if crowds else 0,
            "segmentation": masks[i] if masks else [],
            **(keypoints[i] if keypoints else {}),
        }
        for i, (box, label) in enumerate(zip(boxes, sample.objects.labels, strict=True))
    ]
    return {"image": image, "annotations": annotations}


def write_coco(
    file: BinaryIO, lines: Iterable[bytes], again: Iterable[bytes], schema: Schema
) -> None:
    """Write a COCO document. `lines` and `again` must yield the same `coco_entry` dicts as JSON."""
    more = skeleton(schema.features[KEYPOINTS]) if KEYPOINTS in schema.features else {}
    classes = schema.features[BOX_LABEL].labels
    categories = [{"id": i + 1, "name": name, **more} for i, name in enumerate(classes)]
    file.write(b'{"categories": ' + _json(categories) + b',\n"images": [')
    for i, line in enumerate(lines):
        image = _json(json.loads(line)["image"])
        file.write((b",\n" if i else b"\n") + image)
    file.write(b'],\n"annotations": [')
    number = 0
    for line in again:
        for annotation in json.loads(line)["annotations"]:
            number += 1
            file.write((b",\n" if number > 1 else b"\n") + _json({"id": number, **annotation}))
    file.write(b"]}\n")


def skeleton(keypoints: Feature) -> dict[str, Any]:
    """Return COCO's `keypoints` (names) and `skeleton` (edges, as keypoint numbers from 1)."""
    edges = [[one + 1, other + 1] for one, other in keypoints.edges]
    return {"keypoints": [*keypoints.points], "skeleton": edges}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


Role = Literal["target", "number", "points", "column"]
"""Use of a column in a build from the export. "number", a class index, is not used there."""

VISIBLE = "visible"
TAKEN = {
    "webdataset": ("key", "height", "width", "objects"),
    "parquet": ("image", "key", "width", "height"),
}
"""Layout → names of its fixed fields, which columns cannot have."""


def titles(
    schema: Schema, taken: Iterable[str], more: Sequence[str] = ()
) -> list[tuple[str, Role]]:
    """Return the name and role of each column. `more` are the names of additional last columns.

    A name that is in `taken` or belongs to an earlier column gets a prefix, such as "column/".
    """
    found: list[tuple[str, Role]] = []
    known = {*taken}

    def add(role: Role, kind: str, names: Iterable[str]) -> None:
        found.extend((f"{kind}/{name}" if name in known else name, role) for name in names)
        known.update(title for title, _ in found)

    target = schema.target
    if target == TARGETS:
        add("target", TARGETS, schema.features[TARGETS].labels)
    elif target is not None:
        add("number" if target in (LABEL, LABELS) else "target", "target", [target])
    for name in schema.class_features:
        add("number", "class", [name])
        add("target", "class", [name.removeprefix(CLASS_PREFIX)])
    add("target", "target", {LABEL: ["class"], LABELS: ["classes"]}.get(target or "", []))
    add("points", "point", point_titles(schema))
    add("column", "column", (*table_columns(schema), *more))
    return found


def point_titles(schema: Schema) -> list[str]:
    """Return three column names for each keypoint of an image: NAME_x, NAME_y, NAME_visible."""
    names = schema.features[POINTS].points if POINTS in schema.features else ()
    return [f"{name}_{part}" for name in names for part in ("x", "y", VISIBLE)]


def point_cells(sample: ExportSample) -> list[float | None]:
    """Return the values of `point_titles`. x and y are in pixels, or None if visibility is 0."""
    cells: list[float | None] = []
    for x, y, visible in pixel_points(sample, sample.points):
        cells += [x, y, visible] if visible else [None, None, 0]
    return cells


def cells_of(sample: ExportSample, schema: Schema) -> list[object]:
    """Return a value for each column of `titles`: None if missing, −1 for a missing class index."""
    target, cells = sample.target, list[object]()
    if schema.target == TARGETS and isinstance(target, list):
        cells += target
    elif schema.target is not None:
        cells.append([*target] if isinstance(target, tuple) else target)
    for name, label in sample.classes.items():
        cells += [label, _name(label, schema.features[name].labels)]
    if isinstance(target, tuple):
        cells.append([schema.labels[one] for one in target])
    elif schema.target == LABEL and isinstance(target, int):
        cells.append(_name(target, schema.labels))
    return [*cells, *point_cells(sample), *sample.columns.values()]


def _name(label: int, names: Sequence[str]) -> str | None:
    return None if label == UNLABELLED else names[label]


_UNSAFE = re.compile(r"[^\w+=@,.-]|^[.-]")
"""Characters replaced by `_`: special in shells or on Windows, or a leading dot or hyphen."""
_MOST_BYTES = 120
"""Maximum bytes of a name without hash and suffix. File systems allow 255 bytes in total."""
_HASH_DIGITS = 32


def file_names(keys: Sequence[str], scopes: Sequence[str], *, dots: bool = True) -> list[str]:
    """Return a file name without suffix per key. Names of a scope (split) differ, ignoring case."""
    stems = [_without_suffix(key) for key in keys]
    names = [_readable(stem.rpartition("/")[2], dots=dots) for stem in stems]
    if not _repeated(names, scopes) and not any(_is_long(name) for name in names):
        return names
    names = [_readable(stem.replace("/", "__"), dots=dots) for stem in stems]
    return _distinct(names, keys, scopes)


def folder_names(texts: Sequence[str]) -> list[str]:
    """Return a unique folder name for each text, such as a class name. The texts must differ."""
    return _distinct([_readable(text, dots=True) for text in texts], texts, [""] * len(texts))


def _without_suffix(key: str) -> str:
    start = key.rfind("/") + 1
    dot = key.rfind(".", start)
    return key[:dot] if start < dot < len(key) - 1 else key


def _readable(text: str, *, dots: bool) -> str:
    if text.isascii() and text.isalnum():  # a common case, three times as fast
        return text
    name = _UNSAFE.sub("_", unicodedata.normalize("NFC", text)) or "_"
    return name if dots else name.replace(".", "_")


def _is_long(name: str) -> bool:
    return len(name.encode()) > _MOST_BYTES


def _repeated(names: Iterable[str], scopes: Sequence[str]) -> set[int]:
    """Return the hash of each pair (scope, name) that occurs more than once, ignoring case."""
    counts = Counter(
        hash((scope, name.casefold())) for name, scope in zip(names, scopes, strict=True)
    )
    return {one for one, count in counts.items() if count > 1}


def _distinct(names: Sequence[str], texts: Sequence[str], scopes: Sequence[str]) -> list[str]:
    """Return the names. A repeated or too long name is cut and ends in a hash of its text."""
    repeated = _repeated(names, scopes)
    distinct = []
    for name, text, scope in zip(names, texts, scopes, strict=True):
        if hash((scope, name.casefold())) in repeated or _is_long(name):
            digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
            short = name.encode()[:_MOST_BYTES].decode(errors="ignore")
            distinct.append(f"{short}~{digest[:_HASH_DIGITS]}")
        else:
            distinct.append(name)
    return distinct
