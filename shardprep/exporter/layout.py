"""A layout: what each module that writes one offers, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.exporter.samples import Sample

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema


@dataclass(frozen=True, slots=True)
class Export:
    """A dataset on its way into a layout."""

    work: Path
    """The folder that becomes the export when it is complete."""
    manifest: Manifest
    schema: Schema


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a shard in its dataset."""

    split: str
    index: int
    count: int
    """Shards of the split."""
    first: int
    """Records of the split before it."""


ShardWriter = Callable[[Export, Place, Iterable[Sample]], Callable[[], None]]
"""Writes one shard, and returns what commits it, beside the next one: under the name of
`Layout.done` there is a file only when all of the shard is on the disk."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout."""

    write_shard: ShardWriter
    done: Callable[[Export, Place], str]
    """The file, below the working folder, by which a shard is known to be written."""
    write_documents: Callable[[Export, Mapping[str, list[Place]]], None]
    """Writes what the whole export has once; the shards, by split, are written."""
    record_bytes: int
    """Bytes at most that a record takes beside those it is stored in."""
    dots: bool = True
    """Whether file names may have dots before the suffix."""
    needs_boxes: bool = False
    """Whether it is for sets with boxes alone."""
    version: int = 1
    """Version of what it writes: an export of another is begun anew."""
