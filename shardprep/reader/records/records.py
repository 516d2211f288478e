"""The records of a selection by number: any one of them in one step.

Their places are read from `index/<shard>.idx` and compared with the manifest: as many records, one
right after the other, up to the end of the shard.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardprep.dataset.index import check_shard, open_shard, read_index, way_out
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.manifest import MANIFEST_FILE, Shard
from shardprep.dataset.tfrecord import FOOTER_BYTES, HEADER_BYTES, unframe
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.array_types import Bytes, Ints
from shardprep.reader.order.order import Order
from shardprep.reader.records.positions import Frames, Places, starts_of
from shardprep.reader.records.prefetch import GAP_BYTES, MOST_GROUP_BYTES, PrefetchedBlocks
from shardprep.reader.records.remote import ByteRange, RemoteShards
from shardprep.storage.open_files import OpenFiles
from shardprep.storage.regular_file import read_at

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from pathlib import Path
    from typing import Any

_T = TypeVar("_T")


class LocalShards:
    """Shards of a folder, opened at the first read, in each process anew.

    They are not mapped: one that is cut in place would end the process with SIGBUS. A shard that is
    open is still read as it was after its dataset was replaced; one that is opened later is not.
    """

    def __init__(
        self, folder: Path, shards: Mapping[str, Shard], files: LocalFiles | None = None
    ) -> None:
        """Take shards by name, as the manifest has them, and the dataset that they belong to."""
        self.folder = folder
        self._shards = shards
        self._local = files
        self._files = OpenFiles(partial(_opened, folder, shards, files))

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalShards, (self.folder, self._shards, self._local)

    @property
    def where(self) -> str:
        """The folder of the shards."""
        return str(self.folder)

    def located(self, name: str) -> str:
        """Return the path of a shard."""
        return f"{self.folder}/{name}"

    def way_out(self) -> str:
        """Return what to do where a record is damaged."""
        if (self.folder / MANIFEST_FILE).is_file():
            return way_out(self.folder)
        return f"remove {self.folder}, a cache that is made again"

    def read(self, part: ByteRange) -> bytes:
        """Return the bytes of a run, fewer where its shard ends before it does."""
        file = self._files.get(part.shard)  # held here, so that nothing closes it meanwhile
        try:
            return read_at(file.number, part.num_bytes, part.start)
        except OSError as error:
            where, what = self.located(part.shard), f"cannot be read ({error.strerror})"
            raise DatasetError(where, what, self.way_out()) from error

    def read_all(self, parts: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of several runs."""
        return [self.read(part) for part in parts]

    def read_anew(self, part: ByteRange) -> bytes:
        """Return the bytes of a run that is damaged."""
        return self.read(part)


