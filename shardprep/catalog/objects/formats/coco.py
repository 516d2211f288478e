"""COCO's JSON: images, annotations and categories in one document for many images.

In a panoptic document an annotation is an image, and its segments are things, which are objects, or
stuff, which are areas. Their pixels are in a mask file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardprep.catalog.names import document_split, natural_order
from shardprep.catalog.objects.formats.coco_document import image_of, outline_of, segment_of
from shardprep.catalog.objects.formats.json_stream import elements
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import MALFORMED, NO_BOX, NO_OBJECT, ObjectTable
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError, shown, some_of
from shardprep.image.annotation_types import Outline
from shardprep.recipe.object_rules import BoxColumns

_NO_CLASSES = ("__ignore__", "_background_")
"""Categories that labelme2coco writes, and that nothing is of."""
_MOST_SHOWN = 80
"""Characters of a name in an error."""
_STRAY = -2
"""Position of an image that a document does not describe."""
_BAD = (TypeError, ValueError, OverflowError, KeyError)


def read_coco(
    documents: Iterable[tuple[str, bytes]],
    index: KeyIndex,
    *,
    outlines: bool = False,
    areas: bool = False,
    may_repeat: bool = True,
) -> Found:
    """Return the objects of all documents, key and bytes each; classes in the order of their ids.

    Args:
        documents: read one at a time.
        index: the images.
        outlines: keep polygons, run lengths and segments beside boxes.
        areas: keep the stuff of panoptic documents, with its classes.
        may_repeat: an image may have objects in several documents, which then are joined.

    Raises:
        SourceError: a document is damaged or no COCO, or none names an image of the source.

    """
    reader = _Reader(index, outlines=outlines, areas=areas, may_repeat=may_repeat)
    for key, data in documents:
        reader.read(key, data)
        del data  # before the next is read, and objects are sorted
    return reader.found()


class _Document:
    """The lists of one document; numbers of ids are those of the order in which they are met."""

    def __init__(self, key: str) -> None:
        self.images: dict[object, tuple[str, tuple[int, int] | None]] = {}
        self.categories: dict[object, str] = {}
        self.image_ids: dict[object, int] = {}
        self.category_ids: dict[object, int] = {}
        self.masks: dict[int, str] = {}
        """Number of an image → its mask file, in a panoptic document."""
        self.malformed: Counter[int] = Counter()
        self._key = key

    def add(self, entries: dict[object, Any], id_: object, value: object) -> None:
        """Add an entry; the same id with another value would say by chance which one is meant."""
        if entries.setdefault(id_, value) != value:
            both = f"{_short(entries[id_])} and {_short(value)}"
            raise SourceError(self._key, f"id {_short(id_)} stands for two: {both}")


class _Reader:
    """Entries collected from one document after the other."""

    def __init__(self, index: KeyIndex, *, outlines: bool, areas: bool, may_repeat: bool) -> None:
        self._index = index
        self._outlines = outlines
        self._areas = areas
        self._may_repeat = may_repeat
        self._pairing = Pairing(index)
        self._table = ObjectTable(len(index.keys))
        self._ids: dict[str, tuple[tuple[int, int], str]] = {}
        """Class name → sort key of its id, and the name of the class above it."""
        self._keys: list[str] = []
        self._idle: list[str] = []
        """Documents that name no image of the source."""
        self._missing: Counter[str] = Counter()
        """Name of an image that the source does not have, or id without one → its objects."""
        self._splits: list[str | None] = [None] * len(index.keys)
        self._has_objects = np.zeros(len(index.keys), np.bool_)
        self._num_elsewhere = 0
        self._stuff: set[str] = set()
        """Classes of which panoptic documents have no objects but areas: sky, grass."""
        self._is_panoptic = False
        self._masks: dict[int, tuple[str, str]] = {}
        """Position of an image → document, and its mask file."""

    def read(self, key: str, data: bytes) -> None:
        """Add a document."""
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
                    hint = "see the format of COCO's instances_*.json"
                    raise SourceError(key, what, hint) from error
        if not kinds >= {"images", "annotations"}:
            what = "is no COCO document: it has no lists 'images' and 'annotations'"
            raise SourceError(key, what, "name the right file: --boxes coco:FILE")
        self._keys.append(key)
        places = self._place(key, document.images)
        self._count_unmatched(key, document, places, start)
        lookup = [places.get(name, _STRAY) for name in document.image_ids]
        classes = [document.categories.get(number, "") for number in document.category_ids]
        self._table.renumber(start, lookup, self._table.numbers_of(classes))
        self._keep(key, document, lookup)
        self._check_repeated(key, self._table.images_from(start))

    def _count_unmatched(
        self, key: str, document: _Document, places: dict[object, int], start: int
    ) -> None:
        """Count the objects of each image that the source, or the document, does not have."""
        numbers = self._table.images_from(start)  # of ids, not yet of images
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
            self._num_elsewhere += sum(missing.values())
            missing = dict.fromkeys(missing, 0)
        self._missing.update(missing)

    def _keep(self, key: str, document: _Document, lookup: Sequence[int]) -> None:
        """Keep what a document says of whole images; their positions are those of the lookup."""
        for image, count in document.malformed.items():
            if lookup[image] >= 0:
                self._table.drop(lookup[image], MALFORMED, count)
        for image, name in document.masks.items():
            if lookup[image] >= 0:
                self._masks[lookup[image]] = key, name

    def _take(self, document: _Document, kind: str, entry: dict[str, Any]) -> None:
        """Add an entry of one of the three lists, in whatever order the lists come."""
        if kind == "images":
            document.add(document.images, entry["id"], image_of(entry))
        elif kind == "categories":
            name = str(entry["name"]).strip()
            document.add(document.categories, entry["id"], name)
            if entry.get("isthing") == 0:
                self._stuff.add(name)
            self._add_class(entry["id"], name, str(entry.get("supercategory") or ""))
        else:
            images, classes = document.image_ids, document.category_ids
            image = images.setdefault(entry["image_id"], len(images))
            if "segments_info" in entry:
                self._is_panoptic = True
                if self._outlines:
                    document.masks[image] = str(entry["file_name"])
            for one in entry.get("segments_info", [entry]):
                try:
                    number = classes.setdefault(one["category_id"], len(classes))
                    self._add(document, image, number, one)
                except _BAD:
                    document.malformed[image] += 1

    def _add(self, document: _Document, image: int, number: int, entry: dict[str, Any]) -> None:
        """Add an object with a box, or with an outline alone."""
        given, shape = entry.get("bbox"), entry.get("segmentation")
        outline: Outline = None
        if image in document.masks:
            outline = segment_of(entry)
        elif shape and (self._outlines or not given):
            outline = outline_of(shape)
        if given:
            left, top, width, height = given
            box: Sequence[float] = (left, top, left + width, top + height)
        elif outline is None:
            raise ValueError("neither box nor outline")
        else:
            box = NO_BOX
        crowd = entry.get("iscrowd")
        self._table.has_crowds |= crowd is not None
        self._table.add(image, box, number, is_crowd=bool(crowd), outline=outline)

    def _add_class(self, id_: object, name: str, above: str) -> None:
        order = (0, id_) if isinstance(id_, int) else (1, len(self._ids))
        known = self._ids.get(name)
        self._ids[name] = (order, above) if known is None else (min(known[0], order), known[1])

    def _place(
        self, key: str, images: dict[object, tuple[str, tuple[int, int] | None]]
    ) -> dict[object, int]:
        """Return the position of each image by its id; −1 where the source does not have it."""
        split = document_split(key) or ""
        places: dict[object, int] = {}
        for id_, (name, size) in images.items():
            found = self._pairing.find(name, key, split)
            places[id_] = -1 if found is None else found
            if found is not None:
                self._table.list_image(found, size)
                self._splits[found] = split or None
        return places

    def _check_repeated(self, key: str, images: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        has = np.zeros_like(self._has_objects)
        has[images[images >= 0]] = True
        if not self._may_repeat and (both := np.flatnonzero(has & self._has_objects)).size:
            name = self._index.keys[int(both[0])]
            what = f"has objects of {name}, which another document has too ({self._keys[0]})"
            raise SourceError(key, what, f"say which is to be read: --boxes coco:{key}")
        self._has_objects |= has

    def found(self) -> Found:
        """Return all that was read."""
        names, findings = self._names(), []
        left_out = dict.fromkeys(self._stuff if self._is_panoptic else (), NO_OBJECT)
        labels_of = {name: i for i, name in enumerate(names)}
        areas_of = {name: i for i, name in enumerate(names) if name in left_out}
        annotations = self._table.annotations(labels_of | left_out, areas_of)
        if self._keys and not any(one is not None for one in annotations):
            missing = next(iter(self._missing), "")
            such = f", such as {shown(missing, _MOST_SHOWN)}" if missing else ": it lists none"
            hint = f"a key looks like {shown(self._index.keys[0], _MOST_SHOWN)}"
            raise SourceError(self._keys[0], f"names no image of the source{such}", hint)
        if self._idle:
            findings.append(f"no image of {some_of(self._idle)} is in the source")
        return Found(
            annotations=annotations,
            names=names,
            how=f"COCO, {some_of(self._keys, 3)}",
            documents=tuple(self._keys),
            without_image=self._missing,
            num_elsewhere=self._num_elsewhere,
            splits=self._splits if any(self._splits) else None,
            notation=BoxColumns(("bbox",), "xywh"),
            segments=self._masks,
            findings=findings,
        )

    def _names(self) -> tuple[str, ...]:
        """Return the classes, without the roots of a tree of which there is no object."""
        used = self._table.classes.keys()
        stuff = self._stuff if self._is_panoptic and not self._areas else set()
        above = {parent for name, (_, parent) in self._ids.items() if parent != name}
        kept = [n for n in self._ids if n in used or (n not in above and n not in _NO_CLASSES)]
        return tuple(
            sorted(set(kept) - stuff, key=lambda name: (self._ids[name][0], natural_order(name)))
        )


def _short(value: object) -> str:
    return shown(str(value), _MOST_SHOWN)
