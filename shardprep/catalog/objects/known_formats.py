"""The formats of boxes, with the functions that read and detect them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shardprep.catalog.objects.formats import (
    box_table,
    coco,
    cvat,
    labelme,
    point_table,
    via,
    voc,
    yolo,
)
from shardprep.catalog.objects.formats.annotated_source import AnnotatedSource, Sign
from shardprep.catalog.objects.image_points import FoundPoints
from shardprep.catalog.objects.object_table import Found
from shardprep.recipe.object_rules import FormatRule, PointRule


class Format(NamedTuple):
    """The functions that read and detect a format of boxes.

    `read` raises SourceError for documents that are missing, damaged, or not of these images.
    """

    read: Callable[[FormatRule, AnnotatedSource], Found]
    recognise: Callable[[AnnotatedSource], list[Sign]]


FORMATS = {
    "coco": Format(coco.read, coco.recognise),
    "voc": Format(voc.read, voc.recognise),
    "yolo": Format(yolo.read, yolo.recognise),
    "csv": Format(box_table.read, box_table.recognise),
    "column": Format(box_table.read, lambda _: []),  # `box_table.recognise` covers columns
    "labelme": Format(labelme.read, labelme.recognise),
    "via": Format(via.read, via.recognise),
    "cvat": Format(cvat.read, cvat.recognise),
    "jsonl": Format(via.read, lambda _: []),  # `via.recognise` covers JSON lines
}
"""First word of a `--boxes` value → its format, in the order of detection."""


def read_boxes(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the boxes of all images by a rule whose kind is a key of `FORMATS`."""
    with np.errstate(over="ignore", invalid="ignore"):  # overflowing numbers are dropped later
        return FORMATS[rule.kind].read(rule, source)


def read_image_points(rule: PointRule, source: AnnotatedSource) -> FoundPoints:
    """Return the keypoints of all images by a rule of the kind "csv", "column" or "labelme"."""
    read = labelme.read_points if rule.kind == "labelme" else point_table.read
    return read(rule, source)


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the signs of all formats.

    If all are unclear, signs of boxes in JSON lists are added, or else of keypoints in tables.
    """
    signs = [sign for one in FORMATS.values() for sign in one.recognise(source)]
    if not all(one.is_unclear for one in signs):
        return signs
    return signs + (box_table.recognise_documents(source) or point_table.recognise(source))
