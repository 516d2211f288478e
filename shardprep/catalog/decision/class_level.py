"""Decide whether folders are classes.

Folders are classes if their paths, without wrappers and splits, have one level of names, and no
name is a kind of picture. Codes must be equal in two splits, except 0, 1, 2 … and WordNet ids.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from posixpath import commonpath

import numpy as np

from shardprep.catalog.decision.pairs import likeness
from shardprep.catalog.decision.picture_kinds import side_of
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import ENOUGH, Labelling, are_classes, are_numbered
from shardprep.catalog.names import (
    KIND,
    PART,
    PICTURE,
    SPLIT,
    UNTRAINED,
    given_split,
    split_folders,
    words_of,
)
from shardprep.catalog.stacks import id_column

_LEAST_LETTERS = 3
_MOST_LEVELS, _MOST_TABLES, _MOST_KINDS, _MANY_NUMBERS = 3, 8, 4, 8
_NUM_SCENES, _LEAST_SCENES, _NUM_FOLDERS = 4, 3, 3
PIECE = re.compile(
    r"(study|series|scan|session|visit|vid(eo)?|clip|seq(uence)?|sample|part|batch|set)"
    r"[-_ ]?(\d+|[a-z])|\d+-\d+",
    re.IGNORECASE,
)
"""Matches a folder with a part of a class or data set: `study1`, `sample_a`, `1001-2000`."""
_WORDNET = re.compile(r"n\d{8}")
_KIND = re.compile(
    f"{KIND}|{PART}|{PICTURE}"
    "|align(ed)?|aug(mented)?|back|blur(red|ry)?|cam(era)?s?|clean|colou?rs?|compressed"
    "|crop(ped|s)?|disp(arity)?|enhanced|expert|extras?|flow|front(al)?|gr[ae]y(scale)?|infrared|ir"
    "|left|lrd|manual|nir|noisy|noise|originals?|output|patches|preprocessed|processed|profile|rear"
    "|ref(erence)?|resized|right|samples?|scenes?|sharp|side|synthetic|thermal|thumbnails?|tiles?"
    "|top|videos?|views?|visible",
    re.IGNORECASE,
)
"""Matches a word for a kind of picture or a view, which is not a class."""
_DOMAINS = ({"A", "B"}, {"L", "R"}, {"OD", "OS"})
"""Usual names of two kinds of pictures: domains, sides of a body, or eyes."""
_NO_CLASS = re.compile(rf"{SPLIT}|{PART}|{PICTURE}|{KIND}|v?\d+", re.IGNORECASE)
"""Matches a word in names of folders that are splits or kinds of files, and not classes."""
CUTS = re.compile(r"[\W_]+")
_WITH_OR_NOT = re.compile(r"^(without|with|non|not|no|un)(?![a-z]{0,2}$)|[-_ ]")
_PICTURES = re.compile("images?|imgs?|photos?|pictures?", re.IGNORECASE)

_Level = tuple[str | None, Sequence[str]]
"""Split of a folder, and the names in its path except splits and wrappers."""


def unproved(view: View) -> Iterator[Reading]:
    """Yield the readings of a source if it is unclear which level of folders is the class."""
    paths = [path for path in view.folders if path]
    splits = split_folders(paths)
    levels = {path: _level(path, splits) for path in paths}
    inner = [one for path, one in levels.items() if not _is_split(path, splits)]
    trained = [names for split, names in inner if split not in UNTRAINED]
    rests = _without_common(trained or [names for _, names in inner])
    depths = {*map(len, rests)}
    if not rests or min(depths) < 1:
        return
    lasts = {one[-1] for one in rests}
    of_splits = defaultdict[str | None, set[str]](set)
    for split, names in levels.values():
        of_splits[split].update(names[-1:])
    doubt = _doubt(lasts, [one for one in of_splits.values() if len(one) > 1])
    doubt = "" if doubt and _are_listed(view, lasts) else doubt or _doubt_of_pictures(view, lasts)
    doubt = doubt or _doubt_of_parts(commonpath(paths), lasts) or _doubt_of_scenes(view, paths)
    if not doubt and _are_one_level(rests, inner):
        return
    above = {one[-2] if len(one) > 1 else "" for one in rests}
    if all(map(PIECE.fullmatch, lasts)) and not ("" in above or _doubt(above, ())):
        yield Reading({"labels": "folder:2"}, f"{_shown(above)}, in pieces such as {min(lasts)}")
        return
    yield Reading({"labels": "folder"}, doubt or _shown(lasts))
    yield from as_numbers(1, lasts)
    for depth in range(2, min(_MOST_LEVELS, *depths) + 1):
        yield from _of_level(rests, depth)
    if len(depths) > 1:
        start = commonpath(paths)
        start = f"{re.escape(start)}/" if start else ""
        upper = Reading({"labels": f"regex:^{start}(?P<label>[^/]+)/"}, "the uppermost name")
        yield from (*_without_sets(levels, upper), upper)
        yield Reading({"labels": f"regex:^{start}(?P<label>.+)/[^/]+$"}, "the whole path")
    yield Reading({"labels": "none"}, "images without labels")


def _without_sets(levels: Mapping[str, _Level], upper: Reading) -> Iterator[Reading]:
    """Yield the reading of uppermost names without the minority of folders that have splits."""
    start = commonpath(levels)
    has_split = defaultdict[str, bool](bool)
    for path, (split, _) in levels.items():
        has_split[path[len(start) :].lstrip("/").partition("/")[0]] |= split is not None
    out = sorted(top for top, one in has_split.items() if one)
    if 0 < 2 * len(out) < len(has_split):
        globs = tuple(f"{glob.escape(f'{start}/{top}'.lstrip('/'))}/*" for top in out)
        yield Reading({**upper.options, "exclude": globs}, f"{upper.why}; {out[0]} has splits")


def _of_level(paths: Sequence[Sequence[str]], depth: int) -> Iterator[Reading]:
    """Yield readings of the folders `depth` levels up as classes, with and without other levels."""
    most = max(map(len, paths))
    longest = [one for one in paths if len(one) == most]
    names = {one[-depth] for one in longest}
    others = {one[-depth] for one in paths if len(one) < most}
    if not others.isdisjoint(name for one in longest for name in one[:-depth]):
        return  # these names belong to an upper level
    yield Reading({"labels": f"folder:{depth}"}, _shown(names | others))
    if 0 < len(others) <= _MOST_KINDS and len(names) > 1 and others.isdisjoint(names):
        out = tuple(f"{glob.escape(name)}/*" for name in sorted(others))
        why = f"{_shown(names)}, without {min(others)} of another level"
        yield Reading({"labels": f"folder:{depth}", "exclude": out}, why)
    yield from as_numbers(depth, names | others)


def as_numbers(depth: int, names: Collection[str]) -> Iterator[Reading]:
    """Yield a reading of numeric folder names as a regression target, if there are many names."""
    if len(names) >= _MANY_NUMBERS and all(map(str.isdecimal, names)):
        options = {"labels": f"folder:{depth}".removesuffix(":1"), "target": "regression"}
        yield Reading(options, f"{_shown(names)}, as numbers such as ages")


def _are_one_level(rests: Sequence[Sequence[str]], inner: Sequence[_Level]) -> bool:
    """Return True if only the last names of the paths can be classes.

    Longer paths must end in the names of the shortest paths. In paths of one length, the upper
    names must not look like classes. With splits, each class must occur in a split.
    """
    least = min(map(len, rests))
    if least < max(map(len, rests)):
        is_level = {one[-1] for one in rests} == {one[-1] for one in rests if len(one) == least}
    else:
        pairs = [{(one[at], one[-1]) for one in rests} for at in range(least - 1)]
        is_level = all(_doubt({upper for upper, _ in one}, ()) or _is_index(one) for one in pairs)
    in_splits = {names[-1] for split, names in inner if split and names}
    apart = {names[-1] for split, names in inner if not split and names}
    return is_level and (not in_splits or apart <= in_splits)


def _is_index(pairs: Collection[tuple[str, str]]) -> bool:
    """Return whether upper names are letters or digits, but not 0, 1 … above the same names."""
    uppers, lasts = ({*names} for names in zip(*pairs, strict=True))
    is_product = len(pairs) == len(uppers) * len(lasts) and min(len(uppers), len(lasts)) > 1
    return {*map(len, uppers)} == {1} and not (is_product and are_numbered(uppers))


def _are_listed(view: View, names: Collection[str]) -> bool:
    """Return True if a table has the names as ids, on average in fewer than two rows each."""
    tables = view.tables[:_MOST_TABLES]
    return any(len(one.rows) < 2 * len(names) and id_column(one, names) for one in tables)


def _is_split(path: str, splits: Collection[str]) -> bool:
    return path in splits or given_split([path.rpartition("/")[2]]) is not None


def _level(path: str, splits: Mapping[str, str]) -> _Level:
    parts, split, names = path.split("/"), None, list[str]()
    for end, name in enumerate(parts, 1):
        own = splits.get("/".join(parts[:end])) or given_split([name])
        split = own or split
        if not own and names[-1:] != [name]:
            names.append(name)
    return split, names


def _without_common(several: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return paths without the first names that are common to all; the last name is kept."""
    least = min(map(len, several), default=0)
    width = next((at for at in range(least) if len({names[at] for names in several}) > 1), least)
    return [names[min(width, least - 1) :] for names in several]


