"""The catalog: the wanted images of a source, each with its target and split.

Other members become `Skipped` with a reason, except annotations and masks of these images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from shardprep.catalog.given_items import with_items
from shardprep.catalog.idle_options import Affected, idle_options
from shardprep.catalog.items import Items
from shardprep.catalog.labels import ENOUGH, Labelling, classes_in
from shardprep.catalog.names import words_of_split
from shardprep.catalog.objects.combine import (
    NO_ANNOTATION,
    NO_MASK,
    Annotated,
    AnnotationFacts,
    annotate,
    settled,
)
from shardprep.catalog.objects.detect import mask_findings
from shardprep.catalog.objects.mask_files import skipped
from shardprep.catalog.relabel import relabelled
from shardprep.catalog.selection import MOST_SHOWN, without_left_out
from shardprep.catalog.source_images import (
    SourceImages,
    links_outside,
    list_images,
    no_image,
    source_images,
)
from shardprep.catalog.splits import (
    GivenSplits,
    divided_patients,
    given_splits,
    group_findings,
    group_keys,
)
from shardprep.catalog.stacks import stack_columns, stack_findings, stack_patterns
from shardprep.catalog.tables.columns import (
    Column,
    RowColumns,
    check_columns,
    column_notes,
    list_columns,
    make_columns,
    make_rows,
    text_notes,
    with_headers,
)
from shardprep.catalog.tables.key_index import (
    MANY,
    KeyIndex,
    other_case,
    unused_entries,
)
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import (
    TableMatch,
    listed_images,
    match_table,
    without_zeros,
)
from shardprep.catalog.target_values import Targets
from shardprep.catalog.targets import (
    Naming,
    Target,
    TargetSpec,
    check_names,
    class_names,
    class_reader,
    make_targets,
    many_numbers,
    naming_of,
    words_in,
)
from shardprep.dataset.schema import IMAGES, ROWS, Feature, TargetKind
from shardprep.errors import OptionName, SourceError, concise, counted, nearest_name, shown, some_of
from shardprep.image.annotation_types import Annotation
from shardprep.image.tiles import tile_spec
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.source.members import Member
from shardprep.source.string_column import Coded, release

_FEW = 3
_NO_LABEL, _NO_TARGET = "no label", "no target image"
TILE_COLUMNS = (Column("tile/y", "int64"), Column("tile/x", "int64"))
"""Offset of a tile in its upright image, in pixels."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The items of a source in the order of their keys, their classes, and what was left out."""

    recipe: Recipe
    """The recipe, completed with the options that were decided from the source."""
    items: Items
    skipped: list[Skipped]
    label_names: tuple[str, ...]
    labels_from: str
    rows_without_image: tuple[str, ...]
    target_kind: TargetKind = "none"
    columns: tuple[Column, ...] = ()
    findings: list[str] = field(default_factory=list)
    annotations: AnnotationFacts | None = None
    target_features: Mapping[str, Feature] = field(default_factory=dict)
    """Name of each value → its feature, if a target has several values; otherwise {}."""
    excluded_tiles: tuple[str, ...] = ()
    """With `--tile`: entries of the exclude list that match no image, but may name tiles."""

    def in_tiles(self) -> Catalog:
        """Return the catalog with features and annotations of tiles; `items` stay unchanged."""
        columns = (*self.columns, *TILE_COLUMNS)
        check_columns(columns)
        facts = self.annotations
        return replace(
            self, columns=columns, annotations=facts and replace(facts, spec=tile_spec(facts.spec))
        )


def make_catalog(recipe: Recipe, work_dir: Path, notice: Callable[[str], None]) -> Catalog:
    """Return the catalog of the recipe's source.

    Archives are unpacked in `work_dir`, which must be kept as long as the items are used. `notice`
    gets a line of text before each slow step. SourceError if the source has no image, or none is
    left. For other errors see `list_images` and `source_images`.
    """
    made = _catalog(_wanted(recipe, work_dir, notice))
    release()  # tables of a million rows
    return made


def _wanted(recipe: Recipe, work_dir: Path, notice: Callable[[str], None]) -> SourceImages:
    listing = list_images(
        recipe, work_dir, notice, lambda others: Documents(others, recipe).check_columns()
    )
    if not listing.images:
        raise no_image(recipe.source, listing)
    if recipe.items:
        recipe, listing = with_items(recipe, listing)
    return source_images(recipe, listing)


