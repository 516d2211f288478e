"""CVAT's XML for images 1.1: one document for many images, shapes in pixels.

The XML is parsed as a stream, so the memory of the parser does not grow with the document.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

from shardprep.catalog.names import given_split, natural_order
from shardprep.catalog.objects.formats.annotated_source import (
    DTD_FAULT,
    AnnotatedSource,
    Sign,
    coverage,
    has_dtd,
    local_name,
    shared_documents,
    shared_texts,
)
from shardprep.catalog.objects.formats.box_format import (
    box_of,
    ellipse,
    pasted_runs,
    rectangle,
    turned,
)
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import MALFORMED, Found, ObjectTable, stated_size
from shardprep.catalog.tables.key_index import AmbiguousIdError
from shardprep.errors import SourceError, counted, some_of
from shardprep.image.annotation_types import Outline, Polygons
from shardprep.recipe.object_rules import FormatRule

_SHAPES = ("box", "polygon", "ellipse", "mask")
_OUTLINED = re.compile(rb"<(polygon|ellipse|mask)\s")
_NO_AREAS = ("polyline", "points", "cuboid", "skeleton")
_HEAD_BYTES = 1 << 20
"""Bytes to search for the first image, which follows the labels."""
_PIECE = 1 << 16
_MOST_PIXELS = 1 << 28
"""Maximum number of pixels of a mask."""
_HINT = "export it again from CVAT, as 'CVAT for images 1.1'"


class _Reader:
    def __init__(self, key: str) -> None:
        self.labels: list[str] = []
        self.has_image = False
        self._key = key

    def images(self, data: bytes) -> Iterator[ET.Element]:
        """Yield the elements of images, whose children are shapes and tags."""
        path: list[ET.Element] = []
        for event, one in self._events(data):
            one.tag = local_name(one.tag)
            if event == "start":
                self._check(one.tag, len(path))
                self.has_image |= len(path) == 1 and one.tag == "image" and "name" in one.attrib
                path.append(one)
                continue
            path.pop()
            if one.tag == "label" and any(above.tag == "meta" for above in path):
                name, kind = (one.findtext(part) or "" for part in ("name", "type"))
                if name and not one.findtext("parent") and kind.strip() not in (*_NO_AREAS, "tag"):
                    self.labels.append(name.strip())
            elif len(path) == 1:
                if one.tag == "image":
                    yield one
                path[0].clear()  # keeps memory small

    def _events(self, data: bytes) -> Iterator[tuple[str, ET.Element]]:
        if has_dtd(data):
            raise SourceError(self._key, DTD_FAULT, _HINT)
        parser: Any = ET.XMLPullParser(("start", "end"))
        try:
            for start in range(0, len(data), _PIECE):
                parser.feed(data[start : start + _PIECE])
                yield from parser.read_events()
            parser.close()
        except (ET.ParseError, LookupError, ValueError) as error:
            raise SourceError(self._key, f"is damaged XML ({error})", _HINT) from error

    def _check(self, tag: str, depth: int) -> None:
        if depth == 0 and tag != "annotations":
            raise SourceError(self._key, f"is not XML of CVAT: its root is {tag!r}", _HINT)
        if depth == 1 and tag == "track":
            raise SourceError(self._key, "is XML of CVAT for a video, with tracks", _HINT)


def is_cvat(data: bytes) -> bool:
    """Return whether bytes look like XML of CVAT, with an image in the first MiB."""
    reader = _Reader("")
    with contextlib.suppress(SourceError):  # cut in the middle, or another document
        for _ in reader.images(data[:_HEAD_BYTES]):
            break
    return reader.has_image


def _stated_names(data: bytes) -> list[str]:
    try:
        return [image.get("name", "") for image in _Reader("").images(data)]
    except SourceError:
        return []


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all documents, with classes in the order of the declared labels.

    Boxes, polygons, ellipses and masks are objects. Other shapes are dropped and counted by name,
    tags only counted. Objects in several documents are joined. The subset of an image is its split.
    For errors see `Format`.
    """
    index = source.index
    pairing, table = Pairing(index), ObjectTable(len(index.keys), outlines=source.outlines)
    splits: list[str | None] = [None] * len(index.keys)
    labels: dict[str, None] = {}
    keys: list[str] = []
    num_tags = 0
    for file in shared_documents(source, rule, is_cvat, ".xml"):
        key, data = source.documents.find(file)
        keys.append(key)
        reader, is_listed, missing = _Reader(key), False, Counter[str]()
        for image in reader.images(data):
            name, found = _image(image.attrib, pairing, key)
            shapes = [one for one in image if one.tag != "tag"]
            num_tags += len(image) - len(shapes)
            if found is None:
                missing[name] += len(shapes)
                continue
            is_listed = True
            size = stated_size(image.get("height"), image.get("width"))
            table.list_image(found, size)
            splits[found] = given_split([image.get("subset", "")]) or splits[found]
            for shape in shapes:
                _add(table, found, shape, size)
        table.miss(missing, is_elsewhere=not is_listed)
        labels.update(dict.fromkeys(reader.labels))
    table.check_listed(keys, index.keys[0])
    others = sorted(table.classes.keys() - {""}, key=natural_order)
    names = tuple(dict.fromkeys((*labels, *others)))
    return table.found(
        f"CVAT, {some_of(keys, 3)}",
        keys,
        (names, {name: i for i, name in enumerate(names)}),
        splits=splits if any(splits) else None,
        findings=[f"{counted(num_tags, 'tag')} of CVAT, labels of images, not read"]
        * (num_tags > 0),
    )


