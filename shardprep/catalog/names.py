"""Find splits and masks by the names of files and folders, and sort names in natural order."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from shardprep.source.names import composed, is_shard_name, split_word, without_archive_suffix
from shardprep.source.string_column import Coded, Texts

_OF = r"([-_ ]?(set|data|images?|imgs?))?[-_]?v?\d*"
_SPLITS = {
    "train": re.compile(rf"train(ing)?{_OF}", re.IGNORECASE),
    "validation": re.compile(rf"(val(id(ation)?)?|dev){_OF}", re.IGNORECASE),
    "test": re.compile(rf"(test(ing)?|public_?test|t10k){_OF}", re.IGNORECASE),
}
_MAY_BE_SPLIT = re.compile("train|val|dev|test|t10k", re.IGNORECASE)
IMAGE_FOLDER = re.compile(
    r"((jpe?g|png|rgb|raw)[-_ ]?)?(images?|imgs?)|inputs?|rgb|leftimg8bit", re.IGNORECASE
)
_MASKS = re.compile(
    r"([a-z]+[-_ ]?)?(masks?|labels?|annot(ation)?s?|ground[-_ ]?truths?|gts?)([-_ ]?images?)?"
    r"|segmentation(class|object|s)?(raw|aug|visualization)?|([a-z0-9]+_)?panoptic[-_a-z0-9]*"
    r"|gt(fine|coarse)",
    re.IGNORECASE,
)
"""Usual names of mask folders; `find_masks` decides whether a folder with such a name has masks."""
_CITYSCAPES = re.compile(r"_gt(fine|coarse)_[a-z]+$", re.IGNORECASE)
_CITIES = re.compile(r"gt(fine|coarse)", re.IGNORECASE)
"""Folders of masks in Cityscapes; folders below them are splits or cities, not classes."""
OF_OBJECTS = re.compile(r"(^|/)(segmentation[-_ ]?)objects?/", re.IGNORECASE)
"""Folder of masks with object numbers, in Pascal VOC."""
IMAGE_ENDING = re.compile(r"[-_](leftimg8bit|rgb|sat|images?|imgs?|photo)$", re.IGNORECASE)
"""End of an image name that is missing in the mask name: `1_sat.jpg` and `1_mask.png`."""
MASK_ENDING = re.compile(
    r"([-_. ]?(masks?|seg(mentation)?s?|annot(ation)?s?|gt|groundtruth|labels?"
    r"|(gt(fine|coarse)_)?labelids|l))([-_. ]?(?P<number>\d+))?$",
    re.IGNORECASE,
)
"""End of the name of a mask, after the name of its image."""
_MATCHED = 0.5
"""Minimum share of files named like images, in a mask folder without a sibling image folder."""


def given_split(folders: Iterable[str]) -> str | None:
    """Return the split of the first folder that is named like a split, or None."""
    for folder in filter(_MAY_BE_SPLIT.search, folders):
        name = without_archive_suffix(folder)
        for split, pattern in _SPLITS.items():
            if pattern.fullmatch(name):
                return split
        word = split_word(name)[0] if is_shard_name(folder) else None
        if word is not None:
            return given_split([word])
    return None


def folder_splits(keys: Iterable[str]) -> Coded[str | None]:
    """Return the split of each key by the names of its folders; None if they name no split."""
    folders = Texts.of(keys).folders
    classes = class_folders(folders.firsts().values())

    def split(folder: str) -> str | None:
        if not classes:
            return given_split(folder.split("/"))
        pairs = zip(folder.split("/"), _paths_to(folder), strict=True)
        return given_split(name for name, path in pairs if path not in classes)

    return folders.map(split)


def class_folders(folders: Iterable[str]) -> frozenset[str]:
    """Return the paths of folders that are classes although their name is that of a split.

    They have folders of other classes beside them, and are in a folder of a split: `train` in
    `test/bus`, `test/train`. Without a split, only `train` among folders of images is a class:
    `test` may have unlabelled images.
    """
    with_images = {*folders}
    words = {name for one in with_images for name in one.split("/") if _MAY_BE_SPLIT.search(name)}
    words = {name for name in words if given_split([name])}
    named: set[str] = set()
    for one in with_images if words else ():
        parts = one.split("/")
        named.update("/".join(parts[: i + 1]) for i, name in enumerate(parts) if name in words)
    siblings: dict[str, set[str]] = {path.rpartition("/")[0]: set() for path in named}
    for depth in {path.count("/") for path in named}:
        for one in with_images:
            parts = one.split("/", depth + 1)
            if len(parts) > depth and "/".join(parts[:depth]) in siblings:
                siblings["/".join(parts[:depth])].add("/".join(parts[: depth + 1]))
    classes: set[str] = set()
    for parent, several in siblings.items():
        others = several - named
        names = [path.rpartition("/")[2] for path in others]
        if not names or any(
            IMAGE_FOLDER.fullmatch(name) or _MASKS.fullmatch(name) for name in names
        ):
            continue
        own = several & named
        is_train = {given_split([path.rpartition("/")[2]]) for path in own} == {"train"}
        is_alone = len(own) == 1 < len(others) and several <= with_images
        if given_split(parent.split("/")) or (is_train and is_alone):
            classes |= own
    return frozenset(classes)


def _paths_to(folder: str) -> Iterator[str]:
    """Yield the path of each folder in a path, the uppermost first."""
    return itertools.accumulate(folder.split("/"), "{}/{}".format)


def document_split(name: str) -> str | None:
    """Return the split in the name of a document, or None: "train_labels.csv" → "train".

    A name with two splits, such as "train_val.csv", names neither.
    """
    word, rest = split_word(name.rpartition("/")[2].rpartition(".")[0])
    splits = {given_split([one]) for one in (word, split_word(rest)[0]) if one}
    return splits.pop() if len(splits) == 1 else None


def stated_split(folder: str) -> str | None:
    """Return the split that a folder of documents states: "train_labels" → "train"."""
    parts = folder.split("/")
    stated = (document_split(f"{part}.") for part in parts)
    return given_split(parts) or next(filter(None, stated), None)


_NUMBER = re.compile(
    r"((?:(?:^|(?<=[_/=(\[,]))-)?(?:(?<![0-9]\.)[0-9]+\.[0-9]+(?!\.?[0-9])|[0-9]+))"
)
"""A number: a sign begins a word, and a dot of several, as in 1.10.2, is no decimal point."""
_NINES = str.maketrans("0123456789", "9876543210")


def natural_order(name: str) -> tuple[tuple[tuple[int, int, int, str, str], ...], str]:
    """Return a sort key that puts -1 before 0.25, 0.25 before 0.5, 2 before 10, and case last."""
    folded = (
        _by_value(part) if place % 2 else (1, 0, 0, part.casefold(), "")
        for place, part in enumerate(_NUMBER.split(name))
        if part
    )
    return tuple(folded), name


def _by_value(number: str) -> tuple[int, int, int, str, str]:
    """Return a sort key that orders numbers by value; `int` refuses very long ones."""
    whole, _, fraction = number.lstrip("-").partition(".")
    whole, fraction = whole.lstrip("0"), fraction.rstrip("0")
    if number[0] != "-":
        return 0, 0, len(whole), whole, fraction
    return 0, -1, -len(whole), whole.translate(_NINES), f"{fraction.translate(_NINES)}~"


def stem(key: str) -> str:
    """Return a file name in form NFC, without folders and extension; "" if it has no extension."""
    return composed(key.rpartition("/")[2].rpartition(".")[0])


class MaskFolders(NamedTuple):
    """The folders of masks in a source, and the folders of their images."""

    num_masks: dict[str, int]
    """Name of folders of masks → number of files in them."""
    no_classes: frozenset[str]
    """Names that are not classes: folders of masks, of their images, and of cities."""


def find_masks(keys: Sequence[str]) -> MaskFolders:
    """Return the folders of masks and of their images, so that they do not become classes.

    A folder with a usual name holds masks if it has a sibling such as `images`, or `train` next to
    `trainannot`, or if at least half of its files are named like images of another folder.
    """
    paths = {key.rpartition("/")[0] for key in keys}
    mask_names = {n for n in {name for p in paths for name in p.split("/")} if _MASKS.fullmatch(n)}
    if not mask_names:
        return MaskFolders({}, frozenset())
    folders: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for key in keys:
        folders[tuple(key.split("/")[:-1])].append(key)
    beside: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    stems: set[str] = set()
    for path, images in folders.items():
        for depth, name in enumerate(path):
            beside[path[:depth]].add(name)
        if mask_names.isdisjoint(path) and any(map(IMAGE_FOLDER.fullmatch, path)):
            names = [*map(stem, images)]
            stems.update(names, (IMAGE_ENDING.sub("", name) for name in names))
    masks: Counter[str] = Counter()
    no_classes: set[str] = set()
    for path, images in folders.items():
        for depth, name in enumerate(path):
            if name not in mask_names:
                continue
            others = _image_folders(name, beside[path[:depth]])
            is_far = not any(map(IMAGE_FOLDER.fullmatch, path)) and _MATCHED * len(images) <= sum(
                _CITYSCAPES.sub("", stem(key)) in stems for key in images
            )
            if others or is_far:
                masks[name] += len(images)
                cities = path[depth + 1 :] if _CITIES.fullmatch(name) else ()
                no_classes |= {name, *others, *cities}
                break
    return MaskFolders(dict(masks), frozenset(no_classes))


def masks_by_folder(keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of probable masks by the name of their mask folder."""
    found: dict[str, list[str]] = {name: [] for name in find_masks(keys).num_masks}
    for key in keys if found else ():
        name = next((part for part in key.split("/")[:-1] if part in found), None)
        if name is not None:
            found[name].append(key)
    return found


def class_files(masks: Iterable[str], keys: Iterable[str]) -> dict[str, str]:
    """Return for each mask in SegmentationObject its file in SegmentationClass, if both exist."""
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
