"""The images of a source that a recipe wants, without masks, and what labels them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardprep.catalog.filters import matched, select
from shardprep.catalog.labels.labels import Labelling, label_keys
from shardprep.catalog.objects.detect import recognised
from shardprep.catalog.objects.formats.panoptic import with_panoptic
from shardprep.catalog.objects.masks.mask_files import MasksBeside, masks_beside
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.catalog.tables.table import Table
from shardprep.recipe.rules import LabelRule
from shardprep.source.listing import Listing, Skipped
from shardprep.source.members import Members

if TYPE_CHECKING:
    from shardprep.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class SourceImages:
    """The images of a source that are wanted, and what names and tables say of them."""

    recipe: Recipe
    """With the boxes or masks that are recognised."""
    candidates: Members
    """Images and masks of the source that the recipe does not exclude."""
    documents: Documents
    beside: MasksBeside
    members: Members
    skipped: list[Skipped]
    index: KeyIndex
    labelling: Labelling
    tables: Sequence[Table]
    """Those that may have labels."""


def source_images(recipe: Recipe, listing: Listing) -> SourceImages:
    """Return the images that a recipe wants, and their labels."""
    documents = Documents(listing.others, recipe)
    recipe = with_panoptic(recipe, listing.images, documents)
    excluded = documents.ids(recipe.exclude_list) if recipe.exclude_list else ()
    beside = masks_beside(recipe, listing.images, documents)
    members, skipped = select(beside.images, recipe, excluded)
    index = KeyIndex(members.keys)
    candidates = listing.images
    if recipe.exclude:
        is_out = np.array(matched(candidates.keys, recipe.exclude, "--exclude"), bool)
        candidates = candidates.take(np.flatnonzero(~is_out))
    if "auto" in (recipe.rules.boxes.kind, recipe.rules.masks.kind):
        return source_images(recognised(recipe, index, documents, candidates), listing)
    is_alone = recipe.is_annotated and recipe.labels == "auto"
    tables = [] if is_alone else documents.label_tables()
    rule = LabelRule("none") if is_alone else recipe.rules.labels
    labelling = label_keys(index, rule, tables)
    if recipe.may_be_annotated and labelling.rule == "none":
        found = recognised(recipe, index, documents, candidates)
        if found is not recipe:
            return source_images(found, listing)
    return SourceImages(
        recipe, candidates, documents, beside, members, skipped, index, labelling, tables
    )
