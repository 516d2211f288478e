"""`shardprep report`: a dataset for the eye, as one HTML page."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shardprep.cli import options as o
from shardprep.cli.streams import bar, console, print_json
from shardprep.dataset.cells import to_cell
from shardprep.errors import RecipeError, printable
from shardprep.recipe.options import MAX_SAMPLE, MAX_SEED, MAX_THUMBS

if TYPE_CHECKING:
    from shardprep.api.json_types import Copies, Report

EPILOG = (
    "Examples:\n\nshardprep report --open\n\n"
    "shardprep report tfrecords/dogs_vs_cats -o dogs.html\n\n"
    "shardprep report --list near-leaks > near-leaks.csv"
)
_STDOUT = "-"


def report(
    dataset: o.Dataset = None,
    output: Annotated[
        str | None,
        o.value("Page to write, - for stdout.", "FILE", "NAME-report.html", "-o", "--output"),
    ] = None,
    split: Annotated[
        str | None,
        o.value("Records to report on, such as train[:10%]+validation.", "SPLIT", "all"),
    ] = None,
    sample: Annotated[
        int,
        o.amount(
            "Maximum number of images to measure; of more, a seeded sample is measured.",
            "N",
            "100000",
            most=MAX_SAMPLE,
        ),
    ] = 100_000,
    no_pixels: Annotated[
        bool,
        o.switch("--no-pixels", "Read only the documents: no pictures, near copies or quality."),
    ] = False,
    thumbs: Annotated[
        int,
        o.amount(
            "Number of pictures of each class; 0 for a page without pictures.",
            "N",
            "12",
            least=0,
            most=MAX_THUMBS,
        ),
    ] = 12,
    seed: Annotated[
        int, o.amount("Seed of samples and pictures.", "N", "0", least=0, most=MAX_SEED)
    ] = 0,
    list_: Annotated[
        str | None,
        o.value(
            "Print the keys of a finding, such as leaks, for build --exclude-list. No page is "
            "written.",
            "FINDING",
            "",
            "--list",
        ),
    ] = None,
    open_: Annotated[bool, o.switch("--open", "Open the page in a browser.")] = False,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Write one HTML page about a dataset: findings, classes, pictures, leaks, quality.

    The page needs no network and contains no path or time. The same dataset gives the same page.
    """  # fmt: skip
    if list_ is not None and (output is not None or as_json or open_):
        raise RecipeError("--list", "prints keys alone", "leave out --output, --json and --open")
    if output == _STDOUT and (as_json or open_):
        raise RecipeError("--output -", "is for a page alone", "leave out --json and --open")
    from shardprep.api.report import check_listed, page_path
    from shardprep.api.report import report as make_report

    page = None if output in (None, _STDOUT) else page_path(output or "")
    thumbs = 0 if list_ else thumbs
    if list_ is not None:
        check_listed(list_, no_pixels=no_pixels)
    with bar() as progress:
        found = make_report(
            dataset,
            split=split,
            sample=sample,
            no_pixels=no_pixels,
            thumbs=thumbs,
            seed=seed,
            progress=progress,
        )
    if list_ is not None:
        _print_keys(found.keys(list_))
        return
    html = found.html()
    if output == _STDOUT:
        sys.stdout.write(html)
        return

    from shardprep.storage.atomic_file import write_durably

    page = page or Path(f"{found.name}-report.html")
    write_durably(page, html.encode())
    if as_json:
        print_json(_json(found, page))
    else:
        _print(found, page, len(html))
    if open_:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _print_keys(keys: tuple[str, ...]) -> None:
    """Print keys as a CSV of one column, which `--exclude-list` takes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["key"])
    writer.writerows([to_cell(printable(key))] for key in keys)
    sys.stdout.write(out.getvalue())


def _print(found: Report, page: Path, num_bytes: int) -> None:
    from shardprep.storage.space import megabytes

    terminal = console()
    styles = {"serious": "red", "warning": "yellow", "note": ""}
    for one in found.findings:
        terminal.entry(one.severity, f"{one.name}: {one.what}", style=styles[one.severity])
    if not found.findings:
        terminal.entry("found", "nothing", style="green")
    terminal.notice(f"wrote {page}, {megabytes(num_bytes)}")


def _json(found: Report, page: Path) -> Any:
    from shardprep.api.json_types import ChannelsJson, QualityJson, ReportJson

    channels = None
    if found.channels is not None:
        mean, std = found.channels.mean_std()
        channels = ChannelsJson(num_images=found.channels.num_images, mean=mean, std=std)
    return ReportJson(
        path=str(page),
        name=found.name,
        version=found.version,
        manifest_sha256=found.manifest_sha256,
        split=found.split,
        num_records=found.num_records,
        num_measured=found.num_measured,
        findings=found.findings,
        copies=[_copies_json(found, one) for one in found.copies],
        qualities=[
            QualityJson(
                name=one.name,
                what=one.what,
                threshold=one.threshold,
                is_below=one.is_below,
                num_found=len(one.found),
                histogram=one.histogram,
            )
            for one in found.qualities
        ],
        channels=channels,
    )


def _copies_json(found: Report, one: Copies) -> Any:
    from shardprep.api.json_types import CopiesJson, RecordJson

    places = [found.contents.place(number) for number in one.numbers]
    return CopiesJson(
        kind=one.kind,
        is_leak=one.is_leak,
        is_conflict=one.is_conflict,
        bits=one.bits,
        records=[
            RecordJson(key=p.key, split=p.split, record=p.record, target=p.label) for p in places
        ],
    )
