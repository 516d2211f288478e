"""The values that commands return, and the object that each prints of its own with `--json`.

docs/json.md is made of these types and of those that they name, with what is written below each
key. Values may be models: `print_json` writes those out. A key that is `NotRequired` says when it
is there; all others always are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, TypedDict

from shardprep.dataset.annotation_counts import Unmatched
from shardprep.dataset.manifest import Manifest, Totals
from shardprep.dataset.source_difference import SourceDifference
from shardprep.reporter.findings.finding import Finding
from shardprep.reporter.findings.quality import Histogram
from shardprep.verifier.problem import Problem

if TYPE_CHECKING:
    from shardprep.benchmark.result import Benchmark
    from shardprep.catalog.init.survey import Survey
    from shardprep.catalog.objects.combine import AnnotationFacts
    from shardprep.exporter.export import Exported
    from shardprep.reporter.findings.copies import Copies
    from shardprep.reporter.report import Report
    from shardprep.verifier.problem import Verification
    from shardprep.writer.build import PartResult
    from shardprep.writer.finalize import BuildResult
    from shardprep.writer.plan.plan import BuildPlan

__all__ = [
    "AnnotationFacts", "Benchmark", "BuildJson", "BuildPlan", "BuildResult",
    "ChannelsJson", "Copies", "CopiesJson", "DownloadJson", "ErrorJson", "Exported",
    "FetchJson", "LeftOutJson", "PartJson", "PartResult", "PlanJson", "Problem", "QualityJson",
    "RecordJson", "Report", "ReportJson", "SampleJson", "Survey", "Verification", "VerifyJson",
    "ViewJson",
]  # fmt: skip


class BuildJson(TypedDict):
    """The result of a build, or of the last step of one in parts."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    was_there: bool
    """It was finished before, with the same inputs and options: nothing was done."""
    num_new_items: int
    """Images that this run has done; others were done by an earlier one."""
    num_copied: int
    """Images among them that the dataset of `--reuse` had stored; the others were encoded."""
    elapsed_s: float
    """Wall time of this run."""
    manifest: Manifest
    """The dataset's `manifest.json`."""
    profile: NotRequired[dict[str, float]]
    """With `--profile`: seconds by stage; those of workers are added up over all of them."""


class PartJson(TypedDict):
    """The result of the build of a part."""

    path: str
    """Location of the dataset to be: a folder, or an address in object storage."""
    part: str
    """Number of the part and of all parts: "3/16"."""
    was_there: bool
    """The whole dataset is finished, with the same inputs and options: nothing was done."""
    num_shards: int
    """Shards of this part; all of them are done."""
    num_all_shards: int
    """Shards of the dataset."""
    num_new_items: int
    """Images that this run has done; others were done by an earlier one."""
    num_copied: int
    """Images among them that the dataset of `--reuse` had stored; the others were encoded."""
    elapsed_s: float
    """Wall time of this run."""


class PlanJson(TypedDict):
    """The plan of a build, or with `--part` of that part."""

    name: str
    """Name of the dataset."""
    part: NotRequired[str]
    """With `--part`: that part, as in "3/16"."""
    num_all_shards: NotRequired[int]
    """With `--part`: shards of the dataset."""
    splits: dict[str, int]
    """Shards by split."""
    images: dict[str, int]
    """Images by split."""
    labels: list[str]
    """Class names; a label is an index into them."""
    labels_from: str
    """Rule that found the labels, in words."""
    num_rows_without_image: int
    """Rows of the label table, and images in annotations, that the source does not have."""
    annotations_from: NotRequired[str]
    """With boxes or masks: their formats, in words."""
    object_classes: NotRequired[list[str]]
    """With boxes or masks: class names of objects and of the values of masks."""
    num_objects: NotRequired[dict[str, int]]
    """With boxes or masks: objects by class, as far as they are known."""
    dropped: NotRequired[dict[str, int]]
    """With boxes or masks: objects that are left out, by reason, as far as they are known."""
    unmatched: NotRequired[Unmatched | None]
    """With boxes or masks: annotations without an image, and images without an annotation; null
    without any."""
    num_masks: NotRequired[int]
    """With boxes or masks: mask files."""
    skipped: dict[str, int]
    """Inputs left out, by reason."""
    estimated_bytes: int
    """Estimated size of all shards."""


