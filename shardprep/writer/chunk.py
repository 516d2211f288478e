"""The chunk, the unit of parallel work: adjacent items of one shard, and their outcomes.

Processes that do not encode import this module too, so it imports no decoder.
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
    """Class index of each object in the record, in order; None if the dataset has no objects."""
    num_clipped: int
    dropped: Mapping[str, int]
    """Reason → number of objects that are not stored."""
    pixels: Mapping[int, int] | None
    """Class mask value, ascending → number of pixels; None if the dataset has no class masks."""
    labelled_points: tuple[int, ...] | None = None
    """Number of labelled keypoints per stored object, then of the image; None without keypoints."""
    lost_points: Mapping[str, int] | None = None
    """Reason → number of keypoints that are not stored; None if the dataset has no keypoints."""

    @classmethod
    def of(cls, placed: PlacedObjects, spec: AnnotationSpec) -> ImageObjectCounts:
        ignored = {spec.ignore: placed.num_ignored} if placed.num_ignored else {}
        return cls(
            placed.labels if spec.has_objects else None,
            placed.num_clipped,
            dict(sorted(placed.dropped.items())),
            dict(sorted({**placed.pixels, **ignored}.items())) if spec.masks == "classes" else None,
            placed.labelled_points if spec.has_points else None,
            placed.lost_points if spec.has_points else None,
        )


UNREADABLE: Final = "unreadable"


class Outcome(NamedTuple):
    """The outcome of one item: a record or a rejection."""

    kind: str
    """Kind of rejection; "" for a written item."""
    reason: str
    """Reason for the rejection; for a written image, its damage or ""."""
    length: int
    """Length of the framed record in bytes, or 0 for a rejected item."""
    height: int
    width: int
    """Height and width of the original in pixels, or 0 if its header cannot be read."""
    format: str
    num_bytes: int
    sha256: str
    """SHA-256 of the original in hexadecimal; "" if it cannot be read."""
    is_dark: bool = False
    objects: ImageObjectCounts | None = None
    """Counts of objects and mask pixels; None if rejected, or if the dataset has no annotations."""
    is_copied: bool = False
    has_own_levels: bool = False
    """Whether this stack's own values define black and white, instead of its type or an option."""
    losses: tuple[str, ...] = ()
    """Parts of the original that are not stored: "frames", "bits". Unknown of a copied image."""

    @classmethod
    def unread(cls, item: Item | Member, kind: str, reason: str) -> Outcome:
        return cls(kind, reason, 0, 0, 0, "", item.extent.num_bytes, "")


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """Adjacent items of one shard that a worker encodes together."""

    shard: str
    start: int
    items: Sequence[Item]
    """The items: a tuple if they are few, otherwise `Items`, which are pickled faster."""
    old: pa.Table | None = None
    """Row of each item in the item table of `reuse`, all null if new; None without `reuse`."""

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
    """Framed records of the written items in plan order; thumbnails or tiles while planning."""
    outcomes: tuple[Outcome, ...]
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by stage; empty if they are not measured."""

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
"""Encodes a chunk; pickled for every worker. A bad image is an outcome, not an error.

An encoder must call its second argument before each item. The call restarts the time limit."""
