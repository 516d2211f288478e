"""VGG Image Annotator (VIA): a JSON file for many images, with regions in pixels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardprep.catalog.objects.formats.bounded_read import MOST_VALUES, has_many_values
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.formats.shapes import box_of, ellipse, rectangle
from shardprep.catalog.objects.object_table import MALFORMED, ObjectTable
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError
from shardprep.image.annotation_types import Floats, Polygons

ONE_CLASS = "object"
"""Class of regions without attributes."""
_PROJECT = "_via_img_metadata"
_CLASS_NAMES = ("class", "label", "name", "type", "category", "object", "species")
"""Attributes that say a class, the surest first."""
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError)


def is_via(data: bytes) -> bool:
    """Tell whether bytes look like a file of VIA, without parsing them."""
    return all(word in data for word in (b'"regions"', b'"shape_attributes"', b'"filename"'))


def read_via(
    documents: Iterable[tuple[str, bytes]], index: KeyIndex, *, outlines: bool = False
) -> Found:
    """Return the objects of all documents, key and bytes each; classes in natural order.

    Raises:
        SourceError: a document is damaged or none of VIA, or none names an image of the source.

    """
    pairing, table = Pairing(index), ObjectTable(len(index.keys))
    keys: list[str] = []
    missing: Counter[str] = Counter()
    num_listed = num_elsewhere = 0
    for key, data in documents:
        keys.append(key)
        if has_many_values(data):
            what = f"has more than {MOST_VALUES:,} values"
            raise SourceError(key, what, "export it from VIA in parts: --boxes via:FILE,FILE")
        try:
            entries = _entries(data)
            num_before, here = num_listed, Counter[str]()
            attribute = _class_attribute(entries)
            for entry in entries:
                name = entry["filename"]
                found = pairing.find(name, key)
                if found is None:
                    here[name] += len(_regions(entry))
                    continue
                table.list_image(found)
                num_listed += 1
                for region in _regions(entry):
                    _add(table, found, region, attribute, outlines=outlines)
            if num_listed == num_before:  # the document is of other images
                num_elsewhere += here.total()
                here = Counter(dict.fromkeys(here, 0))
            missing.update(here)
        except _DAMAGE as error:
            what = f"is no JSON of VIA ({error!r})"
            raise SourceError(key, what, "export it from VIA as JSON again") from error
    if not num_listed:
        such = f", such as {next(iter(missing))}" if missing else ""
        raise SourceError(", ".join(keys), f"names no image of the source{such}")
    names, labels_of = table.natural_names()
    return Found(
        annotations=table.annotations(labels_of),
        names=names,
        how=f"VIA, {', '.join(keys)}",
        documents=tuple(keys),
        without_image=missing,
        num_elsewhere=num_elsewhere,
    )


def _entries(data: bytes) -> list[dict[str, Any]]:
    document = json.loads(data)
    return list(document.get(_PROJECT, document).values())


def _regions(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the regions of an image: a list since version 2, a dict before."""
    regions = entry.get("regions") or []
    return list(regions.values()) if isinstance(regions, dict) else regions


def _class_attribute(entries: Iterable[dict[str, Any]]) -> str:
    """Return the attribute of regions that says the class: by its name, or the commonest."""
    counts: Counter[str] = Counter()
    for entry in entries:
        for region in _regions(entry):
            attributes = region.get("region_attributes")
            if isinstance(attributes, dict):
                counts.update(attributes.keys())
    named = {name.lower(): name for name in counts}
    usual = next((named[name] for name in _CLASS_NAMES if name in named), "")
    return usual or max(counts, key=lambda name: counts[name], default="")


def _add(
    table: ObjectTable, image: int, region: dict[str, Any], attribute: str, *, outlines: bool
) -> None:
    value = (region.get("region_attributes") or {}).get(attribute, "") if attribute else ONE_CLASS
    if isinstance(value, dict):  # check boxes: {"cat": true}
        value = next((name for name, is_set in value.items() if is_set), "")
    try:
        ring = _ring(region["shape_attributes"])
    except _DAMAGE:
        ring = None
    if ring is None or ring.ndim != 2 or len(ring) < 3:
        table.drop(image, MALFORMED)
        return
    outline = Polygons((ring,)) if outlines else None
    table.add(image, box_of([ring]), table.number_of(str(value).strip()), outline=outline)


def _ring(shape: dict[str, Any]) -> Floats | None:
    """Return the corners of a shape; None for points and lines."""
    match shape["name"]:
        case "rect":
            x, y = shape["x"], shape["y"]
            return rectangle(x, y, x + shape["width"], y + shape["height"])
        case "polygon":
            points = (shape["all_points_x"], shape["all_points_y"])
            return np.stack([np.array(side, np.float64) for side in points], axis=1)
        case "circle":
            return ellipse(shape["cx"], shape["cy"], shape["r"], shape["r"])
        case "ellipse":
            radii = shape["rx"], shape["ry"]
            return ellipse(shape["cx"], shape["cy"], *radii, float(shape.get("theta") or 0))
        case _:
            return None
