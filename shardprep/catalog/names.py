"""Find splits and masks by the names of files and folders, and sort names in natural order."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardprep.source.names import composed, is_shard_name, split_word, without_archive_suffix
from shardprep.source.string_column import Coded, Texts

_OF = r"([-_ ]?(set|data|images?|imgs?))?[-_]?v?\d*"
_SPLITS = {
    "train": re.compile(rf"train(ing)?{_OF}", re.IGNORECASE),
    "validation": re.compile(rf"(val(id(ate|ation)?)?|dev|tuning){_OF}", re.IGNORECASE),
    "test": re.compile(rf"(test(ing)?|public_?test|t10k){_OF}", re.IGNORECASE),
}
_WORDS_OF_SPLITS = {
    "train": "train|training|tr",
    "validation": "val|valid|validate|validation|dev|tuning|eval|evaluation|(?-i:V[AD])",
    "test": "test|testing|ts|te",
    "query": "query|queries|probes?",
    "gallery": "gallery",
    "pred": "pred|prediction",
}
"""Split → words for it in a longer name, which count only if sibling folders agree."""
SPLIT = "|".join(_WORDS_OF_SPLITS.values())
PART = (
    "(sub|data)?sets?|data|parts?|batch|chunk|shard|folds?|folders?|dirs?|files?|lists?|names?"
    "|stage|all|tar|zip"
)
PICTURE = "images?|imgs?|jpegimages|photos?|pictures?|pics?|frames?|jpe?gs?|pngs?|tiffs?"
KIND = (
    "inputs?|rgb|raw|masks?|labels?|annot(ated|ations?|s)?|gt|ground|(ground)?truth"
    "|seg(mentations?|mented)?|targets?|hr|lr|depth|visuali[sz]ations?|overlays?|preview"
)
"""Expressions for words that are not classes: SPLIT, PART, PICTURE and KIND (of picture)."""
_SET = "(set|data|images?|imgs?|crops?|list)?"
_SPLIT_WORDS = {
    split: re.compile(rf"({words}){_SET}", re.IGNORECASE)
    for split, words in _WORDS_OF_SPLITS.items()
}
UNTRAINED = frozenset(("test", "query", "gallery", "pred"))
"""Splits whose images may have no labels."""
_MAY_BE_SPLIT = re.compile(
    "train|tuning|val|dev|test|t10k|query|queries|probe|gallery|pred|(?-i:([tT][rse]|T[RSE]|V[AD])(?![a-z]))",
    re.IGNORECASE,
)
IMAGE_FOLDER = re.compile(
    r"((jpe?g|png|rgb|raw)[-_ ]?)?(images?|imgs?)([-_]\d)?|inputs?|rgb|leftimg8bit", re.IGNORECASE
)
_MASKS = re.compile(
    r"([a-z]+[-_ ]?)?(masks?|labels?|annot(ation)?s?|ground[-_ ]?truths?|gts?)"
    r"([-_ ]?images?([-_]\d)?)?"
    r"|segmentation(class|object|s)?(raw|aug|visualization)?|([a-z0-9]+_)?panoptic[-_a-z0-9]*"
    r"|gt(fine|coarse)",
    re.IGNORECASE,
)
"""Matches usual names of mask folders; `find_masks` decides whether a folder really has masks."""
_CITYSCAPES = re.compile(r"_gt(fine|coarse)_[a-z]+$", re.IGNORECASE)
_CITIES = re.compile(r"gt(fine|coarse)", re.IGNORECASE)
"""Matches mask folders of Cityscapes, which contain splits and cities instead of classes."""
OF_OBJECTS = re.compile(r"(^|/)(segmentation[-_ ]?)objects?/", re.IGNORECASE)
"""Matches the mask folder of Pascal VOC whose masks have object numbers."""
IMAGE_ENDING = re.compile(r"[-_](leftimg8bit|rgb|sat|images?|imgs?|photo)$", re.IGNORECASE)
"""Matches an end of an image name that the mask's name lacks: `1_sat.jpg` and `1_mask.png`."""
MASK_ENDING = re.compile(
    r"([-_. ]?(masks?|seg(mentation)?s?|annot(ation)?s?|gt|groundtruth|labels?"
    r"|(gt(fine|coarse)?_)?labelids|l))([-_. ]?(?P<number>\d+))?$",
    re.IGNORECASE,
)
"""Matches the end of a mask's name, after the name of its image."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_SPLIT_WORD, _KIND = re.compile(SPLIT, re.IGNORECASE), re.compile(KIND, re.IGNORECASE)
_PART = re.compile(f"{PART}|{PICTURE}", re.IGNORECASE)
_DATE = re.compile(r"(19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d")
_MOST_NAMES = 256
_MOST_PLACES, _ALIKE = 8, 0.8
_MATCHED = 0.5
"""Minimum share of files that are named like images, in a mask folder without sibling images."""


def given_split(folders: Iterable[str]) -> str | None:
    """Return the split of the first folder named like a split, or None."""
    for folder in filter(_MAY_BE_SPLIT.search, folders):
        name = without_archive_suffix(folder)
        for split, pattern in _SPLITS.items():
            if pattern.fullmatch(name):
                return split
        word = split_word(name)[0] if is_shard_name(folder) else None
        if word is not None:
            return given_split([word])
    return None


def split_places(column: str, cells: Iterable[str]) -> str:
    """Return a value of `--split` with the split of each cell, or SPLIT if the cell means none.

    For more than eight cells, it has only the first cell, and `*=train`.
    """
    places = list[str]()
    for cell in sorted({*cells} - {""}, key=natural_order):
        near = difflib.get_close_matches(cell.lower(), [*_SPLITS, "valid", "training"], 1, _ALIKE)
        split = given_split([cell]) or given_split(near) or "SPLIT"
        places.append(f"{cell}={split}")
    if len(places) > _MOST_PLACES:
        places = [places[0].replace("=SPLIT", "=validation"), "*=train"]
    return f"column:{column}:{','.join(places)}"


def folder_splits(keys: Iterable[str]) -> Coded[str | None]:
    """Return the split stated by the folders of each key, or None."""
    folders = Texts.of(keys).folders
    splits = split_folders(folders.firsts().values())
    if not splits:
        return folders.map(lambda _: None)
    return folders.map(lambda one: next(filter(None, map(splits.get, _paths_to(one))), None))


def split_folders(folders: Iterable[str]) -> dict[str, str]:
    """Return path of each folder that is a split → its split; `folders` are the folders of images.

    A folder is a split if its whole name means a split (`train`, `test_images`). If only a word of
    the name means a split, the siblings decide (`seg_train`, `seg_test`).
    """
    with_images = {*folders} - {""}
    words = {name for one in with_images for name in one.split("/")}
    words = {*filter(_MAY_BE_SPLIT.search, words)}
    named = {name: split for name in words if (split := _named_split(name)) is not None}
    if not named:
        return {}
    paths: set[str] = set()
    for one in with_images:
        parts = one.split("/")
        paths.update("/".join(parts[: i + 1]) for i, name in enumerate(parts) if name in named)
    parents: dict[str, dict[str, set[str]]] = {path.rpartition("/")[0]: {} for path in paths}
    for depth in {path.count("/") for path in paths}:
        for one in with_images:
            parts = one.split("/", depth + 1)
            if len(parts) > depth and (below := parents.get("/".join(parts[:depth]))) is not None:
                last = "" if len(parts) == depth + 1 else parts[-1].rpartition("/")[2]
                below.setdefault(parts[depth], set()).add(last)
    found: dict[str, str] = {}
    for parent in sorted(parents, key=lambda path: path.count("/") if path else -1):
        below = parents[parent]
        own = {name: named[name] for name in below if name in named}
        three = sorted(one.split for one in own.values()) == ["train", *2 * ["validation"]]
        evals = [name for name in own if three and name.casefold().startswith("eval")]
        for name in evals if len(evals) == 1 else ():
            own[name] = own[name]._replace(split="test")  # `evaluation` next to `validation`
        above = next(filter(None, map(found.get, [*_paths_to(parent)][::-1])), None)
        classes = _classes_named_as_splits(below, own, above)
        kept = {name for name in own if own[name].is_whole or _is_split(name, own, below)}
        if above and len(own) == len(below) and {split.split for split in own.values()} == {above}:
            kept = {*own}  # a wrapper of the split, or parts of it
        if len(own) == 1 < len(below):  # `images_evaluation` next to `images_background`
            own = {
                x: y._replace(split="test") if "evaluation" in words_of(x) else y
                for x, y in own.items()
            }
        start = f"{parent}/" if parent else ""
        found |= {f"{start}{name}": own[name].split for name in own if name in kept - classes}
    wrappers = _wrappers(found, with_images)
    return {path: one for path, one in found.items() if path not in wrappers}


def _wrappers(splits: Mapping[str, str], paths: Collection[str]) -> set[str]:
    """Return the splits below which all images are in folders of several splits: archives."""
    inner = defaultdict[str, set[str]](set)
    for path, split in splits.items():
        for above in filter(splits.__contains__, _paths_to(path.rpartition("/")[0])):
            inner[above].add(split)
    found = {above for above, several in inner.items() if len(several) > 1}
    for path in paths if found else ():
        found.difference_update([one for one in _paths_to(path) if one in splits][-1:])
    return found


def _classes_named_as_splits(
    below: Mapping[str, Collection[str]], own: Mapping[str, _NamedSplit], above: str | None
) -> set[str]:
    """Return names of folders that are classes, although the whole name means a split.

    Below a split, such a name is a class if other classes are next to it: `train` in `test/bus`,
    `test/train`. Elsewhere, `test` may be a split: only `train` or `valid` can be a class.
    """
    others = [name for name in below if name not in own]
    if not others or any(IMAGE_FOLDER.fullmatch(one) or _MASKS.fullmatch(one) for one in others):
        return set()
    if {*map(str.casefold, own)} == {"valid"}:
        return {*own}  # `valid` next to `empty`, without a split for training
    is_train = {one.split for one in own.values()} == {"train"}
    is_alone = len(own) == 1 < len(others) and all("" in lasts for lasts in below.values())
    return {*own} if above or (is_train and is_alone) else set()


def _is_split(
    name: str, own: Mapping[str, _NamedSplit], below: Mapping[str, Collection[str]]
) -> bool:
    """Return whether a folder with a split in its name is this split, judged by its siblings."""
    one, others = own[name], [other for other in below if other not in own]
    splits = {other.split for other in own.values()}
    if len(splits) > 1 and not others and (one.rest or not one.is_short):
        return True
    if any(one.rest == other.rest and one.split != other.split for other in own.values()):
        return bool(one.rest) or not one.is_short
    if len(others) == 1 and not one.is_short and below[name] == below[others[0]] != {""}:
        return True  # eval15/low and our485/low
    if one.split in UNTRAINED and not one.rest and not one.is_short:
        return len(splits) > 1
    lasts = {last for other in others for last in below[other] if last}
    if one.split == "train" or one.is_short or any(len(below[one]) < 2 for one in others):
        return False
    is_bare = len(below[name]) < 2
    return bool(others) and (is_bare or 2 * len(lasts.intersection(below[name])) >= len(lasts))


class _NamedSplit(NamedTuple):
    split: str
    rest: str
    """The words of the name that do not mean the split."""
    is_short: bool
    """Whether the word for the split has two letters and may mean something else."""
    is_whole: bool
    """Whether the whole name means a split, regardless of its siblings."""


def _named_split(name: str) -> _NamedSplit | None:
    """Return the split in a folder's name; None for no split, several splits or masks."""
    if (split := given_split([name])) is not None:
        return _NamedSplit(split, "", is_short=False, is_whole=True)
    name = without_archive_suffix(name)
    splits, rest = words_of_split(name)
    if len(splits) != 1 or _MASKS.fullmatch(rest):  # masks have the split of their images
        return None
    return _NamedSplit(splits.pop(), rest, is_short=len(name) == 2, is_whole=False)


