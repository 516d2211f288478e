"""Detection of boxes and masks, from file names and the content of a sample of files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardprep.catalog.names import (
    IMAGE_ENDING,
    MASK_ENDING,
    find_masks,
    given_split,
    stem,
)
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
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import united
from shardprep.errors import Choice, OptionName, QuestionError, SourceError, counted
from shardprep.recipe.recipe import Recipe
from shardprep.source.members import Member, Members

_SENTENCE = re.compile(rb"[^\n,\d]{3}[^\n]*$")
"""Text of one line that does not start with numbers."""


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

    Panoptic masks are left out if there is any other sign.
    """
    is_panoptic = [one.key == "masks" and one.option.startswith("coco:") for one in signs]
    return [one for one, is_out in zip(signs, is_panoptic, strict=True) if not is_out] or [*signs]


def recognised(
    recipe: Recipe, index: KeyIndex, documents: Documents, images: Sequence[Member]
) -> Recipe:
    """Return the recipe with detected boxes or masks, or `recipe` itself if nothing is detected.

    QuestionError if the user must choose. SourceError if nothing is detected for an option that is
    "auto".
    """
    wanted = [key for key in ("boxes", "masks") if getattr(recipe, key) == "auto"]
    keys = wanted or ["boxes", "masks", "points"]
    found = document_signs(index, documents, images)
    signs = usual([one for one in found if one.key in keys])
    is_said = recipe.instances or bool(recipe.mask_values or recipe.classes)
    for key in wanted or [""]:
        fit = [one for one in signs if key in ("", one.key)]
        if key and not fit:
            hint = f"say where: {OptionName(key)} …"
            raise SourceError(OptionName(key, "auto"), f"no {key} are recognised", hint)
        if not is_said:
            fit += [replace(one, instances=False) for one in fit if one.instances]
        if len(fit) > 1:
            choices = [Choice(one.options, one.flag, one.how) for one in fit]
            alone = Choice({"labels": "none"}, f"{OptionName('labels')} none", "images alone")
            choices += [] if key else [alone]
            raise QuestionError.of(OptionName(key or "labels", "auto"), choices)
    rules: dict[str, str | bool] = {one.key: one.option for one in signs}
    return recipe.with_rules(**rules) if rules else recipe


def mask_findings(keys: Sequence[str]) -> list[str]:
    """Return a remark if folders of the images are named like folders of masks."""
    if not (masks := find_masks(keys).num_masks):
        return []
    globs = " ".join(f"{OptionName('exclude')} '{name}/*'" for name in masks)
    number = counted(sum(masks.values()), "image")
    hint = f"{OptionName('masks')} PATTERN stores them, {globs} leaves them out"
    return [f"{number} in folders {', '.join(masks)} may be masks; {hint}"]


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
