"""Types of the keywords of `shardprep.build`.

`recipe.options` declares the options. The types here also accept other forms of a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

from shardprep.dataset.schema import TargetKind
from shardprep.image.annotation_types import Frame, RunOrder
from shardprep.image.spec import DepthRange, Fit, Format, Truncated, Window

Texts = str | list[str] | tuple[str, ...]
"""A list of texts, or one text; `classes`, `columns` and `null` split one text at commas."""


class _Frame(Protocol):
    """A table of pandas, polars, pyarrow, DuckDB or another library with Arrow's interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


Items = str | Path | _Frame | Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]
"""A table with a row for each image: a file, a data frame, rows or columns."""


Ids = str | Path | Iterable[str] | _Frame
"""A list of ids: a file, ids, or a data frame with a column that names images."""


class RecipeKeywords(TypedDict, total=False):
    """The options that can also be set in `shardprep.toml`, except `source` and `out`."""

    name: str
    version: str
    shards: int | None
    size: str | int | tuple[int, int] | None
    fit: Literal["auto", Fit]
    format: Format
    quality: int
    background: str | tuple[int, int, int]
    depth_range: str | DepthRange
    window: str | Window
    depth: int
    labels: str | Items
    target: Literal["auto", TargetKind]
    pivot: str
    separator: str
    classes: Texts
    class_map: str | Path | Mapping[str, str]
    relabel: str | Items
    join: Texts | Items | Sequence[Items]
    columns: Texts
    rows: str
    header: bool
    null: Texts
    boxes: str
    masks: str
    points: str
    target_image: str
    instances: bool
    mask_values: str
    unlisted: Literal["auto", "skip", "background", "train"]
    min_visible: str | float
    max_dropped: str | float
    max_clipped: str | float
    annotated: Literal["auto", Frame]
    annotated_size: Literal["file", "image"]
    crowds: Literal["ignore", "objects"]
    rle: Literal["auto", RunOrder]
    split: str | dict[str, float]
    group: str
    dedup: bool | Literal["near"]
    items: Items
    images: Texts
    stack: str
    tile: str | int | tuple[int, int] | None
    overlap: str | int | tuple[int, int]
    root: str
    include: Texts
    exclude: Texts
    exclude_list: Ids
    follow_links: bool
    zip_encoding: str
    schema: str
    seed: int
    max_pixels: int
    timeout: float
    max_members: int
    max_member_size: str | int
    max_unpacked: int | str | None
    max_ratio: int
    max_depth: int
    min_side: int
    max_aspect: float
    truncated: Truncated
    max_rejected: str | float


class BuildKeywords(RecipeKeywords, total=False):
    """All keywords of a build except `source` and `out`, including the options of one run."""

    save_rejected: str | Path | None
    workers: int | None
    reuse: str | Path | None
    items_out: str | Path | None
    refresh: bool
    overwrite: bool
    profile: bool
    store_timeout: float | None
