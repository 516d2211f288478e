"""The problems that `verify` finds, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardprep.dataset.card import Card
from shardprep.errors import counted
from shardprep.storage.space import megabytes
from shardprep.storage.url import ObjectUrl

if TYPE_CHECKING:
    from shardprep.dataset.leak_check import LeakSearch

_FileKind = Literal["unreadable", "missing", "extra", "size", "hash", "count"]
_RecordKind = Literal["cut", "damaged", "example", "label", "image", "objects", "mask"]
_DocumentKind = Literal["items", "index", "schema", "tfds", "manifest"]
Kind = Literal[_FileKind, _RecordKind, _DocumentKind]
"""Kind of a problem; `MEANINGS` describes each."""

MEANINGS: Mapping[Kind, str] = {
    "unreadable": "files that cannot be read",
    "missing": "files that are missing",
    "extra": "shards that are not part of the dataset",
    "size": "files with another length than the build wrote",
    "hash": "files with other bytes than the build wrote",
    "count": "shards with more or fewer records than the build wrote",
    "cut": "records that are incomplete or missing at the end of a shard",
    "damaged": "records with a wrong checksum, or lost records",
    "example": "records that do not match the schema",
    "label": "labels outside the list of classes",
    "image": "images that do not decode to what the schema requires",
    "objects": "impossible boxes, flags or keypoints, or a wrong number of them",
    "mask": "masks that are not PNG files of the kind in the schema",
    "items": "items.parquet disagrees with the shards or the manifest",
    "index": "an index disagrees with its shard",
    "schema": "schema.json is not a schema, or not the schema of the shards",
    "tfds": "files for TensorFlow Datasets that are damaged or wrong",
    "manifest": "the manifest is damaged or contradicts itself",
}


class Fault(NamedTuple):
    """A problem of a record, without the file, number and offset of the record."""

    kind: Kind
    what: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a file of a dataset, or of a record in that file."""

    kind: Kind
    file: str
    """Path inside the dataset folder."""
    what: str
    record: int | None = None
    """Number of the written record in its shard, from 0."""
    offset: int | None = None
    """Offset of the record in the file, in bytes; for a missing record, where it should start."""
    key: str = ""
    """Key of the record's image in the source, or "" if it is unknown."""

    @property
    def meaning(self) -> str:
        return MEANINGS[self.kind]


def hash_problem(file: str, digest: str, expected: str) -> Problem:
    """Return the problem of a file whose SHA-256 is `digest` instead of `expected`."""
    what = f"has SHA-256 {digest[:12]}…, the manifest says {expected[:12]}…"
    return Problem("hash", file, what)


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Card):
    """Result of a verification: the problems, and the number of shards, records and bytes read."""

    path: Path
    problems: tuple[Problem, ...]
    """All problems, in order: documents, missing shards, shards by name and offset, indexes."""
    unknown: tuple[str, ...]
    """Harmless files that no build writes, and old or unfinished folders next to the dataset."""
    num_shards: int
    num_records: int
    num_bytes: int
    intact: Mapping[str, str] = field(default_factory=dict)
    """Name of each intact shard → its ETag in object storage; "" on a disk."""
    elapsed_s: float = 0.0
    address: ObjectUrl | None = None
    before: Verification | None = None
    """The check before a repair; None if nothing was repaired."""
    leaks: LeakSearch | None = None
    """Copies in different splits; None if they were not searched."""

    @property
    def repaired(self) -> tuple[Problem, ...] | None:
        return None if self.before is None else self.before.problems

    @property
    def location(self) -> str:
        return str(self.address or self.path)

    @property
    def by_kind(self) -> dict[Kind, list[Problem]]:
        by_kind = {kind: [one for one in self.problems if one.kind == kind] for kind in MEANINGS}
        return {kind: problems for kind, problems in by_kind.items() if problems}

    def facts(self) -> dict[str, Any]:
        lines: dict[str, Any] = {
            "at": self.location,
            "problems": {
                f"{kind}: {problems[0].meaning}": len(problems)
                for kind, problems in self.by_kind.items()
            }
            or "none",
        }
        if self.problems:
            lines["such as"] = [f"{one.file}: {one.what}" for one in self.problems]
        if self.repaired is not None:
            lines["repaired"] = f"{counted(len(self.repaired), 'problem')} before"
        if self.leaks is not None:
            lines["leaks"] = self.leaks.facts()
        if self.unknown:
            lines["other files"] = self.unknown
        records = f"{counted(self.num_shards, 'shard')}, {counted(self.num_records, 'record')}"
        return {**lines, "checked": f"{records}, {megabytes(self.num_bytes)}"}
