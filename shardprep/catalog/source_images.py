"""The images of a source that a recipe wants, without masks, and their labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from shardprep.catalog.arrays.array_images import ImageListing, with_arrays
from shardprep.catalog.arrays.mask_arrays import masks_apart, with_masks
from shardprep.catalog.arrays.opened_files import OWN_DATASET, PICKLE, is_named_by
from shardprep.catalog.decision.decide import asked_masks, decide
from shardprep.catalog.decision.view import View
from shardprep.catalog.given_items import are_files, listed_files, listed_folders, mask_paths
from shardprep.catalog.label_rules import label_keys, unused_tables
from shardprep.catalog.labels import Labelling
from shardprep.catalog.objects.detect import recognised
from shardprep.catalog.objects.formats.panoptic import with_panoptic
from shardprep.catalog.objects.mask_files import MasksBeside, skipped
from shardprep.catalog.patterns import matched
from shardprep.catalog.selection import COPY, MOST_SHOWN, NOT_EXCLUDED, NOT_INCLUDED, NOT_LISTED
from shardprep.catalog.splits import given_splits
from shardprep.catalog.stacks import check_stacks, stack_masks, stacked
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.table import Table
from shardprep.errors import (
    Choice,
    OptionName,
    QuestionError,
    ShardprepError,
    SourceError,
    command_line,
    counted,
    shown,
    some_of,
)
from shardprep.recipe.recipe import Recipe, outputs
from shardprep.recipe.rules import TABLE_SUFFIXES, LabelRule, parse_label_rule
from shardprep.source.file_listing import LEADS_OUTSIDE, NOT_BELOW, Scope
from shardprep.source.listing import Listing, Skipped, list_source
from shardprep.source.members import FileExtent, Member, Members, StackExtent
from shardprep.source.names import is_array_name, without_archive_suffix

_HALF_LINE = 32
_KINDS = {"regression": "number", "text": "text", "texts": "texts"}
"""Value of `--target` → word for a label in examples of a choice."""
_DOCUMENTS = (*TABLE_SUFFIXES, ".json", ".jsonl", ".xml", ".txt")


@dataclass(frozen=True, slots=True)
class SourceImages:
    """The wanted images of a source, with their labels, tables and masks."""

    view: View
    recipe: Recipe
    listing: ImageListing
    documents: Documents
    beside: MasksBeside
    members: Members
    skipped: list[Skipped]
    index: KeyIndex
    labelling: Labelling
    tables: Sequence[Table]
    notes: list[str]
    unused: tuple[str, ...]
    """Entries of the exclude list that match no image."""


def list_images(
    recipe: Recipe,
    work_dir: Path,
    notice: Callable[[str], None],
    check: Callable[[Sequence[Member]], None] = lambda _: None,
    *,
    proposes: bool = False,
) -> ImageListing:
    """Return the members of a recipe's source, with the images of array files, and with stacks.

    For arguments and errors see `list_source`, `with_arrays` and `stacked`.
    """
    listing = list_source(
        recipe.source,
        work_dir,
        notice,
        zip_encoding=recipe.zip_encoding or None,
        limits=recipe.source_limits,
        scope=scope_of(recipe),
        check=check,
    )
    wanted = _without_unwanted(listing, recipe)
    rest, masks = masks_apart(wanted, recipe, partial(mask_paths, recipe))
    opened = recipe
    if recipe.may_be_annotated and not recipe.images:  # `decide` applies the other options
        stated = Documents(listing.others, recipe).export_options()
        rules = {key: one for key, one in stated.items() if key in ("images", "masks", "points")}
        opened = recipe.with_rules(**rules) if rules else recipe
    found = stacked(recipe, with_arrays(rest, opened, proposes=proposes))
    found = with_masks(found, masks, recipe)
    unopened = [
        f"{one.key} is {one.reason} and not opened ({shown(one.detail, MOST_SHOWN)})"
        for one in listing.skipped
        if one.detail and one.reason in (NOT_BELOW, NOT_INCLUDED, NOT_EXCLUDED)
    ]
    return replace(found, notes=(*found.notes, *unopened))


def _texts(recipe: Recipe) -> str:
    texts = [recipe.class_map, recipe.exclude_list, recipe.mask_values]
    texts += [recipe.labels, recipe.relabel, recipe.rows, recipe.split, recipe.group]
    texts += [recipe.boxes, recipe.masks, recipe.points, *recipe.join, *recipe.images]
    return " ".join(map(str, texts)).lower()


def _is_in(options: str, key: str) -> bool:
    name = without_archive_suffix(key.rpartition("/")[2]).lower()
    pattern = rf"(?<![\w.-]){re.escape(name)}(?![\w-])"
    return name in options and re.search(pattern, options) is not None


def scope_of(recipe: Recipe) -> Scope:
    """Return the scope for listing: the part of the source that the recipe uses."""
    options = _texts(recipe)
    names_files = recipe.is_annotated or bool(recipe.target_image)
    needs_all = names_files or bool(recipe.items)
    on_disk: dict[str, Any] = {
        one: "" for one in ("class_map", "exclude_list") if Path(getattr(recipe, one)).is_file()
    }
    of_source = _texts(replace(recipe, **on_disk))
    is_by_items = recipe.items and not (names_files or re.search(r"\.[a-z]|tables", of_source))
    is_closed = cache(lambda: is_by_items and are_files(recipe))
    folders = cache(lambda: listed_folders(recipe) if is_by_items else {})

    def is_named(key: str) -> bool:
        stem = without_archive_suffix(key).lower()
        is_document = stem != key.lower() and stem.endswith(_DOCUMENTS)
        return needs_all or is_document or _is_in(options, key)

    def unwanted(key: str) -> str:
        names = [key, f"{key}/0"]
        if scope.is_outside(key):
            return "" if _is_in(options, key) else NOT_BELOW
        if any(matched(names, recipe.exclude, "exclude")):
            return NOT_EXCLUDED
        is_by_folder = recipe.include and all("/" in glob for glob in recipe.include)
        is_out = is_by_folder and not any(matched(names, recipe.include, "include"))
        return NOT_INCLUDED if is_out else ""

    def unopened(key: str) -> str:
        return NOT_LISTED if is_closed() and not _is_in(options, key) else ""

    def has_files(key: str) -> bool | None:
        known = folders()
        return True if not known or (key and _is_in(options, key)) else known.get(key)

    def is_sample(key: str) -> bool:
        layouts = [one.layout for one in recipe.rules.images if is_named_by(one.file, key)]
        return bool(layouts) and all(one.isalpha() and "N" not in one for one in layouts)

    scope = Scope(
        outputs(recipe), recipe.root, is_named, unwanted, unopened, is_sample,
        listed_files(recipe), has_files,
    )  # fmt: skip
    return scope


def _without_unwanted(listing: Listing, recipe: Recipe) -> Listing:
    """Return the listing without files that `--exclude` matches, unless an option names them.

    Files of arrays are also left out by `--include` and `--root`, because opening them may fail.
    """
    if not (recipe.exclude or recipe.include or recipe.root):
        return listing
    keys, scope = [one.key for one in listing.others], scope_of(recipe)
    options = _texts(recipe)
    is_by_folder = recipe.include and all("/" in glob for glob in recipe.include)
    are_excluded = matched(keys, recipe.exclude, "exclude")
    are_included = matched([f"{key}/0" for key in keys], recipe.include, "include")
    out: dict[str, str] = {}
    for key, is_out, is_in in zip(keys, are_excluded, are_included, strict=True):
        is_array = is_array_name(key.rpartition("/")[2])
        if is_out and (is_array or not _is_in(options, key)):
            out[key] = NOT_EXCLUDED
        elif is_array and not (key.lower().endswith(TABLE_SUFFIXES) or scope.is_named(key)):
            reason = NOT_BELOW if scope.is_outside(key) else ""
            out[key] = reason or (NOT_INCLUDED if is_by_folder and not is_in else "")
    lost = [skipped(one, out[one.key]) for one in listing.others if out.get(one.key)]
    others = [one for one in listing.others if not out.get(one.key)]
    return replace(listing, others=others, skipped=[*listing.skipped, *lost])


def files_by_key(listing: Listing) -> dict[str, FileExtent]:
    """Return key → extent of each image, except stacks, which have several files."""
    return {key: extent for key, extent in listing.images if not isinstance(extent, StackExtent)}


def source_images(recipe: Recipe, listing: ImageListing) -> SourceImages:
    """Return the wanted images, their labels, and the recipe with the decided options.

    QuestionError with examples if several readings fit. SourceError if the labels are unclear.
    """
    are_stacks = listing.images.are_stacks
    if recipe.rules.masks.kind == "auto" and are_stacks.any():
        masks = listing.images.take(np.flatnonzero(~are_stacks)).keys
        recipe = recipe.with_rules(masks=stack_masks(masks))
    documents = Documents(listing.others, recipe, listing.columns)
    view = View(with_panoptic(recipe, listing.images, documents), listing, paired=listing.files)
    if view.recipe.rules.masks.kind == "auto":
        view = asked_masks(view)
    try:
        view = decide(view)
    except QuestionError as error:
        raise QuestionError.of(
            error.place, [_with_examples(one, view) for one in error.choices]
        ) from None
    return _labelled(view)


def _with_examples(choice: Choice, view: View) -> Choice:
    """Return the choice with three images as examples; unchanged if it cannot be applied."""
    try:
        found = _labelled(view.of(view.recipe.with_rules(**choice.options)))
        rule, match = found.recipe.rules.split, found.labelling.match
        splits = given_splits(found.index, rule, match, found.documents).splits
    except ShardprepError:
        return choice
    keys, names = found.index.keys, found.labelling.names
    recipe, lines = found.recipe, list[str]()
    kind = _KINDS.get(recipe.target, "class")
    what = "objects" if recipe.instances else "target" if recipe.target_image else "mask"
    for at in sorted({0, len(keys) // 2, len(keys) - 1}):
        cell = names[at]
        label = ", ".join(cell) if isinstance(cell, tuple) else cell
        beside = [f"{what} {_last(one.key)}" for one in found.beside.of(keys[at])]
        facts = [splits[at], label and f"{kind} {label}", *beside[:1]]
        given = ", ".join(str(one) for one in facts if one)
        lines.append(f"{_last(keys[at])}: {shown(given, MOST_SHOWN)}")
    return choice._replace(examples=tuple(lines))


def _last(key: str) -> str:
    parts = key.split("/")
    while len(parts) > 2 and len("/".join(parts)) > _HALF_LINE:
        parts = ["…", *parts[2 if parts[0] == "…" else 1 :]]
    return shown("/".join(parts), MOST_SHOWN)


def _labelled(view: View) -> SourceImages:
    recipe, index, documents = view.recipe, view.index, view.documents
    check_stacks(recipe, view.members)
    if "auto" in (recipe.rules.boxes.kind, recipe.rules.masks.kind):
        return _labelled(view.of(recognised(recipe, index, documents, view.candidates)))
    is_alone = (recipe.is_annotated or recipe.target_image) and recipe.labels == "auto"
    tables = [] if is_alone else documents.label_tables()
    rule = LabelRule("none") if is_alone else recipe.label_rule
    if recipe.pivot and rule.kind != "csv":
        hint = f"use {OptionName('labels', 'csv:FILE:ID:VALUE')}"
        raise SourceError(OptionName("pivot"), "needs a named table of labels", hint)
    labelling = view.automatic if rule.kind == "auto" else label_keys(index, rule, tables)
    if recipe.may_be_annotated and labelling.rule == "none" and not view.members.are_stacks.any():
        found = recognised(recipe, index, documents, view.candidates)
        if found is not recipe:
            return _labelled(view.of(found))
    if labelling.unclear is not None:
        raise labelling.unclear
    if "labels" in view.decided and (match := labelling.match) is not None:
        used = {match.table.name, *dict(match.table.parts)}
        others = [one for one in view.tables if used.isdisjoint((one.name, *dict(one.parts)))]
        more = unused_tables(index, labelling, others)
        labelling = replace(labelling, remarks=labelling.remarks + more)
    selected = view.selected
    labelling = _with_other_labels(labelling, recipe, tables, (view.members, selected.left_out))
    return SourceImages(
        view=view,
        recipe=recipe,
        listing=view.listing,
        documents=documents,
        beside=view.beside,
        members=view.members,
        skipped=selected.left_out,
        index=index,
        labelling=labelling,
        tables=tables,
        notes=[*view.notes, *selected.notes],
        unused=tuple(selected.unused),
    )


def _with_other_labels(
    labelling: Labelling,
    recipe: Recipe,
    tables: Sequence[Table],
    images: tuple[Members, Sequence[Skipped]],
) -> Labelling:
    """Return the labels, with a remark if left-out copies have other labels than kept images."""
    kept = {one.key: one.detail for one in images[1] if one.reason == COPY}
    if not kept or labelling.rule == "none":
        return labelling
    rule = recipe.label_rule
    if rule.kind == "auto":
        rule = parse_label_rule(labelling.rule)
        tables = [labelling.match.table] if labelling.match else ()
    try:
        names = label_keys(KeyIndex([*kept]), rule, tables).names
    except SourceError:  # no copy has a label
        return labelling
    label_of = dict(zip(images[0].keys, labelling.names, strict=True))
    pairs = zip(kept.items(), names, strict=True)
    others = [
        f"{key} ({name}) and {first} ({label_of[first]})"
        for (key, first), name in pairs
        if name is not None and label_of[first] not in (None, name)
    ]
    what = f"{OptionName('dedup')}: of the left-out copies, {len(others):,} had another label"
    remarks = [f"{what} than the image that is kept, such as {one}" for one in others[:1]]
    return replace(labelling, remarks=(*labelling.remarks, *remarks))


def no_image(source: str, listing: ImageListing) -> SourceError:
    """Return the error for a source without any image."""
    if links := links_outside(listing):
        what = f"holds no image, but {links} out of it"
        return SourceError(source, what, f"add {OptionName('follow_links')} to follow them")
    suffixes = Counter(Path(member.key).suffix or "no suffix" for member in listing.others)
    found = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(4))
    what = f"holds no image ({found or 'it is empty'})"
    pickles = [one.removesuffix(PICKLE).rstrip() for one in listing.notes if one.endswith(PICKLE)]
    if pickles and len(pickles) == len(listing.notes):
        what = f"holds no image, but Python pickles, which are never read: {some_of(pickles)}"
        return SourceError(source, what, "convert them as docs/kaggle.md shows for CIFAR")
    if listing.notes:
        what += f"; looked into {some_of(listing.notes)}"
        hint = f"name an array in a build: {OptionName('images', 'FILE:COLUMN')}"
        if listing.notes == (OWN_DATASET,):
            keys = [one.key for one in listing.others if one.key.endswith("manifest.json")]
            folder = f"{source}/{keys[0]}".removesuffix("/manifest.json")
            hint = f"run {command_line('repack', folder)} instead"
        return SourceError(source, what, hint)
    return SourceError(source, what, "name a source with images")


def links_outside(listing: Listing) -> str:
    """Return in words how many skipped links lead outside the source; "" if none."""
    number = sum(one.reason == LEADS_OUTSIDE for one in listing.skipped)
    return counted(number, "link", "that leads", "that lead") if number else ""
