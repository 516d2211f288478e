"""`shardprep.report`: a dataset for the eye."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, checked, dataset_at
from shardprep.api.progress import watched
from shardprep.errors import RecipeError
from shardprep.machine import address_space_bytes
from shardprep.recipe.options import MAX_SAMPLE, MAX_SEED, MAX_THUMBS, BuildOptions
from shardprep.reporter.findings.finding import MEANINGS, OF_PIXELS, WITHOUT_KEYS
from shardprep.reporter.report import make_report
from shardprep.reporter.report_data import ReportOptions
from shardprep.storage.atomic_file import write_durably

if TYPE_CHECKING:
    from shardprep.api.progress import Show
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.reporter.report import Report


_LEAST_ADDRESS_SPACE = 384 << 20
"""Bytes; with less, threads of OpenBLAS and Arrow end the process when they get no memory."""


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
    """Return the findings on a dataset: classes, copies, leaks, quality; write a page if asked.

    Args:
        dataset: its folder or address, or one above it; None: what ./shardprep.toml builds, else
            the one dataset under ./tfrecords.
        output: an HTML page to write; None: none, while the command names one itself.
        split: records to look at, such as "train[:10%]+validation", or a Selection; None: all, and
            the inputs that were left out.
        sample: images that are looked at, a seeded sample of more.
        no_pixels: look at documents alone: no pictures, no near copies.
        thumbs: pictures of each class on the page; 0 for a page without any.
        seed: seed of samples and pictures.
        store_timeout: seconds that object storage may be silent.
        progress: takes each `Progress`; True shows them.

    Raises:
        DatasetError: there is no such dataset or split, or a file of one is missing or damaged.
        RecipeError: a number is out of bounds, or the page has no folder to be written to.
        MemoryError: `ulimit -v` leaves less than the libraries that draw need.

    """
    page = None if output is None else page_path(output)
    options = ReportOptions(
        sample=checked("sample", sample, int, 1, MAX_SAMPLE),
        has_pixels=not no_pixels,
        thumbs=checked("thumbs", thumbs, int, 0, MAX_THUMBS),
        seed=checked("seed", seed, int, 0, MAX_SEED),
        defaults={one.name: one.default for one in fields(BuildOptions)},
    )
    if options.has_pixels and address_space_bytes() < _LEAST_ADDRESS_SPACE:
        raise MemoryError
    with answering(store_timeout), watched(progress) as watch:
        found = make_report(dataset_at(dataset), options, watch, split)
        if page is not None:
            write_durably(page, found.html().encode())
            found = replace(found, page=page)
    return found


def page_path(output: str | Path) -> Path:
    """Return where a page is to be written, before anything is measured for it."""
    page = Path(output)
    if not page.parent.is_dir():
        raise RecipeError("--output", f"there is no folder {page.parent}", "make it first")
    return page


def check_listed(name: str, *, no_pixels: bool) -> None:
    """Raise RecipeError for a kind of finding that has no list of images."""
    listed = [one for one in MEANINGS if one not in WITHOUT_KEYS]
    if name not in listed:
        what = f"{name!r} is no kind of finding"
        if name in WITHOUT_KEYS:
            what = f"{name!r} is about classes or splits, not about images"
        raise RecipeError("--list", what, f"there are {', '.join(listed)}")
    if name in OF_PIXELS and no_pixels:
        raise RecipeError("--list", f"{name!r} is told by pixels alone", "leave out --no-pixels")
