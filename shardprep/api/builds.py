"""The functions that write a dataset or prepare it: build, finalize, repack, init and sample."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

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
    selected,
    unfinished,
    with_files,
)
from shardprep.api.display import watched
from shardprep.dataset.card import Card
from shardprep.errors import OptionName, RecipeError
from shardprep.progress import Show, Watch
from shardprep.recipe.document import RECIPE_FILE
from shardprep.recipe.options import ARGUMENTS, BUILD_OPTIONS, RUN_OPTIONS, Option, RunOptions
from shardprep.storage.space import megabytes
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.catalog.survey import Survey
    from shardprep.dataset.manifest import Manifest, Unmatched
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.recipe.keywords import BuildKeywords, Items, Texts
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


_IMAGE_OPTIONS = ("size", "fit", "format", "quality")
_ITEM_OPTIONS = ("relabel", "classes", "exclude_list", "group", "join", "columns")
"""Options of a build that change the items of a finished dataset, but not their images."""
_OF_STORED = {
    "size": "Size of stored images in pixels: WIDTHxHEIGHT, or N for a square.",
    "fit": "How images are fitted to that size: crop, pad, stretch or within (only shrinks).",
    "format": "Encoding of stored images: jpeg, png or raw (uint8).",
}
"""Help of options that have fewer values for a finished dataset."""
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
    "repack": {
        "datasets": Option(
            "Folders or addresses of one or several datasets, or a folder above them. Default: the "
            "dataset of ./shardprep.toml, otherwise the only dataset under ./tfrecords.",
            ARGUMENTS,
            is_repeated=True,
        ),
        "shards": replace(BUILD_OPTIONS["shards"], panel=""),
        "name": Option(
            "Name of the new dataset.", metavar="NAME", shown="the common name of the datasets"
        ),
        "version": Option("Version of the new dataset.", metavar="X.Y.Z", shown="1.0.0"),
        "out": replace(BUILD_OPTIONS["out"], panel="", shown="tfrecords"),
        "split": Option(
            "Records to take from each dataset, such as train[:10%]+validation; or new splits, by "
            "a rule as in build: validation=0.1 (or other shares), column:NAME, list:… or roots:….",
            metavar="SPLIT",
            shown="all",
        ),
        "seed": Option("Random seed of the order.", metavar="N", shown="seed of the first dataset"),
        **{
            name: replace(
                BUILD_OPTIONS[name],
                help=_OF_STORED.get(name, BUILD_OPTIONS[name].help),
                panel="",
                shown="unchanged",
            )
            for name in (*_IMAGE_OPTIONS, *_ITEM_OPTIONS)
        },
        "workers": replace(RUN_OPTIONS["workers"], panel=""),
        "overwrite": Option("Replace an existing dataset when the new one is complete."),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "init": {
        "source": Option(
            "Folder, archive or kaggle:… Default: the only archive in this folder.", ARGUMENTS
        ),
        "items": replace(BUILD_OPTIONS["items"], panel=""),
        "follow_links": BUILD_OPTIONS["follow_links"],
        "overwrite": RUN_OPTIONS["overwrite"],
        "refresh": RUN_OPTIONS["refresh"],
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "sample": {
        "directory": Option(
            "Folder for shapes.zip and shardprep.toml. Default: this folder.", ARGUMENTS
        ),
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
        if self.labels or self.plan.annotations is None:
            facts.update({"labels": self.labels, "labels by": self.labels_from})
        if self.plan.annotations is not None:
            facts["objects"] = self.num_objects or self.object_classes
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
        raise RecipeError(flag, "is for a whole build, not for a part", "leave it out")
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


def repack(
    datasets: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    *,
    shards: int | None = None,
    name: str | None = None,
    version: str | None = None,
    split: AnySplit | Mapping[str, float] | None = None,
    seed: int | None = None,
    size: str | int | tuple[int, int] | None = None,
    fit: Literal["crop", "pad", "stretch", "within"] | None = None,
    format: Literal["jpeg", "png", "raw"] | None = None,  # noqa: A002 - the option's name
    quality: int | None = None,
    relabel: str | Items | None = None,
    classes: Texts | None = None,
    exclude_list: str | None = None,
    group: str | None = None,
    join: Texts | None = None,
    columns: Texts | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> BuildResult:
    """Make a dataset of finished ones: other shards, size, labels or splits, or several merged.

    Records are copied without decoding, unless options of images are given: `size`, `fit`, `format`
    or `quality`. Classes are merged by name. A key that several datasets have gets the name of its
    dataset as a prefix. Every checksum is compared. If the call is interrupted, the same call
    continues it.

    Raises:
        RecipeError: an option is malformed, or the images of the datasets were fitted differently.
        SchemaError: the datasets have different features, or cannot have what an option adds.
        SourceError: a table or list cannot be read, or fits no image.
        DatasetError: a dataset or the split does not exist, or a file is missing or damaged.
        RecordError: a record is damaged.
        BuildError: the target folder contains something else, or another process writes to it.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.machine import check_address_space
    from shardprep.processes import start_server
    from shardprep.writer.engine import PRELOADED

    check_address_space()
    form = _given(size=size, fit=fit, format=format, quality=quality)
    lists = _given(relabel=relabel, exclude_list=exclude_list, join=join)
    rule = split if _is_rule(split) else None
    changes = lists | _given(classes=classes, group=group, columns=columns, split=rule)
    if form or (group or "").startswith("near"):
        start_server(PRELOADED)  # early: the server imports while this process imports and plans
    from shardprep.recipe.recipe import make_recipe
    from shardprep.writer.parents import open_parent
    from shardprep.writer.repack import encoding_of, recorded_options, repack_dataset

    is_one = datasets is None or isinstance(datasets, str | Path)
    wanted: list[str | Path | None] = [datasets] if is_one else [*datasets]  # type: ignore[list-item, misc]
    if not wanted:
        raise RecipeError("shardprep repack", "no dataset is named", "name at least one")
    num = num_workers(workers)
    with answering(store_timeout), watched(progress) as watch:
        opened = [dataset_at(place) for place in wanted]
        taken = cast("AnySplit | None", None if "split" in changes else split)
        chosen = [selected(dataset, taken) for dataset in opened]
        parents = [
            open_parent(dataset, None if one is None else one.numbers)
            for dataset, one in zip(opened, chosen, strict=True)
        ]
        manifests = [parent.manifest for parent in parents]
        given = _given(
            out=None if out is None else str(out),
            shards=shards,
            name=_name(manifests) if name is None else name,
            version=version,
            seed=manifests[0].seed if seed is None else seed,
            **form,
            **with_files(changes),
        )
        known = recorded_options(parents[0])
        if len(parents) > 1 or chosen[0] is not None or not (form or changes):
            known["shards"] = None  # chosen by the size of the records
        made = make_recipe({"source": str(opened[0]), **known}, "shardprep repack", given)
        encoding = None
        if form:
            if "format" not in given and made.format != known.get("format", "jpeg"):
                what = f"is {known['format']} in the dataset, but other options need {made.format}"
                hint = f"leave them out, or add {OptionName('format', made.format)}"
                raise RecipeError(OptionName("format"), what, hint)
            from shardprep.writer.engine.job import Workers
            from shardprep.writer.engine.pool import write_shards

            encoding = encoding_of(parents, made, Workers(write_shards, num))
        return repack_dataset(
            parents, made, watch, overwrite=overwrite, encoding=encoding, num_workers=num
        )


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _is_rule(split: object) -> bool:
    """Return whether `split` is a rule for new splits, as opposed to records to take."""
    if isinstance(split, str):
        return "=" in split or split.startswith(("column:", "list:", "roots:"))
    return isinstance(split, Mapping)


