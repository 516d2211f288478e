"""Find mask files next to images, so that they become neither images nor classes."""

from __future__ import annotations

import contextlib
import glob
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardprep.catalog.decision.column_evidence import LIKELY, LabelColumns, found_columns, is_about
from shardprep.catalog.decision.file_kinds import NUM_PROBES, Kind, find_kinds, named_alike
from shardprep.catalog.decision.mask_sets import (
    SPLIT_WORD,
    MaskSet,
    is_named_as_masks,
    mask_sets,
    pair_set,
)
from shardprep.catalog.decision.pairs import common_start
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import ENOUGH, are_classes, are_numbered
from shardprep.catalog.names import (
    OF_OBJECTS,
    are_parts,
    class_files,
    find_masks,
    folder_splits,
    split_folders,
    stem,
    words_of,
)
from shardprep.catalog.objects.formats.panoptic import panoptic_signs
from shardprep.catalog.objects.mask_files import matching, pair_masks
from shardprep.catalog.objects.mask_values import (
    NUMBERED,
    UNSURE,
    hold_numbers,
    naming_files,
    unnamed,
)
from shardprep.catalog.patterns import matched
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.row_matching import match_ids
from shardprep.catalog.tables.united_tables import united
from shardprep.errors import OptionError, SourceError, counted
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.source.string_column import Texts

_MOST_TABLES, _MOST_KINDS, _MOST_RIVALS = 2, 16, 4
_MOST_KEYS, _LEAST_FOLDERS, _NUM_FOLDERS, _MOST_NAMES = 20_000, 3, 4, 4
_NUM_SAMPLES = 16
"""Maximum number of masks of a set to decode, to distinguish object numbers from classes."""
_MOST = 0.75
"""Minimum share of training images with a mask; below it, the user is asked."""
_EQUAL = 0.95
"""Minimum correlation at which two masks count as equal."""
_BINARY = 2
_REPEATED = 2
"""Minimum mean number of images with the same name, if each folder numbers them from the start."""
_CODE = re.compile(r"(?=[a-f]*\d)[0-9a-f]{6,}", re.IGNORECASE)
_CLASS = re.compile(r"(?:\d+[-_. ]+)?([^\d]+)")
_COLOURS = re.compile(r"\b(rgb|colou?rs?)\b")
_IMAGES = re.compile(r"(?<![A-Za-z])images?(?![A-Za-z])", re.IGNORECASE)
_CLASS_WORD = re.compile("[A-Za-z _-]{3,}")
_NUMBERED = re.compile(r"[A-Za-z]{3}.*\d")
_NUMBERED_CLASS = re.compile(r"(class|type|category|defect|grade|stage)[-_ ]?\d+", re.IGNORECASE)
_NO_CLASS = re.compile(r"\b(images?|imgs?|inputs?|data|originals?|raw|rgb|photos?|pictures?)\b")


def mask_files(view: View) -> Sequence[Reading]:
    """Return the readings that pair masks by a pattern, with globs of pictures to leave out."""
    if not view.is_open("masks", "boxes", "points", "stack", "target_image"):
        return []
    if readings := _of_equal_names(view):
        return readings
    members = view.candidates
    every = find_kinds(members)
    kinds = named_alike(every)
    sets, pictures = mask_sets(kinds, members, view.pictures) if len(kinds) > 1 else ([], [])
    if not (sets and pictures) and find_masks(members.keys).num_masks:
        # Maybe each image has a folder of its own, so that names need not agree.
        sets, pictures = mask_sets(every, members, view.pictures)
    usable = [one for one in sets if not one.is_drawn]
    if not usable or not pictures:
        return []
    signs = (view.index, view.documents, view.candidates)
    if any(one.colours for one in usable) and panoptic_signs(*signs):
        return []  # documents describe the object that each colour means
    keys = list(members.keys)
    for one in usable:
        rest = [other for other in sets if other is not one]
        pair_set(one, pictures, (members, keys), rest, view.pictures)
    return [*_readings(view, sets), *_of_drawn(view, sets, pictures)]


