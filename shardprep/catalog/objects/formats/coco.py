"""COCO's JSON: images, annotations and categories in one document for many images.

An annotation of a panoptic document lists the segments of an image: objects (things) and areas
(stuff). A mask file has their pixels.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardprep.catalog.names import document_split, given_split, natural_order, stem, words_of_split
from shardprep.catalog.objects.formats.annotated_source import (
    NO_CLASSES,
    AnnotatedSource,
    Sign,
    coverage,
    shared_documents,
    shared_texts,
)
from shardprep.catalog.objects.formats.json_stream import elements
from shardprep.catalog.objects.formats.pairing import Pairing, two_entries
from shardprep.catalog.objects.object_table import (
    MALFORMED,
    MOST_SIDE,
    NO_BOX,
    NO_OBJECT,
    Found,
    Ints,
    ObjectTable,
    stated_size,
)
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.dataset.schema import MOST_POINTS
from shardprep.errors import OptionName, SourceError, counted, shown, some_of
from shardprep.image.annotation_types import IS_CROWD, Counts, Outline, Polygons, Segment, Skeleton
from shardprep.recipe.object_rules import BoxColumns, FormatRule

_WHOLE_BODY = ("foot_kpts", "face_kpts", "lefthand_kpts", "righthand_kpts")
"""Fields for further keypoints in COCO-WholeBody, which are not read."""
_STRAY = -2
_MOST_GROUPS = 6
_MANY_CROWDS = 0.15
"""Share of crowds above which the tool probably marks ordinary objects as crowds; COCO: 1%."""
_BAD = (TypeError, ValueError, OverflowError, KeyError)
_NAME = re.compile(rb'"file_name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_BOX = re.compile(rb'"bbox"\s*:')
_KEYPOINTS = re.compile(rb'"keypoints"\s*:\s*\[\s*-?\d')
_LISTS = tuple(re.compile(rb'"%s"\s*:\s*\[' % name) for name in (b"images", b"annotations"))
_OUTLINE = re.compile(rb'"segmentation"\s*:\s*\[\s*\[([^],]*,){9}|"counts"\s*:')
"""Matches a polygon with more than four corners, or run lengths."""
_SEGMENTS = re.compile(rb'"segments_info"\s*:')
_MOST_SEGMENTS = 1 << 24
"""Number of ids that a colour can encode; id 0 means "no segment"."""

Size = tuple[int, int] | None


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all documents, classes in order of their ids. Errors: see `Format`."""
    reader = _Reader(source, rule)
    files = shared_documents(source, rule, is_coco, ".json")
    if not rule.files:
        files = chosen(files, keypoints=source.keypoints)
        texts = map(source.documents.find, files if len(files) > 2 else ())
        unions = _unions({key: (stated_names(data), _num_boxes(data)) for key, data in texts})
        files = [file for file in files if file not in unions]
        reader.leave_out(unions)
    for file in files:
        reader.read(*source.documents.find(file))
    return reader.found()


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return a `Sign` for each alternative group of documents with boxes for images."""
    names: dict[str, list[str]] = {}
    num_boxes: dict[str, int] = {}
    with_points, has_outlines = set(), False
    for key, data, _ in shared_texts(source, ".json"):
        if is_coco(data):
            names[key], num_boxes[key] = stated_names(data), _num_boxes(data)
            with_points.update([key] if _KEYPOINTS.search(data) else [])
            has_outlines |= _OUTLINE.search(data) is not None
    found, every = list[Sign](), chosen(list(names))
    unions = _unions({key: (names[key], num_boxes[key]) for key in every})
    every = [key for key in every if key not in unions]
    for keys in _alternatives(source.index, {key: names[key] for key in every}):
        is_whole = len(keys) == len(every)
        named = coverage(source.index, [name for key in keys for name in names[key]])
        how = f"{some_of(keys, 2)}: COCO with boxes, names {named}"
        has_points = bool({*(names if is_whole else keys)} & with_points)
        option = "coco" if is_whole else f"coco:{','.join(keys)}"
        sign = Sign("boxes", option, how, has_points=has_points, has_outlines=has_outlines)
        found += named.signs(sign)
    return found


def _unions(contents: Mapping[str, tuple[Sequence[str], int]]) -> list[str]:
    """Return documents whose images and number of boxes are the sums of several other documents."""
    parts, found = list[tuple[set[str], int]](), list[str]()
    for key, (several, number) in sorted(contents.items(), key=lambda pair: len(pair[1][0])):
        names = {*several}
        own = [one for one in parts if one[0] and one[0] <= names]
        every = sorted(name for one, _ in own for name in one)
        if len(own) > 1 and every == sorted(names) and number == sum(x for _, x in own):
            found.append(key)
        else:
            parts.append((names, number))
    return found


def _alternatives(index: KeyIndex, names: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the documents as one group, or as several groups if they describe the same images.

    A group has the documents whose paths differ only in folders and words for splits. Groups
    without images below their folders are left out if other groups have images there.
    """
    of_name = defaultdict[tuple[str, str], list[str]](list)
    for key in names:
        folder = "/".join(one for one in key.split("/")[:-1] if not given_split([one]))
        of_name[folder, words_of_split(stem(key))[1]].append(key)
    groups = [*of_name.values()]
    for one, other in itertools.combinations(groups[:_MOST_GROUPS], 2):
        known = {name: key for key in other for name in names[key]}
        shared = [(name, key) for key in one for name in names[key] if name in known]
        pairs = [(name, key, known[name]) for name, key in shared[:: len(shared) // 64 + 1]]
        if pairs and _are_same(index, pairs):
            folders = [f"{path}/" for path in index.keys.folders.values]
            above = [tuple(f"{key.rpartition('/')[0]}/" for key in keys) for keys in groups]
            near = [any(path.startswith(several) for path in folders) for several in above]
            return [*itertools.compress(groups, near)] or groups
    return [[*names]]


def _are_same(index: KeyIndex, pairs: Sequence[tuple[str, str, str]]) -> bool:
    """Return whether a name means one image in two documents; `pairs` are (name, key, key)."""
    pairing = Pairing(index)
    with contextlib.suppress(SourceError):  # a name fits several images
        found = [
            [pairing.find(name, key, document_split(key) or "") for key in keys]
            for name, *keys in pairs
        ]
        return any(one == other is not None for one, other in found)
    return False


def is_coco(data: bytes) -> bool:
    """Return True if bytes look like a COCO document with boxes, without parsing them."""
    return _is_document(data) and _BOX.search(data) is not None and _SEGMENTS.search(data) is None


def is_panoptic(data: bytes) -> bool:
    """Return True if bytes look like a panoptic COCO document, without parsing them."""
    return _is_document(data) and _SEGMENTS.search(data) is not None


def _is_document(data: bytes) -> bool:
    return all(pattern.search(data) for pattern in _LISTS)


def stated_names(data: bytes) -> list[str]:
    """Return all values of `file_name` in a COCO document, without parsing the rest."""
    return [
        name.decode("utf-8", errors="replace").replace("\\/", "/") for name in _NAME.findall(data)
    ]


def chosen(keys: Sequence[str], *, keypoints: bool = False) -> list[str]:
    """Return the documents called instances_*.json, or all documents if no name fits.

    COCO's other documents describe the same images. With `keypoints`: person_keypoints_*.json.
    """
    begin = "person_keypoints" if keypoints else "instances"
    return [key for key in keys if stem(key).startswith(begin)] or list(keys)


def _num_boxes(data: bytes) -> int:
    return sum(1 for _ in _BOX.finditer(data))


def _image_of(entry: dict[str, Any]) -> tuple[str, Size]:
    name = entry["file_name"]
    if not isinstance(name, str):
        raise TypeError("not a text")
    return name, stated_size(entry.get("height"), entry.get("width"))


def _segment_of(entry: dict[str, Any]) -> Segment:
    if type(entry["id"]) is not int or not 0 < entry["id"] < _MOST_SEGMENTS:
        raise ValueError("not a colour")
    return Segment(entry["id"])


def outline_of(shape: Any) -> Outline:
    """Return the polygons or run lengths of an object; their values are checked when drawn.

    TypeError, ValueError or LookupError for another form.
    """
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


def skeleton_of(entry: dict[str, Any]) -> tuple[Skeleton, int]:
    """Return the skeleton of a category, and the number of its invalid edges.

    Edges are pairs of keypoint numbers from 1, or 0 if any is 0. ValueError for too many names,
    or the same name twice.
    """
    names = tuple(map(str, entry["keypoints"]))
    twice = [shown(name) for name, number in Counter(names).items() if number > 1]
    if len(names) > MOST_POINTS or twice:
        fault = f"two keypoints {twice[0]!r}" if twice else f"more than {MOST_POINTS:,} keypoints"
        raise ValueError(f"has {fault}")
    given = entry.get("skeleton") or []
    several = given if isinstance(given, list) else [given]
    edges = [one if isinstance(one, list) else [] for one in several]
    first = 0 if any(0 in edge for edge in edges) else 1
    known = {*range(first, first + len(names))}
    sound = [
        (edge[0] - first, edge[1] - first)
        for edge in edges
        if len(edge) == 2 and all(type(one) is int and one in known for one in edge)
    ]
    return Skeleton(names, tuple(sound)), len(edges) - len(sound)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


class _Document:
    def __init__(self, key: str) -> None:
        self.images: dict[object, tuple[str, Size]] = {}
        self.categories: dict[object, str] = {}
        self.image_ids: dict[object, int] = {}
        self.category_ids: dict[object, int] = {}
        self.masks: dict[int, str] = {}
        """Number of an image → its mask file, if the document is panoptic."""
        self.malformed: Counter[int] = Counter()
        self.key = key

    def add(self, entries: dict[object, Any], id_: object, value: object) -> None:
        if entries.setdefault(id_, value) != value:
            what = f"id {_short(id_)} is used twice: {_entry(entries[id_])} and {_entry(value)}"
            raise SourceError(self.key, what, "give each entry its own id")


class _Reader:
    def __init__(self, source: AnnotatedSource, rule: FormatRule) -> None:
        self._source, self._option = source, rule.option
        self._may_repeat = bool(rule.files)
        index = source.index
        self._pairing = Pairing(index)
        self._table = ObjectTable(len(index.keys))
        self._ids: dict[str, tuple[tuple[int, int], str]] = {}
        """Class name → sort key of its id, and name of its supercategory."""
        self._keys: list[str] = []
        self._idle: list[str] = []
        self._splits: list[str | None] = [None] * len(index.keys)
        self._has_objects = np.zeros(len(index.keys), np.bool_)
        self._stuff: set[str] = set()
        self._is_panoptic = False
        self._masks: dict[int, tuple[str, str]] = {}
        """Position of an image → key of its document and name of its mask file."""
        self._skeletons: dict[str, Skeleton] = {}
        self._unread: Counter[str] = Counter()
        """Field with keypoints that are not read → number of objects that have it."""
        self._findings: list[str] = []

    def leave_out(self, keys: Sequence[str]) -> None:
        self._findings += [f"{key} is not read: it joins other documents" for key in keys]

    def read(self, key: str, data: bytes) -> None:
        document, start = _Document(key), len(self._table)
        kinds = set()
        for kind, entries in elements(data, key):
            if kind not in ("images", "annotations", "categories"):
                continue
            kinds.add(kind)
            for entry in entries:
                try:
                    self._take(document, kind, entry)
                except _BAD as error:
                    what = f"has an entry of {kind!r} without the fields of COCO ({_short(entry)})"
                    hint = "correct this entry, or export the document as COCO again"
                    raise SourceError(key, what, hint) from error
        if not kinds >= {"images", "annotations"}:
            missing = " and ".join(one for one in ("images", "annotations") if one not in kinds)
            what = f"has no {missing}, which COCO documents of objects have"
            hint = f"name another document: {OptionName(self._option, 'coco:FILE')}"
            raise SourceError(key, what, hint)
        self._keys.append(key)
        places = self._place(key, document.images)
        self._count_unmatched(key, document, places, start)
        lookup = [places.get(name, _STRAY) for name in document.image_ids]
        classes = [document.categories.get(number, "") for number in document.category_ids]
        counts = Counter(document.categories.values())
        if twice := [name for name, number in counts.items() if number > 1]:
            self._findings.append(
                f"{key} has several categories called {some_of(twice)}: one class"
            )
        self._table.renumber(start, lookup, self._table.numbers_of(classes))
        self._keep(key, document, lookup)
        self._check_repeated(key, self._table.images_from(start))

    def _count_unmatched(
        self, key: str, document: _Document, places: dict[object, int], start: int
    ) -> None:
        numbers = self._table.images_from(start)  # numbers of ids, which `renumber` replaces later
        counts = np.bincount(numbers, minlength=len(document.image_ids)).tolist()
        is_idle = bool(places) and max(places.values()) < 0
        missing = dict.fromkeys((document.images[i][0] for i, at in places.items() if at < 0), 0)
        for id_, number in document.image_ids.items():
            if places.get(id_, _STRAY) < 0:
                known = document.images.get(id_)
                name = known[0] if known else f"image_id {_short(repr(id_))}"
                missing[name] = missing.get(name, 0) + counts[number] + document.malformed[number]
        if is_idle:
            self._idle.append(key)
        self._table.miss(missing, is_elsewhere=is_idle)

    def _keep(self, key: str, document: _Document, lookup: Sequence[int]) -> None:
        for image, count in document.malformed.items():
            if lookup[image] >= 0:
                self._table.drop(lookup[image], MALFORMED, count)
        for image, name in document.masks.items():
            if lookup[image] >= 0:
                self._masks[lookup[image]] = key, name

    def _read_skeleton(self, key: str, name: str, entry: dict[str, Any]) -> None:
        try:
            self._skeletons[name], num_bad = skeleton_of(entry)
        except ValueError as error:
            what = f"the category {shown(name)!r} {error}"
            raise SourceError(key, what, "correct its list of keypoints") from error
        if num_bad:
            edges = f"{counted(num_bad, 'edge')} of the skeleton of {shown(name)!r}"
            self._findings.append(f"{key}: {edges} left out")

    def _take(self, document: _Document, kind: str, entry: dict[str, Any]) -> None:
        if kind == "images":
            document.add(document.images, entry["id"], _image_of(entry))
        elif kind == "categories":
            name = str(entry["name"]).strip()
            document.add(document.categories, entry["id"], name)
            if entry.get("isthing") == 0:
                self._stuff.add(name)
            self._add_class(entry["id"], name, str(entry.get("supercategory") or ""))
            if self._source.keypoints and entry.get("keypoints") and name not in self._skeletons:
                self._read_skeleton(document.key, name, entry)
        else:
            images, classes = document.image_ids, document.category_ids
            image = images.setdefault(entry["image_id"], len(images))
            if "segments_info" in entry:
                self._is_panoptic = True
                if self._source.outlines:
                    document.masks[image] = str(entry["file_name"])
            for one in entry.get("segments_info", [entry]):
                try:
                    number = classes.setdefault(one["category_id"], len(classes))
                    self._add(document, image, number, one)
                except _BAD:
                    document.malformed[image] += 1

    def _add(self, document: _Document, image: int, number: int, entry: dict[str, Any]) -> None:
        given, shape = entry.get("bbox"), entry.get("segmentation")
        outline: Outline = None
        if image in document.masks:
            outline = _segment_of(entry)
        elif shape and (self._source.outlines or not given):
            outline = outline_of(shape)
        if given:
            left, top, width, height = given
            box: Sequence[float] = (left, top, left + width, top + height)
        elif outline is None:
            raise ValueError("neither box nor outline")
        else:
            box = NO_BOX
        crowd = entry.get("iscrowd") if self._source.keeps_crowds else None
        keypoints = entry.get("keypoints") or ()
        self._unread.update(one for one in _WHOLE_BODY if any(_list(entry.get(one))))
        if not self._source.keypoints:
            self._unread["keypoints"] += any(_list(keypoints)[2::3])
            keypoints = ()
        attributes = {} if crowd is None else {IS_CROWD: bool(crowd)}
        self._table.add(image, box, number, attributes, outline=outline, keypoints=keypoints)

    def _add_class(self, id_: object, name: str, above: str) -> None:
        order = (0, id_) if isinstance(id_, int) else (1, len(self._ids))
        known = self._ids.get(name)
        self._ids[name] = (order, above) if known is None else (min(known[0], order), known[1])

    def _place(self, key: str, images: dict[object, tuple[str, Size]]) -> dict[object, int]:
        """Record images as annotated; return id → position, −1 if the source lacks the image."""
        split = document_split(key) or ""
        places: dict[object, int] = {}
        names: dict[int, str] = {}
        for id_, (name, size) in images.items():
            found = self._pairing.find(name, key, split)
            places[id_] = -1 if found is None else found
            if found is not None:
                if (other := names.setdefault(found, name)) != name:
                    raise two_entries(key, self._source.index.keys[found], repr(other), repr(name))
                self._table.list_image(found, size)
                self._splits[found] = split or None
        there = [one for one in places.values() if one >= 0]
        if number := len(there) - len({*there}):
            what = f"{counted(number, 'image', 'has', 'have')} several ids in {key}"
            self._findings.append(f"{what}: their objects are stored together")
        return places

    def _check_repeated(self, key: str, images: Ints) -> None:
        has = np.zeros_like(self._has_objects)
        has[images[images >= 0]] = True
        if not self._may_repeat and (both := np.flatnonzero(has & self._has_objects)).size:
            name = self._source.index.keys[int(both[0])]
            what = f"another document also has objects of {name}"
            hint = f"name the document to read: {OptionName(self._option, f'coco:{key}')}"
            raise SourceError(key, what, hint)
        self._has_objects |= has

    def found(self) -> Found:
        names, findings = self._names(), self._findings
        left_out = dict.fromkeys(self._stuff if self._is_panoptic else (), NO_OBJECT)
        labels_of = {name: i for i, name in enumerate(names)}
        areas_of = {name: i for i, name in enumerate(names) if name in left_out}
        if self._keys:
            self._table.check_listed(self._keys, self._source.index.keys[0])
        if self._idle:
            findings.append(f"no image of {some_of(self._idle)} is in the source")
        for key, count in (+self._unread).items():
            objects = counted(count, "object")
            hint = f"; {OptionName('points', 'coco')} stores them" if key == "keypoints" else ""
            findings.append(f"{key} of {objects} are not stored{hint}")
        num_crowds, number = self._table.num_crowds
        if num_crowds > _MANY_CROWDS * number and not self._is_panoptic:
            what = f"{num_crowds:,} of {counted(number, 'object')} are crowds (iscrowd 1)"
            how = "training ignores them, and their pixels are 255 in class masks"
            hint = f"{OptionName('crowds', 'objects')} stores them as other objects"
            findings.append(f"{what}: {how}; {hint}")
        return self._table.found(
            f"COCO, {some_of(self._keys, 3)}",
            self._keys,
            (names, labels_of | left_out),
            areas_of,
            self._skeletons if self._source.keypoints else None,
            splits=self._splits if any(self._splits) else None,
            notation=BoxColumns(("bbox",), "xywh"),
            segments=self._masks,
            findings=findings,
        )

    def _names(self) -> tuple[str, ...]:
        """Return the class names; supercategories are left out if they have no object."""
        used = self._table.classes.keys()
        stuff = self._stuff if self._is_panoptic and not self._source.areas else set()
        above = {parent for name, (_, parent) in self._ids.items() if parent != name}
        kept = [n for n in self._ids if n in used or (n not in above and n not in NO_CLASSES)]
        return tuple(
            sorted(set(kept) - stuff, key=lambda name: (self._ids[name][0], natural_order(name)))
        )


def _short(value: object) -> str:
    return shown(str(value))


def _entry(value: Any) -> str:
    """Return the name of an image, with its size if stated, or of a category."""
    name, size = value if isinstance(value, tuple) else (value, None)
    return _short(name) + (f" of {size[1]}x{size[0]} pixels" if size else "")
