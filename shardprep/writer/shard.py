"""The shard, the unit of commit: a shard file under its final name is complete.

Until the build is finished a part is kept of every shard: its table of outcomes, which also says
how long the shard is and what it hashes to. A shard counts as done only if both are there and
agree. A build that another one has taken the place of commits nothing more.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from shardprep.dataset.grammar import Count, Sha256  # noqa: TC001 - pydantic reads them
from shardprep.dataset.json_document import DocumentError, parse_document
from shardprep.dataset.manifest import Fingerprint
from shardprep.errors import BuildError
from shardprep.profiling import stage
from shardprep.storage.folder import Written
from shardprep.writer import receipt

if TYPE_CHECKING:
    import pyarrow as pa

    from shardprep.storage.folder import Folder
    from shardprep.writer.chunk import EncodedChunk
    from shardprep.writer.shard_plan import ShardPlan

PARTS_DIR = ".parts"
BUILD_FILE = ".build.json"
_UNSETTLED = ("unreadable", "crashed", "timeout")
"""Rejections that may be the fault of the run, a disk that was away say, and not of the image."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a build puts what it makes."""

    shards: Folder
    """Also of the documents: what the dataset will consist of."""
    parts: Folder
    """Of what is needed until then; may be the same."""
    build: str = ""
    """The hash of `BUILD_FILE`: a build tells its parts from another's by it; "" tells nothing."""

    def check_build(self) -> None:
        """See that this build is still the one that is at work here.

        Raises:
            BuildError: another has taken its place, or has finished it.

        """
        if self.build and build_hash(self.parts.read(BUILD_FILE) or b"") != self.build:
            raise self.replaced()

    def is_replaced(self) -> bool:
        """Tell whether another build is at work here, in the place of this one."""
        there = self.parts.read(BUILD_FILE)
        return bool(self.build) and there is not None and build_hash(there) != self.build

    def replaced(self) -> BuildError:
        """Return what to say then."""
        return BuildError(
            str(self.parts),
            "another build has taken the place of this one",
            "end one of them, or give another --name or --version",
        )


class ShardTask(NamedTuple):
    """One shard to be written: the slice of the plan that travels to a worker."""

    name: str
    """Of its file."""
    plan: ShardPlan


class ShardSeal(NamedTuple):
    """What a complete shard file measures."""

    num_records: Count
    num_bytes: Count
    sha256: Sha256


class _Facts(BaseModel):
    """The facts that stand in a part beside its table."""

    model_config = ConfigDict(frozen=True)

    seal: ShardSeal
    mark: str
    build: str = ""


class ShardPart(NamedTuple):
    """What is known of a complete shard."""

    seal: ShardSeal
    mark: str
    """By which the folder tells its bytes again."""
    table: pa.Table
    """A row for each item, written or rejected."""
    build: str = ""
    """Of the folders it was written to."""


class ShardWriter:
    """Writes one shard from its chunks, in plan order."""

    def __init__(self, folders: Folders, task: ShardTask) -> None:
        """Start the shard file, under a temporary name."""
        self.task = task
        self._folders = folders
        self._file = folders.shards.new_file(task.name)
        self._hash = hashlib.sha256()
        self._rows = receipt.ShardRows(task.name, task.plan)

    @property
    def is_full(self) -> bool:
        """Whether every item of the plan has its outcome."""
        return self._rows.are_all

    @stage("write")
    def append(self, chunk: EncodedChunk) -> None:
        """Add the next chunk of the plan."""
        self._file.write(chunk.data)
        self._hash.update(chunk.data)
        self._rows.add(chunk.outcomes)

    def commit(self) -> None:
        """Give the shard its name, then write its part: from then on it is done."""
        rows = self._rows
        seal = ShardSeal(rows.num_records, rows.num_bytes, self._hash.hexdigest())
        self._folders.check_build()
        mark = self._file.commit() or ""
        part = ShardPart(seal, mark, rows.table(), self._folders.build)
        write_part(self._folders.parts, self.task.name, part)

    def abandon(self) -> None:
        """Remove what is not committed."""
        self._file.abandon()


def read_build(parts: Folder) -> Fingerprint | None:
    """Return what the build is of that was begun, None where there is none.

    Raises:
        BuildError: what says so is damaged.

    """
    data = parts.read(BUILD_FILE)
    return None if data is None else parse_build(parts, data)


def parse_build(parts: Folder, data: bytes) -> Fingerprint:
    """Return the fingerprint in the bytes of a `BUILD_FILE`. Raises as `read_build`."""
    try:
        return parse_document(Fingerprint, data)
    except DocumentError as error:
        where = parts.located(BUILD_FILE)
        raise BuildError(
            where, f"is damaged ({error})", f"remove {parts} to start again"
        ) from error


def build_hash(build: bytes) -> str:
    """Return by what a build is told from others: the hash of its `BUILD_FILE`, hex."""
    return hashlib.sha256(build).hexdigest()


def part_name(shard: str) -> str:
    """Return where the part of a shard is kept."""
    return f"{PARTS_DIR}/{shard}.parquet"


def write_part(parts: Folder, shard: str, part: ShardPart) -> None:
    """Keep the part of a shard."""
    facts = {"seal": part.seal._asdict(), "mark": part.mark, "build": part.build}
    receipt.write_receipt(parts, part_name(shard), part.table, facts)


def read_part(parts: Folder, shard: str, build: str = "") -> ShardPart | None:
    """Return the part of a shard, None where it is missing, damaged or of another build."""
    part = receipt.read_receipt(parts, part_name(shard))
    if part is None:
        return None
    try:
        facts = _Facts.model_validate(part.facts)
    except ValidationError:
        return None
    is_ours = not build or facts.build in ("", build)
    seal = facts.seal
    if not is_ours or not receipt.are_rows_of(part.table, shard, seal.num_records, seal.num_bytes):
        return None
    return ShardPart(seal, facts.mark, part.table, facts.build)


def is_whole(folders: Folders, shard: str) -> bool:
    """Tell whether a shard of an unfinished build is there and is what its part says."""
    part = read_part(folders.parts, shard, folders.build)
    return part is not None and _holds(folders, shard, part)


def is_done(folders: Folders, shard: str) -> bool:
    """Tell whether a shard is whole and need not be made again.

    One with rejections that another run may find unfounded is not done.
    """
    part = read_part(folders.parts, shard, folders.build)
    if part is None or receipt.has_kinds(part.table, _UNSETTLED):
        return False
    return _holds(folders, shard, part)


def _holds(folders: Folders, shard: str, part: ShardPart) -> bool:
    written = Written(part.seal.num_bytes, part.seal.sha256, part.mark)
    return folders.shards.holds(shard, written)
