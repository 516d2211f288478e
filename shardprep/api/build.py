"""`shardprep.build`: build a dataset, build one part of its shards, or return the plan."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

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
from shardprep.api.progress import Show, Watch
from shardprep.api.watched import watched
from shardprep.dataset.card import Card
from shardprep.errors import OptionName, RecipeError
from shardprep.recipe.document import RECIPE_FILE
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS
from shardprep.storage.space import megabytes
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.dataset.annotation_counts import Unmatched
    from shardprep.recipe.keywords import BuildKeywords
    from shardprep.recipe.recipe import Recipe
    from shardprep.writer.build import PartResult
    from shardprep.writer.engine.job import Workers
    from shardprep.writer.finalize import BuildResult
    from shardprep.writer.plan.plan import BuildPlan
    from shardprep.writer.plan.shard_plan import Part
    from shardprep.writer.reuse import OldDataset

OPTIONS = BUILD_OPTIONS | {
    name: RUN_OPTIONS[name]
    for name in (
        "save_rejected", "workers", "engine", "ray_address", "part", "reuse", "refresh",
        "overwrite", "profile", "dry_run", "store_timeout",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Card):
    """Plan of a build, or of one part of it."""

    plan: BuildPlan
    """All items with their shards."""
    part: Part | None
    num_all_shards: int
    """Number of shards of the whole dataset, not only of the part."""

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.plan.name

    @property
    def splits(self) -> dict[str, int]:
        """Number of shards by split."""
        return dict(Counter(shard.split for shard in self.plan.shards))

    @property
    def images(self) -> dict[str, int]:
        """Number of images by split."""
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
        """Number of table rows, and of images in annotations, that are missing in the source."""
        return len(self.plan.rows_without_image)

    @property
    def skipped(self) -> dict[str, int]:
        """Number of skipped inputs by reason."""
        return dict(Counter(item.reason for item in self.plan.skipped))

    @property
    def estimated_bytes(self) -> int:
        """Estimated size of all shards in bytes."""
        return self.plan.estimated_bytes

    @property
    def annotations_from(self) -> str:
        """Formats of boxes and masks, in words; "" without boxes and masks."""
        return "" if self.plan.annotations is None else self.plan.annotations.how

    @property
    def object_classes(self) -> list[str]:
        """Class names of objects and of mask values."""
        return [] if self.plan.annotations is None else list(self.plan.annotations.names)

    @property
    def num_objects(self) -> dict[str, int]:
        """Number of known objects by class."""
        return {} if self.plan.annotations is None else self.plan.annotations.num_objects

    @property
    def dropped(self) -> dict[str, int]:
        """Number of known dropped objects by reason."""
        return {} if self.plan.annotations is None else self.plan.annotations.dropped

    @property
    def unmatched(self) -> Unmatched | None:
        """Annotations without an image, and images without an annotation, or None."""
        return None if self.plan.annotations is None else self.plan.annotations.unmatched

    @property
    def num_masks(self) -> int:
        """Number of mask files."""
        return sum(len(masks) for shard in self.plan.shards for masks in shard.columns.masks)

    def facts(self) -> dict[str, Any]:
        """Return images and shards by split, the labels, and the size."""
        facts: dict[str, Any] = {"name": self.name, "images": self.images, "shards": self.splits}
        if self.labels or self.plan.annotations is None:
            facts.update({"labels": self.labels, "labels by": self.labels_from})
        if self.plan.annotations is not None:
            facts["objects"] = self.num_objects or self.object_classes
        if self.skipped:
            facts["skipped"] = self.skipped
        if self.plan.findings:
            facts["notes"] = self.plan.findings
        return {**facts, "size": f"about {megabytes(self.estimated_bytes)}"}


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
    """Turn raw images into TFRecord shards, and return a summary of the dataset.

    With `part`, write only that part of the shards. With `dry_run`, write nothing and return the
    plan. If a build is interrupted, the same call continues it. Options that are not given are
    read from ./shardprep.toml, if that file is for the same source.

    Raises:
        RecipeError: an option is unknown, malformed or does not fit the source.
        SourceError: the source, a label table or a file of annotations cannot be read.
        SchemaError: the schema is invalid, or needs a feature that the source does not provide.
        TooManyRejectedError: the share of rejected images is above `max_rejected`.
        BuildError: the build cannot continue, for example because the disk is full or a worker
            died. Finished work is kept.
        BusyError: another process builds the same dataset.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.writer.build import build_part
    from shardprep.writer.engine.worker_process import start_server
    from shardprep.writer.reuse import open_old_dataset

    run = _RunOptions(**{name: recipe.pop(name) for name in _RunOptions._fields if name in recipe})
    if run.engine == "local" and not dry_run:
        start_server()  # starts during planning
    piece = None if part is None else part_of(part)
    if piece is not None and (run.overwrite or run.save_rejected is not None):
        flag = OptionName("overwrite") if run.overwrite else OptionName("save_rejected")
        raise RecipeError(flag, "is for a whole build, not for a part", "leave it out")
    given = {"source": source, "out": out}
    flags = {name: str(place) for name, place in given.items() if place is not None} | recipe
    options = recipe_of(flags)
    chosen = engine_of(run.engine, run.ray_address, run.workers)
    with answering(run.store_timeout), watched(progress) as watch, blaming(flags):
        if source is not None and recipe_applies(str(source)):
            watch.notice(f"options are read from {RECIPE_FILE}, which is for this source")
        local = local_source(options.source, watch, refresh=run.refresh)
        options = replace(options, source=local)
        old = None if run.reuse is None else open_old_dataset(dataset_at(run.reuse))
        if dry_run:
            return _plan(options, piece, num_workers(run.workers), watch, old)
        with chosen as workers:
            if piece is None:
                return _dataset(options, workers, run, watch, old)
            return build_part(options, piece, workers, watch, old)


class _RunOptions(NamedTuple):
    """The options of one run, except `part` and `dry_run`."""

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
    from shardprep.writer.originals import LIST_FILE, save_rejected

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
