"""Boxes and masks that a source surely has, by names and by a look into some of the files."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from shardprep.catalog.names import folder_splits, given_split, stem
from shardprep.catalog.objects import known_formats
from shardprep.catalog.objects.detect_by_name import IMAGE_ENDING, MASK_ENDING, masks_by_folder
from shardprep.catalog.objects.formats.panoptic import panoptic_signs
from shardprep.catalog.objects.formats.rle_table import runs_in
from shardprep.catalog.objects.masks.mask_files import pair_masks
from shardprep.catalog.objects.masks.mask_values import NUMBERED, are_masks, hold_numbers
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.source.members import Member

if TYPE_CHECKING:
    from shardprep.catalog.tables.metadata_files import Documents
    from shardprep.recipe.recipe import Recipe

_ENOUGH = 0.5
"""Share of images outside of test splits that must have a mask, and of masks that have an image."""
_NUM_SAMPLES = 8
"""Number of masks that are looked into."""
_MOST_PIXELS = 1 << 26
"""Pixels of a mask that is looked into."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Boxes or masks that were detected in a source."""

    key: str
    """The option for them: "boxes" or "masks"."""
    option: str
    """Its value."""
    how: str
    """The evidence, in one line."""
    instances: bool = False
    """True if mask values look like object numbers, which need `--instances`."""
    num_unlisted: int = 0
    """Number of images without a document, in a format with a document for each image."""

    @property
    def has_unlisted(self) -> bool:
        """Whether `--unlisted` has to say what images without a file are: YOLO leaves it open."""
        return bool(self.num_unlisted) and self.option.partition(":")[0] == "yolo"

    @property
    def flag(self) -> str:
        """The option as typed in a shell."""
        flag = f"--{self.key} {shlex.quote(self.option)}"
        if self.has_unlisted:
            flag += " --unlisted background"
        return f"{flag} --instances" if self.instances else flag


def find_signs(index: KeyIndex, documents: Documents, images: Sequence[Member]) -> list[Sign]:
    """Return all boxes and masks that a source surely has; `images` are masks and images.

    Shares of images are those of what does not look like a mask, as boxes would be stored of it.
    """
    folders = masks_by_folder([member.key for member in images])
    masks = {key for keys in folders.values() for key in keys}
    if masks and (rest := [key for key in index.keys if key not in masks]):
        index = KeyIndex(rest)
    found = [
        Sign("boxes", one.option, one.how, num_unlisted=one.num_unlisted)
        for one in known_formats.recognise(index, documents)
    ]
    found += _mask_signs(images, folders, documents)
    runs = (runs_in(table, index) for table in documents.tables())
    found += [Sign("masks", *sign) for sign in runs if sign is not None]
    panoptic = panoptic_signs(index, documents, images)
    return found + [Sign("masks", one.option, one.how) for one in panoptic]


def usual(signs: Sequence[Sign]) -> list[Sign]:
    """Return the signs that are taken unasked; several of them are for the user to choose from.

    Run lengths beside mask files are the same masks again; panoptic masks count on their own.
    """
    signs = [one for one in signs if not _is_panoptic(one)] or signs
    files = [one for one in signs if one.key == "masks" and "{" in one.option]
    is_again = bool(files)
    return [one for one in signs if not (is_again and one.option.startswith("rle:"))]


def _is_panoptic(sign: Sign) -> bool:
    return sign.key == "masks" and sign.option.startswith("coco:")


def recognised(
    recipe: Recipe, index: KeyIndex, documents: Documents, images: Sequence[Member]
) -> Recipe:
    """Return the recipe with the boxes or masks that are found; as it is without any.

    Raises:
        SourceError: several fit, or none though they are asked for, or values of masks may be
            numbers of objects.

    """
    wanted = [key for key in ("boxes", "masks") if getattr(recipe, key) == "auto"]
    keys = wanted or ["boxes", "masks"]
    found = find_signs(index, documents, images)
    signs = usual([one for one in found if one.key in keys])
    if recipe.instances and any(one.instances for one in signs):
        signs = [one for one in signs if one.instances or one.key != "masks"]
    for key in keys:
        fit = [one for one in signs if one.key == key] if wanted else signs
        if len(fit) > 1:
            several = "; ".join(f"{one.flag} ({one.how})" for one in fit)
            where = f"--{key} auto" if wanted else "--labels auto"
            hint = "say which to take" + ("" if wanted else ", or --labels none for images alone")
            raise SourceError(where, f"the source has {several}", hint)
        if wanted and not fit:
            raise SourceError(f"--{key} auto", f"no {key} are recognised", f"say where: --{key} …")
    is_said = recipe.instances or bool(recipe.mask_values or recipe.classes)
    for sign in signs:
        if sign.instances and not is_said:
            where = f"--{sign.key} auto" if wanted else "--labels auto"
            plain = replace(sign, instances=False).flag
            hint = f"{sign.flag} keeps each object apart, {plain} takes values as classes"
            raise SourceError(where, f"{sign.how}, or classes?", hint)
    of = {one.key: one.option for one in signs}
    if not of:
        return recipe
    return recipe.with_rules(**of)


