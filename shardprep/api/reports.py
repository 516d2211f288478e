"""The functions that show a dataset: inspect, report, view and bench."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.api.arguments import answering, dataset_at, number, with_files
from shardprep.api.display import watched
from shardprep.errors import (
    DatasetError,
    OptionName,
    RecipeError,
    SourceError,
    counted,
    use_one_of,
)
from shardprep.progress import Show, Watch
from shardprep.recipe.options import BUILD_DEFAULTS, DATASET, MAX_SEED, RUN_OPTIONS, Option
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.benchmark.result import Benchmark
    from shardprep.dataset.describe import Facts
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.recipe.keywords import Items
    from shardprep.reporter.record_columns import Contents
    from shardprep.reporter.report import Report
    from shardprep.reporter.report_data import ReportOptions
    from shardprep.reporter.viewer.viewer import Viewer

_NUM_PICTURES, _NUM_FINDINGS = 24, 3
_MOST_RECORDS = 100_000
"""Maximum number of records for findings in `inspect`; more would take longer than a second."""
_IN_FACTS = {
    "leaks", "duplicates", "rejected", "damaged", "not-used", "unmatched-objects",
    "unlisted-images",
}  # fmt: skip

_HOSTED = {"KAGGLE_KERNEL_RUN_TYPE": "Kaggle", "COLAB_RELEASE_TAG": "Colab"}
"""Environment variable → hosted notebook that sets it. Browsers cannot reach ports there."""

OPTIONS: dict[str, dict[str, Option]] = {
    "inspect": {
        "dataset": DATASET,
        "boxes": Option(
            "Draw boxes and masks of some images, from all parts of the dataset, into this PNG.",
            metavar="FILE",
        ),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "report": {
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
        "predictions": Option(
            "Out-of-fold class probabilities, to find wrong labels. FILE and ID are as in --labels "
            "of build; columns are named like the classes, or listed in label order.",
            metavar="csv:FILE[:ID:A,B,…]",
        ),
        "thumbs": Option(
            "Number of pictures of each class; 0 for a page without pictures.",
            metavar="N",
            most=1_000,
        ),
        "seed": Option("Seed of samples and pictures.", metavar="N", most=MAX_SEED),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "view": {
        "dataset": DATASET,
        "port": Option(
            "Port of the server, which listens on this machine only; 0 for any free port.",
            metavar="N",
            shown="0",
            most=65_535,
        ),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "bench": {
        "dataset": DATASET,
        "split": Option("Split to read.", metavar="SPLIT"),
        "batch_size": Option("Images in a batch.", metavar="N", least=1, most=10**6),
        "seconds": Option(
            "Duration of each measurement in each round.", metavar="SECONDS", least=0.1, most=3_600
        ),
        "rounds": Option(
            "Number of rounds; the median is reported.", metavar="N", least=1, most=1_000
        ),
    },
}


def inspect(
    dataset: str | Path | None = None,
    *,
    boxes: str | Path | None = None,
    store_timeout: float | None = None,
) -> Facts:
    """Return the splits, classes, totals and findings of a dataset.

    Reads the manifest and the item table, and shards only for a picture with `boxes`.

    Raises:
        DatasetError: the dataset does not exist, or one of its documents is missing or damaged.
        RecipeError: `boxes` does not name a PNG file that can be written, or the dataset has
            neither boxes nor masks.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.dataset.describe import read_facts

    with answering(store_timeout):
        opened = dataset_at(dataset)
        facts = read_facts(opened)
        if boxes is not None:
            _draw(opened, local_path(boxes))
        if lost := _missing(opened):
            return replace(facts, missing=lost)
        return replace(facts, findings=_first_findings(opened))


def _missing(dataset: OpenDataset) -> tuple[str, ...]:
    """Return the names of shards that are not in the dataset's folder; () in object storage."""
    if dataset.is_remote:
        return ()
    folder, splits = dataset.folder("inspect"), dataset.manifest.splits.values()
    names = (shard.name for split in splits for shard in split.shards)
    return tuple(name for name in names if not (folder / name).is_file())


def _first_findings(dataset: OpenDataset) -> tuple[str, ...]:
    """Return the most serious findings that need no pixels and are not in `Facts`.

    Return () above `_MOST_RECORDS`, and for contradictory documents, which `verify` reports.
    """
    from shardprep.reporter.report import make_report
    from shardprep.reporter.report_data import ReportOptions

    if not 0 < dataset.manifest.totals.num_written <= _MOST_RECORDS:
        return ()
    silent = Watch(lambda _: None)
    try:
        report = make_report(dataset, ReportOptions(has_pixels=False), silent)
    except DatasetError:
        return ()
    new = [finding.what for finding in report.findings if finding.name not in _IN_FACTS]
    return tuple(new[:_NUM_FINDINGS])


