"""What each command prints with `--json`: one object, and every key of it.

docs/json.md is made of these types and of those that they name, with what is written below each
key. Values may be models: `print_json` writes those out. A key that is `NotRequired` says when it
is there; all others always are.
"""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from shardprep.bench.result import Round, Settings, Timeline
from shardprep.manifest import Manifest, Totals
from shardprep.report.facts import Example, Range
from shardprep.schema import Schema
from shardprep.survey import Survey
from shardprep.verify.problem import Problem


class BuildJson(TypedDict):
    """What a build, or the last step of one in parts, has come to."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    was_there: bool
    """It was finished before, with the same inputs and options: nothing was done."""
    num_new_items: int
    """Images that this run has encoded; others were done by an earlier one."""
    elapsed_s: float
    manifest: Manifest
    """The dataset's `manifest.json`."""
    profile: NotRequired[dict[str, float]]
    """With `--profile`: seconds by stage; those of workers are added up over all of them."""


class PartJson(TypedDict):
    """What the build of a part has come to."""

    path: str
    """Where the dataset will be: a folder, or an address in object storage."""
    part: str
    """As `--part` takes it: "3/16"."""
    was_there: bool
    """The whole dataset is finished, with the same inputs and options: nothing was done."""
    num_shards: int
    """Of this part; all of them are done."""
    num_all_shards: int
    """Of the dataset."""
    num_new_items: int
    """Images that this run has encoded; others were done by an earlier one."""
    elapsed_s: float


class PlanJson(TypedDict):
    """What a build would do; with `--part`, what that part would."""

    name: str
    """Of the dataset."""
    part: NotRequired[str]
    """With `--part`: "3/16"."""
    num_all_shards: NotRequired[int]
    """With `--part`: of the dataset."""
    splits: dict[str, int]
    """Shards by split."""
    images: dict[str, int]
    """Images by split."""
    labels: list[str]
    """Class names; a label is an index into them."""
    labels_from: str
    """How labels are found, in words."""
    num_rows_without_image: int
    """Rows of the label table for which the source has no image."""
    skipped: dict[str, int]
    """Inputs left out, by reason."""
    estimated_bytes: int
    """Of all shards."""


class InspectJson(TypedDict):
    """What a dataset holds."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    manifest: Manifest
    """The dataset's `manifest.json`."""
    schema: Schema
    """The dataset's `schema.json`."""
    formats: dict[str, int]
    """Written images by the format they came in, most frequent first."""
    original_width: Range | None
    """Pixels, of the written images; null where there are none."""
    original_height: Range | None
    """Likewise."""
    target: Range | None
    """Of the numbers to learn, in a regression set."""
    rejections: dict[str, tuple[Example, ...]]
    """A few examples for each kind of rejection."""


class VerifyJson(TypedDict):
    """What is wrong with a dataset. Where there are problems, the command exits with 3."""

    path: str
    """The dataset: a folder, or an address in object storage."""
    num_shards: int
    """Shard files read."""
    num_records: int
    """That they hold."""
    num_bytes: int
    """That they hold."""
    elapsed_s: float
    problems: tuple[Problem, ...]
    """By file, then record; those of the whole folder first. Empty: the dataset is what was built.
    """
    unknown: tuple[str, ...]
    """Files that are no part of a dataset and do it no harm."""
    repaired: NotRequired[tuple[Problem, ...]]
    """With `--repair`, where there was need: the problems before; `problems` are those left."""


class WayJson(TypedDict):
    """One way to read."""

    name: str
    problem: str
    """Why it cannot run here; then there are no rounds."""
    yields: str
    """The dtype of its images."""
    peak_bytes: int
    """The most memory its process has held, libraries included."""
    rounds: tuple[Round, ...]
    images_s: float
    """Images a second after the first batch, median of the rounds."""
    images_s_core: float
    """Images for each second that one core was at work, median of the rounds."""
    bytes_s: float
    """Bytes of shards a second."""
    first_batch_s: float
    """Median of the rounds."""


class BenchJson(TypedDict):
    """What was read, and how fast."""

    path: str
    split: str
    num_records: int
    """Of the shards that were read."""
    num_bytes: int
    """Of the shards that were read."""
    settings: Settings
    num_cores: int
    ways: list[WayJson]
    timelines: tuple[Timeline, ...]
    """With `--plot`."""
    step_s: float
    """What a step takes in the timelines."""


class DownloadJson(TypedDict):
    """An archive from Kaggle."""

    path: str
    num_bytes: int


_From = TypedDict("_From", {"from": Annotated[str, "The dataset's address."]})
"""A key that Python has as a keyword."""


class LeftOutJson(TypedDict):
    """A shard that was not fetched."""

    where: str
    """Its address."""
    what: str
    """What is wrong with it."""


class FetchJson(_From):
    """A dataset that was copied from object storage."""

    path: str
    """Its folder."""
    was_there: bool
    """The copy was whole before: nothing was got."""
    num_bytes: int
    """Of all shards."""
    num_new_bytes: int
    """That came over the network in this run."""
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
    """Of the archive."""


class ErrorFactsJson(TypedDict):
    """Why there is no result."""

    where: str
    """A file, an address, an option or a command; "" where it is nothing of these."""
    what: str
    """What is wrong with it."""
    hint: str
    """What to do; "" where that is plain."""
    exit: int
    """The exit code."""


class ErrorJson(TypedDict):
    """What any command prints in place of its result."""

    error: ErrorFactsJson
    totals: NotRequired[Totals]
    """Of a build that rejected more than `--max-rejected`: what became of all inputs."""


RESULTS: dict[str, tuple[type, ...]] = {
    "build": (BuildJson, PartJson, PlanJson),
    "finalize": (BuildJson,),
    "init": (Survey,),
    "inspect": (InspectJson,),
    "bench": (BenchJson,),
    "verify": (VerifyJson,),
    "sample": (SampleJson,),
    "download": (DownloadJson,),
    "fetch": (FetchJson,),
}
"""By command, in the order of `--help`; those of `build`: a whole one, `--part`, `--dry-run`."""