def words_of(name: str) -> list[str]:
    """Return the words and numbers of a name in lower case: "gtFine_v2" → gt, fine, v, 2."""
    return [word.lower() for word in _WORDS.findall(name)]


def words_of_split(name: str) -> tuple[set[str], str]:
    """Return the splits that words of a name mean, and its other words, in lower case.

    Words for parts and pictures, such as "folder" or "images", are left out.
    """
    words = [(word, _split_of(word)) for word in _WORDS.findall(name)]
    rest = (word.casefold() for word, split in words if not (split or _PART.fullmatch(word)))
    return {split for _, split in words if split}, " ".join(rest)


def split_of_cell(cell: str) -> str | None:
    """Return the split that a whole cell of a table means, also query and gallery, or None."""
    word = _split_of(cell)
    return given_split([cell]) or (word if word in ("query", "gallery") else None)


def _split_of(word: str) -> str | None:
    return next((one for one, pattern in _SPLIT_WORDS.items() if pattern.fullmatch(word)), None)


def _paths_to(folder: str) -> Iterator[str]:
    """Yield the path of each folder in a path, starting with the top folder."""
    return itertools.accumulate(folder.split("/"), "{}/{}".format)


def are_parts(names: Collection[str]) -> bool:
    """Return whether names differ only in words of splits, kinds or parts, or are dates.

    `x_images_part_1` and `x_images_part_2` are parts of a set, `mask` and `no_mask` are classes.
    """
    names = [*itertools.islice(names, _MOST_NAMES)]
    several = [{*words_of(name)} for name in names]
    common = several[0].intersection(*several) if several else set[str]()
    splits = [frozenset(filter(_SPLIT_WORD.fullmatch, words)) for words in several]
    if all(splits) and len({*splits}) > 1:
        return True
    parts = [
        own or any(map(_PART.fullmatch, all_)) for own, all_ in zip(splits, several, strict=True)
    ]
    rests = [
        [w for w in words - common if not (_SPLIT_WORD.fullmatch(w) or _PART.fullmatch(w))]
        for words in several
    ]
    return all(map(_DATE.fullmatch, names)) or all(
        (is_part or (rest and not any(map(str.isdigit, rest))))
        and all(word.isdigit() or _KIND.fullmatch(word) for word in rest)
        for is_part, rest in zip(parts, rests, strict=True)
    )