def _draw(dataset: OpenDataset, path: Path) -> None:
    from shardprep.dataset.annotated_pictures import contact_sheet
    from shardprep.storage.atomic_file import write_durably

    if not dataset.schema.annotations:
        what = f"{dataset} has neither boxes nor masks"
        raise RecipeError(OptionName("boxes"), what, "leave this option out")
    if path.suffix.lower() != ".png":
        what = f"{path} does not end with .png"
        raise RecipeError(OptionName("boxes"), what, f"use {path.parent / path.stem}.png")
    sheet = contact_sheet(dataset, _NUM_PICTURES)
    try:
        write_durably(path, sheet)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise RecipeError(str(path), what, "name another file") from error


def report(
    dataset: str | Path | None = None,
    *,
    output: str | Path | None = None,
    split: AnySplit | None = None,
    sample: int = 100_000,
    no_pixels: bool = False,
    predictions: str | Items | None = None,
    thumbs: int = 12,
    seed: int = 0,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Report:
    """Return the findings on a dataset: classes, copies, leaks and quality.

    With `output`, also write them as an HTML page. With `predictions`, also find wrong labels.

    Raises:
        DatasetError: the dataset or the split does not exist, or a file is missing or damaged.
        RecipeError: a number is out of bounds, or the folder of the page does not exist.
        SourceError: the table of predictions is missing or does not fit.
        MemoryError: `ulimit -v` is below 384 MiB, too little for the libraries that draw.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.machine import check_address_space
    from shardprep.reporter.record_columns import read_contents
    from shardprep.reporter.report import make_report
    from shardprep.reporter.report_data import ReportOptions
    from shardprep.storage.atomic_file import write_durably

    page = None if output is None else Path(output)
    if page is not None and not page.parent.is_dir():
        what = f"the folder {page.parent} does not exist"
        raise RecipeError(OptionName("output"), what, "create it first")
    options = ReportOptions(
        sample=number("sample", sample, OPTIONS["report"]["sample"], int),
        has_pixels=not no_pixels,
        thumbs=number("thumbs", thumbs, OPTIONS["report"]["thumbs"], int),
        seed=number("seed", seed, OPTIONS["report"]["seed"], int),
        defaults=BUILD_DEFAULTS,
    )
    if options.has_pixels:
        check_address_space()
    with answering(store_timeout), watched(progress) as watch:
        opened = dataset_at(dataset)
        if predictions is not None:
            rule = with_files({"predictions": predictions})["predictions"]
            options = _with_predictions(options, read_contents(opened, split), rule)
            watch.notice(options.predicted)
        result = make_report(opened, options, watch, split)
        if page is not None:
            write_durably(page, result.html().encode())
            result = replace(result, page=page)
    return result


def _with_predictions(options: ReportOptions, contents: Contents, text: str) -> ReportOptions:
    """Return the options with predictions read from a table, and a sentence on unused rows."""
    import numpy as np

    from shardprep.catalog.selection import WholeKeyIndex
    from shardprep.catalog.tables.metadata_files import Documents
    from shardprep.catalog.tables.row_matching import match_table
    from shardprep.dataset.schema import LABEL
    from shardprep.recipe.recipe import make_recipe
    from shardprep.recipe.rules import parse_table_rule

    option, classes = OptionName("predictions"), contents.schema.labels
    rule = parse_table_rule(text or "csv:", option)
    if contents.schema.target != LABEL:
        what = f"{contents.dataset} does not have one class for each image"
        raise RecipeError(option, what, "leave this option out")
    table = Documents([], make_recipe({"source": "."}, "")).table(rule.files)
    index = WholeKeyIndex(contents.keys_of(range(len(contents))))
    match = match_table(index, table, rule.id_column)
    titles = rule.label_columns or classes
    if titles == ("*",):
        titles = tuple(title for title in table.header if title != match.id_column)
    if len(titles) != len(classes):
        given, wanted = counted(len(titles), "column"), counted(len(classes), "class")
        what = f"{given} of {table.name} for {wanted}"
        raise SourceError(option, what, "name a column for each class, in label order")
    columns = (map(_probability, table.cells(table.column(title))) for title in titles)
    rows = [np.append(np.fromiter(column, float), np.nan) for column in columns]
    values = np.stack(rows, axis=1)[match.row_of]  # no row: −1, the final NaN
    is_valid = (values >= 0).all(axis=1) & (np.abs(values.sum(axis=1) - 1) <= 0.02)  # rounding
    has_row, is_labelled = match.row_of >= 0, contents.label >= 0
    values[~(is_valid & is_labelled)] = np.nan
    lost = {
        "without an image in the report": len(match.rows_without_image),
        "repeating an image": (match.key_of >= 0).sum() - has_row.sum(),
        "without probabilities that sum to 1": (has_row & ~is_valid).sum(),
        "of images without a label": (is_valid & ~is_labelled).sum(),
    }
    num_used, num_labelled = (is_valid & is_labelled).sum(), is_labelled.sum()
    used = f"predictions of {num_used:,} of {num_labelled:,} labelled images are used"
    used = used if num_used else f"no prediction is valid for {num_labelled:,} labelled images"
    if left := ", ".join(f"{number:,} {what}" for what, number in lost.items() if number):
        used += f"; rows left out: {left}"
    used = "; ".join((used, *index.remarks))
    if not num_used:
        raise SourceError(option, used, f"use keys such as {index.keys[0]}, and rows that sum to 1")
    return replace(options, predictions=values, predicted=used)


def _probability(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return -1


def check_listed(name: str, options: dict[str, Any]) -> None:
    """Raise RecipeError unless a report with these options can list the images of a finding."""
    from shardprep.reporter.findings.finding import MEANINGS, OF_PIXELS, WITHOUT_KEYS

    listed = [kind for kind in MEANINGS if kind not in WITHOUT_KEYS]
    if name not in listed:
        what = f"{name!r} is not a kind of finding"
        if name in WITHOUT_KEYS:
            what = f"{name!r} is about classes or splits, not about images"
        raise RecipeError(OptionName("list"), what, use_one_of(name, listed, len(listed)))
    if name == "wrong-labels" and "predictions" not in options:
        hint = f"add {OptionName('predictions', 'csv:FILE')}"
        raise RecipeError(OptionName("list"), f"{name!r} needs predictions of a model", hint)
    if name in OF_PIXELS and options.get("no_pixels"):
        hint = f"leave out {OptionName('no_pixels')}"
        raise RecipeError(OptionName("list"), f"{name!r} needs measured pixels", hint)


def view(
    dataset: str | Path | None = None,
    *,
    port: int | None = None,
    store_timeout: float | None = None,
) -> Viewer:
    """Return a viewer that serves a dataset to browsers of this machine until it is closed.

    Raises:
        DatasetError: the dataset does not exist, or one of its documents is missing or damaged.
        RecipeError: the port is in use or out of bounds, or this is a hosted notebook, whose ports
            browsers cannot reach.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.reporter.viewer.viewer import serve

    for variable, host in _HOSTED.items():
        if os.environ.get(variable):
            what = f"your browser cannot reach the ports of a {host} notebook"
            hint = "use shardprep report, which writes a page with pictures"
            raise RecipeError("shardprep view", what, hint)
    free_or_asked = 0 if port is None else number("port", port, OPTIONS["view"]["port"], int)
    with ExitStack() as ending:
        ending.enter_context(answering(store_timeout))
        return serve(dataset_at(dataset), free_or_asked, ending)


def bench(
    dataset: str | Path | None = None,
    *,
    split: str = "train",
    batch_size: int = 64,
    seconds: float = 2.0,
    rounds: int = 3,
    progress: Show | bool = False,
) -> Benchmark:
    """Measure and return the reading speed of plain tf.data and this package's readers.

    Raises:
        DatasetError: the dataset or the split does not exist, or the dataset has stacks.
        RecipeError: a number is out of bounds, or the dataset is in object storage.
    """
    from shardprep.benchmark.result import Settings
    from shardprep.benchmark.run import run_benchmark

    settings = Settings(
        batch_size=number("batch_size", batch_size, OPTIONS["bench"]["batch_size"], int),
        seconds=number("seconds", seconds, OPTIONS["bench"]["seconds"], float),
        rounds=number("rounds", rounds, OPTIONS["bench"]["rounds"], int),
    )
    folder = dataset_at(dataset).folder("shardprep bench")
    with watched(progress) as watch:
        return run_benchmark(folder, split, settings, watch.start)
