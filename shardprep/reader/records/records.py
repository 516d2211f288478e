"""The records of a selection by number, read from shards in a folder or in object storage.

Offsets come from `index/<shard>.idx`, which is checked against the manifest: number of records,
no gaps, and the size of the shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardprep.dataset.local_files import LocalFiles, check_shard, open_shard, read_index, way_out
from shardprep.dataset.manifest import MANIFEST_FILE, Shard
from shardprep.dataset.tfrecord import FOOTER_BYTES, HEADER_BYTES, unframe
from shardprep.errors import DatasetError, RecordError
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Bytes, Ints
from shardprep.reader.order.order import Order
from shardprep.reader.records.positions import Frames, Places, starts_of
from shardprep.reader.records.prefetch import GAP_BYTES, MOST_GROUP_BYTES, PrefetchedBlocks
from shardprep.reader.records.remote import NUM_READS, ByteRange, RemoteShards
from shardprep.storage.regular_file import OpenFiles, read_at

_T = TypeVar("_T")


class LocalShards:
    """Shards of a folder, opened in each process at the first read.

    They are not memory-mapped: a shard that is truncated in place would kill the process by SIGBUS.
    An open shard can still be read after its dataset was replaced; opening another one then fails.
    """

    def __init__(
        self, folder: Path, shards: Mapping[str, Shard], files: LocalFiles | None = None
    ) -> None:
        """Take the entries of the shards in the manifest by name, and the files of the dataset."""
        self.folder = folder
        self._shards = shards
        self._local = files
        self._files = OpenFiles(partial(_opened, folder, shards, files))

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalShards, (self.folder, self._shards, self._local)

    @property
    def where(self) -> str:
        """Folder of the shards, for errors."""
        return str(self.folder)

    def located(self, name: str) -> str:
        """Return the path of a shard."""
        return f"{self.folder}/{name}"

    def way_out(self) -> str:
        """Return what to do about a damaged record."""
        if (self.folder / MANIFEST_FILE).is_file():
            return way_out(self.folder)
        return f"remove {self.folder}, a cache that will be filled again"

    def read(self, part: ByteRange) -> bytes:
        """Return the bytes of a range, fewer if the shard ends before."""
        file = self._files.get(part.shard)  # this reference keeps it open
        try:
            return read_at(file.number, part.num_bytes, part.start)
        except OSError as error:
            where, what = self.located(part.shard), f"cannot be read ({error.strerror})"
            raise DatasetError(where, what, self.way_out()) from error

    def read_all(self, parts: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of several ranges."""
        return [self.read(part) for part in parts]

    def read_anew(self, part: ByteRange) -> bytes:
        """Return the bytes of a range whose checksum was wrong."""
        return self.read(part)


