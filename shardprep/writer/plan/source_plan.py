"""The plan of a source: its images are listed, labelled, split and cut into shards."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.catalog.items import Item, Items
from shardprep.catalog.objects.combine import AnnotationFacts
from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    MASK,
    OBJECT_MASK,
    TARGET_FEATURES,
    Encoding,
    Schema,
    load_schema,
)
from shardprep.errors import OptionName, RecipeError, SchemaError
from shardprep.image.spec import ImageSpec, estimated_bytes
from shardprep.profiling import stage
from shardprep.progress import Watcher
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.writer.plan.near_copies import NearCopies, hash_images
from shardprep.writer.plan.plan import BuildPlan
from shardprep.writer.plan.shard_plan import plan_shards
from shardprep.writer.plan.split_cut import Cut, cut_splits, rows_to_cut, without_spoilers

_RECORD_OVERHEAD_BYTES = 200
"""Bytes of a record in addition to image and key: framing and feature names."""


@contextlib.contextmanager
def _paused_collection() -> Iterator[None]:
    """Pause the garbage collector: a plan makes millions of objects and no garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@stage("plan")
@_paused_collection()
def make_plan(recipe: Recipe, work_dir: Path, watcher: Watcher, num_workers: int = 1) -> BuildPlan:
    """Return the plan of a recipe.

    Compressed inner archives are unpacked in `work_dir`, which must exist until the items are read.
    The workers search for near copies.

    """
    catalog = make_catalog(recipe, work_dir, watcher.notice)
    spec = recipe.settled(annotated=catalog.annotations is not None).image_spec
    ratios = recipe.rules.split.ratios
    items, left_out, copies = catalog.items, list[Item](), list[Skipped]()
    near = None
    if recipe.finds_near:
        items, spoilers = without_spoilers(items, ratios)
        left_out += spoilers
        near = NearCopies.among(items, hash_images(items, spec, recipe, num_workers, watcher))
        items, copies = near.without() if recipe.dedup == "near" else (near.together(), [])
    findings = catalog.findings + _recut(items, ratios)
    items, more = _cut(items, ratios, recipe.seed)
    left_out += more
    if near is not None:
        findings = findings + near.remarks(items, are_left_out=recipe.dedup == "near")
    estimate = _records_bytes(items, spec)
    return BuildPlan(
        name=recipe.dataset_name,
        shards=plan_shards(recipe.dataset_name, items, recipe.shards, estimate, recipe.seed),
        skipped=[*catalog.skipped, *copies, *map(_spoiler, left_out)],
        spec=spec,
        schema=_schema(recipe, catalog, spec),
        labels_from=_found_by(catalog),
        rows_without_image=_without_image(catalog),
        columns=tuple(column.name for column in catalog.columns),
        findings=findings,
        annotations=catalog.annotations,
        estimated_bytes=estimate,
        near_copies="" if near is None else near.digest,
    )


def _found_by(catalog: Catalog) -> str:
    """Return the sources of labels, boxes and masks in one line."""
    if catalog.annotations is None:
        return catalog.labels_from
    labels = () if catalog.target_kind == "none" else (catalog.labels_from,)
    return "; ".join((*labels, catalog.annotations.how))


def _without_image(catalog: Catalog) -> tuple[str, ...]:
    """Return ids in label tables and names in annotations without an image."""
    annotations = catalog.annotations
    return catalog.rows_without_image + (() if annotations is None else annotations.without_image)


def _records_bytes(items: Items, spec: ImageSpec) -> int:
    readable = ~items.members.are_refused
    num_bytes = int(items.members.num_bytes[readable].sum())
    key_length = int(items.members.keys.lengths()[readable].sum())
    images = estimated_bytes(spec, num_bytes, int(readable.sum()))
    return images + key_length + _RECORD_OVERHEAD_BYTES * len(items)


def _cut(items: Items, ratios: Mapping[str, float], seed: int) -> Cut:
    """Return the items in their final splits, and the left out ones."""
    if not ratios:
        return Cut(items, items.take(np.empty(0, np.int64)))
    num_cut = len(rows_to_cut(items, ratios))
    if not num_cut:
        given = ", ".join(items.split.counts())
        what = f"the source gives {given}, and ratios cut train and the splits that they name"
        raise RecipeError(OptionName("split"), what, "name one of these")
    cut = cut_splits(items, ratios, seed)
    counts = cut.items.split.counts()
    empty = [split for split in ratios if split not in counts]
    if empty:
        raise RecipeError(
            OptionName("split"),
            f"{empty[0]}={ratios[empty[0]]:g} of {num_cut:,} images leaves none",
            "give it a larger share, or leave it out",
        )
    return cut


def _recut(items: Items, ratios: Mapping[str, float]) -> list[str]:
    """Return a remark if ratios mix several splits of the source."""
    if not ratios:
        return []
    counts = items.split.take(rows_to_cut(items, ratios)).counts()
    if len(counts) < 2:
        return []
    ordered = sorted(counts, key=lambda split: (split != "train", split))
    given = " and ".join(f"{split} ({counts[split]:,} images)" for split in ordered)
    stays = "a split that the ratios leave out stays whole, as in --split validation=0.1"
    return [f"--split cuts {given} of the source anew, as one set; {stays}"]


def _spoiler(item: Item) -> Skipped:
    reason = "no label, and --split makes this split of labelled images"
    return Skipped(item.key, reason, item.extent.num_bytes)


def _schema(recipe: Recipe, catalog: Catalog, spec: ImageSpec) -> Schema:
    name = recipe.schema
    kind = catalog.target_kind
    annotations = {} if catalog.annotations is None else _annotation_features(catalog.annotations)
    if name == "auto":
        name = {"class": "classification", "none": _without_target(annotations)}.get(kind, kind)
    schema = load_schema(name)
    if lacking := sorted(schema.annotations.keys() - {*annotations, CROWD}):
        raise SchemaError(
            f"{OptionName('schema')} {name}",
            f"asks for {lacking[0]!r}, and no such boxes or masks are found",
            f"say where they are with {OptionName('boxes')} or "
            f"{OptionName('masks')}, or leave {OptionName('schema')} out",
        )
    if schema.target not in (None, TARGET_FEATURES.get(kind)):
        found = "no labels are found" if kind == "none" else f"the targets are of kind {kind}"
        raise SchemaError(
            f"{OptionName('schema')} {name}",
            f"asks for {schema.target!r}, and {found}",
            f"say where they are with {OptionName('labels')}, or leave {OptionName('schema')} out",
        )
    labels = catalog.label_names if schema.target else ()
    columns = {column.name: column.dtype for column in catalog.columns}
    encoding: Encoding = "any" if spec.format == "keep" else spec.format
    return schema.filled(spec.fixed_size, encoding, labels, columns, annotations)


def _annotation_features(facts: AnnotationFacts) -> dict[str, tuple[str, ...]]:
    """Return the features of boxes and masks, with their class names."""
    spec, features = facts.spec, dict[str, tuple[str, ...]]()
    if spec.has_objects:
        features.update({BOX: (), BOX_LABEL: facts.names})
        features.update({CROWD: ()} if spec.crowds else {})
    if spec.masks == "instances":
        features[OBJECT_MASK] = ()
    if spec.masks == "classes":
        features[MASK] = facts.names
    return features


def _without_target(annotations: Collection[str]) -> str:
    """Return the name of the shipped schema for images without targets."""
    names = {OBJECT_MASK: "instances", BOX: "detection", MASK: "segmentation"}
    return next((name for feature, name in names.items() if feature in annotations), "unlabelled")
