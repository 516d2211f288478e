"""VGG Image Annotator (VIA): a JSON file for many images, with regions in pixels.

Polygons in JSON lines are read as well: `{"id": "a", "annotations": [{"type": "vessel",
"coordinates": [[[x, y], …]]}]}`, a line for each image.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from shardprep.catalog.objects.formats.annotated_source import (
    MOST_VALUES,
    AnnotatedSource,
    Sign,
    has_many_values,
    shared_documents,
    shared_texts,
)
from shardprep.catalog.objects.formats.box_format import box_of, ellipse, rectangle
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import MALFORMED, ONE_CLASS, Found, ObjectTable
from shardprep.errors import OptionName, SourceError, shown, some_of
from shardprep.image.annotation_types import Floats, Polygons
from shardprep.recipe.object_rules import FormatRule

_CLASS_NAMES = ("class", "label", "name", "type", "category", "object", "species")
_SHAPES = ("rect", "polygon", "circle", "ellipse", "parts")
_OUTLINED = re.compile(rb'"name"\s*:\s*"(polygon|circle|ellipse)"')
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError)


def is_via(data: bytes) -> bool:
    """Return whether bytes look like a file of VIA, without parsing them."""
    return all(word in data for word in (b'"regions"', b'"shape_attributes"', b'"filename"'))


def is_polygon_lines(data: bytes) -> bool:
    """Return whether bytes look like JSON lines with polygons, without parsing them."""
    line = data.lstrip().partition(b"\n")[0]
    return all(word in line for word in (b'"id"', b'"annotations"', b'"coordinates"'))


_FORMS = {
    "via": (is_via, ".json", "VIA"),
    "jsonl": (is_polygon_lines, ".jsonl", "polygons in JSON lines"),
}
"""Kind of a rule → function that recognises its documents, their suffix, their title."""


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all documents, with classes in natural order. Errors: see `Format`."""
    is_one, suffix, title = _FORMS[rule.kind]
    is_lines = rule.kind == "jsonl"
    pairing = Pairing(source.index)
    table = ObjectTable(len(source.index.keys), outlines=source.outlines)
    keys: list[str] = []
    findings: list[str] = []
    for file in shared_documents(source, rule, is_one, suffix):
        key, data = source.documents.find(file)
        keys.append(key)
        if not is_lines and has_many_values(data):
            what = f"has more than {MOST_VALUES:,} values"
            hint = f"export it from VIA in parts: {OptionName(rule.option, 'via:FILE,FILE')}"
            raise SourceError(key, what, hint)
        try:
            entries = _entries_of_lines(data) if is_lines else _entries(data)
            attribute, *others = ["type"] if is_lines else _class_attributes(entries)
            if others:
                findings.append(f"{key}: classes by {attribute!r}, not by {some_of(others)}")
            is_listed, missing = False, Counter[str]()
            for entry in entries:
                name = entry["filename"]
                found = pairing.find(name, key)
                if found is None:
                    missing[name] += len(_regions(entry))
                    continue
                if not is_lines:
                    pairing.claim_entry(found, key, name)
                table.list_image(found)
                is_listed = True
                for region in _regions(entry):
                    _add(table, found, region, attribute)
            table.miss(missing, is_elsewhere=not is_listed)
        except _DAMAGE as error:
            why = str(error) if isinstance(error, ValueError) else "an entry has another form"
            raise SourceError(key, f"is not JSON of {title}: {why}", "export it again") from error
    table.check_listed(keys, source.index.keys[0])
    return table.found(f"{title}, {', '.join(keys)}", keys, findings=findings)


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return a `Sign` for documents of VIA, and a `Sign` for polygons in JSON lines."""
    signs = []
    for kind, (is_one, suffix, title) in _FORMS.items():
        texts = [(key, data) for key, data, _ in shared_texts(source, suffix) if is_one(data)]
        how = f"{some_of([key for key, _ in texts], 2)}: {title}"
        has_outlines = any(kind == "jsonl" or _OUTLINED.search(data) for _, data in texts)
        signs += [Sign("boxes", kind, how, has_outlines=has_outlines)] if texts else []
    return signs


def _entries_of_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield each line as an entry of VIA; a polygon of several parts becomes one region."""
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        if has_many_values(text):
            raise ValueError(f"line {number:,} has more than {MOST_VALUES:,} values")
        line = _checked(json.loads(text), f"line {number:,}", ("id", "annotations"))
        regions = [
            {
                "shape_attributes": {"name": "parts", "parts": one.get("coordinates")},
                "region_attributes": {"type": one.get("type", ONE_CLASS)},
            }
            for one in line["annotations"]
        ]
        yield {"filename": str(line["id"]), "regions": regions}


