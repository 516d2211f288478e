"""The command line: parse, call, print, exit code. No decisions about data.

Heavy modules are imported by the command that needs them: `shardprep --help` answers at once.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardprep import options as o  # noqa: TC001 - typer reads the annotations
from shardprep.errors import RecipeError, ShardprepError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from shardprep.build import Part
    from shardprep.complete import BuildResult
    from shardprep.recipe import Recipe
    from shardprep.verify.problem import Verification

EXIT_ERROR, EXIT_USAGE, EXIT_PROBLEMS, EXIT_INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    name="shardprep",
    help="Raw Kaggle images in, training-ready TFRecord shards and a matching reader out.",
    epilog="Try it: shardprep sample, then shardprep build --shards 20, then shardprep inspect.\n\n"
    "With data of your own: shardprep init photos.zip, then shardprep build.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


class _InterruptedError(BaseException):
    """Ctrl-C, under a name that typer does not turn into a silent exit."""


def _interrupt(*_: object) -> None:
    raise _InterruptedError


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and an exit code."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except RecipeError as error:
        _fail(error, EXIT_USAGE)
    except ShardprepError as error:
        _fail(error, EXIT_ERROR)
    except OSError as error:
        where = str(error.filename or "shardprep")
        _fail(ShardprepError(where, (error.strerror or str(error)).lower()), EXIT_ERROR)
    except _InterruptedError:
        sys.stderr.write("interrupted: run the same command again to go on where it stopped\n")
        sys.exit(EXIT_INTERRUPTED)


def _fail(error: ShardprepError, code: int) -> None:
    sys.stderr.write(f"{error}\n")
    sys.exit(code)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback signature
    if wanted:
        from shardprep import __version__

        typer.echo(f"shardprep {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Raw Kaggle images in, training-ready TFRecord shards and a matching reader out."""


@app.command(
    epilog="Examples:\n\n"
    "shardprep build dogs-vs-cats.zip --shards 20\n\n"
    "shardprep build photos/ --size 256x256 --fit pad --split train=0.9,validation=0.1\n\n"
    "shardprep build kaggle:dog-breed-identification --labels csv:labels.csv:id:breed"
)
def build(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(
            help="A folder, an archive (zip, tar, tar.gz/bz2/xz, 7z, nested as they come), "
            "kaggle:COMPETITION or kaggle:OWNER/DATASET. "
            "By default what ./shardprep.toml says.",
            show_default=False,
        ),
    ] = None,
    out: o.Out = None,
    name: o.Name = None,
    version: o.Version = None,
    shards: o.Shards = None,
    schema: o.SchemaFile = None,
    size: o.Size = None,
    fit: o.Fit = None,
    format_: o.Format = None,
    quality: o.Quality = None,
    background: o.Background = None,
    max_pixels: o.MaxPixels = None,
    min_side: o.MinSide = None,
    max_aspect: o.MaxAspect = None,
    truncated: o.Truncated = None,
    labels: o.Labels = None,
    target: o.Target = None,
    separator: o.Separator = None,
    classes: o.Classes = None,
    class_map: o.ClassMap = None,
    join: o.Join = None,
    columns: o.Columns = None,
    header: o.Header = None,
    null: o.Null = None,
    split: o.Split = None,
    group: o.Group = None,
    dedup: o.Dedup = None,
    seed: o.Seed = None,
    root: o.Root = None,
    include: o.Include = None,
    exclude: o.Exclude = None,
    exclude_list: o.ExcludeList = None,
    zip_encoding: o.ZipEncoding = None,
    max_members: o.MaxMembers = None,
    max_member_size: o.MaxMemberSize = None,
    max_unpacked: o.MaxUnpacked = None,
    max_ratio: o.MaxRatio = None,
    max_depth: o.MaxDepth = None,
    max_rejected: o.MaxRejected = None,
    timeout: o.Timeout = None,
    save_rejected: o.SaveRejected = None,
    workers: o.Workers = None,
    part: o.Part = None,
    refresh: o.Refresh = False,
    overwrite: o.Overwrite = False,
    profile: o.Profile = False,
    dry_run: o.DryRun = False,
    as_json: o.Json = False,
) -> None:
    """Turn raw images into TFRecord shards.

    A build that was interrupted goes on where it stopped when the same command runs again.
    """
    from shardprep.arguments import local_source, part_of, recipe_applies, recipe_of
    from shardprep.recipe import RECIPE_FILE

    not_recipe = {
        "workers", "part", "save_rejected", "refresh", "overwrite", "profile", "dry_run", "as_json",
    }  # fmt: skip
    given = {k.rstrip("_"): v for k, v in context.params.items() if v not in (None, [])}
    recipe = recipe_of({key: value for key, value in given.items() if key not in not_recipe})
    if source is not None and recipe_applies(source):
        _notice(_console(stderr=True), f"the options of {RECIPE_FILE} apply: it is for this source")
    local = local_source(recipe.source, _console(stderr=True), refresh=refresh)
    recipe = recipe.model_copy(update={"source": local})
    if dry_run:
        _show_plan(recipe, as_json=as_json)
    else:
        if profile:
            from shardprep import stages

            stages.start()
        if part is not None:
            if overwrite or save_rejected is not None:
                flag = "--overwrite" if overwrite else "--save-rejected"
                raise RecipeError(flag, "is for a whole build, not for a part", "leave it out")
            _build_part(recipe, part_of(part), workers, as_json=as_json)
        else:
            _build(recipe, workers, save_rejected, overwrite=overwrite, as_json=as_json)


