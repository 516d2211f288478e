"""Find copies: the whole set again in one of its folders, and variants of the same images.

Copies have equal paths below their folders, equal sizes and, in a sample, equal first bytes.
Variants have equal paths and show the same scenes in other pixels: `color/`, `grayscale/`.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from posixpath import commonpath
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.decision.class_level import is_kind
from shardprep.catalog.decision.mask_sets import is_named_as_masks
from shardprep.catalog.decision.pairs import Pictures, likeness
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.names import find_masks, given_split, natural_order, split_folders, stem
from shardprep.errors import counted, printable
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member, Members
from shardprep.source.names import composed, without_archive_suffix
from shardprep.source.string_column import Texts, booleans, positions

_NEARLY_ALL = 0.9
_SHARE = 0.2
"""Minimum share of all images in each folder of `apart`, so that one folder can be the source."""
_LEAST = 1 / 20
"""Minimum share of all images in a folder that is compared with other folders."""
_MOST_DEPTH = 4
_MOST_NAMES, _MOST_READ, _MOST_FORMATS, _HEAD = 1_000, 8, 32, 1 << 16
_FORMAT = re.compile(r"(?<![^\W\d_])(png|jpe?g|bmp|tiff?|webp)s?(?![^\W\d_])", re.IGNORECASE)
_OF_FORMAT = re.compile(rf"(.*/)?[^/]*{_FORMAT.pattern}[^/]*", re.IGNORECASE)
_SIZE = re.compile(r"(?<!\d)\d{2,4}x\d{2,4}(?!\d)")
_TO_SIZE = re.compile(rf"(?:[^/]+/)*?[^/]*{_SIZE.pattern}[^/]*")
_FOLD = re.compile(r"fold|split|v(er(sion)?)?[-_ ]?\d", re.IGNORECASE)
_NOT_FOUND = re.compile(r"(image|img|photo|picture|file)[-_ ]?not[-_ ]?found\.\w+", re.IGNORECASE)
_A_PAIR, _MOST_PARTS, _MOST_COPIES = 2, 4, 4
_LETTERS = re.compile(r"[^\W\d_]{2}")
"""Matches letters in a name. Names that are only numbers may be equal by chance."""
_LOSSLESS = (".png", ".bmp", ".tif", ".tiff")
_THUMBNAIL = re.compile("[-_]?thumbnails?$", re.IGNORECASE)


class _Folder(NamedTuple):
    path: str
    number: int
    leaves: dict[str, int]
    """Path below this folder of each folder that holds images → number of images."""


def copies(view: View) -> Sequence[Reading]:
    """Return the reading that excludes copied folders, thumbnails, conversions and placeholders."""
    members = view.candidates
    if not view.is_open("root", "dedup"):
        return []
    counts = members.keys.folders.counts()
    globs, reasons = list[str](), list[str]()
    left_out: list[str] = []
    has_twins = False
    for folder, others in _compared(counts, has_parent=True):
        if any(f"{folder.path}/".startswith(f"{one}/") for one in left_out):
            continue
        for other in others:
            if other in left_out or not _are_copies(members, folder, other):
                continue
            is_twin = folder.path.casefold() == other.casefold()
            path = _clear_path(folder, counts)
            if is_twin or path:
                has_twins |= is_twin  # globs ignore case and would fit both
                globs += [] if is_twin else [f"{glob.escape(path)}/*"]
                where = other or "the top folder"
                what = counted(folder.number, "image")
                reasons.append(f"{what} in {folder.path} have the paths and bytes of {where}")
                left_out.append(folder.path)
                break
    further = [*_by_names(members, view.pictures)]
    globs += [one for one, _ in further]
    reasons += [why for _, why in further]
    options: dict[str, Any] = {"exclude": tuple(globs)} if globs else {}
    options |= {"dedup": True} if has_twins else {}
    return [Reading(options, printable("; ".join(reasons)))] if options else []


def _by_names(members: Members, pictures: Pictures) -> Iterator[tuple[str, str]]:
    """Yield globs of pictures to leave out, each with the reason."""
    for path, number in _thumbnails(members).items():
        why = f"{counted(number, 'thumbnail')} in {path} of images beside it"
        yield f"{glob.escape(path)}/*", why
    for path, number in _conversions(members, pictures).items():
        why = f"{counted(number, 'image')} in {path} again in another format"
        yield f"{glob.escape(path)}/*", why
    for path, other in _misread(members).items():
        why = f"{path} is {other} in another encoding, with images of the same sizes"
        yield f"{glob.escape(path)}/*", why
    for name in _placeholders(members):
        yield f"*/{glob.escape(name)}", f"{name} is named as a picture that was not found"


def _misread(members: Members) -> dict[str, str]:
    """Return folder whose UTF-8 name was read as CP437 → the folder with the right name."""
    counts, folders, found = members.keys.folders.counts(), members.keys.folders, dict[str, str]()
    others = {composed(path): path for path in counts if not path.isascii()}
    for path in [*others.values()][:_MOST_NAMES]:
        with contextlib.suppress(UnicodeError):
            other = others.get(composed(path.encode("cp437").decode()), path)
            if other == path:
                continue
            rows = [np.flatnonzero(folders.fit(one.__eq__)) for one in (path, other)]
            sizes = [sorted(members.num_bytes[own].tolist()) for own in rows]
            found |= {path: other} if sizes[0] == sizes[1] else {}
    return found


def _placeholders(members: Members) -> list[str]:
    """Return names of placeholder pictures for missing files, such as `imageNotFound.gif`."""
    rows = np.flatnonzero(booleans(pc.match_substring(members.keys.array, "ound.")))
    some = members.keys.take(rows[:_MOST_NAMES]) if len(rows) < len(members) / 10 else ()
    names = {key.rpartition("/")[2] for key in some if "/" in key}
    return [one for one in sorted(names) if _NOT_FOUND.fullmatch(one)]


def _thumbnails(members: Members) -> dict[str, int]:
    """Return folder of thumbnails → their number; {} if too few have an image of their name."""
    counts, keys = members.keys.folders.counts(), members.keys
    small = [path for path in counts if _THUMBNAIL.search(path.rpartition("/")[2])]
    if not 0 < len(small) < min(len(counts), _MOST_NAMES):
        return {}
    is_small = keys.folders.fit({*small}.__contains__)
    stems = [_THUMBNAIL.sub("", one) for one in keys.where(is_small).stems(0)]
    found, _ = positions(Texts.of(stems), keys.where(~is_small).stems(0))
    are_paired = bool((found >= 0).mean() >= _NEARLY_ALL)
    return {path: counts[path] for path in small} if are_paired else {}


def _conversions(members: Members, pictures: Pictures) -> dict[str, int]:
    """Return folder of converted pictures → number of its pictures.

    A folder counts if another folder has the lossless originals. Apart from the format, both have
    the same name: `png_images/` and `jpeg_images/`.
    """
    matches = map(_OF_FORMAT.match, members.keys.folders.counts())
    tops, found = sorted({match[0] for match in matches if match}), dict[str, int]()
    for kept, top in itertools.permutations(tops[:_MOST_FORMATS], 2):
        if kept in found or _FORMAT.sub("*", kept) != _FORMAT.sub("*", top):
            continue
        others, own = (_stems_below(members, one) for one in (kept, top))
        both = [one for one in own if one in others]
        pairs = [(members[own[one]], members[others[one]]) for one in both[:_MOST_READ]]
        is_whole = len(both) >= _NEARLY_ALL * len(own)
        is_whole = is_whole and pairs[0][1].key.lower().endswith(_LOSSLESS)
        if is_whole and likeness(pairs, pictures).is_same:
            seen = [[pictures.of(one) for one in pair] for pair in pairs]
            found |= {top: len(own)} if all(a and b and a.size == b.size for a, b in seen) else {}
    return found


def _stems_below(members: Members, top: str) -> dict[str, int]:
    """Return the path below a folder, without the suffix, of each image → its row."""
    is_below = members.keys.folders.fit(lambda path: f"{path}/".startswith(f"{top}/"))
    rows = np.flatnonzero(is_below).tolist()
    return {members.keys[row][len(top) :].rpartition(".")[0]: row for row in rows}


def variants(view: View) -> Sequence[Reading]:
    """Return one reading for each of several folders with the same scenes or the same files."""
    if not view.is_open("labels", "root", "masks", "target_image", "stack", "boxes"):
        return []
    alike = set[str]()
    for folder, others in _compared(view.folders, has_parent=False):
        near = [one for one in others if not alike or one in alike]
        if same := [one for one in near if _are_variants(view, folder, one)]:
            alike |= {folder.path, *same}
    if alike:
        roots = sorted(alike, key=natural_order)
        why = printable(f"{', '.join(roots)} show the same scenes: use one of them")
        every = Reading({"labels": "folder"}, "all of them")
        return [*(Reading(_alone(view, roots, one), why) for one in roots), every]
    of_sizes = _of_sizes(view.folders)
    roots = of_sizes or _partitions(view)
    what = "differ only in a size" if of_sizes else "have the same files in other splits or classes"
    why = f"{', '.join(roots)} {what}: use one of them"
    found = [Reading({"root": one}, printable(why)) for one in roots]
    return [*found, Reading({"labels": "folder"}, "all of them")] if of_sizes else found


def _of_sizes(counts: Mapping[str, int]) -> list[str]:
    """Return folders that differ only in the sizes in their names and are equally full; else []."""
    below = defaultdict[str, Counter[str]](Counter)
    for path, number in counts.items():
        top = _TO_SIZE.match(path)
        below[top[0] if top else ""][_SIZE.sub("*", path)] += number
    are_alike = len({frozenset(one.items()) for one in below.values()}) == 1
    return sorted(below, key=natural_order) if len(below) > 1 and are_alike else []


def _alone(view: View, roots: Sequence[str], top: str) -> Mapping[str, Any]:
    """Return the options that keep the folder `top` of `roots`, and images outside of `roots`."""
    below = tuple(f"{one}/" for one in roots)
    if all(f"{path}/".startswith(below) for path in view.folders):
        return {"root": top}
    return _without(view, [one for one in roots if one != top], top)


def parts(view: View) -> list[Reading]:
    """Return readings for folders that repeat names of classes or files of the rest of the source.

    One reading uses the folder alone. Another leaves it out, if other folders have no subfolders.
    """
    start = commonpath(view.folders) if view.folders and "" not in view.folders else ""
    below = defaultdict[str, set[str]](set)
    for path in view.folders:
        top, slash, rest = path[len(start) :].lstrip("/").partition("/")
        below[top].add(rest if slash else "")
    if not view.is_open("root", "include") or not 1 < len(below) <= _MOST_PARTS or "" in below:
        return []
    if len({re.sub(r"\d+", "", top) for top in below}) == 1 and not _FOLD.match(min(below)):
        return []  # parts or classes with numbers
    splits = split_folders(view.folders)
    path_of = {top: _joined(start, f"/{top}") for top in below}
    deep = [top for top, rests in below.items() if "" not in rests and path_of[top] not in splits]
    of_masks = [path_of[top] for top in below if is_named_as_masks(top)]
    if len(deep) + (len(deep) < len(below)) < 2 or any(
        view.pictures.are_masks(view.members[row] for row in _some_in(view, top)[1])
        for top in of_masks
    ):
        return []
    names = {top: {x.rpartition("/")[2] or top for x in rests} for top, rests in below.items()}
    found = list[Reading]()
    for top in deep:
        others = set[str]().union(*(names[one] for one in below if one != top))
        shared = {
            one
            for one in names[top] & others
            if not (one.isdecimal() or is_kind(one) or is_named_as_masks(one))
        }
        are_shared = 2 * len(shared) >= min(len(names[top]), len(others))
        if not (are_shared or _is_again(view, path_of[top])):
            return []
        why = printable(f"{path_of[top]} has names that other folders have, too")
        left = [path for one, path in path_of.items() if one != top]
        found.append(Reading(_without(view, left, path_of[top]), f"{why}; it alone"))
        if len(deep) < len(below):
            out = (f"{glob.escape(path_of[top])}/*",)
            found.insert(0, Reading({"exclude": out}, f"{why}; without it"))
    return found


def _without(view: View, rest: Sequence[str], top: str) -> Mapping[str, Any]:
    """Return the options that keep only the folder `top`; `rest` are the other folders."""
    kept = [f"/{path}/".casefold() for path in view.folders if f"{path}/".startswith(f"{top}/")]
    is_clear = not any(f"/{one}/".casefold() in path for one in rest for path in kept)
    if is_clear and len(rest) < _MOST_PARTS - 1:
        return {"exclude": tuple(f"{glob.escape(one)}/*" for one in rest)}
    return {"root": glob.escape(top)}


def _is_again(view: View, top: str) -> bool:
    """Return whether most images in a folder have names that have letters and recur elsewhere."""
    keys, (is_in, rows) = view.members.keys, _some_in(view, top)
    stems = [stem(keys[row]) for row in rows]
    named = [one for one in stems if any(map(str.isalpha, one))]
    alike = [booleans(pc.match_substring(keys.array, f"/{one}.")) & ~is_in for one in named]
    return 2 * sum(bool(one.any()) for one in alike) > len(stems)


def _some_in(view: View, top: str) -> tuple[NDArray[np.bool_], list[int]]:
    """Return which images are below a folder, and the rows of some of them."""
    is_in = view.members.keys.folders.fit(lambda path: f"{path}/".startswith(f"{top}/"))
    rows = np.flatnonzero(is_in)
    return is_in, rows[:: len(rows) // _MOST_READ + 1].tolist()


def _partitions(view: View) -> list[str]:
    """Return the two folders of a source if both have the same classes and file names; or []."""
    start = commonpath(view.folders) if "" not in view.folders else ""
    below = defaultdict[str, set[str]](set)
    for path in view.folders:
        rest = path[len(start) :].strip("/")
        below[_joined(start, f"/{rest.partition('/')[0]}")].add(rest.rpartition("/")[2])
        if len(below) > _A_PAIR:
            return []
    roots, members, index = sorted(below), view.members, view.index
    classes = {*map(frozenset, below.values())}
    if len(roots) != _A_PAIR or len(classes) > 1 or split_folders(roots):
        return []
    sizes = members.num_bytes
    for key in members.keys[:: len(members) // _MOST_READ + 1]:
        found = index.find(key.rpartition("/")[2])
        own = [one for at in found for one in roots if index.keys[at].startswith(f"{one}/")]
        if sorted(own) != roots or len({int(sizes[at]) for at in found}) > 1:
            return []
    return [] if find_masks(members.keys).num_masks else roots


def _compared(
    counts: Mapping[str, int], *, has_parent: bool
) -> Iterator[tuple[_Folder, Sequence[str]]]:
    """Yield each large folder, with others that have nearly as many images at the same subpaths.

    The others are earlier siblings and, with `has_parent`, the parent and siblings with the start
    of the folder's name as name. `counts` has the number of images of each folder. Folders of
    different splits are not compared, except archives.
    """
    paths, numbers = Texts.of(counts), np.fromiter(counts.values(), np.int64, len(counts))
    with_end = Texts.of(f"{path}/" for path in counts).array
    total = int(numbers.sum())
    large: dict[str, tuple[int, NDArray[np.int64]]] = {}
    for start in _starts(counts, paths, numbers):
        rows = np.flatnonzero(booleans(pc.starts_with(with_end, f"{start}/")))
        if (number := int(numbers[rows].sum())) >= max(2, math.ceil(_LEAST * total)):
            large[start] = number, rows
    splits: dict[str, str] | None = None
    order = sorted(large, key=lambda path: (path.count("/"), natural_order(path)))
    for at, path in enumerate(order):
        number, rows = large[path]
        parent = path.rpartition("/")[0]
        beside = [one for one in order if one != path and one.rpartition("/")[0] == parent]
        before = [one for one in order[:at] if one in beside]
        if len(rows) == 1:  # a single class folder, not a set of classes
            name = without_archive_suffix(path).casefold()
            names = {one: without_archive_suffix(one).casefold() for one in beside}
            before = [one for one in before if names[one] == name]
            parts = [x for x in beside if re.match(rf"{re.escape(names[x])}[-_ ]\w", name)]
            before += parts if has_parent else []  # `valid-mini` is a part of `valid`
        near = [parent, *before] if has_parent else before
        own = paths.take(rows)
        fits = [one for one in near if _has_tree(counts, (path, number, own), one)]
        if fits and splits is None:
            splits = split_folders(counts)
        split_of = (splits or {}).get
        is_archive = without_archive_suffix(path) != path  # `train.zip` next to `train`
        fits = [one for one in fits if is_archive or split_of(one) == split_of(path)]
        if fits:
            yield _Folder(path, number, {one[len(path) :]: counts[one] for one in own}), fits


def _starts(counts: Mapping[str, int], paths: Texts, numbers: NDArray[np.int64]) -> Iterator[str]:
    """Yield folders, at most four deep, that may be large, judged by a sample of many folders."""
    some: Mapping[str, int] = counts
    if len(counts) > _MOST_NAMES:
        images = np.random.default_rng(0).integers(numbers.sum(), size=_MOST_NAMES)
        rows = np.searchsorted(np.cumsum(numbers), images, "right")
        some = Counter(paths.take(rows))
    sums = Counter[str]()
    for path, number in some.items():
        parts = path.split("/")[:_MOST_DEPTH] if path else []
        for depth in range(len(parts)):
            sums["/".join(parts[: depth + 1])] += number
    least = _LEAST / 2 * sum(some.values())
    yield from (start for start, number in sums.items() if number >= least)


def _has_tree(counts: Mapping[str, int], folder: tuple[str, int, Texts], other: str) -> bool:
    path, number, own = folder
    most = number - math.ceil(_NEARLY_ALL * number)
    for one in own:
        most -= max(0, counts[one] - counts.get(_joined(other, one[len(path) :]), 0))
        if most < 0:
            return False
    return True


def _joined(folder: str, below: str) -> str:
    return (folder + below).lstrip("/")


def _clear_path(folder: _Folder, counts: dict[str, int]) -> str:
    """Return a path whose glob fits only this folder, or "": globs ignore case and depth.

    It is the path of the folder, or of the only subfolder that holds all its images.
    """
    below = "" if "" in folder.leaves else commonpath(folder.leaves)
    for path in (folder.path, folder.path + below):
        own = f"/{path}/".casefold()
        num_fit = sum(number for one, number in counts.items() if own in f"/{one}/".casefold())
        if num_fit == folder.number:
            return path
    return ""


def _are_copies(members: Members, folder: _Folder, other: str) -> bool:
    rows, found = _pairs(members, folder, other, _MOST_NAMES)
    if (found < 0).sum() > (1 - _NEARLY_ALL) * len(found):
        return False
    rows, found = rows[found >= 0], found[found >= 0]
    sizes = members.num_bytes
    same = np.flatnonzero(sizes[rows] == sizes[found])
    if len(same) < _NEARLY_ALL * len(rows) or not len(same):
        return False
    some = same[:: max(1, len(same) // _MOST_READ)][:_MOST_READ]
    pairs = zip(members.take(rows[some]), members.take(found[some]), strict=True)
    return all(_head(one) == _head(two) for one, two in pairs)


def _pairs(
    members: Members, folder: _Folder, other: str, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return evenly spaced rows of a folder's images, and the row of each in `other`, or −1."""
    folders = members.keys.folders
    code_of = {path: code for code, path in enumerate(folders.values)}
    own = [code_of[folder.path + leaf] for leaf in folder.leaves]
    paths = [_joined(other, leaf) for leaf in folder.leaves]
    beside = [code_of[path] for path in paths if path in code_of]
    rows = np.flatnonzero(np.isin(folders.codes, own))
    rows = rows[:: max(1, len(rows) // most)][:most]
    there = np.flatnonzero(np.isin(folders.codes, beside))
    names = [_joined(other, key[len(folder.path) :]) for key in members.keys.take(rows)]
    found, _ = positions(Texts.of(names), members.keys.take(there))
    return rows, np.where(found < 0, -1, there[found]) if len(there) else found


def _head(member: Member) -> bytes | None:
    try:
        return member.extent.read_head(_HEAD)
    except MemberError:
        return None


def _are_variants(view: View, folder: _Folder, other: str) -> bool:
    members = view.members
    rows, found = _pairs(members, folder, other, _MOST_NAMES)
    rows, found = rows[found >= 0], found[found >= 0]
    if len(rows) < 2:
        return False
    some = np.unique(np.linspace(0, len(rows) - 1, _MOST_READ).astype(int))
    pairs = [*zip(members.take(rows[some]), members.take(found[some]), strict=True)]
    are_named = all(_LETTERS.search(stem(one.key)) for one, _ in pairs)
    is_whole = len(rows) >= _NEARLY_ALL * min(folder.number, _MOST_NAMES)
    are_kinds = any(is_kind(path.rpartition("/")[2]) for path in (folder.path, other))
    if are_named and is_whole and are_kinds:
        return True
    return likeness(pairs, view.pictures).is_same


def apart(view: View, found: Sequence[int]) -> list[Reading]:
    """Return readings that keep one of several images of an id, by suffix or folder; else []."""
    keys = [view.index.keys[at] for at in found[:_MOST_COPIES]]
    paths = [key.split("/")[:-1] for key in keys]
    splits, masks = {given_split(path) for path in paths}, find_masks(view.index.keys).num_masks
    if len(keys) < 2 or len(splits) > 1 or any(p in masks for path in paths for p in path):
        return []
    endings = [key.rpartition(".")[2] for key in keys]
    why = f"an image of each id, such as {keys[0]}"
    if len({*endings}) == len(keys):
        return [Reading({"include": (f"*.{ending}",)}, why) for ending in endings]
    parts = list(zip(*paths, strict=False))
    depth = next((i for i, names in enumerate(parts) if len({*names}) == len(keys)), len(parts))
    roots = ["/".join(path[: depth + 1]) for path in paths]
    folders = view.index.keys.folders
    paths_below = [(lambda path, root=root: f"{path}/".startswith(f"{root}/")) for root in roots]
    numbers = [int(folders.fit(is_below).sum()) for is_below in paths_below]
    are_classes = depth + 1 >= min(map(len, paths))
    if are_classes or not view.is_open("root") or min(numbers) < _SHARE * len(view.index.keys):
        return []
    return [
        Reading({"root": root}, f"{counted(number, 'image')}, {why.partition(', ')[0]}")
        for root, number in zip(roots, numbers, strict=True)
    ]
