"""All that is known of a dataset, as one value: the page, the JSON and the lists are made of it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.card import MOST_PICTURES, Card, Link
from shardprep.errors import ShardprepError
from shardprep.image.drawing import SIDE
from shardprep.progress import Watcher
from shardprep.reporter.findings import copies, imbalance, object_findings, quality
from shardprep.reporter.findings.finding import Finding, images, of_the_set, ranked
from shardprep.reporter.page.page import render
from shardprep.reporter.pixels.pixel_scan import (
    Channels,
    Measured,
    PassPlan,
    kept,
    measure,
    plan_pass,
)
from shardprep.reporter.pixels.stored_images import StoredImages, open_images
from shardprep.reporter.record_columns import Contents, read_contents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reader.selection.split_argument import AnySplit

    Ints = np.ndarray[Any, np.dtype[np.int64]]

MOST_MEASURED = 100_000
"""Images that are measured unless more are asked for; counts are always of all."""
MOST_PICTURED = 40
"""Classes that have pictures on the page: the largest."""


@dataclass(frozen=True, slots=True)
class Options:
    """Scope of a report."""

    sample: int = MOST_MEASURED
    """Images that are measured at most, a seeded sample of more."""
    has_pixels: bool = True
    """Whether images are decoded at all."""
    thumbs: int = 12
    """Pictures of each class; 0 for a page without pictures."""
    seed: int = 0
    """Seed of the samples."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Default of each option of a build; the page tells the options that differ from theirs."""