def _mask_signs(
    images: Sequence[Member], folders: Mapping[str, Sequence[str]], documents: Documents
) -> list[Sign]:
    """Return the patterns of masks: of each folder or suffix the first that fits.

    `folders` are the masks below each folder that looks like one of masks.
    """
    by_key = {member.key: member for member in images}
    others = {key for keys in folders.values() for key in keys}
    taken: set[str] = set()
    found: list[Sign] = []
    for pattern in mask_patterns(list(by_key), folders):
        if others and others <= taken:
            break
        try:
            files = pair_masks(list(by_key), parse_mask_pattern(pattern), others)
        except SourceError:
            continue
        paired = {key for masks in files.of_image.values() for key in masks}
        rest = [key for key in by_key if key not in files.keys and key not in others]
        splits = folder_splits(rest)
        train = [k for k, split in zip(rest, splits, strict=True) if split != "test"] or rest
        num_masked = sum(key in files.of_image for key in train)
        is_enough = len(paired) >= _ENOUGH * len(files.keys) and num_masked >= _ENOUGH * len(train)
        if taken & paired or not is_enough:
            continue
        ordered = [by_key[key] for key in sorted(paired)]
        if are_masks(ordered[:: max(1, len(ordered) // _NUM_SAMPLES)][:_NUM_SAMPLES], _MOST_PIXELS):
            taken |= paired
            how = f"{len(paired):,} masks of {len(files.of_image):,} of {len(rest):,} images"
            is_numbered = hold_numbers(ordered, _MOST_PIXELS, documents)
            if is_numbered:
                how += f"; {NUMBERED}"
            elif len(paired) > len(files.of_image):
                how += "; --instances keeps each apart"
            found.append(Sign("masks", pattern, how, is_numbered))
    return found


def mask_patterns(keys: Sequence[str], folders: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the patterns that masks may have, by the names of folders and files.

    `folders` are the masks below each folder that looks like one of masks.
    """
    patterns: list[str] = []
    others = {key for masks in folders.values() for key in masks}
    images = [key for key in keys if key not in others]
    for image in _image_names(images):
        for name, masks in folders.items():
            patterns += _folder_patterns(name, masks, images, image)
        patterns += _suffix_patterns(images, image)
    return list(dict.fromkeys(patterns))


class _ImageNames(NamedTuple):
    """What masks repeat of the names of images."""

    field: str
    """The field of a pattern that stands for it."""
    stems: set[str]
    """That part of all images that have it."""


def _image_names(images: Sequence[str]) -> Iterator[_ImageNames]:
    """Yield the whole names of images, and their part before the end that most of them have."""
    stems = [stem(key) for key in images]
    yield _ImageNames("{stem}", set(stems))
    ends = Counter(match[0] for name in stems if (match := IMAGE_ENDING.search(name)))
    for end, _ in ends.most_common(1):
        parts = {name.removesuffix(end) for name in stems if name.endswith(end)}
        yield _ImageNames(f"{{stem[:-{len(end)}]}}", parts)


def _folder_patterns(
    name: str, masks: Sequence[str], images: Sequence[str], image: _ImageNames
) -> Iterator[str]:
    """Yield the patterns that the masks below a folder of that name may have."""
    siblings = {part for key in images for part in key.split("/")[:-1]}
    of_split = [one for one in siblings if given_split([one]) and name.startswith(one)]
    is_flat = all(key.split("/")[-2] == name for key in masks)
    place = name if is_flat else f"{name}/**"
    ending = _ending(masks)
    names = [f"{image.field}{ending}"]
    ends = Counter(
        match[1] for key in masks if (match := MASK_ENDING.search(stem(key))) is not None
    )
    names += [f"{image.field}{end}*{ending}" for end, _ in ends.most_common(1)]
    for one in of_split:
        yield from (f"{{dir}}{name[len(one) :]}/{text}" for text in names)
    if sum(stem(key) in image.stems for key in masks) < _ENOUGH * len(masks):
        names.reverse()
    yield from (f"{place}/{text}" for text in names)
    yield f"{{id}}/{name}/*{ending}"


def _suffix_patterns(images: Sequence[str], image: _ImageNames) -> Iterator[str]:
    """Yield the patterns of masks that only the ends of their names tell from images."""
    ends: Counter[str] = Counter()
    numbered: set[str] = set()
    of_end: dict[str, list[str]] = {}
    for key in images:
        match = MASK_ENDING.search(stem(key))
        if match is not None and match.start() and stem(key)[: match.start()] in image.stems:
            ends[match[1]] += 1
            of_end.setdefault(match[1], []).append(key)
            numbered.update([match[1]] if match["number"] else [])
    for end, count in ends.most_common(2):
        if count >= _ENOUGH * (len(images) - count) / 2:
            star = "*" if end in numbered else ""
            yield f"{image.field}{end}{star}{_ending(of_end[end])}"


def _ending(keys: Sequence[str]) -> str:
    """Return the extension that all files have, ".*" where they differ."""
    endings = {key[key.rfind(".") :] for key in keys}
    return endings.pop() if len(endings) == 1 else ".*"