def _doubt(names: Collection[str], of_splits: Sequence[Collection[str]]) -> str:
    """Return why names may not be classes, or ""; `of_splits` has the names in each split."""
    if len(names) == 2 and len({_WITH_OR_NOT.sub("", name.casefold()) for name in names}) == 1:
        return ""  # such as mask and no_mask
    kinds = [*names] if {*names} in _DOMAINS else [*filter(is_kind, names)]
    if kinds:
        return f"{_shown(names)}; {min(kinds)} may be a view or a kind of picture"
    words = {"".join(re.findall(r"[^\W\d_]+", name)) for name in names if not _is_code(name)}
    if 2 * len(words) > len(names) or are_numbered(names) or all(map(_WORDNET.fullmatch, names)):
        return ""
    own, *others = sorted(map(set, of_splits), key=len)[:2] or [set[str]()]
    are_shared = bool(others) and len(own & others[0]) >= ENOUGH * len(own)
    return "" if are_shared else f"{_shown(names)}, which may be samples"


def _doubt_of_pictures(view: View, names: Collection[str]) -> str:
    """Return why folders may be kinds of pictures instead of classes, or "".

    The reason is a folder named like a kind, if the two largest folders have equal file names.
    """
    kinds = [name for name in names if any(re.fullmatch(KIND, word) for word in words_of(name))]
    if not 0 < len(kinds) < len(names) <= _MOST_KINDS:
        return ""
    keys = view.members.keys
    lasts = keys.folders.map(lambda path: path.rpartition("/")[2])
    stems = [keys.where(lasts.fit(name.__eq__)).stems(0).array.sort() for name in names]
    *_, few, many = sorted(stems, key=len)
    return f"{_shown(names)}; {min(kinds)} may be a kind of picture" if few.equals(many) else ""


