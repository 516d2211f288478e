"""Types of the objects that commands print with `--json`, if they differ from the returned value.

docs/json.md is generated from these types, other result types and their docstrings. Values may be
models, which `print_json` converts. The docstring of a `NotRequired` key says when the key is
present. `cli` imports most types of results from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, TypedDict

from shardprep.dataset.leak_check import LeakSearch
from shardprep.dataset.manifest import Manifest, Totals, Unmatched
from shardprep.reporter.findings.finding import Finding
from shardprep.reporter.findings.quality import Histogram
from shardprep.verifier.problem import Problem, Verification

if TYPE_CHECKING:
    from shardprep.benchmark.result import Benchmark
    from shardprep.catalog.objects.combine import AnnotationFacts
    from shardprep.catalog.survey import Survey
    from shardprep.exporter.export import Exported
    from shardprep.reporter.findings.copies import Copies
    from shardprep.reporter.leaks import Overlap
    from shardprep.reporter.report import Report
    from shardprep.writer.build import PartResult
    from shardprep.writer.finalize import BuildResult
    from shardprep.writer.plan.build_plan import BuildPlan

__all__ = [
    "AnnotationFacts", "Benchmark", "BuildJson", "BuildPlan", "BuildResult",
    "ChannelsJson", "Copies", "CopiesJson", "ErrorJson", "Exported",
    "FetchJson", "LeftOutJson", "Overlap", "PartJson", "PartResult", "PlanJson", "Problem",
    "QualityJson", "RecordJson", "Report", "ReportJson", "Survey", "Verification", "VerifyJson",
    "ViewJson",
]  # fmt: skip


class BuildJson(TypedDict):
    """The result of a build, or of `finalize`."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    was_there: bool
    """True if the dataset was already finished, with the same inputs and options."""
    num_new_items: int
    """Number of images processed by this run; earlier runs processed the others."""
    num_copied: int
    """How many of `num_new_items` were copied from the dataset of `--reuse`, not encoded."""
    elapsed_s: float
    """Wall time of this run in seconds."""
    manifest: Manifest
    """The dataset's `manifest.json`."""
    profile: NotRequired[dict[str, float]]
    """With `--profile`: seconds by stage, summed over all workers."""


class PartJson(TypedDict):
    """The result of `build --part`."""

    path: str
    """Location of the future dataset: a folder, or an address in object storage."""
    part: str
    """Number of the part and number of all parts: "3/16"."""
    was_there: bool
    """True if the whole dataset was already finished, with the same inputs and options."""
    num_shards: int
    """Number of shards of this part, all finished."""
    num_all_shards: int
    """Number of shards of the dataset."""
    num_new_items: int
    """Number of images processed by this run; earlier runs processed the others."""
    num_copied: int
    """How many of `num_new_items` were copied from the dataset of `--reuse`, not encoded."""
    elapsed_s: float
    """Wall time of this run in seconds."""


class PlanJson(TypedDict):
    """The plan of a build; with `--part`, the plan of that part."""

    name: str
    """Name of the dataset."""
    part: NotRequired[str]
    """With `--part`: the part, such as "3/16"."""
    num_all_shards: NotRequired[int]
    """With `--part`: number of shards of the dataset."""
    splits: dict[str, int]
    """Number of shards by split."""
    images: dict[str, int]
    """Number of images by split."""
    labels: list[str]
    """Class names; a label is an index into them."""
    labels_from: str
    """Rule that found the labels, in words."""
    num_rows_without_image: int
    """Number of rows of the label table, and annotations, whose image is not in the source."""
    annotations_from: NotRequired[str]
    """With boxes or masks: their formats, in words."""
    object_classes: NotRequired[list[str]]
    """With boxes or masks: class names of objects and of the values of masks."""
    num_objects: NotRequired[dict[str, int]]
    """With boxes or masks: number of objects by class, as far as known without decoding masks."""
    dropped: NotRequired[dict[str, int]]
    """With boxes or masks: number of dropped objects by reason, as far as known before encoding."""
    unmatched: NotRequired[Unmatched | None]
    """With boxes or masks: annotations and images that do not match; null if all match."""
    num_masks: NotRequired[int]
    """With boxes or masks: number of mask files."""
    skipped: dict[str, int]
    """Number of skipped inputs by reason."""
    estimated_bytes: int
    """Estimated size of all shards in bytes."""


