"""Plan a build from a source: list, label and split the images, and cut the splits into shards.

Ratios cut the train split, and every split that they name; other splits stay whole. The cut is a
pure function of keys, labels, splits, groups and a seed. Items with groups or several classes are
distributed group by group: `_cut_together` explains the method.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.catalog.items import Item, Items
from shardprep.catalog.objects.combine import AnnotationFacts
from shardprep.catalog.selection import EXCLUDED
from shardprep.catalog.splits import is_cut
from shardprep.catalog.tables.key_index import unused_entries
from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
    OBJECTS,
    POINTS,
    POINTS_VISIBLE,
    TARGET_FEATURES,
    TARGET_IMAGE,
    TARGETS,
    Encoding,
    Schema,
    load_schema,
)
from shardprep.errors import OptionName, RecipeError, SchemaError, counted, some_of
from shardprep.image.annotation_types import AnnotationSpec, Skeleton
from shardprep.image.near_pairs import near_pairs
from shardprep.image.spec import ImageSpec, estimated_bytes
from shardprep.profiling import stage
from shardprep.progress import Watch
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.source.string_column import Coded
from shardprep.writer.plan.build_plan import BuildPlan
from shardprep.writer.plan.near_copies import NearCopies, ThumbnailSource, make_thumbnails
from shardprep.writer.plan.shard_plan import plan_shards, shuffled
from shardprep.writer.plan.tiles import cut_tiles, without_listed

NO_LABEL = "no label, and --split makes this split of labelled images"
_FEW_GROUPS, _SLACK = 32, 1e-9
_FAR_OFF = 0.05
"""Largest difference between the share of a split and its ratio without a warning."""
RECORD_OVERHEAD_BYTES = 200
"""Bytes of a record in addition to image and key: framing and feature names."""


@contextlib.contextmanager
def _paused_collection() -> Iterator[None]:
    """Pause the garbage collector, because a plan makes millions of objects and no garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@stage("plan")
@_paused_collection()
def make_plan(recipe: Recipe, work_dir: Path, watcher: Watch, num_workers: int = 1) -> BuildPlan:
    """Return the plan of a recipe. Files of its items may be unpacked in `work_dir`.

    RecipeError, SchemaError or SourceError if the source or a table is invalid, or does not fit.
    """
    catalog = make_catalog(recipe, work_dir, watcher.notice)
    recipe = catalog.recipe
    spec = recipe.settled(annotated=catalog.annotations is not None).image_spec
    ratios = recipe.rules.split.ratios
    items, left_out, copies = catalog.items, list[Item](), list[Skipped]()
    near = leaks = None
    if recipe.dedup == "near" and items.members.are_stacks.any():
        what = "near copies of stacks are not left out, only equal stacks"
        catalog.findings.append(f"{OptionName('dedup', 'near')}: {what}")
        recipe = replace(recipe, dedup=True)
    if recipe.finds_near:
        items, unlabelled, _ = without_spoilers(items, ratios)
        left_out += unlabelled
        files = ThumbnailSource.files(recipe, spec)
        thumbnails = make_thumbnails(items, files, recipe, num_workers, watcher)
        pairs = near_pairs(thumbnails)
        are_left_out = recipe.dedup == "near"
        near = NearCopies.among(items, pairs, has_scenes=not are_left_out)
        items, copies = near.without() if are_left_out else (near.together(), [])
    names = catalog.label_names if catalog.target_kind in ("class", "multilabel") else ()
    cut = cut_items(items, ratios, recipe.seed, names)
    items, findings = cut.items, [*catalog.findings, *cut.notes]
    left_out += cut.left_out
    if near is not None:
        findings = findings + near.remarks(items, are_left_out=recipe.dedup == "near")
        leaks = near.leak_check(items, recipe)
    form = None if catalog.annotations is None else catalog.annotations.spec
    if recipe.tile is not None:
        items, remarks = cut_tiles(items, recipe, form, work_dir, num_workers, watcher)
        items, listed, unlisted = without_listed(items, catalog.excluded_tiles, recipe)
        num_used = sum(one.reason == EXCLUDED for one in catalog.skipped) + len(listed)
        number, keys = num_used + len(unlisted), items.members.keys
        remarks += unused_entries(recipe.exclude_list, unlisted, number, keys)
        findings, copies = findings + remarks, [*copies, *listed]
        catalog = catalog.in_tiles()
    spoilers = [Skipped(item.key, NO_LABEL, item.extent.num_bytes) for item in left_out]
    estimate = _records_bytes(items, spec)
    found_by, without_image = [catalog.labels_from], catalog.rows_without_image
    if catalog.annotations is not None:
        found_by = [*(found_by if catalog.target_kind != "none" else ()), catalog.annotations.how]
        without_image += catalog.annotations.without_image
    return BuildPlan(
        name=recipe.dataset_name,
        shards=plan_shards(recipe.dataset_name, items, recipe.shards, estimate, recipe.seed),
        skipped=[*catalog.skipped, *copies, *spoilers],
        spec=spec,
        schema=_schema(recipe, catalog, spec),
        labels_from="; ".join(found_by),
        rows_without_image=without_image,
        columns=tuple(column.name for column in catalog.columns),
        findings=findings,
        annotations=catalog.annotations,
        target=recipe.target_spec,
        estimated_bytes=estimate,
        near_copies="" if near is None else near.digest,
        leaks=leaks,
    )