def _image(facts: Mapping[str, str], pairing: Pairing, document: str) -> tuple[str, int | None]:
    """Return subset and name of an image, as a unique path, and its position or None."""
    name, subset = facts.get("name", ""), facts.get("subset", "")
    if not name:
        return "", None
    split, path = given_split([subset]) or "", f"{subset}/{name}".lstrip("/")
    try:
        found = pairing.find(name, document, split)
    except AmbiguousIdError:
        found = pairing.find(path, document, split)
    if found is not None:
        pairing.claim_entry(found, document, path, split or subset)
    return path, found


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of the documents if they name images, otherwise []."""
    found = [text for text in shared_texts(source, ".xml") if is_cvat(text.data)]
    named = coverage(source.index, [name for text in found for name in _stated_names(text.data)])
    how = f"{some_of([text.key for text in found], 2)}: CVAT for images, names {named}"
    has_outlines = any(_OUTLINED.search(text.data) for text in found)
    return named.signs(Sign("boxes", "cvat", how, has_outlines=has_outlines))


def _add(table: ObjectTable, image: int, shape: ET.Element, size: tuple[int, int] | None) -> None:
    try:
        box, outline = _object(shape, size)
    except (KeyError, ValueError, OverflowError):
        table.drop(image, MALFORMED if shape.tag in _SHAPES else table.unread(shape.tag))
        return
    number = table.number_of(shape.attrib.get("label", "").strip())
    table.add(image, box, number, outline=outline)


def _object(shape: ET.Element, size: tuple[int, int] | None) -> tuple[tuple[float, ...], Outline]:
    """Return box and outline of a shape; KeyError, ValueError or OverflowError if malformed."""
    facts = shape.attrib
    turn = math.radians(float(facts.get("rotation", 0)))
    match shape.tag:
        case "box":
            left, top, right, bottom = (float(facts[side]) for side in ("xtl", "ytl", "xbr", "ybr"))
            ring = turned(rectangle(left, top, right, bottom), turn)
        case "polygon":
            ring = np.array([pair.split(",") for pair in facts["points"].split(";")], np.float64)
            if ring.ndim != 2 or ring.shape[1] != 2 or len(ring) < 3:
                raise ValueError("not the corners of a polygon")
        case "ellipse":
            x, y, radius_x, radius_y = (float(facts[one]) for one in ("cx", "cy", "rx", "ry"))
            ring = ellipse(x, y, radius_x, radius_y, turn)
        case "mask":
            return _mask(facts, size)
        case _:
            raise ValueError("no area")
    return box_of([ring]), Polygons((ring,))


def _mask(
    facts: Mapping[str, str], size: tuple[int, int] | None
) -> tuple[tuple[float, ...], Outline]:
    """Return box and runs of a mask, whose counts follow the rows of its box, background first."""
    left, top, width, height = (int(facts[one]) for one in ("left", "top", "width", "height"))
    counts = [int(count) for count in facts["rle"].split(",")]
    rest = width * height - sum(counts)
    if size is None or width > size[1] or height > size[0] or width * height > _MOST_PIXELS:
        raise ValueError("a mask that is larger than its image")
    if min(counts) < 0 or rest < 0:
        raise ValueError("run lengths that do not fit the mask")
    pixels = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return pasted_runs(np.pad(pixels, (0, rest)).reshape(height, width), left, top, size)
