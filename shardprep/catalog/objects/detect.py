"""Detect boxes, masks, keypoints and captions by file names and by a sample of the files."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shardprep.catalog.names import find_masks, stem
from shardprep.catalog.objects.formats.annotated_source import (
    ENOUGH,
    AnnotatedSource,
    Sign,
    read_each,
    sampled,
)
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.formats.panoptic import panoptic_signs
from shardprep.catalog.objects.formats.rle_table import runs_in
from shardprep.catalog.objects.known_formats import read_boxes, recognise
from shardprep.catalog.objects.mask_files import pair_masks
from shardprep.catalog.objects.object_table import Found
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.united_tables import united
from shardprep.errors import Choice, OptionError, OptionName, QuestionError, SourceError, counted
from shardprep.recipe.object_rules import parse_box_rule, parse_mask_pattern
from shardprep.recipe.recipe import Recipe
from shardprep.source.members import Member, Members

_SENTENCE = re.compile(rb"[^\n,\d]{3}[^\n]*$")
"""Matches text of one line that does not start with numbers."""


def document_signs(index: KeyIndex, documents: Documents, images: Sequence[Member]) -> list[Sign]:
    """Return a `Sign` for each format of boxes, masks or keypoints in documents and tables."""
    tables, members = united(index, documents.tables), Members.of(images)

    def size_of(image: int) -> tuple[int, int] | None:
        return image_size(members[members.keys.array.index(index.keys[image]).as_py()].extent)

    return [
        *recognise(AnnotatedSource(index, documents)),
        *(sign for table in tables for sign in runs_in(table, index, size_of)),
        *panoptic_signs(index, documents, images),
    ]


def objects_of(sign: Sign, documents: Documents, images: Members) -> Found | None:
    """Return the objects that a sign of boxes states for images, or None if it cannot be read."""
    with contextlib.suppress(SourceError):
        source = AnnotatedSource(KeyIndex(images.keys), documents, images)
        return read_boxes(parse_box_rule(sign.option), source)
    return None


def usual(signs: Sequence[Sign]) -> list[Sign]:
    """Return the signs, without panoptic masks if there is another sign."""
    others = [one for one in signs if one.key != "masks" or not one.option.startswith("coco:")]
    return others or [*signs]


def recognised(
    recipe: Recipe, index: KeyIndex, documents: Documents, images: Sequence[Member]
) -> Recipe:
    """Return the recipe with detected boxes or masks, or `recipe` itself if nothing is detected.

    QuestionError if the user must choose. SourceError if an option is "auto" and nothing is found.
    """
    wanted = [key for key in ("boxes", "masks") if getattr(recipe, key) == "auto"]
    keys = wanted or ["boxes", "masks", "points"]
    found = document_signs(index, documents, images)
    signs = usual([one for one in found if one.key in keys and not one.is_unclear])
    is_said = recipe.instances or bool(recipe.mask_values or recipe.classes)
    for key in wanted or [""]:
        fit = [one for one in signs if key in ("", one.key)]
        if key and not fit:
            hint = f"say where they are with {OptionName(key)}"
            raise SourceError(OptionName(key, "auto"), f"no {key} are recognised", hint)
        if not is_said:
            fit += [replace(one, instances=False) for one in fit if one.instances]
        if len(fit) > 1:
            choices = [Choice(one.options, one.flag, one.how) for one in fit]
            alone = Choice({"labels": "none"}, str(OptionName("labels", "none")), "images alone")
            choices += [] if key else [alone]
            raise QuestionError.of(OptionName(key or "labels", "auto"), choices)
    rules: dict[str, str | bool] = {one.key: one.option for one in signs}
    return recipe.with_rules(**rules) if rules else recipe


def mask_findings(keys: Sequence[str]) -> list[str]:
    """Return a remark if images are in folders that are named like mask folders, otherwise []."""
    if not (masks := find_masks(keys).num_masks):
        return []
    globs = " ".join(str(OptionName("exclude", f"{name}/*")) for name in masks)
    number = counted(sum(masks.values()), "image")
    hint = f"{OptionName('masks', _pattern(keys, [*masks]))} stores them, {globs} leaves them out"
    return [f"{number} in folders {', '.join(masks)} may be masks; {hint}"]


def _pattern(keys: Sequence[str], folders: Sequence[str]) -> str:
    """Return the pattern of masks that are named like images, or the word PATTERN."""
    text = f"{folders[0]}/{{stem}}.*"
    with contextlib.suppress(SourceError, OptionError):
        files = pair_masks(keys, parse_mask_pattern(text))
        if len(folders) == 1 and not files.without_image:
            return text
    return "PATTERN"


def text_files(keys: Sequence[str], documents: Documents) -> str:
    """Return the pattern of caption files, one text for each image; "" without captions.

    Also "" if several folders have a text for each image, because any may be the caption.
    """
    every = documents.members(".txt")
    members = {stem(member.key): member for member in every}
    images = set(map(stem, keys)) if members else set()
    both = sorted(members.keys() & images)
    if not both or len(both) < ENOUGH * len(images):
        return ""
    paths = [one.key.split("/") for one in every if stem(one.key) in images]
    known = {key.rpartition("/")[0] for key in keys}
    alike = Counter((*x[:-2], stem(x[-1])) for x in paths if "/".join(x[:-1]) not in known)
    if sum(number > 1 for number in alike.values()) >= ENOUGH * len(both):
        return ""
    sample = sampled([members[name] for name in both])
    texts = {text.data.strip() for text in read_each(sample)}
    is_text = 2 * len(texts) > len(sample) and all(map(_SENTENCE.match, texts))
    return text_pattern(keys, sample[0].key) if is_text else ""


def text_pattern(keys: Sequence[str], text: str) -> str:
    """Return the pattern of text files, such as texts/{stem}.txt, from the key of a text file."""
    folder, _, name = text.rpartition("/")
    is_beside = any(key.rpartition("/")[0] == folder for key in keys)
    file = f"{{stem}}{name[name.rfind('.') :]}"
    return file if is_beside else f"{folder.rpartition('/')[2]}/{file}"
