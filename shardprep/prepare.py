"""From a recipe to a plan: everything that is decided before the first image is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from shardprep.errors import RecipeError, SchemaError
from shardprep.image import Fit, Format, ImageSpec, estimated_bytes
from shardprep.plan import ShardPlan, cut_splits, plan_shards, shard_name
from shardprep.schema import LABEL, Schema, load_schema
from shardprep.source.archive import Skipped
from shardprep.source.catalog import Catalog, make_catalog
from shardprep.source.labels import parse_label_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.recipe import Recipe
    from shardprep.source.catalog import Item

_RECORD_OVERHEAD_BYTES = 200
"""Framing, feature names and the key."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """All that a build will do."""

    name: str
    shards: tuple[ShardPlan, ...]
    skipped: list[Skipped]
    spec: ImageSpec
    schema: Schema
    labels_from: str
    rows_without_image: tuple[str, ...]
    estimated_bytes: int
    """Of all shards together."""

    @property
    def num_items(self) -> int:
        """Items of all shards."""
        return sum(len(shard.items) for shard in self.shards)

    def shard_name(self, shard: ShardPlan) -> str:
        """Return the file name of one of the shards."""
        return shard_name(self.name, shard.split, shard.index, shard.count)


def image_spec(recipe: Recipe) -> ImageSpec:
    """Return what every image is to become."""
    return ImageSpec(
        size=recipe.size,
        fit=cast("Fit", recipe.fit),
        format=cast("Format", recipe.format),
        quality=recipe.quality,
        background=recipe.background,
        max_pixels=recipe.max_pixels,
    )


def make_plan(recipe: Recipe, work_dir: Path, notice: Callable[[str], None]) -> BuildPlan:
    """Return the plan of a recipe.

    Args:
        recipe: what to build.
        work_dir: where compressed inner archives are unpacked; must live until the items are read.
        notice: told, in one line, of work that takes long.

    Raises:
        ShardprepError: the source, its labels, the schema or the options do not allow it.

    """
    rule = parse_label_rule(recipe.labels)
    spec = image_spec(recipe)
    catalog = make_catalog(Path(recipe.source), rule, recipe.classes, work_dir, notice)
    items, skipped = _final_splits(catalog, recipe)
    estimate = sum(_record_bytes(item, spec) for item in items)
    return BuildPlan(
        name=recipe.dataset_name,
        shards=plan_shards(items, recipe.shards, estimate, recipe.seed),
        skipped=skipped,
        spec=spec,
        schema=_schema(recipe, catalog, spec),
        labels_from=catalog.labels_from,
        rows_without_image=catalog.rows_without_image,
        estimated_bytes=estimate,
    )


def _record_bytes(item: Item, spec: ImageSpec) -> int:
    return estimated_bytes(spec, item.extent.num_bytes) + _RECORD_OVERHEAD_BYTES + len(item.key)


def _final_splits(catalog: Catalog, recipe: Recipe) -> tuple[list[Item], list[Skipped]]:
    if recipe.split is None:
        return catalog.items, catalog.skipped
    cut = cut_splits(catalog.items, recipe.split, recipe.seed)
    empty = [split for split in recipe.split if all(item.split != split for item in cut.items)]
    if empty:
        raise RecipeError(
            "--split",
            f"{empty[0]}={recipe.split[empty[0]]:g} of {len(cut.items):,} images leaves none",
            "give it a larger share, or leave it out",
        )
    reason = "no label, and --split makes its own test of labelled images"
    left_out = [Skipped(item.key, reason, item.extent.num_bytes) for item in cut.left_out]
    return cut.items, catalog.skipped + left_out


def _schema(recipe: Recipe, catalog: Catalog, spec: ImageSpec) -> Schema:
    name = recipe.schema_
    if name == "auto":
        name = "classification" if catalog.label_names else "unlabelled"
    schema = load_schema(name)
    if LABEL in schema.features and not catalog.label_names:
        raise SchemaError(
            f"--schema {name}",
            "asks for a label, and no labels are found",
            "say where they are with --labels, or use --schema unlabelled",
        )
    labels = catalog.label_names if LABEL in schema.features else ()
    return schema.filled(spec.fixed_size, spec.encoding, labels)