def _catalog(wanted: SourceImages) -> Catalog:
    recipe, listing = wanted.recipe, wanted.listing
    documents, beside = wanted.documents, wanted.beside
    naming = naming_of(recipe, wanted.labelling.names, documents.read)
    given, labelling = _relabelled(wanted, naming)
    wanted = replace(wanted, labelling=labelling)
    members, index, match = wanted.members, wanted.index, _matched(wanted)
    annotated = annotate(wanted, naming) if recipe.is_annotated else None
    targets = _targets(index.keys, labelling, recipe, naming)
    if labelling.match is not None and (targets.names or targets.features):
        titles = () if targets.kind == "texts" else labelling.columns
        labelling.match.table.check_quotes(*titles)
    of_features = (name for one in targets.features.values() for name in one.labels)
    of_objects = annotated.facts.names if annotated is not None else ()
    check_names((*targets.names, *targets.features, *of_features, *of_objects))
    splits, notes = _splits(wanted, match, annotated)
    match = with_headers(match, members, (*recipe.columns, recipe.rules.group.text))
    groups = group_keys(index.keys, recipe.rules.group, match)
    lacks = _lacks(splits, targets.values)
    if annotated is not None:
        annotated = settled(annotated, splits, recipe)
        lacks = Coded.of(first or more for first, more in zip(lacks, annotated.lacks, strict=True))
    files, lacks = _pairs(wanted, lacks)
    kept = ~lacks.fit(bool)
    columns, values = make_columns(recipe.columns, match, kept)
    notes = [
        *notes,
        *divided_patients(match, splits, recipe, labelling.columns),
        *column_notes(recipe.columns, match, kept),
        *text_notes(columns, values),
    ]
    rows = _rows(wanted)
    columns, values = columns + rows.columns, values + rows.values
    of_stacks = stack_columns(members)
    columns, values = columns + tuple(of_stacks), values + tuple(of_stacks.values())
    if of_stacks:
        check_columns((*columns, Column(IMAGES, "int64")))
    strata = _strata(targets, wanted, given, naming)
    annotation: Coded[Annotation | None] = Coded.constant(None, len(members))
    if annotated is not None:
        annotation, files = Coded.apart(annotated.annotations), Coded.apart(annotated.masks)
        strata = Coded.of(annotated.strata) if targets.kind == "none" else strata
    every = Items(
        members=members,
        split=cast("Coded[str]", splits),  # None only for images left out
        target=targets.values,
        strata=strata,
        group=groups,
        columns=values,
        annotation=annotation,
        companions=files,
    )
    items, unlabelled = _without(every, lacks, recipe.source)
    facts = None if annotated is None else annotated.facts
    read = _used_documents(wanted, match, facts)
    others = [skipped(one, "not an image") for one in listing.others if one.key not in read]
    others += [one for one in beside.skipped if one.key not in read]
    if beside.files is not None or beside.segments:
        used = {one.key for several in items.companions.firsts().values() for one in several}
        others += beside.unused(set(index.keys), used)
    findings = _findings(Affected(wanted, match, targets, annotated), items, unlabelled)
    lost, more = _without_left_out((*_unmatched_rows(wanted), *rows.without_image), wanted)
    findings = [*more, *recipe.rules.split.notes, *findings, *rows.findings, *wanted.notes, *notes]
    return Catalog(
        recipe,
        items,
        listing.skipped + others + wanted.skipped + unlabelled,
        targets.names,
        concise(labelling.how),
        tuple(lost),
        targets.kind,
        columns,
        list(map(concise, findings)),
        facts,
        targets.features,
        wanted.unused if recipe.tile else (),
    )


def _matched(wanted: SourceImages) -> TableMatch | None:
    """Return the rows that have columns, groups and splits, or None without a table.

    They are of the items (with columns of the label table), of the label table or of joined tables.
    """
    recipe, match = wanted.recipe, wanted.labelling.match
    table = wanted.documents.joined_table() if match is None or recipe.items else None
    if table is None:
        return match
    of_images = {recipe.rules.group.text, recipe.rules.split.column}
    return match_table(wanted.index, table).with_columns(match, recipe.columns, of_images)


