"""`shardprep.build`: a source to a dataset, or to one part of its shards, or to a plan."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from shardprep import profiling
from shardprep.api.arguments import (
    answering,
    blaming,
    dataset_at,
    engine_of,
    local_source,
    num_workers,
    part_of,
    recipe_applies,
    recipe_of,
)
from shardprep.api.watched import watched
from shardprep.dataset.card import Card
from shardprep.errors import OptionName, RecipeError
from shardprep.recipe.document import RECIPE_FILE
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS
from shardprep.storage.space import megabytes
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from typing import Unpack

    from shardprep.api.progress import Show, Watch
    from shardprep.dataset.annotation_counts import Unmatched
    from shardprep.recipe.keywords import BuildKeywords
    from shardprep.recipe.recipe import Recipe
    from shardprep.writer.build import PartResult
    from shardprep.writer.engine.job import Workers
    from shardprep.writer.finalize import BuildResult
    from shardprep.writer.plan.plan import BuildPlan
    from shardprep.writer.plan.shard_plan import Part
    from shardprep.writer.reuse.reuse import OldDataset


OPTIONS = BUILD_OPTIONS | {
    name: RUN_OPTIONS[name]
    for name in (
        "save_rejected", "workers", "engine", "ray_address", "part", "reuse", "refresh",
        "overwrite", "profile", "dry_run", "store_timeout",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Card):
    """Plan of a build, or with `part` of that part of it."""

    plan: BuildPlan
    """All items with their shards."""
    part: Part | None
    num_all_shards: int
    """Shards of the dataset; `splits` has those of the part."""

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.plan.name

    @property
    def splits(self) -> dict[str, int]:
        """Shards by split."""
        return dict(Counter(shard.split for shard in self.plan.shards))

    @property
    def images(self) -> dict[str, int]:
        """Images by split."""
        numbers: Counter[str] = Counter()
        for shard in self.plan.shards:
            numbers[shard.split] += len(shard.items)
        return dict(numbers)

    @property
    def labels(self) -> list[str]:
        """Class names; a label is an index into them."""
        return list(self.plan.schema.labels)

    @property
    def labels_from(self) -> str:
        """Rule that found the labels, in words."""
        return self.plan.labels_from

    @property
    def num_rows_without_image(self) -> int:
        """Number of rows of the label table and of annotations without an image in the source."""
        return len(self.plan.rows_without_image)

    @property
    def skipped(self) -> dict[str, int]:
        """Skipped inputs by reason."""
        return dict(Counter(one.reason for one in self.plan.skipped))

    @property
    def estimated_bytes(self) -> int:
        """Estimated size of all shards."""
        return self.plan.estimated_bytes

    @property
    def annotations_from(self) -> str:
        """Formats of boxes and masks, in words; "" where there are none."""
        return "" if self.plan.annotations is None else self.plan.annotations.how

    @property
    def object_classes(self) -> list[str]:
        """Class names of objects and of the values of masks."""
        return [] if self.plan.annotations is None else list(self.plan.annotations.names)

    @property
    def num_objects(self) -> dict[str, int]:
        """Objects by class, as far as they are known."""
        return {} if self.plan.annotations is None else self.plan.annotations.num_objects

    @property
    def dropped(self) -> dict[str, int]:
        """Objects that are left out, by reason, as far as they are known."""
        return {} if self.plan.annotations is None else self.plan.annotations.dropped

    @property
    def unmatched(self) -> Unmatched | None:
        """Annotations without an image, and images without an annotation; None without any."""
        return None if self.plan.annotations is None else self.plan.annotations.unmatched

    @property
    def num_masks(self) -> int:
        """Mask files."""
        return sum(len(masks) for shard in self.plan.shards for masks in shard.columns.masks)

    def facts(self) -> dict[str, Any]:
        """Return images and shards by split, the labels, and the size."""
        found: dict[str, Any] = {"name": self.name, "images": self.images, "shards": self.splits}
        if self.labels or self.plan.annotations is None:
            found.update({"labels": self.labels, "labels by": self.labels_from})
        if self.plan.annotations is not None:
            found["objects"] = self.num_objects or self.object_classes
        if self.skipped:
            found["skipped"] = self.skipped
        if self.plan.findings:
            found["notes"] = self.plan.findings
        return {**found, "size": f"about {megabytes(self.estimated_bytes)}"}


@overload
def build(
    source: str | Path | None = ...,
    out: str | Path | None = ...,
    *,
    part: None = ...,
    dry_run: Literal[False] = ...,
    progress: Show | bool = ...,
    **recipe: Unpack[BuildKeywords],
) -> BuildResult: ...
@overload
def build(
    source: str | Path | None = ...,
    out: str | Path | None = ...,
    *,
    part: str,
    dry_run: Literal[False] = ...,
    progress: Show | bool = ...,
    **recipe: Unpack[BuildKeywords],
) -> PartResult: ...
@overload
def build(
    source: str | Path | None = ...,
    out: str | Path | None = ...,
    *,
    part: str | None = ...,
    dry_run: Literal[True],
    progress: Show | bool = ...,
    **recipe: Unpack[BuildKeywords],
) -> Plan: ...
def build(
    source: str | Path | None = None,
    out: str | Path | None = None,
    *,
    part: str | None = None,
    dry_run: bool = False,
    progress: Show | bool = False,
    **recipe: Any,
) -> BuildResult | PartResult | Plan:
    """Turn raw images into TFRecord shards; return the dataset, or the part or plan asked for.

    A build that was interrupted, be it by Ctrl-C, goes on where it stopped when it is called
    again. Options that are not given are those of ./shardprep.toml, if it is for this source.

    Raises:
        RecipeError: an option is unknown, malformed or does not fit the source.
        TooManyRejectedError: more images are rejected than `max_rejected` accepts.
        SourceError, SchemaError, BuildError, StorageError: as `ShardprepError` says.

    """
    from shardprep.writer.build import build_part
    from shardprep.writer.engine.worker_process import start_server
    from shardprep.writer.reuse.reuse import open_old_dataset

    run = _RunOptions(**{name: recipe.pop(name) for name in _RunOptions._fields if name in recipe})
    if run.engine == "local" and not dry_run:
        start_server()  # it is ready when the plan is
    piece = None if part is None else part_of(part)
    if piece is not None and (run.overwrite or run.save_rejected is not None):
        flag = OptionName("overwrite") if run.overwrite else OptionName("save_rejected")
        raise RecipeError(flag, "is for a whole build, not for a part", "leave it out")
    given = {"source": source, "out": out}
    flags = {name: str(place) for name, place in given.items() if place is not None} | recipe
    made = recipe_of(flags)
    chosen = engine_of(run.engine, run.ray_address, run.workers)
    with answering(run.store_timeout), watched(progress) as watch, blaming(flags):
        if source is not None and recipe_applies(str(source)):
            watch.notice(f"the options of {RECIPE_FILE} apply: it is for this source")
        made = replace(made, source=local_source(made.source, watch, refresh=run.refresh))
        old = None if run.reuse is None else open_old_dataset(dataset_at(run.reuse))
        if dry_run:
            return _plan(made, piece, num_workers(run.workers), watch, old)
        with chosen as workers:
            if piece is None:
                return _dataset(made, workers, run, watch, old)
            return build_part(made, piece, workers, watch, old)


class _RunOptions(NamedTuple):
    """The options of one run, but those that decide what is returned."""

    save_rejected: str | Path | None = None
    workers: int | None = None
    engine: str = "local"
    ray_address: str | None = None
    refresh: bool = False
    overwrite: bool = False
    profile: bool = False
    store_timeout: float | None = None
    reuse: str | Path | None = None


def _dataset(
    recipe: Recipe, workers: Workers, run: _RunOptions, watch: Watch, old: OldDataset | None
) -> BuildResult:
    from shardprep.writer.build import build_dataset
    from shardprep.writer.finalize import TooManyRejectedError

    into = None if run.save_rejected is None else local_path(run.save_rejected)
    if run.profile:
        profiling.taken()
        profiling.start()
    try:
        result = build_dataset(recipe, workers, watch, overwrite=run.overwrite, reuse=old)
    except TooManyRejectedError as error:
        _save_rejected(error.draft, recipe, into, watch)
        raise
    finally:
        seconds = profiling.stop()
    _save_rejected(result.path, recipe, into, watch)
    return replace(result, profile=seconds) if run.profile else result


def _save_rejected(folder: Path, recipe: Recipe, into: Path | None, watch: Watch) -> None:
    from shardprep.writer.save_rejected import LIST_FILE, save_rejected

    if into is None:
        return
    num_files, num_rejected = save_rejected(folder, recipe, into, watch.notice)
    watch.notice(
        f"{num_files:,} of {num_rejected:,} rejected images copied to {into}, "
        f"with their reasons in {into / LIST_FILE}",
    )


def _plan(
    recipe: Recipe, part: Part | None, workers: int, watch: Watch, old: OldDataset | None
) -> Plan:
    from shardprep.writer.plan.source_plan import make_plan

    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        plan = make_plan(recipe, Path(work), watch, workers)
    mine = plan if part is None else plan.of_part(part)
    if old is not None:
        places = old.places(mine.shards)
        watch.notice(old.prospect(mine.spec, places))
    return Plan(mine, part, len(plan.shards))
