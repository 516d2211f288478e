"""Labels by names of folders and files: which names are classes, and which only look like them.

Folders named by words are classes. Numbers may be classes, samples or parts of a class: tables,
upper folders and the number of images decide, otherwise the user does. If neither folders nor
tables have labels, a field of the file names may be the label.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np

from shardprep.catalog.candidates import stack_candidates
from shardprep.catalog.decision.class_level import PIECE, as_numbers, is_kind, unproved
from shardprep.catalog.decision.folder_evidence import CLEAR, are_photos, other_folders
from shardprep.catalog.decision.name_fields import form_of, marked_numbers, name_fields
from shardprep.catalog.decision.pairs import common_start
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import ENOUGH, are_classes
from shardprep.catalog.names import are_parts, find_masks, folder_splits, given_split, stem
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.tables.key_index import SUBMISSION
from shardprep.catalog.tables.row_matching import find_ids
from shardprep.errors import SourceError, counted
from shardprep.image.signatures import IMAGE_SUFFIXES
from shardprep.source.names import without_archive_suffix

_OTHERS = ("labels", "boxes", "masks", "points", "rows", "target_image", "target", "stack")
_NUM_SAMPLES = 8
_NUM_BLOCKS, _BLOCK = 8, 250
"""Number and size of the blocks of neighbouring names to read: a label recurs within a block."""
_WIDE, _LEAST_SIGNS, _SAME_FORM = 2, 4, 0.75
_MOST_DEPTH, _MOST_SHOWN = 6, 6
_COUNTED = re.compile(r"^\d+(?=[A-Za-z]+$)|(?<=[A-Za-z])[-_ ]?\d+$")
"""Matches the number before or after letters, as in 40X or character01."""
_CODE = re.compile("(?=.*[0-9])(?=.*[g-z])[a-z0-9]{4,7}", re.IGNORECASE)
_NONE = Reading({"labels": "none"}, "images without labels")


def labels_by_names(view: View) -> Sequence[Reading]:
    """Return readings of folder and file names as labels, unless folders are clearly classes."""
    if len(view.members) < 2 or not view.is_open(*_OTHERS):
        return []
    every = view.folders
    is_test = view.index.splits.fit(lambda split: split == "test")
    tests = {*view.index.keys.where(is_test).folders.counts()} if is_test.any() else set[str]()
    counts = {path: number for path, number in every.items() if path not in tests} or every
    names = Counter[str]()
    for path, number in counts.items():
        names[without_archive_suffix(path.rpartition("/")[2])] += number
    names = Counter({one: n for one, n in names.items() if one and not given_split([one])})
    is_fit = names.total() >= ENOUGH * sum(counts.values())
    if is_fit and are_classes(len(names), names.total()) and not are_parts(names):
        found = [*_of_folders(view, counts, names)]
        found = found or [*_of_test_names(view, tests, names)] or [*_of_test(view, tests, names)]
        is_by_folder = view.automatic.match is None and view.automatic.rule in ("folder", "auto")
        if not found and is_by_folder and (found := [*unproved(view)])[1:]:
            fields = _of_fields(view, has_weak=True)
            is_of_views = len(fields) == 1 and all(map(is_kind, names))  # views of an object
            several = [one for one in fields if one != _NONE]
            found[-1:-1] = several[: max(1, _MOST_SHOWN - len(found))]
            found = fields if is_of_views else found
        if not found and view.automatic.rule == "prefix":
            found = _of_starts(view)
        is_folder = is_by_folder and all(one.options == {"labels": "folder"} for one in found)
        found = (is_folder and _apart(view)) or found
        return found if len(found) < 2 or view.automatic.match is None else []
    found = _of_fields(view) or [*_of_whole_names(view)]
    if found and not _is_explained(view):
        return found
    if view.automatic.rule in ("folder", "auto"):
        return [*unproved(view)]
    return _of_starts(view) if view.automatic.rule == "prefix" else []


def _of_starts(view: View) -> list[Reading]:
    kinds = [str(name) for name in view.automatic.names.values if is_kind(str(name))]
    prefix = Reading({"labels": "prefix"}, f"{min(kinds, default='')} may be a view or a kind")
    return [prefix, _NONE] if kinds else []


def _of_folders(view: View, counts: Mapping[str, int], names: Counter[str]) -> Iterator[Reading]:
    folder = Reading({"labels": "folder"}, f"{len(names):,} names such as {min(names)}")
    if kinds := find_masks([f"{path}/1" for path in counts]).no_classes & names.keys():
        if len(names) > len(kinds) + 1 and are_photos(view, kinds):
            yield folder
        return
    start = re.match(r"([^\W\d_]+[-_])+", common_start([*names])) if len(names) > 1 else None
    splits = {given_split([word]) for word in re.split("[-_]", start[0])[:-1]} if start else set()
    if start and None not in splits and len(splits) > 1:  # one word may state the split of all
        rule = rf"regex:(^|/){re.escape(start[0])}(?P<label>[^/]+)/[^/]+$"
        yield Reading({"labels": rule}, f"{len(names):,} names without {start[0]!r}")
        return
    if others := other_folders(view, counts, names):
        yield from others
        if not others[0].why.endswith(CLEAR):
            yield from (folder, _NONE)
        return
    found = list[Reading]()
    are_numbers = all(map(str.isdecimal, names))
    if are_numbers and _are_confirmed(view, 0, 2) and (of_names := _of_fields(view)):
        yield of_names[0]
        return
    are_numbered = are_numbers or len({re.sub(_COUNTED, "", name) for name in names}) == 1
    if are_numbered and not all(map(PIECE.fullmatch, names)):
        found += _of_numbers(view, counts, len(names))
    above = {path.rpartition("/")[0].rpartition("/")[2] for path in counts}
    if found and all(map(is_kind, above)):  # upper folders are views of the same objects
        yield from (folder, *found[:4], _NONE)
    elif found:
        yield from (*found[:4], folder, _NONE)


def _of_test_names(
    view: View, tests: Collection[str], classes: Collection[str]
) -> Iterator[Reading]:
    """Yield readings that label test images outside of class folders by file or folder names."""
    folders = view.members.keys.folders
    lost = {path for path in tests if path.rpartition("/")[2] not in classes}
    rows = np.flatnonzero(folders.fit(lost.__contains__))
    stems = [*view.members.keys.take(rows[:_BLOCK]).stems(0)]
    end = common_start([one[::-1] for one in stems])[::-1]
    end = re.sub("^[^-_. ]+", "", end)
    short = {path.rpartition("/")[2] for path in lost}
    start = "{}(?![^\\W_])".format
    starts = {x: [y for y in classes if re.match(start(re.escape(x)), y)] for x in short}
    if short - {""} and all(len(several) == 1 for several in starts.values()):
        own = {*starts, *classes}.difference(*starts.values()) | {*short}
        names = "|".join(map(re.escape, sorted(own)))
        why = f"{counted(len(short), 'folder')} of test with the start of a class as name"
        yield Reading({"labels": f"regex:/(?P<label>{names})[^/]*/[^/]+$"}, why)
        return
    own = {one.removesuffix(end) for one in stems}
    if len(own) > 1 and end and len(own & {*classes}) >= ENOUGH * len(own):
        after = rf"({re.escape(end)}\.[^./]+|/[^/]*(?<!{re.escape(end)})\.[^./]+)$"
        why = f"{counted(len(rows), 'test image')} named by a class, such as {stems[0]}"
        yield Reading({"labels": f"regex:(^|/)(?P<label>[^/]+?){after}"}, why)


def _of_numbers(view: View, paths: Collection[str], number: int) -> Iterator[Reading]:
    """Yield readings of numbered folders as labels, if they are below several other folders."""
    above = {path.rpartition("/")[0].rpartition("/")[2] for path in paths}
    above = {name for name in above if name and not given_split([name])}
    if len(above) < 2 or are_parts(above):
        return
    if all(map(str.isdecimal, above)):
        if _are_confirmed(view, -1, 1):
            return
        yield from [one for one in _of_fields(view) if one != _NONE]
        yield Reading({"labels": r"regex:(?P<label>\d+/\d+)/[^/]+$"}, "both numbers of the path")
        yield _of_level(2, above)
        yield from as_numbers(2, above)
    elif all(re.fullmatch(r"[A-Za-z]+[-_ ]?\d+", path.rpartition("/")[2]) for path in paths):
        if 2 * number <= len(paths) or len(paths) > number:
            both = {"labels": r"regex:(?P<label>[^/]+/[^/]+)/[^/]+$"}
            yield Reading(both, "both names of the path")
            yield _of_level(2, above)
    else:
        are_numbers = all(path.rpartition("/")[2].isdecimal() for path in paths)  # not 40X, 100X
        begin_anew = 2 * number <= len(paths)
        for depth in range(2, _MOST_DEPTH) if begin_anew or not are_numbers else ():
            level = {path.split("/")[-depth] for path in paths if path.count("/") >= depth - 1}
            level = {name for name in level if not given_split([name])}
            has_codes = not are_numbers and any(re.search(r"\d", name) for name in level)
            if len(level) > 1 and not are_parts(level) and not has_codes:
                yield _of_level(depth, level)


def _of_level(depth: int, names: Collection[str]) -> Reading:
    return Reading({"labels": f"folder:{depth}"}, f"{len(names):,} names such as {min(names)}")


def _of_test(view: View, tests: Collection[str], names: Collection[str]) -> list[Reading]:
    """Return folders as labels if test has new folders of the form of the classes, such as ids."""
    test = Counter[str]()
    for path in tests:
        if not given_split([path.rpartition("/")[2]]):
            test[path.rpartition("/")[2]] += view.folders[path]
    forms = {*map(form_of, names)}
    num_alike = sum(form_of(name) in forms for name in test)
    are_ids = 2 * num_alike > len(test) and all("0" in form for form in forms)
    if len(test) < 2 or test.total() < 2 * len(test) or not are_ids or are_parts(test):
        return []
    why = f"{len(test):,} classes of test, such as {min(test)}, are not in other splits"
    return [Reading({"labels": "folder"}, why)] if test.keys().isdisjoint(names) else []


def _apart(view: View) -> list[Reading]:
    """Return readings of folders that may be scenes, not classes; [] if they are classes.

    No two splits share a folder, and the folders differ in words, unlike ids. If test is the only
    split besides train, its folders may also be parts of test without labels.
    """
    of_splits = defaultdict[str, dict[str, str]](dict)
    splits = folder_splits(f"{path}/1" for path in view.folders)
    for path, split in zip(view.folders, splits, strict=True):
        above, _, name = path.rpartition("/")
        of_splits[split or "train"][name] = above
    own = [*of_splits.values()]
    names = {name for several in own for name in several}
    words = {re.sub(r"[\W\d_]", "", one) for one in names}
    if len(own) < 2 or min(map(len, own)) < 2 or sum(map(len, own)) > len(names) or len(words) < 2:
        return []
    why = f"{len(names):,} names such as {min(names)}, each in one split: classes or scenes"
    found = [Reading({"labels": "folder"}, why)]
    above, *others = {*of_splits["train"].values()}
    if of_splits.keys() == {"train", "test"} and above and not others:
        rule = rf"regex:^{re.escape(above)}/(?P<label>[^/]+)/[^/]+$"
        found.append(Reading({"labels": rule}, "classes of train; images of test without labels"))
    return [*found, _NONE]


def _are_confirmed(view: View, at: int, depth: int) -> bool:
    """Return whether number `at` of file names is the number of the folder: `0/x_class0.png`.

    `at` is 0 for the first number, −1 for the last. The last `depth` folder names, joined, are the
    folder's number. Test images do not count.
    """
    paths = [key.split("/") for key in _sampled(view)]
    paths = [path for path in paths if given_split(path[:-1]) != "test"]
    for *folders, name in paths[:: len(paths) // _NUM_SAMPLES + 1]:
        numbers, number = re.findall(r"\d+", name), "".join(folders[-depth:])
        if not numbers or numbers[at].lstrip("0") != number.lstrip("0"):
            return False
    return True


def _of_fields(view: View, *, has_weak: bool = False) -> list[Reading]:
    """Return readings that take labels from fields of file names; [] without such fields.

    The first reading alone if its field is certain, otherwise all, and that without labels.
    With `has_weak`, a name in several folders counts several times, and weak fields are added.
    """
    stems, found = _stems(view), list[Reading]()
    fields = name_fields([*{*stems}])
    if has_weak:
        known = {one.regex for one in fields if "auto" in one.targets}
        weak = [one for one in name_fields(stems, has_weak=True) if one.regex not in known]
        weak = [one._replace(targets=one.targets or ("auto",)) for one in weak]
        fields += [one for one in weak if "auto" in one.targets]
    for one in fields:
        for target in one.targets:
            more = {} if target == "auto" else {"target": target}
            found.append(Reading({"labels": f"regex:{one.regex}", **more}, one.why))
    return [*found, _NONE] if found and not any(one.is_certain for one in fields) else found[:1]


def numbers_of_names(view: View) -> list[Reading]:
    """Return readings of numbers next to a letter in names, such as ages, as proposals."""
    found = marked_numbers([*{*_stems(view)}])
    return [Reading({"labels": f"regex:{x.regex}", "target": "regression"}, x.why) for x in found]


def _of_whole_names(view: View) -> Iterator[Reading]:
    """Yield the reading of whole names as texts, if they are codes or rows of codes.

    Codes, as of captchas, have a letter above f: other names are hexadecimal numbers. Rows, as of a
    chess board, have equal signs, at least four, and codes of several forms between two signs.
    """
    stems = _stems(view)
    lengths, forms = {*map(len, stems)}, {*map(form_of, stems)}
    signs = {re.sub(r"[^\W_]", "", one) for one in stems}
    num_codes = sum(bool(_CODE.fullmatch(one)) for one in stems)
    are_rows = len(signs) == 1 and len(min(signs)) >= _LEAST_SIGNS
    for column in zip(*(re.split(r"[\W_]", one) for one in stems), strict=True) if are_rows else ():
        are_rows &= Counter(map(form_of, column)).most_common(1)[0][1] <= _SAME_FORM * len(stems)
    are_rows &= re.search("[g-z]", "".join(stems), re.IGNORECASE) is not None
    if are_rows or (len(lengths) == 1 and len(forms) > 2 and 2 * num_codes > len(stems)):
        options = {"labels": r"regex:(^|/)(?P<label>[^/]+)\.[^./]+$", "target": "text"}
        number = f"{min(lengths)} to {max(lengths)}" if are_rows else max(lengths)
        yield Reading(options, f"{number} letters and numbers in each name")
        if are_rows or len(_sizes(view)) > 1 or not are_wide(view):
            yield _NONE


def _sizes(view: View) -> set[tuple[int, int] | None]:
    some = view.members[:: len(view.members) // _NUM_SAMPLES + 1]
    return {image_size(one.extent) for one in some}


def are_wide(view: View) -> bool:
    """Return whether images are at least twice as wide as high, as pictures of words are."""
    return all(size and size[1] >= _WIDE * size[0] for size in _sizes(view))


def _sampled(view: View) -> list[str]:
    """Return some keys, in blocks of neighbours."""
    keys, step = view.members.keys, max(_BLOCK, len(view.members) // _NUM_BLOCKS)
    return [key for start in range(0, len(keys), step) for key in keys[start : start + _BLOCK]]


def _stems(view: View) -> list[str]:
    """Return stems of sampled files, or whole names if extensions vary, as in `subject01.sad`."""
    names = [key.rpartition("/")[2] for key in _sampled(view)]
    endings = {PurePosixPath(name).suffix.lower() for name in names} - IMAGE_SUFFIXES
    return names if len(endings) > 1 else [*map(stem, names)]


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
    return bool(view.signs)