def document_split(name: str) -> str | None:
    """Return the only split in the name of a document, or None: "train_labels.csv" → "train"."""
    word, rest = split_word(name.rpartition("/")[2].rpartition(".")[0])
    splits = {given_split([one]) for one in (word, split_word(rest)[0]) if one}
    return splits.pop() if len(splits) == 1 else None


def stated_split(folder: str) -> str | None:
    """Return the split that a folder of documents states: "train_labels" → "train".

    None if it states several: only the folders of all images tell which of them counts.
    """
    parts = folder.split("/")
    splits = {given_split([part]) for part in parts} - {None}
    stated = (document_split(f"{part}.") for part in parts)
    return next(filter(None, (*splits, *stated)), None) if len(splits) < 2 else None


_NUMBER = re.compile(
    r"((?:(?:^|(?<=[_/=(\[, ]))[-\u2212])?(?:(?<![0-9]\.)[0-9]+\.[0-9]+(?!\.?[0-9])|[0-9]+))"
)
"""Matches a number; signs only at the start of a word, no decimal points in 1.10.2."""
_NINES = str.maketrans("0123456789", "9876543210")


def natural_order(name: str) -> tuple[tuple[tuple[int, int, int, str, str], ...], str]:
    """Return a sort key: -1, 0.25, 0.5, 2, 10 in this order; case decides only between equals."""
    folded = (
        _by_value(part) if place % 2 else (1, 0, 0, part.casefold(), "")
        for place, part in enumerate(_NUMBER.split(name))
        if part
    )
    return tuple(folded), name