@app.command(epilog="Examples:\n\nshardprep finalize\n\nshardprep finalize tfrecords/dogs_vs_cats")
def finalize(
    dataset: Annotated[
        str | None,
        typer.Argument(
            help="The dataset, or what it lies in. By default what ./shardprep.toml says, else "
            "the one under ./tfrecords.",
            show_default=False,
        ),
    ] = None,
    max_rejected: o.MaxRejected = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that check shards.", show_default="usable cores"),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Make a dataset of the shards that `build --part` has written, once all parts are done."""
    from shardprep.arguments import rejected_share, unfinished
    from shardprep.complete import TooManyRejectedError, finalize_dataset
    from shardprep.engine.cores import usable_cores
    from shardprep.report.facts import read_rejections
    from shardprep.report.summary import print_inputs

    limit = None if max_rejected is None else rejected_share(max_rejected)
    try:
        with _console(stderr=True).status("checking the shards"):
            result = finalize_dataset(
                unfinished(dataset), num_threads=workers or usable_cores(), max_rejected=limit
            )
    except TooManyRejectedError as error:
        rejections = read_rejections(error.draft)
        print_inputs(_console(stderr=True), error.manifest, rejections)
        raise
    _show_result(result, as_json=as_json)


@app.command(epilog="Example:\n\nshardprep init dogs-vs-cats.zip && shardprep build")
def init(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A folder, an archive or kaggle:…. By default the one archive in this folder.",
            show_default=False,
        ),
    ] = None,
    overwrite: o.Overwrite = False,
    refresh: o.Refresh = False,
    as_json: o.Json = False,
) -> None:
    """Look into a source, say what it holds, and write a shardprep.toml for it."""
    import tempfile
    from dataclasses import replace

    from shardprep.arguments import local_source, only_archive
    from shardprep.durable import write_durably
    from shardprep.recipe import RECIPE_FILE
    from shardprep.survey import recipe_text, survey_source

    place = Path(RECIPE_FILE)
    if place.exists() and not overwrite:
        raise RecipeError(RECIPE_FILE, "is there already", "add --overwrite to replace it")
    archive = source or only_archive()
    notices = _console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        local = Path(local_source(archive, notices, refresh=refresh))
        survey = survey_source(local, Path(work), lambda line: _notice(notices, line))
    survey = replace(survey, source=archive)
    write_durably(place, recipe_text(survey).encode())
    if as_json:
        typer.echo(json.dumps(survey.as_json(), indent=2, ensure_ascii=False))
        return
    from shardprep.report.survey import print_survey

    print_survey(_console(), survey)
    typer.echo(f"wrote {RECIPE_FILE}; next: shardprep build")


