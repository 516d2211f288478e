"""`shardprep report`: write findings on a dataset as an HTML page."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.cli.streams import console, print_json
from shardprep.dataset.card import to_cell
from shardprep.errors import RecipeError, printable
from shardprep.recipe.options import Option

if TYPE_CHECKING:
    from shardprep.api.json_types import Copies, Report
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\nshardprep report --open\n\n"
    "shardprep report tfrecords/dogs_vs_cats -o dogs.html\n\n"
    "shardprep report --list near-leaks > near-leaks.csv"
)
_STDOUT = "-"
OPTIONS = {
    "output": Option(
        "Page to write, - for stdout.",
        metavar="FILE",
        shown="NAME-report.html",
        flags=("-o", "--output"),
    ),
    "list_": Option(
        "Print the keys of a finding, such as leaks, for build --exclude-list. No page is written.",
        metavar="FINDING",
    ),
    "open_": Option("Open the page in a browser."),
}


def run(call: Call, *, output: str | None, list_: str | None, open_: bool, as_json: bool) -> None:
    """Write one HTML page about a dataset: findings, classes, pictures, leaks, quality.

    The page needs no network and contains no path or time. The same dataset gives the same page.
    """
    if list_ is not None and (output is not None or as_json or open_):
        raise RecipeError("--list", "prints only keys", "leave out --output, --json and --open")
    if output == _STDOUT and (as_json or open_):
        raise RecipeError("--output -", "prints only the page", "leave out --json and --open")
    if list_ is not None:
        from shardprep.api.report import check_listed

        check_listed(list_, no_pixels=bool(call.options.get("no_pixels")))
        _print_keys(call(thumbs=0).keys(list_))
        return
    found = call() if output in (None, _STDOUT) else call(output=output)
    html = found.html()
    if output == _STDOUT:
        sys.stdout.write(html)
        return
    page = found.page or Path(f"{found.name}-report.html")
    if found.page is None:
        from shardprep.storage.atomic_file import write_durably

        write_durably(page, html.encode())
    if as_json:
        print_json(_json(found, page))
    else:
        _print(found, page, len(html))
    if open_:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _print_keys(keys: tuple[str, ...]) -> None:
    """Print keys as a CSV file of one column for `--exclude-list`."""
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
