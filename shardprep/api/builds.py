"""The functions that write a dataset or prepare it: build, finalize, init and sample."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from shardprep import profiling
from shardprep.api.arguments import (
    answering,
    blaming,
    dataset_at,
    local_source,
    num_workers,
    number,
    only_archive,
    part_of,
    recipe_notice,
    recipe_of,
    unfinished,
    with_files,
)
from shardprep.api.display import watched
from shardprep.dataset.card import Card
from shardprep.errors import OptionName, RecipeError
from shardprep.progress import Show, Watch
from shardprep.recipe.document import RECIPE_FILE
from shardprep.recipe.options import (
    ARGUMENTS,
    BUILD_DEFAULTS,
    BUILD_OPTIONS,
    RUN_OPTIONS,
    Option,
    RunOptions,
)
from shardprep.storage.space import megabytes
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.catalog.survey import Survey
    from shardprep.dataset.manifest import Unmatched
    from shardprep.recipe.keywords import BuildKeywords
    from shardprep.recipe.recipe import Recipe
    from shardprep.writer.build import PartResult
    from shardprep.writer.finalize import BuildResult
    from shardprep.writer.plan.build_plan import BuildPlan
    from shardprep.writer.plan.shard_plan import Part
    from shardprep.writer.reuse import OldDataset


@dataclass(frozen=True, slots=True, repr=False)
class Sample(Card):
    """A small archive to try shardprep with, and its recipe."""

    path: Path
    """The archive."""
    recipe: Path
    """The `shardprep.toml` next to it."""
    num_bytes: int
    """Size of the archive in bytes."""


_OF_ARCHIVES = ("max_members", "max_member_size", "max_unpacked", "max_ratio", "max_depth")
OPTIONS: dict[str, dict[str, Option]] = {
    "build": BUILD_OPTIONS
    | {
        name: one for name, one in RUN_OPTIONS.items() if name not in ("json", "quiet", "log_level")
    },
    "finalize": {
        "dataset": Option(
            "Folder of the dataset or a folder above it. Default: the dataset of ./shardprep.toml, "
            "otherwise the only unfinished build under ./tfrecords.",
            ARGUMENTS,
        ),
        "max_rejected": replace(
            BUILD_OPTIONS["max_rejected"], panel="", shown="value of the parts"
        ),
        "workers": replace(
            RUN_OPTIONS["workers"], help="Number of threads that check shards.", panel=""
        ),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "init": {
        "source": Option(
            "Folder, archive or kaggle:… Default: the only archive in this folder.", ARGUMENTS
        ),
        "items": replace(BUILD_OPTIONS["items"], panel=""),
        **{name: BUILD_OPTIONS[name] for name in ("follow_links", "zip_encoding", *_OF_ARCHIVES)},
        "overwrite": RUN_OPTIONS["overwrite"],
        "refresh": RUN_OPTIONS["refresh"],
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "sample": {
        "directory": Option(
            "Folder for shapes.zip and shardprep.toml. Default: this folder.", ARGUMENTS
        )
    },
}


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Card):
    """Plan of a build or of one of its parts, with an attribute for each key of `PlanJson`."""

    plan: BuildPlan
    """The planned shards and their items; if `part` is set, only the shards of that part."""
    part: Part | None
    num_all_shards: int
    """Number of shards of the whole dataset, not only of the part."""

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def splits(self) -> dict[str, int]:
        return dict(Counter(shard.split for shard in self.plan.shards))

    @property
    def images(self) -> dict[str, int]:
        numbers: Counter[str] = Counter()
        for shard in self.plan.shards:
            numbers[shard.split] += len(shard.items)
        return dict(numbers)

    @property
    def labels(self) -> list[str]:
        return list(self.plan.schema.labels)

    @property
    def labels_from(self) -> str:
        return self.plan.labels_from

    @property
    def num_rows_without_image(self) -> int:
        return len(self.plan.rows_without_image)

    @property
    def skipped(self) -> dict[str, int]:
        return dict(Counter(item.reason for item in self.plan.skipped))

    @property
    def estimated_bytes(self) -> int:
        return self.plan.estimated_bytes

    @property
    def annotations_from(self) -> str:
        return "" if self.plan.annotations is None else self.plan.annotations.how

    @property
    def object_classes(self) -> list[str]:
        return [] if self.plan.annotations is None else list(self.plan.annotations.names)

    @property
    def num_objects(self) -> dict[str, int]:
        return {} if self.plan.annotations is None else self.plan.annotations.num_objects

    @property
    def dropped(self) -> dict[str, int]:
        return {} if self.plan.annotations is None else self.plan.annotations.dropped

    @property
    def unmatched(self) -> Unmatched | None:
        return None if self.plan.annotations is None else self.plan.annotations.unmatched

    @property
    def num_masks(self) -> int:
        return sum(len(masks) for shard in self.plan.shards for masks in shard.columns.companions)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": self.name, "images": self.images, "shards": self.splits}
        facts |= {"labels": self.labels} if self.labels else {}
        if self.labels or self.plan.annotations is None:
            facts["labels by"] = self.labels_from
        if self.plan.annotations is not None:
            title = "objects" if self.num_objects else "classes of annotations"
            facts[title] = self.num_objects or self.object_classes
        if self.skipped:
            facts["skipped"] = self.skipped
        if self.num_rows_without_image:
            facts["rows without image"] = self.num_rows_without_image
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

    With `part`, write only that part of the shards and summarize it. With `dry_run`, write nothing
    and return the plan. If a build is interrupted, the same call continues it. Options that are not
    given are read from ./shardprep.toml, if that file is for the same source.

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
    from shardprep.machine import check_address_space
    from shardprep.processes import start_server
    from shardprep.writer.engine import PRELOADED

    check_address_space()
    run = RunOptions(**{name: recipe.pop(name) for name in RunOptions._fields if name in recipe})
    if not dry_run:
        start_server(PRELOADED)  # early: the server imports while this process imports and plans
    from shardprep.writer.build import build_dataset, build_part
    from shardprep.writer.engine.job import Workers
    from shardprep.writer.engine.pool import write_shards
    from shardprep.writer.plan.planned_items import write_items
    from shardprep.writer.reuse import open_old_dataset

    if run.items_out is not None and not dry_run:
        flag = OptionName("dry_run")
        raise RecipeError(OptionName("items_out"), "is for a plan, not for a build", f"add {flag}")
    piece = None if part is None else part_of(part)
    if piece is not None and (run.overwrite or run.save_rejected is not None):
        flag = OptionName("overwrite") if run.overwrite else OptionName("save_rejected")
        raise RecipeError(flag, "is for a whole build, not for a part", "leave this option out")
    into = None if run.save_rejected is None else local_path(run.save_rejected)
    recipe = with_files(recipe)
    given = {"source": source, "out": out}
    flags = {name: str(place) for name, place in given.items() if place is not None} | recipe
    options = recipe_of(flags)
    with answering(run.store_timeout), watched(progress) as watch, blaming(flags):
        if remark := recipe_notice(flags):
            watch.notice(remark)
        options = replace(options, source=local_source(options.source, watch, refresh=run.refresh))
        old = None if run.reuse is None else open_old_dataset(dataset_at(run.reuse))
        if old is not None and (remark := old.differences(options)):
            watch.notice(remark)
        if dry_run:
            found = _plan(options, piece, num_workers(run.workers), watch, old)
            _warn(() if callable(progress) else found.plan.findings, watch)
            if run.items_out is not None:
                write_items(found.plan, local_path(run.items_out))
            return found
        workers = Workers(write_shards, num_workers(run.workers))
        if piece is not None:
            return build_part(options, piece, workers, watch, old)
        with _refused_saved(options, into, watch), _measured(is_on=run.profile) as seconds:
            result = build_dataset(options, workers, watch, overwrite=run.overwrite, reuse=old)
        _save_rejected(result.path, options, into, watch)
        return replace(result, profile=seconds) if run.profile else result


def _warn(findings: Iterable[str], watch: Watch) -> None:
    for line in findings:
        if line.startswith("warning: "):
            watch.notice(line)


@contextmanager
def _measured(*, is_on: bool) -> Iterator[dict[str, float]]:
    seconds: dict[str, float] = {}
    if is_on:
        profiling.taken()
        profiling.start()
    try:
        yield seconds
    finally:
        seconds.update(profiling.stop())


@contextmanager
def _refused_saved(recipe: Recipe, into: Path | None, watch: Watch) -> Iterator[None]:
    from shardprep.writer.finalize import TooManyRejectedError

    try:
        yield
    except TooManyRejectedError as error:
        _save_rejected(error.draft, recipe, into, watch)
        raise


def _save_rejected(folder: Path, recipe: Recipe, into: Path | None, watch: Watch) -> None:
    from shardprep.writer.originals import LIST_FILE, save_rejected

    if into is None:
        return
    num_files, num_rejected = save_rejected(folder, recipe, into, watch.notice)
    watch.notice(
        f"{num_files:,} of {num_rejected:,} rejected images copied to {into}, "
        f"with their reasons in {into / LIST_FILE}"
    )


def _plan(
    recipe: Recipe, part: Part | None, workers: int, watch: Watch, old: OldDataset | None
) -> Plan:
    from shardprep.writer.plan.source_plan import make_plan

    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        plan = make_plan(recipe, Path(work), watch, workers)
    mine = plan if part is None else plan.of_part(part)
    if old is not None:
        watch.notice(old.prospect(mine.spec, old.places(mine.shards), mine.schema, mine.shards))
    return Plan(mine, part, len(plan.shards))


def finalize(
    dataset: str | Path | None = None,
    *,
    max_rejected: float | None = None,
    workers: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> BuildResult:
    """Join the shards of `build(part=...)` into a dataset, when all parts are done.

    Raises:
        DatasetError: no part of this dataset has been built.
        RecipeError: a number is out of bounds.
        TooManyRejectedError: the share of rejected images is above `max_rejected`. The shards are
            kept.
        BuildError: shards are missing or damaged. The error names the parts to build again.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.writer.finalize import finalize_dataset

    share = None
    if max_rejected is not None:
        share = number("max_rejected", max_rejected, OPTIONS["finalize"]["max_rejected"], float)
    num = num_workers(workers)
    with answering(store_timeout), watched(progress) as watch:
        watch.start("checking the shards")
        return finalize_dataset(unfinished(dataset), num_threads=num, max_rejected=share)


