"""Mask files of images, found by a pattern for their names: `masks/{stem}_mask.png`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from posixpath import commonprefix
from typing import NamedTuple

from shardprep.catalog.names import class_files, masks_by_folder, stem
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.formats.panoptic import SegmentMasks, segment_masks
from shardprep.catalog.patterns import Pattern, matched
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.errors import SourceError, shown, some_of
from shardprep.recipe.object_rules import NAME_FIELDS, PATTERN_HINT, MaskPattern, PatternField
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.source.members import Member, Members
from shardprep.source.names import composed

_MOST_SHOWN = 160


@dataclass(frozen=True, slots=True)
class MaskFiles:
    """The mask files of a source."""

    of_image: dict[str, list[str]]
    without_image: list[str]
    class_of: dict[str, str] = field(default_factory=dict)
    """Key of a mask → name of its class, if the pattern has `{class}`."""
    noun: str = "mask"
    """What the files are, for reasons."""

    @property
    def keys(self) -> set[str]:
        return {key for keys in self.of_image.values() for key in keys}.union(self.without_image)


class MasksBeside(NamedTuple):
    """The images of a source without the masks, and the masks of each image."""

    images: Members
    files: MaskFiles | None = None
    members: Mapping[str, Member] = {}
    skipped: list[Skipped] = []  # noqa: RUF012 - never changed
    segments: Mapping[str, SegmentMasks] = {}
    classes: Mapping[str, Member] = {}
    """Key of a mask with object numbers → mask file with the classes of the same pixels."""

    def of(self, image: str) -> list[Member]:
        keys = self.files.of_image.get(image, ()) if self.files is not None else ()
        return [self.members[key] for key in keys]

    @property
    def class_of(self) -> Mapping[str, str]:
        return {} if self.files is None else self.files.class_of

    def unused(self, images: Collection[str], masks: Collection[str]) -> list[Skipped]:
        """Return as skipped the masks of images not in `images`, and segments not in `masks`."""
        segments = {m.key: m for several in self.segments.values() for m in several.members}
        idle = [skipped(m, "a mask that is not stored") for m in segments.values()]
        idle = [one for one in idle if one.key not in masks]
        of_image = {} if self.files is None else self.files.of_image
        lost = [key for image, keys in of_image.items() if image not in images for key in keys]
        left = [self.members[key] for key in dict.fromkeys(lost) if key not in masks]
        noun = "" if self.files is None else self.files.noun
        return idle + [skipped(member, f"a {noun} of an image left out") for member in left]


def _without(files: MaskFiles, out: Collection[str]) -> MaskFiles:
    of_image = {image: [k for k in keys if k not in out] for image, keys in files.of_image.items()}
    rest = [key for key in files.without_image if key not in out]
    of_image = {image: keys for image, keys in of_image.items() if keys}
    return replace(files, of_image=of_image, without_image=rest)


def masks_beside(recipe: Recipe, members: Members, documents: Documents) -> MasksBeside:
    """Return the images among the members, and the masks or target images that the recipe names.

    Without a pattern, files in folders that look like masks are images, or are left out if the
    recipe stores boxes or masks. `--exclude` applies to masks, too.
    """
    rule, target = recipe.rules.masks, recipe.rules.target_image
    segments = segment_masks(recipe, members, documents)
    pattern = target or (rule.pattern if rule.kind == "pattern" else None)
    if pattern is None and not recipe.is_annotated and not segments:
        return MasksBeside(members)
    colours = {member.key for masks in segments.values() for member in masks.members}
    by_key = {member.key: member for member in members if member.key not in colours}
    masks = masks_by_folder(list(by_key)) if recipe.is_annotated else {}
    others = {key for keys in masks.values() for key in keys}
    if pattern is None:
        idle = [skipped(by_key[key], "looks like a mask") for key in sorted(others)]
        images = [member for key, member in by_key.items() if key not in others]
        return MasksBeside(Members.of(images), skipped=idle, segments=segments)
    matches = matched(list(by_key), recipe.exclude, "exclude")
    excluded = {key for key, is_out in zip(by_key, matches, strict=True) if is_out}
    try:
        files = pair_masks(list(by_key), pattern, others)
    except AmbiguousIdError:
        files = pair_masks(list(by_key), pattern, others | excluded)
    used = files.keys
    classes = class_files(used, by_key) if recipe.instances else {}
    others.update(classes.values())
    out = used.union(classes.values()) & excluded
    files = _without(files, out)
    idle = [skipped(by_key[key], "matched by --exclude") for key in sorted(out)]
    reason = f"a {files.noun} without its image"
    idle += [skipped(by_key[key], reason) for key in files.without_image]
    idle += [skipped(by_key[key], "looks like a mask") for key in sorted(others - used - out)]
    images = [m for key, m in by_key.items() if key not in used and key not in others]
    by_mask = {key: by_key[key] for key in used}
    of_classes = {key: by_key[file] for key, file in classes.items() if file not in out}
    return MasksBeside(Members.of(images), files, by_mask, idle, segments, of_classes)


def skipped(member: Member, reason: str, detail: str = "") -> Skipped:
    """Return a `Skipped` for a member that is left out."""
    return Skipped(member.key, reason, member.extent.num_bytes, detail)


def pair_masks(
    keys: Sequence[str], pattern: MaskPattern, no_images: Collection[str] = ()
) -> MaskFiles:
    """Return the masks of each image; SourceError if no key is a mask, or no mask has an image.

    Every key whose end fits the pattern, regardless of case, is a mask and not an image. `{stem}`
    is the image name without its extension, `{name}` with it, `{id}` either, or the name of a
    folder that holds only this image. `{folder}` is the name of the image's folder, `{dir}` its
    path, `{class}` a class name. `*` fits anything within a name, `?` one letter, `**` also
    folders. `{stem[:-4]}` is the stem without its last four letters,
    `{stem:(.+)_rgb}` the group of a regular expression in the stem. If several images have the
    name, `Pairing` finds the nearest. `no_images` are keys of other masks. Several images may have
    one target image, and an image has one.
    """
    masks = matching(keys, pattern)
    if not masks:
        hint = f"a key looks like {shown(keys[0], _MOST_SHOWN)}"
        raise SourceError(pattern.option, f"no file is called {pattern.text}", hint)
    images = [key for key in keys if key not in masks and key not in no_images]
    if not images:
        raise fits_all(pattern)
    search = _Search(images, pattern)
    of_image: defaultdict[str, list[str]] = defaultdict(list)
    without: list[str] = []
    for key, values in masks.items():
        found = search.images_of(key, values)
        for at in found:
            of_image[images[at]].append(key)
        if not found:
            without.append(key)
    if not of_image:
        mask, image = shown(without[0], _MOST_SHOWN), shown(images[0], _MOST_SHOWN)
        what = f"no image belongs to {mask} or any other of {len(without):,} files {pattern.text}"
        raise SourceError(pattern.option, what, f"an image looks like {image}")
    for image, several in of_image.items() if pattern.is_target else ():
        of_image[image] = nearest = _nearest(several, image)
        without += (key for key in several if key not in nearest)
        if len(nearest) > 1:
            what = f"{image} has several target images: {some_of(nearest)}"
            raise SourceError(pattern.option, what, "give a pattern that fits one of them")
    classes = {key: values["class"] for key, values in masks.items() if "class" in values}
    noun = "target image" if pattern.is_target else "mask"
    return MaskFiles(dict(of_image), without, classes, noun)


def fits_all(pattern: MaskPattern) -> SourceError:
    """Return the error for a pattern that leaves no image."""
    what = f"{pattern.text} fits every image of the source"
    return SourceError(pattern.option, what, PATTERN_HINT)


def matching(keys: Sequence[str], pattern: MaskPattern) -> dict[str, dict[str, str]]:
    """Return the keys whose end fits the pattern, each with the values of its fields."""
    plain = [composed(key) for key in keys]
    found: dict[str, dict[str, str]] = {}
    for name in pattern.fields:
        searched = [composed(key) for key in found] if found else plain
        groups = _expression(pattern.expression, pattern, name, is_whole=True).search(searched)
        if not found:
            found = {k: {} for k, group in zip(keys, groups, strict=True) if group is not None}
            groups = [group for group in groups if group is not None]
        for values, group in zip(found.values(), groups, strict=True):
            values[name] = group or ""
    return found


class _Search:
    def __init__(self, images: Sequence[str], pattern: MaskPattern) -> None:
        """Index images by the fields of the pattern; images that lack a field are never found."""
        self._images, fields = images, pattern.fields
        self._are_shared = pattern.is_target
        named = sorted(
            (group for group, field in fields.items() if field.name in NAME_FIELDS),
            key=lambda group: NAME_FIELDS.index(fields[group].name),
        )
        has_parts = any(fields[group].is_part for group in named)
        self._named = (
            [group for group in named if fields[group].text != "id"] if has_parts else named[:1]
        )
        self._below: dict[str, list[int]] | None = None
        self._numbers: Sequence[int] = range(len(images))
        self._parts: list[str] = []
        keys = images
        if has_parts:
            parts = [_parts(images, fields[group], pattern) for group in self._named]
            rows = [(i, row) for i, row in enumerate(zip(*parts, strict=True)) if None not in row]
            self._numbers = [i for i, _ in rows]
            self._parts = ["|".join(map(str, row)) for _, row in rows]
            folders = (images[i].rpartition("/") for i in self._numbers)
            pairs = zip(folders, self._parts, strict=True)
            keys = [f"{folder}{slash}{part}.image" for (folder, slash, _), part in pairs]
        self._pairing = Pairing(KeyIndex(keys))

    def images_of(self, mask: str, values: Mapping[str, str]) -> Sequence[int]:
        """Return positions: of the image of a mask (SourceError if several), or all of a target."""
        try:
            found = self._image_of(mask, values)
        except AmbiguousIdError as error:
            if not (self._are_shared and error.found):
                raise
            by_key = {self._images[self._numbers[i]]: self._numbers[i] for i in error.found}
            return [by_key[key] for key in _nearest([*by_key], mask)]
        return () if found is None else (found,)

    def _image_of(self, mask: str, values: Mapping[str, str]) -> int | None:
        name = "|".join(values[group] for group in self._named)
        folder = values.get("dir")
        if not name:
            return self._only(folder or "", mask, is_deep=False)
        path = f"{folder}/{name}" if folder else name
        try:
            found = self._pairing.find(path, mask)
        except AmbiguousIdError:
            if self._are_shared:
                raise
            same = [i for i, part in zip(self._numbers, self._parts, strict=False) if part == name]
            if len(same) < 2:
                raise
            raise self._several(mask, "its name fits", same, "say more of the name") from None
        folders = composed(mask).split("/")[:-1]
        if found is None and folder is None and "id" in self._named and name in folders:
            depth = len(folders) - folders[::-1].index(name)
            return self._only("/".join(folders[:depth]), mask, is_deep=True)
        return None if found is None else self._numbers[found]

    def _several(self, mask: str, of: str, found: Sequence[int], hint: str) -> SourceError:
        one, two = (shown(self._images[i], _MOST_SHOWN) for i in found[:2])
        what = f"{of} several images: {one} and {two}"
        return SourceError(shown(mask, _MOST_SHOWN), what, hint)

    def _only(self, folder: str, mask: str, *, is_deep: bool) -> int | None:
        """Return the only image in a folder (or below it, if `is_deep`); SourceError if several."""
        if self._below is None:
            below: defaultdict[str, list[int]] = defaultdict(list)
            for i, key in enumerate(self._images):
                parts = composed(key).split("/")[:-1]
                below["/" + "/".join(parts)].append(i)
                for depth in range(len(parts) + 1):
                    below["/".join(parts[:depth])].append(i)
            self._below = dict(below)
        found = self._below.get(folder if is_deep else f"/{folder}", [])
        if len(found) > 1:
            raise self._several(mask, "its folder holds", found, "name them by {stem} or {name}")
        return found[0] if found else None


def _nearest(keys: Sequence[str], to: str) -> list[str]:
    """Return the keys that share the most leading folders with another key."""
    shared = [len(commonprefix([key.split("/"), to.split("/")])) for key in keys]
    return [key for key, number in zip(keys, shared, strict=True) if number == max(shared)]


def _parts(images: Sequence[str], field: PatternField, pattern: MaskPattern) -> list[str | None]:
    place = {"name": -1, "folder": -2}.get(field.name)
    names = [f"/{composed(key)}".split("/")[place] if place else stem(key) for key in images]
    if field.letters is not None:
        return [name[field.letters] for name in names]
    if not field.expression:
        return list(names)
    group = min(1, re.compile(field.expression).groups)
    return _expression(f"(?is){field.expression}", pattern, group).search(names)


def _expression(
    text: str, pattern: MaskPattern, group: str | int, *, is_whole: bool = False
) -> Pattern:
    return Pattern(text, pattern.option, pattern.text, group, is_whole)
