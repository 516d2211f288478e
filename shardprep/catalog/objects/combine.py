"""Annotations of all images: boxes and masks of every form joined, and classes chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from shardprep.catalog.names import stem
from shardprep.catalog.objects.box_check import check_boxes
from shardprep.catalog.objects.class_names import Naming, renamed
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.formats.panoptic import masks_of_segments, with_segments
from shardprep.catalog.objects.formats.rle_table import read_runs
from shardprep.catalog.objects.known_formats import read_boxes
from shardprep.catalog.objects.masks.mask_reading import FileMasks, Images, read_mask_files
from shardprep.catalog.objects.masks.mask_values import NONE
from shardprep.catalog.objects.object_numbers import holds_numbers, numbered_objects
from shardprep.catalog.objects.parsed import NO_FAULTS, Found
from shardprep.dataset.manifest import (
    ELSEWHERE,
    LEFT_OUT,
    NO_IMAGE,
    Unmatched,
    unmatched_of,
)
from shardprep.errors import RecipeError, SourceError, counted, shown, some_of
from shardprep.image.annotation_types import NO_OUTLINE, Annotation, AnnotationSpec, Segment
from shardprep.recipe.object_rules import FormatRule, MaskRule
from shardprep.source.members import Member

if TYPE_CHECKING:
    from shardprep.recipe.recipe import Recipe

_MOST_SHOWN = 80
"""Characters of a name in an error."""
NO_ANNOTATION, NO_MASK = "no annotation", "no mask"
"""Reasons for leaving out an image in a split that has annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationFacts:
    """The boxes and masks of a source, without those of each image."""

    spec: AnnotationSpec
    names: tuple[str, ...]
    """Class names of objects and of the values of masks."""
    how: str
    """Formats and dialects, in one line for the user."""
    without_image: tuple[str, ...] = ()
    """Names of annotated images that the source does not have."""
    unmatched: Unmatched | None = None
    """Annotations without an image, and images without an annotation; None without any."""
    documents: frozenset[str] = frozenset()
    """Keys of the members that were read for them."""
    num_objects: dict[str, int] = field(default_factory=dict)
    """Objects by class, in the order of classes, where they are known before masks are read."""
    num_background: int = 0
    """Images of which it is known that they have no object."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Objects that are left out already, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """The annotations of all images, in the order of their keys."""

    facts: AnnotationFacts
    annotations: list[Annotation | None]
    """None where no annotation lists the image."""
    masks: list[tuple[Member, ...]]
    """The mask files of each image."""
    lacks: list[str]
    """The reason to leave an image out that no annotation lists, "" for one that is listed."""
    is_background: bool
    """Whether images that no annotation lists have no objects, where others of their split are."""
    strata: list[tuple[int, ...]]
    """The classes in each image, as far as they are known."""
    splits: list[str | None] | None = None
    unmapped: tuple[str, ...] = ()
    """Old names of the class map that no class has."""
    findings: list[str] = field(default_factory=list)

    @property
    def has_background(self) -> bool:
        """Whether an image without objects can be stored: its mask needs a class for that."""
        spec = self.facts.spec
        return spec.masks != "classes" or spec.background != spec.ignore


def annotate(recipe: Recipe, images: Images, naming: Naming) -> Annotated:
    """Return the annotations that `--boxes` and `--masks` name.

    Raises:
        RecipeError: the options contradict each other.
        SourceError: a document cannot be read, or too many objects are bad.

    """
    rule = recipe.rules.masks
    has_numbers = holds_numbers(recipe, images.beside)
    _check(recipe, rule, has_numbers=has_numbers)
    numbered = numbered_objects(recipe, images) if has_numbers else None
    boxes, shapes = _boxes_and_shapes(recipe, rule, images, numbered)
    objects = shapes or boxes
    mode: Literal["none", "classes", "instances"] = "none"
    if rule.is_given:
        mode = "instances" if recipe.instances else "classes"
    found = FileMasks.none(len(images.index.keys))
    names: tuple[str, ...] = ()
    if numbered is not None:
        masks = [tuple(images.beside.of(key)) for key in images.index.keys]
        found = found._replace(masks=masks, is_read=True)
    elif images.beside.files is not None:
        found = read_mask_files(
            recipe, images, naming if boxes is None else Naming(naming.class_map)
        )
        names = found.values.names
    if objects is not None:
        has_background = mode == "classes" and shapes is not None and not shapes.segments
        annotations, names = renamed(objects, naming, names, has_background=has_background)
        if shapes is not None and not shapes.segments:
            annotations = [one and _outlined(one) for one in annotations]
    else:
        annotations = found.annotations
    is_panoptic = numbered is not None or (shapes is not None and bool(shapes.segments))
    if shapes is not None and shapes.segments:
        masks = masks_of_segments(shapes, images.beside.segments, len(annotations))
        found = found._replace(masks=masks)
    lacks = _lacks(annotations, found, objects)
    is_background = recipe.unlisted == "background"
    if recipe.unlisted == "auto" and objects is not None:
        is_background = objects.is_complete and not found.is_read
    spec = AnnotationSpec(
        boxes=boxes is not None or mode == "instances",
        masks=mode,
        crowds=any(one is not None and one.crowds for one in annotations),
        num_classes=len(names),
        is_binary=found.values.is_binary,
        is_panoptic=is_panoptic,
        ids_are_values=numbered is not None,
        min_visible=recipe.min_visible,
        frame=None if recipe.annotated == "auto" else recipe.annotated,
    )
    has_own = found.is_read and (mode == "classes" or bool(recipe.mask_values))
    background = found.values.background if has_own else NONE if is_panoptic else 0
    spec = replace(
        spec,
        values=found.values.stored(spec.ignore),
        background=spec.ignore if background == NONE else background,
    )
    if recipe.unlisted == "background" and mode == "classes" and background == NONE:
        what = "takes images as background, and no class of the masks is called so"
        raise RecipeError("--unlisted background", what, "name it with --mask-values or --classes")
    parts = [one for one in (boxes, shapes) if one is not None and one is not objects]
    sources = [*parts, *([objects] if objects else [])]
    strata = [_present(one, more) for one, more in zip(annotations, found.present, strict=True)]
    raw = {*(name for one in sources for name in one.names), *found.raw_names}
    counts, dropped = _counts(annotations)
    unmatched = _unmatched(objects, images.left_out)
    _check_dropped(counts.total(), dropped + unmatched, recipe.max_dropped, objects)
    return Annotated(
        facts=AnnotationFacts(
            spec=spec,
            names=names,
            how="; ".join([*(one.how for one in sources), *([found.how] if found.how else [])]),
            without_image=tuple(objects.without_image) if objects else (),
            unmatched=unmatched_of(unmatched, 0),
            documents=frozenset(key for one in sources for key in one.documents),
            num_objects={name: counts[i] for i, name in enumerate(names) if counts[i]},
            dropped=dict(sorted(dropped.items())),
        ),
        annotations=annotations,
        masks=found.masks,
        lacks=lacks,
        is_background=is_background,
        strata=strata,
        splits=objects.splits if objects else None,
        unmapped=tuple(name for name in naming.class_map if name not in raw),
        findings=[*(line for one in sources for line in one.findings), *found.values.findings],
    )


def _boxes_and_shapes(
    recipe: Recipe, rule: MaskRule, images: Images, numbered: Found | None
) -> tuple[Found | None, Found | None]:
    """Return the objects with their boxes, and those whose outlines are drawn; None for neither.

    `numbered` are the objects of masks that hold their numbers.
    """
    boxes = None
    if recipe.rules.boxes.is_given:
        boxes = numbered or _read(recipe, recipe.rules.boxes, images)
    shapes = numbered or _shapes(recipe, rule, images, boxes)
    _check_boxes(recipe, images, boxes, shapes)
    if boxes is not None and shapes is not None and boxes is not shapes:
        boxes = shapes = _beside(recipe, boxes, shapes)
    return boxes, shapes


def _read(recipe: Recipe, rule: FormatRule, images: Images) -> Found:
    has_outlines = recipe.rules.masks.kind == "format"
    found = read_boxes(
        rule,
        images.index,
        images.documents,
        extents=images.extents,
        outlines=has_outlines,
        areas=has_outlines and not recipe.instances,
    )
    if recipe.annotated_size == "file":
        return found
    return replace(
        found, annotations=[one and replace(one, size=None) for one in found.annotations]
    )


def _shapes(recipe: Recipe, rule: MaskRule, images: Images, boxes: Found | None) -> Found | None:
    """Return the objects whose outlines are drawn, None where masks are files or there are none."""
    if rule.kind == "rle":
        order = None if recipe.rle == "auto" else recipe.rle
        return read_runs(rule.runs, images.index, images.documents, images.extents, order)
    if rule.kind == "format":
        is_same = recipe.masks == recipe.boxes
        return boxes if is_same else _read(recipe, rule.outlines, images)
    return None


def _check_boxes(recipe: Recipe, images: Images, boxes: Found | None, shapes: Found | None) -> None:
    def size_of(image: int) -> tuple[int, int] | None:
        is_shown = recipe.annotated != "stored"  # heads tell how an image is shown
        return image_size(images.extents[image]) if is_shown else None

    named = [("--boxes", recipe.boxes, boxes)]
    named += [("--masks", recipe.masks, shapes)] if shapes is not boxes else []
    for flag, value, found in named:
        if found is not None:
            check_boxes(found, f"{flag} {value}", images.index.keys, size_of, recipe.max_clipped)


def _beside(recipe: Recipe, boxes: Found, shapes: Found) -> Found:
    """Return the boxes of a document and the masks of another, which must be panoptic."""
    if not shapes.segments:
        raise _other_objects(recipe)
    return with_segments(boxes, shapes)


def _other_objects(recipe: Recipe) -> RecipeError:
    what = f"{recipe.masks!r} lists other objects than --boxes {recipe.boxes}"
    hint = f"take both from one document: --boxes {recipe.masks}, or leave one of them out"
    return RecipeError("--masks", what, hint)


def _check(recipe: Recipe, rule: MaskRule, *, has_numbers: bool) -> None:
    """Raise a RecipeError for options that mean nothing together."""
    has_boxes = recipe.rules.boxes.is_given
    is_other = rule.kind == "rle" or (rule.kind == "format" and recipe.masks != recipe.boxes)
    is_coco = rule.outlines.kind == "coco" and bool(rule.outlines.files)
    may_be_panoptic = is_coco and not recipe.instances
    if has_boxes and is_other and not may_be_panoptic:
        raise _other_objects(recipe)
    is_numbered = has_numbers and recipe.rules.boxes.kind == "voc"
    if has_boxes and recipe.instances and rule.kind == "pattern" and not is_numbered:
        what = "a mask for each object in files, and boxes elsewhere: nothing says which is whose"
        raise RecipeError("--instances", what, "leave --boxes out: boxes come from the masks")
    if recipe.instances and not rule.is_given:
        raise RecipeError("--instances", "there are no masks", "say where they are with --masks")
    if recipe.mask_values and rule.kind != "pattern":
        what = "means nothing without masks in files"
        raise RecipeError("--mask-values", what, "leave it out, or name them with --masks")
    if recipe.rle != "auto" and rule.kind != "rle":
        raise RecipeError("--rle", "means nothing without run lengths", "add --masks rle:…")


def _lacks(
    annotations: Sequence[Annotation | None], files: FileMasks, objects: Found | None
) -> list[str]:
    """Return the reason to leave each image out, "" for one that is listed."""
    reason = NO_MASK if objects is None else NO_ANNOTATION
    pairs = zip(annotations, files.masks, strict=True)
    return [
        reason if one is None else NO_MASK if not masks and (files.is_read or _has(one)) else ""
        for one, masks in pairs
    ]


def _has(one: Annotation) -> bool:
    """Tell whether an annotation has segments, which are drawn in a mask file."""
    return bool(one.areas) or any(isinstance(outline, Segment) for outline in one.outlines)


def settled(annotated: Annotated, splits: Sequence[str | None], recipe: Recipe) -> Annotated:
    """Return the annotations of images in their splits.

    A split without a single annotation is unlabelled. In others, images that no annotation lists
    are background, or lack something.

    Raises:
        SourceError: a larger share of the images than `--max-dropped` is background unasked.

    """
    listed = {s for s, lack in zip(splits, annotated.lacks, strict=True) if not lack}
    nothing = Annotation()
    made: list[Annotation | None] = []
    lacks: list[str] = []
    num_labelled = num_unlisted = 0
    rows = zip(annotated.annotations, annotated.lacks, splits, strict=True)
    for one, lack, split in rows:
        is_unlabelled = split not in listed
        is_filled = bool(lack) and not is_unlabelled and annotated.is_background
        num_labelled += not is_unlabelled
        num_unlisted += is_filled
        made.append(None if is_unlabelled else (one or nothing) if is_filled else one)
        lacks.append("" if is_unlabelled or is_filled else lack)
    num_background = sum(
        one is not None and not (one.labels or one.fault or masks)
        for one, masks in zip(made, annotated.masks, strict=True)
    )
    if recipe.unlisted == "auto" and num_unlisted > recipe.max_dropped * num_labelled:
        what = f"no annotation lists {num_unlisted:,} of {counted(num_labelled, 'image')}"
        hint = "--unlisted background takes them as images without objects, skip leaves them out"
        raise SourceError("--unlisted auto", f"{what}, more than {recipe.max_dropped:.3g}", hint)
    known = annotated.facts.unmatched
    unmatched = unmatched_of(known.objects if known else {}, num_unlisted)
    facts = replace(annotated.facts, num_background=num_background, unmatched=unmatched)
    return replace(annotated, annotations=made, lacks=lacks, facts=facts)


def _present(one: Annotation | None, more: tuple[int, ...]) -> tuple[int, ...]:
    areas = (label for _, label in one.areas) if one is not None else ()
    return tuple(sorted({*one.labels, *more, *areas})) if one is not None else ()


def _counts(annotations: Sequence[Annotation | None]) -> tuple[Counter[int], Counter[str]]:
    """Return the number of objects by class, and of those that are dropped by reason."""
    counts: Counter[int] = Counter()
    dropped: Counter[str] = Counter()
    for one in annotations:
        if one is not None:
            counts.update(one.labels)
            dropped.update(one.dropped)
    return counts, dropped


def _outlined(one: Annotation) -> Annotation:
    """Return an annotation without the objects that have no outline, which no mask can show."""
    if one.outlines and None not in one.outlines:
        return one
    has_outline = [outline is not None for outline in one.outlines] or [False] * len(one.labels)
    return one.of(has_outline, NO_OUTLINE) if not all(has_outline) else one


def _unmatched(objects: Found | None, left_out: Collection[str]) -> Counter[str]:
    """Return how many objects are of no image, by reason.

    `left_out` are the keys of images that the recipe leaves out; their names tell them.
    """
    found: Counter[str] = Counter()
    if objects is not None:
        names = {key.rpartition("/")[2] for key in left_out if objects.without_image}
        names.update({stem(name) for name in names})
        for text, count in objects.without_image.items():
            name = text.replace("\\", "/").rpartition("/")[2]
            found[LEFT_OUT if {name, stem(name)} & names else NO_IMAGE] += count
        found[ELSEWHERE] = objects.num_elsewhere
    return +found


def _check_dropped(
    num_objects: int, dropped: Counter[str], most: float, objects: Found | None
) -> None:
    """Raise a SourceError if a larger share of the objects is bad than may be dropped."""
    bad = {reason: count for reason, count in dropped.items() if reason not in NO_FAULTS}
    num_bad = sum(bad.values())
    total = num_objects + num_bad
    if num_bad > most * total:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(bad.items()))
        what = f"{num_bad:,} of {total:,} objects are bad ({counts}), more than {most:.3g}"
        if bad.get(NO_IMAGE) and objects is not None:
            named = objects.without_image.items()
            missing = [shown(name, _MOST_SHOWN) for name, count in named if count]
            what += f"; no image is there for {some_of(missing)}"
        hint = "a larger share accepts them"
        if bad.get(NO_OUTLINE, 0) == num_objects + num_bad:
            hint = "leave --masks out: the source has boxes alone"
        raise SourceError("--max-dropped", what, hint)
