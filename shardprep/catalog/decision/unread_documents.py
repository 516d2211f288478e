"""Find documents that name the images, or pair with them, but that no option reads.

Unless labels, boxes or masks are known, the user must confirm that only the images are wanted.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from shardprep.catalog.candidates import json_candidates, path_candidates, table_candidates
from shardprep.catalog.decision.class_level import unproved
from shardprep.catalog.decision.column_evidence import is_about
from shardprep.catalog.decision.name_evidence import numbers_of_names
from shardprep.catalog.decision.split_evidence import PARTITION
from shardprep.catalog.decision.view import HEAD, Options, Reading, View, head_of
from shardprep.catalog.labels import Labelling
from shardprep.catalog.names import document_split, folder_splits, stem, words_of_split
from shardprep.catalog.objects.detect import text_pattern
from shardprep.catalog.objects.formats.annotated_source import (
    AnnotatedSource,
    named_as_images,
    read_each,
    sampled,
)
from shardprep.catalog.objects.formats.yolo import fault_of
from shardprep.catalog.tables.key_index import KeyIndex, origin_of
from shardprep.catalog.tables.row_matching import find_ids
from shardprep.errors import OptionName, SourceError, printable, some_of
from shardprep.image.signatures import IMAGE_SUFFIXES
from shardprep.source.members import Member
from shardprep.source.string_column import Texts

_OPTIONS = (
    "labels", "boxes", "masks", "points", "rows", "join", "target_image", "target", "stack",
)  # fmt: skip
_WITH_FILES = (*_OPTIONS, "split", "group", "exclude_list", "class_map", "relabel", "mask_values")
_KEYS, _FEW_KEYS = re.compile(r'"([^"]+)"\s*:'), 3
_SENTENCES = re.compile(r'"(question|caption|sentence|answer)s?"')
_BESIDE_TARGETS = {*_OPTIONS} - {"labels", "target_image"}
_ARRAYS = (".npy", ".npz", ".h5", ".pkl", ".flo", ".exr")
_SUFFIXES = (
    ".txt", ".json", ".jsonl", ".ndjson", ".geojson", ".xml", ".mat", ".csv", ".tsv", ".pts",
    ".ann", ".lst", ".dat", ".yaml", ".yml", *_ARRAYS,
)  # fmt: skip
_NESTED = (".json", ".jsonl", ".ndjson", ".geojson", ".xml", ".yaml", ".yml")
_IMAGES = tuple(IMAGE_SUFFIXES)
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_ABOUT = re.compile(
    r"(read.?me|licen[cs]e|copying|changes|citation|checksum|md5|sha\d|manifest|submission)[^/]*$"
    r"|\.aux\.xml$",
    re.IGNORECASE,
)
"""Matches documents that are about files, not about the content of images."""
_FIELD = re.compile(r"\{[^{}]*\}")
_PATTERN = re.compile(r"[^:,\s]*\{[^{}]*\}[^:,\s]*")
_NAME = re.compile(r"[^\s\"',;:#<>|=\[\](){}]+")
_FIRST = re.compile(r"^[\"']?0*(\d{1,18})[\"']?(?=[,;\s])", re.MULTILINE)
_LAST = re.compile(r"0*(\d{1,18})(?!\d)")
_FIELDS = re.compile(r"[\s,;]+")
_BOX = re.compile(r"(-?\d[\d.]*[\s,]+){3,30}-?\d[\d.]*")
_BELOW_COUNTS = re.compile(r"^\S+\.\w+\s*\n\d+\s*\n(-?\d+ ){4}", re.MULTILINE)
"""Matches a line with an image name, then a count and a box, as in the lists of WIDER FACE."""
_ENOUGH, _MOSTLY, _MOST_IMAGES, _MOST_SHOWN, _SHORT = 0.5, 0.9, 64, 40, 4
_MOST_DOCUMENTS, _MOST_KEYS, _MOST_LINES, _MOST_PROPOSED, _MOST_SPLITS = 8, 20_000, 1_000, 5, 4


def unread_documents(view: View) -> Sequence[Reading]:
    """Return a note or a question about documents and spreadsheets that no option reads."""
    readings = [*_of_documents(view)]
    members = view.documents.members(*_SPREADSHEETS)
    tables = {stem(one.name) for one in view.documents.tables} if members else set()
    sheets = [one.key for one in members if not (_ABOUT.search(one.key) or stem(one.key) in tables)]
    if not sheets:
        return readings
    what = f"a spreadsheet is not read, save it as CSV: {some_of(sheets, 2)}"
    if readings:
        return [replace(readings[0], why=f"{readings[0].why}; {what}"), *readings[1:]]
    if view.is_open(*_OPTIONS) and view.automatic.rule == "none":
        return [Reading({"labels": "none"}, f"images alone; {what}", is_certain=False)]
    return [Reading({}, what)]


def unread_tables(view: View) -> Sequence[Reading]:
    """Return a note about tables that name images, but that no option reads."""
    recipe, labelling = view.recipe, view.automatic
    options = " ".join(str(getattr(recipe, one)) for one in _WITH_FILES)
    is_labelled = recipe.labels == "auto" and not recipe.is_annotated and labelling.match
    options += f" {labelling.match.table.files}" if is_labelled and labelling.match else ""
    said = " ".join([options, *view.notes, *labelling.findings, *labelling.remarks])
    globs = [_FIELD.sub("*", one) for one in _PATTERN.findall(options)]
    unread = list[str]()
    for table in view.tables if view.is_open("items") else ():
        names = {*table.file_names}
        is_used = table.is_own or any(
            x in said and re.search(rf"(?<![\w.-]){re.escape(x)}\b", said) for x in names
        )
        if is_used or _ABOUT.search(table.name):
            continue
        if any(fnmatch.fnmatchcase(one, glob) for one in names for glob in globs):
            continue
        with contextlib.suppress(SourceError):
            ids = table.cells(table.column(find_ids(view.index, table)))
            some = ids[:: len(ids) // _MOST_IMAGES + 1]
            if 2 * view.index.num_found(some) > len(some):
                unread.append(f"{table.name} (columns {some_of(table.header)})")
    what = f"tables that name images and are not read: {some_of(unread, 2)}"
    return [Reading({}, what)] if unread else []


def _of_documents(view: View) -> Sequence[Reading]:
    """Return the question whether only the images are wanted, if unread documents name them.

    If folders are classes and the documents state nothing more, return only a note.
    """
    is_target = "target_image" in view.decided and view.is_open(*_BESIDE_TARGETS)
    has_splits = {"split", "join"} <= view.decided and view.is_open(*({*_OPTIONS} - {"join"}))
    is_masked = "masks" in view.decided and view.is_open(*({*_OPTIONS} - {"masks"}))
    if not (is_target or is_masked or has_splits or view.is_open(*_OPTIONS)):
        return []
    recipe = view.recipe
    own = recipe.split, *recipe.join, recipe.exclude_list, recipe.class_map, recipe.group
    used = " ".join((*own, recipe.masks))
    documents = [
        one
        for one in view.documents.members(*_SUFFIXES)
        if not _ABOUT.search(one.key) and one.key.rpartition("/")[2] not in used
    ]
    if is_target:
        documents = [
            one for one in documents_of_images(view, documents) if not _are_pairs(view, one)
        ]
        whys = map(_unread, documents[:1])
        return [Reading({"labels": "none"}, why, is_certain=False) for why in whys]
    if is_masked:
        return _beside_masks(view, next(documents_of_images(view, documents), None))
    automatic = view.automatic
    lists = next(_of_splits(view, documents), None)
    if lists is not None and automatic.rule != "none":
        why = f"{_unread(lists)}, and all images are in train"
        return [Reading({"labels": automatic.rule}, why, is_certain=False)]
    is_open = automatic.rule in ("none", "prefix", "folder") and not automatic.unclear
    if not (documents and is_open) or view.all_signs:
        return []
    document = next(documents_of_images(view, documents), None)
    return _compared(view, document, automatic) if document else []


def _beside_masks(view: View, document: Member | None) -> Sequence[Reading]:
    """Return a note about a document; a question if it has sentences, which may be targets."""
    if document is None or not _SENTENCES.search(head_of(document)):
        return [Reading({}, _unread(document))] if document else []
    alone = Reading({"labels": "none"}, f"masks alone; {_unread(document)}", is_certain=False)
    return [alone, *_proposals(view, document)]


def _are_pairs(view: View, document: Member) -> bool:
    """Return whether most lines of a document have only image names."""
    names = {key.rpartition("/")[2].casefold() for key in view.candidates.keys}
    names |= {stem(name) for name in names}
    lines = [{*_FIELDS.split(line.strip())} for line in head_of(document).casefold().splitlines()]
    return sum(line <= names for line in lines) > _ENOUGH * len(lines)


def _compared(view: View, document: Member, automatic: Labelling) -> list[Reading]:
    rule = automatic.rule
    if rule == "folder" and not _has_more(view.index, document):
        return [Reading({}, _unread(document))]
    why = f"images alone; {_not_yolo(view, document) or _unread(document)}"
    if _has_boxes(document):
        flag = OptionName("boxes", "csv:FILE:ID:x,y,w,h:CLASS")
        why += f"; {flag} takes them from a table of yours"
        if _BELOW_COUNTS.search(head_of(document)):
            why += ", and docs/items.md makes one for WIDER FACE"
    alone = Reading({"labels": "none"}, why, is_certain=False)
    levels = [one for one in unproved(view) if one.options["labels"] != "none"]
    if rule == "folder" and levels:
        return [alone, *levels]
    others = [Reading({"labels": rule}, automatic.how)] if rule != "none" else []
    if rule != "folder":
        others += _proposals(view, document)
    return [alone, *others, *(numbers_of_names(view) if rule == "none" else [])]


def _has_more(index: KeyIndex, document: Member) -> bool:
    """Return whether a document is nested, belongs to one image, or has boxes or other classes."""
    is_nested = document.key.lower().endswith(_NESTED)
    if is_nested or index.find(stem(document.key)) or _has_boxes(document):
        return True
    lines = head_of(document).splitlines()
    folders = defaultdict[int, defaultdict[str, list[str]]](lambda: defaultdict(list))
    for fields in map(_FIELDS.split, lines[:_MOST_LINES]):
        named = [found[0] for one in fields if len(found := index.find(one)) == 1]
        for at, cell in enumerate(fields) if named else ():
            folders[at][cell].append(index.keys[named[0]].rpartition("/")[0])
    return any(map(_are_others, folders.values()))


def _has_boxes(document: Member) -> bool:
    return any(_BOX.fullmatch(line.strip()) for line in head_of(document).splitlines())


def _are_others(folders: Mapping[str, Sequence[str]]) -> bool:
    """Return whether values divide folders into smaller classes, or join several folders."""
    own = {value: {*several} for value, several in folders.items()}
    every = set[str]().union(*own.values())
    is_repeated = sum(map(len, folders.values())) >= 2 * len(folders)
    are_finer = len(folders) > len(every) and all(len(one) == 1 for one in own.values())
    are_apart = sum(map(len, own.values())) == len(every)
    are_joined = 1 < len(folders) < len(every) and are_apart and not _are_above(own)
    return is_repeated and (are_finer or are_joined)


def _are_above(folders: Mapping[str, Collection[str]]) -> bool:
    """Return whether each value corresponds to one upper folder, such as a split or domain."""
    pairs = [(value, path.split("/")[:-1]) for value, paths in folders.items() for path in paths]
    for level in range(min(len(parts) for _, parts in pairs)):
        named = {(value, parts[level]) for value, parts in pairs}
        if len(named) == len(folders) == len({name for _, name in named}):
            return True
    return False


def _unread(document: Member) -> str:
    line = head_of(document).strip().partition("\n")[0].strip()
    begins = printable(line[:_MOST_SHOWN] + "…" * (len(line) > _MOST_SHOWN))
    return f"{document.key} is not read: it begins with {begins!r}"


def _not_yolo(view: View, document: Member) -> str:
    """Return the first sampled text that is not YOLO, and why; "" unless others are YOLO.

    Only texts named like images are read, and only if `document` is a text.
    """
    if not document.key.lower().endswith(".txt"):
        return ""
    source = AnnotatedSource(view.index, view.documents)
    texts = read_each(sampled(named_as_images(source, ".txt")))
    faults = {text.key: fault_of(text.data) for text in texts if not text.fault}
    wrong = [f"{key} {fault}" for key, fault in faults.items() if fault]
    return wrong[0] if 0 < len(wrong) < len(faults) else ""


def _proposals(view: View, document: Member) -> Iterator[Reading]:
    """Yield readings of labels in the document, in tables or in paths."""
    index, tables, suffix = view.index, [*view.tables], document.key.lower().rpartition(".")[2]
    more: Options = {}
    if len(index.find(stem(document.key))) == 1:
        pattern = text_pattern(index.keys, document.key)
        if suffix == "txt" and not _has_boxes(document):
            options = {"labels": f"text:{pattern}", "target": "text"}
            yield Reading(options, "the text of each image as it is")
        elif suffix == "json" and len(view.documents.members(".json")) <= _MOST_KEYS:
            with contextlib.suppress(SourceError):
                tables.append(view.documents.table([pattern.replace("{stem}", "{id}")]))
    elif suffix == "json":
        files = _of_one_form(view, document)
        with contextlib.suppress(SourceError):
            tables.append(view.documents.table(files))
        if view.is_open("split") and len({*map(document_split, files)}) > 1:
            more = {"split": "tables"}
    found = [one for table in tables for one in table_candidates(index, table, tables)]
    found = [replace(one, options={**one.options, **more}) for one in found]
    beside = found or suffix != "json" or len(index.find(stem(document.key))) != 1
    found += [] if beside else json_candidates(view)
    yield from [*found, *path_candidates(view)][:_MOST_PROPOSED]


def _of_one_form(view: View, document: Member) -> list[str]:
    """Return the JSON documents in the folder of `document` that have the same first keys."""
    above = document.key.rpartition("/")[0]
    beside = [x for x in view.documents.members(".json") if x.key.rpartition("/")[0] == above]
    if len(beside) > _MOST_DOCUMENTS:
        return [document.key]
    form = _KEYS.findall(head_of(document))[:_FEW_KEYS]
    return [x.key for x in beside if _KEYS.findall(head_of(x))[:_FEW_KEYS] == form]


def documents_of_images(view: View, documents: Sequence[Member]) -> Iterator[Member]:
    """Yield documents that pair with most images by name, then documents that name most images."""
    keys = view.members.keys
    is_test = folder_splits(keys).fit(lambda split: split == "test")
    keys = keys if is_test.all() or not is_test.any() else keys.where(~is_test)
    groups: defaultdict[tuple[str, str], list[Member]] = defaultdict(list)
    for one in documents:
        *_, folder, name = ["", *one.key.split("/")]
        for place in {folder, ""}:
            groups[place, name.rpartition(".")[2].lower()].append(one)
    for group in sorted(groups.values(), key=len):
        if len(group) >= max(2, _ENOUGH * len(keys)):
            stems = {stem(one.key).casefold() for one in group}
            are_known = _are_known(keys, stems, {_number(name) for name in stems})
            if are_known or all(_names_image(view.index, one) for one in group[:_FEW_KEYS]):
                yield from (one for one in group[:_MOST_DOCUMENTS] if head_of(one).strip())
    measures = {one.name for one in view.documents.tables if all(map(is_about, one.header))}
    named = [one for one in documents if not (one.key in measures or one.key.endswith(_ARRAYS))]
    largest = sorted(named, key=lambda one: -one.extent.num_bytes)[:_MOST_DOCUMENTS]
    yield from (one for one in largest if _has_names(keys, one))


def _names_image(index: KeyIndex, document: Member) -> bool:
    """Return whether a document has the name of an image, such as the `asset` of VoTT."""
    names = (one for one in _NAME.findall(head_of(document)) if one.endswith(_IMAGES))
    return any(map(index.find, itertools.islice(names, _MOST_DOCUMENTS)))


def _are_known(keys: Texts, names: set[str], numbers: Collection[str]) -> bool:
    """Return whether most images have one of these names or numbers."""
    if not _ENOUGH <= len(numbers) / len(keys) <= 1 / _ENOUGH:
        numbers = ()
    some = [*keys[:: len(keys) // _MOST_IMAGES + 1]]
    known = (
        not names.isdisjoint((key.rpartition("/")[2], stem(key))) or _number(stem(key)) in numbers
        for key in map(str.casefold, some)
    )
    return sum(known) >= _ENOUGH * len(some)


def _number(name: str) -> str:
    *_, last = ["", *map(str, _LAST.findall(name))]
    return last


def _has_names(keys: Texts, document: Member) -> bool:
    """Return whether a document has facts, and names or numbers of most images of its split."""
    text = head_of(document).casefold()
    lines = [*filter(None, map(str.strip, text.splitlines()))]
    if sum(bool(_NAME.fullmatch(line)) for line in lines) >= _MOSTLY * len(lines):
        return False  # only names, no facts
    names = {one.rpartition("/")[2] for one in _NAME.findall(text)}
    names |= {one.rpartition("_")[0] for one in names}  # image name and a kind: ID_1_any
    names = {one for one in names if len(one) > _SHORT or not one.isdigit()}
    if document.extent.num_bytes > HEAD:
        some = dict.fromkeys([*keys[:_MOST_KEYS], *keys[:: len(keys) // _MOST_KEYS + 1]])
        lowered = map(str.casefold, some)
        known = (key for key in lowered if {key.rpartition("/")[2], stem(key)} & names)
        return len([*itertools.islice(known, _MOST_DOCUMENTS)]) == _MOST_DOCUMENTS
    near, folders = document.key, [f"{path}/" for path in keys.folders.values]
    while near and not any(path.startswith(near) for path in folders):
        near = near[: near.rstrip("/").rfind("/") + 1]
    keys = keys.where(keys.folders.fit(lambda path: f"{path}/".startswith(near)))
    of_split = folder_splits(keys).fit(str(origin_of(document.key).split).__eq__)
    keys = keys.where(of_split) if of_split.any() else keys
    return _are_known(keys, names, {*_FIRST.findall(text)})


def _of_splits(view: View, documents: Sequence[Member]) -> Iterator[Member]:
    """Yield documents named like lists of splits, with a line for each image."""
    if not view.is_open("split") or {*folder_splits(view.members.keys).counts()} - {"train"}:
        return
    named = [(one, *words_of_split(stem(one.key))) for one in documents]
    likely = [one for one, splits, rest in named if len(splits) > 1 or PARTITION.search(rest)]
    for one in likely[:_MOST_DOCUMENTS]:
        lines = [*filter(None, map(str.strip, head_of(one).splitlines()))]
        number = len(lines) * max(1, one.extent.num_bytes / HEAD)
        marks = {tuple(_NAME.findall(line)[-1:]) for line in lines}
        is_near = _MOSTLY <= number / len(view.members) <= 1 / _MOSTLY
        if is_near and 1 < len(marks) <= _MOST_SPLITS:
            yield one
