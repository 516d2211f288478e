"""The commands that show a dataset: inspect, report, view and bench."""

from __future__ import annotations

import csv
import io
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shardprep.cli.streams import EXIT_PROBLEMS, console, picked, print_json
from shardprep.dataset.card import to_cell
from shardprep.errors import RecipeError, counted, printable, some_of
from shardprep.recipe.options import Option

if TYPE_CHECKING:
    from shardprep.api.json_types import Benchmark, Copies, Report
    from shardprep.cli.console import Terminal
    from shardprep.cli.options import Call

_STDOUT, _WRONG = "-", "wrong-labels"
OPTIONS = {
    "report": {
        "output": Option(
            "Page to write, - for stdout.",
            metavar="FILE",
            shown="NAME-report.html",
            flags=("-o", "--out", "--output"),
        ),
        "list_": Option(
            "Print the keys of a finding, such as leaks, for build --exclude-list; of wrong-labels "
            "also the likely labels, for build --relabel. No page is written.",
            metavar="FINDING",
        ),
        "open_": Option("Open the page in a browser."),
    },
    "view": {"open_": Option("Open the first page in a browser.")},
}
"""Command → options that only the command line has, or declares differently."""


def inspect(call: Call, *, as_json: bool) -> None:
    """Show the splits, classes and totals of a dataset.

    Reads the manifest and the item table, and shards only for --boxes. Exit code 3 if shards are
    missing.

    Examples:
        shardprep inspect
        shardprep inspect tfrecords/dogs_vs_cats --json
        shardprep inspect tfrecords/bccd --boxes sheet.png
    """
    facts = call()
    if "boxes" in call.keywords:
        console(stderr=True).notice(f"drawn: {call.keywords['boxes']}")
    if as_json:
        print_json(facts)
    else:
        from shardprep.cli.summary import print_facts

        terminal = console()
        print_facts(terminal, facts)
        terminal.entries("findings", facts.findings)
        if facts.missing:
            shards = counted(len(facts.missing), "shard", "is missing", "are missing")
            terminal.entry("missing", f"{shards}: {some_of(facts.missing)}")
    if facts.missing:
        raise typer.Exit(EXIT_PROBLEMS)


def report(
    call: Call, *, output: str | None, list_: str | None, open_: bool, as_json: bool
) -> None:
    """Write one HTML page about a dataset: findings, classes, pictures, leaks, quality.

    The page needs no network and has no time and no path of this machine. The same dataset gives
    the same page.

    Examples:
        shardprep report --open
        shardprep report tfrecords/dogs_vs_cats --out dogs.html
        shardprep report --list near-leaks > near-leaks.csv
        shardprep report --predictions csv:oof.csv --list wrong-labels > wrong-labels.csv
    """
    if list_ is not None and (output is not None or as_json or open_):
        raise RecipeError("--list", "prints only keys", "leave out --out, --json and --open")
    if output == _STDOUT and (as_json or open_):
        raise RecipeError("--out -", "prints only the page", "leave out --json and --open")
    if list_ is not None:
        from shardprep.api.reports import check_listed

        check_listed(list_, call.keywords)
        no_pixels = list_ == _WRONG or bool(call.keywords.get("no_pixels"))
        _print_list(call(thumbs=0, no_pixels=no_pixels), list_)
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
        print_json(_report_json(found, page))
    else:
        _print_findings(found, page, len(html))
    if open_:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _print_list(found: Report, name: str) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    rows: list[tuple[str, ...]] = [("key",), *((key,) for key in found.keys(name))]
    if name == _WRONG:
        rows = [("key", "label", "given", "score")]
        for number, given, likely, score in found.wrong_labels:
            rows.append((found.contents.key(number), likely, given, f"{score:.4f}"))
    writer.writerows([to_cell(printable(cell)) for cell in row] for row in rows)
    sys.stdout.write(out.getvalue())


