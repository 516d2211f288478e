"""The interface of a layout: what its module offers, and what it receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardprep.dataset.manifest import Manifest
from shardprep.dataset.schema import Schema
from shardprep.exporter.samples import ExportSample


@dataclass(frozen=True, slots=True)
class Export:
    """An export in progress."""

    work: Path
    """The folder that becomes the export when it is complete."""
    manifest: Manifest
    schema: Schema


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """The place of a shard in its dataset."""

    split: str
    index: int
    count: int
    """Number of shards of the split."""
    first: int
    """Number of records of the split before it."""


ShardWriter = Callable[[Export, ShardPlace, Iterable[ExportSample]], Callable[[], None]]
"""Writes one shard, and returns a function that commits it while the next one is written. The
file of `Layout.done` exists only when the whole shard is on the disk."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout."""

    write_shard: ShardWriter
    done: Callable[[Export, ShardPlace], str]
    """The file, below the working folder, that shows that a shard is written."""
    write_documents: Callable[[Export, Mapping[str, list[ShardPlace]]], None]
    """Writes what the export has once, after all shards, which are given by split."""
    record_bytes: int
    """Largest number of bytes that a record takes in addition to its stored bytes."""
    dots: bool = True
    """Whether file names may have dots before the suffix."""
    needs_boxes: bool = False
    """Whether the dataset must have boxes."""
    version: int = 1
    """Version of the written format; an export of another version is started again."""