def _records_bytes(items: Items, spec: ImageSpec) -> int:
    readable = ~items.members.are_refused
    num_bytes = int(items.members.num_bytes[readable].sum())
    key_length = int(items.members.keys.lengths()[readable].sum())
    images = estimated_bytes(spec, num_bytes, int(items.members.num_files[readable].sum()))
    return images + key_length + RECORD_OVERHEAD_BYTES * len(items)


def cut_items(
    items: Items, ratios: Mapping[str, float], seed: int, names: Sequence[str] = ()
) -> Cut:
    """Return the items with splits cut by `ratios`; RecipeError if a split gets no image.

    A note says which classes of `names` have images in only one split.
    """
    if not ratios:
        return Cut(items, items.take(np.empty(0, np.int64)))
    num_cut = len(rows_to_cut(items, ratios))
    if not num_cut:
        given = ", ".join(items.split.counts())
        what = f"ratios divide only train and the splits that they name, but the source has {given}"
        raise RecipeError(OptionName("split"), what, "name one of these splits")
    cut = cut_splits(items, ratios, seed)
    counts = cut.items.split.counts()
    empty = [split for split in ratios if split not in counts]
    if empty:
        what = f"{empty[0]}={ratios[empty[0]]:g} gives 0 of {counted(num_cut, 'image')}"
        hint = "use a larger ratio, or leave the split out"
        if number := len([*filter(None, items.group.take(rows_to_cut(items, ratios)).counts())]):
            what += f", because {counted(number, 'group', 'is', 'are')} not divided"
            hint = "use fewer splits, or smaller groups"
        raise RecipeError(OptionName("split"), what, hint)
    few = _in_one_split(cut.items, ratios, names)
    return cut._replace(notes=(*_recut(items, ratios), *_far_off(cut.items, ratios), *few))


