"""Annotations beside the images (masks, boxes), recognised by their names alone.

Without this, the folders `images` and `masks` would be two classes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from shardprep.catalog.names import given_split, stem
from shardprep.errors import some_of

IMAGE_FOLDER = re.compile(
    r"((jpe?g|png|rgb|raw)[-_ ]?)?(images?|imgs?)|inputs?|rgb|leftimg8bit", re.IGNORECASE
)
"""Names of folders that hold images and say nothing of their class."""
_MASKS = re.compile(
    r"([a-z]+[-_ ]?)?(masks?|labels?|annot(ation)?s?|ground[-_ ]?truths?|gts?)([-_ ]?images?)?"
    r"|segmentation(class|object|s)?(raw|aug|visualization)?|([a-z0-9]+_)?panoptic[-_a-z0-9]*"
    r"|gt(fine|coarse)",
    re.IGNORECASE,
)
"""Names of folders that hold masks, if a folder of images lies beside them."""
_CITYSCAPES = re.compile(r"_gt(fine|coarse)_[a-z]+$", re.IGNORECASE)
"""End of the names of all files that Cityscapes has of an image."""
_CITIES = re.compile(r"gt(fine|coarse)", re.IGNORECASE)
"""Names of its folders of masks, below which a folder is a split or a city, and no class."""
OF_OBJECTS = re.compile(r"(^|/)(segmentation[-_ ]?)objects?/", re.IGNORECASE)
"""The folder of Pascal VOC's masks of numbered objects, in a key."""
IMAGE_ENDING = re.compile(r"[-_](leftimg8bit|rgb|sat|images?|imgs?|photo)$", re.IGNORECASE)
"""End of the name of an image that its mask has not: `1_sat.jpg` with `1_mask.png`."""
MASK_ENDING = re.compile(
    r"([-_. ]?(masks?|seg(mentation)?s?|annot(ation)?s?|gt|groundtruth|labels?"
    r"|(gt(fine|coarse)_)?labelids|l))([-_. ]?(?P<number>\d+))?$",
    re.IGNORECASE,
)
"""End of the name of a mask, after that of its image."""
_COCO = re.compile(
    r"(^|/)(annotations/[^/]*|[^/]*coco[^/]*|(instances|panoptic)_[^/]*)\.json$", re.IGNORECASE
)
_BOXES = {".xml": ("voc", "Pascal VOC"), ".txt": ("yolo", "YOLO")}
"""Formats with a document for each image, and their names, by suffix."""
_MATCHED = 0.5
"""Share of the names of annotations that images must have, or the other way round."""


class MaskFolders(NamedTuple):
    """The folders of masks in a source, and those of their images."""

    num_masks: dict[str, int]
    """Images by the name of the folder that marks them as masks."""
    no_classes: frozenset[str]
    """Names of folders that are no classes: of masks, and of the images beside them."""


def find_masks(keys: Sequence[str]) -> MaskFolders:
    """Return the folders whose name and place say that they hold masks, not images of a class.

    That is a folder such as `masks` beside one such as `images`, or `trainannot` beside `train`;
    or one far from `images`, half of whose files or more are named as those are.
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
    """Return the keys of what looks like masks, by the name of the folder that marks them so."""
    found: dict[str, list[str]] = {name: [] for name in find_masks(keys).num_masks}
    for key in keys if found else ():
        name = next((part for part in key.split("/")[:-1] if part in found), None)
        if name is not None:
            found[name].append(key)
    return found


def class_files(masks: Iterable[str], keys: Iterable[str]) -> dict[str, str]:
    """Return the key of the file in SegmentationClass of each mask in SegmentationObject."""
    there = {key.lower(): key for key in keys}
    found: dict[str, str] = {}
    for mask in filter(OF_OBJECTS.search, masks):
        for name in ("class", "classes"):
            key = OF_OBJECTS.sub(rf"\1\2{name}/", mask).lower()
            found.update({mask: there[key]} if key in there else {})
    return found


def _image_folders(mask: str, siblings: Collection[str]) -> set[str]:
    """Return the folders beside one of masks that hold their images: `images`, `train`."""
    return {
        name
        for name in siblings
        if name != mask
        and (IMAGE_FOLDER.fullmatch(name) or (given_split([name]) and mask.startswith(name)))
    }


def annotation_findings(
    keys: Sequence[str], others: Sequence[str], holds: Callable[[str, list[str]], bool]
) -> list[str]:
    """Return what was recognised among all images and what is no image, a line each.

    `holds` looks into documents that are named as images: do they hold boxes of a format?
    """
    found = []
    if masks := find_masks(keys).num_masks:
        globs = " ".join(f"--exclude '{name}/*'" for name in masks)
        found.append(
            f"{sum(masks.values()):,} images in folders {', '.join(masks)} look like masks; "
            f"--masks PATTERN stores them, {globs} leaves them out"
        )
    for suffix, (option, form) in _BOXES.items():
        documents = {stem(key): key for key in others if key.lower().endswith(suffix)}
        images = set(map(stem, keys)) if documents else set()
        named = len(both := documents.keys() & images)
        is_enough = named and named >= _MATCHED * min(len(documents), len(images))
        if is_enough and holds(option, sorted(documents[one] for one in both)):
            line = f"{suffix} files for {named:,} images look like boxes of {form}"
            found.append(f"{line}; --boxes {option} stores them")
    coco = [key for key in others if _COCO.search(key)]
    if coco:
        look, its = ("looks", "its") if len(coco) == 1 else ("look", "their")
        line = f"{some_of(coco, 1)} {look} like annotations of COCO"
        found.append(f"{line}; --boxes coco stores {its} boxes")
    return found
