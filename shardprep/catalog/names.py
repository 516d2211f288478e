"""Facts from names of files and folders: splits, folders of masks, natural order."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from shardprep.source.names import composed, without_archive_suffix
from shardprep.source.string_column import Coded, Texts

_OF = r"([-_ ]?(set|data|images?|imgs?))?[-_]?v?\d*"
_SPLITS = {
    "train": re.compile(rf"train(ing)?{_OF}", re.IGNORECASE),
    "validation": re.compile(rf"(val(id(ation)?)?|dev){_OF}", re.IGNORECASE),
    "test": re.compile(rf"(test(ing)?|public_?test){_OF}", re.IGNORECASE),
}
_TABLE_NAME = re.compile(
    r"(^|[_\-. ])(train|val|valid|validation|test)([_\-. ]|\d|$)", re.IGNORECASE
)
IMAGE_FOLDER = re.compile(
    r"((jpe?g|png|rgb|raw)[-_ ]?)?(images?|imgs?)|inputs?|rgb|leftimg8bit", re.IGNORECASE
)
_MASKS = re.compile(
    r"([a-z]+[-_ ]?)?(masks?|labels?|annot(ation)?s?|ground[-_ ]?truths?|gts?)([-_ ]?images?)?"
    r"|segmentation(class|object|s)?(raw|aug|visualization)?|([a-z0-9]+_)?panoptic[-_a-z0-9]*"
    r"|gt(fine|coarse)",
    re.IGNORECASE,
)
"""Names of folders that hold masks, if they have a sibling folder of images."""
_CITYSCAPES = re.compile(r"_gt(fine|coarse)_[a-z]+$", re.IGNORECASE)
_CITIES = re.compile(r"gt(fine|coarse)", re.IGNORECASE)
"""Folders of masks in Cityscapes; folders below them are splits or cities, not classes."""
OF_OBJECTS = re.compile(r"(^|/)(segmentation[-_ ]?)objects?/", re.IGNORECASE)
"""Folder of masks of numbered objects in Pascal VOC."""
IMAGE_ENDING = re.compile(r"[-_](leftimg8bit|rgb|sat|images?|imgs?|photo)$", re.IGNORECASE)
"""End of the name of an image that its mask lacks: `1_sat.jpg` with `1_mask.png`."""
MASK_ENDING = re.compile(
    r"([-_. ]?(masks?|seg(mentation)?s?|annot(ation)?s?|gt|groundtruth|labels?"
    r"|(gt(fine|coarse)_)?labelids|l))([-_. ]?(?P<number>\d+))?$",
    re.IGNORECASE,
)
"""End of the name of a mask, after the name of its image."""
_MATCHED = 0.5
"""Minimum share of the files in a folder of masks that have the name of an image."""


def given_split(folders: Iterable[str]) -> str | None:
    """Return the first split that a folder name means, from the root down, or None."""
    for folder in folders:
        name = without_archive_suffix(folder)
        for split, pattern in _SPLITS.items():
            if pattern.fullmatch(name):
                return split
    return None


def folder_splits(keys: Iterable[str]) -> Coded[str | None]:
    """Return the split of each key by the names of its folders, or None."""
    return Texts.of(keys).folders.map(lambda folder: given_split(folder.split("/")))


def document_split(name: str) -> str | None:
    """Return the split in the name of a document: "train_labels.csv" → train."""
    match = _TABLE_NAME.search(name.rpartition("/")[2].rpartition(".")[0])
    return given_split([match[2]]) if match else None


def natural_order(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key that puts 2 before 10 and compares case last."""
    parts = re.split("([0-9]+)", name)
    folded = [
        (0, *_by_value(part)) if part[0] in "0123456789" else (1, 0, part.casefold())
        for part in parts
        if part
    ]
    return tuple(folded), name


def _by_value(digits: str) -> tuple[int, str]:
    """Return a sort key equivalent to the number, with any number of digits."""
    stripped = digits.lstrip("0")
    return len(stripped), stripped


def stem(key: str) -> str:
    """Return the name of a file without folders and extension, in form NFC."""
    return composed(key.rpartition("/")[2].rpartition(".")[0])


class MaskFolders(NamedTuple):
    """The folders of masks in a source, and the folders of their images."""

    num_masks: dict[str, int]
    """Name of a folder of masks → number of images in it."""
    no_classes: frozenset[str]
    """Names of folders of masks and of folders of their images."""


def find_masks(keys: Sequence[str]) -> MaskFolders:
    """Return the folders of masks, so that `images` and `masks` are not two classes.

    They have siblings such as `images`, or `train` for `trainannot`, or at least half of their
    files have names of images.
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
    """Return the keys of probable masks by the name of their folder."""
    found: dict[str, list[str]] = {name: [] for name in find_masks(keys).num_masks}
    for key in keys if found else ():
        name = next((part for part in key.split("/")[:-1] if part in found), None)
        if name is not None:
            found[name].append(key)
    return found


def class_files(masks: Iterable[str], keys: Iterable[str]) -> dict[str, str]:
    """Return, for each mask in SegmentationObject, the key of its file in SegmentationClass."""
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
        and (IMAGE_FOLDER.fullmatch(name) or (given_split([name]) and mask.startswith(name)))
    }
