"""Find folders that are not classes, although their names look like classes.

They have one picture of each class, another kind of pictures, or loose images next to the folders
of classes. Or they are takes such as `study1_negative`: a part of the name or path is the class.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from posixpath import commonpath

import numpy as np

from shardprep.catalog.decision.class_level import is_kind
from shardprep.catalog.decision.mask_sets import is_named_as_masks
from shardprep.catalog.decision.view import Reading, View, head_of
from shardprep.catalog.names import IMAGE_FOLDER, UNTRAINED, given_split, split_folders, stem
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.errors import counted
from shardprep.source.members import Members

_NUM_SAMPLES = 8
_MOST_FOLDERS = 64
_FEW, _MOST_KEYS = 2, 1_000
_MOST_STRAYS, _MANY = 2, 8
_DOCUMENTS = re.compile(r"docs?|assets?|figures?|screenshots?|\.github", re.IGNORECASE)
"""Matches a folder for pictures of documents about a set."""
_ABOUT = re.compile(r"(^|/)readme[^/]*$|\.(md|ipynb|html?)$", re.IGNORECASE)
"""Matches documents about a set, which may show a picture of it."""
_INDEX, _KIND = "an index of letters above the names", "named as a kind of picture"
CLEAR = (_INDEX, _KIND, "after the number of a take")
"""Evidence, or its end, of readings that are used without asking the user."""
_TAKE = re.compile(
    r"(study|series|scan|session|visit|exam|case|take|clip|seq)[-_ ]?\d+_", re.IGNORECASE
)


def class_pictures(view: View) -> Sequence[Reading]:
    """Return readings that exclude pictures named like class folders, or use them as targets.

    A folder below a mask folder is not a class: it may have the masks of the picture of its name.
    """
    keys = view.members.keys
    above = {path: path.split("/")[:-1] for path in view.folders}
    counts = {x: n for x, n in view.folders.items() if not any(map(is_named_as_masks, above[x]))}
    names = {path.rpartition("/")[2] for path in counts}
    few = [path for path, number in counts.items() if path and 1 < number < len(names)]
    found, targets = dict[str, int](), list[Reading]()
    for path in few if len(few) <= _MOST_FOLDERS else ():
        is_in, name = keys.folders.codes == keys.folders.values.index(path), path.rpartition("/")[2]
        own = keys.where(is_in)
        stems = {*own.stems(0)}
        num_below = sum(n for one, n in counts.items() if one.rpartition("/")[2] in stems)
        if not name.isdecimal() and stems <= names - {name} and num_below >= _FEW * len(own):
            is_above = any(one.startswith(f"{path}/") for one in counts)  # the glob fits these, too
            globs = [glob.escape(one) for one in own] if is_above else [f"{glob.escape(path)}/*"]
            found |= dict.fromkeys(globs, len(own) // len(globs))
            if is_named_as_masks(name):
                pattern = f"{name}/{{folder}}.{own[0].rpartition('.')[2]}"
                why = f"{counted(len(own), 'picture')} of {name}, one for each folder"
                targets.append(Reading({"target_image": pattern}, why))
    why = f"{counted(sum(found.values()), 'image', 'is', 'are')} named like folders of classes"
    return [Reading({"exclude": tuple(found)}, why), *targets] if found else []


def stray_pictures(view: View) -> Sequence[Reading]:
    """Return the reading without a few pictures about the set, such as `logo.png` or `docs/a.png`.

    They are above all folders, or in a folder for documents with the fewest pictures. The form of
    their names must occur in no other folder, and no document or table may have their names. Above
    one folder, there must be documents, which describe the pictures in it.
    """
    keys, counts = view.members.keys, view.folders
    top = commonpath(counts) if all(counts) else ""
    place = {path: f"{glob.escape(name)}/*" for path in counts for name in path.split("/")
             if _DOCUMENTS.fullmatch(name)}  # fmt: skip
    if has_top := 0 < counts.get(top, 0) <= _MOST_STRAYS:
        place[top] = ""
    rest = [number for path, number in counts.items() if path not in place]
    is_few = all(counts[path] < min(rest, default=0) for path in place if path != top)
    documents = view.documents.members("")
    texts = [one for one in documents if not _ABOUT.search(one.key)][:_MOST_FOLDERS]
    is_few &= len(rest) >= (_FEW if has_top and not texts else 1)
    if not (place and is_few) or sum(rest) * (1 + _MANY) < _MANY * len(keys):
        return []
    is_out = keys.folders.fit(place.__contains__)
    own = [*keys.where(is_out)]
    names = {stem(key): key for key in own}
    forms = {re.sub(r"\d+", "0", stem(key)) for key in keys.where(~is_out)}
    index = KeyIndex(own)
    cells = (x.cells(at) for x in view.documents.tables for at in range(len(x.header)))
    named = re.compile("|".join(rf"(?<!\w){re.escape(one)}(?!\w)" for one in names))
    is_used = any(re.sub(r"\d+", "0", one) in forms for one in names)
    is_used = is_used or any(stem(one.key) in names for one in documents)
    is_used = is_used or any(map(index.num_found, cells))
    if is_used or any(named.search(head_of(one)) for one in texts):
        return []
    paths = [(place[key.rpartition("/")[0]], PurePath(key)) for key in own]
    out = [start + one.suffix if start else glob.escape(one.name) for start, one in paths]
    why = f"{counted(len(own), 'picture')} such as {own[0]}, beside {counted(len(rest), 'folder')}"
    return [Reading({"exclude": tuple(dict.fromkeys(out))}, why)]


def loose_images(view: View) -> Sequence[Reading]:
    """Return two readings for loose images above folders: these images alone, or folders alone."""
    counts = view.folders
    top = commonpath(counts) if all(counts) else ""
    if top not in counts or len(counts) <= _FEW:
        return []
    below = [path for path in counts if path != top]
    is_named = given_split([top.rpartition("/")[2]]) or any(
        is_named_as_masks(part) or given_split([part])
        for path in below
        for part in path[len(top) :].split("/")
    )
    if is_named or max(counts[path] for path in below) * 2 >= counts[top]:
        return []
    start = glob.escape(top)
    why = f"{counted(counts[top], 'image')} of {top} beside {len(below):,} folders"
    alone = Reading({"exclude": (f"{start}/*/*",)}, f"{why}; these alone")
    return [alone, Reading({"include": (f"{start}/*/*",)}, f"{why}; the folders alone")]


def other_folders(view: View, counts: Mapping[str, int], names: Counter[str]) -> list[Reading]:
    """Return readings that exclude folders that are not classes, or else take other classes.

    Other classes are parts of the path, takes of a class, or parts of file names.
    """
    found = [*_of_kinds(view, counts), *_of_strangers(counts)]
    return found or [*_of_paths(counts), *_of_takes(names), *_of_repeated(view, names)]


def _of_kinds(view: View, paths: Collection[str]) -> Iterator[Reading]:
    """Yield readings without folders of another kind of picture.

    They have masks that no image is named like, or `aligned/1_aligned` next to `original/1`.
    """
    if not 2 <= len(paths) <= _MOST_FOLDERS:
        return
    start = commonpath(paths)
    masks = {path: [*filter(is_named_as_masks, path[len(start) :].split("/"))] for path in paths}
    of_masks = [path for path, parts in masks.items() if parts]
    rest = [path for path, parts in masks.items() if not parts]
    if of_masks and rest:
        seen = [[view.pictures.are_masks([one]) for one in _sample_images(view, several)]
                for several in (of_masks, rest)]  # fmt: skip
        if all(seen[0]) and not any(seen[1]):
            globs = tuple(sorted({f"{glob.escape(masks[path][0])}/*" for path in of_masks}))
            why = f"{counted(len(of_masks), 'folder')} of masks that no image is named like"
            yield Reading({"exclude": globs, "labels": "none"}, why)
    for one, other in itertools.permutations(paths, 2) if len(paths) == 2 else ():
        name, stems = one.rpartition("/")[2], [stem(x.key) for x in _sample_images(view, [one])]
        ids = [re.sub(rf"(?i)[-_. ]?{re.escape(name)}", "", text) for text in stems]
        if all(a != b and view.index.find(f"{other}/{b}") for a, b in zip(stems, ids, strict=True)):
            for path in (other, one):
                out = (f"{glob.escape(path.rpartition('/')[2])}/*",)
                why = f"{one} has the names of {other} and {name!r}"
                yield Reading({"exclude": out, "labels": "none"}, why)


def _of_strangers(paths: Mapping[str, int]) -> Iterator[Reading]:
    """Yield a reading without folders that have no sibling class folder.

    They are named for pictures (`JPEGImages`) or like their parent (`x/x`), are alone in a split,
    or have a word as name while all others have numbers. It needs no question if all are named like
    kinds of pictures, with at most 2/3 of the images.
    """
    names = {path: path.rpartition("/")[2] for path in paths}
    above = {path: path.rpartition("/")[0] for path in paths}
    several = {one for one, number in Counter(above.values()).items() if number > 1}
    known = {names[path] for path in paths if above[path] in several}
    splits = split_folders(paths)
    split_of = dict[str, str | None]()
    for path, (one, split) in itertools.product(paths, splits.items()):
        if f"{path}/".startswith(f"{one}/"):
            split_of[path] = split
    counts = Counter(split_of.values())
    odd_names = {one for one in names.values() if IMAGE_FOLDER.fullmatch(one)}
    if all(map(str.isdecimal, known)):
        odd_names |= {one for one in names.values() if not (one.isdecimal() or is_kind(one))}
    odd = list[str]()
    for path in paths:
        own, is_apart = split_of.get(path), above[path] not in several and path not in splits
        is_twice = above[path].rpartition("/")[2] == names[path] and own is None
        is_odd = is_twice or counts[own] == 1 or names[path] in odd_names
        if path and is_apart and is_odd and names[path] not in known and own not in UNTRAINED:
            odd.append(path)
    if odd and known and 2 * len(odd) < len(paths):
        out = tuple(f"{glob.escape(path)}/*" for path in odd)
        why = f"{odd[0]} is not beside the folders of other classes"
        is_few = 3 * sum(map(paths.__getitem__, odd)) <= 2 * sum(paths.values())
        is_clear = all(is_kind(names[x]) or IMAGE_FOLDER.fullmatch(names[x]) for x in odd)
        why += f" and {_KIND}" if is_few and is_clear else ""
        yield Reading({"exclude": out, "labels": "folder"}, why)


def _of_paths(paths: Collection[str]) -> Iterator[Reading]:
    """Yield the path as the label if some classes have longer paths: `a/abbey`, `b/bow/indoor`.

    Most last names of longer paths (`indoor`) occur in several folders: alone, they are not a
    class. An upper level with the first letters of the names below is an index, not a class. One
    name below folders with images is a kind of picture: `cats/1.jpg`, `cats/cropped/1.jpg`.
    """
    parts = [path.split("/") for path in paths if path]
    if len({*map(len, parts)}) < 2 or split_folders(paths):
        return
    start = commonpath(paths).split("/") if commonpath(paths) else []
    rests = [one[len(start) :] for one in parts]
    least = min(map(len, rests))
    above = defaultdict[str, set[str]](set)
    for one in rests:
        if len(one) > least:
            above[one[-1]].add("/".join(one[:-1]))
    num_shared = sum(len(several) for several in above.values() if len(several) > 1)
    if not least or 2 * num_shared < sum(map(len, above.values())):
        return
    if len(above) == 1 and above[min(above)] <= {"/".join(one) for one in rests}:
        inner, why = (f"{glob.escape(min(above))}/*",), f"{min(above)} is in folders of images"
        yield Reading({"include": inner, "labels": "folder:2"}, f"{why}; it alone")
        yield Reading({"exclude": inner, "labels": "folder"}, f"{why}; without it")
        return
    is_index = least > 1 and all(len(one[0]) == 1 and one[1][:1] == one[0] for one in rests)
    before = "/".join([*map(re.escape, start), *(["[^/]+"] if is_index else []), ""])
    why = _INDEX if is_index else f"{min(above)} is in several folders"
    yield Reading({"labels": f"regex:^{before}(?P<label>.+)/[^/]+$"}, why)


def _of_takes(names: Collection[str]) -> Iterator[Reading]:
    """Yield the reading of folder names with a take before the class: `study1_negative`."""
    ends = {name.rpartition("_")[2] for name in names if _TAKE.match(name)}
    if all(map(_TAKE.match, names)) and 1 < len(ends) < len(names):
        is_clear = not any(is_kind(one) or one.isdecimal() for one in ends)
        why = f"{len(ends):,} names such as {min(ends)}, {CLEAR[-1] if is_clear else 'a number'}"
        yield Reading({"labels": "regex:(?P<label>[^/_]+)/[^/]+$"}, why)


def _of_repeated(view: View, names: Collection[str]) -> Iterator[Reading]:
    """Yield labels by letters after the folder's name in file names: `ANS` in `AF01/AF01ANS`."""
    ends = defaultdict[str, set[str]](set)
    for key in view.members.keys[:: len(view.members) // _MOST_KEYS + 1]:
        name = key.split("/")[-2] if "/" in key else ""
        end = stem(key).removeprefix(name)
        if not (name in names and name[-1].isdecimal() and end.isalpha()):
            return
        ends[end].add(name)
    num_repeated = sum(len(several) for several in ends.values() if len(several) > 1)
    if len(ends) > 1 and 2 * num_repeated > sum(map(len, ends.values())):
        after = "after the name of the folder"
        for number in (2, 1, 3):  # the label may be only the first letters
            codes = {end[:number] for end in ends if len(end) > number}
            if 1 < len(codes) <= len(ends) / 2 and min(map(len, ends)) > number:
                why = f"{len(codes):,} codes such as {min(codes)}, {after}"
                rule = rf"regex:\d(?P<label>[A-Za-z]{{{number}}})[A-Za-z]+\.[^./]+$"
                yield Reading({"labels": rule}, why)
        why = f"{len(ends):,} ends of names such as {min(ends)}, {after}"
        yield Reading({"labels": r"regex:\d(?P<label>[A-Za-z]+)\.[^./]+$"}, why)


def are_photos(view: View, kinds: Collection[str]) -> bool:
    """Return whether the pictures in folders named like masks are photos."""
    folders = view.members.keys.folders
    paths = [path for path in folders.values if path.rpartition("/")[2] in kinds]
    return not any(view.pictures.are_masks([one]) for one in _sample_images(view, paths))


def _sample_images(view: View, paths: Collection[str]) -> Members:
    rows = np.flatnonzero(view.members.keys.folders.fit(lambda path: path in paths))
    return view.members.take(rows[:: len(rows) // _NUM_SAMPLES + 1])
