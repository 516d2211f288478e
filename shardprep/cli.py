"""The command line: parse, call, print, exit code. No decisions about data.

Heavy modules are imported by the command that needs them: `shardprep --help` answers at once.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardprep.errors import DatasetError, RecipeError, ShardprepError

if TYPE_CHECKING:
    from rich.console import Console

    from shardprep.recipe import Recipe

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

_IMAGES, _TARGETS, _OUTPUT, _RUN = "Images", "Labels and splits", "Output", "This run"

app = typer.Typer(
    name="shardprep",
    help="Raw Kaggle images in, training-ready TFRecord shards and a matching reader out.",
    epilog="Try it: shardprep sample, then shardprep build --shards 20, then shardprep inspect.",
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
    "shardprep build dog-breed.zip --labels csv:labels.csv:id:breed"
)
def build(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A folder or an archive: zip, tar, tar.gz/bz2/xz, nested as they come. "
            "By default what ./shardprep.toml says.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of datasets.", show_default="tfrecords", rich_help_panel=_OUTPUT),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Of the dataset.", show_default="from the source's name", rich_help_panel=_OUTPUT
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(help="Of the dataset.", show_default="1.0.0", rich_help_panel=_OUTPUT),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            help="Of the largest split; the others get as many as keep shards equal.",
            show_default="by size, about 128 MiB each",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="WxH",
            help="Of stored images in pixels, or none.",
            show_default="224x224",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="crop, pad, stretch, within (only shrinks) or none.",
            show_default="crop",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="jpeg, png, raw (uint8) or keep, which stores the original bytes where "
            "they are a plain RGB JPEG or PNG of that size already.",
            show_default="jpeg",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(help="Of JPEG, 1 to 100.", show_default="90", rich_help_panel=_IMAGES),
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(
            metavar="COLOUR",
            help="Behind transparency and beside padded images: white, black, grey, #RRGGBB or "
            "R,G,B.",
            show_default="white",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            help="Reject images with more, before decoding.",
            show_default="100000000",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="auto, folder, folder:N (Nth above the image), prefix (cat.12.jpg), "
            "regex:PATTERN with (?P<label>…), csv:FILE, csv:FILE:ID:LABEL, or none.",
            show_default="auto",
            rich_help_panel=_TARGETS,
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Class names in label order.",
            show_default="those found, in natural order",
            rich_help_panel=_TARGETS,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=RATIO,…",
            help="Cut splits anew, the same share of every class in each: "
            "train=0.8,validation=0.1,test=0.1.",
            show_default="what folders named train, val, test say, else train",
            rich_help_panel=_TARGETS,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Features of each example.",
            show_default="classification, or unlabelled",
            rich_help_panel=_TARGETS,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of the shuffle and the split.", show_default="0", rich_help_panel=_TARGETS
        ),
    ] = None,
    max_rejected: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Fail if more images than this are bad.",
            show_default="5%",
            rich_help_panel=_RUN,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that encode.", show_default="usable cores", rich_help_panel=_RUN
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is there.", rich_help_panel=_RUN)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan, write nothing.", rich_help_panel=_RUN),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Turn raw images into TFRecord shards.

    A build that was interrupted goes on where it stopped when the same command runs again.
    """
    flags = {
        "source": source,
        "out": out,
        "name": name,
        "version": version,
        "shards": shards,
        "size": size,
        "fit": fit,
        "format": format_,
        "quality": quality,
        "background": background,
        "max_pixels": max_pixels,
        "labels": labels,
        "classes": classes,
        "split": split,
        "schema": schema,
        "seed": seed,
        "max_rejected": max_rejected,
    }
    recipe = _recipe({key: value for key, value in flags.items() if value is not None})
    if dry_run:
        _show_plan(recipe, as_json=as_json)
    else:
        _build(recipe, workers, overwrite=overwrite, as_json=as_json)


@app.command(
    epilog="Examples:\n\nshardprep inspect\n\nshardprep inspect tfrecords/dogs_vs_cats --json"
)
def inspect(
    dataset: Annotated[
        Path | None,
        typer.Argument(
            help="The dataset's folder, or one above it. By default what ./shardprep.toml "
            "builds, else the one dataset under ./tfrecords.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a dataset holds. Reads its manifest and item table, never the shards."""
    from shardprep.report.facts import read_facts

    facts = read_facts(_find(dataset))
    if as_json:
        typer.echo(json.dumps(facts.as_json(), indent=2, ensure_ascii=False))
        return
    from shardprep.report.summary import print_facts

    print_facts(_console(), facts)


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


def _recipe(flags: dict[str, Any]) -> Recipe:
    """Return the recipe of flags and of ./shardprep.toml, unless that is for another source."""
    from shardprep.recipe import RECIPE_FILE, make_recipe, read_recipe

    keys = read_recipe(Path(RECIPE_FILE)) if Path(RECIPE_FILE).is_file() else {}
    if "source" in flags and flags["source"] != keys.get("source"):
        return make_recipe(flags, "shardprep build")
    if "source" in keys:
        return make_recipe({**keys, **flags}, RECIPE_FILE)
    raise RecipeError(
        "shardprep build",
        "no source is given",
        f"give a folder or an archive (shardprep build photos.zip), put source = … into "
        f"./{RECIPE_FILE}, or write a sample with shardprep sample",
    )


def _build(recipe: Recipe, workers: int | None, *, overwrite: bool, as_json: bool) -> None:
    from shardprep.build import TooManyRejectedError, build_dataset
    from shardprep.engine.local import usable_cores
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
        rejections = read_rejections(Path(error.where))
        print_inputs(_console(stderr=True), error.manifest, rejections)
        raise
    if as_json:
        summary = {
            "path": str(result.path),
            "was_there": result.was_there,
            "num_new_items": result.num_new_items,
            "elapsed_s": round(result.elapsed_s, 3),
            "manifest": result.manifest.model_dump(mode="json"),
        }
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    from shardprep.dataset import SCHEMA_FILE
    from shardprep.report.summary import print_result
    from shardprep.schema import parse_schema

    schema = parse_schema((result.path / SCHEMA_FILE).read_text(), SCHEMA_FILE)
    print_result(_console(), result, schema, read_rejections(result.path))


def _show_plan(recipe: Recipe, *, as_json: bool) -> None:
    import tempfile

    from shardprep.prepare import make_plan

    console = _console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        plan = make_plan(recipe, Path(work), lambda line: console.print(line, highlight=False))
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


def _find(dataset: Path | None) -> Path:
    """Return the folder that a dataset argument means."""
    from shardprep.dataset import find_dataset
    from shardprep.recipe import RECIPE_FILE, make_recipe, read_recipe

    if dataset is not None:
        return find_dataset(dataset)
    if Path(RECIPE_FILE).is_file():
        recipe = make_recipe(read_recipe(Path(RECIPE_FILE)), RECIPE_FILE)
        return find_dataset(Path(recipe.out, recipe.dataset_name))
    if not Path("tfrecords").is_dir():
        raise DatasetError(
            "tfrecords", "no dataset is named, and there is no such folder here", "name a folder"
        )
    return find_dataset(Path("tfrecords"))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)
