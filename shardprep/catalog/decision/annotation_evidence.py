"""Readings of the objects and labels that documents state for images."""

from __future__ import annotations

import contextlib
import glob
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardprep.catalog.candidates import json_candidates
from shardprep.catalog.decision.box_documents import boxes_of_texts, json_boxes, numbered_boxes
from shardprep.catalog.decision.class_level import CUTS, class_folders, is_no_class
from shardprep.catalog.decision.column_evidence import has_words, is_about
from shardprep.catalog.decision.copies import apart
from shardprep.catalog.decision.table_evidence import by_tables
from shardprep.catalog.decision.view import Reading, View, head_of
from shardprep.catalog.label_rules import auto_labels, label_keys
from shardprep.catalog.labels import ENOUGH, are_classes, find_label_column
from shardprep.catalog.names import UNTRAINED, find_masks, stem, words_of
from shardprep.catalog.objects.detect import objects_of, usual
from shardprep.catalog.objects.formats.annotated_source import (
    AnnotatedSource,
    Sign,
    named_as_images,
    of_own_documents,
    read_each,
)
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import Found
from shardprep.catalog.tables.json_table import json_rows
from shardprep.catalog.tables.key_index import AmbiguousIdError
from shardprep.catalog.tables.row_matching import match_ids
from shardprep.catalog.tables.table import Table, table_of
from shardprep.catalog.target_values import as_number
from shardprep.errors import OptionName, SourceError, counted
from shardprep.recipe.rules import TABLE_SUFFIXES, LabelRule

