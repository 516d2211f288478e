"""A chunk, the unit of parallel work: a run of items of one shard, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from shardprep.catalog.items import Item
from shardprep.image.annotation_types import AnnotationSpec
from shardprep.image.annotations import PlacedObjects
from shardprep.image.process import RejectionKind
from shardprep.source.members import Member

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa


class ObjectCounts(NamedTuple):
    """The objects and the mask of one image, as `items.parquet` has them."""

    labels: tuple[int, ...] | None
    """Class index of each stored object, in the order of the record; None where none are stored."""
    num_clipped: int
    dropped: Mapping[str, int]
    """Objects that are not stored, by reason."""
    pixels: Mapping[int, int] | None
    """Pixels of the mask of classes by their value, ascending; None where none is stored."""

    @classmethod
    def of(cls, found: PlacedObjects, spec: AnnotationSpec) -> ObjectCounts:
        """Return the counts of the objects that a record holds."""
        ignored = {spec.ignore: found.num_ignored} if found.num_ignored else {}
        return cls(
            found.labels if spec.has_objects else None,
            found.num_clipped,
            dict(sorted(found.dropped.items())),
            dict(sorted({**found.pixels, **ignored}.items())) if spec.masks == "classes" else None,
        )


UNREADABLE: Final = "unreadable"
"""Kind of the rejection of an item whose bytes the source did not give."""


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
    objects: ObjectCounts | None = None
    """Counts of the objects and masks of a written item, None where none are stored."""
    is_copied: bool = False
    """Whether a written image is the one that another dataset had stored."""

    @classmethod
    def unread(cls, item: Item | Member, kind: RejectionKind, reason: str) -> Outcome:
        """Return the rejection of an item that was not read."""
        return cls(kind, reason, 0, 0, 0, "", item.extent.num_bytes, "")


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A run of items of one shard."""

    shard: str
    start: int
    """Position of the first item in the shard's plan."""
    items: Sequence[Item]
    """As columns, of which each item is made when it is asked for, or as objects."""
    old: pa.Table | None = None
    """For each item, the row of its stored record in another dataset, of nulls if it has none."""

    def __str__(self) -> str:
        last = self.start + len(self.items) - 1
        return f"{self.shard}, items {self.start}-{last} (from {self.items[0].key})"

    def apart(self) -> Iterator[ChunkTask]:
        """Yield a task for each item alone, in order."""
        for at in range(len(self.items)):
            old = None if self.old is None else self.old.slice(at, 1)
            yield ChunkTask(self.shard, self.start + at, self.items[at : at + 1], old)


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
        return cls(b"", (Outcome.unread(item, kind, reason),))