class Records:
    """A sequence of payloads. It is cheap to slice and pickle, and many threads may read it."""

    def __init__(
        self,
        store: LocalShards | RemoteShards,
        shards: tuple[Shard, ...],
        frames: Frames,
        *,
        verify_crc: bool,
        order: Order | None = None,
    ) -> None:
        """Take the shards that `frames` refers to; blocks of `order` are read ahead if remote."""
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
        """Return the records for reading in an order, whose places are announced by `expect`.

        Records in object storage are then read ahead in blocks, unless the order has no blocks or
        a group is too large for memory.
        """
        blocks = order.blocks if self.is_remote else None
        mean_bytes = int(self.frames.length.sum()) / max(1, len(self))
        if blocks is None or blocks.group_records * mean_bytes > MOST_GROUP_BYTES:
            return self
        return Records(
            self.store, self.shards, self.frames, verify_crc=self._verify_crc, order=order
        )

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """Start to read the records at these places of an epoch, if they are read ahead."""
        if self._blocks is not None:
            self._blocks.expect(epoch, start, stop)

    @property
    def waits(self) -> bool:
        """Whether each read may need a request of its own."""
        return self.is_remote and self._blocks is None

    @property
    def places(self) -> Places:
        """Places of the records in their shards."""
        return Places(self.shards, self.frames.shard, self.frames.record)

    @property
    def is_remote(self) -> bool:
        """Whether the shards are in object storage."""
        return isinstance(self.store, RemoteShards)

    @property
    def where(self) -> str:
        """Folder or address of the dataset, for errors."""
        return self.store.where

    @property
    def paths(self) -> list[str]:
        """Paths or addresses of the shards, by their number in `frames`."""
        return [self.store.located(shard.name) for shard in self.shards]

    def payload(self, number: int) -> memoryview:
        """Return the payload of a record, 0 ≤ number < len.

        Raises:
            RecordError: the record is damaged.
            DatasetError: its shard is missing or was replaced.
            StorageError: object storage does not answer.

        """
        name, _, offset = self.place(number)
        part = ByteRange(name, offset, self.frames.length.item(number))
        payload = self._unframed(number, part, self._framed(number, part))
        if isinstance(payload, RecordError):
            raise payload
        return payload

    def read(self, positions: Ints) -> list[memoryview | RecordError]:
        """Return the payloads at some positions, or the error of a damaged record.

        Neighbouring records are read together. Other errors are raised as by `payload`.
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
        whole_runs = [
            ByteRange(run[0].shard, run[0].start, run[-1].start + run[-1].num_bytes - run[0].start)
            for run in runs
        ]
        payloads: list[memoryview | RecordError] = []
        for run, data in zip(runs, self.store.read_all(whole_runs), strict=True):
            whole = np.frombuffer(data, np.uint8)
            for part in run:
                start = part.start - run[0].start
                framed = whole[start : start + part.num_bytes]
                payloads.append(self._unframed(numbers.item(len(payloads)), part, framed))
        return [payloads[place] for place in places.tolist()]

    def next_good(
        self,
        position: int,
        use: Callable[[int], _T],
        bad: Container[int],
        note: Callable[[int, RecordError], None],
    ) -> _T:
        """Return `use` of the next record that is not bad; calls `note` for each bad one."""
        for step in range(1, len(self)):
            at = (position + step) % len(self)
            if at in bad:
                continue
            try:
                return use(at)
            except RecordError as error:
                note(at, error)
        raise DatasetError(self.where, "has no good record", "build the dataset again")

    def map_ranges(self, function: Callable[[range], _T], size: int) -> Iterator[_T]:
        """Yield the results of a function of ranges of record numbers, called in threads."""
        num_threads = max(usable_cores(), NUM_READS if self.is_remote else 1)
        numbers = range(len(self))
        ranges = (numbers[start : start + size] for start in range(0, len(self), size))
        with ThreadPoolExecutor(num_threads, "shardprep-map") as pool:
            try:
                yield from pool.map(function, ranges)
            except BaseException:  # Ctrl-C among them
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _framed(self, number: int, part: ByteRange) -> Bytes:
        if self._blocks is not None:
            return self._blocks.read(number, part)
        return np.frombuffer(self.store.read(part), np.uint8)

    def _unframed(self, number: int, part: ByteRange, framed: Bytes) -> memoryview | RecordError:
        """Return the payload of a frame. A damaged frame is read once more."""
        if len(framed) < part.num_bytes:
            what = f"{len(framed):,} of {part.num_bytes:,} bytes"
            return self.damaged(number, f"its shard was truncated while it was read: {what}")
        if not self._verify_crc:
            return framed[HEADER_BYTES:-FOOTER_BYTES].data
        try:
            return unframe(framed, "", part.start).data
        except RecordError:  # damaged in a local copy, or in the shard itself
            framed = np.frombuffer(self.store.read_anew(part), np.uint8)
        try:
            return unframe(framed, "", part.start).data
        except RecordError as error:
            return self.damaged(number, error.what)

    def damaged(self, number: int, what: str) -> RecordError:
        """Return the error for a damaged record, with its location."""
        frames = self.frames
        located = self.store.located(self.shards[frames.shard.item(number)].name)
        where = f"{located}, record {frames.record[number]}"
        return RecordError(where, what, self.store.way_out(), offset=frames.offset.item(number))

    def place(self, number: int) -> tuple[str, int, int]:
        """Return name of the shard, number in the shard, and offset in bytes of a record."""
        frames = self.frames
        name = self.shards[frames.shard.item(number)].name
        return name, frames.record.item(number), frames.offset.item(number)

    @cached_property
    def digest(self) -> str:
        """A hash of the records and their order: of the content of shards, and places in them."""
        used = np.flatnonzero(np.bincount(self.frames.shard))
        numbers = np.zeros(len(self.shards), np.int64)
        numbers[used] = np.arange(len(used))  # independent of other shards that may be open
        hashes = "".join(self.shards[number].sha256 for number in used)
        digest = hashlib.sha256(hashes.encode())
        digest.update(numbers[self.frames.shard].tobytes())
        digest.update(self.frames.record.tobytes())
        return digest.hexdigest()[:16]


def indexed(folder: Path, places: Places) -> Frames:
    """Return the frames of the records at some places; `folder` has the indexes."""
    indexes = [read_index(folder, shard) for shard in places.shards]
    starts = [*starts_of(places.shard).tolist(), len(places.shard)]
    spans = np.concatenate(
        [
            indexes[places.shard[start]][places.record[start:stop]]
            for start, stop in pairwise(starts)
        ]
    )
    return Frames(places.shard, places.record, spans[:, 0], spans[:, 1])


def open_folder(folder: Path, places: Places) -> Records:
    """Return records of a folder of shards that is never replaced."""
    for shard in places.shards:
        check_shard(folder, shard)
    store = LocalShards(folder, {shard.name: shard for shard in places.shards})
    return Records(store, places.shards, indexed(folder, places), verify_crc=True)


def _opened(folder: Path, shards: Mapping[str, Shard], files: LocalFiles | None, name: str) -> int:
    with nullcontext() if files is None else files.unchanged():
        return open_shard(folder, shards[name])