def _by_value(number: str) -> tuple[int, int, int, str, str]:
    """Return a sort key that orders numbers by value, also above the 4,300 digits of `int`."""
    whole, _, fraction = number.lstrip("-\u2212").partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if number[0].isdigit():
        return 0, 0, len(whole), whole, fraction
    return 0, -1, -len(whole), whole.translate(_NINES), f"{fraction.translate(_NINES)}~"


def stem(key: str) -> str:
    """Return a file name in form NFC without folders and extension; "" if it has no extension."""
    return composed(key.rpartition("/")[2].rpartition(".")[0])


class MaskFolders(NamedTuple):
    """Names of folders of masks, and names of folders that cannot be classes."""

    num_masks: dict[str, int]
    """Name of mask folders → number of files in these folders."""
    no_classes: frozenset[str]
    """Names that are not classes: of mask folders, of their image folders, and of cities."""


def find_masks(keys: Sequence[str]) -> MaskFolders:
    """Return the folders of masks and of their images, so that they do not become classes.

    A folder with a usual name has masks if it has a sibling such as `images`, or `train` for
    `trainannot`, or if at least half of its files are named like images of another folder.
    """
    counts = Texts.of(keys).folders.counts()
    paths = {path: tuple(path.split("/")) if path else () for path in counts}
    mask_names = {*filter(_MASKS.fullmatch, {name for path in paths.values() for name in path})}
    if not mask_names:
        return MaskFolders({}, frozenset())
    beside: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths.values():
        for depth, name in enumerate(path):
            beside[path[:depth]].add(name)
    far: dict[str, int] | None = None
    masks: Counter[str] = Counter()
    no_classes: set[str] = set()
    for folder, path in paths.items():
        for depth, name in enumerate(path):
            if name not in mask_names:
                continue
            others = _image_folders(name, beside[path[:depth]])
            if not others and far is None:
                far = _named_as_images(keys, paths, mask_names)
            is_far = not others and _MATCHED * counts[folder] <= (far or {}).get(folder, -1)
            if others or is_far:
                masks[name] += counts[folder]
                cities = path[depth + 1 :] if _CITIES.fullmatch(name) else ()
                no_classes |= {name, *others, *cities}
                break
    return MaskFolders(dict(masks), frozenset(no_classes))


