"""LabelMe: a JSON file for each image, with shapes in pixels of the displayed image."""

from __future__ import annotations

import base64
import glob
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shardprep.catalog.objects.formats.annotated_source import (
    MOST_BYTES,
    MOST_VALUES,
    NO_CLASSES,
    AnnotatedSource,
    Sign,
    Text,
    by_sample,
    has_many_values,
    named_as_images,
    no_documents,
    read_each,
)
from shardprep.catalog.objects.formats.box_format import box_of, ellipse, pasted_runs, rectangle
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.image_points import NOT_A_NUMBER, REPEATED, FoundPoints, PointList
from shardprep.catalog.objects.object_table import MALFORMED, Found, ObjectTable, stated_size
from shardprep.errors import OptionName, SourceError, counted
from shardprep.image.annotation_types import Floats, Outline, Polygons, Runs, Skeleton
from shardprep.image.masks import MAX_PIXELS, decode_mask
from shardprep.image.rasterize import outline_mask, runs_of
from shardprep.recipe.object_rules import FormatRule, PointRule

NO_OBJECT_OF_POINT = "no object of its group"
_SHAPES = ("polygon", "rectangle", "oriented_rectangle", "circle", "mask")
_SHAPED = re.compile(rb'"shapes"\s*:\s*\[\s*\{')
_OUTLINED = re.compile(rb'"shape_type"\s*:\s*"(polygon|mask|circle)"')
_OF_SHAPES = re.compile(rb'"shapes"\s*:\s*\[\s*(\]|\{[^][{}]*"(label|points)"\s*:)')
_Rows = dict[str, int]
_Part = tuple[tuple[float, ...], Outline]
"""Box, as x, y, x, y in pixels, and outline of a shape or an object."""
_Objects = dict[tuple[str, object], _Part]
"""Label and group → object."""
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, AttributeError)