def _entries(data: bytes) -> list[dict[str, Any]]:
    document = _checked(json.loads(data), "the document", ())
    entries = _checked(document.get("_via_img_metadata", document), "_via_img_metadata", ())
    return [_checked(one, f"entry {shown(key)!r}", ("filename",)) for key, one in entries.items()]


def _checked(value: Any, where: str, keys: Iterable[str]) -> dict[str, Any]:
    """Return `value`; ValueError unless it is an object with `keys`."""
    if isinstance(value, dict) and (lacking := [key for key in keys if key not in value]):
        raise ValueError(f"{where} has no {lacking[0]!r}")
    if isinstance(value, dict):
        return value
    raise ValueError(f"{where} is not an object")


def _regions(entry: dict[str, Any]) -> list[dict[str, Any]]:
    regions = entry.get("regions") or []
    return list(regions.values()) if isinstance(regions, dict) else regions


def _class_attributes(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the attributes that may hold the class, the likeliest first; [""] without attributes.

    If an attribute has a usual name, only it is returned, otherwise the most frequent attributes.
    """
    counts: Counter[str] = Counter()
    for entry in entries:
        for region in _regions(entry):
            attributes = region.get("region_attributes")
            if isinstance(attributes, dict):
                counts.update(attributes.keys())
    named = {name.lower(): name for name in counts}
    usual = [named[name] for name in _CLASS_NAMES if name in named]
    most = max(counts.values(), default=0)
    return usual[:1] or [name for name in counts if counts[name] == most] or [""]


def _add(table: ObjectTable, image: int, region: dict[str, Any], attribute: str) -> None:
    attributes = region.get("region_attributes")
    value = attributes.get(attribute, "") if isinstance(attributes, dict) else ""
    value = value if attribute else ONE_CLASS
    if isinstance(value, dict):  # a set of check boxes: {"cat": true}
        value = next((name for name, is_set in value.items() if is_set), "")
    try:
        shape = region["shape_attributes"]
        if str(shape["name"]) not in _SHAPES:
            table.drop(image, table.unread(str(shape["name"])))
            return
        is_several = shape["name"] == "parts"
        rings = [np.array(r, np.float64) for r in shape["parts"]] if is_several else [_ring(shape)]
    except _DAMAGE:
        rings = []
    known = tuple(ring for ring in rings if ring.ndim == 2 and len(ring) > 2)
    if not known or len(known) < len(rings) or any(ring.shape[1] != 2 for ring in known):
        table.drop(image, MALFORMED)
        return
    number = table.number_of(str(value).strip())
    table.add(image, box_of(known), number, outline=Polygons(known))


def _ring(shape: dict[str, Any]) -> Floats:
    match shape["name"]:
        case "rect":
            x, y = shape["x"], shape["y"]
            return rectangle(x, y, x + shape["width"], y + shape["height"])
        case "polygon":
            points = (shape["all_points_x"], shape["all_points_y"])
            return np.stack([np.array(side, np.float64) for side in points], axis=1)
        case "circle":
            return ellipse(shape["cx"], shape["cy"], shape["r"], shape["r"])
        case _:
            radii = shape["rx"], shape["ry"]
            return ellipse(shape["cx"], shape["cy"], *radii, float(shape.get("theta") or 0))
