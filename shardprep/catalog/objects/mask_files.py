"""Mask files of images, which a pattern finds by their names: `masks/{stem}_mask.png`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

from shardprep.catalog.names import class_files, masks_by_folder, stem
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.formats.panoptic import SegmentMasks, segment_masks
from shardprep.catalog.patterns import Pattern, matched
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.errors import OptionError, OptionName, SourceError, counted, shown, some_of
from shardprep.recipe.object_rules import (
    NAME_FIELDS,
    PATTERN_HINTS,
    MaskPattern,
    PatternField,
    parse_mask_pattern,
)
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.source.members import Member, Members
from shardprep.source.names import composed

_MOST_SHOWN = 160
_SIGNS = "-_. "
_BEGINS = re.compile(rf"\{{(stem|name|id)\}}(?P<sign>[{_SIGNS}]?)\*")
"""Matches the image name, perhaps a separator, and a wildcard that may match separators."""


@dataclass(frozen=True, slots=True)
class MaskFiles:
    """The mask files of a source, or its target images, by image."""

    of_image: dict[str, list[str]]
    without_image: list[str]
    class_of: dict[str, str] = field(default_factory=dict)
    """Key of a mask → name of its class, if the pattern has the field `{class}`."""
    noun: str = "mask"
    """Word for a file in reasons: mask, target image."""

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
        """Return as skipped: panoptic masks and masks of images not in `images`, except `masks`."""
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
    class_of = {key: name for key, name in files.class_of.items() if key not in out}
    return replace(files, of_image=of_image, without_image=rest, class_of=class_of)


def masks_beside(
    recipe: Recipe, members: Members, documents: Documents, paired: MaskFiles | None = None
) -> MasksBeside:
    """Return the images among the members, and the masks or target images that the recipe names.

    Without a pattern, files in folders named like masks are images, or are left out if the recipe
    stores boxes or masks. `--exclude` applies to masks, too. `paired` has the files of the pattern
    if they are already known, for example from a table of items. For errors see `pair_masks`.
    """
    rule, target = recipe.rules.masks, recipe.rules.target_image
    segments = segment_masks(recipe, members, documents)
    pattern = target or (rule.pattern if rule.kind == "pattern" else None)
    if pattern is None and not recipe.is_annotated and not segments:
        return MasksBeside(members)
    colours = {member.key for masks in segments.values() for member in masks.members}
    by_key = {member.key: member for member in members if member.key not in colours}
    column = "" if pattern is None else pattern.column
    if pattern is not None and column and paired is None:
        what = f"names the column {column!r}, but there are no items"
        raise SourceError(pattern.option, what, f"add {OptionName('items', 'FILE')}")
    masks = masks_by_folder(list(by_key)) if recipe.is_annotated and not column else {}
    others = {key for keys in masks.values() for key in keys}
    if pattern is None:
        idle = [skipped(by_key[key], "looks like a mask") for key in sorted(others)]
        images = [member for key, member in by_key.items() if key not in others]
        return MasksBeside(Members.of(images), skipped=idle, segments=segments)
    matches = matched(list(by_key), recipe.exclude, "exclude")
    excluded = {key for key, is_out in zip(by_key, matches, strict=True) if is_out}
    is_known = bool(column) or (paired is not None and not segments and others <= paired.keys)
    try:
        files = paired if paired and is_known else pair_masks(list(by_key), pattern, others)
    except SeveralImagesError:
        no_images = others | excluded
        try:
            files = pair_masks(list(by_key), pattern, no_images)
        except SeveralImagesError as error:
            raise _advised(error, list(by_key), pattern, no_images) from None
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
    """Return a `Skipped` for a member, with the reason to leave it out."""
    return Skipped(member.key, reason, member.extent.num_bytes, detail)


def pair_masks(
    keys: Sequence[str], pattern: MaskPattern, no_images: Collection[str] = ()
) -> MaskFiles:
    """Return the masks of each image; SourceError if no key is a mask, or no mask has an image.

    Every key whose end fits the pattern, regardless of case, is a mask and not an image. `{stem}`
    is the image name without its extension, `{name}` with it, `{id}` either, or the name of a
    folder that holds only this image. `{folder}` is the name of the image's folder, `{dir}` its
    path, `{class}` a class name. `*` fits anything within a name, `?` one letter, `**` also
    folders. `{stem[:-4]}` is the stem without its last four letters, `{stem:(.+)_rgb}` the group of
    a regular expression in the stem. If several images fit a mask, the image that `Pairing` finds
    is used, otherwise the image with the most leading folders in common. SeveralImagesError if
    several images have equally many. `no_images` are keys of files that are not images. An image
    has at most one target image; several images may share it.
    """
    masks = matching(keys, pattern)
    if not masks:
        noun = "target images" if pattern.is_target else "masks"
        hint = f"correct it to fit the {noun}; a path looks like {shown(keys[0], _MOST_SHOWN)}"
        raise SourceError(pattern.option, f"no file fits the pattern {pattern.text}", hint)
    images = [key for key in keys if key not in masks and key not in no_images]
    if not images:
        raise fits_all(pattern)
    search = _Search(images, pattern)
    pairs = [(key, images[i]) for key, values in masks.items() for i in search.of(key, values)]
    of_image = _nearest_masks(pairs)
    used = {key for several in of_image.values() for key in several}
    without = [key for key in masks if key not in used]
    if not of_image:
        mask, image = shown(without[0], _MOST_SHOWN), shown(images[0], _MOST_SHOWN)
        what = f"no image belongs to {mask} ({counted(len(without), 'file')} of {pattern.text})"
        hint = f"change {{stem}} or {{name}} in the pattern so that it gives the name of {image}"
        raise SourceError(pattern.option, what, hint)
    for image, several in of_image.items() if pattern.is_target else ():
        if len(several) > 1:
            what = f"{image} has several target images: {some_of(several)}"
            raise SourceError(pattern.option, what, "give a pattern that fits only one of them")
    classes = {key: values["class"] for key, values in masks.items() if "class" in values}
    return MaskFiles(of_image, without, classes, "target image" if pattern.is_target else "mask")


class SeveralImagesError(AmbiguousIdError):
    """A mask fits several images that are equally near to it."""

    images: Sequence[str] = ()


def _advised(
    error: SeveralImagesError, keys: Sequence[str], pattern: MaskPattern, no_images: Collection[str]
) -> SourceError:
    """Return `error`, with another pattern as a hint if `{folder}` distinguishes the images."""
    masks = matching(keys, pattern).keys()
    folders = {f"/{image}".split("/")[-2] for image in error.images} - {""}
    words = "|".join(map(re.escape, sorted(folders)))
    places = re.finditer(rf"\*+|(?<![^\W_])(?:{words})(?![^\W_])|^", pattern.text)
    for place in places if folders else ():
        slash = "" if place[0] else "/"
        text = f"{pattern.text[: place.start()]}{{folder}}{slash}{pattern.text[place.end() :]}"
        try:
            files = pair_masks(keys, parse_mask_pattern(text, pattern.option), no_images)
        except (SourceError, OptionError):
            continue
        if masks <= files.keys and masks.isdisjoint(files.without_image):
            hint = f"{replace(pattern.option, value=text)} tells them apart by their folders"
            return SourceError(error.where, error.what, hint)
    return error


def _nearest_masks(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return image → its masks, from pairs (mask, image), without distant pairs.

    A pair is distant if another pair, of the same image or of a mask in the same folder, has more
    leading folders in common. A mask that is only in distant pairs belongs to a missing image.
    """
    near = [_num_shared(mask, image) for mask, image in pairs]
    most: defaultdict[str, int] = defaultdict(int)
    for (mask, image), number in zip(pairs, near, strict=True):
        for one in (f"{mask.rpartition('/')[0]}/", image):
            most[one] = max(most[one], number)
    of_image: defaultdict[str, list[str]] = defaultdict(list)
    for (mask, image), number in zip(pairs, near, strict=True):
        if number == most[image] == most[f"{mask.rpartition('/')[0]}/"]:
            of_image[image].append(mask)
    return dict(of_image)


