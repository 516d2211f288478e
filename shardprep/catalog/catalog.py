"""The catalog: every image found in a source, with the target and the split that the source gives.

Nothing of a source is dropped here without a `Skipped` that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from shardprep.catalog.filters import MOST_SHOWN
from shardprep.catalog.init.notices import NO_LABEL, catalog_findings, no_image
from shardprep.catalog.items import Items
from shardprep.catalog.labels.labels import Labelling
from shardprep.catalog.labels.targets import Target, Targets, TargetSpec, check_names, make_targets
from shardprep.catalog.objects.class_names import Naming, naming_of, words_in
from shardprep.catalog.objects.combine import Annotated, AnnotationFacts, annotate, settled
from shardprep.catalog.objects.masks.mask_reading import Images
from shardprep.catalog.source_images import SourceImages, source_images
from shardprep.catalog.splits import given_splits, group_keys
from shardprep.catalog.tables.columns import Column, Value, make_columns, with_headers
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import KeyIndex, TableMatch, match_table
from shardprep.dataset.schema import TargetKind
from shardprep.errors import OptionName, SourceError, concise, shown
from shardprep.image.annotation_types import Annotation
from shardprep.recipe.recipe import Recipe, outputs
from shardprep.source.listing import Listing, Skipped, list_source
from shardprep.source.members import Member, Members
from shardprep.source.string_column import Coded


@dataclass(frozen=True, slots=True)
class Catalog:
    """All items of a source, in the order of their keys."""

    items: Items
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

    def check(others: Sequence[Member]) -> None:
        Documents(others, recipe).check_columns()

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
    """The values of all images, a column each."""

    targets: Targets
    splits: Coded[str | None]
    groups: Coded[str]
    columns: tuple[Coded[Value], ...]
    annotated: Annotated | None


def _catalog(wanted: SourceImages, listing: Listing) -> Catalog:
    recipe, documents, beside = wanted.recipe, wanted.documents, wanted.beside
    members, index, labelling = wanted.members, wanted.index, wanted.labelling
    match = _table_match(index, labelling, documents)
    naming = naming_of(recipe, labelling, documents)
    annotated = None
    if recipe.is_annotated:
        left_out = [one.key for one in wanted.skipped]
        images = Images(index, members.extents(), documents, beside, left_out)
        annotated = annotate(recipe, images, naming)
    targets = _targets(index.keys, labelling, recipe, naming)
    if labelling.match is not None and targets.names:
        labelling.match.table.check_quotes(*labelling.columns)
    check_names((*targets.names, *(annotated.facts.names if annotated is not None else ())))
    splits = _splits(wanted, match, annotated)
    rule = recipe.rules.group
    match = with_headers(match, members, (*recipe.columns, rule.text))
    groups = Coded.constant("", len(members))
    if rule.kind != "none":
        groups = group_keys(index.keys, rule, match)
    lacks = _lacks(splits, targets.values)
    if annotated is not None:
        annotated = settled(annotated, splits, recipe)
        pairs = zip(lacks, annotated.lacks, strict=True)
        lacks = Coded.of(first or more for first, more in pairs)
    columns, values = make_columns(recipe.columns, match, ~lacks.fit(bool))
    known = _Known(targets, splits, groups, values, annotated)
    items, unlabelled = _join(members, lacks, known)
    facts = None if annotated is None else annotated.facts
    read = frozenset[str]() if facts is None else facts.documents
    others = [
        Skipped(member.key, "not an image", member.extent.num_bytes)
        for member in listing.others
        if member.key not in read
    ]
    masks = [one for one in beside.skipped if one.key not in read]
    if beside.files is not None or beside.segments:
        used = {mask.key for several in items.masks.firsts().values() for mask in several}
        masks = masks + beside.unused(set(index.keys), used)
    return Catalog(
        items,
        listing.skipped + others + masks + wanted.skipped + unlabelled,
        targets.names,
        concise(labelling.how),
        labelling.rows_without_image,
        targets.kind,
        columns,
        [
            concise(line)
            for line in catalog_findings(wanted, listing, targets, annotated, (items, unlabelled))
        ],
        facts,
    )


def _splits(
    wanted: SourceImages, match: TableMatch | None, annotated: Annotated | None
) -> Coded[str | None]:
    """Return the split of each image: by the rule, else by annotations, else by folders."""
    rule = wanted.recipe.rules.split
    splits = given_splits(wanted.index, rule, match, wanted.documents)
    is_by_source = rule.kind in ("folders", "ratio")
    own = annotated.splits if annotated is not None and is_by_source else None
    if own is None:
        return splits
    return Coded.of(one or two for one, two in zip(own, splits, strict=True))


def _table_match(index: KeyIndex, labelling: Labelling, documents: Documents) -> TableMatch | None:
    """Return the table that columns, groups and splits are read from: the labels' or a joined."""
    if labelling.match is not None:
        return labelling.match
    table = documents.joined_table()
    return None if table is None else match_table(index, table)


def _targets(keys: Sequence[str], labelling: Labelling, recipe: Recipe, naming: Naming) -> Targets:
    rule = recipe.rules.labels
    if rule.kind not in ("auto", "none") and not labelling.names.are_there.any():
        example = shown(keys[0], MOST_SHOWN)
        what = f"finds no label for any of {len(keys):,} images, such as {example}"
        raise SourceError(OptionName("labels", rule.kind), what, f"try {OptionName('labels')} auto")
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


def _lacks(splits: Coded[str | None], targets: Coded[Target]) -> Coded[str]:
    """Return the reason to leave out each image, "" for none.

    A split without a single target is kept, unlabelled. Where a split has targets, an image
    without one would be a wrong answer in training.
    """
    has_target = targets.are_there
    is_labelled = np.zeros(len(splits.values) + 1, np.bool_)  # the last is that of no split
    is_labelled[splits.codes[has_target]] = True
    codes = np.where(has_target | ~is_labelled[splits.codes], 0, 1)
    return Coded(np.where(splits.are_there, codes, 2), ("", NO_LABEL, "in no split"))


def _join(members: Members, lacks: Coded[str], known: _Known) -> tuple[Items, list[Skipped]]:
    """Join what is known of each image; one that lacks something is skipped."""
    number = len(members)
    strata = known.targets.strata()
    annotation: Coded[Annotation | None] = Coded.constant(None, number)
    masks: Coded[tuple[Member, ...]] = Coded.constant((), number)
    if known.annotated is not None:
        annotation = Coded.apart(known.annotated.annotations)
        masks = Coded.apart(known.annotated.masks)
        if known.targets.kind == "none":
            strata = Coded.of(known.annotated.strata)
    items = Items(
        members=members,
        split=cast("Coded[str]", known.splits),  # None where images are left out
        target=known.targets.values,
        strata=strata,
        group=known.groups,
        columns=known.columns,
        annotation=annotation,
        masks=masks,
    )
    out = lacks.fit(bool)
    if not out.any():
        return items, []
    left = np.flatnonzero(out)
    skipped = [
        Skipped(member.key, lack, member.extent.num_bytes)
        for member, lack in zip(members.take(left), lacks.take(left), strict=True)
    ]
    return items.take(np.flatnonzero(~out)), skipped
