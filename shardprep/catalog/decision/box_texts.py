"""Readings of text files that have the boxes or points of one image, one in each line."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from shardprep.catalog.decision.box_numbers import box_columns, have_corners, starts_with_numbers
from shardprep.catalog.decision.json_lists import CLASS
from shardprep.catalog.decision.pairs import common_start
from shardprep.catalog.decision.view import Options, Reading, View, head_of
from shardprep.catalog.names import stated_split, stem
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.errors import counted
from shardprep.recipe.object_rules import NUM_CORNERS, named_box_columns
from shardprep.source.members import Member

_NUM_SAMPLES, _SIDES, _MOST_FILES = 8, 4, 4
_WORD = re.compile("^[A-Za-z0-9]+")
_AFTER_WORD = re.compile("(?<=[^\\W_])[-_. ]+")
_SEPARATOR = re.compile(r"[\s,;]+")
_PLACE = re.compile(r"\s*(\d+(?:\.\d+)?)[\s,;]+(\d+(?:\.\d+)?)(?![^\s,;])")
_ODD_SIGNS = frozenset(",:{}*")
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
    """Return the text before the name of an image in a document's name: `gt_` of `gt_a.txt`."""
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
        label = [f":{title}" for title in rows[0] if CLASS.search(title)]
        boxes = f"{rule}{','.join(named.names)}{''.join(label[:1])}"
        has_empty = any(len(one) < 2 for one in heads)
        more: list[Options] = [{"unlisted": "background"}] if has_empty else []
        return [Reading({"boxes": boxes, **one}, why) for one in (*more, {})]
    known = dict.fromkeys(box_columns(rows, ((1, 5), (2, 1), (3, 2))), why)
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
    is_odd = len(groups) > _MOST_FILES or any(_ODD_SIGNS & {*path, *x} for path, x in groups)
    every = [f"{path}/{start}{{id}}{suffix}".lstrip("/") for path, start in groups]
    return "" if is_odd or not are_apart else ",".join(every)


def _corner_columns(heads: Sequence[Sequence[str]], why: str) -> dict[str, str]:
    """Return the columns of four corners → why, without and with the next column as class; or {}.

    After commas, the next column is usually the text in the box; after blanks, the class. A line of
    one word is a heading.
    """
    texts = [[_cells(line) for line in lines if len(_cells(line)) > 1] for lines in heads]
    rows = [row for one in texts for row in one]
    are_all = all(any(map(starts_with_numbers, one)) for one in texts if one)
    if not (are_all and have_corners(rows)):
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