class VerifyJson(TypedDict):
    """The problems of a dataset. With problems or leaks, the command exits with 3."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    num_shards: int
    """Number of shard files read."""
    num_records: int
    """Number of records with an intact frame in these shards."""
    num_bytes: int
    """Size of the shard files that were read, in bytes."""
    elapsed_s: float
    """Wall time of the check in seconds."""
    problems: tuple[Problem, ...]
    """Problems of documents, missing shards, shards by name and offset, then indexes."""
    unknown: tuple[str, ...]
    """Files that do not belong to the dataset. They do no harm."""
    repaired: NotRequired[tuple[Problem, ...]]
    """With `--repair`: problems before the repair, if any; `problems` has the remaining ones."""
    leaks: NotRequired[LeakSearch]
    """With `--leaks`, if the dataset has no problem: copies of images in different splits."""


class RecordJson(TypedDict):
    """A record of a dataset."""

    key: str
    """The item's unique path."""
    split: str
    """Split of the record."""
    record: int
    """Number in its split: `reader.Dataset(path, split)[record]`."""
    target: str
    """Class names, number or text; "" if unlabelled."""


class CopiesJson(TypedDict):
    """Images that are copies of each other, or show one scene."""

    kind: Literal["exact", "near", "scene"]
    """`exact`: equal byte for byte; `near`: one picture; `scene`: one scene, with changes."""
    is_leak: bool
    """True if the images are in more than one split."""
    is_conflict: bool
    """True if the targets of the images differ."""
    changes: tuple[str, ...]
    """How each image differs from the first image, such as `mirrored, cropped to 82%`."""
    records: list[RecordJson]
    """The copies; first the copy to keep if the others are left out."""


class QualityJson(TypedDict):
    """One measured property of all images."""

    name: str
    """Name of the finding that lists the images."""
    what: str
    """The property in words."""
    threshold: float
    """Limit beyond which an image is listed."""
    is_below: bool
    """True if images with lower values are listed; otherwise images with higher values."""
    num_found: int
    """Number of listed images."""
    histogram: Histogram
    """Values of all images."""


class ChannelsJson(TypedDict):
    """Mean and standard deviation of red, green and blue, of pixels in 0..1."""

    num_images: int
    """Number of measured images."""
    mean: tuple[float, float, float]
    """Mean of each channel."""
    std: tuple[float, float, float]
    """Standard deviation of each channel."""


class ReportJson(TypedDict):
    """The facts of a report, which the page shows too."""

    path: str
    """Path of the page."""
    name: str
    """Name of the dataset."""
    version: str
    """Version of the dataset."""
    manifest_sha256: str
    """SHA-256 of the manifest, which is also its key `sha256`."""
    split: str | None
    """Value of --split; null for all records."""
    num_records: int
    """Number of records in the report."""
    num_measured: int
    """Number of records whose pixels were measured."""
    findings: tuple[Finding, ...]
    """Findings, the most harmful first."""
    copies: list[CopiesJson]
    """Groups of images: exact copies, near copies, then images of one scene."""
    qualities: list[QualityJson]
    """Properties of the images and of their originals."""
    channels: ChannelsJson | None
    """Mean and deviation; null if no pixels were measured."""


class ViewJson(TypedDict):
    """A dataset that is being served; printed when the server is ready."""

    url: str
    """Address to open, with a secret token."""
    name: str
    """Name of the dataset."""
    version: str
    """Version of the dataset."""
    num_records: int
    """Number of records of the dataset."""
    num_items: int
    """Number of items on the pages: records, rejected and skipped inputs."""


_From = TypedDict("_From", {"from": Annotated[str, "The dataset's address."]})
"""`from` is a keyword of Python, so the class syntax cannot declare it."""


class LeftOutJson(TypedDict):
    """A shard that was not fetched."""

    where: str
    """Address of the shard."""
    what: str
    """The problem."""


class FetchJson(_From):
    """A dataset that was copied from object storage."""

    path: str
    """Folder of the copy."""
    was_there: bool
    """True if the copy was already complete."""
    num_bytes: int
    """Size of all shards in bytes."""
    num_new_bytes: int
    """Size of the shards downloaded in this run, in bytes."""
    renewed: list[str]
    """Missing or damaged files of a copy that were downloaded again."""
    left_out: list[LeftOutJson]
    """With `--damaged`: shards that do not match the manifest. The command then exits with 3."""


class ErrorFactsJson(TypedDict):
    """The error that ended the command."""

    where: str
    """The file, address, option or command with the problem; "" if unknown."""
    what: str
    """The problem."""
    hint: str
    """What to do; "" if it is obvious."""
    exit: int
    """The exit code: 1 error, 2 wrong usage, 130 interrupted."""


class ErrorJson(TypedDict):
    """The object that a command prints instead of its result."""

    error: ErrorFactsJson
    """The error."""
    totals: NotRequired[Totals]
    """Totals of a build that rejected more than `--max-rejected`."""