def _used_documents(
    wanted: SourceImages, match: TableMatch | None, facts: AnnotationFacts | None
) -> set[str]:
    """Return the keys of tables and other documents that the catalog was made from."""
    tables = [one.table.file_names for one in (match, wanted.labelling.match) if one is not None]
    documents = wanted.documents
    read = documents.named() | documents.of_images
    return read.union(() if facts is None else facts.documents, *tables)


def _unmatched_rows(wanted: SourceImages) -> tuple[str, ...]:
    """Return the ids of rows without an image, in the tables of labels and of items."""
    labelling, own = wanted.labelling, wanted.listing.columns if wanted.recipe.items else None
    if own is None or (labelling.match is not None and labelling.match.table.is_own):
        return labelling.rows_without_image
    items = match_table(wanted.index, own)
    return (*labelling.rows_without_image, *items.rows_without_image)


def _without_left_out(rows: Sequence[str], wanted: SourceImages) -> tuple[list[str], list[str]]:
    """Return `rows` without ids of images that options leave out, and remarks on unused ids."""
    kept, remarks = without_left_out(rows, [one.key for one in wanted.skipped])
    match, table = wanted.labelling.match, wanted.listing.columns
    table = table if match is None else match.table
    lost = {*(kept if match is None else match.rows_without_image)}
    own = [one for one in kept if one in lost]
    is_of_items = bool(wanted.recipe.items) and table is not None and table.is_own
    keys = [*wanted.index.keys, *(one.key for one in wanted.listing.skipped)] if own else []
    are_many = table is not None and len(own) >= MANY * len(table.rows)
    are_said = is_of_items or are_many or any(other_case(one, keys) for one in own[:_FEW])
    if table is not None and are_said:
        remarks += unused_entries(table.name, own, len(table.rows), keys)
    return kept, remarks


def _relabelled(wanted: SourceImages, naming: Naming) -> tuple[Labelling, Labelling]:
    """Return the labels before and after `--relabel`."""
    recipe, labelling, rule = wanted.recipe, wanted.labelling, wanted.recipe.rules.relabel
    if not rule.files:
        return labelling, labelling
    table = wanted.documents.table(rule.files, (rule.id_column, *rule.label_columns))
    read = None if labelling.cells else class_reader(labelling.names, _spec(labelling, recipe))
    given = labelling
    if read is not None:
        naming = naming._replace(separator=recipe.separator)
        every = frozenset((one,) for cell in labelling.table_names for one in read(cell))
        given = replace(labelling, names=labelling.names.map(read), table_names=every)
    left_out = [one.key for one in wanted.skipped]
    return given, relabelled(given, wanted.index.keys, (table, rule), naming, left_out)


def _strata(
    targets: Targets, wanted: SourceImages, given: Labelling, naming: Naming
) -> Coded[tuple[int, ...]]:
    """Return the strata by targets before `--relabel`, so that relabelling changes no split."""
    if wanted.labelling is given:
        return targets.strata()
    cells = classes_in(given.names.counts())
    class_map = {old: new for old, new in naming.class_map.items() if old in cells}
    names = (class_map.get(one, one) for one in class_names(cells).values())
    classes = tuple(dict.fromkeys((*naming.classes, *names))) if naming.classes else ()
    own = naming._replace(class_map=class_map, classes=classes)
    return _targets(wanted.index.keys, given, wanted.recipe, own).strata()


