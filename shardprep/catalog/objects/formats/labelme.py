"""LabelMe: a JSON file for each image, with shapes in pixels of the displayed image."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from shardprep.catalog.names import stem
from shardprep.catalog.objects.formats.annotated_source import (
    MOST_BYTES,
    MOST_VALUES,
    AnnotatedSource,
    Sign,
    Text,
    by_sample,
    has_many_values,
    named_as_images,
    read_each,
)
from shardprep.catalog.objects.formats.box_format import box_of, ellipse, rectangle
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import MALFORMED, Found, ObjectTable
from shardprep.errors import OptionName, SourceError, counted
from shardprep.image.annotation_types import Floats, Polygons
from shardprep.recipe.object_rules import FormatRule

_NO_CLASSES = ("__ignore__", "_background_")
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, AttributeError)


def is_labelme(data: bytes) -> bool:
    """Return True if bytes look like a file of LabelMe, without parsing them."""
    return b'"shapes"' in data and b'"imagePath"' in data


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all files; shapes with the same `group_id` and label are one object.

    A file belongs to the image of the same name; without such an image, to the one in `imagePath`.
    """
    pairing = Pairing(source.index)
    table = ObjectTable(len(source.index.keys), outlines=source.outlines)
    for text in read_each(source.documents.members(".json"), 4 * MOST_BYTES):
        key = text.key
        if not text.fault and not is_labelme(text.data):
            continue
        document, fault = _parsed(text)
        path = document.get("imagePath")
        image = pairing.find(stem(key), key)
        if image is None and isinstance(path, str):
            image = pairing.find(path, key)
        if image is None:
            table.missing[key] = _num_objects(document)
            continue
        pairing.claim(image, key)
        if reason := fault or _add(table, image, document):
            table.fault(image, f"{key} {reason}")
    keys = pairing.documents.values()
    if not keys:
        what = "no JSON file of the source belongs to one of its images"
        raise SourceError(OptionName("boxes", rule.kind), what)
    return table.found(f"LabelMe, {counted(len(keys), 'JSON file')}", keys)


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of LabelMe files that are named like the images, or []."""
    return by_sample(source, named_as_images(source, ".json"), is_labelme, "labelme", "LabelMe")


def _parsed(text: Text) -> tuple[dict[str, Any], str]:
    if has_many_values(text.data):
        return {}, f"has more than {MOST_VALUES:,} values"
    try:
        document = {} if text.fault else json.loads(text.data)
    except (ValueError, RecursionError) as error:
        return {}, f"is damaged JSON ({error})"
    if not isinstance(document, dict):
        return {}, "is not a JSON object"
    return document, text.fault


def _add(table: ObjectTable, image: int, document: dict[str, Any]) -> str:
    try:
        objects, num_bad = _objects(document)
    except _DAMAGE:
        return "has shapes that LabelMe does not write"
    height, width = document.get("imageHeight"), document.get("imageWidth")
    is_stated = isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0
    table.list_image(image, (height, width) if is_stated else None)  # type: ignore[arg-type]
    if num_bad:
        table.drop(image, MALFORMED, num_bad)
    for (label, _), rings in objects.items():
        number = table.number_of(label)
        table.add(image, box_of(rings), number, outline=Polygons(tuple(rings)))
    return ""


def _num_objects(document: dict[str, Any]) -> int:
    try:
        objects, num_bad = _objects(document)
    except _DAMAGE:
        return 0
    return len(objects) + num_bad


def _objects(document: dict[str, Any]) -> tuple[dict[tuple[str, object], list[Floats]], int]:
    objects: dict[tuple[str, object], list[Floats]] = {}
    num_bad = 0
    for number, shape in enumerate(document["shapes"]):
        label, group = str(shape["label"]), shape.get("group_id")
        if label in _NO_CLASSES:
            continue
        points = np.array(shape["points"], np.float64)
        try:
            ring = _ring(shape.get("shape_type") or "polygon", points)
        except OverflowError:
            ring = None
        if ring is None:
            num_bad += 1
        else:
            one = (label, ("shape", number) if group is None else str(group))
            objects.setdefault(one, []).append(ring)
    return objects, num_bad


def _ring(kind: str, points: Floats) -> Floats | None:
    if points.ndim != 2 or points.shape[1] != 2:
        return None
    if kind in ("rectangle", "mask") and len(points) in (2, 4):
        return rectangle(*points.min(0).tolist(), *points.max(0).tolist())
    if kind == "circle" and len(points) == 2:
        radius = math.dist(points[0], points[1])
        return ellipse(float(points[0, 0]), float(points[0, 1]), radius, radius)
    return points if kind in ("polygon", "oriented_rectangle") and len(points) >= 3 else None
