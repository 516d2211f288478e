"""Masks in files: the masks of each image, their classes, and the meaning of their values.

Masks in `SegmentationObject`, a folder of Pascal VOC, hold object numbers. The number of an object
is its position, from 1, in the XML of the image. Without XML, the mask of the same name in
`SegmentationClass` holds the class of its pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.names import OF_OBJECTS, natural_order
from shardprep.catalog.objects.formats import voc
from shardprep.catalog.objects.formats.annotated_source import ENOUGH, AnnotatedSource
from shardprep.catalog.objects.mask_files import MasksBeside
from shardprep.catalog.objects.mask_values import (
    BACKGROUND,
    NONE,
    NUMBERED,
    MaskValues,
    are_numbers,
    detected_values,
    given_values,
    naming_files,
)
from shardprep.catalog.objects.object_table import ONE_CLASS, UNKNOWN_CLASS, Found
from shardprep.catalog.source_images import SourceImages
from shardprep.catalog.stacks import spacings
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.targets import Naming
from shardprep.errors import OptionName, SourceError, counted, some_of
from shardprep.image.annotation_types import NO_NUMBERS, Annotation, AnnotationSpec, Floats, Segment
from shardprep.image.masks import MaskError, decode_mask, decode_numbers, mask_classes
from shardprep.image.placement import Labels
from shardprep.recipe.object_rules import FormatRule
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import MemberError, RefusedExtent
from shardprep.source.members import Member, StackExtent

_NUM_THREADS = 2
_MASKS, _CLASSES = OptionName("masks"), OptionName("classes")


class FileMasks(NamedTuple):
    """The mask files of each image, with the classes that their names and values state."""

    masks: list[tuple[Member, ...]]
    annotations: list[Annotation | None]
    present: list[tuple[int, ...]]
    values: MaskValues
    raw_names: tuple[str, ...] = ()
    how: str = ""
    is_read: bool = False

    @classmethod
    def none(cls, num_images: int) -> FileMasks:
        nothing: list[Annotation | None] = [None] * num_images
        return cls([()] * num_images, nothing, [()] * num_images, MaskValues(names=()))


def read_mask_files(recipe: Recipe, images: SourceImages, naming: Naming) -> FileMasks:
    """Return the mask files of all images, with their classes and the meaning of their values.

    SourceError if no image has a mask, or if classes or values are unclear.
    """
    keys, beside = images.index.keys, images.beside
    channels, members = len(recipe.rules.stack.channels) or 1, images.members
    times = np.where(members.num_files > channels, channels, 1).tolist()  # one mask per channel
    pairs = zip(members, times, strict=True)
    of_image = [_planes(beside.of(image.key), image, number) for image, number in pairs]
    used = [member for members in of_image for member in members]
    if not used:
        raise _no_masks(recipe, keys)
    values = _values(recipe, used, images, instances=recipe.instances)
    raw = values.names
    labels: list[Annotation | None] = [Annotation() if members else None for members in of_image]
    if beside.class_of or (recipe.instances and not recipe.mask_values):
        if not values.is_binary and not recipe.instances:
            what = f"{{class}} in the pattern needs masks of one class, but these hold {values.how}"
            raise SourceError(_MASKS, what, "leave {class} out: then values are classes")
        raw = tuple(sorted(set(beside.class_of.values()), key=natural_order)) or (ONE_CLASS,)
        values, labels = _by_file(raw, values, of_image, images, naming, recipe.instances)
    else:
        own = values.is_unnamed or values.is_binary
        wanted = naming.classes if own else naming.wanted(naming.of(values.names))
        values = values.renamed(naming.class_map, wanted)
        if values.is_unnamed:
            values = _with_hint(values, images.documents)
        if values.is_binary:
            labels = [Annotation(labels=(1,) * len(one)) if one else None for one in of_image]
    present = [one.labels if one else () for one in labels]
    if values.present:
        of_file = dict(zip((member.key for member in used), values.present, strict=True))
        present = [tuple({c for m in members for c in of_file[m.key]}) for members in of_image]
    found = [spacings([one, *beside.of(one.key)]) - {()} for one in members]
    if odd := sum(len(one) > 1 for one in found):
        what = f"{counted(odd, 'stack', 'has', 'have')} masks that state another spacing"
        values = replace(values, findings=(*values.findings, f"{what}: they may not fit"))
    how = f"{counted(len(used), 'mask')} {recipe.masks}, {values.how}"
    files = [tuple(members) for members in of_image]
    return FileMasks(files, labels, present, values, raw, how, is_read=True)


def _no_masks(recipe: Recipe, keys: Sequence[str]) -> SourceError:
    what = f"no selected image has a mask {recipe.masks}"
    return SourceError(_MASKS, what, f"change the pattern to fit images such as {keys[0]}")


def _planes(members: Sequence[Member], image: Member, times: int) -> list[Member]:
    """Return the masks of an image, or of the images of a stack in order, each repeated `times`.

    A mask gets a `RefusedExtent` if its axes point in other directions than in its stack.
    """
    directions: tuple[str, ...] = ()
    if isinstance(image.extent, StackExtent):
        members = sorted(members, key=lambda one: natural_order(one.key))
        directions = image.extent.directions
    extents = [(one, one.extent) for one in members]
    planes = [of.members if isinstance(of, StackExtent) else [one] for one, of in extents]
    turns = {of.directions for _, of in extents if isinstance(of, StackExtent)} - {(), directions}
    if turns and directions:
        ways = ["".join(one) for one in (min(turns), directions)]
        what = f"its axes point to {ways[0]}, but the axes of its image to {ways[1]}"
        refused = RefusedExtent(0, what, "bad_mask")
        planes = [[Member(one.key, refused) for one in some] for some in planes]
    return [plane for several in planes for plane in several for _ in range(times)]


def _values(
    recipe: Recipe, files: Sequence[Member], images: SourceImages, *, instances: bool = False
) -> MaskValues:
    if recipe.mask_values:
        return given_values(recipe.mask_values, images.documents.read)
    return detected_values(files, recipe.max_pixels, instances=instances)


_MOST_SPARSE = 8
"""Ratio of highest value to number of values, above which a remark asks for class names."""
_FEW = 0.01
"""Maximum share of masks with a highest value that may be a mistake."""
_STRAY = 0.05
"""Like `_FEW`, if the highest value is far above the number of values."""
_MOST_PAIRS = 16


def _with_hint(values: MaskValues, documents: Documents) -> MaskValues:
    present = {one for several in values.present for one in several}
    known = sorted(present - {0})
    if files := naming_files(present, documents):
        flags = " or ".join(str(OptionName("mask_values", file)) for file in files[:2])
        hint = f"classes of masks are called by their values; {flags} names them"
    elif known and max(known) > _MOST_SPARSE * len(known):
        pairs = [f"{one}=NAME" if one else f"0={BACKGROUND}" for one in sorted(present)]
        pairs = [*pairs[:_MOST_PAIRS], "…"] if len(pairs) > _MOST_PAIRS else pairs
        named = OptionName("mask_values", ",".join(pairs))
        hint = f"masks have only the values 0, {some_of([*map(str, known)])}: {named} names them"
        if len(known) > 1 and (few := _few_with(known[-1], values, _STRAY)):
            hint += f"; only {few} {known[-1]}"
    elif are_numbers(values.present):
        hint = f"masks: {NUMBERED}? {OptionName('instances')} keeps the objects apart"
    elif known and known[-1] - 1 not in (0, *known) and (few := _few_with(known[-1], values)):
        what = f"{few} the value {known[-1]}, and none has {known[-1] - 1}"
        hint = f"{what}: correct them if it is not a class"
    else:
        return values
    return replace(values, findings=(*values.findings, hint))


def _few_with(value: int, values: MaskValues, share: float = _FEW) -> str:
    """Return how many masks have a value, as "3 of 20,000 masks have"; "" if above `share`."""
    number, most = sum(value in one for one in values.present), len(values.present) * share
    every = counted(len(values.present), "mask", "has", "have")
    return f"{number:,} of {every}" if number <= most else ""


def _by_file(
    raw: tuple[str, ...],
    values: MaskValues,
    of_image: Sequence[Sequence[Member]],
    images: SourceImages,
    naming: Naming,
    instances: bool,  # noqa: FBT001
) -> tuple[MaskValues, list[Annotation | None]]:
    called = naming.of(raw)
    if raw == (ONE_CLASS,) and len(naming.classes) == 1:
        called = list(naming.classes)
    ordered = naming.ordered(called, "masks")
    if lost := set(called) - set(ordered):
        what = f"masks also have the class {some_of(sorted(lost))}"
        raise SourceError(
            _CLASSES,
            what,
            f"name all classes, or leave the files of others out with {OptionName('exclude')}",
        )
    names = ordered if instances else tuple(dict.fromkeys((BACKGROUND, *ordered)))
    number = {name: names.index(new) for name, new in zip(raw, called, strict=True)}
    classes = images.beside.class_of

    def of_mask(key: str) -> int:
        file = key if key in classes else key.rpartition("/")[0]  # for a file of several masks
        return number[classes.get(file, ONE_CLASS)]

    labels = [
        Annotation(labels=tuple(of_mask(m.key) for m in members)) if members else None
        for members in of_image
    ]
    return replace(values, names=names), labels


def holds_numbers(recipe: Recipe, beside: MasksBeside) -> bool:
    """Return whether masks in SegmentationObject are stored as one mask for each object."""
    has_numbers = any(map(OF_OBJECTS.search, beside.members))
    return has_numbers and recipe.instances and not beside.class_of


def numbered_objects(recipe: Recipe, images: SourceImages) -> Found | None:
    """Return the objects of masks with object numbers, each with its class and segment.

    Classes are read from XML, but with `--mask-values` or without XML from class masks. None if the
    source has neither XML nor class masks. Boxes are NaN unless the recipe stores boxes.
    """
    if recipe.rules.boxes.is_given:
        return _numbered_boxes(images)
    has_files = bool(images.beside.classes)
    found = None if recipe.mask_values and has_files else _by_xml(images)
    return _by_class_files(recipe, images) if found is None and has_files else found


def _numbered_boxes(images: SourceImages) -> Found:
    source = AnnotatedSource(images.index, images.documents, numbers=True)
    return voc.read(FormatRule("voc"), source)


def _by_xml(images: SourceImages) -> Found | None:
    try:
        found = _numbered_boxes(images)
    except SourceError:
        return None
    masked = [i for i, key in enumerate(images.index.keys) if images.beside.of(key)]
    if sum(found.annotations[i] is not None for i in masked) < ENOUGH * len(masked):
        return None
    boxless = [one and replace(one, boxes=_no_boxes(len(one.labels))) for one in found.annotations]
    return replace(found, annotations=boxless, how=f"classes by {found.how.partition(';')[0]}")


def _by_class_files(recipe: Recipe, images: SourceImages) -> Found:
    beside = images.beside
    pairs: list[tuple[Member, Member] | None] = []
    for key in images.index.keys:
        classed = [(m, beside.classes[m.key]) for m in beside.of(key) if m.key in beside.classes]
        pairs.append(classed[0] if classed else None)
    files = [pair[1] for pair in pairs if pair is not None]
    if not files:
        raise _no_masks(recipe, images.index.keys)
    values = _values(recipe, files, images)
    reader = _ClassReader(values, recipe.max_pixels)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        found = list(pool.map(lambda pair: pair and reader.annotation(*pair), pairs))
    return Found(
        annotations=found,
        names=reader.names,
        how=f"classes by SegmentationClass, {values.how}",
        documents=tuple(file.key for file in files),
        findings=list(values.findings),
    )


class _ClassReader:
    def __init__(self, values: MaskValues, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        spec = AnnotationSpec(
            masks="classes", num_classes=len(values.names), is_binary=values.is_binary
        )
        self._spec = replace(spec, values=values.stored(spec.ignore))
        ground = 0 if values.is_unnamed or values.is_binary else values.background
        kept = [i for i in range(len(values.names)) if i != ground]
        self._labels = {value: label for label, value in enumerate(kept)}
        self.names = tuple(values.names[i] for i in kept)

    def annotation(self, objects: Member, classes: Member) -> Annotation:
        """Return the objects of a mask, each with its most frequent class except background."""
        try:
            numbers = decode_numbers(objects.extent.read(), self._max_pixels)
            labels = mask_classes(decode_mask(classes.extent.read(), self._max_pixels), self._spec)
        except (MaskError, MemberError) as error:
            return Annotation(fault=f"{objects.key} or its file of classes {error}")
        if numbers.shape != labels.shape:
            return Annotation(fault=f"{objects.key} and {classes.key} differ in size")
        label_of = self._classes_of(numbers, labels)
        known = {number: label for number, label in label_of.items() if label != NONE}
        num_lost = len(label_of) - len(known)
        return Annotation(
            boxes=_no_boxes(len(known)),
            labels=tuple(known.values()),
            outlines=tuple(map(Segment, known)),
            dropped={UNKNOWN_CLASS: num_lost} if num_lost else {},
        )

    def _classes_of(self, numbers: NDArray[np.uint32], classes: Labels) -> dict[int, int]:
        pairs, counts = np.unique(
            numbers.astype(np.int64) << 16 | classes.astype(np.int64), return_counts=True
        )
        label_of: dict[int, int] = {}
        for i in np.argsort(counts, kind="stable").tolist():  # the most frequent overwrites others
            number, value = divmod(int(pairs[i]), 1 << 16)
            if number not in NO_NUMBERS:
                label = self._labels.get(value, NONE)
                label_of[number] = label_of.get(number, NONE) if label == NONE else label
        return dict(sorted(label_of.items()))


def _no_boxes(number: int) -> Floats:
    return np.full((number, 4), np.nan)