def _splits(
    wanted: SourceImages, match: TableMatch | None, annotated: Annotated | None
) -> GivenSplits:
    rules = wanted.recipe.rules
    rule = rules.split
    boxes, runs, documents = rules.boxes.table, rules.masks.runs, wanted.documents
    if match is None and rule.kind in ("column", "tables") and (boxes.files or runs.files):
        table = documents.box_rows(boxes) if boxes.files else documents.table(runs.files)
        match = match_table(wanted.index, table, (boxes if boxes.files else runs).id_column)
    own = wanted.recipe.items == ""
    match = wanted.labelling.match if rule.kind == "tables" and not own else match
    given = given_splits(wanted.index, rule, match, wanted.documents, by_folders=own)
    is_by_source = rule.kind in ("folders", "ratio")
    if annotated is None or annotated.splits is None or not is_by_source:
        return given
    splits = [a or b for a, b in zip(annotated.splits, given.splits, strict=True)]
    has_list = annotated.are_listed and "train" in annotated.splits
    if has_list and wanted.recipe.unlisted != "train":
        pairs = zip(annotated.splits, splits, strict=True)
        splits = [None if own is None and one == "train" else one for own, one in pairs]
    note = f"{counted(splits.count(None), 'image', 'is', 'are')} in no list of a split"
    hint = f"{OptionName('unlisted', 'train')} takes them"
    return GivenSplits(Coded.of(splits), [f"{note}; {hint}"] if None in splits else [])


def _rows(wanted: SourceImages) -> RowColumns:
    rule, own, lists = wanted.recipe.rules.rows, wanted.listing.columns, RowColumns()
    if wanted.recipe.items and own is not None:
        titles = [one for one in own.header if one.startswith(ROWS)]
        lists = list_columns(match_table(wanted.index, own), titles) if titles else lists
    if not rule.files:
        return lists
    table = wanted.documents.table(rule.files, (rule.id_column, *rule.label_columns))
    match = match_table(wanted.index, table, rule.id_column)
    match.check(wanted.index.keys[0])
    rows = make_rows(match, rule.label_columns)
    columns = lists.columns + rows.columns
    check_columns(columns)
    return rows._replace(columns=columns, values=lists.values + rows.values)


def _targets(keys: Sequence[str], labelling: Labelling, recipe: Recipe, naming: Naming) -> Targets:
    rule = recipe.rules.labels
    if rule.kind not in ("auto", "none") and not labelling.names.are_there.any():
        example = shown(keys[0], MOST_SHOWN)
        what = f"finds a label for none of the images ({len(keys):,}), such as {example}"
        hint = f"try {OptionName('labels', 'auto')}"
        match = labelling.match
        if match is not None and not match.table.rows:
            match.check(keys[0])
        if rule.kind == "csv":
            hint = "name the column of ids, or a path of columns such as {study}/{series}"
        if match is not None and (first := next(filter(None, match.rows_without_image), "")):
            what = f"{what}; its first id is {shown(first, MOST_SHOWN)}{other_case(first, keys)}"
        if match is not None and (lost := without_zeros(keys, match.rows_without_image)):
            what, hint = f"{what}: the ids lack the zeros of {shown(lost)}", "write them with zeros"
        if match is not None and (cell := listed_images(match, keys)):
            what = f"column {match.id_column!r} has a list of images in a cell: {shown(cell)}"
            hint = "write a row for each image"
        if rule.kind == "column":
            titles = {} if match is None else match.table.titles
            hint = f"fill {some_of([titles.get(x, x) for x in labelling.columns])}, or name "
            hint += "another column"
        raise SourceError(OptionName("labels", rule.kind), what, hint)
    class_map, classes = naming.class_map, naming.classes
    if recipe.is_annotated:
        words = words_in(labelling.names)
        class_map = {old: new for old, new in class_map.items() if old in words}
        renamed = words.union(class_map.values())
        classes = classes if renamed.intersection(classes) else ()
    flags = tuple(dict.fromkeys(class_map.get(title, title) for title in labelling.flags))
    spec = replace(_spec(labelling, recipe), classes=classes or flags, class_map=class_map)
    made = make_targets(keys, labelling.names, spec, labelling.table_names, labelling.cells)
    if rule.kind != "regex" or made.kind != "class" or recipe.target != "auto":
        return made
    return replace(made, findings=(*made.findings, *many_numbers(made.names)))


def _spec(labelling: Labelling, recipe: Recipe) -> TargetSpec:
    is_class = recipe.target == "auto" and labelling.match is None
    return TargetSpec(kind="class" if is_class else recipe.target, separator=recipe.separator)


def _lacks(splits: Coded[str | None], targets: Coded[Target]) -> Coded[str]:
    """Return the reason to leave out each image, or ""; splits without any target are kept."""
    has_target = targets.are_there
    is_labelled = np.zeros(len(splits.values) + 1, np.bool_)  # the last row means "no split"
    is_labelled[splits.codes[has_target]] = True
    codes = np.where(has_target | ~is_labelled[splits.codes], 0, 1)
    return Coded(np.where(splits.are_there, codes, 2), ("", _NO_LABEL, "in no split"))


