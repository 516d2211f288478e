"""The catalog: every image found in a source, with the target and the split that the source gives.

Nothing of a source is dropped here without a `Skipped` that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from shardprep.catalog.annotations.annotated_images import (
    Annotated,
    AnnotationFacts,
    annotate,
    settled,
)
from shardprep.catalog.annotations.file_masks import Images
from shardprep.catalog.annotations.naming import Naming, naming_of, words_in
from shardprep.catalog.annotations.rules import check_columns
from shardprep.catalog.columns import Column, Value, make_columns
from shardprep.catalog.documents import Documents
from shardprep.catalog.filters import MOST_SHOWN
from shardprep.catalog.findings import NO_LABEL, catalog_findings, no_image
from shardprep.catalog.groups import group_keys
from shardprep.catalog.headers import with_headers
from shardprep.catalog.lookup import KeyIndex, match_table
from shardprep.catalog.rules import parse_label_rule
from shardprep.catalog.source_images import SourceImages, source_images
from shardprep.catalog.splits import given_splits, parse_split_rule
from shardprep.catalog.targets import (
    Target,
    Targets,
    TargetSpec,
    make_targets,
)
from shardprep.dataset.schema import UNLABELLED
from shardprep.errors import SourceError, shown
from shardprep.recipe.recipe import outputs
from shardprep.source.listing import Skipped, list_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from shardprep.catalog.lookup import TableMatch
    from shardprep.catalog.rules import Labelling
    from shardprep.dataset.schema import TargetKind
    from shardprep.image.annotation import Annotation
    from shardprep.recipe.recipe import Recipe
    from shardprep.source.extent import Extent
    from shardprep.source.listing import Listing
    from shardprep.source.members import Member


class Item(NamedTuple):
    """One image found, not yet read."""

    key: str
    """Its unique POSIX path in the source."""
    extent: Extent
    split: str
    target: Target = None
    """Class index, several of them, a number or a text; None where the source says nothing."""
    strata: tuple[int, ...] = ()
    """The classes of the image, which a split spreads evenly."""
    group: str = ""
    """Images of one group belong in one split; "" for an image on its own."""
    columns: tuple[Value, ...] = ()
    """Further values of the label table, in the order of `Catalog.columns`."""
    annotation: Annotation | None = None
    """Its objects, none of them in an image of background; None where the source says nothing."""
    masks: tuple[Member, ...] = ()
    """The mask files of the image."""

    def in_split(self, split: str) -> Item:
        """Return this item in another split; a million of them in a second."""
        facts = self.target, self.strata, self.group, self.columns, self.annotation, self.masks
        return Item(self.key, self.extent, split, *facts)

    @property
    def is_labelled(self) -> bool:
        """Whether the source says something of the image: a target, or its objects or masks."""
        return self.target is not None or self.annotation is not None

    @property
    def label(self) -> int:
        """The class index, −1 where there is none or the target is of another kind."""
        return self.target if isinstance(self.target, int) else UNLABELLED


@dataclass(frozen=True, slots=True)
class Catalog:
    """All items of a source, in the order of their keys."""

    items: list[Item]
    skipped: list[Skipped]
    label_names: tuple[str, ...]
    labels_from: str
    """The source of the labels, in one line for the user."""
    rows_without_image: tuple[str, ...]
    """Ids in the label table for which the source has no image."""
    target_kind: TargetKind = "none"
    columns: tuple[Column, ...] = ()
    findings: list[str] = field(default_factory=list)
    """Remarks for the user, a line each."""
    annotations: AnnotationFacts | None = None
    """Boxes and masks, None where none are stored."""


def make_catalog(recipe: Recipe, work_dir: Path, notice: Callable[[str], None]) -> Catalog:
    """Return the catalog of the recipe's source.

    `work_dir` is for unpacked archives and must exist as long as the items are used; `notice` is
    called with one line about work that takes long.

    Raises:
        SourceError: the source cannot be read, holds no image, or contradicts the rules.
        RecipeError: a rule cannot be used.

    """
    if recipe.split:
        parse_split_rule(recipe.split)

    def check(others: Sequence[Member]) -> None:
        documents = Documents(others, recipe)
        documents.check_columns()
        check_columns(recipe, documents)

    listing = list_source(
        recipe.source,
        work_dir,
        notice,
        zip_encoding=recipe.zip_encoding or None,
        limits=recipe.source_limits,
        leave_out=outputs(recipe),
        check=check,
    )
    if not listing.images:
        raise no_image(recipe.source, listing)
    return _catalog(source_images(recipe, listing), listing)


class _Known(NamedTuple):
    """The values of all images, a list each."""

    targets: Targets
    splits: Sequence[str | None]
    groups: Sequence[str]
    columns: Sequence[tuple[Value, ...]]
    annotated: Annotated | None


def _catalog(wanted: SourceImages, listing: Listing) -> Catalog:
    """Return the catalog of the images that are wanted."""
    recipe, documents, beside = wanted.recipe, wanted.documents, wanted.beside
    members, index, labelling = wanted.members, wanted.index, wanted.labelling
    match = _table_match(index, labelling, documents)
    naming = naming_of(recipe, labelling, documents)
    annotated = None
    if recipe.is_annotated:
        images = Images(index, [member.extent for member in members], documents, beside)
        annotated = annotate(recipe, images, naming)
    targets = _targets(index.keys, labelling, recipe, naming)
    splits = _splits(wanted, match, annotated)
    rule = recipe.group_rule
    match = with_headers(match, members, (*recipe.columns, rule))
    groups = group_keys(index.keys, rule, match) if rule else [""] * len(members)
    lacks = _lacks(splits, targets.values)
    if annotated is not None:
        annotated = settled(annotated, splits)
        lacks = [first or more for first, more in zip(lacks, annotated.lacks, strict=True)]
    columns, values = make_columns(recipe.columns, match, [not lack for lack in lacks])
    known = _Known(targets, splits, groups, values, annotated)
    items, unlabelled = _join(members, lacks, known)
    facts = None if annotated is None else annotated.facts
    read = frozenset[str]() if facts is None else facts.documents
    others = [
        Skipped(member.key, "not an image", member.extent.num_bytes)
        for member in listing.others
        if member.key not in read
    ]
    used = {m.key for item in items for m in item.masks} if beside.segments else ()
    masks = beside.skipped + beside.unused(set(index.keys), used)
    return Catalog(
        items,
        listing.skipped + others + masks + wanted.skipped + unlabelled,
        targets.names,
        labelling.how,
        labelling.rows_without_image,
        targets.kind,
        columns,
        catalog_findings(wanted, listing, targets, annotated, (items, unlabelled)),
        facts,
    )


def _splits(
    wanted: SourceImages, match: TableMatch | None, annotated: Annotated | None
) -> list[str | None]:
    """Return the split of each image: by the rule, else by annotations, else by folders."""
    recipe, index = wanted.recipe, wanted.index
    rule = parse_split_rule(recipe.split) if recipe.split else None
    splits = given_splits(index, rule, match, wanted.documents)
    own = None if annotated is None or rule is not None else annotated.splits
    return splits if own is None else [one or two for one, two in zip(own, splits, strict=True)]


def _table_match(index: KeyIndex, labelling: Labelling, documents: Documents) -> TableMatch | None:
    """Return the table that columns, groups and splits are read from: the labels' or a joined."""
    if labelling.match is not None:
        return labelling.match
    table = documents.joined_table()
    return None if table is None else match_table(index, table)