class VerifyJson(TypedDict):
    """The problems of a dataset. Where there are some, or differences, the command exits with 3."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    num_shards: int
    """Shard files read."""
    num_records: int
    """Records in them with a sound frame."""
    num_bytes: int
    """Size of them all."""
    elapsed_s: float
    """Wall time of the check."""
    problems: tuple[Problem, ...]
    """Problems by file, then record, those of the whole folder first; none if it is whole."""
    unknown: tuple[str, ...]
    """Files that are no part of a dataset and do it no harm."""
    repaired: NotRequired[tuple[Problem, ...]]
    """With `--repair`, where there was need: the problems before; `problems` are those left."""
    against: NotRequired[SourceDifference]
    """With `--against`: the differences from that source; they are no problems of the dataset."""


class RecordJson(TypedDict):
    """A record of a dataset."""

    key: str
    """The item's unique path."""
    split: str
    """Split that it is in."""
    record: int
    """Number in its split: `reader.Dataset(path, split)[record]`."""
    target: str
    """Class names, number or text; "" where there is none."""


class CopiesJson(TypedDict):
    """Images that are copies of each other."""

    kind: Literal["exact", "near"]
    """Byte for byte, or within a few bits of a perceptual hash."""
    is_leak: bool
    """They are in more than one split."""
    is_conflict: bool
    """Their targets differ."""
    bits: tuple[int, ...]
    """Bits in which the hash of each differs from that of the first; 0 for exact copies."""
    records: list[RecordJson]
    """First the one that stays where the others are left out."""


class QualityJson(TypedDict):
    """One property of all images that were looked at."""

    name: str
    """Kind of finding that it is behind."""
    what: str
    """The property in words."""
    threshold: float
    """Value beyond which an image is found."""
    is_below: bool
    """Images with lower values are found, else those with higher ones."""
    num_found: int
    """Images found."""
    histogram: Histogram
    """Values of all images."""


class ChannelsJson(TypedDict):
    """Mean and standard deviation of red, green and blue, of pixels in 0..1."""

    num_images: int
    """Images that they are of, decoded whole."""
    mean: tuple[float, float, float]
    """Means."""
    std: tuple[float, float, float]
    """Standard deviations."""


class ReportJson(TypedDict):
    """The facts of a report; the page is made of the same."""

    path: str
    """The page."""
    name: str
    """Name of the dataset."""
    version: str
    """Version of the dataset."""
    manifest_sha256: str
    """SHA-256 of the manifest, as that says it."""
    split: str | None
    """Records that were asked for by --split; null for all."""
    num_records: int
    """Number of these records."""
    num_measured: int
    """Records whose pixels were looked at."""
    findings: tuple[Finding, ...]
    """Findings, those that harm most first."""
    copies: list[CopiesJson]
    """Groups of copies: exact ones, then near ones."""
    qualities: list[QualityJson]
    """Properties of the images and of their originals."""
    channels: ChannelsJson | None
    """Mean and deviation; null where no pixels were looked at."""


class ViewJson(TypedDict):
    """A dataset that is served; printed when it is, while the command goes on."""

    url: str
    """Address to open; whoever has it is let in."""
    name: str
    """Name of the dataset."""
    version: str
    """Version of the dataset."""
    num_records: int
    """Records of the dataset."""
    num_items: int
    """Items that can be looked at: records, rejected and skipped inputs."""


class DownloadJson(TypedDict):
    """An archive from Kaggle."""

    path: str
    """The archive, or the folder in which Kaggle has mounted what it holds."""
    num_bytes: int
    """Size of the archive, 0 for a mounted folder."""
    is_mounted: bool
    """Kaggle has mounted it: nothing was downloaded."""


_From = TypedDict("_From", {"from": Annotated[str, "The dataset's address."]})
"""A key that Python has as a keyword."""


class LeftOutJson(TypedDict):
    """A shard that was not fetched."""

    where: str
    """Address of the shard."""
    what: str
    """Its fault."""


class FetchJson(_From):
    """A dataset that was copied from object storage."""

    path: str
    """Folder of the copy."""
    was_there: bool
    """The copy was whole before: nothing was got."""
    num_bytes: int
    """Size of all shards."""
    num_new_bytes: int
    """Size of the shards that came over the network in this run."""
    renewed: list[str]
    """Files that a copy had lost or that were damaged, fetched anew."""
    left_out: list[LeftOutJson]
    """With `--damaged`: shards that are not what the manifest says; the command exits with 3."""


class SampleJson(TypedDict):
    """The sample that was written."""

    path: str
    """The archive."""
    recipe: str
    """The `shardprep.toml` beside it."""
    num_bytes: int
    """Size of the archive."""


class ErrorFactsJson(TypedDict):
    """The reason for which there is no result."""

    where: str
    """A file, an address, an option or a command; "" where it is nothing of these."""
    what: str
    """The fault."""
    hint: str
    """The way out; "" where that is plain."""
    exit: int
    """The exit code."""


class ErrorJson(TypedDict):
    """The object that any command prints in place of its result."""

    error: ErrorFactsJson
    """The error."""
    totals: NotRequired[Totals]
    """Totals of a build that rejected more than `--max-rejected`."""
