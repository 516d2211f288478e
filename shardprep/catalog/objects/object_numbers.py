"""Masks that hold numbers of objects, as Pascal VOC's SegmentationObject: the class of each.

The number of an object is its place in the XML of the image; or its pixels have the class of the
file of the same name in SegmentationClass.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.objects.detect_by_name import OF_OBJECTS
from shardprep.catalog.objects.find_documents import ENOUGH
from shardprep.catalog.objects.known_formats import read_numbered_boxes
from shardprep.catalog.objects.masks.mask_values import NONE, MaskValues, given_values, told_values
from shardprep.catalog.objects.object_table import UNKNOWN_CLASS
from shardprep.catalog.objects.parsed import Found
from shardprep.errors import SourceError
from shardprep.image.annotation_types import NO_NUMBERS, Annotation, AnnotationSpec, Segment
from shardprep.image.masks import MaskError, decode_mask, decode_numbers, mask_classes
from shardprep.image.placement import Labels
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member

if TYPE_CHECKING:
    from shardprep.catalog.objects.masks.mask_files import MasksBeside
    from shardprep.catalog.objects.masks.mask_reading import Images
    from shardprep.recipe.recipe import Recipe

_NUM_THREADS = 2


def holds_numbers(recipe: Recipe, beside: MasksBeside) -> bool:
    """Tell whether the masks are those of SegmentationObject, and objects are to be kept apart."""
    is_apart = recipe.instances and not beside.class_of
    return is_apart and any(map(OF_OBJECTS.search, beside.members))


def numbered_objects(recipe: Recipe, images: Images) -> Found | None:
    """Return the objects of masks that `holds_numbers` is true of, each with its class and segment.

    XML has the names of classes; without any, or with `--mask-values`, class files are decoded.
    None where neither is there: the objects are of one class. Boxes are NaN unless asked for.

    Raises:
        SourceError: the XML that is asked for is not there, or class files cannot be read.

    """
    if recipe.rules.boxes.is_given:
        return read_numbered_boxes(images.index, images.documents)
    has_files = bool(images.beside.classes)
    found = None if recipe.mask_values and has_files else _by_xml(images)
    return _by_class_files(recipe, images) if found is None and has_files else found


def _by_xml(images: Images) -> Found | None:
    try:
        found = read_numbered_boxes(images.index, images.documents)
    except SourceError:
        return None
    masked = [i for i, key in enumerate(images.index.keys) if images.beside.of(key)]
    if sum(found.annotations[i] is not None for i in masked) < ENOUGH * len(masked):
        return None
    boxless = [one and replace(one, boxes=_no_boxes(len(one.labels))) for one in found.annotations]
    return replace(found, annotations=boxless, how=f"classes by {found.how.partition(';')[0]}")


class _Pair(NamedTuple):
    """The mask of an image, and the file with the classes of its pixels."""

    objects: Member
    classes: Member


def _by_class_files(recipe: Recipe, images: Images) -> Found:
    beside = images.beside
    pairs: list[_Pair | None] = []
    for key in images.index.keys:
        classed = [
            _Pair(m, beside.classes[m.key]) for m in beside.of(key) if m.key in beside.classes
        ]
        pairs.append(classed[0] if classed else None)
    files = [pair.classes for pair in pairs if pair is not None]
    if not files:
        raise SourceError("--masks", f"no image that is used has a mask {recipe.masks}")
    if recipe.mask_values:
        values = given_values(recipe.mask_values, images.documents.read)
    else:
        values = told_values(files, recipe.max_pixels)
    reader = _ClassReader(values, recipe.max_pixels)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        found = list(pool.map(lambda pair: pair and reader.annotation(pair), pairs))
    return Found(
        annotations=found,
        names=reader.names,
        how=f"classes by SegmentationClass, {values.how}",
        documents=tuple(file.key for file in files),
        findings=list(values.findings),
    )


class _ClassReader:
    """What the values of class files mean for the objects of masks."""

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

    def annotation(self, pair: _Pair) -> Annotation:
        """Return the objects of a mask, each of the class that most of its pixels have.

        An object without pixels of a class is dropped and counted.
        """
        try:
            numbers = decode_numbers(pair.objects.extent.read(), self._max_pixels)
            classes = self._decoded(pair.classes)
        except (MaskError, MemberError) as error:
            return Annotation(fault=f"{pair.objects.key} or its file of classes {error}")
        if numbers.shape != classes.shape:
            return Annotation(fault=f"{pair.objects.key} and {pair.classes.key} differ in size")
        label_of = self._classes_of(numbers, classes)
        known = {number: label for number, label in label_of.items() if label != NONE}
        num_lost = len(label_of) - len(known)
        return Annotation(
            boxes=_no_boxes(len(known)),
            labels=tuple(known.values()),
            outlines=tuple(map(Segment, known)),
            dropped={UNKNOWN_CLASS: num_lost} if num_lost else {},
        )

    def _decoded(self, file: Member) -> Labels:
        return mask_classes(decode_mask(file.extent.read(), self._max_pixels), self._spec)

    def _classes_of(self, numbers: NDArray[np.uint32], classes: Labels) -> dict[int, int]:
        """Return the label of each number of an object, `NONE` where no pixel has a class."""
        pairs, counts = np.unique(
            numbers.astype(np.int64) << 16 | classes.astype(np.int64), return_counts=True
        )
        label_of: dict[int, int] = {}
        for i in np.argsort(counts, kind="stable").tolist():  # the most frequent comes last
            number, value = divmod(int(pairs[i]), 1 << 16)
            if number not in NO_NUMBERS:
                label = self._labels.get(value, NONE)
                label_of[number] = label_of.get(number, NONE) if label == NONE else label
        return dict(sorted(label_of.items()))


def _no_boxes(number: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.full((number, 4), np.nan)