def _targets(keys: Sequence[str], labelling: Labelling, recipe: Recipe, naming: Naming) -> Targets:
    rule = parse_label_rule(recipe.labels)
    if rule.kind not in ("auto", "none") and all(name is None for name in labelling.names):
        example = shown(keys[0], MOST_SHOWN)
        what = f"finds no label for any of {len(keys):,} images, such as {example}"
        raise SourceError(f"--labels {rule.kind}", what, "try --labels auto")
    class_map, classes = naming.class_map, naming.classes
    if recipe.is_annotated:
        words = words_in(labelling.names)
        class_map = {old: new for old, new in class_map.items() if old in words}
        renamed = words.union(class_map.values())
        classes = classes if renamed.intersection(classes) else ()
    spec = TargetSpec(
        kind="class" if recipe.target == "auto" and labelling.match is None else recipe.target,
        separator=recipe.separator,
        classes=classes,
        class_map=class_map,
    )
    return make_targets(keys, labelling.names, spec, labelling.table_names)


def _lacks(splits: Sequence[str | None], targets: Sequence[Target]) -> list[str]:
    """Return the reason to leave out each image, "" for none.

    A split without a single target is kept, unlabelled. Where a split has targets, an image
    without one would be a wrong answer in training.
    """
    labelled = {split for split, target in zip(splits, targets, strict=True) if target is not None}
    return [
        "in no split" if split is None else NO_LABEL if target is None and split in labelled else ""
        for split, target in zip(splits, targets, strict=True)
    ]


def _join(
    members: Sequence[Member], lacks: Sequence[str], known: _Known
) -> tuple[list[Item], list[Skipped]]:
    """Join what is known of each image; one that lacks something is skipped."""
    items: list[Item] = []
    skipped: list[Skipped] = []
    strata = known.targets.strata()
    objects: Iterable[tuple[Annotation | None, tuple[Member, ...]]] = repeat((None, ()))
    if known.annotated is not None:
        objects = zip(known.annotated.annotations, known.annotated.masks, strict=True)
        strata = known.annotated.strata if known.targets.kind == "none" else strata
    facts = known.splits, known.targets.values, strata, known.groups, known.columns
    rows = zip(zip(members, lacks, *facts, strict=True), objects, strict=False)
    for (member, lack, split, target, classes, group, cells), (annotation, masks) in rows:
        if lack or split is None:
            skipped.append(Skipped(member.key, lack, member.extent.num_bytes))
        else:
            beside = target, classes, group, cells, annotation, masks
            items.append(Item(member.key, member.extent, split, *beside))
    return items, skipped
