"""What verify finds. A problem names its file and, where they exist, record, offset and key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardprep.storage.url import ObjectUrl

Kind = Literal[
    "unreadable",
    "missing",
    "extra",
    "misplaced",
    "size",
    "hash",
    "count",
    "cut",
    "damaged",
    "example",
    "label",
    "image",
    "items",
    "index",
    "schema",
    "tfds",
    "manifest",
]
"""What kind of problem it is; `MEANINGS` says it in words."""

MEANINGS: Mapping[Kind, str] = {
    "unreadable": "files that the system cannot read",
    "missing": "files that are not there",
    "extra": "shards that do not belong here",
    "misplaced": "shards under the name of another",
    "size": "files longer or shorter than they were written",
    "hash": "files with other bytes than were written",
    "count": "shards with more or fewer records than were written",
    "cut": "records that are cut or cut off",
    "damaged": "records with a wrong checksum, or lost",
    "example": "records that break the schema",
    "label": "labels that no class has",
    "image": "images that do not decode to what the schema says",
    "items": "items.parquet disagrees with the shards or the manifest",
    "index": "an index disagrees with its shard",
    "schema": "schema.json is no schema, or not that of the shards",
    "tfds": "files by which TensorFlow Datasets opens the folder",
    "manifest": "the manifest is damaged or contradicts itself",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding."""

    kind: Kind
    file: str
    """Path inside the dataset folder."""
    what: str
    record: int | None = None
    """Number in its shard, from 0, of the record as it was written."""
    offset: int | None = None
    """Where the record starts in the file as it is, bytes; where it should, if it is gone."""
    key: str = ""
    """Of the record's image in the source, "" where nothing says it."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What verify has found in a dataset."""

    path: Path
    """The folder, or that with copies of the documents."""
    problems: tuple[Problem, ...]
    """By file, then record; those of the whole folder first."""
    unknown: tuple[str, ...]
    """Files that are no part of a dataset and do it no harm."""
    num_shards: int
    """Shard files read, and what they hold:"""
    num_records: int
    num_bytes: int
    intact: Mapping[str, str] = field(default_factory=dict)
    """Name of each shard of which the bytes are there → the file that holds them."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Name of each shard file in object storage → the ETag of what was checked."""
    elapsed_s: float = 0.0
    address: ObjectUrl | None = None
    """In object storage."""

    @property
    def location(self) -> str:
        """Where the dataset is, for people."""
        return str(self.address or self.path)
