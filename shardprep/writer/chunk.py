"""The chunk, the unit of parallel work: some items of one shard, and their outcomes.

Processes that encode nothing import this module, so it imports no decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from shardprep.catalog.items import Item
from shardprep.image.annotation_types import AnnotationSpec
from shardprep.source.members import Member

if TYPE_CHECKING:
    import pyarrow as pa

    from shardprep.image.annotations import PlacedObjects
    from shardprep.image.process import RejectionKind


class ImageObjectCounts(NamedTuple):
    """Counts of the objects and the mask of one image, as in `items.parquet`."""

    labels: tuple[int, ...] | None
    """Class index of each stored object, in the order of the record; None without objects."""
    num_clipped: int
    dropped: Mapping[str, int]
    """Number of objects that are not stored, by reason."""
    pixels: Mapping[int, int] | None
    """Pixels of a class mask by value, ascending; None without a mask."""

    @classmethod
    def of(cls, placed: PlacedObjects, spec: AnnotationSpec) -> ImageObjectCounts:
        ignored = {spec.ignore: placed.num_ignored} if placed.num_ignored else {}
        return cls(
            placed.labels if spec.has_objects else None,
            placed.num_clipped,
            dict(sorted(placed.dropped.items())),
            dict(sorted({**placed.pixels, **ignored}.items())) if spec.masks == "classes" else None,
        )


UNREADABLE: Final = "unreadable"
"""Kind of rejection of an item whose bytes the source does not give."""


class Outcome(NamedTuple):
    """The outcome of one item: a record or a rejection."""

    kind: str
    """Kind of rejection; "" for a written item."""
    reason: str
    """Reason of the rejection, or damage of a written image; may be ""."""
    length: int
    """Bytes of the framed record, 0 for a rejected item."""
    height: int
    width: int
    """Height and width of the original in pixels, 0 if its header cannot be read."""
    format: str
    num_bytes: int
    sha256: str
    """SHA-256 of the original in hexadecimal; "" if it cannot be read."""
    is_dark: bool = False
    objects: ImageObjectCounts | None = None
    """Counts of objects and masks of a written item, None without annotations."""
    is_copied: bool = False

    @classmethod
    def unread(cls, item: Item | Member, kind: RejectionKind, reason: str) -> Outcome:
        return cls(kind, reason, 0, 0, 0, "", item.extent.num_bytes, "")


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """Some adjacent items of one shard."""

    shard: str
    start: int
    items: Sequence[Item]
    """Items as columns; a few items travel as objects."""
    old: pa.Table | None = None
    """Row of each item's stored record in another dataset; nulls for items without one."""

    def __str__(self) -> str:
        last = self.start + len(self.items) - 1
        return f"{self.shard}, items {self.start}-{last} (from {self.items[0].key})"

    def apart(self) -> Iterator[ChunkTask]:
        for at in range(len(self.items)):
            old = None if self.old is None else self.old.slice(at, 1)
            yield ChunkTask(self.shard, self.start + at, self.items[at : at + 1], old)


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The records and outcomes of a chunk."""

    data: bytes | bytearray
    """Framed records of the written items, in plan order."""
    outcomes: tuple[Outcome, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by stage, if they are counted."""

    @classmethod
    def joined(cls, pieces: Sequence[EncodedChunk]) -> EncodedChunk:
        if len(pieces) == 1:
            return pieces[0]
        outcomes = tuple(outcome for piece in pieces for outcome in piece.outcomes)
        return cls(b"".join(piece.data for piece in pieces), outcomes)

    @classmethod
    def lost(cls, item: Item, kind: RejectionKind, reason: str) -> EncodedChunk:
        return cls(b"", (Outcome.unread(item, kind, reason),))


Encode = Callable[[ChunkTask, Callable[[], None]], EncodedChunk]
"""Makes the records of a chunk; pickled for every worker. A bad image is an outcome, not an error.

The second argument is called before each item, so that an engine can restart its clock.
"""
