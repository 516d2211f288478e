"""The catalog: every image found in a source, with the target and the split that the source gives.

Nothing of a source is dropped here without a `Skipped` that says why.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardprep.catalog.annotations import annotation_findings
from shardprep.catalog.candidates import label_findings
from shardprep.catalog.columns import Column, Value, make_columns
from shardprep.catalog.documents import Documents
from shardprep.catalog.groups import group_findings, group_keys
from shardprep.catalog.labels import ENOUGH, label_keys
from shardprep.catalog.lookup import KeyIndex, match_table
from shardprep.catalog.rules import parse_label_rule
from shardprep.catalog.select import MOST_SHOWN, select
from shardprep.catalog.splits import given_splits, parse_pairs, parse_split_rule
from shardprep.catalog.targets import (
    Target,
    Targets,
    TargetSpec,
    make_targets,
    parse_class_map,
)
from shardprep.errors import SourceError, shown, some_of
from shardprep.recipe.recipe import outputs
from shardprep.source.directory import LEADS_OUTSIDE
from shardprep.source.listing import Member, Skipped, list_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardprep.catalog.lookup import TableMatch
    from shardprep.catalog.rules import Labelling
    from shardprep.dataset.schema import TargetKind
    from shardprep.recipe.recipe import Recipe
    from shardprep.source.extent import Extent
    from shardprep.source.listing import Listing

UNLABELLED = -1
NO_LABEL = "no label"
"""Reason for leaving out an image without a label in a split that has labels."""


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

    def in_split(self, split: str) -> Item:
        """Return this item in another split; a million of them in a second."""
        return Item(
            self.key, self.extent, split, self.target, self.strata, self.group, self.columns
        )

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


def make_catalog(recipe: Recipe, work_dir: Path, notice: Callable[[str], None]) -> Catalog:
    """Return the catalog of the recipe's source.

    `work_dir` is for unpacked archives and must exist as long as the items are used; `notice` is
    called with one line about work that takes long.

    Raises:
        SourceError: the source cannot be read, holds no image, or contradicts the rules.
        RecipeError: a rule cannot be used.

    """
    rule = parse_split_rule(recipe.split) if recipe.split else None
    listing = list_source(
        recipe.source,
        work_dir,
        notice,
        zip_encoding=recipe.zip_encoding or None,
        limits=recipe.source_limits,
        leave_out=outputs(recipe),
        check=lambda others: Documents(others, recipe).check_columns(),
    )
    if not listing.images:
        raise no_image(recipe.source, listing)
    documents = Documents(listing.others, recipe)
    excluded = documents.ids(recipe.exclude_list) if recipe.exclude_list else ()
    members, skipped = select(listing.images, recipe, excluded)
    keys = [member.key for member in members]
    index = KeyIndex(keys)
    tables = documents.label_tables()
    labelling = label_keys(index, parse_label_rule(recipe.labels), tables)
    match = _table_match(index, labelling, documents)
    targets = _targets(keys, labelling, recipe, documents)
    splits = given_splits(index, rule, match, documents)
    groups = group_keys(keys, recipe.group, match) if recipe.group else [""] * len(keys)
    lacks = _lacks(splits, targets.values)
    wanted = [not lack for lack in lacks]
    columns, values = make_columns(recipe.columns, match, wanted)
    items, unlabelled = _join(members, lacks, targets, splits, groups, values)
    findings = []
    if num_links := _num_links_outside(listing):
        links = "1 link that leads" if num_links == 1 else f"{num_links:,} links that lead"
        findings.append(f"{links} outside skipped; --follow-links follows")
    if targets.unmapped:
        findings.append(f"--class-map: no class is called {some_of(targets.unmapped)}")
    if recipe.group:
        is_cut = rule is not None and rule.kind == "ratio"
        findings += group_findings(items, recipe.group, is_cut=is_cut)
    if recipe.labels == "auto":
        _ask_about(unlabelled, labelling, len(members))
        findings += labelling.findings
        findings += annotation_findings(keys, [member.key for member in listing.others])
        if labelling.rule == "none":
            findings += label_findings(index, tables)
    others = [
        Skipped(member.key, "not an image", member.extent.num_bytes) for member in listing.others
    ]
    return Catalog(
        items,
        listing.skipped + others + skipped + unlabelled,
        targets.names,
        labelling.how,
        labelling.rows_without_image,
        targets.kind,
        columns,
        findings,
    )


def no_image(source: str, listing: Listing) -> SourceError:
    """Return the error for a source without an image."""
    if num_links := _num_links_outside(listing):
        what = f"holds no image, but {num_links:,} links that lead outside of it"
        return SourceError(source, what, "add --follow-links if they are to be followed")
    suffixes = Counter(Path(member.key).suffix or "no suffix" for member in listing.others)
    found = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(4))
    what = f"holds no image ({found or 'it is empty'})"
    return SourceError(source, what, "is it the right archive?")


def _num_links_outside(listing: Listing) -> int:
    return sum(one.reason == LEADS_OUTSIDE for one in listing.skipped)


def _table_match(index: KeyIndex, labelling: Labelling, documents: Documents) -> TableMatch | None:
    """Return the table that columns, groups and splits are read from: the labels' or a joined."""
    if labelling.match is not None:
        return labelling.match
    table = documents.joined_table()
    return None if table is None else match_table(index, table)


def _targets(
    keys: Sequence[str], labelling: Labelling, recipe: Recipe, documents: Documents
) -> Targets:
    rule = parse_label_rule(recipe.labels)
    if rule.kind not in ("auto", "none") and all(name is None for name in labelling.names):
        example = shown(keys[0], MOST_SHOWN)
        what = f"finds no label for any of {len(keys):,} images, such as {example}"
        raise SourceError(f"--labels {rule.kind}", what, "try --labels auto")
    class_map: Mapping[str, str] = {}
    if "=" in recipe.class_map:
        class_map = parse_pairs(recipe.class_map, "--class-map")
    elif recipe.class_map:
        class_map = parse_class_map(documents.read(recipe.class_map), recipe.class_map)
    spec = TargetSpec(
        kind="class" if recipe.target == "auto" and labelling.match is None else recipe.target,
        separator=recipe.separator,
        classes=recipe.classes,
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
    members: Sequence[Member],
    lacks: Sequence[str],
    targets: Targets,
    splits: Sequence[str | None],
    groups: Sequence[str],
    values: Sequence[tuple[Value, ...]],
) -> tuple[list[Item], list[Skipped]]:
    """Join what is known of each image; one that lacks something is skipped."""
    items: list[Item] = []
    skipped: list[Skipped] = []
    facts = splits, targets.values, targets.strata(), groups, values
    rows = zip(members, lacks, *facts, strict=True)
    for member, lack, split, target, strata, group, cells in rows:
        if lack or split is None:
            skipped.append(Skipped(member.key, lack, member.extent.num_bytes))
        else:
            items.append(Item(member.key, member.extent, split, target, strata, group, cells))
    return items, skipped


def _ask_about(unlabelled: Sequence[Skipped], labelling: Labelling, num_images: int) -> None:
    """Raise a SourceError if `auto` would leave out more than a tenth of all images."""
    lost = [one.key for one in unlabelled if one.reason == NO_LABEL]
    if num_images - len(lost) < ENOUGH * num_images:
        rule = shlex.quote(labelling.rule)
        raise SourceError(
            "--labels auto",
            f"finds no label for {len(lost):,} of {num_images:,} images, such as "
            f"{shown(lost[0], MOST_SHOWN)} (labels by {labelling.how})",
            f"--labels {rule} leaves them out, --labels none takes all without labels",
        )
