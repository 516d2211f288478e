"""Find boxes in texts and JSON documents of no known format, and in columns without titles."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardprep.catalog.decision.pairs import common_start
from shardprep.catalog.decision.view import Options, Reading, View, head_of
from shardprep.catalog.names import stated_split, stem
from shardprep.catalog.objects.detect import objects_of
from shardprep.catalog.objects.formats.annotated_source import Sign
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.tables.json_table import keyed_rows
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.object_lists import paths_of_lists, value_at
from shardprep.catalog.tables.table import Table
from shardprep.catalog.target_values import as_number
from shardprep.errors import counted, some_of
from shardprep.recipe.object_rules import NUM_CORNERS, named_box_columns
from shardprep.source.members import Member

_NUM_SAMPLES, _SIDES, _MOST_FILES = 8, 4, 4
MOST_LISTS, _MOST_BYTES = 64, 1 << 20
_SAMPLE, _FEW, _NEARLY, _MOST_UNEVEN = 100, 5, 0.9, 3
_CLASS = re.compile(r"(^|[._])(label|categor(y|ie)|classe?|name)(_name)?s?$", re.IGNORECASE)
"""Matches the title of a column of classes, or the last part of a path to it."""
_EXTREME = re.compile(
    r"[._](min|max)(?:imum)?[._](?:c(?:ol(?:umn)?)?|x|(r(?:ow)?|y))$", re.IGNORECASE
)
_WORD = re.compile("^[A-Za-z0-9]+")
_AFTER_WORD = re.compile("(?<=[^\\W_])[-_. ]+")
_SEPARATOR = re.compile(r"[\s,;]+")
_PLACE = re.compile(r"\s*(\d+(?:\.\d+)?)[\s,;]+(\d+(?:\.\d+)?)(?![^\s,;])")
_SIGNS_OF_PATTERNS = frozenset(",:{}*")
ODD_SIGNS = frozenset(",:(){}")
"""Characters that have a meaning in rules of columns, so that names in rules must not have them."""
_Groups = Mapping[tuple[str, str], Sequence[Member]]
"""Folder, and text before the name of the image in the name of each document → documents."""


def boxes_of_texts(view: View, suffix: str) -> list[Reading]:
    """Return readings of the text files, and a reading without boxes; [] if none is found.

    Images may have other texts in folders of another name.
    """
    members = defaultdict[str, list[Member]](list)
    for one in view.documents.members(suffix):
        members[one.key.rpartition("/")[0]].append(one)
    starts = {path: _before_id(view.index, own[0]) for path, own in members.items()}
    groups = {(path, x): members[path] for path, x in starts.items() if x is not None}
    names = sorted({path.rpartition("/")[2] for path, _ in groups})
    kinds = [[name] for name in names] if 1 < len(names) <= _MOST_FILES else []
    if not groups:
        return []
    pairing = Pairing(view.index)
    for some in (names, *kinds):
        own = {key: x for key, x in groups.items() if key[0].rpartition("/")[2] in some}
        if found := _readings(view, suffix, own, pairing):
            return found
    return []


def _before_id(index: KeyIndex, document: Member) -> str | None:
    """Return the text before an image's name in a document's name (`gt_` in `gt_a`), or None."""
    name = stem(document.key)
    starts = ["", *(name[: match.end()] for match in _AFTER_WORD.finditer(name))]
    return next((one for one in starts if index.find(name.removeprefix(one))), None)


def _readings(view: View, suffix: str, groups: _Groups, pairing: Pairing) -> list[Reading]:
    documents = [(one, start) for (_, start), own in groups.items() for one in own]
    some = documents[:: len(documents) // _NUM_SAMPLES + 1]
    ids = [stem(one.key).removeprefix(start) for one, start in some]
    are_unique = all(len(view.index.find(one)) == 1 for one in ids)
    images = list[int | None]()
    with contextlib.suppress(AmbiguousIdError):
        images = [pairing.find(x, one.key) for x, (one, _) in zip(ids, some, strict=True)]
    files = _files(groups, suffix, are_unique=are_unique)
    if len(documents) < 2 or None in images or not (images and files):
        return []
    heads = [head_of(one).strip().splitlines() for one, _ in some]
    rows = [_cells(line) for lines in heads for line in lines]
    rule, why = f"csv:{files}:id:", f"boxes in {counted(len(documents), 'text')}"
    if suffix == ".csv" and rows and (named := named_box_columns(rows[0])):
        label = [f":{title}" for title in rows[0] if _CLASS.search(title)]
        boxes = f"{rule}{','.join(named.names)}{''.join(label[:1])}"
        has_empty = any(len(one) < 2 for one in heads)
        more: list[Options] = [{"unlisted": "background"}] if has_empty else []
        return [Reading({"boxes": boxes, **one}, why) for one in (*more, {})]
    known = dict.fromkeys(_box_columns(rows, ((1, 5), (2, 1), (3, 2))), why)
    known = _corner_columns(heads, why) or known
    found = [Reading({"header": False, "boxes": f"{rule}{x}"}, own) for x, own in known.items()]
    pairs = zip(images, heads, strict=True)
    if not found and all(_are_places(view, image, lines) for image, lines in pairs):
        points = f"points in {counted(len(documents), 'text')}, one in each line"
        found = [Reading({"header": False, "points": f"{rule}1,2"}, points)]
        forms = (f"{x}(1,2,3,4)" for x in ("xywh", "center") if min(map(len, rows)) >= _SIDES)
        found += [Reading({"header": False, "boxes": f"{rule}{one}"}, why) for one in forms]
    return [*found, Reading({"labels": "none"}, "images without boxes")] if found else []


def _files(groups: _Groups, suffix: str, *, are_unique: bool) -> str:
    """Return the files of a rule; "" if they are too many or their paths cannot be written.

    If names of images are not unique, each folder must state another split.
    """
    starts = {start for _, start in groups}
    if are_unique and len(starts) == 1:
        names = sorted({path.rpartition("/")[2] for path, _ in groups})
        end = _WORD.sub("", common_start([name[::-1] for name in names])[::-1])
        place = f"{names[0] if len(names) == 1 else f'{{part}}{end}'}/".lstrip("/")
        return f"{place}{starts.pop()}{{id}}{suffix}"
    splits = {stated_split(path) for path, _ in groups} - {None}
    are_apart = are_unique or len(splits) == len(groups)
    is_odd = len(groups) > _MOST_FILES or any(
        _SIGNS_OF_PATTERNS & {*path, *x} for path, x in groups
    )
    every = [f"{path}/{start}{{id}}{suffix}".lstrip("/") for path, start in groups]
    return "" if is_odd or not are_apart else ",".join(every)


def _corner_columns(heads: Sequence[Sequence[str]], why: str) -> dict[str, str]:
    """Return the columns of four corners → why, without and with the next column as class; or {}.

    After commas, the next column is usually the text in the box; after blanks, the class. A line of
    one word is a heading.
    """
    texts = [[_cells(line) for line in lines if len(_cells(line)) > 1] for lines in heads]
    rows = [row for one in texts for row in one]
    are_all = all(any(map(_starts_with_numbers, one)) for one in texts if one)
    if not (are_all and _have_corners(rows)):
        return {}
    columns, label = ",".join(map(str, range(1, NUM_CORNERS + 1))), NUM_CORNERS + 1
    why += ", each of four corners"
    found = [(columns, why)]
    if 2 * sum(len(row) >= label for row in rows) > len(rows):
        found.append((f"{columns}:{label}", f"{why}, with column {label} as class"))
    has_commas = any("," in line for lines in heads for line in lines)
    return dict(found if has_commas else found[::-1])


def _cells(line: str) -> list[str]:
    return [*filter(None, _SEPARATOR.split(line.strip()))]


def _are_places(view: View, image: int | None, lines: Sequence[str]) -> bool:
    """Return whether each line starts with x and y inside the image."""
    height, width = image_size(view.members[image or 0].extent) or (0, 0)
    places = [(float(x[1]), float(x[2])) for x in map(_PLACE.match, lines) if x]
    is_each = 0 < len(places) == len(lines) and all(x <= width and y <= height for x, y in places)
    return is_each and any(x > 1 and y > 1 for x, y in places)


def json_boxes(view: View) -> list[Reading]:
    """Return readings of the boxes in JSON lists or objects of images, and one without boxes."""
    groups = defaultdict[str, list[str]](list)
    members = view.documents.members(".json")
    for member in members if len(members) <= MOST_LISTS else ():
        rows = first_rows(member)
        every = dict.fromkeys(path for row in rows for path in paths_of_lists([row]))
        paths = [one for one in every if not ODD_SIGNS & {*one, *member.key}]
        values = {path: [value_at(row, path.split(".")) for row in rows] for path in paths}
        of_objects = [path for path, own in values.items() if any(isinstance(x, list) for x in own)]
        names = [path for path in paths if path not in of_objects]
        names = [one for one in names if all(view.index.find(str(x)) for x in values[one])]
        boxes = (x for x in of_objects if any(values[x]) and all(map(_are_boxes, values[x])))
        if names and (place := _box_place(of_objects) or next(boxes, "")):
            label = [f":{one}" for one in of_objects if _CLASS.search(one)]
            groups[f"{names[0]}:{place}{''.join(label[:1])}"].append(member.key)
    found = [
        Reading({"boxes": boxes}, f"boxes of objects in {some_of(keys)}")
        for rule, keys in groups.items()
        for boxes in _readable(view, f"csv:{','.join(keys)}:", rule)
    ]
    return [*found, Reading({"labels": "none"}, "images without boxes")] if found else []


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


def first_rows(document: Member) -> list[dict[str, Any]]:
    """Return the first objects, at most eight, of a JSON list or object; its end is not read."""
    decoder, text = json.JSONDecoder(), head_of(document, _MOST_BYTES).lstrip()
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


def numbered_boxes(table: Table) -> list[str]:
    """Return the `--boxes` rules that fit a headerless table of two corners and a class."""
    if table.header[:6] != ("1", "2", "3", "4", "5", "6"):
        return []
    places = _box_columns(table.rows[:_SAMPLE], ((2, 6), (3, 2), (4, 2)))
    return [f"csv:{table.files}:1:{one}" for one in places]


def _box_columns(rows: Sequence[Sequence[str]], places: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield a rule such as `xyxy(2,3,4,5):6` for each item of `places` that fits the rows.

    An item has the first column of the box and the column of the class; columns count from 1. The
    class is left out if no row has its column.
    """
    for first, label in places:
        numbers = [[*map(as_number, row[first - 1 : first + 3])] for row in rows]
        boxes = [[one or 0 for one in row] for row in numbers if None not in row and row[3:]]
        is_enough = len(boxes) >= max(_FEW, len(rows) / 2)
        if is_enough and all(x < right and y < bottom for x, y, right, bottom in boxes):
            title = f":{label}" if any(len(row) >= label for row in rows) else ""
            yield f"xyxy({','.join(map(str, range(first, first + 4)))}){title}"


