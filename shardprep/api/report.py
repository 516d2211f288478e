"""`shardprep.report`: findings on a dataset, as values and as an HTML page."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at, number
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.errors import OptionName, RecipeError
from shardprep.recipe.options import DATASET, MAX_SEED, RUN_OPTIONS, BuildOptions, Option

if TYPE_CHECKING:
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.reporter.report import Report

_LEAST_ADDRESS_SPACE = 384 << 20
"""Bytes. With less, threads of OpenBLAS and Arrow abort the process when allocations fail."""

OPTIONS = {
    "dataset": DATASET,
    "output": Option("Page to write.", metavar="FILE"),
    "split": Option(
        "Records to report on, such as train[:10%]+validation.", metavar="SPLIT", shown="all"
    ),
    "sample": Option(
        "Maximum number of images to measure; of more, a seeded sample is measured.",
        metavar="N",
        least=1,
        most=10**9,
    ),
    "no_pixels": Option("Read only the documents: no pictures, near copies or quality."),
    "thumbs": Option(
        "Number of pictures of each class; 0 for a page without pictures.",
        metavar="N",
        most=1_000,
    ),
    "seed": Option("Seed of samples and pictures.", metavar="N", most=MAX_SEED),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def report(
    dataset: str | Path | None = None,
    *,
    output: str | Path | None = None,
    split: AnySplit | None = None,
    sample: int = 100_000,
    no_pixels: bool = False,
    thumbs: int = 12,
    seed: int = 0,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Report:
    """Return the findings on a dataset: classes, copies, leaks and quality.

    With `output`, also write them as an HTML page.

    Raises:
        DatasetError: the dataset or the split does not exist, or a file is missing or damaged.
        RecipeError: a number is out of bounds, or the folder of the page does not exist.
        MemoryError: `ulimit -v` is below 384 MiB, too little for the libraries that draw.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.machine import address_space_bytes
    from shardprep.reporter.report import make_report
    from shardprep.reporter.report_data import ReportOptions
    from shardprep.storage.atomic_file import write_durably

    page = None if output is None else page_path(output)
    options = ReportOptions(
        sample=number("sample", sample, OPTIONS["sample"], int),
        has_pixels=not no_pixels,
        thumbs=number("thumbs", thumbs, OPTIONS["thumbs"], int),
        seed=number("seed", seed, OPTIONS["seed"], int),
        defaults={option.name: option.default for option in fields(BuildOptions)},
    )
    if options.has_pixels and address_space_bytes() < _LEAST_ADDRESS_SPACE:
        raise MemoryError
    with answering(store_timeout), watched(progress) as watch:
        result = make_report(dataset_at(dataset), options, watch, split)
        if page is not None:
            write_durably(page, result.html().encode())
            result = replace(result, page=page)
    return result


def page_path(output: str | Path) -> Path:
    """Return the path of the page, or raise RecipeError if its folder does not exist."""
    page = Path(output)
    if not page.parent.is_dir():
        raise RecipeError(
            OptionName("output"), f"the folder {page.parent} does not exist", "create it first"
        )
    return page


def check_listed(name: str, *, no_pixels: bool) -> None:
    """Raise RecipeError unless a kind of finding has a list of images."""
    from shardprep.reporter.findings.finding import MEANINGS, OF_PIXELS, WITHOUT_KEYS

    listed = [kind for kind in MEANINGS if kind not in WITHOUT_KEYS]
    if name not in listed:
        what = f"{name!r} is not a kind of finding"
        if name in WITHOUT_KEYS:
            what = f"{name!r} is about classes or splits, not about images"
        raise RecipeError(OptionName("list"), what, f"use one of {', '.join(listed)}")
    if name in OF_PIXELS and no_pixels:
        raise RecipeError(
            OptionName("list"),
            f"{name!r} needs the pixels",
            f"leave out {OptionName('no_pixels')}",
        )
