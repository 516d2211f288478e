"""The view of a source under a recipe, and readings: options with their evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from shardprep.catalog.arrays.array_images import ImageListing
from shardprep.catalog.arrays.mask_arrays import masks_apart, with_masks
from shardprep.catalog.decision.pairs import Pictures
from shardprep.catalog.label_rules import auto_labels
from shardprep.catalog.labels import Labelling
from shardprep.catalog.objects.detect import document_signs
from shardprep.catalog.objects.formats.annotated_source import Sign
from shardprep.catalog.objects.mask_files import MaskFiles, MasksBeside, masks_beside
from shardprep.catalog.patterns import matched
from shardprep.catalog.selection import NOT_LISTED, Selected, select
from shardprep.catalog.stacks import stacked
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.table import Table
from shardprep.catalog.tables.united_tables import united
from shardprep.recipe.options import BUILD_DEFAULTS, spelled
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member, Members
from shardprep.storage.text_file import decoded

_OF_TABLES = ("header", "null", "join")
"""Options that change how tables of a source are read."""
_OF_IMAGES = (
    "root", "include", "exclude", "exclude_list", "dedup", "images", "stack", "tile", "boxes",
    "masks", "points", "instances", "target_image",
)  # fmt: skip
"""Options that change the images of a source or their masks."""

Options = Mapping[str, Any]
"""Key of a recipe → its value."""
HEAD = 1 << 18
"""Maximum number of bytes of a document that are read to look for evidence."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Options that read a source one way, with the evidence; without options, a remark only."""

    options: Options
    why: str
    """The evidence in words, with the number of images: "12 masks of 12 images"."""
    is_certain: bool = True
    """False to ask the user even if this is the only reading."""
    files: MaskFiles | None = field(default=None, compare=False, repr=False)
    """The masks or target images of all images, if the stage has paired them."""

    @property
    def flags(self) -> str:
        return spelled(self.options)


def head_of(document: Member, most: int = HEAD) -> str:
    """Return the start of a text, at most `most` bytes; "" if it cannot be read."""
    with contextlib.suppress(MemberError, OSError):
        return decoded(document.extent.read_head(most))
    return ""


@dataclass(frozen=True)
class View:
    """A source after the decisions so far: the recipe, and the images that it would store."""

    recipe: Recipe
    listing: ImageListing
    notes: tuple[str, ...] = ()
    """A remark on each decision so far."""
    decided: frozenset[str] = field(default_factory=frozenset)
    """Names of the options that a decision has set."""
    paired: MaskFiles | None = None
    """Masks or target images that a stage has paired with images; None if no stage has."""
    pictures: Pictures = field(default_factory=Pictures)
    """Cache of the pictures that were decoded for the decisions."""

    @cached_property
    def documents(self) -> Documents:
        return Documents(self.listing.others, self.recipe, self.listing.columns)

    @cached_property
    def beside(self) -> MasksBeside:
        """The images, and the masks or target images of each image."""
        return masks_beside(self.recipe, self.listing.images, self.documents, self.paired)

    @cached_property
    def selected(self) -> Selected:
        """The images that `--root`, `--exclude` … leave; SourceError if none is left."""
        file, listing, images = self.recipe.exclude_list, self.listing, self.beside.images
        excluded = self.documents.ids(file, KeyIndex(images.keys)) if file else ()
        others = [one.key for several in (listing.others, listing.skipped) for one in several]
        others += listing.images.keys if len(images) < len(listing.images) else []
        unlisted = [one.key for one in listing.skipped if one.reason == NOT_LISTED]
        return select(images, self.recipe, excluded, others, unlisted)

    @property
    def members(self) -> Members:
        return self.selected.members

    @cached_property
    def folders(self) -> Mapping[str, int]:
        """Path of each folder → number of images in it."""
        return self.members.keys.folders.counts()

    @cached_property
    def index(self) -> KeyIndex:
        return KeyIndex(self.members.keys)

    @cached_property
    def candidates(self) -> Members:
        """The images and masks of the source that `--exclude` leaves."""
        images = self.listing.images
        if not self.recipe.exclude:
            return images
        is_out = np.array(matched(images.keys, self.recipe.exclude, "exclude"), bool)
        return images.take(np.flatnonzero(~is_out))

    @cached_property
    def tables(self) -> Sequence[Table]:
        """The tables of the source; tables of different splits are stacked into one."""
        return united(self.index, self.documents.tables)

    @cached_property
    def automatic(self) -> Labelling:
        """The labels that `auto` finds in tables and names."""
        return auto_labels(self.index, self.documents.tables)

    @cached_property
    def all_signs(self) -> Sequence[Sign]:
        """The objects that documents and tables state, even if only few images have them."""
        return document_signs(self.index, self.documents, self.candidates)

    @property
    def has_documents(self) -> bool:
        return bool(self.listing.others) or self.listing.columns is not None

    @property
    def signs(self) -> list[Sign]:
        """The objects that documents and tables state clearly (see `Sign.is_unclear`)."""
        return [one for one in self.all_signs if not one.is_unclear]

    def is_open(self, *options: str) -> bool:
        """Return whether all these options have their defaults, so that they may be decided."""
        return all(getattr(self.recipe, one) == BUILD_DEFAULTS[one] for one in options)

    def read_as(self, reading: Reading) -> View:
        """Return the view with the options of a reading, and its globs added to the recipe's."""
        options = dict(reading.options)
        for key in ("exclude", "include"):
            if key in options:
                options[key] = tuple(dict.fromkeys((*getattr(self.recipe, key), *options[key])))
        decided = f"{reading.flags} is decided: {reading.why}" if options else reading.why
        notes = (*self.notes, decided)
        own = self.of(self.recipe.with_rules(**options))
        paired = reading.files or own.paired
        # `replace` would lose what the properties have cached.
        vars(own).update(notes=notes, decided=self.decided | options.keys(), paired=paired)
        return own

    def of(self, recipe: Recipe) -> View:
        """Return the view under another recipe; `--stack` may turn images into stacks."""
        listing = self.listing
        new = [one for one in recipe.exclude if one not in self.recipe.exclude]
        if new:  # as for a user who repeats the flags
            are_out = matched([one.key for one in listing.others], new, "exclude")
            others = [one for one, out in zip(listing.others, are_out, strict=True) if not out]
            listing = replace(listing, others=others)
        if recipe.stack != self.recipe.stack:
            rest, masks = masks_apart(listing, recipe)
            listing = with_masks(stacked(recipe, rest), masks, recipe)
        has_tables = self._is_equal(recipe, _OF_TABLES)
        has_images = self._is_equal(recipe, _OF_IMAGES)
        paired = self.paired if has_images else None
        own = View(recipe, listing, self.notes, self.decided, paired, self.pictures)
        if has_tables and "tables" in vars(self.documents):
            own.documents.tables = self.documents.tables
        shared = {"beside", "selected", "folders", "index"} if has_images else set[str]()
        shared |= {"tables", "automatic", "all_signs"} if has_images and has_tables else set()
        vars(own).update({key: one for key, one in vars(self).items() if key in shared})
        return own

    def _is_equal(self, recipe: Recipe, options: Sequence[str]) -> bool:
        return all(getattr(recipe, one) == getattr(self.recipe, one) for one in options)


Stage = Callable[[View], Sequence[Reading]]
"""Returns the readings of one part of a decision: one is used, several are a question."""