def _print_findings(found: Report, page: Path, num_bytes: int) -> None:
    from shardprep.storage.space import megabytes

    terminal = console()
    styles = {"serious": "red", "warning": "yellow", "note": ""}
    for one in found.findings:
        terminal.entry(one.severity, f"{one.name}: {one.what}", style=styles[one.severity])
    if not found.findings:
        terminal.entry("found", "nothing", style="green")
    terminal.notice(f"wrote {page}, {megabytes(num_bytes)}")


def _report_json(found: Report, page: Path) -> Any:
    from shardprep.api.json_types import ChannelsJson, QualityJson, ReportJson

    channels = None
    if found.channels is not None:
        mean, std = found.channels.mean_std()
        channels = ChannelsJson(num_images=found.channels.num_images, mean=mean, std=std)
    return picked(
        ReportJson,
        found,
        path=str(page),
        copies=[_copies_json(found, one) for one in found.copies],
        qualities=[picked(QualityJson, one, num_found=len(one.found)) for one in found.qualities],
        channels=channels,
    )


def _copies_json(found: Report, one: Copies) -> Any:
    from shardprep.api.json_types import CopiesJson, RecordJson

    places = [found.contents.place(number) for number in one.numbers]
    records = [picked(RecordJson, place, target=place.label) for place in places]
    return picked(CopiesJson, one, records=records)


def view(call: Call, *, open_: bool, as_json: bool) -> None:
    """Show the images of a dataset in a browser, with boxes, masks and filters.

    Runs a server for this machine only, until Ctrl-C. Open the printed address.

    Examples:
        shardprep view --open
        shardprep view s3://bucket/sets/pets --port 8000
    """
    with call() as viewer:
        ended = threading.Event()
        before = {
            number: signal.signal(number, lambda *_: ended.set())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        if as_json:
            from shardprep.api.json_types import ViewJson

            print_json(picked(ViewJson, viewer))
        else:
            console().notice(f"{viewer.name} {viewer.version} is at {viewer.url} until Ctrl-C")
        sys.stdout.flush()  # a program may read the address from a pipe
        with _opened(viewer.url) if open_ else nullcontext():
            ended.wait()
        for number, handler in before.items():
            signal.signal(number, handler)  # a second Ctrl-C ends the program at once
    console(stderr=True).notice("ended")


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open an address in a browser through a file that only this user can read.

    All users can list the arguments of programs, so the secret address must not be an argument.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="shardprep-view-") as folder:  # its mode is 0700
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">'
            f'<a href="{url}">shardprep view</a>\n'
        )
        if not webbrowser.open(page.as_uri()):
            console(stderr=True).notice("no browser could be started; open the address above")
        yield


def bench(found: Benchmark) -> None:
    """Compare the reading speed of plain tf.data and this package's readers.

    Examples:
        shardprep bench
        shardprep bench tfrecords/dogs_vs_cats --split validation
    """
    print_benchmark(console(), found)


def print_benchmark(terminal: Terminal, found: Benchmark) -> None:
    """Print a row for each pipeline, and the reason if a pipeline did not run."""
    from shardprep.cli.console import plain_table
    from shardprep.storage.space import megabytes

    what = f"{found.split}: {counted(found.num_records, 'image')}, {megabytes(found.num_bytes)}"
    terminal.heading(found.path, f"  {what}")
    columns = ("way", "images/s", "a core", "first batch", "memory", "yields")
    table = plain_table(*columns, left=("yields",))
    for way in found.ways:
        cells = (
            f"{way.images_s:,.0f}",
            f"{way.images_s_core:,.0f}",
            f"{way.first_batch_s:.2f} s",
            megabytes(way.peak_bytes) if way.peak_bytes else "-",
            way.yields,
        )
        table.add_row(way.title, *(cells if way.rounds else "-" * len(cells)))
    terminal.print(table)
    for way in found.ways:
        if way.problem:
            terminal.entry("not run", f"{way.title}: {way.problem}", style="yellow")
    settings = found.settings
    terminal.entry(
        "measured",
        f"batches of {settings.batch_size}, {counted(found.num_cores, 'core')}, median of "
        f"{settings.rounds} x {settings.seconds:g} s after the first batch, files in memory; a "
        "core: images per second of CPU time; memory: peak of the process",
    )
