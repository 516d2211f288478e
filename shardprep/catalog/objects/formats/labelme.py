"""LabelMe: a JSON file for each image, with shapes in pixels of the image as it is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardprep.catalog.names import stem
from shardprep.catalog.objects.formats.bounded_read import MOST_VALUES, Text, has_many_values
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.formats.shapes import box_of, ellipse, rectangle
from shardprep.catalog.objects.object_table import MALFORMED, ObjectTable
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError, counted
from shardprep.image.annotation_types import Floats, Polygons

_NO_CLASSES = ("__ignore__", "_background_")
"""Labels of shapes that are no objects."""
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, AttributeError)
"""Errors that shapes raise which are not those of LabelMe."""


def is_labelme(data: bytes) -> bool:
    """Tell whether bytes look like a file of LabelMe, without parsing them."""
    return b'"shapes"' in data and b'"imagePath"' in data


def read_labelme(documents: Iterable[Text], index: KeyIndex, *, outlines: bool = False) -> Found:
    """Return the objects of all files; shapes of one `group_id` and label are one object.

    A file belongs to the image of its own name, or else to the one that it states.

    Raises:
        SourceError: two files belong to one image, or none to any.

    """
    pairing, table = Pairing(index), ObjectTable(len(index.keys))
    keys = pairing.documents
    missing: dict[str, int] = {}
    for text in documents:
        key = text.key
        if not text.fault and not is_labelme(text.data):
            continue
        document, fault = _parsed(text)
        path = document.get("imagePath")
        image = pairing.find(stem(key), key)
        if image is None and isinstance(path, str):
            image = pairing.find(path, key)
        if image is None:
            missing[key] = _num_objects(document)
            continue
        pairing.claim(image, key)
        if reason := fault or _add(table, image, document, outlines=outlines):
            table.fault(image, f"{key} {reason}")
    if not keys:
        raise SourceError("--boxes labelme", "no JSON file of the source is one of its images")
    names, labels_of = table.natural_names()
    return Found(
        annotations=table.annotations(labels_of),
        names=names,
        how=f"LabelMe, {counted(len(keys), 'JSON file')}",
        documents=tuple(keys.values()),
        without_image=missing,
    )


def _parsed(text: Text) -> tuple[dict[str, Any], str]:
    """Return the content of a file, or why it cannot be read."""
    if has_many_values(text.data):
        return {}, f"has more than {MOST_VALUES:,} values"
    try:
        document = {} if text.fault else json.loads(text.data)
    except (ValueError, RecursionError) as error:
        return {}, f"is damaged JSON ({error})"
    if not isinstance(document, dict):
        return {}, "is no JSON object"
    return document, text.fault


def _add(table: ObjectTable, image: int, document: dict[str, Any], *, outlines: bool) -> str:
    """Add the objects of an image; return why they cannot be read, "" if they can."""
    try:
        objects, num_bad = _objects(document)
    except _DAMAGE:
        return "has shapes that are none of LabelMe"
    height, width = document.get("imageHeight"), document.get("imageWidth")
    is_stated = isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0
    table.list_image(image, (height, width) if is_stated else None)  # type: ignore[arg-type]
    if num_bad:
        table.drop(image, MALFORMED, num_bad)
    for (label, _), rings in objects.items():
        outline = Polygons(tuple(rings)) if outlines else None
        table.add(image, box_of(rings), table.number_of(label), outline=outline)
    return ""


def _num_objects(document: dict[str, Any]) -> int:
    """Return the number of objects in a file, 0 for one that cannot be read."""
    try:
        objects, num_bad = _objects(document)
    except _DAMAGE:
        return 0
    return len(objects) + num_bad


def _objects(document: dict[str, Any]) -> tuple[dict[tuple[str, object], list[Floats]], int]:
    """Return the polygons of each object, and the number of shapes that are none."""
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
    """Return the corners of a shape; None for lines, points and shapes with too few corners."""
    if points.ndim != 2 or points.shape[1] != 2:
        return None
    if kind in ("rectangle", "mask") and len(points) in (2, 4):
        return rectangle(*points.min(0).tolist(), *points.max(0).tolist())
    if kind == "circle" and len(points) == 2:
        radius = math.dist(points[0], points[1])
        return ellipse(float(points[0, 0]), float(points[0, 1]), radius, radius)
    return points if kind in ("polygon", "oriented_rectangle") and len(points) >= 3 else None
