"""CVAT's XML for images 1.1: one document for many images, shapes in pixels.

Everything of interest is in the attributes of elements, so a document is read as a stream of them:
no tree is built, and memory does not grow with its size.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from xml.parsers import expat

import numpy as np

from shardprep.catalog.names import given_split, natural_order
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.formats.shapes import box_of, ellipse, rectangle, turned
from shardprep.catalog.objects.object_table import MALFORMED, MOST_SIDE, ObjectTable
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError, some_of
from shardprep.image.annotation_types import Outline, Polygons, Runs

_SHAPES = ("box", "polygon", "ellipse", "mask")
_NO_AREAS = ("polyline", "points", "cuboid", "skeleton")
"""Elements of an image that have no area."""
_HEAD_BYTES = 1 << 20
"""Bytes in which the first image of a document is looked for, behind its labels."""
_PIECE = 1 << 16
"""Bytes of a document that are parsed at a time."""
_MOST_RUNS = 1 << 20
"""Number of runs of one mask along the rows of its image."""
_HINT = "export it from CVAT as 'CVAT for images 1.1' again"


class _Shape(NamedTuple):
    """An element of an image that is or may be an object."""

    kind: str
    facts: Mapping[str, str]


class _Image(NamedTuple):
    """An image of a document, and its shapes."""

    name: str
    facts: Mapping[str, str]
    shapes: list[_Shape]


class _Reader:
    """A walk over a document; SourceError where it is damaged or another."""

    def __init__(self, key: str) -> None:
        self.labels: list[str] = []
        """Class names in the order of the task, those without an object included."""
        self.has_image = False
        self._key = key
        self._images: list[_Image] = []
        self._path: list[str] = []
        self._label: dict[str, str] = {}
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._refuse_dtd
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text

    def images(self, data: bytes) -> Iterator[_Image]:
        """Yield the images of a document in their order."""
        for start in range(0, max(len(data), 1), _PIECE):
            try:
                self._parser.Parse(data[start : start + _PIECE], start + _PIECE >= len(data))
            except (expat.ExpatError, LookupError, ValueError) as error:
                raise SourceError(self._key, f"is damaged XML ({error})", _HINT) from error
            last = self._images.pop() if self._path[1:2] == ["image"] else None
            yield from self._images
            self._images = [] if last is None else [last]
        yield from self._images

    def _refuse_dtd(self, *_: object) -> None:
        what = "has a document type definition (DTD), which no annotation needs"
        raise SourceError(self._key, what, _HINT)

    def _start(self, tag: str, facts: dict[str, str]) -> None:
        if not self._path and tag != "annotations":
            raise SourceError(self._key, f"is no XML of CVAT: its root is {tag!r}", _HINT)
        depth = len(self._path)
        if depth == 1 and tag == "track":
            raise SourceError(self._key, "is XML of CVAT for a video, with tracks", _HINT)
        if depth == 1 and tag == "image":
            self.has_image |= "name" in facts
            self._images.append(_Image(facts.get("name", ""), facts, []))
        elif depth == 2 and self._path[1] == "image":
            if tag in (*_SHAPES, *_NO_AREAS):
                self._images[-1].shapes.append(_Shape(tag, facts))
        elif tag == "label":
            self._label = {}
        self._path.append(tag)

    def _end(self, tag: str) -> None:
        self._path.pop()
        if tag == "label" and "meta" in self._path:
            name, kind = self._label.get("name", ""), self._label.get("type", "any").strip()
            if name and "parent" not in self._label and kind not in (*_NO_AREAS, "tag"):
                self.labels.append(name.strip())

    def _text(self, text: str) -> None:
        if self._path[-2:-1] == ["label"]:
            tag = self._path[-1]
            self._label[tag] = self._label.get(tag, "") + text


def is_cvat(data: bytes) -> bool:
    """Tell whether bytes begin as a document of CVAT with an image."""
    reader = _Reader("")
    with contextlib.suppress(SourceError):  # cut in the middle, or another document
        for _ in reader.images(data[:_HEAD_BYTES]):
            break
    return reader.has_image


def stated_names(data: bytes) -> list[str]:
    """Return the names of images in a document, [] where it is damaged."""
    try:
        return [image.name for image in _Reader("").images(data)]
    except SourceError:
        return []


def read_cvat(
    documents: Iterable[tuple[str, bytes]], index: KeyIndex, *, outlines: bool = False
) -> Found:
    """Return the objects of all documents, key and bytes each; classes in the order of the tasks.

    Boxes, polygons, ellipses and masks are objects; lines, points and cuboids are malformed ones,
    tags are none. An image of several documents has the objects of all. The subset of an image is
    its split.

    Raises:
        SourceError: a document is damaged or none of CVAT, or none names an image of the source.

    """
    pairing, table = Pairing(index), ObjectTable(len(index.keys))
    splits: list[str | None] = [None] * len(index.keys)
    missing: Counter[str] = Counter()
    labels: dict[str, None] = {}
    keys: list[str] = []
    num_listed = num_elsewhere = 0
    for key, data in documents:
        keys.append(key)
        reader, num_before, here = _Reader(key), num_listed, Counter[str]()
        for image in reader.images(data):
            found = pairing.find(image.name, key) if image.name else None
            if found is None:
                here[image.name] += len(image.shapes)
                continue
            num_listed += 1
            size = _size(image.facts)
            table.list_image(found, size)
            splits[found] = splits[found] or given_split([image.facts.get("subset", "")])
            for shape in image.shapes:
                _add(table, found, shape, size, outlines=outlines)
        if num_listed == num_before:  # the document is of other images
            num_elsewhere += here.total()
            here = Counter(dict.fromkeys(here, 0))
        missing.update(here)
        labels.update(dict.fromkeys(reader.labels))
    if not num_listed:
        such = f", such as {next(iter(missing))!r}" if missing else ""
        hint = f"a key looks like {index.keys[0]}"
        raise SourceError(some_of(keys), f"names no image of the source{such}", hint)
    others = sorted(table.classes.keys() - {""}, key=natural_order)
    names = tuple(dict.fromkeys((*labels, *others)))
    return Found(
        annotations=table.annotations({name: i for i, name in enumerate(names)}),
        names=names,
        how=f"CVAT, {some_of(keys, 3)}",
        documents=tuple(keys),
        without_image=missing,
        num_elsewhere=num_elsewhere,
        splits=splits if any(splits) else None,
    )


def _size(facts: Mapping[str, str]) -> tuple[int, int] | None:
    """Return height and width of an image where they are stated."""
    try:
        height, width = int(facts["height"]), int(facts["width"])
    except (KeyError, ValueError):
        return None
    return (height, width) if 0 < height < MOST_SIDE and 0 < width < MOST_SIDE else None


def _add(
    table: ObjectTable, image: int, shape: _Shape, size: tuple[int, int] | None, *, outlines: bool
) -> None:
    try:
        box, outline = _object(shape, size)
    except (KeyError, ValueError, OverflowError):
        table.drop(image, MALFORMED)
        return
    number = table.number_of(shape.facts.get("label", "").strip())
    table.add(image, box, number, outline=outline if outlines else None)


def _object(shape: _Shape, size: tuple[int, int] | None) -> tuple[tuple[float, ...], Outline]:
    """Return box and outline of a shape; ValueError or KeyError where it has none."""
    facts = shape.facts
    turn = math.radians(float(facts.get("rotation", 0)))
    match shape.kind:
        case "box":
            left, top, right, bottom = (float(facts[side]) for side in ("xtl", "ytl", "xbr", "ybr"))
            ring = turned(rectangle(left, top, right, bottom), turn)
        case "polygon":
            ring = np.array([pair.split(",") for pair in facts["points"].split(";")], np.float64)
            if ring.ndim != 2 or ring.shape[1] != 2 or len(ring) < 3:
                raise ValueError("no corners of a polygon")
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
    """Return box and runs of a mask, whose counts lie along the rows of its own rectangle.

    They begin with the pixels outside. Each row of the rectangle is a part of a row of the image.
    """
    left, top, width, height = (int(facts[one]) for one in ("left", "top", "width", "height"))
    if size is None or not (
        0 <= left < left + width <= size[1] and 0 <= top < top + height <= size[0]
    ):
        raise ValueError("a mask outside of its image")
    counts = [int(count) for count in facts["rle"].split(",")]
    if min(counts) < 0 or sum(counts) > width * height:
        raise ValueError("counts that are not those of the mask")
    ends = np.cumsum(np.array(counts, np.int64))
    stops = ends[1::2]
    starts = ends[: 2 * len(stops) : 2]
    is_run = stops > starts
    starts, stops = starts[is_run], stops[is_run]
    rows = starts // width
    num_rows = (stops - 1) // width + 1 - rows
    if not 0 < num_rows.sum() <= _MOST_RUNS:
        raise ValueError("no pixel, or more runs than a mask has")
    behind = np.cumsum(num_rows)
    row = np.arange(behind[-1]) + np.repeat(rows - behind + num_rows, num_rows)
    first = np.maximum(np.repeat(starts, num_rows) - row * width, 0)
    last = np.minimum(np.repeat(stops, num_rows) - row * width, width)
    pixels = (row + top) * size[1] + left + first + 1
    runs = np.stack((pixels, last - first), axis=1).ravel().tolist()
    box = left + first.min(), top + row.min(), left + last.max(), top + row.max() + 1
    return tuple(map(float, box)), Runs(" ".join(map(str, runs)), "row")
