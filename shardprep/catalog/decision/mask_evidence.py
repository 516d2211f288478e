"""The stage that finds masks of the images beside them, so that they are no images and no classes.

Names come first: files are of one kind if they are in one folder and their names end alike, and
only kinds whose files are named like those of another kind are looked at. Then a few are decoded:
masks have few values or colours, and their images do not. Patterns are made of what paths of masks
have and those of images lack. A pattern is used if it gives nine tenths of its masks an image.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardprep.catalog.candidates import match_ids
from shardprep.catalog.decision.column_evidence import LIKELY, LabelColumns, found_columns
from shardprep.catalog.decision.pairs import Pictures
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import ENOUGH, are_classes
from shardprep.catalog.names import (
    MASK_ENDING,
    OF_OBJECTS,
    are_parts,
    find_masks,
    folder_splits,
    masks_by_folder,
    stem,
)
from shardprep.catalog.objects.detect import mask_patterns
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.mask_files import MaskFiles, SeveralImagesError, matching, pair_masks
from shardprep.catalog.objects.mask_values import (
    NUMBERED,
    Colour,
    colour_files,
    hold_numbers,
    look,
)
from shardprep.catalog.patterns import matched
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.row_matching import united
from shardprep.errors import SourceError, counted
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.source.members import Members
from shardprep.source.string_column import Texts

_MOST_NAMES, _MOST_FOLDERS = 4_096, 512
_MOST_PIXELS = 1 << 26
_MOST_TABLES = 2
_AT_EACH_END = 8
"""Kinds that are decoded, from the start and from the end of their list."""
_NUM_PROBES = 8
_MOST_ENDINGS = 6
_MOST = 0.75
"""Minimum share of the training images that have a mask, so that masks are what a source has."""
_EQUAL = 0.95
"""Minimum correlation of two masks that show the same."""
_BINARY = 2
_USUAL = 0.1
"""Minimum share of the files of a folder for an ending of their names."""
_ENDING = re.compile(r"[-_. ](?=\d*[^\W\d_])[^\W_]+$")
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_OF_MASKS = re.compile(
    r"masks?\b|annots?\b|\b(labels?|annotations?|anno|segs?|segmentations?|gts?|groundtruths?"
    r"|ground truths?|manual|targets?|saliency|trimaps?|parsing|mattes?|ids)\b"
)
"""Words of mask folders and mask names, in lower case with spaces between."""
_DRAWN = re.compile(r"\b(visuali[sz]ations?|vis|viz|overlays?|overlaid|previews?|colou?rs?|rgb)\b")
"""Words of pictures for the eye."""
_SPLIT = re.compile(
    r"(?<![A-Za-z])(?:train(?:ing)?|tr|val(?:id(?:ation)?)?|dev|test(?:ing)?|te|ts|eval)(?![a-z])",
    re.IGNORECASE,
)


class _Kind(NamedTuple):
    """The files of a folder whose names end alike."""

    folder: str
    ending: str
    rows: dict[str, int]
    """Stem → position of a file, of the first ones in order."""

    @property
    def bases(self) -> dict[str, int]:
        """The names without the ending, and without a number after it."""
        return {_cut(name, self.ending): row for name, row in self.rows.items()}


@dataclass(slots=True)
class _Set:
    """Kinds of masks in different folders that belong together: those of all splits."""

    folder: str
    """Name or glob of the folder; "" if the masks are beside their images."""
    ending: str
    kinds: list[_Kind]
    colours: set[Colour] = field(default_factory=set)
    is_drawn: bool = False
    """Whether these are pictures for the eye, which repeat what masks have."""
    pattern: str = ""
    files: MaskFiles = field(default_factory=lambda: MaskFiles({}, []))
    rivals: tuple[str, str] | None = None
    """Names of two folders whose images the masks fit equally."""
    have_numbers: bool = False
    """Whether values seem to be numbers of objects."""

    @property
    def names(self) -> set[str]:
        return {name for kind in self.kinds for name in kind.bases}

    def holds(self, kind: _Kind) -> bool:
        return kind.folder.rpartition("/")[2] == self.folder

    @property
    def has_word(self) -> bool:
        """Whether the names of all folders or files have a word of masks."""
        return all(map(_may_be_masks, self.kinds))

    @property
    def glob(self) -> str:
        """The glob that excludes these files."""
        own = "*" if any(_has_number(one) for one in self.kinds) else ""
        return f"{self.folder}/*" if self.folder else f"*{glob.escape(self.ending)}{own}.*"


def mask_files(view: View) -> Sequence[Reading]:
    """Return how to read a source with masks: the masks of its images, and what is left out."""
    if not view.is_open("masks", "boxes", "points", "stack", "target_image"):
        return []
    members = view.candidates
    kinds = _named_alike(_kinds(members))
    if len(kinds) < 2:
        return []
    sets, pictures = _sets(kinds, members)
    usable = [one for one in sets if not one.is_drawn]
    if not usable or not pictures:
        return []
    keys = list(members.keys)
    for one in usable:
        _pair(one, pictures, (members, keys), [other for other in sets if other is not one])
    return _readings(view, sets)


def _kinds(members: Members) -> list[_Kind]:
    """Return the kinds of files in each folder, of a sample if there are many."""
    folders = members.keys.folders
    order = np.argsort(folders.codes, kind="stable")
    starts = np.flatnonzero(np.diff(folders.codes[order], prepend=-2))
    runs = [*itertools.pairwise([*starts.tolist(), len(order)])]
    runs.sort(key=lambda run: folders.values[int(folders.codes[order[run[0]]])])
    if len(runs) > _MOST_FOLDERS:
        half = _MOST_FOLDERS // 2
        runs = runs[:half] + runs[-half:]
    number = max(_NUM_PROBES, _MOST_NAMES // max(1, len(runs)))
    found: list[_Kind] = []
    for start, stop in runs:
        rows = order[start : min(stop, start + number)]
        keys = list(members.keys.take(rows))
        names = dict(zip(map(stem, keys), rows.tolist(), strict=True))
        end_of = {name: _ending(name) for name in names}
        counts = Counter(filter(None, end_of.values()))
        least = max(2, _USUAL * len(names))
        ends = {end for end, n in counts.most_common(_MOST_ENDINGS) if n >= least}
        of_end: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, row in names.items():
            of_end[end_of[name] if end_of[name] in ends else ""][name] = row
        folder = keys[0].rpartition("/")[0]
        found += [_Kind(folder, end, own) for end, own in of_end.items()]
    return found


def _ending(name: str) -> str:
    if (match := MASK_ENDING.search(name)) and match.start() and match[1].lower() != "l":
        return match[1]
    match = _ENDING.search(name)
    return match[0] if match and match.start() else ""


def _cut(name: str, ending: str) -> str:
    return name[: name.rindex(ending)] if ending and ending in name else name


def _has_number(kind: _Kind) -> bool:
    return bool(kind.ending) and any(not name.endswith(kind.ending) for name in kind.rows)


def _named_alike(kinds: Sequence[_Kind]) -> list[_Kind]:
    """Return the kinds of which a quarter of the files are named like files of another kind."""
    with_name: defaultdict[str, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        for name in {**kind.rows, **kind.bases}:
            if len(with_name[name]) < 2:  # another one is enough
                with_name[name].append(number)
    found = []
    for number, kind in enumerate(kinds):
        for names in (list(kind.rows), list(kind.bases)):
            probes = names[:: max(1, len(names) // _NUM_PROBES)][:_NUM_PROBES]
            num_alike = sum(with_name[name] != [number] for name in probes)
            if 4 * num_alike >= len(probes):
                found.append(kind)
                break
    return found


def _words(text: str) -> str:
    return " ".join(_TOKEN.findall(text)).lower()


def _may_be_masks(kind: _Kind) -> bool:
    return is_named_as_masks(f"{kind.folder} {kind.ending}")


def _sets(kinds: Sequence[_Kind], members: Members) -> tuple[list[_Set], list[_Kind]]:
    """Return the sets of masks among kinds, and the kinds of pictures; a sample is decoded."""
    named = [one for one in kinds if _may_be_masks(one)]
    others = [one for one in kinds if not _may_be_masks(one)]
    pictures: list[_Kind] = []
    masks: list[tuple[_Kind, set[Colour]]] = []
    for several in (named, others):
        middle = max(_AT_EACH_END, len(several) - _AT_EACH_END)
        for kind in several[:_AT_EACH_END] + several[middle:]:
            colours = _colours(kind, members)
            if colours is None:
                pictures.append(kind)
            else:
                masks.append((kind, colours))
    in_use = {part for kind in pictures for part in kind.folder.split("/")}
    mixed = {kind.folder for kind in pictures}
    photos = {name for kind in pictures for name in kind.rows}
    drawn = [one for one in pictures if _DRAWN.search(_words(one.folder))]
    found: dict[tuple[str, str, bool], _Set] = {}
    for kind, colours in [*masks, *((one, set[Colour]()) for one in drawn)]:
        is_drawn = any(kind is one for one in drawn)
        own = kind.folder.split("/")
        if is_drawn:
            own = [part for part in own if _DRAWN.search(_words(part))]
        else:
            own = [part for part in own if part not in in_use and kind.folder not in mixed]
        part = max(reversed(own), key=is_named_as_masks, default="")
        if not part and not kind.ending:
            continue
        num_equal = sum(name in photos for name in kind.rows)
        ending = "" if 2 * num_equal > len(kind.rows) else kind.ending
        text = _of_every_split(part, in_use)
        one = found.setdefault((text, ending, bool(colours)), _Set(part, ending, []))
        one.folder = part if one.folder == part else text
        one.is_drawn = is_drawn
        one.kinds.append(kind)
        one.colours |= colours
    sets = list(found.values())
    values = [one for one in sets if not (one.colours or one.is_drawn)]
    names = {name for one in values for name in one.names}
    for one in sets:  # colours of masks that are there as values
        one.is_drawn |= bool(one.colours) and 2 * len(one.names & names) > len(one.names)
    direct = {one.folder for one in sets if any(map(one.holds, one.kinds))}
    for one in sets:  # masks of one kind in a folder, and of others in the folders below it
        if one.folder in direct and not any(map(one.holds, one.kinds)):
            one.folder += "/*"
    of_drawn = {id(kind) for one in sets if one.is_drawn for kind in one.kinds}
    return sets, [one for one in pictures if id(one) not in of_drawn]


def is_named_as_masks(text: str) -> bool:
    """Return whether a name has a word of masks."""
    return bool(_OF_MASKS.search(_words(text)))


def _of_every_split(part: str, in_use: Collection[str]) -> str:
    """Return a glob of a folder for all splits: `*annot` if `train` has images, `gt_*`."""
    starts = [one for one in in_use if one and part != one and part.startswith(one)]
    if starts:
        return f"*{part.removeprefix(max(starts, key=len))}"
    return _SPLIT.sub("*", part)


def _colours(kind: _Kind, members: Members) -> set[Colour] | None:
    """Return the colours of a kind of masks, {} if they have values; None for other pictures."""
    rows = list(kind.rows.values())
    colours: set[Colour] = set()
    for row in {rows[0], rows[len(rows) // 2]}:
        seen = look(members[row], _MOST_PIXELS)
        if seen is None or not (seen.is_mask or seen.has_few_colours):
            return None
        colours |= seen.colours
    return colours


def _pair(
    one: _Set,
    pictures: Sequence[_Kind],
    source: tuple[Members, Sequence[str]],
    others: Sequence[_Set],
) -> None:
    """Set the pattern of a set and its pairs, if a pattern fits its masks and no picture."""
    members, keys = source
    shown = [key for kind in one.kinds for key in _keys(kind, members)]
    is_out = matched(keys, [other.glob for other in others], "exclude")
    no_images = {key for key, out in zip(keys, is_out, strict=True) if out}
    usual = mask_patterns([k for k in keys if k not in no_images], masks_by_folder(keys))
    photos = {key for kind in pictures for key in _keys(kind, members)}
    for text in dict.fromkeys([*usual, *_patterns(one, pictures, shown)]):
        pattern = parse_mask_pattern(text)
        fits = re.compile(pattern.expression, re.IGNORECASE).fullmatch
        if not all(map(fits, shown)) or any(map(fits, photos)):
            continue
        try:
            files = pair_masks(keys, pattern, no_images)
        except SeveralImagesError as error:
            paths = [key.split("/")[:-1] for key in error.images]
            differ = [pair for pair in zip(*paths, strict=False) if pair[0] != pair[1]]
            if len(differ) == 1 and len(paths[0]) == len(paths[1]):
                one.rivals = differ[0]
            continue
        except SourceError:
            continue
        num_paired = len(files.keys) - len(files.without_image)
        if num_paired >= ENOUGH * len(files.keys) and _are_alike(files, members, one):
            one.pattern, one.files = text, files
            return


def _keys(kind: _Kind, members: Members) -> list[str]:
    return [members.keys[row] for row in list(kind.rows.values())[:_NUM_PROBES]]


def _are_alike(files: MaskFiles, members: Members, one: _Set) -> bool:
    """Return whether a sample of masks has the sizes of their images, or a name of masks."""
    if one.has_word:
        return True
    pairs = list(files.of_image.items())
    wanted = dict(pairs[:: max(1, len(pairs) // _NUM_PROBES)][:_NUM_PROBES])
    names = {key for image, masks in wanted.items() for key in (image, *masks)}
    rows = [row for row, key in enumerate(members.keys) if key in names]
    sizes = {members.keys[row]: image_size(members[row].extent) for row in rows}
    return all(sizes[image] == sizes[mask] for image, masks in wanted.items() for mask in masks)


def _patterns(one: _Set, pictures: Sequence[_Kind], masks: Sequence[str]) -> Iterator[str]:
    """Yield patterns for a set, made of its folder, and of what its names and images share."""
    endings = {Path(key).suffix for key in masks}
    suffix = endings.pop() if len(endings) == 1 else ".*"
    star = "*" if any(map(_has_number, one.kinds)) else ""
    parts = [kind.folder.split("/") for kind in one.kinds]
    is_last = all(re.fullmatch(_glob_text(one.folder), own[-1]) for own in parts)
    places = [""] if not one.folder else [f"{one.folder}/"]
    if one.folder and not is_last:
        places = [f"{one.folder}/{{folder}}/", f"{one.folder}/**/"]
    own = [name for kind in one.kinds for name in kind.rows]
    bases = {name: _cut(name, one.ending) for name in own}
    ends = Counter({kind.ending: len(kind.rows) for kind in pictures})
    for end in ["", *(end for end, _ in ends.most_common() if end)]:
        names = {name for kind in pictures for name in kind.rows if name.endswith(end)}
        names = {name.removesuffix(end) for name in names}
        field_ = f"{{stem[:-{len(end)}]}}" if end else "{stem}"
        for affix in ("", one.ending + star) if one.ending else ("",):
            num_alike = sum((bases[name] if affix else name) in names for name in own)
            if 2 * num_alike > len(own):
                for place in places:
                    yield f"{place}{field_}{affix}{suffix}"
                if "*" in one.folder and is_last:
                    yield from _of_folders(one, pictures, f"/{field_}{affix}{suffix}")


def _glob_text(text: str) -> str:
    return re.escape(text).replace(r"\*", ".*")


def _of_folders(one: _Set, pictures: Sequence[_Kind], rest: str) -> Iterator[str]:
    """Yield a pattern by the names of folders: `masks_{folder[7:]}/…` for `images_train`."""
    start, _, end = one.folder.partition("*")
    for name in {kind.folder.rpartition("/")[2] for kind in pictures}:
        if match := _SPLIT.search(name):
            before, after = match.start(), len(name) - match.end()
            letters = f"{before or ''}:{-after if after else ''}"
            yield f"{start}{{folder{f'[{letters}]' if letters != ':' else ''}}}{end}{rest}"


def _readings(view: View, sets: Sequence[_Set]) -> list[Reading]:
    """Return a reading for each set of masks that fits, and those with labels or boxes."""
    members, found = view.candidates, list[Reading]()
    sets = _joined(sets, list(members.keys))
    usable = [one for one in sets if one.pattern]
    for one in usable:
        rows = [row for kind in one.kinds for row in kind.rows.values()]
        kept = [] if one.colours else [members[row] for row in rows]
        is_named = OF_OBJECTS.search(f"{one.folder}/") is not None
        one.have_numbers = is_named or hold_numbers(kept, _MOST_PIXELS, view.documents)
    if any(not one.have_numbers and _has_classes(one, members) for one in usable):
        usable = [one for one in usable if not one.have_numbers]
    if len(usable) > 1:
        usable = [one for one in usable if not _are_equal(one, members)] or usable
    for one in usable:
        globs = tuple(dict.fromkeys(other.glob for other in sets if other is not one))
        out = matched(list(members.keys), [*globs, one.glob], "exclude")
        images = [key for key, is_out in zip(members.keys, out, strict=True) if not is_out]
        found += _of_set(view, one, images, {"exclude": globs} if globs else {})
    rivals = next((one.rivals for one in sets if one.rivals), None)
    if not usable and rivals:
        for name, other in (rivals, rivals[::-1]):
            apart = Reading({"exclude": (f"{glob.escape(other)}/*",)}, f"the masks are of {name}")
            own = mask_files(view.read_as(apart)) or [Reading({}, "")]
            for more in own[:1]:
                left = (*apart.options["exclude"], *more.options.get("exclude", ()))
                found.append(Reading({**more.options, "exclude": left}, apart.why))
        globs = tuple(one.glob for one in sets if one.rivals)
        found.insert(0, Reading({"exclude": globs}, "the masks are left out"))
    return found


def _joined(sets: Sequence[_Set], keys: Sequence[str]) -> Sequence[_Set]:
    """Return the sets, those of a folder that differ in the ends of their names as classes."""
    of_text: defaultdict[tuple[str, str], list[_Set]] = defaultdict(list)
    for one in sets:
        start, end, rest = one.pattern.rpartition(one.ending or "{stem}")
        if one.folder and end[:1] in "-_." and rest[:1] == "." and not one.colours:
            of_text[one.folder, f"{start}{end[:1]}{{class}}{rest}"].append(one)
    for (folder, text), several in of_text.items():
        shown = {key for one in several for key in one.files.keys}
        if len(several) > 1 and matching(keys, parse_mask_pattern(text)).keys() == shown:
            kinds = [kind for one in several for kind in one.kinds]
            files = pair_masks(keys, parse_mask_pattern(text))
            left = [one for one in sets if all(one is not other for other in several)]
            return [_Set(folder, "", kinds, pattern=text, files=files), *left]
    return sets


def _of_set(view: View, one: _Set, images: Sequence[str], options: dict[str, Any]) -> list[Reading]:
    """Return the readings of a set of masks, the first with all that the source has."""
    members, documents, index = view.candidates, view.documents, KeyIndex(images)
    of_image = one.files.of_image
    num_masks = sum(map(len, of_image.values()))
    why = f"{counted(num_masks, 'mask')} of {len(of_image):,} of {counted(len(images), 'image')}"
    options = {**options, "masks": one.pattern}
    without = {"exclude": (*options.get("exclude", ()), one.glob)}
    if one.colours:
        named = colour_files(one.colours, documents)
        options["mask_values"] = named[0] if named else _unnamed(one.colours)
        why += "" if named else "; their colours have no names"
    found = [Reading(options, why)]
    is_open = view.is_open("labels")
    splits = zip(images, folder_splits(images), strict=True)
    train = [key for key, split in splits if split in (None, "train")] or images
    num_masked = sum(key in of_image for key in train)
    is_labelled = is_open and bool(depth := _class_depth(images, members.keys))
    if is_labelled:
        rule = "folder" if depth == 1 else f"folder:{depth}"
        found = [Reading({**options, "labels": rule}, f"{why}, in folders of classes")]
        found += [Reading(options, why)] if depth > 1 else []
    if num_masked < _MOST * len(train):
        all_ = {"unlisted": "background"} if is_labelled else {}
        found = [Reading({**read.options, **all_}, read.why) for read in found]
        found.append(Reading(without, f"{why}: too few"))
    elif one.folder and not one.has_word:
        rest = {"labels": found[0].options["labels"]} if is_labelled else {}
        found.append(Reading({**without, **rest}, "the masks are left out"))
    for table in _labelling_tables(view, index) if is_open else ():
        own = table.options[0]
        found.append(Reading({**without, **own}, f"{table.why}; without masks"))
        found.append(Reading({**options, **own}, f"{why}; {table.why}"))
    if one.have_numbers and not one.colours:
        apart = [
            Reading({**read.options, "instances": True}, f"{why}; {NUMBERED}")
            for read in found
            if "masks" in read.options
        ]
        found = apart if OF_OBJECTS.search(f"{one.folder}/") else [*found, *apart]
    return found


def _has_classes(one: _Set, members: Members) -> bool:
    row = next(iter(one.kinds[0].rows.values()))
    seen = look(members[row], _MOST_PIXELS)
    return seen is not None and max(len(seen.values), len(seen.colours)) > _BINARY


def _are_equal(one: _Set, members: Members) -> bool:
    """Return whether the masks of all images are nearly equal: they are fields of view."""
    pictures, rows = Pictures(), [row for kind in one.kinds for row in kind.rows.values()]
    some = [members[row] for row in rows[:: len(rows) // _NUM_PROBES + 1]]
    seen = [found.grey for member in some if (found := pictures.of(member)) is not None]
    return len(seen) > 2 and all(float((seen[0] * each).mean()) >= _EQUAL for each in seen)


_CLASS = re.compile(r"(?:\d+[-_. ]+)?([^\d]+)")
_NO_CLASS = re.compile(r"\b(images?|imgs?|inputs?|data|originals?|raw|rgb|photos?|pictures?)\b")


def _class_depth(images: Sequence[str], keys: Sequence[str]) -> int:
    """Return how many folders above images their classes are; 0 if no folders are classes.

    Classes are words, at most with a number before: other numbers are of samples and tiles.
    """
    paths = [one.split("/") for one in Texts.of(images).folders.counts()]
    no_classes = find_masks(keys).no_classes
    for depth in (1, 2):
        names = {path[-depth] if len(path) >= depth else "" for path in paths}
        if not names.isdisjoint(no_classes) and depth == 1 and len(names) > 1:
            return 0
        plain = {_plain(name) for name in names}
        if len(plain) > 1 and not are_parts(names):
            return depth * ("" not in plain and are_classes(len(names), len(images)))
    return 0


def _plain(name: str) -> str:
    """Return the words of a folder that may name a class, without those of splits and kinds."""
    match = _CLASS.fullmatch(_SPLIT.sub("", name))
    return _NO_CLASS.sub("", _words(match[1])).strip() if match else ""


def _labelling_tables(view: View, index: KeyIndex) -> list[LabelColumns]:
    """Return the first ways to label nine tenths of the images by a table with classes."""
    tables, found = view.documents.tables, list[LabelColumns]()
    for table in united(index, tables):
        with contextlib.suppress(SourceError):
            match = match_ids(index, table)
            if (match.row_of >= 0).sum() >= ENOUGH * len(index.keys):
                found += found_columns(match, index, tables)
    likely = [one for one in found if one.strength >= LIKELY and len(one.titles) == 1]
    cells = (one.match.cells(one.titles[0]) for one in likely)
    fits = (are_classes(len(each.counts()), len(each)) for each in cells)
    return [*itertools.compress(likely, fits)][:_MOST_TABLES]


def _unnamed(colours: Collection[Colour]) -> str:
    texts = [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in sorted(colours)]
    return ",".join(f"{text}={text[1:]}" for text in texts)
