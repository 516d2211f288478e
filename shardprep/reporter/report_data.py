"""Results and options of a report. The page, the JSON and the key lists are made from them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.card import MOST_PICTURES, Card
from shardprep.errors import RecordError, ShardprepError, counted
from shardprep.reporter.findings.copies import Copies
from shardprep.reporter.findings.finding import Finding
from shardprep.reporter.findings.labels import WrongLabel
from shardprep.reporter.findings.quality import Quality
from shardprep.reporter.record_columns import Contents, Numbers

if TYPE_CHECKING:
    from shardprep.reporter.pixels import Channels, ScanResult, StoredImages

MOST_MEASURED = 100_000
"""Default maximum number of images to measure. Counts from the documents cover all images."""
MOST_PICTURED = 40


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a report: at most `sample` measured images, `thumbs` pictures of each class."""

    sample: int = MOST_MEASURED
    has_pixels: bool = True
    thumbs: int = 12
    seed: int = 0
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Default build options. The page lists options with other values."""
    predictions: Numbers | None = None
    """Predicted probability of each class, float[records, classes]; NaN if not predicted."""
    predicted: str = ""
    """Sentence that tells which predictions are used; "" without predictions."""


@dataclass(frozen=True, repr=False)
class ReportData(Card):
    """All results of a report, from which `page.render` draws the page."""

    contents: Contents
    options: ReportOptions
    findings: tuple[Finding, ...]
    copies: tuple[Copies, ...]
    """Groups of exact copies, near copies and scenes, each by lowest record number."""
    qualities: tuple[Quality, ...]
    wrong_labels: tuple[WrongLabel, ...]
    measured: ScanResult | None
    pictured: tuple[int, ...]
    """Classes with pictures on the page, in label order; () for a dataset without classes."""
    images: StoredImages | None

    @property
    def name(self) -> str:
        return self.contents.manifest.name

    @property
    def version(self) -> str:
        return self.contents.manifest.version

    @property
    def manifest_sha256(self) -> str:
        return self.contents.manifest.sha256

    @property
    def split(self) -> str | None:
        scope = self.contents.scope
        return None if scope is None else scope.selection.name

    @property
    def num_records(self) -> int:
        return len(self.contents)

    @property
    def num_measured(self) -> int:
        return 0 if self.measured is None else len(self.measured.numbers)

    @property
    def channels(self) -> Channels | None:
        """Sums over the images that were decoded in full; None without such images."""
        if self.measured is None or not self.measured.channels.num_pixels:
            return None
        return self.measured.channels

    def facts(self) -> dict[str, Any]:
        findings: dict[str, Any] = {}
        for finding in self.findings:
            findings.setdefault(finding.severity, {})[finding.name] = finding.what
        looked = f"{self.num_measured:,} of {counted(self.num_records, 'image')}"
        title = f"{self.name} {self.version}"
        if self.contents.scope is not None:
            title += f", {self.contents.scope.title}"
        return {"dataset": title, "looked at": looked, **(findings or {"found": "nothing"})}

    def pictures(self) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
        """Yield small images at even distances in the dataset, uint8[height, width, 3]."""
        if self.images is None:
            return
        from shardprep.image.drawing import SIDE

        numbers = np.unique(np.linspace(0, len(self.contents) - 1, MOST_PICTURES).astype(int))
        with contextlib.suppress(ShardprepError, OSError):  # the shards may have been deleted
            for payload in self.images.payloads(numbers.tolist()):
                with contextlib.suppress(Exception):  # decoders raise any type of exception
                    if not isinstance(payload, RecordError):
                        yield self.images.pixels(self.images.image(payload), SIDE)

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of the finding called `name`; () if the report has no such finding."""
        return next((one.keys for one in self.findings if one.name == name), ())