def _in_one_split(items: Items, ratios: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Return a note on classes whose images the ratios put into only one of several splits."""
    cut, splits = items.take(rows_to_cut(items, ratios)), dict[int, set[str]]()
    if not names or len(cut.split.counts()) < 2:
        return []
    pairs = np.unique(np.stack((cut.target.codes, cut.split.codes)), axis=1).T.tolist()
    for target, split in [(cut.target.values[at], split) for at, split in pairs if at >= 0]:
        for label in target if isinstance(target, tuple) else [target]:
            if type(label) is int:
                splits.setdefault(label, set()).add(cut.split.values[split])
    alone = [f"{names[at]} ({min(own)})" for at, own in sorted(splits.items()) if len(own) == 1]
    what = f"{counted(len(alone), 'class', 'has', 'have')} too few images for several splits"
    return [f"{what}: {some_of(alone)}"] if alone else []


def _far_off(items: Items, ratios: Mapping[str, float]) -> list[str]:
    """Return a note if undivided groups lead to other shares than the ratios."""
    if not any(items.group.values):
        return []
    counts = items.split.take(rows_to_cut(items, ratios)).counts()
    wanted = ratios if "train" in ratios else {"train": 1 - sum(ratios.values()), **ratios}
    total = sum(counts.values())
    shares = {split: counts.get(split, 0) / total for split in wanted}
    if all(abs(share - wanted[split]) <= _FAR_OFF for split, share in shares.items()):
        return []
    got = ", ".join(f"{split} {shares[split]:.0%} ({wanted[split]:.0%})" for split in wanted)
    return [f"warning: groups are not divided, so splits differ from the ratios: {got}"]


def _recut(items: Items, ratios: Mapping[str, float]) -> list[str]:
    counts = items.split.take(rows_to_cut(items, ratios)).counts()
    if len(counts) < 2:
        return []
    ordered = sorted(counts, key=lambda split: (split != "train", split))
    given = " and ".join(f"{split} ({counted(counts[split], 'image')})" for split in ordered)
    if "train" not in ratios:
        return [f"the ratios cut {given} anew, as one set"]
    option, alone = OptionName("split"), OptionName("split", "validation=0.1")
    stays = f"a split that the ratios leave out stays whole, as in {alone}"
    return [f"{option} cuts {given} anew, as one set; {stays}"]


def _schema(recipe: Recipe, catalog: Catalog, spec: ImageSpec) -> Schema:
    name = recipe.schema
    kind = catalog.target_kind
    annotations = {} if catalog.annotations is None else _annotation_features(catalog.annotations)
    if name == "auto":
        name = {"class": "classification", "none": _without_target(annotations)}.get(kind, kind)
    schema, where = load_schema(name), OptionName("schema", name)
    if lacking := sorted(schema.annotations.keys() - {*annotations, CROWD}):
        what = f"asks for {lacking[0]!r}, but no such boxes or masks are found"
        hint = (
            f"say where they are with {OptionName('boxes')} or {OptionName('masks')}, "
            f"or leave {OptionName('schema')} out"
        )
        raise SchemaError(where, what, hint)
    wanted = TARGETS if schema.name == "classes" else schema.target
    if wanted not in (None, TARGET_FEATURES.get(kind)):
        found = "no labels are found" if kind == "none" else f"the targets are of kind {kind}"
        option = OptionName("labels")
        hint = f"say where they are with {option}, or leave {OptionName('schema')} out"
        raise SchemaError(where, f"asks for {wanted!r}, but {found}", hint)
    labels = catalog.label_names if schema.target else ()
    columns = {column.name: column.dtype for column in catalog.columns}
    encoding: Encoding = "any" if spec.format == "keep" else spec.format
    targets = {**catalog.target_features} if wanted else {}
    if (form := recipe.target_spec) is not None:
        is_deep, shape = form.depth == 16, spec.fixed_size or (None, None)
        own = {"shape": (*shape, 1 if is_deep else 3), "is_deep": is_deep, "encoding": "png"}
        targets[TARGET_IMAGE] = schema.image.model_copy(update={**own, "doc": "The target image."})
    rule = recipe.rules.stack
    members = catalog.items.members
    has_stacks = bool(rule.text or members.are_stacks.any())
    if schema.is_stack and not has_stacks:
        what = "is for stacks, but the source has single images"
        hint = f"give {OptionName('stack')}, or leave {OptionName('schema')} out"
        raise SchemaError(where, what, hint)
    filled = schema.filled(spec.fixed_size, encoding, labels, columns, annotations, targets)
    if has_stacks:
        is_named = (members.num_files <= len(rule.channels)).all()  # a channel can be a volume
        has_layers = (
            bool(rule.channels and is_named) or "class" in recipe.rules.masks.pattern.fields
        )
        most = max(map(len, catalog.items.companions.firsts().values()), default=0)
        channels, repeat = rule.channels if is_named else (), most > 1 and not has_layers
        return filled.with_stacks(channels, is_deep=spec.depth == 16, masks_repeat=repeat)
    return filled.with_keypoints(_skeletons(catalog.annotations))


def _annotation_features(facts: AnnotationFacts) -> dict[str, tuple[str, ...]]:
    spec, features = facts.spec, dict[str, tuple[str, ...]]()
    if spec.has_objects:
        features.update({BOX: (), BOX_LABEL: facts.names})
        features.update(dict.fromkeys((f"{OBJECTS}/{name}" for name in spec.attributes), ()))
    if spec.masks == "instances":
        features[OBJECT_MASK] = ()
    if spec.masks == "classes":
        features[MASK] = facts.names
    return {**features, **dict.fromkeys(_skeletons(facts), ())}


def _skeletons(facts: AnnotationFacts | None) -> dict[str, Skeleton]:
    spec = AnnotationSpec() if facts is None else facts.spec
    pairs = (
        ((KEYPOINTS, KEYPOINTS_VISIBLE), spec.keypoints),
        ((POINTS, POINTS_VISIBLE), spec.points),
    )
    return {name: one for names, one in pairs if one is not None for name in names}


def _without_target(annotations: Collection[str]) -> str:
    names = {
        OBJECT_MASK: "instances",
        KEYPOINTS: "keypoints",
        BOX: "detection",
        MASK: "segmentation",
        POINTS: "points",
    }
    return next((name for feature, name in names.items() if feature in annotations), "unlabelled")


Ints = NDArray[np.int64]

_NO_CLASS, _EVERY = -1, -2
"""Keys in addition to the classes: items without a class, and all items."""


class Cut(NamedTuple):
    """Items with their new splits, and the left-out items."""

    items: Items
    left_out: Items
    notes: tuple[str, ...] = ()


def cut_splits(items: Sequence[Item], ratios: Mapping[str, float], seed: int) -> Cut:
    """Return the items with splits cut by ratio; each split has the same share of every class.

    Counts per class and split are exact shares, rounded down or up, or as near as undivided groups
    allow. In a labelled source, unlabelled items stay only in splits that are not in `ratios`.
    """
    stay, left_out, _ = without_spoilers(items, ratios)
    pool = rows_to_cut(stay, ratios)
    pool = pool[shuffled(stay.members.keys.take(pool), seed, b"split")]
    strata, group = stay.strata.take(pool), stay.group.take(pool)
    is_apart = all(len(several) < 2 for several in strata.firsts().values())
    if is_apart and not group.fit(bool).any():
        places = _cut_apart(strata, ratios)
    else:
        places = _cut_together(strata, group, ratios)
    names = list(dict.fromkeys((*ratios, *stay.split.values)))
    number = {name: i for i, name in enumerate(names)}
    codes = np.array([number[name] for name in stay.split.values])[stay.split.codes]
    codes[pool] = places
    return Cut(replace(stay, split=Coded(codes.astype(np.int32), names)), left_out)


def rows_to_cut(items: Items, ratios: Mapping[str, float]) -> Ints:
    """Return the positions of the items that `ratios` divide into splits, ascending.

    If the source has labels, only labelled items are divided.
    """
    labelled = items.are_labelled
    is_cut_split = items.split.fit(lambda split: is_cut(split, ratios))
    return np.flatnonzero(is_cut_split & (labelled if labelled.any() else ~labelled))


def without_spoilers(items: Sequence[Item], ratios: Mapping[str, float]) -> Cut:
    """Return the items without unlabelled items in splits of `ratios`; all if none has a label."""
    columns = Items.of(items)
    labelled = columns.are_labelled
    spoils = ~labelled & columns.split.fit(lambda split: split in ratios) & labelled.any()
    if not spoils.any():
        return Cut(columns, columns.take(np.empty(0, np.int64)))
    return Cut(columns.take(np.flatnonzero(~spoils)), columns.take(np.flatnonzero(spoils)))


def _cut_apart(strata: Coded[tuple[int, ...]], ratios: Mapping[str, float]) -> Ints:
    """Return each item's index into `ratios`. Items must be shuffled and have at most one class."""
    counts = strata.counts()
    ordered = sorted(counts)
    rank = {stratum: i for i, stratum in enumerate(ordered)}
    ranks = np.array([rank.get(stratum, -1) for stratum in strata.values])
    by_stratum = np.argsort(ranks[strata.codes], kind="stable")
    debts = dict.fromkeys(ratios, 0.0)
    shares = [list(_shares(counts[stratum], ratios, debts).values()) for stratum in ordered]
    places = np.empty(len(strata), np.int64)
    places[by_stratum] = np.repeat(
        np.tile(np.arange(len(ratios)), len(ordered)), np.array(shares, np.int64).ravel()
    )
    return places


def _shares(num_items: int, ratios: Mapping[str, float], debts: dict[str, float]) -> dict[str, int]:
    """Return split → number of items of a class; `debts` carries rounding to the next class."""
    total = sum(ratios.values())  # 1 within a rounding error, which would cost items
    exact = {split: num_items * ratio / total for split, ratio in ratios.items()}
    counts = {split: int(share + 1e-9) for split, share in exact.items()}
    for split in ratios:
        debts[split] += exact[split] - counts[split]
    by_debt = sorted(ratios, key=lambda split: -debts[split])
    owed = [split for split in by_debt if exact[split] - counts[split] > 1e-9]
    for split in owed[: num_items - sum(counts.values())]:
        counts[split] += 1
        debts[split] -= 1.0
    return counts


def _cut_together(
    strata: Coded[tuple[int, ...]], group: Coded[str], ratios: Mapping[str, float]
) -> Ints:
    """Return each item's index into `ratios`. Groups are not divided; item order breaks ties.

    Groups that have the largest share of a class come first. A group goes to the split for which
    chi-square becomes smallest: the sum of (count − wanted count)² / wanted count over the splits,
    of items and of items of each class. The last groups go to splits that are still empty. If no
    split is empty and there are at most `_FEW_GROUPS` groups, they are then moved and exchanged
    until chi-square stops falling. Without groups, nothing is moved.
    """
    alone = ~group.fit(bool)
    names = np.where(alone, len(group.values) + np.arange(len(group)), group.codes)
    _, first_rows, groups = np.unique(names, return_index=True, return_inverse=True)
    number = np.empty(len(first_rows), np.int64)  # groups in the order of their first items
    number[np.argsort(first_rows)] = np.arange(len(first_rows))
    group_of = number[groups]
    counts: list[Counter[int]] = [Counter() for _ in range(len(first_rows))]
    total: Counter[int] = Counter()
    for unit, labels in zip(group_of.tolist(), strata, strict=True):
        counts[unit].update((_EVERY, *(labels or (_NO_CLASS,))))
        total.update((_EVERY, *(labels or (_NO_CLASS,))))
    wanted = [{one: n * share for one, n in total.items()} for share in ratios.values()]
    weights = [{one: 1 / n for one, n in own.items()} for own in wanted]
    places = np.empty(len(counts), np.int64)
    shares = [-max(n / total[one] for one, n in own.items()) for own in counts]
    empty = [] if alone.all() else [*range(len(ratios))]
    for place, unit in enumerate(np.argsort(shares, kind="stable").tolist()):
        own = counts[unit].items()
        growths = [
            sum(n * (n - 2 * lacking[one]) * weight[one] for one, n in own)
            for lacking, weight in zip(wanted, weights, strict=True)
        ]
        is_late = len(counts) - place <= len(empty)
        places[unit] = split = min(
            empty if is_late else range(len(growths)), key=growths.__getitem__
        )
        empty = [one for one in empty if one != split]
        for one, n in own:
            wanted[split][one] -= n
    if not empty and len(counts) <= _FEW_GROUPS and not alone.all():
        matrix = np.array([[own[one] for one in total] for own in counts])
        places = _exchanged(places, matrix, np.array([*ratios.values()]))
    return places[group_of]


def _exchanged(places: Ints, counts: Ints, ratios: NDArray[np.float64]) -> Ints:
    """Return the split of each group after the moves and exchanges that lower chi-square most.

    `counts` is int64[groups, classes]. No split loses its last group.
    """
    wanted = np.outer(ratios, counts.sum(axis=0))

    def chi_square(places: Ints) -> float:
        found = np.stack([counts[places == one].sum(axis=0) for one in range(len(ratios))])
        return float(np.sum((found - wanted) ** 2 / wanted))

    while True:
        others = list[Ints]()
        for one, two in itertools.combinations(range(len(places)), 2):
            others.append(places.copy())
            others[-1][[one, two]] = places[[two, one]]
        for one, split in itertools.product(range(len(places)), range(len(ratios))):
            if np.count_nonzero(places == places[one]) > 1:
                others.append(places.copy())
                others[-1][one] = split
        best = min(others, key=chi_square, default=places)
        if chi_square(best) > chi_square(places) - _SLACK:
            return places
        places = best
