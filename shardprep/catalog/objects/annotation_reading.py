"""Read the objects, masks and keypoints that the options select, from all formats."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from shardprep.catalog.objects.formats.annotated_source import AnnotatedSource
from shardprep.catalog.objects.formats.box_format import check_boxes, check_outlines, image_size
from shardprep.catalog.objects.formats.coco import skeleton_of
from shardprep.catalog.objects.formats.panoptic import masks_of_segments, with_segments
from shardprep.catalog.objects.formats.rle_table import read_runs
from shardprep.catalog.objects.image_points import FoundPoints
from shardprep.catalog.objects.known_formats import read_boxes, read_image_points
from shardprep.catalog.objects.mask_reading import (
    FileMasks,
    holds_numbers,
    numbered_objects,
    read_mask_files,
)
from shardprep.catalog.objects.object_table import Found
from shardprep.catalog.source_images import SourceImages
from shardprep.catalog.targets import Naming
from shardprep.errors import OptionName, RecipeError
from shardprep.image.annotation_types import Skeleton
from shardprep.image.boxes import united
from shardprep.recipe.object_rules import FormatRule
from shardprep.recipe.recipe import Recipe

_BOXES, _MASKS = OptionName("boxes"), OptionName("masks")
_INSTANCES = OptionName("instances")


class StatedAnnotations(NamedTuple):
    """Objects, mask files and keypoints as the source states them; `combine` joins them."""

    boxes: Found | None
    shapes: Found | None
    """Objects with outlines or segments; the same as `boxes` if one document states both."""
    files: FileMasks
    is_numbered: bool
    points: FoundPoints | None = None
    """Keypoints of whole images; `boxes` has the keypoints of objects."""

    @property
    def objects(self) -> Found | None:
        return self.shapes or self.boxes

    @property
    def has_segments(self) -> bool:
        return self.shapes is not None and bool(self.shapes.segments)


def read_annotations(recipe: Recipe, images: SourceImages, naming: Naming) -> StatedAnnotations:
    """Return the annotations that options select; RecipeError or SourceError if they do not fit."""
    has_numbers = holds_numbers(recipe, images.beside)
    _check_options(recipe, has_numbers=has_numbers)
    numbered = numbered_objects(recipe, images) if has_numbers else None
    boxes = None
    if recipe.rules.boxes.is_given:
        boxes = numbered or _boxes_of(recipe, recipe.rules.boxes, images)
    shapes = numbered or _shapes(recipe, images, boxes)
    _check_boxes(recipe, images, boxes, shapes)
    if boxes is not None and shapes is not None and boxes is not shapes:
        if not shapes.segments:
            raise _other_objects(recipe)
        boxes = shapes = with_segments(boxes, shapes)
    keys, beside = images.index.keys, images.beside
    files = FileMasks.none(len(keys))
    if numbered is not None:
        files = files._replace(masks=[tuple(beside.of(key)) for key in keys], is_read=True)
    elif beside.files is not None:
        own = naming if boxes is None else Naming(naming.class_map)
        files = read_mask_files(recipe, images, own)
    if shapes is not None and shapes.segments:
        files = files._replace(masks=masks_of_segments(shapes, beside.segments, len(keys)))
    points = None
    if recipe.rules.points.is_given and not has_keypoints(recipe):
        source = AnnotatedSource(images.index, images.documents, images.members)
        points = read_image_points(recipe.rules.points, source)
    return StatedAnnotations(boxes, shapes, files, numbered is not None, points)


def has_keypoints(recipe: Recipe) -> bool:
    """Return whether `--points` selects keypoints of the objects that `--boxes` selects."""
    points, boxes = recipe.rules.points, recipe.rules.boxes
    return points.needs_boxes or (points.kind == "labelme" and boxes.kind == "labelme")


def _boxes_of(recipe: Recipe, rule: FormatRule, images: SourceImages) -> Found:
    has_outlines = recipe.rules.masks.kind == "format"
    areas = has_outlines and not recipe.instances
    source = AnnotatedSource(
        images.index,
        images.documents,
        images.members,
        has_outlines,
        areas,
        keypoints=has_keypoints(recipe),
        keeps_crowds=recipe.crowds == "ignore",
    )
    found = _as_exported(read_boxes(rule, source), images.documents.export_facts)
    if recipe.annotated_size == "file":
        return found
    idle = not any(one and one.size and not one.is_relative for one in found.annotations)
    remark = f"{OptionName('annotated_size')} has no effect: no size is stated in pixels"
    annotations = [one and replace(one, size=None) for one in found.annotations]
    return replace(found, annotations=annotations, findings=[*found.findings, *[remark] * idle])


def _shapes(recipe: Recipe, images: SourceImages, boxes: Found | None) -> Found | None:
    rule = recipe.rules.masks
    if rule.kind == "rle":
        order = None if recipe.rle == "auto" else recipe.rle
        source = AnnotatedSource(images.index, images.documents, images.members)
        return read_runs(rule.runs, source, order)
    if rule.kind == "format":
        return boxes if recipe.masks == recipe.boxes else _boxes_of(recipe, rule.outlines, images)
    return None


def _as_exported(found: Found, facts: Mapping[str, Any]) -> Found:
    """Return the objects with class order and skeleton as in `export.json`."""
    stated = facts.get("object_labels")
    names = tuple(stated) if isinstance(stated, list) else ()
    if all(isinstance(one, str) for one in names) and {*found.names} <= {*names}:
        names = tuple(dict.fromkeys(names))
        place = [names.index(name) for name in found.names]
        annotations = [
            one
            and replace(
                one,
                labels=tuple(place[label] for label in one.labels),
                areas=tuple((area, place[label]) for area, label in one.areas),
            )
            for one in found.annotations
        ]
        found = replace(found, annotations=annotations, names=names)
    with contextlib.suppress(LookupError, TypeError, ValueError):
        skeleton, mirrored = skeleton_of(facts["keypoints"])[0], facts["keypoints"]["flip_idx"]
        known = found.skeleton or Skeleton()
        if len(skeleton.names) == len(known.names) and sorted(mirrored) == [*range(len(mirrored))]:
            found = replace(found, skeleton=united([skeleton._replace(mirrored=tuple(mirrored))]))
    return found


def _check_boxes(
    recipe: Recipe, images: SourceImages, boxes: Found | None, shapes: Found | None
) -> None:
    def size_of(image: int) -> tuple[int, int] | None:
        is_shown = recipe.annotated != "stored"  # `image_size` is the size as displayed
        return image_size(images.members[image].extent) if is_shown else None

    named = [(OptionName("boxes", recipe.boxes), boxes)]
    named += [(OptionName("masks", recipe.masks), shapes)] if shapes is not boxes else []
    for option, found in named:
        if found is not None:
            check_boxes(found, option, images.index.keys, size_of, recipe.max_clipped)
    if shapes is not None:
        check_outlines(shapes, OptionName("masks", recipe.masks), images.index.keys)


def _other_objects(recipe: Recipe) -> RecipeError:
    what = f"{recipe.masks!r} and {OptionName('boxes', recipe.boxes)} must name one document"
    hint = f"use {OptionName('boxes', recipe.masks)}, or leave one of the two options out"
    if recipe.rules.masks.kind == "rle":
        what = f"run lengths cannot be combined with {_BOXES}"
        hint = "leave one of the two options out"
    return RecipeError(_MASKS, what, hint)


def _check_options(recipe: Recipe, *, has_numbers: bool) -> None:
    rule = recipe.rules.masks
    has_boxes = recipe.rules.boxes.is_given
    is_other = rule.kind == "rle" or (rule.kind == "format" and recipe.masks != recipe.boxes)
    is_coco = rule.outlines.kind == "coco" and bool(rule.outlines.files)
    may_be_panoptic = is_coco and not recipe.instances
    if has_boxes and is_other and not may_be_panoptic:
        raise _other_objects(recipe)
    is_numbered = has_numbers and recipe.rules.boxes.kind == "voc"
    if has_boxes and recipe.instances and rule.kind == "pattern" and not is_numbered:
        what = "it is unknown which mask file belongs to which box"
        raise RecipeError(_INSTANCES, what, f"leave {_BOXES} out: boxes come from the masks")
    if recipe.rules.points.needs_boxes and recipe.points != recipe.boxes:
        what = f"{recipe.points!r} and {OptionName('boxes', recipe.boxes)} must name one document"
        hint = f"leave {_BOXES} out: boxes come from that document"
        raise RecipeError(OptionName("points"), what, hint)
    if recipe.instances and not rule.is_given:
        raise RecipeError(_INSTANCES, "there are no masks", f"say where they are with {_MASKS}")
    if recipe.mask_values and rule.kind != "pattern":
        what = "needs masks in files"
        hint = f"leave this option out, or name the files with {_MASKS}"
        raise RecipeError(OptionName("mask_values"), what, hint)
    if recipe.crowds != "ignore" and "coco" not in (recipe.rules.boxes.kind, rule.outlines.kind):
        hint = f"leave this option out, or add {OptionName('boxes', 'coco')}"
        raise RecipeError(OptionName("crowds"), "works only with COCO annotations", hint)
    if recipe.rle != "auto" and rule.kind != "rle":
        hint = f"leave this option out, or add {OptionName('masks', 'rle:FILE:ID:COLUMN')}"
        raise RecipeError(OptionName("rle"), "needs masks as run lengths", hint)