def _pairs(wanted: SourceImages, lacks: Coded[str]) -> tuple[Coded[tuple[Member, ...]], Coded[str]]:
    """Return the target images of each image, and `lacks` with a reason for images without one."""
    if not wanted.recipe.target_image:
        return Coded.constant((), len(lacks)), lacks
    targets = [tuple(wanted.beside.of(key)) for key in wanted.index.keys]
    own = ("" if target else _NO_TARGET for target in targets)
    return Coded.apart(targets), Coded.of(a or b for a, b in zip(lacks, own, strict=True))


def _without(items: Items, lacks: Coded[str], source: str) -> tuple[Items, list[Skipped]]:
    out = lacks.fit(bool)
    if not out.any():
        return items, []
    if out.all():
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in lacks.counts().items())
        what = f"every image is left out ({reasons})"
        hint = f"correct the labels, splits or annotations of {shown(items.members.keys[0])}"
        raise SourceError(source, what, f"{hint} and other images")
    left = np.flatnonzero(out)
    pairs = zip(items.members.take(left), lacks.take(left), strict=True)
    return items.take(np.flatnonzero(~out)), [skipped(member, lack) for member, lack in pairs]


def _findings(found: Affected, items: Items, unlabelled: Sequence[Skipped]) -> list[str]:
    wanted, targets, annotated = found.wanted, found.targets, found.annotated
    recipe, listing, labelling = wanted.recipe, wanted.listing, wanted.labelling
    findings = [*listing.notes, *labelling.remarks, *targets.findings]
    findings += wanted.index.remarks
    if links := links_outside(listing):
        findings.append(f"skipped {links} outside; {OptionName('follow_links')} follows links")
    unmapped = targets.unmapped
    if annotated is not None:
        has_labels = targets.kind != "none"
        unmapped = tuple(n for n in annotated.unmapped if not has_labels or n in unmapped)
    if unmapped:
        known = {*targets.names, *(annotated.facts.names if annotated is not None else ())}
        near = nearest_name(unmapped[0], sorted(known))
        meant = f"; is {near} meant?" if near else ""
        findings.append(f"{OptionName('class_map')}: no class is called {some_of(unmapped)}{meant}")
    findings += idle_options(found)
    if recipe.rules.group.kind != "none":
        findings += group_findings(items, recipe.rules.group.text, recipe.rules.split.ratios)
    patterns: list[str] = []
    if annotated is not None:
        findings += annotated.findings
        lost = sum(one.reason in (NO_ANNOTATION, NO_MASK) for one in unlabelled)
        if lost:
            unlisted = f"; {OptionName('unlisted', 'background')} takes them"
            hint = unlisted if annotated.has_background else ""
            findings.append(f"skipped {counted(lost, 'image')} that no annotation lists{hint}")
    elif recipe.labels == "auto":
        _ask_about(unlabelled, labelling, wanted.index)
        findings += [*labelling.findings, *mask_findings(wanted.index.keys)]
        patterns = stack_patterns(wanted.index.keys, wanted.tables)
    return findings + stack_findings(items.members, patterns)


def _ask_about(unlabelled: Sequence[Skipped], labelling: Labelling, index: KeyIndex) -> None:
    lost = [one.key for one in unlabelled if one.reason == _NO_LABEL]
    if labelling.rule == "folder":  # such as `test-several` next to class folders of test
        lost = [key for key in lost if "test" not in words_of_split(key.rpartition("/")[0])[0]]
    num_images = len(index.keys)
    if num_images - len(lost) < ENOUGH * num_images:
        such = f"such as {shown(lost[0], MOST_SHOWN)} (labels by {labelling.how})"
        what = f"finds no label for {len(lost):,} of {counted(num_images, 'image')}, {such}"
        rule = OptionName("labels", labelling.rule)
        hint = f"use {rule} to leave these out, or {OptionName('labels', 'none')} to label no image"
        raise SourceError(OptionName("labels", "auto"), what, hint)
