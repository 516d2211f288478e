"""Readings of a JSON about many images, with a list or an object that has a key for each."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from shardprep.catalog.candidates import table_candidates
from shardprep.catalog.decision.view import Reading, View, head_of
from shardprep.catalog.names import stem
from shardprep.catalog.objects.detect import objects_of
from shardprep.catalog.objects.formats.annotated_source import Sign
from shardprep.catalog.tables.json_table import keyed_rows
from shardprep.catalog.tables.object_lists import paths_of_lists, value_at
from shardprep.errors import SourceError, some_of
from shardprep.recipe.object_rules import named_box_columns

_NUM_SAMPLES, _MOST_LISTS, _SIDES = 8, 64, 4
_MOST_BYTES = 1 << 20
CLASS = re.compile(r"(^|[._])(label|categor(y|ie)|classe?|name)(_name)?s?$", re.IGNORECASE)
"""Matches the title of a column of classes, or the last part of a path to it."""
_EXTREME = re.compile(
    r"[._](min|max)(?:imum)?[._](?:c(?:ol(?:umn)?)?|x|(r(?:ow)?|y))$", re.IGNORECASE
)
_ODD_SIGNS = frozenset(",:(){}")


def json_boxes(view: View) -> list[Reading]:
    """Return readings of the boxes in JSON lists or objects of images, and one without boxes."""
    groups = defaultdict[str, list[str]](list)
    members = view.documents.members(".json")
    for member in members if len(members) <= _MOST_LISTS else ():
        rows = _first_rows(head_of(member, _MOST_BYTES))
        every = dict.fromkeys(path for row in rows for path in paths_of_lists([row]))
        paths = [one for one in every if not _ODD_SIGNS & {*one, *member.key}]
        values = {path: [value_at(row, path.split(".")) for row in rows] for path in paths}
        of_objects = [path for path, own in values.items() if any(isinstance(x, list) for x in own)]
        names = [path for path in paths if path not in of_objects]
        names = [one for one in names if all(view.index.find(str(x)) for x in values[one])]
        boxes = (x for x in of_objects if any(values[x]) and all(map(_are_boxes, values[x])))
        if names and (place := _box_place(of_objects) or next(boxes, "")):
            label = [f":{one}" for one in of_objects if CLASS.search(one)]
            groups[f"{names[0]}:{place}{''.join(label[:1])}"].append(member.key)
    found = [
        Reading({"boxes": boxes}, f"boxes of objects in {some_of(keys)}")
        for rule, keys in groups.items()
        for boxes in _readable(view, f"csv:{','.join(keys)}:", rule)
    ]
    return [*found, Reading({"labels": "none"}, "images without boxes")] if found else []


def tables_of_json(view: View) -> list[Reading]:
    """Return readings of labels in JSON lists that name images."""
    files = [x for x in view.documents.members(".json") if not view.index.find(stem(x.key))]
    files = [one for one in files if _ODD_SIGNS.isdisjoint(one.key)]
    known = defaultdict[frozenset[str], list[str]](list)
    for one in files if len(files) <= _MOST_LISTS else ():
        for row in _first_rows(head_of(one, _MOST_BYTES))[:1]:
            if any(view.index.find(cell) for cell in row.values() if isinstance(cell, str)):
                known[frozenset(row)].append(one.key)
    found = list[Reading]()
    for keys in known.values():
        with contextlib.suppress(SourceError):
            table = view.documents.table(keys)
            found += table_candidates(view.index, table, [table])
    return found


def _readable(view: View, start: str, rule: str) -> list[str]:
    """Return the rule if it can be read, or with both forms of boxes if only the form is unclear.

    `rule` is ID:BOX or ID:BOX:LABEL.
    """
    ids, place, *label = rule.split(":")
    forms = [place] if "(" in place else [place, f"xywh({place})", f"xyxy({place})"]
    rules = [start + ":".join([ids, one, *label]) for one in forms]
    fit = [one for one in rules if objects_of(Sign("boxes", one, ""), view.documents, view.members)]
    return rules[:1] if rules[0] in fit else fit


def _are_boxes(value: Any) -> bool:
    """Return whether a value is a list of lists of four numbers; the list may be empty."""
    lists = value if isinstance(value, list) else [None]
    return all(
        isinstance(one, list) and len(one) == _SIDES and {*map(type, one)} <= {int, float}
        for one in lists
    )


def _box_place(paths: Sequence[str]) -> str:
    """Return the box columns among paths into JSON, with the form of the box; "" without a box."""
    sides = ((one, match) for one in paths if (match := _EXTREME.search(one)))
    ends = {match[1].lower() + ("y" if match[2] else "x"): one for one, match in sides}
    if ends.keys() >= {"minx", "miny", "maxx", "maxy"}:
        return f"xyxy({','.join(ends[one] for one in ('minx', 'miny', 'maxx', 'maxy'))})"
    box = named_box_columns(paths)
    place = ",".join(box.names) if box else ""
    # Only CreateML calls the centers of boxes coordinates.
    return f"center({place})" if box and ".coordinates." in box.names[0] else place


def _first_rows(text: str) -> list[dict[str, Any]]:
    """Return the first objects of a JSON list or object; the text may be cut off before the end."""
    decoder, text = json.JSONDecoder(), text.lstrip()
    rows, is_keyed = dict[Any, Any](), text.startswith("{")
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        while text.startswith(("[", "{", ",")) and len(rows) < _NUM_SAMPLES:
            key, text = len(rows), text[1:].lstrip()
            if is_keyed:
                key, end = decoder.raw_decode(text)
                text = text[end:].lstrip().removeprefix(":").lstrip()
            rows[key], end = decoder.raw_decode(text)
            text = text[end:].lstrip()
    return keyed_rows(rows) if is_keyed else [x for x in rows.values() if isinstance(x, dict)]