_NUM_SAMPLES, _MOST_FOLDERS, _NO_CLASS = 8, 64, 3
_SHARED = (*TABLE_SUFFIXES, ".json", ".jsonl", ".xml")
"""Suffixes of documents that may describe many images."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_FILE_NAME = re.compile("<filename>([^<]+)</filename>")
_README = re.compile("(^|/)readme[^/]*$", re.IGNORECASE)
_CLASS_OF_OBJECT = re.compile(
    r"(\w+_)?(text|string|word|transcription|transcript)s?|(cell|tissue|defect|object)[_ ]?type",
    re.IGNORECASE,
)
"""Matches titles of columns with the text inside a box, or with a kind of object."""
_MOST_BYTES = 1 << 20
_OBJECTS = ("boxes", "points", "rows", "stack", "target_image")
_OUTLINES = ("labelme", "via", "jsonl", "yolo")
"""Formats whose main content is outlines; the main content of COCO documents is boxes."""


def annotation_readings(view: View) -> Sequence[Reading]:
    """Return the readings of the objects or labels that documents of the source state.

    They take precedence over names of files. If folders may be classes, or a table or file names
    may give labels, readings with these labels are added.
    """
    if not _has_documents(view):
        return []
    are_masks = not view.is_open("masks")
    signs = usual(view.signs)
    signs = [one for one in signs if one.key == "boxes" or (one.key == "masks" and not are_masks)]
    if not signs:
        if are_masks:
            return []
        found = _without_header(view) or _labels_of_files(view) or boxes_of_texts(view, ".txt")
        return found or boxes_of_texts(view, ".csv") or json_boxes(view)
    several = [] if are_masks else _of_several(view, signs)
    most = view.recipe.max_dropped * len(view.members)
    own = [one for sign in _different(view, signs) for one in readings_of(sign, most)]
    readings = several or own
    readings = [*_of_outlines(view, signs), *readings]
    if are_masks and any(one.has_outlines for one in signs):
        # The outlines repeat the masks, with other class names.
        readings = [Reading({}, "masks, without the objects of documents"), *readings]
    if are_masks or several:
        return readings
    readings = [*_with_classes(view, readings), *readings]
    return _with_labels(view, signs, _without_others(view, signs[0], readings))


def _of_outlines(view: View, signs: Sequence[Sign]) -> Iterator[Reading]:
    """Yield the readings of outlines if the name or the readme of the source says segmentation."""
    texts = [one for one in view.documents.members(".txt", ".md") if _README.search(one.key)]
    is_said = "segmentation" in words_of(view.recipe.source.rpartition("/")[2])
    is_said |= any("segmentation format" in head_of(one).lower() for one in texts[:_NUM_SAMPLES])
    for sign in signs if is_said else ():
        if sign.has_outlines and sign.option.partition(":")[0] not in _OUTLINES:
            yield Reading({"masks": sign.option, "instances": True}, f"{sign.how}, as outlines")


def _with_classes(view: View, readings: Sequence[Reading]) -> Iterator[Reading]:
    """Yield readings with a column of classes added, for objects that have no class column.

    The column is added to `csv:FILE:ID:BOX` or `rle:FILE:ID:RLE`, which names no class column.
    """
    for reading in readings:
        for key in {"boxes", "masks"} & reading.options.keys():
            kind, *parts = str(reading.options[key]).split(":")
            of_table = [one for one in view.tables if parts[:1] == [one.files]]
            if kind not in ("csv", "rle") or len(parts) != _NO_CLASS or not of_table:
                continue
            for title in _class_titles(view, of_table[0], [*parts[1:], reading.options[key]]):
                rule = f"{reading.options[key]}:{title}"
                why = f"{reading.why}, column {title!r} as class"
                yield Reading({**reading.options, key: rule}, why)


def _class_titles(view: View, table: Table, used: Sequence[object]) -> list[str]:
    """Return the titles of columns that may be classes of objects, by their title or cells."""
    usual = [*filter(_CLASS_OF_OBJECT.fullmatch, table.header)]
    with contextlib.suppress(SourceError):
        match = match_ids(view.index, table)
        others = [x for x in table.header if not is_about(x) and x not in " ".join(map(str, used))]
        usual = usual or [x for x in others if has_words(match, x)]
    return usual


def unclear_objects(view: View) -> Sequence[Reading]:
    """Return readings of objects that few images have, or of a table that may hold labels.

    If the images have labels from another place, return a note, which asks no question.
    """
    if not view.is_open(*_OBJECTS) or not view.has_documents:
        return []
    signs = [] if view.signs else usual(view.all_signs)
    labels = by_tables(view) if signs else []
    stated = labels[0].options.get("labels") if labels else None
    rule = str(stated or view.automatic.rule)
    of_signs = "".join(one.option for one in signs)
    pairs = zip(view.index.keys, view.automatic.names, strict=True) if signs else ()
    num_in_folders = sum(f"/{name}/" in f"/{key}" for key, name in pairs)  # these are classes
    is_own = rule.startswith("csv:") and rule.split(":")[1] in of_signs
    is_own &= 2 * num_in_folders < len(view.index.keys)
    is_asked = view.is_open("labels", "masks") and (is_own or rule in ("none", "prefix"))
    if not is_asked:
        notes = [f"{one.how}, not read; {one.flag} stores them" for one in signs]
        return [Reading({}, "; ".join(notes))] if notes else []
    readings = [reading for sign in signs for reading in readings_of(sign)]
    return [*readings, Reading({}, "images without boxes")] if readings else []


def _with_labels(view: View, signs: Sequence[Sign], readings: list[Reading]) -> Sequence[Reading]:
    """Return the readings of objects, and readings of labels with or without these objects."""
    options = "".join(one.option for one in signs)
    others = [one for one in view.tables if one.files not in options]
    rule = auto_labels(view.index, others).rule
    if rule == "folder":
        return _against_folders(view, signs[0], readings)
    if rule == "prefix" and _are_listed(view, signs[0]):
        return [*readings, Reading({"labels": rule}, "starts of names, without the objects")]
    if rule.startswith(("csv", "column")):
        return [*readings, Reading({"labels": rule}, "labels of a table, without the objects")]
    return [*readings, *_of_the_rest(view, signs[0])]


def _of_the_rest(view: View, sign: Sign) -> list[Reading]:
    """Return a reading with folders as classes if less than half of sampled images have boxes."""
    every = np.unique(np.linspace(0, len(view.members) - 1, 4 * _NUM_SAMPLES).astype(int))
    found = _found(view, sign, every) if sign.key == "boxes" else None
    number = sum(one is not None for one in found.annotations) if found else len(every)
    if 2 * number >= len(every) or "unlisted" in sign.options:
        return []
    names = {path.rpartition("/")[2] for path in view.folders}
    names = {name for name in names if not is_no_class(name)}
    why = f"{sign.how} is of few images; the folders are classes"
    return [Reading({"labels": "folder"}, why)] if len(names) > 1 else []


def _without_others(view: View, sign: Sign, readings: list[Reading]) -> list[Reading]:
    """Return the readings; a reading that excludes folders without boxes may be added in front."""
    folders, splits = view.members.keys.folders, view.index.splits
    paths = folders.values if len(folders.values) <= _MOST_FOLDERS else ()
    most = view.recipe.max_dropped * len(view.members)
    plain, *others = readings_of(sign)
    is_plain = not others and readings == readings_of(sign, most)
    if not is_plain or sign.key != "boxes" or not sign.num_unlisted or len(paths) < 2:
        return readings
    rows = [np.flatnonzero(folders.codes == code)[:_NUM_SAMPLES] for code in range(len(paths))]
    found = _found(view, sign, np.concatenate(rows))
    if found is None:
        return readings
    codes = np.repeat(np.arange(len(paths)), [*map(len, rows)])
    known = {*codes[[one is not None for one in found.annotations]].tolist()}
    out = [
        code
        for code, (path, own) in enumerate(zip(paths, rows, strict=True))
        if path and code not in known and splits[int(own[0])] not in UNTRAINED
    ]
    inside = np.flatnonzero(np.isin(folders.codes, out))
    num_left = sign.num_unlisted - len(inside)
    if not out or len(out) == len(paths) or (sign.has_unlisted and num_left > most):
        return readings
    found = _found(view, sign, inside)  # of all their images
    if found is not None and any(one is not None for one in found.annotations):
        return readings
    why = f"{plain.why}; {counted(len(out), 'folder')} without one left out"
    globs = tuple(f"{glob.escape(paths[code])}/*" for code in out)
    return [Reading({"exclude": globs, **plain.options}, why), *readings]


def _of_several(view: View, signs: Sequence[Sign]) -> list[Reading]:
    """Return the readings of `apart` if the first Pascal VOC document fits several images."""
    if all(one.option != "voc" for one in signs):
        return []
    document = view.documents.members(".xml")[0]
    match = _FILE_NAME.search(head_of(document))
    name = match[1] if match else stem(document.key)
    if len(view.index.find(stem(name))) > 1:
        try:
            Pairing(view.index).find(name, document.key)
        except AmbiguousIdError as error:
            return apart(view, error.found)
    return []


def _has_documents(view: View) -> bool:
    """Return True if there are documents, and no option states objects, stacks or mask folders."""
    are_masks = not view.is_open("masks")
    if not view.is_open("labels", *_OBJECTS) or (are_masks and "masks" not in view.decided):
        return False
    is_enough = 2 * len(view.documents.members(".txt")) >= len(view.members) > 0
    is_enough |= view.listing.columns is not None
    if not (is_enough or view.documents.members(*_SHARED)):
        return False
    return are_masks or not find_masks(view.index.keys).num_masks


def readings_of(sign: Sign, most_unlisted: float = math.inf) -> list[Reading]:
    """Return the readings of a sign: with and without keypoints, outlines or unlisted images.

    Above `most_unlisted`, `--unlisted auto` would refuse the images without a file of YOLO.
    """
    plain = Reading({sign.key: sign.option}, sign.how)
    if sign.has_points:
        return [Reading({"points": sign.option}, f"{sign.how}, and their keypoints"), plain]
    if sign.has_outlines and sign.option.partition(":")[0] in _OUTLINES:
        why = f"{sign.how}, with outlines; {OptionName('boxes', sign.option)} stores boxes alone"
        plain = Reading({"masks": sign.option, "instances": True}, why)
    elif sign.has_outlines:
        more = f"{OptionName('masks', sign.option)} {OptionName('instances')}"
        plain = replace(plain, why=f"{sign.how}; {more} stores the outlines as well")
    elif sign.instances:
        apart = Reading({**plain.options, "instances": True}, f"{sign.how}; objects apart")
        return [apart, replace(plain, why=f"{sign.how}; areas of a class together")]
    are_many = sign.has_unlisted and sign.num_unlisted > most_unlisted
    if sign.num_unlisted and (are_many or sign.is_unclear or sign.option.startswith("csv:")):
        why = f"{plain.why}; {counted(sign.num_unlisted, 'other')}"
        left_out = {"unlisted": "skip"} if sign.has_unlisted else {}
        return [
            Reading({**plain.options, "unlisted": "background"}, f"{why} without an object"),
            Reading({**plain.options, **left_out}, f"{why} left out"),
        ]
    return [plain]


def _different(view: View, signs: Sequence[Sign]) -> list[Sign]:
    """Return the signs, with one of several that have equal box counts in a sample; all of COCO."""
    if len(signs) < 2:
        return [*signs]
    every = np.linspace(0, len(view.members) - 1, _NUM_SAMPLES).astype(int)
    known: list[list[int]] = []
    kept = []
    for sign in sorted(signs, key=lambda one: one.num_unlisted):
        found = _found(view, sign, np.unique(every)) if sign.key == "boxes" else None
        numbers = [len(one.boxes) if one else 0 for one in found.annotations] if found else []
        is_group = sign.option.startswith("coco:")  # others state other splits or classes
        if not any(numbers) or numbers not in known or is_group:
            kept.append(sign)
            known.append(numbers)
    return kept


def _found(view: View, sign: Sign, places: Any) -> Found | None:
    """Return the objects of some images, or None if they cannot be read."""
    return objects_of(sign, view.documents, view.members.take(places))


def _against_folders(view: View, sign: Sign, readings: Sequence[Reading]) -> Sequence[Reading]:
    """Return the readings; if folders may be classes, also readings with folders as labels."""
    labelling = label_keys(view.index, LabelRule("folder"), ())
    names, counts = labelling.names, class_folders(labelling)
    if not counts:
        return readings
    folders = Reading({"labels": "folder"}, f"{counted(len(counts), 'folder')} of images")
    places = np.unique(np.linspace(0, len(names) - 1, 4 * _NUM_SAMPLES).astype(int))
    found = _found(view, sign, places) if sign.key == "boxes" else None
    plain = [_plain(one) for one in found.names] if found else []
    classes = {*plain} - {""}
    own = [_plain(str(names[place])) for place in places]
    annotations = found.annotations if found else ()
    if own == ["".join({plain[x] for x in one.labels}) if one else "" for one in annotations]:
        why = f"{readings[0].why}; the folders name the classes of the objects"
        return [replace(readings[0], why=why), *readings[1:]]
    num_same = sum(any(one in name or name in one for one in classes) for name in own)
    if 2 * num_same > len(own):
        folders = replace(folders, why=f"{folders.why} that name the classes of the objects")
    both = [
        Reading({**folders.options, **one.options}, f"{one.why}; {folders.why}")
        for one in readings
        if not (sign.num_unlisted or "exclude" in one.options)
    ]
    return [folders, *readings, *both]


def _are_listed(view: View, sign: Sign) -> bool:
    """Return whether starts of image names are names of documents, but not classes of objects."""
    several = (stem(one.key) for one in view.documents.members(".txt", ".csv"))
    lists = [_plain(one) for one in several if not view.index.find(one)]
    names = auto_labels(view.index, ()).names
    starts = {_plain(str(one)) for one in names.counts()}
    num_listed = sum(any(one.startswith(name) for one in lists) for name in starts)
    if num_listed < ENOUGH * len(starts) or sign.key != "boxes":
        return False
    found = _found(view, sign, np.arange(min(len(names), _NUM_SAMPLES)))
    return found is not None and starts.isdisjoint(map(_plain, found.names))


def _plain(name: str) -> str:
    return CUTS.sub("", name).casefold()


def _without_header(view: View) -> list[Reading]:
    """Return readings of a headerless table whose rows are an image, four numbers and a class."""
    for table in view.documents.tables:
        bare = {} if table.has_numbers else {"header": False}
        cells = next(iter(table.rows), ()) if table.has_numbers else table.header
        sides = [i for i, cell in enumerate(cells, start=1) if _NUMBER.fullmatch(cell)]
        texts = [i for i in range(1, len(cells) + 1) if i not in sides]
        if len(sides) != 4 or len(texts) != 2:
            continue
        ids = [i for i in texts if len(view.index.find(cells[i - 1])) == 1]
        rest = [i for i in texts if i not in ids]
        if len(ids) == 1:
            own = view.of(view.recipe.with_rules(**bare))
            places = ",".join(map(str, sides))
            forms = (f"xyxy({places})", f"xywh({places})")
            every = np.arange(min(len(view.members), 256))
            rules = [f"csv:{table.name}:{ids[0]}:{one}:{rest[0]}" for one in (places, *forms)]
            signs = [Sign("boxes", rule, f"{table.name} has no header") for rule in rules]
            found = _found(own, signs[0], every)
            are_corners = any(map(numbered_boxes, own.documents.tables))
            signs = signs[:1] if found is not None else signs[1 : 2 if are_corners else 3]
            return [Reading({**bare, "boxes": one.option}, one.how) for one in signs]
    return []


def _labels_of_files(view: View) -> list[Reading]:
    """Return the reading of labels in JSON documents of single images (see `find_label_column`)."""
    source = AnnotatedSource(view.index, view.documents)
    members = named_as_images(source, ".json")
    if len(members) < ENOUGH * len(view.members) or view.automatic.rule not in ("prefix", "none"):
        return []
    rows: list[Mapping[str, str]] = []
    for text in read_each(members[:: -(-len(members) // _NUM_SAMPLES)], _MOST_BYTES):
        with contextlib.suppress(SourceError):
            rows += json_rows(text.data, text.key, is_of_image=True)
    with contextlib.suppress(SourceError):
        title = find_label_column(table_of(".json", [dict(one) for one in rows]))
        several = {"separator": ","} if any("," in one.get(title, "") for one in rows) else {}
        why = f"{counted(len(members), 'JSON document')} of an image each have {title!r}"
        rule = f"csv:{of_own_documents(source, members)}:{title}"
        own = Reading({"labels": rule, **several}, why)
        cells = [one.get(title, "") for one in rows]
        are_numbers = all(as_number(one) is not None for one in cells)
        is_class = not are_numbers or are_classes(len({*cells}), len(cells))
        number = replace(own, options={**own.options, "target": "regression"})
        readings = [own] if is_class else [number, own]
        others = json_candidates(view)
        alone = Reading({"labels": "none"}, "images alone; other documents name them, too")
        readings += [*others, alone] if others else []
        return readings if len({*cells}) > 1 else []
    return []
