"""Join the objects, masks and keypoints of each image into its annotation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from shardprep.catalog.names import stem
from shardprep.catalog.objects.annotation_reading import (
    StatedAnnotations,
    has_keypoints,
    read_annotations,
)
from shardprep.catalog.objects.formats.box_format import image_head, image_size
from shardprep.catalog.objects.image_points import FoundPoints
from shardprep.catalog.objects.mask_reading import FileMasks
from shardprep.catalog.objects.mask_values import BACKGROUND, NONE
from shardprep.catalog.objects.object_table import NO_FAULTS, NOT_ASKED_FOR, ONE_CLASS, Found
from shardprep.catalog.source_images import SourceImages
from shardprep.catalog.targets import Naming
from shardprep.dataset.manifest import ELSEWHERE, LEFT_OUT, NO_IMAGE, Unmatched, unmatched_of
from shardprep.errors import OptionName, RecipeError, SourceError, counted, shown, some_of
from shardprep.image.annotation_types import (
    FRAMES,
    NO_OUTLINE,
    Annotation,
    AnnotationSpec,
    Frame,
    Segment,
    Skeleton,
)
from shardprep.image.placement import Placement
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import StoredExtent
from shardprep.source.members import Member
from shardprep.storage.url import is_url

_BOXES, _MASKS, _CLASSES = OptionName("boxes"), OptionName("masks"), OptionName("classes")
_POINTS, _MASK_VALUES = OptionName("points"), OptionName("mask_values")
NO_ANNOTATION, NO_MASK = "no annotation", "no mask"
"""Reasons to leave out an image, if other images of its split are annotated."""
_MOST_NAMES = 8
_MOST_SIZES, _MOST_BY_URL = 512, 64
"""Maximum number of local and of remote images that are read for their EXIF tags."""
_ORIENTATIONS = range(2, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationFacts:
    """Classes, counts and storage form of all annotations of a source."""

    spec: AnnotationSpec
    names: tuple[str, ...]
    how: str
    without_image: tuple[str, ...] = ()
    unmatched: Unmatched | None = None
    documents: frozenset[str] = frozenset()
    num_objects: dict[str, int] = field(default_factory=dict)
    """Class name → number of objects, in class order; masks that are not decoded do not count."""
    num_background: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """The annotations of all images, in the order of their keys."""

    facts: AnnotationFacts
    annotations: list[Annotation | None]
    masks: list[tuple[Member, ...]]
    lacks: list[str]
    """Reason to leave out each image; "" if it is annotated."""
    is_background: bool
    """Whether an unlisted image has no objects, if its split has listed images."""
    has_rows: bool
    """Whether a table has a row for each image, so that a row without boxes is intended."""
    strata: list[tuple[int, ...]]
    """Class indices of each image; masks that are not decoded do not count."""
    splits: list[str | None] | None = None
    are_listed: bool = False
    """Whether `splits` come from lists, so that an image on no list has no split."""
    unmapped: tuple[str, ...] = ()
    findings: list[str] = field(default_factory=list)

    @property
    def has_background(self) -> bool:
        """Whether images without objects can be stored; class masks need a background class."""
        spec = self.facts.spec
        return spec.masks != "classes" or spec.background != spec.ignore


def annotate(images: SourceImages, naming: Naming) -> Annotated:
    """Return the annotations of all images as `--boxes`, `--masks` and `--points` select them.

    SourceError above the share `--max-dropped` of invalid objects. See also `read_annotations`.
    """
    recipe = images.recipe
    read = read_annotations(recipe, images, naming)
    annotations, names = _classed(recipe, read, naming)
    if read.points is not None:
        annotations = _with_points(annotations, read.points)
    frames, open_frames = _annotated_frames(images, annotations, read.files.masks)
    spec = replace(_spec(recipe, read, annotations, names), frames=frames)
    counts, dropped = _counts(annotations)
    objects, files = read.objects, read.files
    sources: list[Found | FoundPoints] = [one for one in (objects, read.points) if one is not None]
    without_image = {name: count for one in sources for name, count in one.without_image.items()}
    unmatched = _unmatched(without_image, [one.key for one in images.skipped])
    unmatched[ELSEWHERE] = objects.num_elsewhere if objects else 0
    unmatched = +unmatched
    num_points = read.points.num_labelled if read.points is not None else 0

    def such(reason: str) -> str:
        if objects and reason in objects.examples:
            return objects.examples[reason]
        with_one = (i for i, one in enumerate(annotations) if one and reason in one.dropped)
        return "".join(f"see {images.index.keys[i]}" for i in islice(with_one, 1))

    lost = dropped + unmatched
    _check_dropped(counts.total() + num_points, lost, recipe.max_dropped, without_image, such)
    raw = {*(objects.names if objects else ()), *files.raw_names}
    is_background = recipe.unlisted == "background"
    if recipe.unlisted in ("auto", "train") and objects is not None:
        is_background = objects.is_complete and not files.is_read
    return Annotated(
        facts=AnnotationFacts(
            spec=spec,
            names=names,
            how="; ".join(filter(None, [*(one.how for one in sources), files.how])),
            without_image=tuple(without_image),
            unmatched=unmatched_of(unmatched, 0),
            documents=frozenset(key for one in sources for key in one.documents),
            dropped=dict(sorted(dropped.items())),
        ),
        annotations=annotations,
        masks=files.masks,
        lacks=_lacks(annotations, files, objects),
        is_background=is_background,
        has_rows=objects is not None and objects.has_rows,
        strata=[_present(one, more) for one, more in zip(annotations, files.present, strict=True)],
        splits=objects.splits if objects else None,
        are_listed=objects is not None and objects.are_listed,
        unmapped=tuple(name for name in naming.class_map if name not in raw),
        findings=[
            *(line for one in sources for line in one.findings),
            *files.values.findings,
            *_shared_list(read, names),
            *_unused_classes(objects, naming),
            *open_frames,
        ],
    )


def _annotated_frames(
    images: SourceImages,
    annotations: Sequence[Annotation | None],
    masks: Sequence[Sequence[Member]],
) -> tuple[tuple[Frame, ...], list[str]]:
    """Return the frames to try, the likeliest first, and a finding if sizes prove no frame.

    A turn by 90° swaps height and width, so the size in an annotation or mask file shows whether it
    was made on the upright image. Images with other orientations are assumed to have this frame.
    """
    annotated = images.recipe.annotated
    if annotated != "auto":
        return (annotated,), []
    stored = [
        i
        for i, one in enumerate(annotations)
        if (masks[i] or one is not None) and isinstance(images.members[i].extent, StoredExtent)
    ]
    is_far = bool(stored) and is_url(images.members[stored[0]].extent.span.file)
    some = stored[:: -(-len(stored) // (_MOST_BY_URL if is_far else _MOST_SIZES)) or 1]
    proven: set[Frame] = set()
    num_open = 0
    for i in some:
        head = image_head(images.members[i].extent)
        if head is None or head.orientation not in _ORIENTATIONS:
            continue
        one = annotations[i]
        size = (one and one.size) or (image_size(masks[i][0].extent) if masks[i] else None)
        placement = Placement.whole(*head)
        fits = [frame for frame in FRAMES if size and placement.frame(size, (frame,))]
        proven.update(fits if len(fits) == 1 else ())
        num_open += len(fits) != 1
    if len(proven) == 1 or not num_open:
        return FRAMES[::-1] if proven == {"stored"} else FRAMES, []
    how = "their sizes disagree" if proven else "no size shows"
    finding = (
        f"{num_open:,} of {counted(len(some), 'image')} with annotations have an EXIF orientation, "
        f"and {how} whether they were annotated upright; upright is assumed: set "
        f"{OptionName('annotated')} to upright or stored"
    )
    return FRAMES, [finding]


def _with_points(
    annotations: Sequence[Annotation | None], found: FoundPoints
) -> list[Annotation | None]:
    with_points = list(annotations)
    for image in found.points.keys() | found.lost.keys():
        one = with_points[image] or Annotation()
        with_points[image] = replace(
            one,
            points=found.points.get(image),
            has_relative_points=found.is_relative,
            lost_points=found.lost.get(image, {}),
        )
    return with_points


def _classed(
    recipe: Recipe, read: StatedAnnotations, naming: Naming
) -> tuple[list[Annotation | None], tuple[str, ...]]:
    names = read.files.values.names
    if read.objects is None:
        return read.files.annotations, names
    is_drawn = read.shapes is not None and not read.has_segments
    before = (BACKGROUND,) if is_drawn and not recipe.instances else names
    annotations, names = _renamed(read.objects, naming, before)
    if is_drawn:
        annotations = [one and _outlined(one) for one in annotations]
    return annotations, names


def _shared_list(read: StatedAnnotations, names: Sequence[str]) -> list[str]:
    """Return a note if masks without class names and objects are in one list of classes."""
    values = read.files.values
    if not values.names or not values.is_unnamed or len(names) == len(values.names):
        return []
    what = f"masks and objects have one list of classes: {some_of(names, _MOST_NAMES)}"
    pairs = ",".join(f"{number}=NAME" for number in values.names[:_MOST_NAMES])
    return [f"{what}; {OptionName('mask_values', pairs)} gives the masks names"]


def _unused_classes(found: Found | None, naming: Naming) -> list[str]:
    """Return a note on classes of `--classes` that no object has, unless images have labels."""
    called = naming.of(found.names) if found is not None and found.names != (ONE_CLASS,) else []
    lost = [one for one in naming.wanted(called) if one not in called] if called else []
    return [f"{_CLASSES}: no object is of class {some_of(lost)}"] if lost else []


def _renamed(
    found: Found, naming: Naming, before: tuple[str, ...]
) -> tuple[list[Annotation | None], tuple[str, ...]]:
    """Return the annotations of wanted classes, and all class names, which start with `before`."""
    called = naming.of(found.names)
    if found.names == (ONE_CLASS,) and len(naming.classes) == 1 and not naming.is_of_labels:
        called = list(naming.classes)
    ordered = naming.ordered(called, "objects")
    names = tuple(dict.fromkeys((*before, *ordered)))
    place = {name: i for i, name in enumerate(names)}
    wanted = set(ordered)
    number = [place[name] if name in wanted else NONE for name in called]
    if number == list(range(len(called))):
        return found.annotations, names
    return [one and _relabelled(one, number) for one in found.annotations], names


def _relabelled(one: Annotation, number: Sequence[int]) -> Annotation:
    """Return the annotation with label i replaced by `number[i]`; objects of `NONE` are dropped."""
    labels = tuple(number[label] for label in one.labels)
    areas = tuple((area, number[at]) for area, at in one.areas if number[at] != NONE)
    known = replace(one, labels=labels, areas=areas)
    if NONE not in labels:
        return known
    return known.of([label != NONE for label in labels], NOT_ASKED_FOR)


def _spec(
    recipe: Recipe,
    read: StatedAnnotations,
    annotations: Sequence[Annotation | None],
    names: Sequence[str],
) -> AnnotationSpec:
    mode: Literal["none", "classes", "instances"] = "none"
    if recipe.rules.masks.is_given:
        mode = "instances" if recipe.instances else "classes"
    values = read.files.values
    is_panoptic = read.is_numbered or read.has_segments
    has_own = read.files.is_read and (mode == "classes" or bool(recipe.mask_values))
    background = values.background if has_own else NONE if is_panoptic else 0
    if recipe.unlisted == "background" and mode == "classes" and background == NONE:
        what = "the masks have no class called background"
        hint = f"name a class background with {_MASK_VALUES} or {_CLASSES}"
        hint = hint if has_own else "leave this option out"
        raise RecipeError(OptionName("unlisted", "background"), what, hint)
    spec = AnnotationSpec(
        boxes=read.boxes is not None or mode == "instances",
        masks=mode,
        keypoints=_skeleton(read.boxes) if has_keypoints(recipe) else None,
        points=read.points.skeleton if read.points else None,
        num_classes=len(names),
        is_binary=values.is_binary,
        is_panoptic=is_panoptic,
        ids_are_values=read.is_numbered,
        min_visible=recipe.min_visible,
    )
    stated = {name for one in annotations if one for name in one.attributes}
    return replace(
        spec,
        attributes=tuple(sorted(stated)) if spec.has_objects else (),
        values=values.stored(spec.ignore),
        background=spec.ignore if background == NONE else background,
    )


def _skeleton(found: Found | None) -> Skeleton:
    if found is None or found.skeleton is None or not found.skeleton.names:
        what = "no object has keypoints"
        raise SourceError(_POINTS, what, f"leave this option out: {_BOXES} alone stores boxes")
    return found.skeleton


def _lacks(
    annotations: Sequence[Annotation | None], files: FileMasks, objects: Found | None
) -> list[str]:
    reason = NO_MASK if objects is None and files.is_read else NO_ANNOTATION
    lacks = []
    for one, masks in zip(annotations, files.masks, strict=True):
        if one is None:
            lacks.append(reason)
            continue
        has_segments = bool(one.areas) or any(isinstance(part, Segment) for part in one.outlines)
        lacks.append(NO_MASK if not masks and (files.is_read or has_segments) else "")
    return lacks


def settled(annotated: Annotated, splits: Sequence[str | None], recipe: Recipe) -> Annotated:
    """Return the annotations after deciding on each unlisted image, by its split.

    An image in no split, or in a split without annotations, gets no annotation. In other splits, an
    unlisted image becomes background, or keeps its reason in `lacks`. SourceError if `--unlisted`
    "auto" or "train" would make too many images background.
    """
    listed = {s for s, lack in zip(splits, annotated.lacks, strict=True) if s and not lack}
    nothing = Annotation()
    made: list[Annotation | None] = []
    lacks: list[str] = []
    num_labelled = num_unlisted = 0
    for one, lack, split in zip(annotated.annotations, annotated.lacks, splits, strict=True):
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
    are_many = num_unlisted > recipe.max_dropped * num_labelled and not annotated.has_rows
    if recipe.unlisted in ("auto", "train") and are_many:
        what = f"{num_unlisted:,} of {counted(num_labelled, 'image')} have no annotation, more than"
        empty, skip = OptionName("unlisted", "background"), OptionName("unlisted", "skip")
        hint = f"use {empty} to store them without objects, or {skip} to leave them out"
        what = f"{what} {OptionName('max_dropped', f'{recipe.max_dropped:.3g}')} allows"
        raise SourceError(OptionName("unlisted", "auto"), what, hint)
    known = annotated.facts.unmatched
    unmatched = unmatched_of(known.objects if known else {}, num_unlisted)
    names, (counts, _) = annotated.facts.names, _counts(made)
    facts = replace(
        annotated.facts,
        num_objects={name: counts[i] for i, name in enumerate(names) if counts[i]},
        num_background=num_background,
        unmatched=unmatched,
    )
    return replace(annotated, annotations=made, lacks=lacks, facts=facts)


def _present(one: Annotation | None, more: tuple[int, ...]) -> tuple[int, ...]:
    if one is None:
        return ()
    return tuple(sorted({*one.labels, *more, *(label for _, label in one.areas)}))


def _counts(annotations: Sequence[Annotation | None]) -> tuple[Counter[int], Counter[str]]:
    counts: Counter[int] = Counter()
    dropped: Counter[str] = Counter()
    for one in annotations:
        if one is not None:
            counts.update(one.labels)
            dropped.update(one.dropped)
    return counts, dropped


def _outlined(one: Annotation) -> Annotation:
    has_outline = [outline is not None for outline in one.outlines] or [False] * len(one.labels)
    return one.of(has_outline, NO_OUTLINE) if not all(has_outline) else one


def _unmatched(without_image: Mapping[str, int], left_out: Collection[str]) -> Counter[str]:
    """Return reason → number of objects without an image; `left_out` are keys of skipped images."""
    found: Counter[str] = Counter()
    names = {key.rpartition("/")[2] for key in left_out if without_image}
    names.update({stem(name) for name in names})
    for text, count in without_image.items():
        name = text.replace("\\", "/").rpartition("/")[2]
        found[LEFT_OUT if {name, stem(name)} & names else NO_IMAGE] += count
    return found


def _check_dropped(
    num_objects: int,
    dropped: Counter[str],
    most: float,
    without_image: Mapping[str, int],
    such: Callable[[str], str],
) -> None:
    bad = {reason: count for reason, count in dropped.items() if reason not in NO_FAULTS}
    num_bad = sum(bad.values())
    total = num_objects + num_bad
    if num_bad > most * total:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(bad.items()))
        what = f"{num_bad:,} of {total:,} objects are invalid ({counts}), a share above {most:.3g}"
        if bad.get(NO_IMAGE):
            missing = [shown(name) for name, count in without_image.items() if count]
            what += f", and there is no image for {some_of(missing)}"
        elif example := such(max(bad, key=bad.__getitem__)):
            what += f": {example}"
        hint = "correct the annotations, or give a larger share"
        if bad.get(NO_OUTLINE, 0) == num_objects + num_bad:
            hint = f"leave {_MASKS} out: the source has only boxes"
        raise SourceError(OptionName("max_dropped"), what, hint)
