"""Documents that name the images, or pair with them, and that nothing reads.

Without labels, boxes or masks, such documents are probably what the user wants. Nothing is built
before the user says that the images alone are wanted.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from shardprep.catalog.candidates import part_candidates, path_candidates, table_candidates
from shardprep.catalog.decision.column_evidence import is_about
from shardprep.catalog.decision.table_evidence import by_tables
from shardprep.catalog.decision.view import HEAD, Reading, View, head_of
from shardprep.catalog.labels import Labelling, auto_labels
from shardprep.catalog.names import folder_splits, stem, words_of_split
from shardprep.catalog.objects.detect import find_signs, text_pattern
from shardprep.catalog.tables.key_index import SUBMISSION, KeyIndex, origin_of
from shardprep.errors import SourceError, printable
from shardprep.source.members import Member
from shardprep.source.string_column import Texts

_OPTIONS = (
    "labels", "boxes", "masks", "points", "rows", "join", "target_image", "target", "stack",
)  # fmt: skip
_SUFFIXES = (
    ".txt", ".json", ".jsonl", ".ndjson", ".geojson", ".xml", ".mat", ".csv", ".tsv", ".pts",
    ".ann", ".lst", ".dat", ".yaml", ".yml",
)  # fmt: skip
_ABOUT = re.compile(
    r"(read.?me|licen[cs]e|copying|changes|citation|checksum|md5|sha\d|manifest)[^/]*$|\.aux\.xml$",
    re.IGNORECASE,
)
"""Documents about files, and not about what images show."""
_ENOUGH, _MOSTLY, _MOST_IMAGES = 0.5, 0.9, 64
_MOST_DOCUMENTS, _MOST_KEYS = 8, 20_000
_MOST_SHOWN = 40
_NUM_PROPOSALS = 3
_MOST_MARKS = 4

_NAME = re.compile(r"[^\s\"',;:#<>|=\[\](){}]+")
_FIRST = re.compile(r"^[\"']?(\d{1,18})[\"']?(?=[,;\s])", re.MULTILINE)
_BOX = re.compile(r"(-?\d[\d.]*[\s,]+){3,30}-?\d[\d.]*")
_NUMBER = re.compile(r"\d{1,18}")
_COUNT = re.compile(r"\d{1,4}")
_CUTS = re.compile(r"[\s,;]+")


def unread_documents(view: View) -> Sequence[Reading]:
    """Return the question whether images alone are wanted, if there are documents of them.

    Folders of classes are not compared with all documents, but with those that have boxes, and
    with lists of splits.
    """
    if not view.is_open(*_OPTIONS) or view.members.are_stacks.any():
        return []
    documents = _unused(view)
    found = next(_of_images(view, documents), None) if documents else None
    lists = next(_of_splits(view, documents), None)
    if found is None and lists is None:
        return []
    if readings := by_tables(view):  # of a folder that another stage has chosen
        return readings
    keys = view.index.keys
    some = KeyIndex(keys[:: len(keys) // _MOST_KEYS + 1])  # auto_labels of all keys is slow
    automatic = auto_labels(some, view.tables)
    if lists is not None and automatic.rule != "none":
        return [_asked(automatic.rule, f"{_unread(lists)}, and all images are in train")]
    return _compared(view, found, automatic) if found else []


def _compared(view: View, document: Member, automatic: Labelling) -> list[Reading]:
    rule, lines = automatic.rule, head_of(document).splitlines()
    is_open = rule == "none" or (rule in ("folder", "prefix") and any(map(_BOX.fullmatch, lines)))
    is_explained = automatic.unclear or not is_open
    if is_explained or find_signs(view.index, view.documents, view.candidates):
        return []
    others = [Reading({"labels": rule}, automatic.how)] if rule != "none" else []
    alone = _asked("none", f"images alone; {_unread(document)}")
    return [alone, *(others or _proposals(view, document))]


def _unread(document: Member) -> str:
    line = head_of(document).strip().partition("\n")[0].strip()
    begins = printable(line[:_MOST_SHOWN] + "…" * (len(line) > _MOST_SHOWN))
    return f"{document.key} is not read: it begins with {begins!r}"


def _asked(labels: str, why: str) -> Reading:
    return Reading({"labels": labels}, why, is_certain=False)


def _unused(view: View) -> list[Member]:
    """Return the documents that no option uses, and that are not about files and sizes alone."""
    recipe = view.recipe
    used = f"{recipe.split} {recipe.exclude_list} {recipe.class_map} {recipe.group}"
    measures = {one.name for one in view.documents.tables if all(map(is_about, one.header))}
    return [
        one
        for one in view.documents.members(*_SUFFIXES)
        if not (_ABOUT.search(one.key) or SUBMISSION.search(one.key) or one.key in measures)
        and one.key.rpartition("/")[2] not in used
    ]


def _proposals(view: View, document: Member) -> Iterator[Reading]:
    """Yield other readings, which label some of the images."""
    index, tables = view.index, [*view.tables]
    name = document.key.lower()
    if len(index.find(stem(document.key))) == 1:
        pattern = text_pattern(index.keys, document.key)
        if name.endswith(".txt"):
            options = {"labels": f"text:{pattern}", "target": "text"}
            yield Reading(options, "the text of each image as it is")
        elif name.endswith(".json") and len(view.documents.members(".json")) <= _MOST_KEYS:
            with contextlib.suppress(SourceError):
                tables.append(view.documents.table([pattern.replace("{stem}", "{id}")]))
    found = [one for table in tables for one in table_candidates(index, table, tables)]
    found += path_candidates(index) + part_candidates(index.keys, view.documents.tables)
    yield from (Reading(one.keys, one.counts) for one in found[:_NUM_PROPOSALS])


def _of_images(view: View, documents: Sequence[Member]) -> Iterator[Member]:
    """Yield documents that pair with most images by name, then documents that name most of them."""
    splits = folder_splits(view.members.keys)
    is_test = splits.fit(lambda split: split == "test")
    rows = np.flatnonzero(~is_test if not is_test.all() else is_test)
    keys = view.members.keys.take(rows)
    groups: defaultdict[tuple[str, str], list[Member]] = defaultdict(list)
    for one in documents:
        folder, _, name = one.key.rpartition("/")
        groups[folder.rpartition("/")[2], name.rpartition(".")[2].lower()].append(one)
    for group in sorted(groups.values(), key=len):
        if len(group) >= max(2, _ENOUGH * len(keys)) and _are_paired(keys, group):
            yield from (one for one in group[:_MOST_DOCUMENTS] if head_of(one).strip())
    largest = sorted(documents, key=lambda one: -one.extent.num_bytes)
    yield from (one for one in largest[:_MOST_DOCUMENTS] if _has_names(view, keys, one))


def _are_paired(keys: Texts, documents: Sequence[Member]) -> bool:
    """Return whether images and documents have the same names between affixes."""
    images, others = [*keys.stems(0)], [stem(one.key) for one in documents]
    (start, end), (head, tail) = _affixes(images), _affixes(others)
    rests = {name[head : len(name) - tail] for name in others}
    some = images[:: len(images) // _MOST_IMAGES + 1]
    return sum(name[start : len(name) - end] in rests for name in some) >= _ENOUGH * len(some)


def _affixes(names: Sequence[str]) -> tuple[int, int]:
    """Return the lengths of the start and of the end that all names have, without digits."""
    start = _common(names)
    return start, _common([name[start:][::-1] for name in names])


def _common(names: Sequence[str]) -> int:
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(min(names), max(names), strict=False)
    )
    return len("".join(one for one, _ in pairs).rstrip("0123456789"))


def _has_names(view: View, keys: Texts, document: Member) -> bool:
    """Return whether a document has names or numbers of most images of its folder and split."""
    text = head_of(document)
    lines = [*filter(None, map(str.strip, text.splitlines()))]
    if sum(bool(_NAME.fullmatch(line)) for line in lines) >= _MOSTLY * len(lines):
        return False  # names alone
    names = {one.rpartition("/")[2] for one in _NAME.findall(text)}
    if document.extent.num_bytes > HEAD:
        some = Texts.of(sorted(one for one in names if not _COUNT.fullmatch(one)))
        return view.index.num_found(some) >= _MOST_DOCUMENTS
    near = _near(keys, document.key)
    some = near[:: len(near) // _MOST_IMAGES + 1]
    numbers = {int(one) for one in _FIRST.findall(text)}
    if not 1 < len(numbers) <= len(near) / _ENOUGH:
        numbers = set()
    num_found = 0
    for key in some:
        last = int((_NUMBER.findall(stem(key)) or [-1])[-1])
        num_found += not names.isdisjoint((key.rpartition("/")[2], stem(key))) or last in numbers
    return num_found >= _ENOUGH * len(some)


def _near(keys: Texts, document: str) -> Texts:
    """Return the images that are nearest to a document, of the split that it states."""
    folder, split = document.rpartition("/")[0], origin_of(document).split
    own = np.zeros(len(keys), bool)
    while folder and not own.any():
        below = f"{folder}/"
        own = np.array([f"{path}/".startswith(below) for path in keys.folders.values], bool)
        own = own[keys.folders.codes]
        folder = folder.rpartition("/")[0]
    own = own if own.any() else ~own
    of_split = own & folder_splits(keys).fit(str(split).__eq__)
    return keys.where(of_split if of_split.any() else own)


def _of_splits(view: View, documents: Sequence[Member]) -> Iterator[Member]:
    """Yield documents that by their names are lists of splits, with a line for each image."""
    if not view.is_open("split") or {*folder_splits(view.members.keys).counts()} - {"train"}:
        return
    for one in filter(_is_of_splits, documents):
        lines = [*filter(None, map(str.strip, head_of(one).splitlines()))]
        number = len(lines) * max(1, one.extent.num_bytes / HEAD)
        is_near = _MOSTLY <= number / len(view.members) <= 1 / _MOSTLY
        if is_near and 1 < len({_CUTS.split(line)[-1] for line in lines}) <= _MOST_MARKS:
            yield one


def _is_of_splits(document: Member) -> bool:
    words, rest = words_of_split(stem(document.key))
    return len(words) > 1 or "split" in rest or "partition" in rest
