"""The work of a worker: items in, framed records and one outcome per item out.

The same `encode_chunk` serves every engine. It reads the source and touches nothing else.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shardprep import profiling
from shardprep.dataset import schema as names
from shardprep.dataset import tfrecord
from shardprep.image.process import ProcessedImage, Rejection, process_image
from shardprep.profiling import stage
from shardprep.source.extent import MemberError
from shardprep.source.range_reads import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardprep.catalog.catalog import Item
    from shardprep.dataset.schema import Schema
    from shardprep.image.process import RejectionKind
    from shardprep.image.spec import ImageSpec


class Outcome(NamedTuple):
    """The outcome of one item: a record, or a rejection."""

    kind: str
    """Kind of the rejection; "" for a written item."""
    reason: str
    """Reason of the rejection, or damage of a written image; "" for none."""
    length: int
    """Size of its framed record in bytes, 0 for a rejected item."""
    height: int
    width: int
    """Height and width of the original in pixels, 0 where its header cannot be read."""
    format: str
    num_bytes: int
    """Size of the original in bytes."""
    sha256: str
    """SHA-256 of the original, hex; "" where it cannot be read."""
    is_dark: bool = False
    """Whether a written image is nearly black."""


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A run of items of one shard."""

    shard: str
    start: int
    """Position of the first item in the shard's plan."""
    items: tuple[Item, ...]

    def __str__(self) -> str:
        last = self.start + len(self.items) - 1
        return f"{self.shard}, items {self.start}-{last} (from {self.items[0].key})"

    def apart(self) -> Iterator[ChunkTask]:
        """Yield a task for each item alone, in order."""
        for i, item in enumerate(self.items, self.start):
            yield ChunkTask(self.shard, i, (item,))


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The records and outcomes of a chunk."""

    data: bytes | bytearray
    """The framed records of the written items, in plan order, back to back."""
    outcomes: tuple[Outcome, ...]
    """Outcome of each item, in plan order."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage, if they are counted."""

    @classmethod
    def joined(cls, pieces: Sequence[EncodedChunk]) -> EncodedChunk:
        """Return the pieces of one chunk, in plan order, as one."""
        if len(pieces) == 1:
            return pieces[0]
        outcomes = tuple(outcome for piece in pieces for outcome in piece.outcomes)
        return cls(b"".join(piece.data for piece in pieces), outcomes)

    @classmethod
    def lost(cls, item: Item, kind: RejectionKind, reason: str) -> EncodedChunk:
        """Return the chunk of one item that no worker could finish."""
        return cls(b"", (_unread(item, kind, reason),))


@dataclass(frozen=True, slots=True)
class ChunkEncoder:
    """Encodes items to records; every worker is given one."""

    spec: ImageSpec
    schema: Schema
    columns: tuple[str, ...] = ()
    """Names of the features that `Item.columns` holds."""
    is_timed: bool = False
    """Whether to count the seconds of each stage."""

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Return the records of the task's items; a bad image is an outcome, never an error.

        `before_item` is called before each of them: an engine that gives an item only so much
        time starts its clock anew.
        """
        if not self.is_timed:
            return encode_chunk(task.items, self, before_item)
        profiling.start()
        before = profiling.taken()
        start = time.perf_counter()
        chunk = encode_chunk(task.items, self, before_item)
        seconds = profiling.taken()
        seconds["other"] = time.perf_counter() - start - sum(seconds.values())
        profiling.add(before)
        return EncodedChunk(chunk.data, chunk.outcomes, seconds)


def encode_chunk(
    items: tuple[Item, ...], encoder: ChunkEncoder, before_item: Callable[[], None]
) -> EncodedChunk:
    """Read, process, encode and frame the items, in order."""
    records: list[bytes] = []
    outcomes: list[Outcome] = []
    for item, _ in zip(items, read_ahead([item.extent.span for item in items]), strict=True):
        before_item()
        record, outcome = _encode_item(item, encoder)
        records.append(record)
        outcomes.append(outcome)
    return EncodedChunk(b"".join(records), tuple(outcomes))


def _encode_item(item: Item, encoder: ChunkEncoder) -> tuple[bytes, Outcome]:
    try:
        data = _read(item)
    except MemberError as error:
        return b"", _unread(item, "unreadable", str(error))
    except MemoryError:
        return b"", _unread(item, "crashed", "is larger than the memory a worker may use")
    image = process_image(data, encoder.spec)
    original = image.original
    facts = (original.height, original.width, original.format, len(data))
    sha256 = _sha256(data)
    if isinstance(image, Rejection):
        return b"", Outcome(image.kind, image.reason, 0, *facts, sha256)
    record = _framed(item, image, encoder)
    return record, Outcome("", image.damage, len(record), *facts, sha256, image.is_dark)


@stage("read")
def _read(item: Item) -> bytes:
    return item.extent.read()


@stage("hash")
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@stage("frame")
def _framed(item: Item, image: ProcessedImage, encoder: ChunkEncoder) -> bytes:
    target = item.target
    values: dict[str, bytes | float | tuple[int, ...]] = {
        names.IMAGE: image.data,
        names.FILENAME: item.key.encode(),
        names.HEIGHT: image.height,
        names.WIDTH: image.width,
        # The feature of every kind of target; the others are empty.
        names.LABEL: item.label,
        names.LABELS: target if isinstance(target, tuple) else (),
        names.TARGET: target if isinstance(target, float) else math.nan,
        names.TEXT: target.encode() if isinstance(target, str) else b"",
    }
    for name, value in zip(encoder.columns, item.columns, strict=True):
        values[name] = value.encode() if isinstance(value, str) else value
    return tfrecord.frame(encoder.schema.encode(values))


def _unread(item: Item, kind: RejectionKind, reason: str) -> Outcome:
    """Return the rejection of an item that was not read."""
    return Outcome(kind, reason, 0, 0, 0, "", item.extent.num_bytes, "")
