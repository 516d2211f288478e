"""The results of a report as plain data: the page, the JSON and the lists are made from it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.card import MOST_PICTURES, Card
from shardprep.errors import ShardprepError
from shardprep.image.drawing import SIDE
from shardprep.reporter.findings.copies import Copies
from shardprep.reporter.findings.finding import Finding
from shardprep.reporter.findings.quality import Quality
from shardprep.reporter.pixels.pixel_scan import Channels, Measured
from shardprep.reporter.pixels.stored_images import StoredImages
from shardprep.reporter.record_columns import Contents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_MEASURED = 100_000
"""Images that are measured unless more are asked for; counts are always of all."""
MOST_PICTURED = 40
"""Classes that have pictures on the page: the largest."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
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
class ReportData(Card):
    """All results of a report. `page.render` draws the page from it."""

    contents: Contents
    options: ReportOptions
    findings: tuple[Finding, ...]
    copies: tuple[Copies, ...]
    """Exact ones, then near ones, each by its first record."""
    qualities: tuple[Quality, ...]
    measured: Measured | None
    """Result of the pixel pass, None without one."""
    pictured: tuple[int, ...]
    """Classes that have pictures on the page, in label order; −1 for the images without a class."""
    images: StoredImages | None
    """The shards, for pictures; None where none are wanted."""

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
        return {"dataset": title, "looked at": looked, **(findings or {"found": "nothing"})}

    def pictures(self) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
        """Yield some images from all over the dataset, small; those that are damaged left out."""
        if self.images is None:
            return
        numbers = np.unique(np.linspace(0, len(self.contents) - 1, MOST_PICTURES).astype(int))
        with contextlib.suppress(ShardprepError, OSError):  # shards that are gone by now
            for data in self.images.data(numbers.tolist()):
                with contextlib.suppress(Exception):  # decoders raise anything
                    yield self.images.pixels(data, SIDE)  # type: ignore[arg-type]

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys on the list of a finding, none where it was not found."""
        return next((one.keys for one in self.findings if one.name == name), ())
