"""`shardprep.inspect`: what a dataset holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at
from shardprep.api.progress import Watch
from shardprep.errors import DatasetError, OptionName, RecipeError
from shardprep.recipe.options import DATASET, RUN_OPTIONS, Option
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.describe import Facts
    from shardprep.dataset.open_dataset import OpenDataset

_NUM_PICTURES, _NUM_FINDINGS = 24, 3
_MOST_JUDGED = 100_000
"""Records up to which findings are made in a second."""
_SAID = {
    "leaks", "duplicates", "rejected", "damaged", "not-used", "unmatched-objects",
    "unlisted-images",
}  # fmt: skip
"""Findings that the numbers of `Facts` tell already."""


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
    """Return what a dataset holds, from its manifest and item table; of shards only the boxes.

    Raises:
        DatasetError: there is no such dataset, or a document of it is missing or damaged.
        RecipeError: `boxes` is no name of a PNG, or there is nothing to draw.

    """
    from shardprep.dataset.describe import read_facts

    with answering(store_timeout):
        opened = dataset_at(dataset)
        facts = read_facts(opened)
        if boxes is not None:
            _draw(opened, local_path(boxes))
        return replace(facts, findings=_first_findings(opened))


def _first_findings(dataset: OpenDataset) -> tuple[str, ...]:
    """Return what `shardprep.report` finds worst without pixels, and `facts` do not tell.

    There are none of a large dataset, where they take longer than a look at it should, and of one
    whose documents contradict each other: that is for `verify` to tell.
    """
    from shardprep.reporter.report import make_report
    from shardprep.reporter.report_data import ReportOptions

    if not 0 < dataset.manifest.totals.num_written <= _MOST_JUDGED:
        return ()
    silent = Watch(lambda _: None)
    try:
        found = make_report(dataset, ReportOptions(has_pixels=False), silent)
    except DatasetError:
        return ()
    return tuple(one.what for one in found.findings if one.name not in _SAID)[:_NUM_FINDINGS]


def _draw(dataset: OpenDataset, path: Path) -> None:
    """Write the contact sheet of a dataset."""
    from shardprep.dataset.annotated_pictures import contact_sheet
    from shardprep.storage.atomic_file import write_durably

    if not dataset.schema.annotations:
        raise RecipeError(
            OptionName("boxes"), f"{dataset} has neither boxes nor masks", "leave it out"
        )
    if path.suffix.lower() != ".png":
        raise RecipeError(
            OptionName("boxes"), f"{path} is no name of a PNG", f"{path.stem}.png is one"
        )
    sheet = contact_sheet(dataset, _NUM_PICTURES)
    try:
        write_durably(path, sheet)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise RecipeError(str(path), what, "name another file") from error
