"""The work of a worker that copies: items in, and of those that have not changed their old records.

Every original is read and hashed, every record's checksums are compared. Records that follow each
other in an old shard are read as one block. What is not as it must be is encoded from its source.
"""

from __future__ import annotations

import contextlib
import functools
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardprep.catalog.items import Items
from shardprep.dataset import tfrecord
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import HEIGHT, IMAGE, WIDTH
from shardprep.errors import RecordError
from shardprep.image.placement import Placement
from shardprep.image.process import Original, ProcessedImage, ordinary_placement
from shardprep.profiling import stage
from shardprep.source.byte_range import MemberError, PlainExtent
from shardprep.source.range_reads import read_ahead
from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk, OldImage, Outcome
from shardprep.writer.encode.chunk_encoder import (
    ChunkEncoder,
    counted,
    encode_item,
    read_item,
    sha256_of,
    wait_for,
)
from shardprep.writer.reuse.reused_images import OldRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Bytes = bytes | memoryview

_BLOCK_BYTES = 1 << 20
"""Bytes of records that are read at a time, unless one record has more."""


@dataclass(frozen=True, slots=True)
class CopyEncoder:
    """Copies the records of tasks with old images, or their images, and has all else encoded."""

    encoder: ChunkEncoder
    records: OldRecords

    @property
    def is_annotated(self) -> bool:
        """Whether boxes or masks are stored."""
        return self.encoder.is_annotated

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Return the records of the task's items; see `ChunkEncoder`.

        ChangedError where the old dataset was replaced meanwhile.
        """
        if not len(task.old):
            return self.encoder(task, before_item)
        copy = _ChunkCopy(task, self)
        if not self.encoder.is_timed:
            return copy.encoded(before_item)
        return counted(lambda: copy.encoded(before_item))


class _ChunkCopy:
    """The copy of one chunk."""

    def __init__(self, task: ChunkTask, copying: CopyEncoder) -> None:
        self._copying = copying
        self._items = items = Items.of(task.items)
        self._members = items.members.listed()
        self._old = list(task.old)
        is_same = np.zeros(len(items), bool)
        if copying.records.is_tabled:
            told = zip(self._members, items.target, self._old, strict=True)
            is_same[:] = [
                old is not None and (old.key, old.target) == (member.key, target)
                for member, target, old in told
            ]
        self._is_same: list[bool] = is_same.tolist()
        """Whether the record of each is the old one, if its original is."""
        others = np.flatnonzero(~is_same)
        self._others = dict(zip(others.tolist(), items.listed(others), strict=True))
        self._blocks = _Blocks(self._old, copying.records)

    def encoded(self, before_item: Callable[[], None]) -> EncodedChunk:
        """Copy or encode the items, in order."""
        blocks = self._blocks
        records: list[Bytes] = []
        outcomes: list[Outcome] = []
        with closing(read_ahead(self._spans())) as ahead:
            for i in range(len(self._items)):
                wait_for(ahead)
                begins_block = i in blocks.starts
                if begins_block:
                    wait_for(ahead)
                before_item()
                if begins_block:
                    blocks.read(i)
                record, outcome = self._record(i)
                records.append(record)
                outcomes.append(outcome)
        if any(outcome.is_copied for outcome in outcomes):
            self._copying.records.mark.check()
        return EncodedChunk(b"".join(records), tuple(outcomes))

    def _spans(self) -> list[PlainExtent]:
        """Return what is read, in order: each original, and before its record the block of that."""
        spans = []
        for i, member in enumerate(self._members):
            block = self._blocks.starts.get(i)
            spans += [member.extent.span] if block is None else [member.extent.span, block]
        return spans

    def _record(self, i: int) -> tuple[Bytes, Outcome]:
        data = read_item(self._members[i])
        if isinstance(data, Outcome):
            return b"", data
        sha256 = sha256_of(data)
        stored, old = None, self._old[i]
        if old is not None and old.outcome.sha256 == sha256:
            record = self._blocks.sound.get(i)
            if record is not None:
                if self._is_same[i]:
                    return record, old.outcome
                stored = self._stored(old, bytes(record), data)
        item = self._others.get(i) or self._items[i]
        return encode_item(item, data, sha256, self._copying.encoder, stored)

    @stage("frame")
    def _stored(self, old: OldImage, record: bytes, data: bytes) -> ProcessedImage | None:
        """Return what `process_image` would, None where that is not known without it.

        The placement is right for images that are annotated alone; those are taken only where
        `ordinary_placement` knows it.

        Args:
            old: the stored image, of an original of the same SHA-256.
            record: its framed record, which is sound.
            data: the original.

        """
        encoder, outcome = self._copying.encoder, old.outcome
        spec, is_annotated = encoder.spec, encoder.is_annotated
        is_sound = is_annotated and not outcome.reason
        placement = ordinary_placement(data, spec) if is_sound else None
        if is_annotated and placement is None:
            return None
        try:
            payload = record[tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES]
            values = _decoder(self._copying.records.dtypes).decode(payload)
        except RecordError:
            return None
        size = spec.fixed_size or (*values.get(HEIGHT, ()), *values.get(WIDTH, ()))
        image = values.get(IMAGE, [])
        if len(size) != 2 or len(image) != 1 or not isinstance(image[0], bytes):
            return None
        height, width = map(int, size)
        placement = placement or Placement.whole((height, width))
        original = Original(outcome.height, outcome.width, outcome.format)
        return ProcessedImage(image[0], height, width, original, placement, outcome.reason)


@functools.lru_cache(maxsize=4)
def _decoder(dtypes: tuple[tuple[str, str], ...]) -> ExampleDecoder:
    return ExampleDecoder(dict(dtypes), (IMAGE, HEIGHT, WIDTH))


class _Blocks:
    """Old records as they lie: those that follow each other are read and checked at once.

    What cannot be read as a block, such as one with a record behind the end of a cut shard, is
    read record by record.
    """

    def __init__(self, old: Sequence[OldImage | None], records: OldRecords) -> None:
        self._have_keys = records.have_keys
        self._runs: dict[int, list[tuple[int, OldImage]]] = {}
        """The old images of each block and the places of their items, by the first of these."""
        self.sound: dict[int, memoryview] = {}
        """The sound records of the block that was read last, framed, by the places of the items.

        What is damaged, gone or the record of another item is left out."""
        file, start, end = "", 0, 0
        run: list[tuple[int, OldImage]] = []
        for i, one in enumerate(old):
            if one is None or one.outcome.length < tfrecord.FRAME_BYTES:  # which no record has
                continue
            after = one.offset + one.outcome.length
            if one.offset != end or after - start > _BLOCK_BYTES or one.file != file:
                file, start = one.file, one.offset
                run = self._runs[i] = []
            run.append((i, one))
            end = after
        self.starts = {first: _block(run) for first, run in self._runs.items()}
        """The blocks, by the place of the first item with a record in it."""

    @stage("read")
    def read(self, first: int) -> None:
        """Read the block that begins with the record of an item; the one before is gone then."""
        self.sound.clear()
        run = self._runs[first]
        try:
            self._check(run, self.starts[first].read())
        except MemberError:
            for one in run:
                with contextlib.suppress(MemberError):
                    self._check([one], _block([one]).read())

    def _check(self, run: Sequence[tuple[int, OldImage]], data: bytes) -> None:
        """Keep the records of a block that are sound."""
        lengths = np.array([old.outcome.length for _, old in run], np.int64)
        are_sound = tfrecord.are_sound(np.frombuffer(data, np.uint8), lengths)
        ends = np.cumsum(lengths).tolist()
        view, have_keys = memoryview(data), self._have_keys
        told = zip(run, [0, *ends], ends, are_sound.tolist(), strict=False)
        for (i, old), start, end, is_sound in told:
            if is_sound and (not have_keys or data.rfind(old.key.encode(), start, end) >= 0):
                self.sound[i] = view[start:end]


def _block(run: Sequence[tuple[int, OldImage]]) -> PlainExtent:
    """Return where the records of old images lie that follow each other."""
    (_, first), (_, last) = run[0], run[-1]
    end = last.offset + last.outcome.length
    return PlainExtent(first.file, first.offset, end - first.offset)
