"""Make a report: read the documents, measure the pixels, collect and rank the findings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.card import Link
from shardprep.dataset.manifest import REPACKED
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.errors import counted
from shardprep.progress import Watch
from shardprep.reporter.findings import copies, labels, quality
from shardprep.reporter.findings.finding import Finding, of_the_set, ranked
from shardprep.reporter.record_columns import Contents, read_contents
from shardprep.reporter.report_data import MOST_MEASURED, MOST_PICTURED, ReportData, ReportOptions

if TYPE_CHECKING:
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.reporter.pixels import PassPlan, ScanResult, StoredImages


@dataclass(frozen=True, repr=False)
class Report(ReportData):
    """A report, with its HTML page; the result of `shardprep.report`."""

    page: Path | None = None

    def facts(self) -> dict[str, Any]:
        # A notebook server accepts only relative paths, below its own folder.
        page = {} if self.page is None else {"page": Link(os.path.relpath(self.page))}
        known = super().facts()
        return {"dataset": known.pop("dataset"), **page, **known}

    def html(self) -> str:
        """Return the page as ASCII HTML. Equal datasets and options give equal text."""
        from shardprep.reporter.page.page import render

        return render(self).decode("ascii")


def make_report(
    dataset: OpenDataset, options: ReportOptions, watcher: Watch, split: AnySplit | None = None
) -> Report:
    """Return the report on a dataset or a split. Measure pixels if `options.has_pixels`."""
    contents = read_contents(dataset, split)
    if not options.has_pixels or not len(contents):
        return _report(contents, options, None, None)
    from shardprep.reporter import pixels

    selection = None if contents.scope is None else contents.scope.selection

    @cache
    def stored() -> StoredImages:
        return pixels.open_images(dataset, selection)

    measured = pixels.measure(_plan(contents, options), stored, watcher)
    return _report(contents, options, measured, stored() if options.thumbs else None)


def known_report(contents: Contents) -> Report:
    """Return a report without reading shards. It has pixel measures only if they are cached."""
    from shardprep.reporter import pixels

    options = ReportOptions()
    measured = pixels.kept(_plan(contents, options)) if len(contents) else None
    return _report(contents, options, measured, None)


def measure_contents(contents: Contents, watcher: Watch) -> ScanResult:
    """Return the measures of all images; reports of up to `MOST_MEASURED` images use this cache."""
    from shardprep.reporter import pixels

    plan = _plan(contents, ReportOptions(sample=max(MOST_MEASURED, len(contents))))
    return pixels.measure(plan, lambda: pixels.open_images(contents.dataset), watcher)


def _plan(contents: Contents, options: ReportOptions) -> PassPlan:
    from shardprep.reporter import pixels

    wanted = np.where(np.isin(contents.label, _pictured(contents)), contents.label, -1)
    return pixels.plan_pass(contents.mark, wanted, options.sample, options.seed)


def _report(
    contents: Contents,
    options: ReportOptions,
    measured: ScanResult | None,
    shown: StoredImages | None,
) -> Report:
    copy_groups = copies.exact_copies(contents)
    qualities = tuple(quality.original_qualities(contents))
    num_measured = 0
    if measured is not None:
        num_measured = int(measured.measures["decoded"].sum())
        copy_groups += tuple(copies.near_copies(contents, measured))
        qualities = (*quality.pixel_qualities(contents, measured), *qualities)
    predicted = options.predictions
    wrong = () if predicted is None else tuple(labels.wrong_labels(contents, predicted))
    findings = [
        *copies.copy_findings(contents, copy_groups, num_measured),
        *_damaged_records(contents, measured),
        *labels.input_findings(contents),
        *labels.class_findings(contents),
        *labels.wrong_label_findings(contents, predicted, wrong),
        *labels.property_findings(contents, measured),
        *labels.annotation_findings(contents, measured),
        *quality.quality_findings(contents, qualities, num_measured),
    ]
    results = ranked(map(of_the_set, findings)), copy_groups, qualities, wrong, measured
    return Report(contents, options, *results, _pictured(contents), shown)


def _pictured(contents: Contents) -> tuple[int, ...]:
    label = contents.label
    counts = np.bincount(label[label >= 0], minlength=len(contents.schema.labels))
    largest = np.argsort(-counts, kind="stable")[:MOST_PICTURED]
    return tuple(sorted(one for one in largest.tolist() if counts[one]))


def _damaged_records(contents: Contents, measured: ScanResult | None) -> list[Finding]:
    if measured is None or not measured.damaged:
        return []
    number, (first, error) = len(measured.damaged), next(iter(measured.damaged.items()))
    way = "`shardprep verify DATASET --repair --source SOURCE` rebuilds damaged records"
    if REPACKED in contents.manifest.fingerprint.versions:
        way = "`shardprep repack`, run again with --overwrite, rebuilds damaged records"
    what = f"{counted(number, 'record', 'is', 'are')} damaged; {contents.key(first)}: {error.what}"
    keys = contents.keys_of([*measured.damaged])
    of = len(measured.numbers)
    return [Finding("damaged-records", "serious", number, of, f"{what}; {way}", keys)]
