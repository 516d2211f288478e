"""Detection of boxes and masks, from file names and the content of a sample of files."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardprep.catalog.names import (
    IMAGE_ENDING,
    MASK_ENDING,
    find_masks,
    folder_splits,
    given_split,
    masks_by_folder,
    stem,
)
from shardprep.catalog.objects.formats import coco as coco_format
from shardprep.catalog.objects.formats import voc, yolo
from shardprep.catalog.objects.formats.annotated_source import (
    ENOUGH,
    NUM_SAMPLES,
    AnnotatedSource,
    Sign,
    read_each,
)
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.formats.panoptic import panoptic_signs
from shardprep.catalog.objects.formats.rle_table import runs_in
from shardprep.catalog.objects.known_formats import recognise
from shardprep.catalog.objects.mask_files import pair_masks
from shardprep.catalog.objects.mask_values import NUMBERED, are_masks, hold_numbers
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import united
from shardprep.errors import OptionName, SourceError, counted, some_of
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.recipe.recipe import Recipe
from shardprep.source.members import Member, Members
from shardprep.source.names import composed

_NUM_MASKS = 8
_MOST_PIXELS = 1 << 26
_COCO = re.compile(
    r"(^|/)(annotations/[^/]*|[^/]*coco[^/]*|(instances|panoptic)_[^/]*)\.json$", re.IGNORECASE
)
_CODE = re.compile(r"(?=[a-f]*\d)[0-9a-f]{6,}", re.IGNORECASE)
_SENTENCE = re.compile(rb"[^\n,\d]{3}[^\n]*$")
"""Text of one line that does not start with numbers."""
_TARGETS = re.compile("gt|ground_?truth|targets?|clean|clear|sharp|high|hr|depths?", re.IGNORECASE)
"""Name of a folder that may have target images."""
_BOXES = {
    ".xml": ("voc", "Pascal VOC", voc.is_voc),
    ".txt": ("yolo", "YOLO", yolo.is_yolo),
}


def find_signs(index: KeyIndex, documents: Documents, images: Sequence[Member]) -> list[Sign]:
    """Return a `Sign` for each kind of boxes and masks in a source; `images` may include masks."""
    folders = masks_by_folder([member.key for member in images])
    masks = {key for keys in folders.values() for key in keys}
    if masks and (rest := [key for key in index.keys if key not in masks]):
        index = KeyIndex(rest)
    signs = document_signs(index, documents, images)
    return [*signs, *_mask_signs(images, folders, masks, documents)]


def document_signs(index: KeyIndex, documents: Documents, images: Sequence[Member]) -> list[Sign]:
    """Return a `Sign` for each kind of boxes and outlines that documents and tables state."""
    tables, members = united(index, documents.tables), Members.of(images)

    def size_of(image: int) -> tuple[int, int] | None:
        return image_size(members[members.keys.array.index(index.keys[image]).as_py()].extent)

    return [
        *recognise(AnnotatedSource(index, documents)),
        *(sign for table in tables for sign in runs_in(table, index, size_of)),
        *panoptic_signs(index, documents, images),
    ]


def usual(signs: Sequence[Sign]) -> list[Sign]:
    """Return the signs that can be used automatically; if there are several, the user must choose.

    Run lengths are left out if there are mask files, which hold the same masks. Panoptic masks are
    left out if there is any other sign.
    """
    is_panoptic = [one.key == "masks" and one.option.startswith("coco:") for one in signs]
    signs = [one for one, is_out in zip(signs, is_panoptic, strict=True) if not is_out] or signs
    has_files = any(one.key == "masks" and "{" in one.option for one in signs)
    return [one for one in signs if not (has_files and one.option.startswith("rle:"))]


def recognised(
    recipe: Recipe, index: KeyIndex, documents: Documents, images: Sequence[Member]
) -> Recipe:
    """Return the recipe with detected boxes or masks, or `recipe` itself if nothing is detected.

    SourceError if the user must choose, or if nothing is detected for an option that is "auto".
    """
    wanted = [key for key in ("boxes", "masks") if getattr(recipe, key) == "auto"]
    keys = wanted or ["boxes", "masks", "points"]
    found = find_signs(index, documents, images)
    signs = usual([one for one in found if one.key in keys])
    if recipe.instances and any(one.instances for one in signs):
        signs = [one for one in signs if one.instances or one.key != "masks"]
    for key in keys:
        fit = [one for one in signs if one.key == key] if wanted else signs
        if len(fit) > 1:
            several = "; ".join(f"{one.flag} ({one.how})" for one in fit)
            hint = "say which to use"
            hint += "" if wanted else f", or {_images_alone(images)} for images alone"
            where = OptionName(key if wanted else "labels", "auto")
            raise SourceError(where, f"the source has {several}", hint)
        if wanted and not fit:
            hint = f"say where: {OptionName(key)} …"
            raise SourceError(OptionName(key, "auto"), f"no {key} are recognised", hint)
    is_said = recipe.instances or bool(recipe.mask_values or recipe.classes)
    for sign in signs:
        if sign.instances and not is_said:
            where = OptionName(sign.key if wanted else "labels", "auto")
            plain = replace(sign, instances=False).flag
            hint = f"{sign.flag} keeps objects apart, {plain} uses the values as classes"
            raise SourceError(where, f"{sign.how}, or classes?", hint)
    found_rules: dict[str, str | bool] = {one.key: one.option for one in signs}
    if any(one.are_objects for one in signs) and not is_said:
        found_rules["instances"] = True
    return recipe.with_rules(**found_rules) if found_rules else recipe


def _images_alone(images: Sequence[Member]) -> str:
    """Return the flags that store the images without labels, boxes and masks."""
    masks = find_masks([member.key for member in images]).num_masks
    globs = [f"{OptionName('exclude')} '{name}/*'" for name in masks]
    return " ".join([f"{OptionName('labels')} none", *globs])


def _mask_signs(
    images: Sequence[Member],
    folders: Mapping[str, Sequence[str]],
    others: Collection[str],
    documents: Documents,
) -> list[Sign]:
    """Return a `Sign` for each set of masks: the first pattern that fits its folder or names."""
    by_key = {member.key: member for member in images}
    taken: set[str] = set()
    found: list[Sign] = []
    for pattern in mask_patterns([key for key in by_key if key not in others], folders):
        if others and taken.issuperset(others):
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
        is_enough = len(paired) >= ENOUGH * len(files.keys) and num_masked >= ENOUGH * len(train)
        if taken & paired or not is_enough:
            continue
        ordered = [by_key[key] for key in sorted(paired)]
        if are_masks(ordered[:: max(1, len(ordered) // _NUM_MASKS)][:_NUM_MASKS], _MOST_PIXELS):
            taken |= paired
            how = f"{len(paired):,} masks of {len(files.of_image):,} of {len(rest):,} images"
            is_numbered = hold_numbers(ordered, _MOST_PIXELS, documents)
            are_objects = not is_numbered and _are_objects(files.of_image)
            if is_numbered:
                how += f"; {NUMBERED}"
            elif len(paired) > len(files.of_image):
                how += f"; {OptionName('instances')} keeps each apart"
            sign = Sign("masks", pattern, how, instances=is_numbered > 0, are_objects=are_objects)
            found.append(sign)
    return found


def _are_objects(of_image: Mapping[str, Sequence[str]]) -> bool:
    """Return whether images have several masks, whose names are codes and all different."""
    names = [stem(mask) for masks in of_image.values() for mask in masks]
    are_several = len(of_image) > 1 and len({*names}) == len(names) > len(of_image)
    own = {stem(image) for image in of_image}
    return are_several and own.isdisjoint(names) and all(map(_CODE.fullmatch, names))


def mask_patterns(images: Sequence[str], folders: Mapping[str, Sequence[str]]) -> list[str]:
    """Return patterns that may fit masks: of folders with usual names, then of usual endings."""
    patterns: list[str] = []
    for image in _image_names(images):
        for name, masks in folders.items():
            patterns += _folder_patterns(name, masks, images, image)
        patterns += _suffix_patterns(images, image)
    return list(dict.fromkeys(patterns))


class _ImageNames(NamedTuple):
    field: str
    stems: set[str]


def _image_names(images: Sequence[str]) -> Iterator[_ImageNames]:
    """Yield all image names; then those with the most frequent ending, without this ending."""
    stems = [stem(key) for key in images]
    yield _ImageNames("{stem}", set(stems))
    ends = Counter(match[0] for name in stems if (match := IMAGE_ENDING.search(name)))
    for end, _ in ends.most_common(1):
        parts = {name.removesuffix(end) for name in stems if name.endswith(end)}
        yield _ImageNames(f"{{stem[:-{len(end)}]}}", parts)


def _folder_patterns(
    name: str, masks: Sequence[str], images: Sequence[str], image: _ImageNames
) -> Iterator[str]:
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
    if sum(stem(key) in image.stems for key in masks) < ENOUGH * len(masks):
        names.reverse()
    yield from (f"{place}/{text}" for text in names)
    yield f"{{id}}/{name}/*{ending}"


def _suffix_patterns(images: Sequence[str], image: _ImageNames) -> Iterator[str]:
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
        if count >= ENOUGH * (len(images) - count) / 2:
            star = "*" if end in numbered else ""
            yield f"{image.field}{end}{star}{_ending(of_end[end])}"


def _ending(keys: Sequence[str]) -> str:
    endings = {key[key.rfind(".") :] for key in keys}
    return endings.pop() if len(endings) == 1 else ".*"


def _target_pattern(keys: Sequence[str]) -> str:
    """Return a pattern for a folder of target images, or ""; a sibling has files of equal names."""
    above: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path, _, name in (key.rpartition("/") for key in keys):
        parent, _, folder = path.rpartition("/")
        above[parent][folder].add(name)
    for siblings in above.values():
        for folder in filter(_TARGETS.fullmatch, siblings):
            own = siblings[folder]
            both = max((len(own & one) for one in siblings.values() if one is not own), default=0)
            if both >= ENOUGH * len(own):
                return f"{folder}/{{name}}"
    return ""


def annotation_findings(keys: Sequence[str], documents: Documents) -> list[str]:
    """Return a line about each kind of annotation that images or other files look like."""
    found = []
    if pattern := _target_pattern(keys):
        found.append(f"{OptionName('target_image')} '{pattern}' would store pairs of images")
    if masks := find_masks(keys).num_masks:
        globs = " ".join(f"{OptionName('exclude')} '{name}/*'" for name in masks)
        found.append(
            f"{counted(sum(masks.values()), 'image')} in folders {', '.join(masks)} may be masks; "
            f"{OptionName('masks')} PATTERN stores them, {globs} leaves them out"
        )
    for suffix, (option, title, is_one) in _BOXES.items():
        members = {stem(member.key): member for member in documents.members(suffix)}
        images = set(map(stem, keys)) if members else set()
        both = members.keys() & images
        if not both or len(both) < ENOUGH * min(len(members), len(images)):
            continue
        named = sorted((members[name] for name in both), key=lambda member: member.key)
        sample = named[:: max(1, len(named) // NUM_SAMPLES)][:NUM_SAMPLES]
        if any(is_one(text.data) for text in read_each(sample)):
            line = f"{suffix} files for {counted(len(named), 'image')} look like boxes of {title}"
            found.append(f"{line}; {OptionName('boxes')} {option} stores them")
        elif suffix == ".txt" and len(both) >= ENOUGH * len(images):
            pattern = text_pattern(keys, named[0].key)
            line = f"{suffix} files for {counted(len(named), 'image')} are texts"
            found.append(f"{line}; {OptionName('labels')} text:{pattern} stores them")
    images = {stem(key) or composed(key) for key in keys}
    likely = [
        member
        for member in documents.members("")
        if _COCO.search(member.key) and stem(member.key) not in images
    ]
    coco = coco_format.chosen(
        [
            key
            for key, data, _ in read_each(likely[:NUM_SAMPLES], sys.maxsize)
            if _fits(data, images)
        ]
    )
    if coco:
        look, its = ("looks", "its") if len(coco) == 1 else ("look", "their")
        line = f"{some_of(coco, 1)} {look} like annotations of COCO"
        found.append(f"{line}; {OptionName('boxes')} coco stores {its} boxes")
    return found


def text_files(keys: Sequence[str], documents: Documents) -> str:
    """Return the pattern of files that have an own text for each image, or ""."""
    members = {stem(member.key): member for member in documents.members(".txt")}
    images = set(map(stem, keys)) if members else set()
    both = sorted(members.keys() & images)
    if not both or len(both) < ENOUGH * len(images):
        return ""
    sample = [members[name] for name in both[:: max(1, len(both) // NUM_SAMPLES)][:NUM_SAMPLES]]
    texts = {text.data.strip() for text in read_each(sample)}
    is_text = 2 * len(texts) > len(sample) and all(map(_SENTENCE.match, texts))
    return text_pattern(keys, sample[0].key) if is_text else ""


def text_pattern(keys: Sequence[str], text: str) -> str:
    """Return the pattern of the documents of single images, of which `text` is one."""
    folder, _, name = text.rpartition("/")
    is_beside = any(key.rpartition("/")[0] == folder for key in keys)
    file = f"{{stem}}{name[name.rfind('.') :]}"
    return file if is_beside else f"{folder.rpartition('/')[2]}/{file}"


def _fits(data: bytes, images: Collection[str]) -> bool:
    """Return whether bytes look like a COCO document with boxes of one of these images."""
    names = coco_format.stated_names(data) if coco_format.is_coco(data) else []
    return any((stem(name) or composed(name)) in images for name in names)
