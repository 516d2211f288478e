"""The parts of COCO's JSON: what tells a document, and the values of its entries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardprep.catalog.names import stem
from shardprep.catalog.objects.object_table import MOST_SIDE
from shardprep.image.annotation_types import Counts, Outline, Polygons, Segment

_NAME = re.compile(rb'"file_name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_BOX = re.compile(rb'"bbox"\s*:')
_LISTS = tuple(re.compile(rb'"%s"\s*:\s*\[' % name) for name in (b"images", b"annotations"))
_SEGMENTS = re.compile(rb'"segments_info"\s*:')
_MOST_SEGMENTS = 1 << 24
"""Ids that a colour can stand for; 0 is none."""


def is_coco(data: bytes) -> bool:
    """Tell whether bytes look like a COCO document with boxes, without parsing them."""
    return _is_document(data) and _BOX.search(data) is not None and _SEGMENTS.search(data) is None


def is_panoptic(data: bytes) -> bool:
    """Tell whether bytes look like a panoptic COCO document, without parsing them."""
    return _is_document(data) and _SEGMENTS.search(data) is not None


def _is_document(data: bytes) -> bool:
    return all(pattern.search(data) for pattern in _LISTS)


def stated_names(data: bytes) -> list[str]:
    """Return the names of images in a COCO document, without parsing the rest of it."""
    return [
        name.decode("utf-8", errors="replace").replace("\\/", "/") for name in _NAME.findall(data)
    ]


def chosen(keys: Sequence[str]) -> list[str]:
    """Return the documents to read of several: COCO's instances_*.json alone if there are any.

    Its captions, key points and stuff are of the same images.
    """
    instances = [key for key in keys if stem(key).startswith("instances")]
    return instances or list(keys)


def image_of(entry: dict[str, Any]) -> tuple[str, tuple[int, int] | None]:
    """Return the name of an image, and its height and width where they are stated."""
    name = entry["file_name"]
    if not isinstance(name, str):
        raise TypeError("no text")
    height: Any = entry.get("height")
    width: Any = entry.get("width")
    is_stated = all(
        isinstance(side, int | float) and 1 <= side < MOST_SIDE for side in (height, width)
    )
    return name, (int(height), int(width)) if is_stated else None


def segment_of(entry: dict[str, Any]) -> Segment:
    """Return a segment of a panoptic image; ValueError where its id is no colour."""
    if type(entry["id"]) is not int or not 0 < entry["id"] < _MOST_SEGMENTS:
        raise ValueError("no colour")
    return Segment(entry["id"])


def outline_of(shape: Any) -> Outline:
    """Return the polygons or run lengths of an object; what they hold is checked where drawn."""
    if isinstance(shape, dict):
        height, width = shape["size"]
        if not all(type(side) is int and side < MOST_SIDE for side in (height, width)):
            raise TypeError("a size is two whole numbers")
        counts = shape["counts"]
        if not isinstance(counts, str):
            counts = tuple(counts)
            if not all(type(count) is int for count in counts):
                raise TypeError("counts are whole numbers")
        return Counts(counts, (height, width))
    rings = [shape] if isinstance(shape[0], int | float) else shape
    return Polygons(tuple(np.array(ring, np.float64).reshape(-1, 2) for ring in rings if ring))
