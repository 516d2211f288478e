"""Labels by names of folders and files: which names are classes, and which only look like them.

Folders whose names are words are classes. Numbers may be classes, samples or parts of a class:
tables, the folders above and the number of images decide, or the user. If neither folders nor
tables have labels, a field of the file names may be the label.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from shardprep.catalog.candidates import stack_candidates, table_candidates
from shardprep.catalog.decision.name_fields import form_of, name_fields
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import ENOUGH, are_classes
from shardprep.catalog.names import are_parts, find_masks, given_split
from shardprep.catalog.objects.detect import find_signs
from shardprep.catalog.objects.mask_values import are_masks
from shardprep.catalog.tables.key_index import SUBMISSION
from shardprep.catalog.tables.row_matching import find_ids
from shardprep.errors import SourceError, counted
from shardprep.source.members import Member
from shardprep.source.names import without_archive_suffix
from shardprep.source.string_column import Texts
from shardprep.storage.text_file import decoded

_OTHERS = ("labels", "boxes", "masks", "points", "rows", "target_image", "target", "stack")
_NUM_SAMPLES = 8
_MOST_PIXELS = 1 << 24
_NUM_BLOCKS, _BLOCK = 8, 250
"""Names are read in blocks of neighbours, in which a label has several images."""
_MANY = 20
"""Numbered folders are probably samples if there are this many, with fewer images each."""
_MOST_DOCUMENTS = 64
_HEAD = 1 << 16
_CLASS = re.compile("class|label|categor|species|wnid|breed|target|digit", re.IGNORECASE)
_CODE = re.compile("(?=.*[0-9])(?=.*[g-z])[a-z0-9]{4,7}", re.IGNORECASE)
_BOX = re.compile(r"(-?\d[\d.]*[\s,]+){3,30}-?\d[\d.]*")
_IMAGE = re.compile(r"\S+\.(jpe?g|png|tiff?|bmp)", re.IGNORECASE)
_NONE = Reading({"labels": "none"}, "images without labels")


def class_pictures(view: View) -> Sequence[Reading]:
    """Return the exclusion of folders that have one picture of each class, named like it."""
    keys = view.members.keys
    counts = view.folders
    names = {path.rpartition("/")[2] for path in counts}
    few = [path for path, number in counts.items() if path and 1 < number < len(names)]
    found = dict[str, int]()
    for path in few if len(few) <= _MOST_DOCUMENTS else ():
        is_in = keys.folders.codes == keys.folders.values.index(path)
        if {*keys.where(is_in).stems(0)} <= names - {path.rpartition("/")[2]}:
            found[f"{glob.escape(path)}/*"] = int(is_in.sum())
    why = f"{counted(sum(found.values()), 'image is', 'images are')} named like folders of classes"
    return [Reading({"exclude": tuple(found)}, why)] if found else []


def labels_by_names(view: View) -> Sequence[Reading]:
    """Return the readings of the names of folders and files, if these are not clear classes."""
    if len(view.members) < 2 or not view.is_open(*_OTHERS):
        return []
    if readings := _texts_beside(view):
        return readings
    is_test = view.index.splits.fit(lambda split: split == "test")
    some = not is_test.any() or is_test.all()
    counts = view.folders if some else view.index.keys.where(~is_test).folders.counts()
    names = Counter[str]()
    for path, number in counts.items():
        names[without_archive_suffix(path.rpartition("/")[2])] += number
    names = Counter({one: n for one, n in names.items() if one and not given_split([one])})
    is_fit = names.total() >= ENOUGH * sum(counts.values())
    if is_fit and are_classes(len(names), names.total()) and not are_parts(names):
        found = [*_of_folders(view, counts, names)]
        return found if len(found) < 2 or not _has_table(view) else []
    found = [*_of_fields(view)] or [*_of_whole_names(view)]
    return [*found, _NONE] if found and not _is_explained(view) else []


def _of_folders(view: View, counts: Mapping[str, int], names: Counter[str]) -> Iterator[Reading]:
    folder = Reading({"labels": "folder"}, f"{len(names):,} names such as {min(names)}")
    if kinds := find_masks([f"{path}/1" for path in counts]).no_classes & names.keys():
        if len(names) > len(kinds) + 1 and _are_photos(view, kinds):
            yield folder
        return
    found = list[Reading]()
    are_numbers = all(map(str.isdecimal, names))
    if are_numbers:
        found += _of_numbers(view, counts, len(names))
    elif fields := name_fields([*names]):
        found += [Reading({"labels": f"regex:{one.regex}"}, one.why)
                  for one in fields if one.is_text and one.num_after > 1]  # fmt: skip
    if any(re.search(r"\d", name) for name in names):
        found = [*_of_ids(view, names), *found]
    is_many = len(names) >= _MANY and names.total() < _MANY * len(names)
    if found or (is_many and are_numbers):
        yield from (*found[:4], folder, _NONE)
    elif file := _unread_boxes(view):
        yield Reading(_NONE.options, f"{file} has boxes, in a form that is not read")
        yield folder


def _of_numbers(view: View, paths: Collection[str], number: int) -> Iterator[Reading]:
    """Yield the readings of numbered folders that are in several folders with names."""
    above = {path.rpartition("/")[0].rpartition("/")[2] for path in paths}
    above = {name for name in above if name and not given_split([name])}
    if len(above) < 2 or are_parts(above):
        return
    if all(map(str.isdecimal, above)):
        if _are_confirmed(view):
            return
        yield from _of_fields(view)
        yield Reading({"labels": r"regex:(?P<label>\d+/\d+)/[^/]+$"}, "both numbers of the path")
    elif 2 * number <= len(paths):  # the numbers begin anew in each folder above
        yield Reading({"labels": "folder:2"}, f"{len(above):,} names such as {min(above)}")


def _are_confirmed(view: View) -> bool:
    """Return whether the last number of file names is that of their folder: `0/x_class0.png`."""
    keys = _sampled(view)
    for key in keys[:: len(keys) // _NUM_SAMPLES + 1]:
        *_, folder, name = ["", *key.split("/")]
        numbers = re.findall(r"\d+", name)
        if not numbers or numbers[-1].lstrip("0") != folder.lstrip("0"):
            return False
    return True


def _of_ids(view: View, names: Collection[str]) -> Iterator[Reading]:
    """Yield the readings by a table that has the names of folders as ids, and not as classes."""
    tables = view.documents.tables
    for table in tables:
        columns = {title: table.cells(i).coded().values for i, title in enumerate(table.header)}
        known = [title for title, cells in columns.items() if not _CLASS.search(title)
                 and len({*names}.intersection(cells)) >= ENOUGH * len(names)]  # fmt: skip
        if known and any(len(cells) < len(table.rows) for cells in columns.values()):
            several = stack_candidates(view.members.keys, [table])
            several += table_candidates(view.index, table, tables)
            why = f"{table.name}, column {known[0]!r} has the names of the folders"
            yield from (Reading(one.keys, f"{why}; {one.counts}") for one in several[:3])


def _are_photos(view: View, kinds: Collection[str]) -> bool:
    """Return whether the pictures in folders named like masks are no masks."""
    folders = view.members.keys.folders
    rows = np.flatnonzero(folders.fit(lambda path: path.rpartition("/")[2] in kinds))
    some = view.members.take(rows[:: len(rows) // _NUM_SAMPLES + 1])
    return not any(are_masks([one], _MOST_PIXELS) for one in some)


def _unread_boxes(view: View) -> str:
    """Return a text that has boxes of images by their names, or ""; its form is not a known one."""
    for member in view.documents.members(".txt")[:_MOST_DOCUMENTS]:
        lines = _head(member).splitlines()
        named = [*filter(_IMAGE.fullmatch, lines)][:_NUM_SAMPLES]
        if named and any(map(_BOX.fullmatch, lines)) and view.index.num_found(Texts.of(named)):
            return member.key
    return ""


def _of_fields(view: View) -> Iterator[Reading]:
    """Yield the readings of fields of file names, as classes, numbers or texts."""
    for one in name_fields([*{*Texts.of(_sampled(view)).stems(0)}]):
        kinds = {"regression": one.is_number, "auto": one.is_class, "text": one.is_text}
        for target in (kind for kind, fits in kinds.items() if fits):
            more = {} if target == "auto" else {"target": target}
            yield Reading({"labels": f"regex:{one.regex}", **more}, one.why)


def _of_whole_names(view: View) -> Iterator[Reading]:
    """Yield a reading if names are texts of a few letters and numbers, as pictures of codes have.

    Names of letters below g alone are numbers of base 16.
    """
    stems = [*Texts.of(_sampled(view)).stems(0)]
    lengths, forms = {*map(len, stems)}, {*map(form_of, stems)}
    num_codes = sum(bool(_CODE.fullmatch(one)) for one in stems)
    if len(lengths) == 1 and len(forms) > 2 and 2 * num_codes > len(stems):
        options = {"labels": r"regex:(^|/)(?P<label>[^/]+)\.[^./]+$", "target": "text"}
        yield Reading(options, f"{lengths.pop()} letters and numbers in each name")


def _texts_beside(view: View) -> list[Reading]:
    """Return the reading of a text of words beside each image, such as `1.txt` beside `1.jpg`."""
    texts = view.documents.members(".txt")
    if len(texts) < ENOUGH * len(view.members):
        return []
    keys = _sampled(view)
    wanted = {f"{key.rpartition('.')[0]}.txt" for key in keys[:: len(keys) // _NUM_SAMPLES + 1]}
    found = [_head(one).strip() for one in texts if one.key in wanted]
    words = [word for text in found for word in text.split()]
    num_words = sum(word.strip(",.!?;:'\"()").isalpha() for word in words)
    if len(found) < ENOUGH * len(wanted) or num_words * 2 <= len(words) or "<" in "".join(found):
        return []
    options = {"labels": "text:{stem}.txt", "target": "text"}
    reading = Reading(options, f"{len(texts):,} texts beside images")
    are_texts = 2 * len({*found}) > len(found)
    classes = Reading({**options, "target": "class"}, f"{len({*found})} different texts")
    return [reading] if are_texts else [classes, reading]


def _head(member: Member) -> str:
    with contextlib.suppress(SourceError, OSError):
        return decoded(member.extent.read_head(_HEAD))
    return ""


def _sampled(view: View) -> list[str]:
    """Return some keys, in blocks of neighbours."""
    keys, step = view.members.keys, max(_BLOCK, len(view.members) // _NUM_BLOCKS)
    return [key for start in range(0, len(keys), step) for key in keys[start : start + _BLOCK]]


def _has_table(view: View) -> bool:
    tables = view.documents.tables
    return bool(tables) and view.automatic.match is not None


def _is_explained(view: View) -> bool:
    """Return whether `auto` labels images, a table names them or stacks, or annotations exist."""
    tables = view.documents.tables
    if stack_candidates(view.members.keys, tables):
        return True
    for table in tables:
        with contextlib.suppress(SourceError):
            find_ids(view.index, table, "")
            if not SUBMISSION.search(table.name):
                return True
    labelling = view.automatic
    if labelling.rule != "none" or labelling.unclear is not None:
        return True
    return bool(find_signs(view.index, view.documents, view.candidates))
