"""COCO's panoptic format: a document of segments, and a folder of masks with the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardprep.catalog.names import stem
from shardprep.catalog.objects.formats.annotated_source import ENOUGH, Sign, coverage
from shardprep.catalog.objects.formats.coco import is_coco, is_panoptic, stated_names
from shardprep.catalog.objects.object_table import Found
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.errors import SourceError, shown, some_of
from shardprep.image.annotation_types import Annotation, Segment
from shardprep.recipe.recipe import Recipe
from shardprep.source.members import Member
from shardprep.source.names import composed, without_archive_suffix

_MOST_DOCUMENTS = 16


class SegmentMasks(NamedTuple):
    """The masks of one panoptic document."""

    members: Sequence[Member]
    names: KeyIndex


def segment_masks(
    recipe: Recipe, members: Sequence[Member], documents: Documents
) -> dict[str, SegmentMasks]:
    """Return key of each panoptic document that the recipe uses → the masks of the document."""
    rules = (recipe.rules.boxes, recipe.rules.masks.outlines)
    coco = sorted({(one.text, one.files) for one in rules if one.kind == "coco"})
    found: dict[str, SegmentMasks] = {}
    for file in dict.fromkeys(file for _, files in coco for file in files):
        folder = _named_as(file, members)
        if folder:
            key, data = documents.find(file)
            if is_panoptic(data):
                below = f"{key.rpartition('/')[0]}/".removeprefix("/")
                masks = [m for m in folder if m.key.startswith(below)] or folder
                found[key] = SegmentMasks(masks, KeyIndex([member.key for member in masks]))
    return found


def with_panoptic(recipe: Recipe, members: Sequence[Member], documents: Documents) -> Recipe:
    """Return the recipe with panoptic documents as `--masks coco` if no COCO document has boxes."""
    masks = recipe.rules.masks.outlines
    if masks.kind != "coco" or masks.files:
        return recipe
    texts = documents.members(".json")
    near = [member for member in texts if _named_as(member.key, members)]
    keys = [member.key for member in near if is_panoptic(documents.read(member.key))]
    if not keys or any(is_coco(documents.read(one.key)) for one in texts if one.key not in keys):
        return recipe
    text = f"coco:{','.join(keys)}"
    is_both = recipe.boxes == recipe.masks
    return recipe.with_rules(masks=text, **({"boxes": text} if is_both else {}))


def _named_as(document: str, members: Sequence[Member]) -> list[Member]:
    name = stem(document)
    near = [member for member in members if name in composed(member.key)]
    return [
        member
        for member in near
        if name in map(without_archive_suffix, composed(member.key).split("/")[:-1])
    ]


def masks_of_segments(
    found: Found, masks: Mapping[str, SegmentMasks], num_images: int
) -> list[tuple[Member, ...]]:
    """Return the mask file of each image as a tuple, () without a file.

    SourceError if no image has a mask file, or if several files fit a name.
    """
    of_image: list[tuple[Member, ...]] = [()] * num_images
    for image, (document, name) in found.segments.items():
        own = masks.get(document)
        files = [own.members[i] for i in own.names.find(name)] if own is not None else []
        if len(files) > 1:
            what = f"mask {shown(name)!r} fits {files[0].key} and {files[1].key}"
            raise SourceError(document, what, "delete or rename one of them")
        of_image[image] = tuple(files)
    if found.segments and not any(of_image):
        document, name = next(iter(found.segments.values()))
        what = f"none of its masks, such as {shown(name)}, is in the source"
        raise SourceError(document, what, f"put masks into {stem(document)}/ next to the document")
    return of_image


def with_segments(found: Found, panoptic: Found) -> Found:
    """Return the objects of `found`, with the segments of `panoptic` as areas.

    An image is annotated if both documents list it. New classes follow the classes of objects.
    """
    names = tuple(dict.fromkeys((*found.names, *panoptic.names)))
    number = [names.index(name) for name in panoptic.names]
    annotations: list[Annotation | None] = []
    for one, other in zip(found.annotations, panoptic.annotations, strict=True):
        if one is None or other is None:
            annotations.append(None)
            continue
        things = zip(other.outlines, other.labels, strict=True)
        parts = (*((o, at) for o, at in things if isinstance(o, Segment)), *other.areas)
        areas = tuple((segment, number[at]) for segment, at in parts)
        annotations.append(replace(one, areas=areas, fault=one.fault or other.fault))
    return replace(
        found,
        annotations=annotations,
        names=names,
        how=f"{found.how}; {panoptic.how}",
        documents=(*found.documents, *panoptic.documents),
        without_image={**dict.fromkeys(panoptic.without_image, 0), **found.without_image},
        segments=panoptic.segments,
        findings=[*found.findings, *panoptic.findings],
    )


def panoptic_signs(index: KeyIndex, documents: Documents, members: Sequence[Member]) -> list[Sign]:
    """Return the `Sign` of panoptic documents if they name enough images, otherwise []."""
    names: list[str] = []
    keys: list[str] = []
    taken: set[str] = set()
    for member in documents.members(".json")[:_MOST_DOCUMENTS]:
        masks = _named_as(member.key, members)
        if not masks:
            continue
        key, data = documents.find(member.key)
        stated = stated_names(data) if is_panoptic(data) else []
        stems = set(map(stem, stated))
        if stated and sum(stem(mask.key) in stems for mask in masks) >= ENOUGH * len(masks):
            keys.append(key)
            names += stated
            taken.update(mask.key for mask in masks)
    if not keys:
        return []
    images = KeyIndex([key for key in index.keys if key not in taken])
    named = coverage(images, names)
    how = f"{some_of(keys, 2)}: COCO's panoptic masks, of {named}"
    return [Sign("masks", f"coco:{','.join(keys)}", how)] if named.is_enough else []
