"""Find images by id: a name or a path, with or without its extension.

One rule decides which image an id means, in tables and lists of all kinds. Images below the folder
of the table are nearest, then images below each folder above it. The table's name or a column may
state a split. In each folder, images of this split come first, then images without a split. An
image of another split is taken only if names are unique. `KeyIndex.find_all` applies the rule.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from operator import eq
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.names import document_split, folder_splits, given_split, stated_split, stem
from shardprep.errors import SourceError, counted, shown
from shardprep.image.signatures import IMAGE_SUFFIXES
from shardprep.source.names import composed
from shardprep.source.string_column import Coded, Lookup, Texts, booleans, positions

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_START = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+://|[A-Za-z]:/)?(\.{0,2}/)*")
"""Matches the start of a URL or absolute path, and steps such as ../, which keys do not have."""
SUBMISSION = re.compile("submission", re.IGNORECASE)
"""Matches the name of a sample submission, whose rows belong to the test split."""
_MOST_SHOWN = 3
MANY = 0.25
"""Share of the ids of a table or list that match no image, above which a remark is a warning."""
_SUFFIX = re.compile(
    rf"({'|'.join(map(re.escape, sorted(IMAGE_SUFFIXES)))}|\.[a-z]\w{{1,4}})$", re.IGNORECASE
)
_FEW_KEYS = 10_000
"""Maximum number of keys for which each search is kept, at 12 bytes per key and search."""
_AT_ONCE = 1 << 17
_MOST_FOLDERS = 16
"""Maximum number of folders in an id; ids with more folders are searched one by one."""


class AmbiguousIdError(SourceError):
    """It is unclear which image an id means: several fit, or the only one is of another split."""

    found: Sequence[int] = ()
    """Positions of these images; () if the only image is of another split."""


class Origin(NamedTuple):
    """Origin of an id; it decides which of several images the id means."""

    folder: str = ""
    """Folder of the table or list; "" for the top of the source."""
    split: str | None = None
    """Split that the table, or a column of the table, states for the id."""
    is_firm: bool = True
    """False for a list of images, which may also name images of other splits."""
    file: str = ""
    """Key of the table or list; all its ids have the same form."""
    is_of_path: bool = False
    """Whether a folder in the id states the split, so that only its images fit."""

    def level(self, folder: str, split: str | None) -> int:
        """Return how far images of `split` in `folder` are from the origin; 0 is nearest.

        It is twice the number of folders to go up from the origin's folder to a folder with both.
        Images without a split add 1 if the origin has a split. `FOREIGN` means another split.
        """
        own, other = (path.split("/") if path else [] for path in (self.folder, folder))
        if self.split is not None and split not in (self.split, None):
            return FOREIGN
        shared = sum(takewhile(bool, map(str.__eq__, own, other)))
        return 2 * (len(own) - shared) + (self.split is not None and split is None)


FOREIGN = 1 << 20


@lru_cache(1 << 16)  # tables of single images are compared with each other
def origin_of(file: str, *, is_firm: bool = True) -> Origin:
    """Return the origin of the ids in a file; a sample submission is of split test."""
    folder, _, name = composed(file).rpartition("/")
    if folder.startswith("/"):  # a file on disk
        folder = ""
    split = document_split(name) or ("test" if SUBMISSION.search(name) else None)
    return Origin(folder, split or stated_split(folder), is_firm, file)


class KeyIndex:
    """The keys of all images, in which ids are searched in linear time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = Texts.of(keys)
        self._names = self.keys.composed()
        """Keys in form NFC, in which equal accents are equal characters."""
        self._by_folder: dict[tuple[str, int], dict[str, list[int]]] = {}
        self._lookups: dict[tuple[str, int], Lookup] = {}
        self.known: dict[Hashable, Any] = {}
        """Results of searches in tables, with the tables, so that their `id` stays unique."""
        self.remarks: dict[str, None] = {}
        """Remarks on ids that fit an image only regardless of case, in order."""

    def find(self, text: str) -> Sequence[int]:
        """Return the positions of all keys that end in the id, with or without extension.

        If keys differ only in the Unicode form of accents, only the key in the id's form fits.
        """
        path = _START.sub("", text.replace("\\", "/"))
        found = self._find(composed(path))
        if len(found) < 2 or path.isascii():
            return found
        keys = {i: f"/{self.keys[i]}" for i in found}
        same = [
            i
            for i, key in keys.items()
            if key.endswith(f"/{path}") or key.rpartition(".")[0].endswith(f"/{path}")
        ]
        return same or found

    def _find(self, path: str) -> Sequence[int]:
        folder, _, name = path.rpartition("/")
        by_name, by_stem = self._by_name
        named = by_name[name] if name in by_name else by_stem.get(name, ())
        if isinstance(named, int):
            is_there = not folder or f"/{self._names[named]}".rpartition("/")[0].endswith(
                f"/{folder}"
            )
            return (named,) if is_there else ()
        depth = folder.count("/") + 1 if folder else 0
        if not named or depth > self._most_folders:
            return ()
        if (name, depth) not in self._by_folder:
            self._by_folder[name, depth] = self._grouped(named, depth)
        return self._by_folder[name, depth].get(folder, ())

    def find_all(
        self,
        texts: Texts,
        where: str,
        origins: Coded[Origin] | None = None,
        *,
        fitting: Collection[Origin] = (),
    ) -> Ints:
        """Return the position of the key of each id, or −1 if no image has the id.

        An id that fits several images means the nearest one (see `Origin.level`). An id without a
        near image may mean a distant one only if names are unique: if an id fits images both near
        and far, ids without a near image belong to missing images. AmbiguousIdError if several
        images are equally near, or if all are of another split. Ids of origins in `fitting` are
        not shortened, because other ids of these origins are whole keys.
        """
        origins = origins or Coded.constant(Origin(), len(texts))
        texts, origins, found, is_many = self._find_paths(texts, origins, fitting)
        rows, found[rows] = self._in_other_case(texts, found, is_many)
        found = self._nearest(texts, found, is_many, origins, where)
        if len(rows := rows[found[rows] >= 0]):
            one, key = shown(texts[int(rows[0])]), shown(self.keys[int(found[rows[0]])])
            ids = counted(len(rows), "id", "differs", "differ")
            what = f"{where}: {ids} from the name of an image only in case"
            self.remarks[f"{what}, such as {one} ({key})"] = None
        return found

    def _find_paths(
        self, texts: Texts, origins: Coded[Origin], fitting: Collection[Origin] = ()
    ) -> tuple[Texts, Coded[Origin], Ints, Bools]:
        """Return ids and origins after `_shortened`, and the results of `_find_names` for them."""
        texts = paths_of(texts)
        found, is_many = self._find_names(texts)
        fits = is_many | (found >= 0)
        if fits.all():
            return texts, origins, found, is_many
        fits |= origins.fit(lambda one: one in fitting)
        short, origins = self._shortened(texts, origins, fits)
        if short is not texts:
            found, is_many = self._find_names(short)
        return short, origins, found, is_many

    def _nearest(
        self, texts: Texts, found: Ints, is_many: Bools, origins: Coded[Origin], where: str
    ) -> Ints:
        is_home = np.zeros(len(texts), bool)
        for row, origin in origins.firsts().items():
            rows = np.flatnonzero(origins.codes == origins.codes[row])
            is_whole = not origin.folder and origin.split is None
            if is_whole and not is_many[rows].any():
                is_home[rows] = True
                continue
            near = self._near(texts.take(rows), found[rows], is_many[rows], origin, where)
            found[rows], is_home[rows] = near
        return self._with_foreign(texts, found, is_home, origins, where)

    def _in_other_case(self, texts: Texts, found: Ints, is_many: Bools) -> tuple[Ints, Ints]:
        """Return the rows of ids that fit one key only regardless of case, and these keys.

        A key that another id fits is left out. Without an index of all keys: only those with the
        name of a lost id are searched.
        """
        rows = np.flatnonzero((found < 0) & ~is_many)
        if not len(rows):
            return rows, rows
        lost = texts.take(rows)
        low = _lowered(lost.composed())
        names = Texts.joined([low.ends(0), low.stems(0)]).array
        places = [np.zeros(0, np.int64)]
        for start in range(0, len(self._names), _AT_ONCE):
            stems = _lowered(self._names[start : start + _AT_ONCE].stems(0)).array
            places.append(start + np.flatnonzero(booleans(pc.is_in(stems, value_set=names))))
        near = np.concatenate(places)
        part = KeyIndex(_lowered(self._names.take(near)))
        at, are_many = part._find_names(low)
        fits = (at >= 0) & ~are_many
        rows, keys, lost = rows[fits], near[at[fits]], lost.where(fits)
        pairs = np.unique(keys * len(texts) + positions(lost, lost)[0])  # key and id
        once, numbers = np.unique(pairs // len(texts), return_counts=True)
        is_free = np.isin(keys, once[numbers == 1]) & ~np.isin(keys, found)
        return rows[is_free], keys[is_free]

    def num_found(self, texts: Texts) -> int:
        """Return how many ids fit one or more images."""
        return int(self.are_found(texts).sum())

    def are_found(self, texts: Texts, *, in_any_case: bool = False) -> Bools:
        """Return whether each id fits one or more images."""
        texts, _, found, is_many = self._find_paths(texts, Coded.constant(Origin(), len(texts)))
        if in_any_case:
            is_many[self._in_other_case(texts, found, is_many)[0]] = True
        return (found >= 0) | is_many

    def _near(
        self, texts: Texts, found: Ints, is_many: Bools, origin: Origin, where: str
    ) -> tuple[Ints, Bools]:
        """Return the nearest key of each id or −1, and False for keys of another split.

        `found` has the key of ids that fit one key. Other ids are in `is_many` or fit no key.
        """
        folders = self.keys.folders
        firsts = folders.firsts()
        splits = self.splits.take(np.array([*firsts], np.int64))
        levels = folders.mapped(map(origin.level, firsts.values(), splits))
        level_of = np.append(np.array(levels.values, np.int64)[levels.codes], FOREIGN)
        left = np.flatnonzero(is_many)
        found = found.copy()
        last = FOREIGN
        for level in sorted({*levels.values} - {FOREIGN}) if len(left) else ():
            place = np.flatnonzero(level_of[:-1] <= level)
            part = KeyIndex(self.keys.take(place))
            near, are_many = part._find_names(texts.take(left))
            for row in np.flatnonzero(are_many).tolist():
                several = part.find(texts[int(left[row])])
                self._check_one(texts[int(left[row])], place[list(several)].tolist(), where)
                near[row] = several[0]
            is_there = near >= 0
            found[left[is_there]] = place[near[is_there]]
            left = left[~is_there]
            if is_there.any():
                last = level
                break
        if last == FOREIGN and len(left):
            row = int(left[0])
            self._check_one(texts[row], self.find(texts[row]), where)
        far = level_of[found] > last
        far[left] = True
        found[far] = -1
        return found, level_of[found] < FOREIGN

    def _with_foreign(
        self, texts: Texts, found: Ints, is_home: Bools, origins: Coded[Origin], where: str
    ) -> Ints:
        """Return `found` with −1 for keys of another split than the origin's, unless meant.

        Such a key is meant if the folder of the id names its split, or if names are unique: no id
        from the split of the key finds the same key.
        """
        foreign = np.flatnonzero((found >= 0) & ~is_home)
        stated = texts.take(foreign).folders.map(lambda path: given_split(path.split("/")))
        pairs = zip(stated, self.splits.take(found[foreign]), strict=True)
        foreign = foreign[[own is None or own != split for own, split in pairs]]
        if not len(foreign):
            return found
        homes = found[(found >= 0) & is_home]
        codes = origins.codes[foreign]
        is_known = np.isin(found[foreign], homes)
        lost = np.isin(codes, np.unique(codes[is_known]))
        lost |= origins.fit(lambda one: one.is_of_path)[foreign]
        firm = origins.fit(lambda one: one.is_firm)[foreign]
        if not len(homes) and firm.any():
            row = int(foreign[firm][0])
            key = self.keys[int(found[row])]
            own, other = origins[row].split, self.splits[int(found[row])]
            what = f"id {texts[row]!r} is of split {own}, but its only image, {key}, is of {other}"
            hint = f"add the images of {own}, or use a table of {other}"
            raise AmbiguousIdError(where, what, hint)
        found[foreign[lost]] = -1
        return found

    def _check_one(self, text: str, found: Sequence[int], where: str) -> None:
        if len(found) > 1:
            one, two = self.keys[found[0]], self.keys[found[1]]
            what = f"id {text!r} fits several images: {one} and {two}"
            error = AmbiguousIdError(where, what, f"write the path as the id, such as {one}")
            error.found = found
            raise error

    def _shortened(
        self, texts: Texts, origins: Coded[Origin], fits: Bools
    ) -> tuple[Texts, Coded[Origin]]:
        """Return ids without the first folders, such as `/kaggle/input/set/`, that no key has.

        All ids of an origin lose the same number of folders: the fewest with which an id fits a
        key, or none if an id of the origin `fits` already. A split that the lost folders name still
        applies. If no id fits then, ids may be names of masks or videos, and lose the ending.
        """
        short, split_of = texts, origins
        depths = texts.num_folders()
        for row in origins.firsts():
            rows = np.flatnonzero(origins.codes == origins.codes[row])
            if fits[rows].any():
                continue
            own = texts.take(rows)
            for number in range(1, int(depths[rows].max()) + 1):
                cut = own.without_folders(number)
                found, is_many = self._find_names(cut)
                if is_many.any() or (found >= 0).any():
                    break
            else:
                cut = Texts.of(_SUFFIX.sub("", one) for one in own)
                if cut == own or not (self._find_names(cut)[0] >= 0).any():
                    continue
            short = short.replaced(rows, cut)
            stated = own.folders.map(lambda path: given_split(path.split("/")))
            changed = list(split_of)
            for at, split in zip(rows.tolist(), stated, strict=True):
                if split is not None:
                    changed[at] = changed[at]._replace(split=split, is_of_path=True)
            split_of = Coded.of(changed)
        return short, split_of

    def _find_names(self, texts: Texts) -> tuple[Ints, Bools]:
        """Return the position of the only key of each id or −1, and whether several keys fit."""
        asked, texts = texts, texts.composed()
        found = np.full(len(texts), -1, np.int64)
        is_several = np.zeros(len(texts), bool)
        depths = np.minimum(texts.num_folders(), _MOST_FOLDERS + 1).astype(np.int8)
        for depth in np.flatnonzero(np.bincount(depths)).tolist():
            is_one = depths == depth
            if depth > _MOST_FOLDERS:
                is_several |= is_one
                continue
            wanted = texts.where(is_one)
            first, is_many = self._lookup(Texts.ends, depth).positions(wanted)
            lost = first < 0
            if depth and lost.any():  # search no stem if another folder has the name
                names = wanted.where(lost).ends(0)
                lost[lost] = self._lookup(Texts.ends, 0).positions(names)[0] < 0
            if lost.any():
                stems = self._lookup(Texts.stems, depth)
                first[lost], is_many[lost] = stems.positions(wanted.where(lost))
            found[is_one] = first
            is_several[is_one] = is_many
        is_odd = is_several & (
            (depths > _MOST_FOLDERS) | ~booleans(pc.string_is_ascii(texts.array))
        )
        for row in np.flatnonzero(is_odd).tolist():  # keys may differ in the form of accents
            several = self.find(asked[row])
            is_several[row] = len(several) > 1
            found[row] = several[0] if len(several) == 1 else -1
        return found, is_several

    def _lookup(self, part: Callable[..., Texts], depth: int) -> Lookup:
        """Return the index of the ends or stems of all keys; with many keys, only two are kept."""
        name = part.__name__, depth
        if name not in self._lookups:
            if len(self.keys) > _FEW_KEYS:
                self._lookups = dict([*self._lookups.items()][-1:])
            self._lookups[name] = Lookup(self._names, partial(part, depth=depth))
        return self._lookups[name]

    @cached_property
    def _by_name(self) -> tuple[dict[str, int | list[int]], dict[str, int | list[int]]]:
        by_name: dict[str, int | list[int]] = {}
        by_stem: dict[str, int | list[int]] = {}
        for i, key in enumerate(self._names):
            name = key.rpartition("/")[2]
            _add(by_name, name, i)
            _add(by_stem, name.rpartition(".")[0] or name, i)
        return by_name, by_stem

    @cached_property
    def _most_folders(self) -> int:
        return int(self._names.num_folders().max(initial=0))

    @cached_property
    def splits(self) -> Coded[str | None]:
        return folder_splits(self.keys)

    def _grouped(self, positions: Sequence[int], depth: int) -> dict[str, list[int]]:
        """Return last `depth` folders → the `positions` whose keys are in these folders."""
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for i in positions:
            *folders, _ = self._names[i].rsplit("/", depth + 1)
            if len(folders) >= depth:
                groups["/".join(folders[len(folders) - depth :])].append(i)
        return groups


def unused_entries(where: str, lost: Sequence[str], number: int, keys: Iterable[str]) -> list[str]:
    """Return a remark on the `lost` of `number` ids, which fit no image; a warning from 25% on."""
    names, few = sorted((key.rpartition("/")[2].lower(), key) for key in keys if lost), []
    empty = _empty_folder(lost, {key.rpartition("/")[0] for _, key in names})
    for text in lost[:_MOST_SHOWN]:
        key = "" if empty else _nearest_key(text, _beside(text, names)) or _nearest_key(text, names)
        nearest = other_case(text, [key]) or (f" (the nearest key is {shown(key)})" if key else "")
        few.append(f"{shown(text)}{nearest}")
    share = len(lost) / max(1, number)
    what = f"{where}: {len(lost):,} of {number:,} entries ({share:.0%}) fit no image"
    warning = "warning: " if share >= MANY else ""
    empty = empty and f"; no image is in their folder {shown(empty)}"
    return [f"{warning}{what}, such as {', '.join(few)}{empty}"] if lost else []


def _empty_folder(lost: Sequence[str], known: Collection[str]) -> str:
    """Return the folder of all ids in `lost` if it fits none of the `known` folders, else ""."""
    folder = lost[0].rpartition("/")[0] if len(lost) > 1 else ""
    if not folder or any(one.rpartition("/")[0] != folder for one in lost):
        return ""
    ends = (f"/{one}".endswith(f"/{folder}") or f"/{folder}".endswith(f"/{one}") for one in known)
    return "" if any(ends) or (folder[0] == "/" and "" in known) else folder


def other_case(text: str, keys: Iterable[str]) -> str:
    """Return in brackets the first key that differs from an id only in case; "" without one."""
    end = f"/{text}".lower()
    for key in keys:
        whole = f"/{key}".lower()
        if whole.endswith(end) or whole.removesuffix(f".{key.lower().rpartition('.')[2]}").endswith(
            end
        ):
            return f" ({shown(key)} differs only in case)"
    return ""


def _beside(text: str, names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the names and keys in the folder of an id, or in the longest end of it that exists."""
    folders = text.lower().split("/")[:-1]
    for start in range(len(folders)):
        end = f"/{'/'.join(folders[start:])}/"
        if near := [(x, key) for x, key in names if f"/{key[: -len(x)]}".lower().endswith(end)]:
            return near
    return []


def _nearest_key(text: str, names: Sequence[tuple[str, str]]) -> str:
    """Return the key in sorted `names` that begins most like an id, or "" if none is near."""
    name = text.rpartition("/")[2].lower()
    at = max(1, bisect(names, (name,)))
    beside = ((sum(takewhile(bool, map(eq, x, name))), key) for x, key in names[at - 1 : at + 1])
    num_equal, key = max(beside, default=(-1, ""))
    is_near = 2 * num_equal >= len(name.rpartition(".")[0] or name)  # random ids are not near
    return key if is_near else ""


def padded_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return stem without leading zeros → key, for the keys whose stems start with a zero."""
    return {stem(key).lstrip("0"): key for key in keys if stem(key).startswith("0")}


def paths_of(texts: Texts) -> Texts:
    r"""Return ids with "/" for "\", without the start of an absolute path, a URL or `../`."""
    array = texts.array
    is_odd = pc.starts_with(array, "/")
    for part in ("\\", "./", ":/"):  # faster than the expression, which few tables need
        is_odd = pc.or_(is_odd, pc.match_substring(array, part))
    if not booleans(is_odd).any():
        return texts
    paths = pc.replace_substring(array, "\\", "/")
    return Texts(pc.replace_substring_regex(paths, _START.pattern, ""))


def _lowered(texts: Texts) -> Texts:
    return Texts(pc.utf8_lower(texts.array))


def _add(positions: dict[str, int | list[int]], name: str, position: int) -> None:
    """Add a position of `name`. A single position is not a list: a million lists are slow."""
    known = positions.setdefault(name, position)
    if isinstance(known, list):
        known.append(position)
    elif known != position:
        positions[name] = [known, position]