@app.command(
    epilog="Examples:\n\nshardprep inspect\n\nshardprep inspect tfrecords/dogs_vs_cats --json"
)
def inspect(
    dataset: o.Dataset = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a dataset holds. Reads its manifest and item table, never the shards."""
    from shardprep.arguments import dataset_folder
    from shardprep.report.facts import read_facts

    facts = read_facts(dataset_folder(dataset))
    if as_json:
        typer.echo(json.dumps(facts.as_json(), indent=2, ensure_ascii=False))
        return
    from shardprep.report.summary import print_facts

    print_facts(_console(), facts)


@app.command(
    epilog="Examples:\n\nshardprep bench\n\nshardprep bench tfrecords/dogs_vs_cats --plot bench.png"
)
def bench(
    dataset: o.Dataset = None,
    split: Annotated[str, typer.Option(help="Which split to read.")] = "train",
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Measured for each way in each round.")
    ] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each way; the median counts.")] = 3,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Draw bars, and a timeline of read, decode and train.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how fast the shards are read: plain tf.data, tfds and this package's readers."""
    from shardprep.arguments import dataset_folder
    from shardprep.bench.result import Settings
    from shardprep.bench.run import run_benchmark
    from shardprep.report.plot import check_plot, write_plot

    if plot is not None:
        check_plot(plot)
    folder = dataset_folder(dataset)
    with _console(stderr=True).status("starting") as status:
        settings = Settings(
            batch_size=batch_size, seconds=seconds, rounds=rounds, timelines=plot is not None
        )
        found = run_benchmark(folder, split, settings, status.update)
    if plot is not None:
        write_plot(found, plot)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
        return
    from shardprep.report.benchmark import print_benchmark

    print_benchmark(_console(), found)
    if plot is not None:
        typer.echo(f"wrote {plot}")


@app.command(
    epilog="Examples:\n\nshardprep verify\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --decode\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --repair --source dogs-vs-cats.zip"
)
def verify(
    dataset: o.Dataset = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every image as well.")] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Build what is damaged again from the source, with the same bytes."
        ),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            help="What the dataset was built from, for --repair.",
            show_default="what ./shardprep.toml says",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that read.", show_default="usable cores"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that a dataset is what was built: every byte, record, label and document.

    Exits with 3 where problems are found, and remain.
    """
    from shardprep.arguments import dataset_folder
    from shardprep.dataset import find_damaged
    from shardprep.report.verification import print_verification

    folder = dataset_folder(dataset, find_damaged)
    found = _verify(folder, workers, decode=decode)
    if not as_json:
        print_verification(_console(), found, decode=decode, repair=repair)
    was_repaired = bool(repair and found.problems)
    before = found
    if was_repaired:
        _repair(found, source, workers)
        found = _verify(folder, workers, decode=decode)
        if not as_json:
            print_verification(_console(), found, decode=decode, repair=repair)
    if as_json:
        facts = found.as_json() | (
            {"repaired": before.as_json()["problems"]} if was_repaired else {}
        )
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    if found.problems:
        raise typer.Exit(EXIT_PROBLEMS)


@app.command(epilog="Example:\n\nshardprep sample demo && cd demo && shardprep build --shards 20")
def sample(
    directory: Annotated[
        Path, typer.Argument(help="Where to write shapes.zip and shardprep.toml.")
    ] = Path(),
) -> None:
    """Write a small Kaggle-shaped archive to try everything on, without a network."""
    from shardprep.source.sample import write_sample

    archive = write_sample(directory)
    size = archive.stat().st_size / 1e6
    typer.echo(f"{archive} ({size:.1f} MB) and {archive.with_name('shardprep.toml')}")
    there = "" if directory == Path() else f"cd {directory} && "
    typer.echo(f"next: {there}shardprep build --shards 20")


@app.command(
    epilog="Examples:\n\nshardprep download dogs-vs-cats\n\n"
    "shardprep download kaggle:owner/dataset --to archives"
)
def download(
    slug: Annotated[
        str,
        typer.Argument(
            help="COMPETITION, OWNER/DATASET or OWNER/DATASET/VERSION, or its page's address."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(help="Folder for the archive.", show_default="the cache", metavar="DIR"),
    ] = None,
    refresh: o.Refresh = False,
    as_json: o.Json = False,
) -> None:
    """Download an archive from Kaggle, check every byte of it, and keep it."""
    from shardprep.arguments import downloaded

    path = downloaded(slug, to, _console(stderr=True), refresh=refresh)
    if as_json:
        typer.echo(json.dumps({"path": str(path), "num_bytes": path.stat().st_size}, indent=2))
    else:
        typer.echo(str(path))


def _build(
    recipe: Recipe,
    workers: int | None,
    save_rejected: Path | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    from shardprep.build import build_dataset
    from shardprep.complete import TooManyRejectedError
    from shardprep.engine.cores import usable_cores
    from shardprep.report.facts import read_rejections
    from shardprep.report.progress import BuildProgress
    from shardprep.report.summary import print_inputs

    try:
        with BuildProgress(_console(stderr=True)) as progress:
            result = build_dataset(
                recipe,
                num_workers=workers or usable_cores(),
                watcher=progress,
                overwrite=overwrite,
            )
    except TooManyRejectedError as error:
        rejections = read_rejections(error.draft)
        print_inputs(_console(stderr=True), error.manifest, rejections)
        if save_rejected is not None:
            _save_rejected(error.draft, recipe, save_rejected)
        raise
    if save_rejected is not None:
        _save_rejected(result.path, recipe, save_rejected)
    _show_result(result, as_json=as_json)


def _show_result(result: BuildResult, *, as_json: bool) -> None:
    from shardprep import stages
    from shardprep.dataset import read_schema
    from shardprep.report.facts import read_rejections
    from shardprep.report.summary import print_result

    seconds = stages.taken()
    if as_json:
        profile = {"profile": {name: round(value, 4) for name, value in seconds.items()}}
        summary = {
            "path": result.location,
            "was_there": result.was_there,
            "num_new_items": result.num_new_items,
            "elapsed_s": round(result.elapsed_s, 3),
            "manifest": result.manifest.model_dump(mode="json"),
            **(profile if stages.is_on() else {}),
        }
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    schema = read_schema(result.path)
    print_result(_console(), result, schema, read_rejections(result.path))
    if stages.is_on() and result.num_new_items:
        from shardprep.report.profile import print_profile

        print_profile(_console(), seconds, result.num_new_items, result.elapsed_s)


def _build_part(recipe: Recipe, part: Part, workers: int | None, *, as_json: bool) -> None:
    from shardprep.build import build_part
    from shardprep.engine.cores import usable_cores
    from shardprep.report.progress import BuildProgress
    from shardprep.report.summary import print_part

    with BuildProgress(_console(stderr=True)) as progress:
        result = build_part(recipe, part, num_workers=workers or usable_cores(), watcher=progress)
    if as_json:
        summary = {
            "path": result.place.location,
            "part": f"{part.number}/{part.count}",
            "was_there": result.was_there,
            "num_shards": result.num_shards,
            "num_new_items": result.num_new_items,
            "elapsed_s": round(result.elapsed_s, 3),
        }
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    print_part(_console(), part, result)


def _save_rejected(folder: Path, recipe: Recipe, into: Path) -> None:
    from shardprep.rejected import LIST_FILE, save_rejected

    console = _console(stderr=True)
    num_files, num_rejected = save_rejected(
        folder, recipe, into, lambda line: _notice(console, line)
    )
    _notice(
        console,
        f"{num_files:,} of {num_rejected:,} rejected images copied to {into}, "
        f"with their reasons in {into / LIST_FILE}",
    )


def _verify(folder: Path, workers: int | None, *, decode: bool) -> Verification:
    from shardprep.engine.cores import usable_cores
    from shardprep.report.transfer import ByteProgress
    from shardprep.verify.dataset import verify_dataset

    with ByteProgress(_console(stderr=True)) as progress:
        return verify_dataset(
            folder, decode=decode, num_workers=workers or usable_cores(), watcher=progress
        )


def _repair(found: Verification, source: str | None, workers: int | None) -> None:
    from shardprep.arguments import repair_source
    from shardprep.engine.cores import usable_cores
    from shardprep.repair import repair_dataset
    from shardprep.report.progress import BuildProgress

    console = _console(stderr=True)
    local = repair_source(found.path, source, console)
    with BuildProgress(console) as progress:
        repair_dataset(found, local, num_workers=workers or usable_cores(), watcher=progress)


def _show_plan(recipe: Recipe, *, as_json: bool) -> None:
    import tempfile

    from shardprep.prepare import make_plan

    console = _console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        plan = make_plan(recipe, Path(work), lambda line: _notice(console, line))
    if as_json:
        from collections import Counter

        summary = {
            "name": plan.name,
            "splits": dict(Counter(shard.split for shard in plan.shards)),
            "images": dict(Counter(item.split for shard in plan.shards for item in shard.items)),
            "labels": list(plan.schema.labels),
            "labels_from": plan.labels_from,
            "num_rows_without_image": len(plan.rows_without_image),
            "skipped": dict(Counter(one.reason for one in plan.skipped)),
            "estimated_bytes": plan.estimated_bytes,
        }
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    from shardprep.report.summary import print_plan

    print_plan(_console(), plan)


def _notice(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)