def _of_equal_names(view: View) -> list[Reading]:
    """Return the reading of folders that each have one photo and its mask: `rgb.jpg`, `labels.png`.

    Visualisations, such as `label_viz.png`, are left out.
    """
    below, members = defaultdict[str, list[int]](list), view.candidates
    for row, key in enumerate(members.keys[:_MOST_KEYS]):
        below[key.rpartition("/")[0]].append(row)
    folders = [*below.values()][: -1 if len(members) > _MOST_KEYS else None]  # may be cut off
    names = {frozenset(members.keys[row].rpartition("/")[2] for row in own) for own in folders}
    if len(folders) < _LEAST_FOLDERS or len(names) > 1 or not 1 < len(folders[0]) <= _MOST_NAMES:
        return []
    some = [row for own in folders[:: len(folders) // _NUM_FOLDERS + 1] for row in own]
    seen = {row: view.pictures.values(members[row]) for row in some}
    named = [row for row in some if is_named_as_masks(stem(members.keys[row]))]
    masks = [row for row in named if (one := seen[row]) is not None and one.may_be_mask]
    others = [own for row, own in seen.items() if row not in named]
    own, drawn = ({members.keys[x].rpartition("/")[2] for x in rows} for rows in (masks, named))
    is_pair = len(masks) == len(others) == len(some) // len(folders[0]) and len(own) == 1
    if not is_pair or any(one is not None and one.may_be_mask for one in others):
        return []
    name = min(own)
    options: dict[str, Any] = {"masks": f"{{dir}}/{name}"}
    if out := tuple(f"*/{glob.escape(one)}" for one in sorted(drawn - own)):
        options["exclude"] = out
    if colours := {colour for row in masks if (one := seen[row]) for colour in one.colours}:
        options["mask_values"] = unnamed(colours)
    return [Reading(options, f"{len(below):,} folders with an image and its mask {name}")]


def _of_drawn(view: View, sets: Sequence[MaskSet], pictures: Sequence[Kind]) -> Iterator[Reading]:
    """Yield readings that use only the pictures of a folder such as `rgb` as images."""
    drawn = [one for one in sets if _COLOURS.search(" ".join(words_of(one.folder)))]
    drawn = [one for one in drawn if one.is_drawn and not one.colours]
    used = {part for one in drawn for kind in one.kinds for part in kind.folder.split("/")}
    parts = [[x for x in kind.folder.split("/") if x not in used] for kind in pictures]
    if len(drawn) == 1 and 0 < len(parts) <= _MOST_KINDS and all(parts):
        out = tuple(dict.fromkeys(f"{glob.escape(own[-1])}/*" for own in parts))
        for one in _apart(view, Reading({"exclude": out}, f"the masks are of {drawn[0].folder}")):
            bare = {key: x for key, x in one.options.items() if key not in ("labels", "unlisted")}
            yield from (Reading(bare, one.why), one)


def _apart(view: View, apart: Reading) -> Iterator[Reading]:
    """Yield readings of masks that exclude what `apart` excludes; without masks, only `apart`."""
    found = mask_files(view.read_as(apart)) or [Reading({}, "")]
    for more in ([one for one in found if "masks" in one.options] or found)[:_MOST_RIVALS]:
        left = (*apart.options["exclude"], *more.options.get("exclude", ()))
        yield Reading({**more.options, "exclude": left}, apart.why)


def _readings(view: View, sets: Sequence[MaskSet]) -> list[Reading]:
    """Return the readings of each set of masks with a pattern, alone and combined with labels."""
    members, found = view.candidates, list[Reading]()
    sets = _joined(sets, view)
    usable = [one for one in sets if one.pattern]
    for one in usable:
        rows = [row for kind in one.kinds for row in kind.rows.values()]
        rows = [] if one.colours else rows[:: len(rows) // _NUM_SAMPLES + 1]
        kept = [members[row] for row in rows]
        is_named = OF_OBJECTS.search(f"{one.folder}/") is not None
        one.num_numbers = is_named or hold_numbers(map(view.pictures.values, kept), view.documents)
    if view.recipe.instances and any(one.num_numbers for one in usable):
        usable = [one for one in usable if one.num_numbers]
    elif any(not one.num_numbers and _has_classes(one, view) for one in usable):
        usable = [one for one in usable if not one.num_numbers]
    if len(usable) > 1:
        usable = [one for one in usable if not _are_equal(one, view)] or usable
    of_classes = [*_of_classes(usable, view)]
    for one in (*usable, *of_classes):
        is_named = OF_OBJECTS.search(f"{one.folder}/") is not None
        classes = {*class_files(one.files.keys, members.keys).values()} if is_named else set()
        rest = [other for other in sets if classes.isdisjoint(other.files.keys)]
        if one in of_classes:
            rest = [other for other in rest if not other.files.keys & one.files.keys]
        globs = tuple(dict.fromkeys(x for other in rest for x in _globs_apart(other, one)))
        globs += tuple(
            f"*{glob.escape(other.ending)}.*"
            for other in rest
            if other.glob == one.glob and one.ending and other.ending.endswith(one.ending)
            if other is not one
        )
        out = matched(list(members.keys), [*globs, one.glob], "exclude")
        images = [key for key, is_out in zip(members.keys, out, strict=True) if not is_out]
        found += _of_set(view, one, images, {"exclude": globs} if globs else {})
    rivals = next((one.rivals for one in sets if one.rivals), None)
    if rivals and all(one.rivals for one in usable):
        start = f"{' and '.join(rivals)} show the same scenes; " if usable else ""
        several = [pair for pair in (rivals, rivals[::-1]) if _IMAGES.search(pair[0])]
        for name, other in several if len(several) == 1 else (rivals, rivals[::-1]):
            left, why = (f"{glob.escape(other)}/*",), f"{start}the masks are of {name}"
            found += _apart(view, Reading({"exclude": left}, why))
        globs = tuple(one.glob for one in sets if one.rivals)
        found.insert(0, Reading({"exclude": globs}, "the masks are left out"))
    return found


def _globs_apart(other: MaskSet, one: MaskSet) -> list[str]:
    """Return globs that exclude the masks of `other`, or its folders if none has masks of `one`."""
    own, others = ({kind.folder for kind in each.kinds} for each in (one, other))
    if one.folder or other.folder or own & others or len(others) > _MOST_KINDS:
        return [other.glob] if other.glob != one.glob else []
    return [f"{glob.escape(path.rpartition('/')[2])}/*" for path in sorted(others) if path]


def _joined(sets: Sequence[MaskSet], view: View) -> Sequence[MaskSet]:
    """Return the sets, with binary sets of one folder joined: their endings become classes."""
    keys = list(view.candidates.keys)
    of_text: defaultdict[tuple[str, str], list[MaskSet]] = defaultdict(list)
    for one in sets:
        start, end, rest = one.pattern.rpartition(one.ending or "{stem}")
        if one.folder and end[:1] in "-_." and rest[:1] == "." and not one.colours:
            of_text[one.folder, f"{start}{end[:1]}{{class}}{rest}"].append(one)
    for (folder, text), several in of_text.items():
        shown = {key for one in several for key in one.files.keys}
        if any(_has_classes(one, view) for one in several):
            continue
        if len(several) > 1 and matching(keys, parse_mask_pattern(text)).keys() == shown:
            kinds = [kind for one in several for kind in one.kinds]
            files = pair_masks(keys, parse_mask_pattern(text))
            left = [one for one in sets if all(one is not other for other in several)]
            return [MaskSet(folder, "", kinds, pattern=text, files=files), *left]
    return _of_two_endings(sets, keys)


def _of_two_endings(sets: Sequence[MaskSet], keys: Sequence[str]) -> Sequence[MaskSet]:
    """Return the sets; sets of one folder are joined if no image has masks in two of them."""
    for one in sets:
        several = [other for other in sets if one.folder == other.folder != ""]
        text = one.pattern.replace(f"{{stem}}{one.ending}", "{stem}*")
        if one.ending and len(several) > 1 and text != one.pattern:
            with contextlib.suppress(SourceError, OptionError):
                files = pair_masks(keys, parse_mask_pattern(text))
                if len(files.of_image) == len(files.keys):
                    kinds = [kind for each in several for kind in each.kinds]
                    colours = one.colours.union(*(each.colours for each in several))
                    own = MaskSet(one.folder, "", kinds, colours, pattern=text, files=files)
                    return [own, *(each for each in sets if each.folder != one.folder)]
    return sets


def _of_classes(sets: Sequence[MaskSet], view: View) -> Iterator[MaskSet]:
    """Yield one set from binary masks of equal names in several folders, which become classes."""
    folders = [one.folder for one in sets]
    rests = {one.pattern.removeprefix(f"{one.folder}/") for one in sets}
    if len(sets) < 2 or len(rests) > 1 or "{stem" not in "".join(rests)[:5]:
        return
    if any(one.colours or one.num_numbers or _has_classes(one, view) for one in sets):
        return
    shown, names = set[str]().union(*(one.files.keys for one in sets)), [one.names for one in sets]
    above = {f"/{kind.folder}".split("/")[-2] for one in sets for kind in one.kinds}
    start, end = common_start(folders), common_start([one[::-1] for one in folders])[::-1]
    is_below = len(above) == 1 and above != {""}
    place = f"{above.pop()}/*" if is_below else f"{start}*{end}"
    text = f"{place.replace('*', '{class}')}/{rests.pop()}"
    if place == "*" or len(set.intersection(*names)) < ENOUGH * max(map(len, names)):
        return
    with contextlib.suppress(SourceError, OptionError):
        keys, pattern = list(view.candidates.keys), parse_mask_pattern(text)
        files = pair_masks(keys, pattern)
        if files.keys == shown and all(map(_CLASS_WORD.fullmatch, files.class_of.values())):
            kinds = [kind for one in sets for kind in one.kinds]
            yield MaskSet(place, "", kinds, pattern=text, files=files)


def _of_set(
    view: View, one: MaskSet, images: Sequence[str], options: dict[str, Any]
) -> list[Reading]:
    """Return the readings of a set of masks; the first also give labels if folders are classes."""
    members, documents, index = view.candidates, view.documents, KeyIndex(images)
    of_image = one.files.of_image
    num_masks = sum(map(len, of_image.values()))
    why = f"{counted(num_masks, 'mask')} of {len(of_image):,} of {counted(len(images), 'image')}"
    options = {**options, "masks": one.pattern}
    if not one.num_numbers and _are_objects(of_image):
        options["instances"] = True
    without = {"exclude": (*options.get("exclude", ()), one.glob)}
    if one.colours:
        named = naming_files(one.colours, documents)
        options["mask_values"] = named[0] if named else unnamed(one.colours)
        why += "" if named else "; their colours have no names"
    is_whole = "exclude" not in options and members is view.listing.images
    found = [Reading(options, why, files=one.files if is_whole else None)]
    is_open = view.is_open("labels")
    splits = zip(images, folder_splits(images), strict=True)
    train = [key for key, split in splits if split in (None, "train")] or images
    num_masked = sum(key in of_image for key in train)
    depth, is_clear = _class_depth(images, members.keys) if is_open else (0, False)
    if depth:
        rule = "folder" if depth == 1 else f"folder:{depth}"
        found = [Reading({**options, "labels": rule}, f"{why}, in folders of classes")]
        found += [] if is_clear and not _are_frames(images) else [Reading(options, why)]
    if num_masked < _MOST * len(train):
        all_ = {"unlisted": "background"}
        lacking = {key.rpartition("/")[0] for key in images if key not in of_image}
        are_apart = lacking.isdisjoint(key.rpartition("/")[0] for key in of_image)
        found += [Reading(options, why)] if are_apart and depth and len(found) == 1 else []
        end = "; the others have no objects"
        every = [Reading({**x.options, **all_}, x.why + end) for x in found if depth or are_apart]
        found = [*every, *found]
        found.append(Reading(without, f"{why}: too few"))
    elif one.folder and not one.has_word:
        rest = {"labels": found[0].options["labels"]} if depth else {}
        found.append(Reading({**without, **rest}, "the masks are left out"))
    tables = _labelling_tables(view, index) if is_open else []
    if tables and any(sign.key == "boxes" for sign in view.signs):  # a later stage adds boxes
        found.append(Reading({**options, "labels": "none"}, f"{why}; the masks alone"))
    for table in tables:
        own = table.options[0]
        found.append(Reading({**without, **own}, f"{table.why}; without masks"))
        found.append(Reading({**options, **own}, f"{why}; {table.why}"))
    if one.num_numbers and not one.colours:
        apart = [
            Reading({**read.options, "instances": True}, f"{why}; {NUMBERED}")
            for read in found
            if "masks" in read.options
        ]
        is_sure = one.num_numbers > UNSURE and num_masks >= NUM_PROBES
        is_sure = is_sure or OF_OBJECTS.search(f"{one.folder}/") is not None
        found = apart if is_sure else [*found, *apart]
    return found


def _are_objects(of_image: Mapping[str, Sequence[str]]) -> bool:
    """Return whether there are more masks than images, all named by different codes."""
    names = [stem(mask) for masks in of_image.values() for mask in masks]
    are_several = len(of_image) > 1 and len({*names}) == len(names) > len(of_image)
    own = {stem(image) for image in of_image}
    return are_several and own.isdisjoint(names) and all(map(_CODE.fullmatch, names))


def _has_classes(one: MaskSet, view: View) -> bool:
    row = next(iter(one.kinds[0].rows.values()))
    seen = view.pictures.values(view.candidates[row])
    return seen is not None and max(len(seen.values), len(seen.colours)) > _BINARY


def _are_equal(one: MaskSet, view: View) -> bool:
    """Return whether all sampled masks are nearly equal, like masks of a fixed field of view."""
    pictures, rows = view.pictures, [row for kind in one.kinds for row in kind.rows.values()]
    some = [view.candidates[row] for row in rows[:: len(rows) // NUM_PROBES + 1]]
    seen = [found.grey for member in some if (found := pictures.of(member)) is not None]
    return len(seen) > 2 and all(float((seen[0] * each).mean()) >= _EQUAL for each in seen)


def _class_depth(images: Sequence[str], keys: Sequence[str]) -> tuple[int, bool]:
    """Return the level of class folders above images (1, 2; 0 for none), and whether it is certain.

    Names of classes are words, perhaps after a number, or `class1`, `class2`. If at least half of
    the names have other forms with numbers, the folders are samples or tiles.
    """
    folders = Texts.of(images).folders.counts()
    splits = {path.rpartition("/")[2] for path in split_folders(folders)}
    paths = [one.split("/") for one in folders]
    no_classes = find_masks(keys).no_classes
    for depth in (1, 2):
        names = {path[-depth] if len(path) >= depth else "" for path in paths}
        if not names.isdisjoint(no_classes) and depth == 1 and len(names) > 1:
            break
        plain = {_plain(name) for name in names - splits}
        has_numbers = len(names) > 1 and all(map(_NUMBERED_CLASS.fullmatch, names))
        has_numbers |= len(names) > 1 and are_numbered(names)
        if has_numbers or (len(plain) > 1 and not are_parts(names)):
            numbered = [name for name in names if not _plain(name)]
            is_fit = 2 * len(numbered) < len(names) and all(map(_NUMBERED.search, numbered))
            is_fit |= has_numbers
            is_clear = depth == 1 and not numbered
            return depth * (is_fit and are_classes(len(names), len(images))), is_clear
    return 0, False


def _are_frames(images: Sequence[str]) -> bool:
    """Return whether each folder numbers its images from the start, as clips number frames."""
    stems = [stem(one) for one in images]
    return all(map(str.isdecimal, stems)) and _REPEATED * len({*stems}) <= len(stems)


def _plain(name: str) -> str:
    """Return the words of a folder's name that may mean a class, or ""."""
    match = _CLASS.fullmatch(SPLIT_WORD.sub("", name))
    words = _NO_CLASS.sub("", " ".join(words_of(match[1]))).strip() if match else ""
    is_part = match and len(words) == 1 < len(match[1])  # dataA, dataB
    return "" if is_part else words


def _labelling_tables(view: View, index: KeyIndex) -> list[LabelColumns]:
    """Return the first columns of classes in tables that name nine tenths of the images.

    Without such a column, the only column of numbers is returned.
    """
    tables, found = view.documents.tables, list[LabelColumns]()
    for table in united(index, tables):
        with contextlib.suppress(SourceError):
            match = match_ids(index, table)
            if (match.row_of >= 0).sum() >= ENOUGH * len(index.keys):
                found += found_columns(match, index, tables)
    found = [one for one in found if any(x.get("target") != "vector" for x in one.options[:1])]
    likely = [one for one in found if one.strength >= LIKELY]
    cells = (one.match.cells(one.titles[0]) for one in likely)
    fits = (are_classes(len(each.counts()), len(each)) for each in cells)
    numbers = [one for one in found if one.options[0].get("target") == "regression"]
    numbers = [one for one in numbers if not is_about(one.titles[0])]
    some = [*itertools.compress(likely, fits)] or (numbers if len(numbers) == 1 else [])
    first = dict[tuple[object, ...], LabelColumns]()
    for one in some:  # two tables may repeat a column, such as those of 5 and 10 folds
        own = itertools.chain.from_iterable(map(one.match.cells, one.titles))
        first.setdefault((*one.titles, None, *own), one)
    return [*first.values()][:_MOST_TABLES]