@dataclass(frozen=True, repr=False)
class Report(Card):
    """The whole of it."""

    contents: Contents
    options: Options
    findings: tuple[Finding, ...]
    copies: tuple[copies.Copies, ...]
    """Exact ones, then near ones, each by its first record."""
    qualities: tuple[quality.Quality, ...]
    measured: Measured | None
    """Result of the pixel pass, None without one."""
    pictured: tuple[int, ...]
    """Classes that have pictures on the page, in label order; −1 for the images without a class."""
    images: StoredImages | None
    """The shards, for pictures; None where none are wanted."""
    page: Path | None = None
    """Page that was written, None for none."""

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.contents.manifest.name

    @property
    def version(self) -> str:
        """Version of the dataset."""
        return self.contents.manifest.version

    @property
    def manifest_sha256(self) -> str:
        """SHA-256 of the manifest, as in its own `sha256`."""
        return self.contents.manifest.sha256

    @property
    def split(self) -> str | None:
        """Name of the split or selection that it is of, None for the whole dataset."""
        scope = self.contents.scope
        return None if scope is None else scope.selection.name

    @property
    def num_records(self) -> int:
        """Records of the dataset, or of its split."""
        return len(self.contents)

    @property
    def num_measured(self) -> int:
        """Number of records whose pixels were measured."""
        return 0 if self.measured is None else len(self.measured.numbers)

    @property
    def channels(self) -> Channels | None:
        """Sums over the pixels of images decoded whole; None where none were."""
        found = None if self.measured is None else self.measured.channels
        return found if found is not None and found.num_pixels else None

    def facts(self) -> dict[str, Any]:
        """Return the dataset, and its findings, those that harm most first."""
        findings: dict[str, Any] = {one.severity: {} for one in self.findings}
        for one in self.findings:
            findings[one.severity][one.name] = one.what
        looked = f"{self.num_measured:,} of {self.num_records:,} images"
        title = f"{self.name} {self.version}"
        if self.contents.scope is not None:
            title += f", {self.contents.scope.title}"
        # A notebook's server takes paths from its own folder alone.
        page = {} if self.page is None else {"page": Link(os.path.relpath(self.page))}
        return {"dataset": title, **page, "looked at": looked, **(findings or {"found": "nothing"})}

    def pictures(self) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
        """Yield some images from all over the dataset, small; those that are damaged left out."""
        if self.images is None:
            return
        numbers = np.unique(np.linspace(0, len(self.contents) - 1, MOST_PICTURES).astype(int))
        with contextlib.suppress(ShardprepError, OSError):  # shards that are gone by now
            for data in self.images.data(numbers.tolist()):
                with contextlib.suppress(Exception):  # decoders raise anything
                    yield self.images.pixels(data, SIDE)  # type: ignore[arg-type]

    def html(self) -> str:
        """Return the page, in ASCII: the same text for the same dataset and options."""
        return render(self).decode("ascii")

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys on the list of a finding, none where it was not found."""
        return next((one.keys for one in self.findings if one.name == name), ())


def make_report(
    dataset: OpenDataset,
    options: Options,
    watcher: Watcher,
    split: AnySplit | None = None,
) -> Report:
    """Return all that is known of a dataset, or of the records of a split of it.

    Its pixels are measured if that was not done before.

    Raises:
        DatasetError: a document is missing or damaged; with pixels, also a shard or an index; there
            is no such split, or it has no record.

    """
    contents = read_contents(dataset, split)
    selection = None if contents.scope is None else contents.scope.selection
    opened: list[StoredImages] = []

    def stored() -> StoredImages:
        if not opened:
            opened.append(open_images(dataset, selection))
        return opened[0]

    measured = None
    if options.has_pixels and len(contents):
        measured = measure(_plan(contents, options), stored, watcher)
    has_pictures = options.has_pixels and options.thumbs and len(contents)
    return _report(contents, options, measured, stored() if has_pictures else None)


def known_report(contents: Contents) -> Report:
    """Return what is known of a dataset without a look at its shards.

    That is what the documents say, and the pixel pass if one of the usual scope has been kept.
    """
    options = Options()
    measured = kept(_plan(contents, options)) if len(contents) else None
    return _report(contents, options, measured, None)


def _plan(contents: Contents, options: Options) -> PassPlan:
    wanted = np.where(np.isin(contents.label, _pictured(contents)), contents.label, -1)
    return plan_pass(contents.mark, wanted, options.sample, options.seed)


def _report(
    contents: Contents, options: Options, measured: Measured | None, shown: StoredImages | None
) -> Report:
    found = copies.exact_copies(contents)
    qualities = tuple(quality.original_qualities(contents))
    num_measured = 0
    if measured is not None:
        num_measured = int(measured.measures["decoded"].sum())
        found += copies.near_copies(contents, measured)
        qualities = (*quality.pixel_qualities(contents, measured), *qualities)
    findings = [
        *copies.copy_findings(contents, found, num_measured),
        *_damaged_records(contents, measured),
        *imbalance.input_findings(contents),
        *imbalance.class_findings(contents),
        *imbalance.property_findings(contents, imbalance.properties(contents, measured)),
        *object_findings.annotation_findings(contents, measured),
        *quality.quality_findings(contents, qualities, num_measured),
    ]
    return Report(
        contents,
        options,
        ranked(map(of_the_set, findings)),
        found,
        qualities,
        measured,
        _pictured(contents),
        shown,
    )


def _pictured(contents: Contents) -> tuple[int, ...]:
    """Return the classes that have pictures: the largest, in label order."""
    label = contents.label
    counts = np.bincount(label[label >= 0], minlength=len(contents.schema.labels))
    largest = np.argsort(-counts, kind="stable")[:MOST_PICTURED]
    return tuple(sorted(one for one in largest.tolist() if counts[one]))


def _damaged_records(contents: Contents, measured: Measured | None) -> list[Finding]:
    if measured is None or not measured.damaged:
        return []
    number = len(measured.damaged)
    what = (
        f"{images(number)} cannot be decoded, the first of them for: {measured.damaged[0].what}; "
        "shardprep verify --repair builds them again from the source"
    )
    keys = contents.keys_of(measured.damaged_numbers)
    return [Finding("damaged-records", "serious", number, len(measured.numbers), what, keys)]
