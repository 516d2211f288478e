"""`shardprep build`: a source to a dataset, or to one part of its shards, or to a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import console, picked, print_json
from shardprep.errors import RecipeError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shardprep.cli.resolve import Crew
    from shardprep.recipe.recipe import Recipe
    from shardprep.writer.shard_plan import Part

EPILOG = (
    "Examples:\n\n"
    "shardprep build dogs-vs-cats.zip --shards 20\n\n"
    "shardprep build photos/ --size 256x256 --fit pad --split train=0.9,validation=0.1\n\n"
    "shardprep build kaggle:dog-breed-identification --labels csv:labels.csv:id:breed\n\n"
    "shardprep build photos.zip --out /shared/tfrecords --part 3/16\n\n"
    "shardprep build /shared/photos.zip --out /shared/tfrecords --engine ray --ray-address auto"
)


def build(
    source: o.Source = None,
    *,
    save_rejected: o.SaveRejected = None,
    workers: o.Workers = None,
    engine: o.Engine = "local",
    ray_address: o.RayAddress = None,
    part: o.Part = None,
    refresh: o.Refresh = False,
    overwrite: o.Overwrite = False,
    profile: o.Profile = False,
    dry_run: o.DryRun = False,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
    **flags: Any,
) -> None:
    """Turn raw images into TFRecord shards.

    A build that was interrupted goes on where it stopped when the same command runs again.
    """
    from shardprep.writer.engine.process import start_server

    if engine == "local" and not dry_run:
        start_server()

    from shardprep.cli.resolve import (
        blaming,
        engine_of,
        local_source,
        part_of,
        recipe_applies,
        recipe_of,
    )
    from shardprep.recipe.document import RECIPE_FILE

    piece = None if part is None else part_of(part)
    if piece is not None and (overwrite or save_rejected is not None):
        flag = "--overwrite" if overwrite else "--save-rejected"
        raise RecipeError(flag, "is for a whole build, not for a part", "leave it out")
    if source is not None:
        flags = {"source": source, **flags}
    recipe = recipe_of(flags)
    crew = engine_of(engine, ray_address, workers)
    terminal = console(stderr=True)
    if source is not None and recipe_applies(source):
        terminal.notice(f"the options of {RECIPE_FILE} apply: it is for this source")
    local = local_source(recipe.source, terminal, refresh=refresh)
    recipe = replace(recipe, source=local)
    if profile:
        from shardprep import profiling

        profiling.start()
    with blaming(flags):
        if dry_run:
            _show_plan(recipe, piece, as_json=as_json)
        elif piece is not None:
            _build_part(recipe, piece, crew, as_json=as_json)
        else:
            _build(recipe, crew, save_rejected, overwrite=overwrite, as_json=as_json)


def _build(
    recipe: Recipe,
    crew: AbstractContextManager[Crew],
    save_rejected: Path | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    import pyarrow as pa

    from shardprep.cli.display.progress import BuildProgress
    from shardprep.cli.display.summary import show_refused, show_result
    from shardprep.writer.build import build_dataset
    from shardprep.writer.limits import TooManyRejectedError

    pa.set_memory_pool(pa.system_memory_pool())  # gives back what a shard's rows took
    try:
        with crew as workers, BuildProgress(console(stderr=True)) as progress:
            result = build_dataset(
                recipe,
                num_workers=workers.num_workers,
                watcher=progress,
                overwrite=overwrite,
                engine=workers.engine,
            )
    except TooManyRejectedError as error:
        show_refused(error)
        if save_rejected is not None:
            _save_rejected(error.draft, recipe, save_rejected)
        raise
    if save_rejected is not None:
        _save_rejected(result.path, recipe, save_rejected)
    show_result(result, as_json=as_json)


def _build_part(
    recipe: Recipe, part: Part, crew: AbstractContextManager[Crew], *, as_json: bool
) -> None:
    from shardprep.cli.display.progress import BuildProgress
    from shardprep.cli.display.summary import print_part
    from shardprep.writer.build import build_part

    with crew as workers, BuildProgress(console(stderr=True)) as progress:
        result = build_part(
            recipe, part, num_workers=workers.num_workers, watcher=progress, engine=workers.engine
        )
    if as_json:
        from shardprep.cli.results import PartJson

        more = {"path": result.workspace.location, "part": str(part)}
        print_json(picked(PartJson, result, **more))
        return
    print_part(console(), result)


def _show_plan(recipe: Recipe, part: Part | None, *, as_json: bool) -> None:
    import tempfile

    from shardprep.writer.plan import make_plan

    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        plan = make_plan(recipe, Path(work), console(stderr=True).notice)
    num_all_shards = len(plan.shards)
    if part is not None:
        plan = plan.of_part(part)
    if as_json:
        from collections import Counter

        from shardprep.cli.results import PlanJson

        summary = PlanJson(
            name=plan.name,
            splits=dict(Counter(shard.split for shard in plan.shards)),
            images=dict(Counter(item.split for shard in plan.shards for item in shard.items)),
            labels=list(plan.schema.labels),
            labels_from=plan.labels_from,
            num_rows_without_image=len(plan.rows_without_image),
            skipped=dict(Counter(one.reason for one in plan.skipped)),
            estimated_bytes=plan.estimated_bytes,
        )
        if plan.annotations is not None:
            summary["annotations_from"] = plan.annotations.how
            summary["object_classes"] = list(plan.annotations.names)
            summary["num_objects"] = plan.annotations.num_objects
            summary["num_masks"] = sum(len(i.masks) for shard in plan.shards for i in shard.items)
        if part is not None:
            summary["part"], summary["num_all_shards"] = str(part), num_all_shards
        print_json(summary)
        return
    from shardprep.cli.display.summary import print_plan

    if part is not None:
        typer.echo(f"part {part}: {len(plan.shards):,} of {num_all_shards:,} shards")
    print_plan(console(), plan)


def _save_rejected(folder: Path, recipe: Recipe, into: Path) -> None:
    from shardprep.writer.save_rejected import LIST_FILE, save_rejected

    terminal = console(stderr=True)
    num_files, num_rejected = save_rejected(folder, recipe, into, terminal.notice)
    terminal.notice(
        f"{num_files:,} of {num_rejected:,} rejected images copied to {into}, "
        f"with their reasons in {into / LIST_FILE}",
    )