def _name(manifests: Sequence[Manifest]) -> str:
    names = dict.fromkeys(manifest.name for manifest in manifests)
    if len(names) > 1:
        what = f"is needed to merge {' and '.join(names)}"
        raise RecipeError(OptionName("name"), what, "name the new dataset")
    return manifests[0].name


def init(
    source: str | Path | None = None,
    *,
    items: str | Path = "",
    follow_links: bool = False,
    overwrite: bool = False,
    refresh: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Survey:
    """Examine a source, write a ./shardprep.toml for it, and return a summary of its content.

    With `items`, the recipe builds from that table of items.

    Raises:
        RecipeError: ./shardprep.toml exists and `overwrite` is not set, or neither `source` nor
            `items` is given and the current folder does not contain exactly one archive.
        SourceError: the source cannot be read, or has no images.
    """
    from shardprep.catalog.item_columns import source_of
    from shardprep.catalog.survey import recipe_text, survey_source
    from shardprep.storage.atomic_file import write_durably

    place = Path(RECIPE_FILE)
    if place.exists() and not overwrite:
        hint = f"add {OptionName('overwrite')} to replace it"
        raise RecipeError(RECIPE_FILE, "already exists", hint)
    archive = str(source or (source_of(str(items)) if items else only_archive()))
    with (
        answering(store_timeout),
        watched(progress) as watch,
        tempfile.TemporaryDirectory(prefix="shardprep-") as work,
    ):
        local = local_source(archive, watch, refresh=refresh)
        survey = survey_source(
            local, Path(work), watch.notice, items=str(items), follow_links=follow_links
        )
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