def fits_all(pattern: MaskPattern) -> SourceError:
    """Return the error for a pattern that matches all files, so that no image would be left."""
    what = f"{pattern.text} fits every image of the source"
    return SourceError(pattern.option, what, PATTERN_HINTS[pattern.option.name])


def matching(keys: Sequence[str], pattern: MaskPattern) -> dict[str, dict[str, str]]:
    """Return key → values of the fields, for each key whose end matches the pattern."""
    plain = [composed(key) for key in keys]
    found: dict[str, dict[str, str]] = {}
    for name in pattern.fields:
        searched = [composed(key) for key in found] if found else plain
        whole = Pattern(pattern.expression, pattern.option, pattern.text, name, is_whole=True)
        groups = whole.search(searched)
        if not found:
            found = {k: {} for k, group in zip(keys, groups, strict=True) if group is not None}
            groups = [group for group in groups if group is not None]
        for values, group in zip(found.values(), groups, strict=True):
            values[name] = group or ""
    return found


class _Search:
    def __init__(self, images: Sequence[str], pattern: MaskPattern) -> None:
        """Index the images by the fields of the pattern, without images that lack a field."""
        self._images, fields = images, pattern.fields
        self._are_shared = pattern.is_target
        named = sorted(
            (group for group, field in fields.items() if field.name in NAME_FIELDS),
            key=lambda group: NAME_FIELDS.index(fields[group].name),
        )
        texts = {fields[group].text for group in named}
        has_parts = any(fields[group].is_part for group in named)
        has_parts = has_parts or ("folder" in texts and "id" not in texts)
        self._named = (
            [group for group in named if fields[group].text != "id"] if has_parts else named[:1]
        )
        begins = None if has_parts else _BEGINS.search(pattern.text)
        signs = re.escape(begins["sign"] or _SIGNS) if begins else ""
        self._last = re.compile(rf"[{signs}][^/{signs}]*$") if begins else None
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

    def of(self, mask: str, values: Mapping[str, str]) -> Sequence[int]:
        """Return positions of the images of a file; SeveralImagesError if a mask has several."""
        name = "|".join(values[group] for group in self._named)
        folder = values.get("dir")
        if not name:
            return self._only(folder or "", mask, is_deep=False)
        try:
            place = self._place(f"{folder}/{name}" if folder else name, mask)
        except AmbiguousIdError as error:
            found = [self._numbers[i] for i in error.found]
            near = [_num_shared(self._images[i], mask) for i in found]
            found = [i for i, number in zip(found, near, strict=True) if number == max(near)]
            if len(found) > 1 and not self._are_shared:
                of, hint = f"{name!r} fits", error.hint
                if self._parts:
                    of, hint = "its name fits", "give a pattern that keeps more of the name"
                raise self._several(mask, of, found, hint) from None
            return found
        folders = composed(mask).split("/")[:-1]
        if place is None and folder is None and "id" in self._named and name in folders:
            depth = len(folders) - folders[::-1].index(name)
            return self._only("/".join(folders[:depth]), mask, is_deep=True)
        return () if place is None else (self._numbers[place],)

    def _place(self, name: str, mask: str) -> int | None:
        """Return the position of the image with the longest name that begins `name`, or None."""
        place = self._pairing.find(name, mask)
        while place is None and self._last and (last := self._last.search(name)):
            name = name[: last.start()]
            place = self._pairing.find(name, mask)
        return place

    def _several(self, mask: str, of: str, found: Sequence[int], hint: str) -> SeveralImagesError:
        one, two = (shown(self._images[i], _MOST_SHOWN) for i in found[:2])
        what = f"{of} several images: {one} and {two}"
        error = SeveralImagesError(shown(mask, _MOST_SHOWN), what, hint)
        error.images = [self._images[i] for i in found[:2]]
        return error

    def _only(self, folder: str, mask: str, *, is_deep: bool) -> Sequence[int]:
        """Return the only image in a folder (or below, if `is_deep`); SourceError for several."""
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
            hint = "name masks by {stem} or {name}"
            if self._are_shared:
                hint = "use {folder}: all images of a folder may share a target image"
            raise self._several(mask, "its folder holds", found, hint)
        return found


def _num_shared(one: str, other: str) -> int:
    """Return how many leading folders two keys share."""
    pairs = zip(one.split("/")[:-1], other.split("/")[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _parts(images: Sequence[str], field: PatternField, pattern: MaskPattern) -> list[str | None]:
    place = {"name": -1, "folder": -2}.get(field.name)
    names = [f"/{composed(key)}".split("/")[place] if place else stem(key) for key in images]
    if field.letters is not None:
        return [name[field.letters] for name in names]
    if not field.expression:
        return list(names)
    group = min(1, re.compile(field.expression).groups)
    part = Pattern(f"(?is){field.expression}", pattern.option, pattern.text, group)
    return part.search(names)
