"""The records of a selection by number: any one of them in one step.

Where they are is read from `index/<shard>.idx`, and believed only as far as the manifest bears it
out: as many records, one right after the other, up to the very end of the shard. Shards in object
storage are read from there, or from their copies on this machine.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardprep.dataset.index import check_shard, check_size, read_index, way_out
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.dataset.tfrecord import FOOTER_BYTES, HEADER_BYTES, unframe
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.remote_shards import Part
from shardprep.storage.regular_file import regular_descriptor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from shardprep.dataset.manifest import Shard
    from shardprep.reader.remote_shards import RemoteShards
    from shardprep.reader.splits import ShardSlice

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]

_MAX_OPEN = 512
"""Number of shards open at a time; many a system gives a process 1,024 file descriptors."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Where the frames of records are; arrays of equal length."""

    shard: Ints
    """Number of the shard."""
    record: Ints
    """Number of the record in its shard."""
    offset: Ints
    """Bytes from the beginning of the shard to the frame."""
    length: Ints
    """Bytes of the whole frame."""

    def __getitem__(self, wanted: slice | Ints) -> Frames:
        return Frames(*(column[wanted] for column in self._columns()))

    def starts_run(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each record whether its frame does not lie right behind the one before."""
        found = np.ones(len(self.shard), bool)
        ends = self.offset + self.length
        found[1:] = (self.shard[1:] != self.shard[:-1]) | (self.offset[1:] != ends[:-1])
        return found

    def _columns(self) -> tuple[Ints, ...]:
        return self.shard, self.record, self.offset, self.length


class _Descriptor:
    """A file descriptor that is closed once nobody reads from it any more."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _Shards:
    """Shards, each opened when it is first read; a copy in another process opens its own."""

    def __init__(
        self, folder: Path, shards: tuple[Shard, ...], remote: RemoteShards | None
    ) -> None:
        """Take shards as the manifest has them, of a dataset's folder or of `remote`."""
        self.folder = folder
        self.shards = shards
        self.remote = remote
        self.opened = lru_cache(_MAX_OPEN)(partial(_opened, folder, shards))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shards, (self.folder, self.shards, self.remote)

    def located(self, number: int) -> str:
        """Return where a shard is, for people."""
        name = self.shards[number].name
        return str(self.folder / name) if self.remote is None else self.remote.located(name)

    def dataset(self) -> str:
        """Return the folder or address that the shards are in, for people."""
        return str(self.folder) if self.remote is None else self.located(0).rpartition("/")[0]

    def way_out(self) -> str:
        """Return what to do where a record is damaged."""
        if self.remote is not None or (self.folder / MANIFEST_FILE).is_file():
            return way_out(self.dataset())
        return f"remove {self.folder}, a cache that is made again"


class Records:
    """A sequence of payloads. Cheap to slice, to pickle and to read from many threads.

    Shards are read and not mapped: one that is cut in place, or an error of its disk, would end the
    process with SIGBUS. A shard that was replaced by a rename is still read as it was.
    """

    def __init__(self, shards: _Shards, frames: Frames, *, verify_crc: bool) -> None:
        self._shards = shards
        self.frames = frames
        self._verify_crc = verify_crc

    def __len__(self) -> int:
        return len(self.frames.shard)

    def __getitem__(self, wanted: slice) -> Records:
        return Records(self._shards, self.frames[wanted], verify_crc=self._verify_crc)

    @property
    def is_remote(self) -> bool:
        """Whether a record may have to come from object storage."""
        return self._shards.remote is not None

    @property
    def where(self) -> str:
        """The dataset's folder or address, for people."""
        return self._shards.dataset()

    @property
    def paths(self) -> list[str]:
        """Files of the shards, by their numbers in `frames`."""
        return [f"{self._shards.folder}/{shard.name}" for shard in self._shards.shards]

    def payload(self, number: int) -> memoryview:
        """Return the payload of a record, 0 ≤ number < len.

        Raises:
            RecordError: it is damaged.
            DatasetError: its shard is gone, cannot be read, or is another than it was.

        """
        if self._shards.remote is not None:
            name, _, offset = self.place(number)
            frame = Part(name, offset, self.frames.length.item(number))
            found = self._unframed(number, frame, self._shards.remote.read(frame))
            if isinstance(found, RecordError):
                raise found
            return memoryview(found)
        frames = self.frames
        offset, length = frames.offset.item(number), frames.length.item(number)
        framed = self._framed(frames.shard.item(number), offset, length)
        if len(framed) < length:
            what = f"its shard was cut while it was read: {len(framed):,} of {length:,} bytes"
            raise self.damaged(number, what)
        if not self._verify_crc:
            return framed[HEADER_BYTES:-FOOTER_BYTES].data
        try:
            return unframe(framed, "", offset).data
        except RecordError as error:
            raise self.damaged(number, error.what) from error

    def _framed(self, shard: int, offset: int, length: int) -> Bytes:
        """Return the bytes of a frame, fewer where its shard ends before it does."""
        file = self._shards.opened(shard)  # held here, so that no other thread's opening closes it
        try:
            return np.frombuffer(os.pread(file.number, length, offset), np.uint8)
        except OSError as error:
            where, what = self._shards.located(shard), f"cannot be read ({error.strerror})"
            raise DatasetError(where, what, self._shards.way_out()) from error

    def read(self, positions: Ints) -> list[bytes | memoryview | RecordError]:
        """Return the payloads of the records at some positions, in their order.

        The error of one that is damaged is in its place.

        Raises:
            DatasetError: a shard is gone, or is another than it was.
            StorageError: the store does not give it.

        """
        remote = self._shards.remote
        if remote is not None:
            return self._read_remote(positions, remote)
        found: list[bytes | memoryview | RecordError] = []
        for number in positions.tolist():
            try:
                found.append(self.payload(number))
            except RecordError as error:
                found.append(error)
        return found

    def _read_remote(
        self, positions: Ints, remote: RemoteShards
    ) -> list[bytes | memoryview | RecordError]:
        """Return payloads of records, those that lie together asked for at once."""
        numbers, places = np.unique(positions, return_inverse=True)
        frames = self.frames[numbers]
        cuts = [*np.flatnonzero(frames.starts_run()).tolist(), len(numbers)]
        runs = [slice(start, stop) for start, stop in pairwise(cuts)]
        parts = [
            Part(
                self._shards.shards[frames.shard.item(run.start)].name,
                frames.offset.item(run.start),
                int(frames.length[run].sum()),
            )
            for run in runs
        ]
        found: list[bytes | RecordError] = []
        for run, part, data in zip(runs, parts, remote.read_all(parts), strict=True):
            for i in range(run.start, run.stop):
                start, length = frames.offset.item(i) - part.start, frames.length.item(i)
                frame = Part(part.shard, part.start + start, length)
                framed = data[start : start + length]
                found.append(self._unframed(numbers.item(i), frame, framed))
        return [found[place] for place in places.tolist()]

    def _unframed(self, number: int, frame: Part, framed: bytes) -> bytes | RecordError:
        """Return the payload of a frame; the store is asked once more for one that is damaged."""
        remote = self._shards.remote
        if not self._verify_crc or remote is None:
            return framed[HEADER_BYTES:-FOOTER_BYTES]
        try:
            return unframe(framed, "", frame.start)
        except RecordError:  # of a copy that the disk has damaged, or of the shard itself
            remote.drop(frame.shard)
        try:
            return unframe(remote.read_anew(frame), "", frame.start)
        except RecordError as error:
            return self.damaged(number, error.what)

    def damaged(self, number: int, what: str) -> RecordError:
        """Return the error that says `what` is wrong with a record, and where it is."""
        frames = self.frames
        where = f"{self._shards.located(frames.shard.item(number))}, record {frames.record[number]}"
        offset = frames.offset.item(number)
        return RecordError(where, what, self._shards.way_out(), offset=offset)

    def place(self, number: int) -> tuple[str, int, int]:
        """Return the shard's name, the number in it and the offset in bytes of a record."""
        shard, record, offset = (
            column.item(number)
            for column in (self.frames.shard, self.frames.record, self.frames.offset)
        )
        return self._shards.shards[shard].name, record, offset

    @cached_property
    def digest(self) -> str:
        """A hash of which records these are, in their order: what their shards hold, and where."""
        used = np.flatnonzero(np.bincount(self.frames.shard))
        numbers = np.zeros(len(self._shards.shards), np.int64)
        numbers[used] = np.arange(len(used))  # of the used ones: others may be open or not
        hashes = "".join(self._shards.shards[number].sha256 for number in used)
        made = hashlib.sha256(hashes.encode())
        made.update(numbers[self.frames.shard].tobytes())
        made.update(self.frames.record.tobytes())
        return made.hexdigest()[:16]


def open_records(
    folder: Path,
    shards: Mapping[str, Shard],
    slices: Sequence[ShardSlice],
    remote: RemoteShards | None = None,
    *,
    verify_crc: bool = True,
) -> Records:
    """Return the records that slices of shards mean, in their order.

    Args:
        folder: of the shards and their indexes; of the indexes alone, where shards are `remote`.
        shards: those that the slices are of, and maybe others, by name.
        slices: runs of records.
        remote: where the shards are if not in the folder, checked for their sizes.
        verify_crc: compare the checksums of each record that is read.

    Raises:
        DatasetError: a shard or an index is missing, or is not what the manifest says.

    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(s.shard for s in slices))}
    wanted = tuple(shards[name] for name in numbers)
    for shard in wanted if remote is None else ():
        check_shard(folder, shard)
    indexes = [read_index(folder, shard) for shard in wanted]
    columns = []
    for one in slices:
        number = numbers[one.shard]
        record = np.arange(one.skip, one.skip + one.take, dtype=np.int64)
        columns.append((np.full_like(record, number), record, *indexes[number][record].T))
    frames = Frames(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return Records(_Shards(folder, wanted, remote), frames, verify_crc=verify_crc)


def _opened(folder: Path, shards: tuple[Shard, ...], number: int) -> _Descriptor:
    path = f"{folder}/{shards[number].name}"
    try:
        file = _Descriptor(regular_descriptor(path))
    except OSError as error:
        raise DatasetError(path, f"cannot be read ({error})", way_out(folder)) from error
    check_size(path, os.fstat(file.number).st_size, shards[number].num_bytes, folder)
    return file
