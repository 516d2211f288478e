"""The shard, the unit of commit: a shard file under its final name is complete.

Beside the shards of an unfinished build lie their parts: one table of outcomes per shard, which
also says how long the shard is and what it hashes to. A shard counts as done only if both are
there and agree.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from shardprep import items
from shardprep.durable import DurableFile
from shardprep.stages import stage

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.chunk import EncodedChunk, Outcome
    from shardprep.plan import ShardPlan

PARTS_DIR = ".parts"
_UNSETTLED = ("unreadable", "crashed", "timeout")
"""Rejections that may be the fault of the run, a disk that was away say, and not of the image."""


class ShardSeal(NamedTuple):
    """What a complete shard file measures."""

    num_records: int
    num_bytes: int
    sha256: str
    """Hex."""


class ShardWriter:
    """Writes one shard from its chunks, in plan order."""

    def __init__(self, folder: Path, name: str, plan: ShardPlan) -> None:
        """Start the shard file in `folder`, under a temporary name."""
        self.name = name
        self.plan = plan
        self._folder = folder
        self._file = DurableFile(folder / name)
        self._hash = hashlib.sha256()
        self._num_bytes = 0
        self._outcomes: list[Outcome] = []

    @property
    def is_full(self) -> bool:
        """Whether every item of the plan has its outcome."""
        return len(self._outcomes) == len(self.plan.items)

    @stage("write")
    def append(self, chunk: EncodedChunk) -> None:
        """Add the next chunk of the plan."""
        self._file.write(chunk.data)
        self._hash.update(chunk.data)
        self._num_bytes += len(chunk.data)
        self._outcomes.extend(chunk.outcomes)

    @stage("write")
    def commit(self) -> None:
        """Write the part, then give the shard its name: from then on it is done."""
        num_records = sum(not outcome.kind for outcome in self._outcomes)
        seal = ShardSeal(num_records, self._num_bytes, self._hash.hexdigest())
        table = items.shard_table(self.name, self.plan, self._outcomes)
        items.write_part(part_path(self._folder, self.name), table, seal._asdict())
        self._file.commit()

    def abandon(self) -> None:
        """Remove what is not committed."""
        self._file.abandon()


def part_path(folder: Path, shard: str) -> Path:
    """Return where the outcomes of a shard are kept until the build is finished."""
    return folder / PARTS_DIR / f"{shard}.parquet"


def read_seal(folder: Path, shard: str) -> ShardSeal | None:
    """Return what the shard should measure, None where its part is missing or damaged."""
    seal = items.read_part_facts(part_path(folder, shard))
    return None if seal is None else ShardSeal(**seal)


def is_done(folder: Path, shard: str) -> bool:
    """Tell whether a shard of an unfinished build is there and is what its part says.

    One with rejections that another run may find unfounded is not done.
    """
    seal = read_seal(folder, shard)
    path = folder / shard
    if seal is None or not path.is_file() or path.stat().st_size != seal.num_bytes:
        return False
    if items.has_kinds(part_path(folder, shard), _UNSETTLED):
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == seal.sha256