def init(
    source: str | Path | None = None,
    *,
    items: str | Path = "",
    follow_links: bool = False,
    zip_encoding: str = "",
    max_members: int = BUILD_DEFAULTS["max_members"],
    max_member_size: str | int = BUILD_DEFAULTS["max_member_size"],
    max_unpacked: str | int | None = None,
    max_ratio: int = BUILD_DEFAULTS["max_ratio"],
    max_depth: int = BUILD_DEFAULTS["max_depth"],
    overwrite: bool = False,
    refresh: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Survey:
    """Examine a source, write a ./shardprep.toml for it, and return a summary of its content.

    With `items`, the recipe builds from that table of items. Limits are as in `build`.

    Raises:
        RecipeError: ./shardprep.toml exists and `overwrite` is not set, or neither `source` nor
            `items` is given and the current folder does not contain exactly one archive.
        SourceError: the source cannot be read, or has no images.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.catalog.given_items import source_of
    from shardprep.catalog.survey import recipe_text, survey_source
    from shardprep.storage.atomic_file import write_durably

    place = Path(RECIPE_FILE)
    if place.exists() and not overwrite:
        hint = f"add {OptionName('overwrite')} to replace it"
        raise RecipeError(RECIPE_FILE, "already exists", hint)
    limits = (max_members, max_member_size, max_unpacked, max_ratio, max_depth)
    pairs = zip(_OF_ARCHIVES, limits, strict=True)
    given: dict[str, Any] = {name: limit for name, limit in pairs if limit is not None}
    given |= {"follow_links": follow_links, "zip_encoding": zip_encoding}
    archive = str(source or (source_of(str(items)) if items else only_archive()))
    with (
        answering(store_timeout),
        watched(progress) as watch,
        tempfile.TemporaryDirectory(prefix="shardprep-") as work,
    ):
        local = local_source(archive, watch, refresh=refresh)
        survey = survey_source(local, Path(work), watch.notice, items=str(items), **given)
    survey = replace(survey, source=archive)
    write_durably(place, recipe_text(survey).encode())
    return survey


def sample(directory: str | Path = ".") -> Sample:
    """Write a small archive in the layout of a Kaggle competition, and a recipe for it.

    Raises:
        SourceError: a file of the same name has other contents, or the folder cannot be written.
    """
    from shardprep.api.sample_archive import write_sample

    archive = write_sample(local_path(directory))
    return Sample(archive, archive.with_name(RECIPE_FILE), archive.stat().st_size)
