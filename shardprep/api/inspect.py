"""`shardprep.inspect`: describe a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at
from shardprep.api.progress import Watch
from shardprep.errors import DatasetError, OptionName, RecipeError
from shardprep.recipe.options import DATASET, RUN_OPTIONS, Option
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.dataset.describe import Facts
    from shardprep.dataset.open_dataset import OpenDataset


_NUM_PICTURES, _NUM_FINDINGS = 24, 3
_MOST_RECORDS = 100_000
"""Maximum number of records for which findings take at most a second."""
_IN_FACTS = {
    "leaks", "duplicates", "rejected", "damaged", "not-used", "unmatched-objects",
    "unlisted-images",
}  # fmt: skip
"""Findings that `Facts` already shows as numbers."""

OPTIONS = {
    "dataset": DATASET,
    "boxes": Option(
        "Draw boxes and masks of some images, from all parts of the dataset, into this PNG.",
        metavar="FILE",
    ),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def inspect(
    dataset: str | Path | None = None,
    *,
    boxes: str | Path | None = None,
    store_timeout: float | None = None,
) -> Facts:
    """Return the splits, classes, totals and findings of a dataset.

    Reads the manifest and the item table. Shards are read only for boxes.

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
        return replace(facts, findings=_first_findings(opened))


def _first_findings(dataset: OpenDataset) -> tuple[str, ...]:
    """Return the most serious findings of `shardprep.report` without pixels that `Facts` lacks.

    Returns () for large datasets, where findings take too long, and for datasets whose documents
    contradict each other, which `verify` explains.
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
        raise RecipeError(
            OptionName("boxes"), f"{dataset} has neither boxes nor masks", "leave it out"
        )
    if path.suffix.lower() != ".png":
        raise RecipeError(
            OptionName("boxes"), f"{path} does not end with .png", f"write {path.stem}.png"
        )
    sheet = contact_sheet(dataset, _NUM_PICTURES)
    try:
        write_durably(path, sheet)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise RecipeError(str(path), what, "name another file") from error