def _have_corners(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether nearly all rows start with four corners, in turn, of a convex area.

    Opposite sides must have similar lengths. Rows of more than four points do not fit.
    """
    some = [row for row in rows if _starts_with_numbers(row)]
    are_longer = sum(_starts_with_numbers(row, NUM_CORNERS + 2) for row in some)
    if len(some) < max(_FEW, len(rows) / 2) or 2 * are_longer > len(some):
        return False
    corners = np.array([row[:NUM_CORNERS] for row in some], np.float64).reshape(-1, 4, 2)
    x, y = np.moveaxis(np.roll(corners, -1, axis=1) - corners, 2, 0)
    turns, lengths = x * np.roll(y, -1, axis=1) - y * np.roll(x, -1, axis=1), np.hypot(x, y)
    ratios = lengths[:, :2] / np.maximum(lengths[:, 2:], 1e-9)
    are_even = ((ratios < _MOST_UNEVEN) & (ratios > 1 / _MOST_UNEVEN)).all(axis=1)
    is_convex = (turns > 0).all(axis=1) | (turns < 0).all(axis=1)
    return float((are_even & is_convex).mean()) >= _NEARLY


def _starts_with_numbers(row: Sequence[str], count: int = NUM_CORNERS) -> bool:
    return len(row) >= count and None not in map(as_number, row[:count])
