"""The options that commands take, a type each. The defaults shown are those of `Recipe`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from shardprep.storage.patience import DEFAULT_TIMEOUT_S, TIMEOUT_VARIABLE
from shardprep.storage.url import local_path

_OUTPUT, _IMAGES, _LABELS = "Output", "Images", "Labels"
_SPLITS, _CHOICE, _LIMITS, _RUN = "Splits", "Which images", "Limits", "This run"

Out = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of datasets.",
        show_default="tfrecords",
        rich_help_panel=_OUTPUT,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        help="Of the dataset.",
        show_default="from the source's name",
        rich_help_panel=_OUTPUT,
    ),
]
Version = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y.Z",
        help="Of the dataset.",
        show_default="1.0.0",
        rich_help_panel=_OUTPUT,
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        help="Of the largest split; the others get as many as keep shards equal.",
        show_default="by size, about 128 MiB each",
        rich_help_panel=_OUTPUT,
    ),
]
SchemaFile = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="NAME|FILE",
        help="Features of each example: a shipped schema or a JSON file.",
        show_default="the one that fits the labels",
        rich_help_panel=_OUTPUT,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="WxH",
        help="Of stored images in pixels, or none.",
        show_default="224x224",
        rich_help_panel=_IMAGES,
    ),
]
Fit = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="crop, pad, stretch, within (only shrinks) or none.",
        show_default="crop",
        rich_help_panel=_IMAGES,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="jpeg, png, raw (uint8) or keep, which stores the original bytes where they "
        "are a plain RGB JPEG or PNG of that size already.",
        show_default="jpeg",
        rich_help_panel=_IMAGES,
    ),
]
Quality = Annotated[
    int | None,
    typer.Option(
        help="Of JPEG, 1 to 100.",
        show_default="90",
        rich_help_panel=_IMAGES,
    ),
]
Background = Annotated[
    str | None,
    typer.Option(
        metavar="COLOUR",
        help="Behind transparency and beside padded images: white, black, grey, #RRGGBB or R,G,B.",
        show_default="white",
        rich_help_panel=_IMAGES,
    ),
]
MaxPixels = Annotated[
    int | None,
    typer.Option(
        help="Reject images with more, before decoding.",
        show_default="100000000",
        rich_help_panel=_IMAGES,
    ),
]
MinSide = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        help="Reject images with a shorter side.",
        show_default="1",
        rich_help_panel=_IMAGES,
    ),
]
MaxAspect = Annotated[
    float | None,
    typer.Option(
        metavar="RATIO",
        help="Reject images with a side more than this many times the other; 0 for any.",
        show_default="0",
        rich_help_panel=_IMAGES,
    ),
]
Truncated = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="Files that end before their image does: reject, or recover what is there.",
        show_default="reject",
        rich_help_panel=_IMAGES,
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="auto, folder, folder:N (Nth above the image), prefix (cat.12.jpg), "
        "regex:PATTERN with (?P<label>…), csv:FILE, csv:FILE:ID:LABEL, or none. FILE "
        "may be several, with commas; ID may be a path such as {folder}/{id}.jpg; "
        "LABEL may be several columns, or *.",
        show_default="auto",
        rich_help_panel=_LABELS,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="class, multilabel, regression, text or none.",
        show_default="told from the labels",
        rich_help_panel=_LABELS,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Between several classes in one cell.",
        show_default="found",
        rich_help_panel=_LABELS,
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Class names in label order.",
        show_default="those found, in natural order",
        rich_help_panel=_LABELS,
    ),
]
ClassMap = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="Other names for classes: a JSON or CSV file, or OLD=NEW,…",
        show_default=False,
        rich_help_panel=_LABELS,
    ),
]
Join = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE[:KEY]",
        help="Add the columns of another table, by a column that both have. May be repeated.",
        show_default=False,
        rich_help_panel=_LABELS,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Columns to keep as features of each example.",
        show_default=False,
        rich_help_panel=_LABELS,
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether tables have a first line of names; without, columns are called 1, 2, 3 …",
        show_default="header",
        rich_help_panel=_LABELS,
    ),
]
Null = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Cells that mean nothing, beside empty ones.",
        show_default="nan,NaN,<NA>",
        rich_help_panel=_LABELS,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="train=0.8,validation=0.1,test=0.1 cuts, the same share of every class in "
        "each; column:NAME[:CELL=SPLIT,…]; list:SPLIT=FILE,…; roots:SPLIT=FOLDER,…; "
        "or tables, by the CSV that lists the image.",
        show_default="by folders named train, val, test, else train",
        rich_help_panel=_SPLITS,
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="Never part images of one group: a column, folder:N, or regex:PATTERN whose "
        "first group it is.",
        show_default=False,
        rich_help_panel=_SPLITS,
    ),
]
Dedup = Annotated[
    bool | None,
    typer.Option(
        "--dedup",
        help="Leave out images that are there already, byte for byte.",
        show_default=False,
        rich_help_panel=_SPLITS,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Of the shuffle and the cut.",
        show_default="0",
        rich_help_panel=_SPLITS,
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Only what lies below this folder of the source.",
        show_default=False,
        rich_help_panel=_CHOICE,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Only what matches, such as *.png. May be repeated.",
        show_default=False,
        rich_help_panel=_CHOICE,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Not what matches, such as masks/*. May be repeated.",
        show_default=False,
        rich_help_panel=_CHOICE,
    ),
]
ExcludeList = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Not what this file names: a line each, or the first column of a CSV.",
        show_default=False,
        rich_help_panel=_CHOICE,
    ),
]
FollowLinks = Annotated[
    bool | None,
    typer.Option(
        "--follow-links",
        help="Follow links in a folder that lead outside of it; else they are skipped.",
        show_default=False,
        rich_help_panel=_CHOICE,
    ),
]
ZipEncoding = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of names in zips that are not UTF-8, such as cp932.",
        show_default="UTF-8 where that fits, else cp437",
        rich_help_panel=_CHOICE,
    ),
]
MaxMembers = Annotated[
    int | None,
    typer.Option(
        help="Of all archives of the source together.",
        show_default="10000000",
        rich_help_panel=_LIMITS,
    ),
]
MaxMemberSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Reject larger images, before reading them.",
        show_default="2GB",
        rich_help_panel=_LIMITS,
    ),
]
MaxUnpacked = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Of all that is packed in the source together.",
        show_default="10GB and 100 times the source",
        rich_help_panel=_LIMITS,
    ),
]
MaxRatio = Annotated[
    int | None,
    typer.Option(
        help="Unpacked bytes to a packed one, in what unpacks to more than 64 MB.",
        show_default="1000",
        rich_help_panel=_LIMITS,
    ),
]
MaxDepth = Annotated[
    int | None,
    typer.Option(
        help="Of archives in archives.",
        show_default="8",
        rich_help_panel=_LIMITS,
    ),
]
MaxRejected = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Fail if more images than this are bad.",
        show_default="5%",
        rich_help_panel=_RUN,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Reject an image that takes longer; 0 waits for ever.",
        show_default="60",
        rich_help_panel=_RUN,
    ),
]
SaveRejected = Annotated[
    Path | None,
    typer.Option(
        parser=local_path,
        metavar="DIR",
        help="Copy rejected images there, with a list of the reasons.",
        show_default=False,
        rich_help_panel=_RUN,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes that encode; on a cluster, shards at a time.",
        show_default="usable cores",
        rich_help_panel=_RUN,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What runs the work: local, the cores of this machine, or ray, a cluster that runs "
        "already (pip install 'shardprep\\[ray]').",
        rich_help_panel=_RUN,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Of the cluster's head, or auto for the cluster that this machine is in.",
        show_default="$RAY_ADDRESS",
        rich_help_panel=_RUN,
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Write only the I-th of N equal shares of the shards, apart from the others "
        "(array jobs); then: shardprep finalize.",
        show_default=False,
        rich_help_panel=_RUN,
    ),
]
Refresh = Annotated[
    bool,
    typer.Option("--refresh", help="Download again what is in the cache.", rich_help_panel=_RUN),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what is there.", rich_help_panel=_RUN)
]
Profile = Annotated[
    bool,
    typer.Option("--profile", help="Show where the time goes.", rich_help_panel=_RUN),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan, write nothing.", rich_help_panel=_RUN)
]
Dataset = Annotated[
    str | None,
    typer.Argument(
        help="The dataset's folder, or one above it; or such an address, s3://, gs:// or az://. By "
        "default what ./shardprep.toml builds, else the one dataset under ./tfrecords.",
        show_default=False,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object, of an error as well.", rich_help_panel=_RUN
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", help="No progress and no notices: only errors on stderr.", rich_help_panel=_RUN
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="Least that stderr tells: debug, info, warning or error. Progress is info; debug "
        "shows where an error was raised.",
        show_default="info",
        rich_help_panel=_RUN,
    ),
]


def _bound(seconds: float | None) -> float | None:
    """Let the time-out hold in this process and in all that it starts."""
    if seconds is not None:
        os.environ[TIMEOUT_VARIABLE] = f"{seconds:g}"
    return seconds


StoreTimeout = Annotated[
    float | None,
    typer.Option(
        min=1,
        max=86_400,
        metavar="SECONDS",
        callback=_bound,
        expose_value=False,
        help="Give up when object storage has not answered for so long.",
        show_default=f"${TIMEOUT_VARIABLE}, else {DEFAULT_TIMEOUT_S:g}",
        rich_help_panel=_RUN,
    ),
]