def is_labelme(data: bytes) -> bool:
    """Return whether bytes look like a file of LabelMe, also without the path of its image."""
    return b'"shapes"' in data and (b'"imagePath"' in data or _OF_SHAPES.search(data) is not None)


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all files; shapes of one `group_id` and label are one object.

    Points are keypoints of the object that has their `group_id`. For errors see `Format`.
    """
    pairing = Pairing(source.index)
    table = ObjectTable(len(source.index.keys), outlines=source.outlines)
    poses = _Poses()
    for file in _files(source, pairing, rule.flag):
        fault, objects, bad = file.fault, _Objects(), Counter[str]()
        try:
            objects, bad = _objects(file.document)
        except _DAMAGE:
            fault = fault or "has shapes that LabelMe does not write"
        if file.image is None:
            table.missing[file.key] = len(objects) + bad.total()
        elif fault:
            table.fault(file.image, f"{file.key} {fault}")
        else:
            table.list_image(file.image, _size(file.document))
            for reason, count in bad.items():
                table.drop(file.image, reason, count)
            rows = _add(table, file.image, objects)
            poses.take(table, file.image, _points_of(file.document), rows)
    findings = pairing.findings
    if poses.num_points and not source.keypoints:
        how = "" if poses.are_of_objects else f" instead of {OptionName('boxes')}"
        flag = OptionName("points", rule.kind)
        points = counted(poses.num_points, "point")
        findings.append(f"{points} of LabelMe: not stored without {flag}{how}")
    if source.keypoints:
        poses.add_to(table)
    names = dict.fromkeys(table.classes, Skeleton(tuple(poses.names)))
    return table.found(
        f"LabelMe, {counted(len(pairing.documents), 'JSON file')}",
        pairing.documents.values(),
        skeletons=names if source.keypoints else None,
        findings=findings,
    )


def read_points(rule: PointRule, source: AnnotatedSource) -> FoundPoints:
    """Return the points of all files as keypoints of images; other shapes are left out.

    SourceError for a damaged file, or without points.
    """
    pairing, found = Pairing(source.index), PointList()
    where = OptionName("points", rule.kind)
    for file in _files(source, pairing, where):
        points = _points_of(file.document)
        if file.image is None:
            found.missing[file.key] = len(points)
            continue
        if file.fault:
            out = OptionName("exclude", glob.escape(file.key))
            hint = f"save this file again with LabelMe, or leave it out: {out}"
            raise SourceError(file.key, file.fault, hint)
        found.listed.add(file.image)
        for one in points:
            if one.place is None:
                found.lose(file.image, NOT_A_NUMBER)
            else:
                found.add(file.image, one.name, one.place)
    keys = pairing.documents.values()
    if not len(found):
        raise SourceError(where, "no file has a shape of the type point", "leave this option out")
    return found.found(f"LabelMe, points of {counted(len(keys), 'JSON file')}", keys, str(where))


class _File(NamedTuple):
    key: str
    image: int | None
    document: dict[str, Any]
    fault: str


def _files(source: AnnotatedSource, pairing: Pairing, where: OptionName) -> Iterator[_File]:
    """Yield the files, each with the image of its name, or else the image in `imagePath`.

    SourceError at the end if no file belongs to an image.
    """
    stray = ""
    for text in read_each(source.documents.members(".json"), 4 * MOST_BYTES):
        key = text.key
        if not text.fault and not is_labelme(text.data):
            continue
        document, fault = _parsed(text)
        path = document.get("imagePath")
        image = pairing.of_document(key, path if isinstance(path, str) else "")
        if image is not None:
            pairing.claim(image, key)
        stray = stray or key
        yield _File(key, image, document, fault)
    if not pairing.documents:
        raise no_documents(source, where, ".json", stray)


class _Point(NamedTuple):
    name: str
    group: str | None
    place: tuple[float, float] | None
    """x and y in pixels; None unless these are two numbers."""


def _points_of(document: dict[str, Any]) -> list[_Point]:
    shapes = document.get("shapes")
    found = []
    for shape in shapes if isinstance(shapes, list) else ():
        if isinstance(shape, dict) and shape.get("shape_type") == "point":
            group = shape.get("group_id")
            try:
                ((x, y),) = shape["points"]
                place = float(x), float(y)
            except _DAMAGE:
                place = math.nan, math.nan
            name, group = str(shape.get("label")), None if group is None else str(group)
            found.append(_Point(name, group, place if all(map(math.isfinite, place)) else None))
    return found


class _Poses:
    """Keypoints of objects; they are collected until the names in all files are known."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.num_points = 0
        self._rows: list[tuple[int, dict[int, tuple[float, float]]]] = []

    @property
    def are_of_objects(self) -> bool:
        return bool(self._rows)

    def take(self, table: ObjectTable, image: int, points: Sequence[_Point], rows: _Rows) -> None:
        """Add the points of an image. `rows` maps a `group_id` to the row of its object."""
        self.num_points += len(points)
        of_row: dict[int, dict[int, tuple[float, float]]] = {}
        for one in points:
            row = rows.get(one.group) if one.group is not None else None
            own = {} if row is None else of_row.setdefault(row, {})
            place = self.names.setdefault(one.name, len(self.names))
            if row is None or one.place is None or place in own:
                reason = NO_OBJECT_OF_POINT if row is None else NOT_A_NUMBER
                table.lose_points(image, reason if place not in own else REPEATED)
            else:
                own[place] = one.place
        self._rows += of_row.items()

    def add_to(self, table: ObjectTable) -> None:
        for row, places in self._rows:
            values = [0.0] * (3 * len(self.names))
            for place, (x, y) in places.items():
                values[3 * place : 3 * place + 3] = x, y, 2.0
            table.add_points(row, values)


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of LabelMe files that are named like images, or []."""
    members = named_as_images(source, ".json")
    signs, texts = by_sample(source, members, is_labelme, "labelme", "LabelMe")
    has_outlines = any(map(_OUTLINED.search, texts))
    have_shapes = any(map(_SHAPED.search, texts))
    return [replace(one, has_outlines=has_outlines) for one in signs if have_shapes]


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


def _add(table: ObjectTable, image: int, objects: _Objects) -> _Rows:
    """Add objects to the table, and return the row of the first object of each `group_id`."""
    rows: _Rows = {}
    for (label, group), (box, outline) in objects.items():
        if isinstance(group, str):
            rows.setdefault(group, len(table))
        table.add(image, box, table.number_of(label), outline=outline)
    return rows


def _size(document: dict[str, Any]) -> tuple[int, int] | None:
    return stated_size(document.get("imageHeight"), document.get("imageWidth"))


def _objects(document: dict[str, Any]) -> tuple[_Objects, Counter[str]]:
    """Return the objects, and the number of dropped shapes by reason; an error in `_DAMAGE`."""
    objects: dict[tuple[str, object], list[_Part]] = {}
    bad: Counter[str] = Counter()
    size = _size(document)
    for number, shape in enumerate(document["shapes"]):
        kind = str(shape.get("shape_type") or "polygon")
        if kind == "point":
            continue
        label, group = str(shape["label"]), shape.get("group_id")
        if label in NO_CLASSES:
            continue
        if kind not in _SHAPES:
            bad[ObjectTable.unread(kind)] += 1
            continue
        points = np.array(shape["points"], np.float64)
        try:
            part = _mask(shape, points, size) if kind == "mask" else _area(kind, points)
        except _DAMAGE:
            bad[MALFORMED] += 1
            continue
        one = (label, ("shape", number) if group is None else str(group))
        objects.setdefault(one, []).append(part)
    return {one: _joined(parts, size or (0, 0)) for one, parts in objects.items()}, bad


def _area(kind: str, points: Floats) -> _Part:
    """Return box and outline of a shape; ValueError or OverflowError if it has no area."""
    if kind == "rectangle" and len(points) in (2, 4):
        points = rectangle(*points.min(0).tolist(), *points.max(0).tolist())
    elif kind == "circle":
        (x, y), edge = points.tolist()
        radius = math.dist((x, y), edge)
        points = ellipse(x, y, radius, radius)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3 + (kind == "rectangle"):
        raise ValueError("not the corners of an area")
    return box_of([points]), Polygons((points,))


def _mask(shape: dict[str, Any], points: Floats, size: tuple[int, int] | None) -> _Part:
    """Return box and runs of a mask; `points` are x, y of its top left and bottom right pixel."""
    left, top, right, bottom = map(int, (*points.min(0), *points.max(0)))
    pixels = decode_mask(base64.b64decode(shape["mask"])).pixels
    if size is None or pixels.shape[:2] != (bottom - top + 1, right - left + 1):
        raise ValueError("the size of a mask differs from its points")
    inside = np.asarray(pixels.reshape(*pixels.shape[:2], -1).any(axis=2))
    return pasted_runs(inside, left, top, size)


def _joined(parts: Sequence[_Part], size: tuple[int, int]) -> _Part:
    box = box_of([np.array(box).reshape(2, 2) for box, _ in parts])
    outlines = [outline for _, outline in parts]
    rings = [one.rings for one in outlines if isinstance(one, Polygons)]
    if len(parts) == 1 or len(rings) == len(parts):
        return box, Polygons(tuple(itertools.chain(*rings))) if rings else outlines[0]
    if math.prod(size) > MAX_PIXELS:
        return box, None
    masks = [outline_mask(one, size) for one in outlines if isinstance(one, (Polygons, Runs))]
    return box, runs_of(np.maximum.reduce(masks))
