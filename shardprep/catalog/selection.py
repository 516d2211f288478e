"""Selection: the images that a recipe wants, without masks, and what labels them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.catalog.annotations.mask_files import masks_beside
from shardprep.catalog.annotations.recognition import recognised
from shardprep.catalog.documents import Documents
from shardprep.catalog.labels import label_keys
from shardprep.catalog.lookup import KeyIndex
from shardprep.catalog.rules import parse_label_rule
from shardprep.catalog.select import select

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.annotations.mask_files import MasksBeside
    from shardprep.catalog.rules import Labelling
    from shardprep.catalog.table import Table
    from shardprep.recipe.recipe import Recipe
    from shardprep.source.listing import Listing, Member, Skipped


@dataclass(frozen=True, slots=True)
class Selection:
    """The images of a source that are wanted, and what names and tables say of them."""

    recipe: Recipe
    """With the boxes or masks that are recognised."""
    documents: Documents
    beside: MasksBeside
    members: list[Member]
    skipped: list[Skipped]
    index: KeyIndex
    labelling: Labelling
    tables: Sequence[Table]
    """Those that may have labels."""


def select_images(recipe: Recipe, listing: Listing) -> Selection:
    """Return the images that a recipe wants, and their labels."""
    documents = Documents(listing.others, recipe)
    excluded = documents.ids(recipe.exclude_list) if recipe.exclude_list else ()
    beside = masks_beside(recipe, listing.images, documents)
    members, skipped = select(beside.images, recipe, excluded)
    index = KeyIndex([member.key for member in members])
    if "auto" in (recipe.boxes, recipe.masks):
        return select_images(recognised(recipe, index, documents, listing.images), listing)
    is_alone = recipe.is_annotated and recipe.labels == "auto"
    tables = [] if is_alone else documents.label_tables()
    rule = parse_label_rule("none" if is_alone else recipe.labels)
    labelling = label_keys(index, rule, tables)
    if recipe.may_be_annotated and labelling.rule == "none":
        found = recognised(recipe, index, documents, listing.images)
        if found is not recipe:
            return select_images(found, listing)
    return Selection(recipe, documents, beside, members, skipped, index, labelling, tables)