class Records:
    """A sequence of payloads. Cheap to slice, to pickle and to read from many threads."""

    def __init__(
        self,
        store: LocalShards | RemoteShards,
        shards: tuple[Shard, ...],
        frames: Frames,
        *,
        verify_crc: bool,
        order: Order | None = None,
    ) -> None:
        """`shards` are those that `frames` number; `order` is that in which they are read."""
        self.store = store
        self.shards = shards
        self.frames = frames
        self._verify_crc = verify_crc
        self._blocks = None
        if order is not None and isinstance(store, RemoteShards):
            blocks = order.blocks
            if blocks is not None:
                self._blocks = PrefetchedBlocks(store, shards, frames, blocks, order.epoch_key)

    def __len__(self) -> int:
        return len(self.frames.shard)

    def __getitem__(self, wanted: slice) -> Records:
        return Records(self.store, self.shards, self.frames[wanted], verify_crc=self._verify_crc)

    def in_order(self, order: Order) -> Records:
        """Return these records, to be read in this order, whose places are to be `expect`ed.

        Those of object storage come by blocks then, ahead of use, unless they have copies here; one
        by one, where the order has no blocks or groups of them are too large to be held.
        """
        blocks = order.blocks if self.is_remote else None
        mean_bytes = int(self.frames.length.sum()) / max(1, len(self))
        if blocks is None or blocks.group_records * mean_bytes > MOST_GROUP_BYTES:
            return self
        return Records(
            self.store, self.shards, self.frames, verify_crc=self._verify_crc, order=order
        )

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """Ask for the records at these places of an epoch before they are wanted, if they wait."""
        if self._blocks is not None:
            self._blocks.expect(epoch, start, stop)

    @property
    def waits(self) -> bool:
        """Whether each read may have to wait for a request of its own."""
        return self.is_remote and self._blocks is None

    @property
    def places(self) -> Places:
        """Where the records are."""
        return Places(self.shards, self.frames.shard, self.frames.record)

    @property
    def is_remote(self) -> bool:
        """Whether a record may have to come from object storage."""
        return isinstance(self.store, RemoteShards)

    @property
    def where(self) -> str:
        """The dataset's folder or address, for people."""
        return self.store.where

    @property
    def paths(self) -> list[str]:
        """Files or addresses of the shards, by their numbers in `frames`."""
        return [self.store.located(shard.name) for shard in self.shards]

    def payload(self, number: int) -> memoryview:
        """Return the payload of a record, 0 ≤ number < len.

        RecordError where it is damaged; DatasetError where its shard is gone or another than it
        was; StorageError where the store does not give it.
        """
        name, _, offset = self.place(number)
        part = ByteRange(name, offset, self.frames.length.item(number))
        found = self._unframed(number, part, self._framed(number, part))
        if isinstance(found, RecordError):
            raise found
        return found

    def read(self, positions: Ints) -> list[memoryview | RecordError]:
        """Return the payloads of the records at some positions; those that lie together at once.

        The error of one that is damaged is in its place. Raises as `payload` otherwise.
        """
        numbers, places = np.unique(positions, return_inverse=True)
        frames = self.frames[numbers]
        parts = [
            ByteRange(self.shards[shard].name, offset, length)
            for shard, _, offset, length in np.stack(frames.columns(), axis=1).tolist()
        ]
        if self._blocks is not None:
            each = [
                self._unframed(number, part, self._framed(number, part))
                for number, part in zip(numbers.tolist(), parts, strict=True)
            ]
            return [each[place] for place in places.tolist()]
        gap_bytes = GAP_BYTES if self.is_remote else 0
        runs = [parts[start:stop] for start, stop in frames.runs(gap_bytes)]
        wholes = [
            ByteRange(run[0].shard, run[0].start, run[-1].start + run[-1].num_bytes - run[0].start)
            for run in runs
        ]
        found: list[memoryview | RecordError] = []
        for run, data in zip(runs, self.store.read_all(wholes), strict=True):
            whole = np.frombuffer(data, np.uint8)
            for part in run:
                start = part.start - run[0].start
                framed = whole[start : start + part.num_bytes]
                found.append(self._unframed(numbers.item(len(found)), part, framed))
        return [found[place] for place in places.tolist()]

    def next_good(
        self,
        position: int,
        use: Callable[[int], _T],
        bad: Container[int],
        note: Callable[[int, RecordError], None],
    ) -> _T:
        """Return `use` of the next record that is not `bad`; `note` is told of its RecordErrors."""
        for step in range(1, len(self)):
            at = (position + step) % len(self)
            if at in bad:
                continue
            try:
                return use(at)
            except RecordError as error:
                note(at, error)
        raise DatasetError(self.where, "has no record that is good", "build the set again")

    def _framed(self, number: int, part: ByteRange) -> Bytes:
        """Return the frame of a record, of the part that it is."""
        if self._blocks is not None:
            return self._blocks.read(number, part)
        return np.frombuffer(self.store.read(part), np.uint8)

    def _unframed(self, number: int, part: ByteRange, framed: Bytes) -> memoryview | RecordError:
        """Return the payload of a frame; the store is asked once more for one that is damaged."""
        if len(framed) < part.num_bytes:
            what = f"{len(framed):,} of {part.num_bytes:,} bytes"
            return self.damaged(number, f"its shard was cut while it was read: {what}")
        if not self._verify_crc:
            return framed[HEADER_BYTES:-FOOTER_BYTES].data
        try:
            return unframe(framed, "", part.start).data
        except RecordError:  # of a copy that the disk has damaged, or of the shard itself
            framed = np.frombuffer(self.store.read_anew(part), np.uint8)
        try:
            return unframe(framed, "", part.start).data
        except RecordError as error:
            return self.damaged(number, error.what)

    def damaged(self, number: int, what: str) -> RecordError:
        """Return the error that says `what` is wrong with a record, and where it is."""
        frames = self.frames
        located = self.store.located(self.shards[frames.shard.item(number)].name)
        where = f"{located}, record {frames.record[number]}"
        return RecordError(where, what, self.store.way_out(), offset=frames.offset.item(number))

    def place(self, number: int) -> tuple[str, int, int]:
        """Return the shard's name, the number in it and the offset in bytes of a record."""
        frames = self.frames
        name = self.shards[frames.shard.item(number)].name
        return name, frames.record.item(number), frames.offset.item(number)

    @cached_property
    def digest(self) -> str:
        """A hash of which records these are, in their order: what their shards hold, and where."""
        used = np.flatnonzero(np.bincount(self.frames.shard))
        numbers = np.zeros(len(self.shards), np.int64)
        numbers[used] = np.arange(len(used))  # of the used ones: others may be open or not
        hashes = "".join(self.shards[number].sha256 for number in used)
        made = hashlib.sha256(hashes.encode())
        made.update(numbers[self.frames.shard].tobytes())
        made.update(self.frames.record.tobytes())
        return made.hexdigest()[:16]


def indexed(folder: Path, places: Places) -> Frames:
    """Return where the frames of the records at some places are; `folder` has the indexes."""
    indexes = [read_index(folder, shard) for shard in places.shards]
    starts = [*starts_of(places.shard).tolist(), len(places.shard)]
    found = np.concatenate(
        [
            indexes[places.shard[start]][places.record[start:stop]]
            for start, stop in pairwise(starts)
        ]
    )
    return Frames(places.shard, places.record, found[:, 0], found[:, 1])


def open_folder(folder: Path, places: Places) -> Records:
    """Return the records at some places of a folder of shards that nothing replaces."""
    for shard in places.shards:
        check_shard(folder, shard)
    store = LocalShards(folder, {shard.name: shard for shard in places.shards})
    return Records(store, places.shards, indexed(folder, places), verify_crc=True)


def _opened(folder: Path, shards: Mapping[str, Shard], files: LocalFiles | None, name: str) -> int:
    with nullcontext() if files is None else files.unchanged():
        return open_shard(folder, shards[name])
