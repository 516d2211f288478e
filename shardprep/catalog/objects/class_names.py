"""The names of classes that are asked for: of labels, of objects and of masks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardprep.catalog.labels.targets import Cell, parse_class_map
from shardprep.catalog.objects.formats.box_table import ONE_CLASS
from shardprep.catalog.objects.masks.mask_values import BACKGROUND, NONE
from shardprep.catalog.objects.parsed import NOT_ASKED_FOR, Found
from shardprep.errors import OptionName, SourceError, some_of
from shardprep.image.annotation_types import Annotation
from shardprep.recipe.rules import parse_pairs

if TYPE_CHECKING:
    from shardprep.catalog.labels.labels import Labelling
    from shardprep.catalog.tables.metadata_files import Documents
    from shardprep.recipe.recipe import Recipe

_MOST_NAMES = 10
"""Number of class names in an error."""


class Naming(NamedTuple):
    """The names of classes that are asked for."""

    class_map: Mapping[str, str] = {}
    """Old name → new name."""
    classes: tuple[str, ...] = ()
    """Names in the wished order; () for those found."""
    is_of_labels: bool = False
    """Whether the classes are those of image labels, and may be none of objects."""

    def of(self, names: Sequence[str]) -> list[str]:
        """Return the new names of classes."""
        return [self.class_map.get(name, name) for name in names]

    def ordered(self, called: Sequence[str], where: str) -> tuple[str, ...]:
        """Return the wished classes, or those found; SourceError if no wished one is found."""
        if not self.classes or (self.is_of_labels and not set(self.classes) & set(called)):
            return tuple(dict.fromkeys(called))
        if called and not set(self.classes) & set(called):
            what = f"none of {some_of(self.classes, _MOST_NAMES)} is a class of the {where}"
            raise SourceError("--classes", what, f"classes are {some_of(called, _MOST_NAMES)}")
        return self.classes


def naming_of(recipe: Recipe, labelling: Labelling, documents: Documents) -> Naming:
    """Return the class names that the recipe asks for, of labels and of objects."""
    class_map: Mapping[str, str] = {}
    if "=" in recipe.class_map:
        class_map = parse_pairs(recipe.class_map, OptionName("class_map"))
    elif recipe.class_map:
        class_map = parse_class_map(documents.read(recipe.class_map), recipe.class_map)
    is_of_labels = any(name is not None for name in labelling.names)
    return Naming(class_map, recipe.classes, is_of_labels)


def words_in(cells: Iterable[Cell | None]) -> set[str]:
    """Return the names that cells hold, whole and by every separator."""
    words: set[str] = set()
    for cell in set(cells):
        for text in (cell,) if isinstance(cell, str) else cell or ():
            words.update((text, *re.split(r"\s*[|,;]\s*|\s+", text)))
    return words


def renamed(
    found: Found, naming: Naming, before: tuple[str, ...], *, has_background: bool
) -> tuple[list[Annotation | None], tuple[str, ...]]:
    """Return the annotations with classes as they are asked for, and all class names.

    Objects of other classes are dropped. `before` are names that keep their indices; with
    `has_background` the first class is the one where no object is.
    """
    called = naming.of(found.names)
    if found.names == (ONE_CLASS,) and len(naming.classes) == 1 and not naming.is_of_labels:
        called = list(naming.classes)
    ordered = naming.ordered(called, "objects")
    first = (BACKGROUND,) if has_background else before
    names = tuple(dict.fromkeys((*first, *ordered)))
    place = {name: i for i, name in enumerate(names)}
    wanted = set(ordered)
    number = [place[name] if name in wanted else NONE for name in called]
    if number == list(range(len(called))):
        return found.annotations, names
    return [one and _relabelled(one, number) for one in found.annotations], names


def _relabelled(one: Annotation, number: Sequence[int]) -> Annotation:
    """Return an annotation with other class indices; objects of class `NONE` are dropped."""
    labels = tuple(number[label] for label in one.labels)
    areas = tuple((area, number[at]) for area, at in one.areas if number[at] != NONE)
    if NONE not in labels:
        return replace(one, labels=labels, areas=areas)
    known = replace(one, labels=labels, areas=areas)
    return known.of([label != NONE for label in labels], NOT_ASKED_FOR)
