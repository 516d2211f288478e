"""The images of a source that a recipe wants, without masks, and their labels.

Images are selected by a root, globs and an exclude list. With `--dedup`, copies are left out.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardprep.catalog.arrays.array_images import ImageListing, with_arrays
from shardprep.catalog.arrays.mask_arrays import masks_apart, with_masks
from shardprep.catalog.arrays.opened_files import OWN_DATASET
from shardprep.catalog.labels import Labelling, label_keys
from shardprep.catalog.names import given_split
from shardprep.catalog.objects.detect import recognised
from shardprep.catalog.objects.formats.panoptic import with_panoptic
from shardprep.catalog.objects.mask_files import MasksBeside, masks_beside, skipped
from shardprep.catalog.patterns import matched, unused_globs
from shardprep.catalog.stacks import check_stacks, stack_masks, stacked
from shardprep.catalog.tables.key_index import KeyIndex, WholeKeyIndex, origin_of, unused_entries
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.table import Table
from shardprep.errors import OptionName, SourceError, printable, shown, some_of
from shardprep.recipe.recipe import Recipe, outputs
from shardprep.recipe.rules import TABLE_SUFFIXES, LabelRule, parse_label_rule
from shardprep.source.byte_range import MemberError, RefusedExtent, StoredExtent, ZipExtent
from shardprep.source.file_listing import LEADS_OUTSIDE, NOT_BELOW, Scope
from shardprep.source.listing import Listing, Skipped, list_source
from shardprep.source.members import Member, Members, StackExtent
from shardprep.source.names import is_array_name, without_archive_suffix
from shardprep.source.string_column import Coded

_KEPT_FIRST = ("test", "validation", "train")
MOST_SHOWN = 160
EXCLUDED, _COPY = "on the exclude list", "a copy of another"
NOT_INCLUDED, NOT_EXCLUDED = "not matched by --include", "matched by --exclude"
_UNWANTED = (NOT_BELOW, NOT_INCLUDED, NOT_EXCLUDED)
_DOCUMENTS = (*TABLE_SUFFIXES, ".json", ".jsonl", ".xml", ".txt")


@dataclass(frozen=True, slots=True)
class SourceImages:
    """The wanted images of a source, with their labels, tables and masks."""

    recipe: Recipe
    documents: Documents
    beside: MasksBeside
    members: Members
    skipped: list[Skipped]
    index: KeyIndex
    labelling: Labelling
    tables: Sequence[Table]
    notes: list[str]
    unused: tuple[str, ...]
    """Entries of the exclude list that fit no image."""


def list_images(
    recipe: Recipe,
    work_dir: Path,
    notice: Callable[[str], None],
    check: Callable[[Sequence[Member]], None] = lambda _: None,
    *,
    proposes: bool = False,
) -> ImageListing:
    """Return the members of a recipe's source and the images in its files of arrays, stacked.

    For arguments and errors see `list_source`, `with_arrays` and `stacked`.
    """
    listing = list_source(
        recipe.source,
        work_dir,
        notice,
        zip_encoding=recipe.zip_encoding or None,
        limits=recipe.source_limits,
        scope=_scope(recipe),
        check=check,
    )
    rest, masks = masks_apart(_without_arrays(listing, recipe), recipe)
    found = stacked(recipe, with_arrays(rest, recipe, proposes=proposes))
    found = with_masks(found, masks, recipe)
    unopened = [
        f"{one.key} is {one.reason} and not opened ({shown(one.detail, MOST_SHOWN)})"
        for one in listing.skipped
        if one.detail and one.reason in _UNWANTED
    ]
    return replace(found, notes=(*found.notes, *unopened))


def _scope(recipe: Recipe) -> Scope:
    texts = [recipe.class_map, recipe.exclude_list, recipe.mask_values, recipe.embeddings]
    texts += [recipe.labels, recipe.relabel, recipe.rows, recipe.split, recipe.group]
    texts += [recipe.boxes, recipe.masks, recipe.points, *recipe.join, *recipe.images]
    options = " ".join(map(str, texts)).lower()
    needs_all = recipe.is_annotated or bool(recipe.target_image)

    def is_in_options(key: str) -> bool:
        name = without_archive_suffix(key.rpartition("/")[2]).lower()
        pattern = rf"(?<![\w.-]){re.escape(name)}(?![\w-])"
        return name in options and re.search(pattern, options) is not None

    def is_named(key: str) -> bool:
        stem = without_archive_suffix(key).lower()
        is_document = stem != key.lower() and stem.endswith(_DOCUMENTS)
        return needs_all or is_document or is_in_options(key)

    def unwanted(key: str) -> str:
        names = [key, f"{key}/0"]
        if scope.is_outside(key):
            return "" if is_in_options(key) else NOT_BELOW
        if any(matched(names, recipe.exclude, "exclude")):
            return NOT_EXCLUDED
        is_by_folder = recipe.include and all("/" in glob for glob in recipe.include)
        is_out = is_by_folder and not any(matched(names, recipe.include, "include"))
        return NOT_INCLUDED if is_out else ""

    scope = Scope(outputs(recipe), recipe.root, is_named, unwanted)
    return scope


def _without_arrays(listing: Listing, recipe: Recipe) -> Listing:
    """Return the listing without the files of arrays that are not wanted: one may be damaged."""
    arrays = [one for one in listing.others if is_array_name(one.key.rpartition("/")[2])]
    if not (arrays and (recipe.exclude or recipe.include or recipe.root)):
        return listing
    keys, scope = [one.key for one in arrays], _scope(recipe)
    is_by_folder = recipe.include and all("/" in glob for glob in recipe.include)
    are_excluded = matched(keys, recipe.exclude, "exclude")
    are_included = matched([f"{key}/0" for key in keys], recipe.include, "include")
    out: dict[str, str] = {}
    for key, is_out, is_in in zip(keys, are_excluded, are_included, strict=True):
        if is_out:
            out[key] = NOT_EXCLUDED
        elif not (key.lower().endswith(TABLE_SUFFIXES) or scope.is_named(key)):
            reason = NOT_BELOW if scope.is_outside(key) else ""
            out[key] = reason or (NOT_INCLUDED if is_by_folder and not is_in else "")
    lost = [skipped(one, out[one.key]) for one in arrays if out.get(one.key)]
    others = [one for one in listing.others if not out.get(one.key)]
    return replace(listing, others=others, skipped=[*listing.skipped, *lost])


def files_by_key(listing: Listing) -> dict[str, StoredExtent | RefusedExtent]:
    """Return the extent of each image by key, without stacks: these have no file of their own."""
    return {key: extent for key, extent in listing.images if not isinstance(extent, StackExtent)}


def source_images(recipe: Recipe, listing: ImageListing) -> SourceImages:
    """Return the wanted images, their labels, and the recipe with detected boxes or masks."""
    are_stacks = listing.images.are_stacks
    if recipe.rules.masks.kind == "auto" and are_stacks.any():
        masks = listing.images.take(np.flatnonzero(~are_stacks)).keys
        recipe = recipe.with_rules(masks=stack_masks(masks))
    documents = Documents(listing.others, recipe, listing.columns)
    recipe = with_panoptic(recipe, listing.images, documents)
    excluded = documents.ids(recipe.exclude_list) if recipe.exclude_list else ()
    beside = masks_beside(recipe, listing.images, documents)
    others = [one.key for several in (listing.others, listing.skipped) for one in several]
    others += listing.images.keys if len(beside.images) < len(listing.images) else []
    selected = _select(beside.images, recipe, excluded, others)
    members = selected.members
    check_stacks(recipe, members)
    index = KeyIndex(members.keys)
    candidates = listing.images
    if recipe.exclude:
        is_out = np.array(matched(candidates.keys, recipe.exclude, "exclude"), bool)
        candidates = candidates.take(np.flatnonzero(~is_out))
    if "auto" in (recipe.rules.boxes.kind, recipe.rules.masks.kind):
        return source_images(recognised(recipe, index, documents, candidates), listing)
    is_alone = (recipe.is_annotated or recipe.target_image) and recipe.labels == "auto"
    tables = [] if is_alone else documents.label_tables()
    rule = LabelRule("none") if is_alone else recipe.label_rule
    if recipe.pivot and rule.kind != "csv":
        hint = f"use {OptionName('labels')} csv:FILE:ID:VALUE"
        raise SourceError(OptionName("pivot"), "is for a table of labels that is named", hint)
    labelling = label_keys(index, rule, tables)
    if recipe.may_be_annotated and labelling.rule == "none" and not members.are_stacks.any():
        found = recognised(recipe, index, documents, candidates)
        if found is not recipe:
            return source_images(found, listing)
    if labelling.unclear is not None:
        raise labelling.unclear
    labelling = _with_other_labels(labelling, recipe, tables, (members, selected.left_out))
    return SourceImages(
        recipe=recipe,
        documents=documents,
        beside=beside,
        members=members,
        skipped=selected.left_out,
        index=index,
        labelling=labelling,
        tables=tables,
        notes=selected.notes,
        unused=tuple(selected.unused),
    )


def _with_other_labels(
    labelling: Labelling,
    recipe: Recipe,
    tables: Sequence[Table],
    images: tuple[Members, Sequence[Skipped]],
) -> Labelling:
    """Return the labels with a remark about copies that have another label than the kept image."""
    kept = {one.key: one.detail for one in images[1] if one.reason == _COPY}
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
    """Return the error for a source without an image."""
    if num_links := num_links_outside(listing):
        what = f"holds no image, but {num_links:,} links that lead outside of it"
        return SourceError(source, what, f"add {OptionName('follow_links')} to follow them")
    suffixes = Counter(Path(member.key).suffix or "no suffix" for member in listing.others)
    found = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(4))
    what = f"holds no image ({found or 'it is empty'})"
    if listing.notes:
        what += f"; looked into {some_of(listing.notes)}"
        hint = f"{OptionName('images')} FILE:COLUMN names an array"
        return SourceError(source, what, "" if listing.notes == (OWN_DATASET,) else hint)
    return SourceError(source, what, "is it the right archive?")


def num_links_outside(listing: Listing) -> int:
    """Return the number of links that lead outside the source."""
    return sum(one.reason == LEADS_OUTSIDE for one in listing.skipped)


class _Selected(NamedTuple):
    members: Members
    left_out: list[Skipped]
    notes: list[str]
    unused: list[str]
    """Entries of the exclude list that fit no image."""


def _select(
    images: Members, recipe: Recipe, excluded: Sequence[str], others: Sequence[str]
) -> _Selected:
    """Return the wanted images, and the others with the reason why they are left out.

    A glob fits the whole key, or an end of it that starts at a folder, regardless of case: `*.png`,
    `part_1/*`, `**/masks/**`. `excluded` are the ids of the exclude list, `others` the keys of
    all other members, which a glob may mean.
    """
    wanted, left_out = images, list[Skipped]()
    notes, unused = list[str](), list[str]()
    below = [f"{recipe.root.strip('/')}/*"] if recipe.root.strip("/.") else []
    for globs, option, is_kept, reason in (
        (below, "root", True, NOT_BELOW),
        (recipe.include, "include", True, NOT_INCLUDED),
        (recipe.exclude, "exclude", False, NOT_EXCLUDED),
    ):
        if globs:
            fits = matched(wanted.keys, globs, option)
            out = {i: "" for i, fit in enumerate(fits) if fit != is_kept}
            kept, wanted = wanted, _without(wanted, out, reason, left_out)
            hits = wanted.keys if is_kept else [kept.keys[i] for i in out]
            if option != "root":
                lost = unused_globs(globs, chain(hits, others, images.keys))
                notes += [f"{OptionName(option)}: {some_of(lost)} fits nothing"] if lost else []
    left_out.sort(key=lambda one: one.key)
    if excluded:
        file, index = recipe.exclude_list, WholeKeyIndex(wanted.keys)
        origins = Coded.constant(origin_of(file, is_firm=False), len(excluded))
        found = index.find_keys(excluded, file, origins).tolist()
        unused += [text for text, at in zip(excluded, found, strict=True) if at < 0]
        if unused and len(wanted) < len(images):  # other options may leave their images out
            every = WholeKeyIndex(images.keys)
            unused = [text for text in unused if not every.find(printable(text))]
        if not recipe.tile:  # they may be keys of tiles
            notes += unused_entries(file, unused, len(excluded), images.keys[0])
        listed = dict.fromkeys(filter(lambda at: at >= 0, found), "")
        wanted = _without(wanted, listed, EXCLUDED, left_out)
    if recipe.dedup:
        wanted = _without(wanted, _copies(wanted), _COPY, left_out)
    if not wanted:
        reasons = Counter(one.reason for one in left_out)
        counted = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        what = f"all {len(images):,} images are left out ({counted})"
        hint = f"a key looks like {shown(images[0].key, MOST_SHOWN)}"
        raise SourceError(recipe.source, what, hint)
    return _Selected(wanted, left_out, notes, unused)


def _without(
    members: Members, out: Mapping[int, str], reason: str, left_out: list[Skipped]
) -> Members:
    left = np.array(sorted(out), np.int64)
    for i, member in zip(left.tolist(), members.take(left), strict=True):
        left_out.append(skipped(member, reason, out[i]))
    return members.take(np.delete(np.arange(len(members)), left))


def _copies(images: Members) -> dict[int, str]:
    """Return the positions of exact copies, each with the key of the image that is kept.

    A test image is kept first, then a validation image, so that evaluation sets stay whole and are
    not trained on; then the first key. Only images of equal size and CRC-32 (if known) are read.
    """
    members = images.listed()
    crcs = [m.extent.crc32 if isinstance(m.extent, ZipExtent) else -1 for m in members]
    if -1 in crcs:  # files in folders have no CRC: sizes alone decide which are read
        crcs = [-1] * len(crcs)
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, member in enumerate(members):
        alike[member.extent.num_bytes, crcs[i]].append(i)
    copies: dict[int, str] = {}
    for group in alike.values():
        by_hash: defaultdict[bytes, list[int]] = defaultdict(list)
        for i in group if len(group) > 1 else ():
            try:
                by_hash[hashlib.sha256(members[i].extent.read()).digest()].append(i)
            except MemberError:
                continue  # the build rejects it later, with the reason
        for same in by_hash.values():
            first, *others = sorted(same, key=lambda i: _rank(members[i].key))
            copies.update(dict.fromkeys(others, members[first].key))
    return copies


def _rank(key: str) -> tuple[int, str]:
    return _KEPT_FIRST.index(given_split(key.split("/")[:-1]) or "train"), key