def _named_as_images(
    keys: Sequence[str], paths: Mapping[str, Sequence[str]], mask_names: set[str]
) -> dict[str, int]:
    """Return mask folder → number of its files that are named like a file in an image folder."""
    of_images = {one for one, path in paths.items() if any(map(IMAGE_FOLDER.fullmatch, path))}
    of_masks = {one for one, path in paths.items() if not mask_names.isdisjoint(path)}
    stems: set[str] = set()
    names = dict[str, list[str]]((one, []) for one in of_masks - of_images)
    for key in keys:
        folder = key.rpartition("/")[0]
        if folder in names:
            names[folder].append(_CITYSCAPES.sub("", stem(key)))
        elif folder in of_images and folder not in of_masks:
            stems.update((name := stem(key), IMAGE_ENDING.sub("", name)))
    return {folder: sum(map(stems.__contains__, own)) for folder, own in names.items()}


def masks_by_folder(keys: Sequence[str]) -> dict[str, list[str]]:
    """Return name of a mask folder → keys of its probable masks."""
    found: dict[str, list[str]] = {name: [] for name in find_masks(keys).num_masks}
    for key in keys if found else ():
        name = next((part for part in key.split("/")[:-1] if part in found), None)
        if name is not None:
            found[name].append(key)
    return found


def class_files(masks: Iterable[str], keys: Iterable[str]) -> dict[str, str]:
    """Return mask in SegmentationObject → its file in SegmentationClass, if this file exists."""
    there = {key.lower(): key for key in keys}
    found: dict[str, str] = {}
    for mask in filter(OF_OBJECTS.search, masks):
        for name in ("class", "classes"):
            key = OF_OBJECTS.sub(rf"\1\2{name}/", mask).lower()
            found.update({mask: there[key]} if key in there else {})
    return found


def _image_folders(mask: str, siblings: Collection[str]) -> set[str]:
    return {
        name
        for name in siblings
        if name != mask
        and (
            IMAGE_FOLDER.fullmatch(name.removeprefix(f"{mask.rpartition('_')[0]}_"))
            or (given_split([name]) and mask.startswith(name))
        )
    }
