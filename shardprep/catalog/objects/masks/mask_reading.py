"""Masks in files: those of each image, their classes, and what their values mean."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from shardprep.catalog.names import natural_order
from shardprep.catalog.objects.class_names import Naming
from shardprep.catalog.objects.formats.box_table import ONE_CLASS
from shardprep.catalog.objects.masks.mask_values import (
    BACKGROUND,
    NUMBERED,
    MaskValues,
    are_numbers,
    given_values,
    naming_files,
    told_values,
)
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError, some_of
from shardprep.image.annotation_types import Annotation
from shardprep.source.byte_range import Extent
from shardprep.source.members import Member

if TYPE_CHECKING:
    from shardprep.catalog.objects.masks.mask_files import MasksBeside
    from shardprep.catalog.tables.metadata_files import Documents
    from shardprep.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a source, and what lies beside them."""

    index: KeyIndex
    extents: Sequence[Extent]
    """Bytes of each image, in the order of the index."""
    documents: Documents
    beside: MasksBeside
    left_out: Sequence[str] = ()
    """Keys of the images that the recipe leaves out."""


class FileMasks(NamedTuple):
    """The mask files of all images."""

    masks: list[tuple[Member, ...]]
    annotations: list[Annotation | None]
    """The class of each file."""
    present: list[tuple[int, ...]]
    values: MaskValues
    raw_names: tuple[str, ...] = ()
    """Class names as the source has them."""
    how: str = ""
    is_read: bool = False

    @classmethod
    def none(cls, num_images: int) -> FileMasks:
        """Return what is known where no masks are in files."""
        nothing: list[Annotation | None] = [None] * num_images
        return cls([()] * num_images, nothing, [()] * num_images, MaskValues(names=()))


def read_mask_files(recipe: Recipe, images: Images, naming: Naming) -> FileMasks:
    """Return the masks of all images, and what their values mean."""
    keys, beside = images.index.keys, images.beside
    of_image = [beside.of(key) for key in keys]
    used = [member for members in of_image for member in members]
    if not used:
        what = f"no image that is used has a mask {recipe.masks}"
        raise SourceError("--masks", what, f"an image looks like {keys[0]}")
    if recipe.mask_values:
        values = given_values(recipe.mask_values, images.documents.read)
    else:
        values = told_values(used, recipe.max_pixels, instances=recipe.instances)
    raw = values.names
    labels: list[Annotation | None] = [Annotation() if members else None for members in of_image]
    if beside.class_of or (recipe.instances and not recipe.mask_values):
        if not values.is_binary and not recipe.instances:
            what = f"masks are not of one class each: they hold {values.how}"
            raise SourceError("--masks", what, "leave {class} out: the values are the classes")
        raw = tuple(sorted(set(beside.class_of.values()), key=natural_order)) or (ONE_CLASS,)
        values, labels = _by_file(raw, values, of_image, images, naming, recipe.instances)
    else:
        values = values.renamed(naming.class_map, naming.classes)
        if values.is_unnamed:
            values = _with_hint(values, images.documents)
        if values.is_binary:
            labels = [Annotation(labels=(1,) * len(one)) if one else None for one in of_image]
    present = [one.labels if one else () for one in labels]
    if values.present:
        of_file = dict(zip((member.key for member in used), values.present, strict=True))
        present = [tuple({c for m in members for c in of_file[m.key]}) for members in of_image]
    how = f"{len(used):,} masks {recipe.masks}, {values.how}"
    files = [tuple(members) for members in of_image]
    return FileMasks(files, labels, present, values, raw, how, is_read=True)


def _with_hint(values: MaskValues, documents: Documents) -> MaskValues:
    """Return the same, with the flag that gives names to values or takes them for objects."""
    files = naming_files(values, documents)
    if not files:
        hint = f"masks: {NUMBERED}? --instances keeps each apart"
        is_numbered = are_numbers(values.present)
        return replace(values, findings=(*values.findings, hint)) if is_numbered else values
    flags = " or ".join(f"--mask-values {shlex.quote(file)}" for file in files[:2])
    hint = f"classes of masks are called by their values; {flags} names them"
    return replace(values, findings=(*values.findings, hint))


def _by_file(
    raw: tuple[str, ...],
    values: MaskValues,
    of_image: Sequence[Sequence[Member]],
    images: Images,
    naming: Naming,
    instances: bool,  # noqa: FBT001
) -> tuple[MaskValues, list[Annotation | None]]:
    """Return the values and the classes of masks of which each is of one class."""
    called = naming.of(raw)
    if raw == (ONE_CLASS,) and len(naming.classes) == 1:
        called = list(naming.classes)
    ordered = naming.ordered(called, "masks")
    if lost := set(called) - set(ordered):
        what = f"masks are of class {some_of(sorted(lost))} as well"
        raise SourceError("--classes", what, "name all classes, or --exclude the others")
    names = ordered if instances else tuple(dict.fromkeys((BACKGROUND, *ordered)))
    number = {name: names.index(new) for name, new in zip(raw, called, strict=True)}
    classes = images.beside.class_of
    labels = [
        Annotation(labels=tuple(number[classes.get(m.key, ONE_CLASS)] for m in members))
        if members
        else None
        for members in of_image
    ]
    return replace(values, names=names), labels
