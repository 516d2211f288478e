"""Find masks in volumes and array files, splits in HDF5 files, and arrays beside a picture.

These readings always need the user's choice, because the source must be listed again.
"""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

from shardprep.catalog.decision.mask_sets import is_named_as_masks
from shardprep.catalog.decision.pairs import common_start
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import ENOUGH
from shardprep.catalog.names import document_split, folder_splits, given_split
from shardprep.errors import counted

_HDF5 = (".h5", ".hdf5")
_OF_IMAGES = (".parquet", ".arrow", ".tfrecord", *_HDF5)
_MOST_READINGS, _FEW_PICTURES, _MANY = 3, 2, 8


def array_readings(view: View) -> list[Reading]:
    """Return the readings of masks in arrays, of splits in names of files, or beside a picture."""
    options = "labels", "masks", "boxes", "points", "target_image", "stack", "images", "rows"
    if not view.is_open(*options):
        return []
    if readings := _beside_pictures(view):
        return readings
    arrays = [one.key for one in view.listing.others if one.key.lower().endswith((".npy", *_HDF5))]
    are_volumes = bool(view.candidates.are_stacks.any())
    if not arrays and not are_volumes:
        return []
    keys = list(view.candidates.keys)
    masks = _in_mask_folders([one for one in arrays if one.endswith(".npy")])
    if not masks and are_volumes:
        masks = _in_mask_folders(keys)
    return [*_of_masks(masks, keys)] or [*_of_split(arrays, keys)]


def _beside_pictures(view: View) -> list[Reading]:
    """Return readings of large files of images beside one or two pictures, as of a readme; or [].

    By default, such files are opened only if the source has no picture.
    """
    pictures = view.listing.images
    if not 0 < len(pictures) <= _FEW_PICTURES or pictures.are_stacks.any():
        return []
    least = _MANY * sum(one.extent.num_bytes for one in pictures)
    others = [one for one in view.listing.others if one.key.lower().endswith(_OF_IMAGES)]
    large = [one.key for one in others if one.extent.num_bytes > least]
    if not large:
        return []
    globs = tuple(sorted({f"*{PurePosixPath(one).suffix}" for one in large}))
    why = f"{counted(len(large), 'file')} such as {large[0]} may have images"
    alone = Reading({"exclude": globs}, f"{counted(len(pictures), 'picture')} without these files")
    return [Reading({"images": globs}, why), alone]


def _in_mask_folders(keys: Collection[str]) -> dict[str, list[PurePosixPath]]:
    """Return folder name that means masks → its files."""
    found: defaultdict[str, list[PurePosixPath]] = defaultdict(list)
    for path in map(PurePosixPath, keys):
        if is_named_as_masks(path.parent.name):
            found[path.parent.name].append(path)
    return found


def _of_masks(masks: Mapping[str, list[PurePosixPath]], keys: Collection[str]) -> Iterator[Reading]:
    folders_of: defaultdict[str, set[str]] = defaultdict(set)
    for path in map(PurePosixPath, keys if masks else ()):
        if path.parent.name not in masks:
            folders_of[path.stem].add(path.parent.name)
    files = [path for several in masks.values() for path in several]
    paired = [folders_of[path.stem] for path in files if path.stem in folders_of]
    end = common_start([name[::-1] for name in masks])[::-1]
    if not is_named_as_masks(end) or len(paired) < ENOUGH * len(files):
        return
    place = end if len(masks) == 1 else f"*{end}"
    options = {"masks": f"{place}/{{stem}}{files[0].suffix}"}
    number = f"{len(paired):,} of {counted(len(files), 'file')} in {', '.join(masks)}"
    why = f"{number} are named like images"
    several = [one for one in paired if len({given_split([name]) for name in one}) < len(one)]
    rivals = sorted({name for folders in several for name in folders})
    for name in rivals[:_MOST_READINGS]:
        yield Reading({"exclude": (f"{glob.escape(name)}/*",), **options}, f"{why}, not {name}")
    if rivals:
        yield Reading({"labels": "folder"}, "folders as classes, without masks")
    else:
        yield Reading(options, why)
        globs = tuple(f"{glob.escape(name)}/*" for name in masks)
        yield Reading({"exclude": globs}, "the masks are left out")


def _of_split(arrays: Collection[str], keys: Collection[str]) -> Iterator[Reading]:
    files = {key: document_split(key) for key in arrays if key.lower().endswith(_HDF5)}
    splits = {*folder_splits(keys).counts()} if any(files.values()) else set()
    for key, split in files.items():
        if split not in (None, "train", *splits):
            why = f"{key} is named by the split {split}, which no image has"
            yield Reading({"images": (key,)}, why)
            yield Reading({"exclude": (glob.escape(key),)}, f"without {key}")
            return