def _doubt_of_parts(above: str, names: Collection[str]) -> str:
    """Return why folders named like the folder above them may be parts of the set, or ""."""
    start = words_of(above.rpartition("/")[2])[:1]
    are_alike = all(words_of(one)[:1] == start and "__" not in one for one in names)
    is_said = bool(start) and len(names) > 1 and are_alike
    return f"{_shown(names)}, which begin like {above} and may be parts of it" if is_said else ""


def _doubt_of_scenes(view: View, paths: Sequence[str]) -> str:
    """Return why sibling folders may be kinds of pictures instead of classes, or "".

    The reason is that pictures of equal names show the same scenes, if most folders are named like
    kinds: faces with several expressions are classes. Pictures of different names must differ,
    because a camera that does not move shows one scene in all of them.
    """
    if 2 * sum(side_of(words_of(path.rpartition("/")[2])) != 0 for path in paths) < len(paths):
        return ""
    above = defaultdict[str, list[str]](list)
    for path in paths:
        above[path.rpartition("/")[0]].append(path)
    siblings = max(above.values(), key=len)
    one, *others = sorted(siblings)
    folders, members = view.members.keys.folders, view.members
    if not others:
        return ""
    rows = np.flatnonzero(folders.codes == folders.values.index(one))
    own = [members[row] for row in rows[:: len(rows) // _NUM_SCENES + 1]]
    some = others[:: len(others) // _NUM_FOLDERS + 1]
    num_same = 0
    for other in some:
        found = [view.index.find(other + each.key.removeprefix(one)) for each in own]
        several = [members[rows[0]] for rows in found if len(rows) == 1]
        pairs, shifted = zip(own, several, strict=False), zip(own, several[1:], strict=False)
        if len(several) < max(len(own), _LEAST_SCENES):
            return ""
        if likeness([*pairs], view.pictures).is_same:
            num_same += not likeness([*shifted], view.pictures).is_same
    names = [path.rpartition("/")[2] for path in (one, *others)]
    return f"{_shown(names)}, which show the same scenes" if len(some) <= 2 * num_same else ""


def _shown(names: Collection[str]) -> str:
    return f"{len(names):,} names such as {min(names)}"


def _is_code(name: str) -> bool:
    return any(map(str.isdigit, name)) and sum(map(str.isalpha, name)) < _LEAST_LETTERS


def is_kind(name: str) -> bool:
    """Return whether a name means a kind of picture or a view, such as `masks` or `rgb_left`."""
    words = [word for word in words_of(name) if len(word) > 1 and word.isalpha()]
    words = [word for word in words if not given_split([word])]
    are_kinds = bool(words) and all(map(_KIND.fullmatch, words))
    return are_kinds or any(map(_PICTURES.fullmatch, words))


def class_folders(folders: Labelling) -> dict[str, int]:
    """Return name of a class folder → number of images; {} if the names are unlike classes."""
    counts = {str(name): count for name, count in folders.names.counts().items()}
    counts = {name: count for name, count in counts.items() if not is_no_class(name)}
    number = sum(counts.values())
    is_most = number >= ENOUGH * int(folders.names.are_there.sum())
    is_fit = is_most and not all(map(PIECE.fullmatch, counts))
    return counts if is_fit and are_classes(len(counts), number) else {}


def is_no_class(name: str) -> bool:
    """Return whether all words of a folder's name mean a split or a kind of files."""
    return all(_NO_CLASS.fullmatch(word) for word in CUTS.split(name) if word)
