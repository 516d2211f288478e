"""The records of a split by number: any one of them in one step, out of mapped memory.

Where they are is read from `index/<shard>.idx`, and believed only as far as the manifest bears it
out: as many records, one right after the other, up to the very end of the shard.
"""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from shardprep.dataset.index import check_shard, check_size, read_index, way_out
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.dataset.tfrecord import FOOTER_BYTES, HEADER_BYTES, unframe
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.remote_shards import Part
from shardprep.storage.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from shardprep.dataset.manifest import Manifest, Shard
    from shardprep.reader.remote_shards import RemoteShards
    from shardprep.reader.splits import ShardSlice

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Int64s = np.ndarray[Any, np.dtype[np.int64]]

_MAX_MAPPED = 512
"""Shards mapped at a time: each takes one of the file descriptors, of which many a system gives a
process 1,024."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where records are: the number of the shard, the record in it, bytes from its beginning."""

    shard: Int64s
    record: Int64s
    offset: Int64s
    length: Int64s
    """Bytes of the whole frame."""

    def __getitem__(self, wanted: slice) -> _Places:
        return _Places(*(column[wanted] for column in self._columns()))

    def _columns(self) -> tuple[Int64s, ...]:
        return self.shard, self.record, self.offset, self.length


class _Shards:
    """Shards, each mapped when it is first read; a copy in another process maps for itself."""

    def __init__(
        self, folder: Path, shards: tuple[Shard, ...], remote: RemoteShards | None
    ) -> None:
        """Take the dataset's folder and its shards as the manifest has them; `remote` is where
        they are if not in the folder."""  # noqa: D205, D209 - one sentence
        self.folder = folder
        self.shards = shards
        self.remote = remote
        self.mapped = lru_cache(_MAX_MAPPED)(partial(_mapped, folder, shards))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shards, (self.folder, self.shards, self.remote)

    def located(self, number: int) -> str:
        """Return where a shard is, for people."""
        name = self.shards[number].name
        return str(self.folder / name) if self.remote is None else self.remote.located(name)

    def way_out(self) -> str:
        """Return what to do where a record is damaged."""
        if self.remote is not None:
            dataset = self.located(0).rpartition("/")[0]
        elif (self.folder / MANIFEST_FILE).is_file():
            dataset = str(self.folder)
        else:
            return f"remove {self.folder}, a cache that is made again"
        return way_out(dataset)


class Records:
    """A sequence of payloads. Cheap to slice, to pickle and to read from many threads.

    A shard that is cut while it is mapped ends the process when it is read there, as with any
    mapped file; one that was replaced by a rename is still read as it was.
    """

    def __init__(self, shards: _Shards, places: _Places, *, verify_crc: bool) -> None:
        self._shards = shards
        self._places = places
        self._verify_crc = verify_crc

    def __len__(self) -> int:
        return len(self._places.shard)

    def __getitem__(self, wanted: slice) -> Records:
        return Records(self._shards, self._places[wanted], verify_crc=self._verify_crc)

    def payload(self, number: int) -> memoryview:
        """Return the payload of a record, 0 ≤ number < len: a view into its shard, not a copy.

        Raises:
            RecordError: it is damaged.
            DatasetError: its shard is gone, or is another than it was.

        """
        if self._shards.remote is not None:
            return memoryview(self._remote_payload(number, self._shards.remote))
        places = self._places
        offset, length = places.offset.item(number), places.length.item(number)
        framed = self._shards.mapped(places.shard.item(number))[offset : offset + length]
        if not self._verify_crc:
            return framed[HEADER_BYTES:-FOOTER_BYTES].data
        try:
            return unframe(framed, "", offset).data
        except RecordError as error:
            raise self.damaged(number, error.what) from error

    @property
    def is_remote(self) -> bool:
        """Whether a record may have to come from object storage."""
        return self._shards.remote is not None

    def _remote_payload(self, number: int, remote: RemoteShards) -> bytes:
        places = self._places
        shard = self._shards.shards[places.shard.item(number)].name
        part = Part(shard, places.offset.item(number), places.length.item(number))
        framed = remote.read(part)
        if not self._verify_crc:
            return framed[HEADER_BYTES:-FOOTER_BYTES]
        try:
            return unframe(framed, "", part.start)
        except RecordError:  # of a copy that the disk has damaged, or of the shard itself
            remote.drop(shard)
        try:
            return unframe(remote.read_anew(part), "", part.start)
        except RecordError as error:
            raise self.damaged(number, error.what) from error

    def damaged(self, number: int, what: str) -> RecordError:
        """Return the error that says `what` is wrong with a record, and where it is."""
        places = self._places
        offset = int(places.offset[number])
        where = f"{self._shards.located(places.shard.item(number))}, record {places.record[number]}"
        return RecordError(where, what, self._shards.way_out(), offset=offset)

    @cached_property
    def digest(self) -> str:
        """A hash of which records these are, in their order: what their shards hold, and where."""
        made = hashlib.sha256("".join(shard.sha256 for shard in self._shards.shards).encode())
        made.update(self._places.shard.tobytes())
        made.update(self._places.offset.tobytes())
        return made.hexdigest()[:16]


def open_records(
    folder: Path,
    manifest: Manifest,
    slices: list[ShardSlice],
    remote: RemoteShards | None,
    *,
    verify_crc: bool,
) -> Records:
    """Return the records that slices of a dataset's shards mean, in their order.

    Args:
        folder: of the dataset; of its documents, where the shards are `remote`.
        manifest: of the dataset.
        slices: of its shards.
        remote: where the shards are if not in the folder, checked for their sizes.
        verify_crc: compare the checksums of each record that is read.

    Raises:
        DatasetError: a shard or an index is missing, or is not what the manifest says.

    """
    by_name = manifest.shards
    shards = tuple(by_name[name] for name in dict.fromkeys(one.shard for one in slices))
    for shard in shards if remote is None else ():
        check_shard(folder, shard)
    indices = {shard.name: read_index(folder, shard) for shard in shards}
    frames = [indices[one.shard][one.skip : one.skip + one.take] for one in slices]
    return _records(_Shards(folder, shards, remote), slices, frames, verify_crc=verify_crc)


def records_at(
    folder: Path, shards: Iterable[Shard], slices: list[ShardSlice], frames: list[Int64s]
) -> Records:
    """Return the records of slices whose frames are known, in their order.

    Args:
        folder: where the shards lie.
        shards: those that the slices are of.
        slices: of the shards.
        frames: for each slice int64[records, 2], offset and length of each frame.

    """
    return _records(_Shards(folder, tuple(shards), None), slices, frames, verify_crc=True)


def _records(
    shards: _Shards, slices: list[ShardSlice], frames: list[Int64s], *, verify_crc: bool
) -> Records:
    numbers = {shard.name: number for number, shard in enumerate(shards.shards)}
    columns = [
        (
            np.full(one.take, numbers[one.shard], np.int64),
            np.arange(one.skip, one.skip + one.take, dtype=np.int64),
            *found.T,
        )
        for one, found in zip(slices, frames, strict=True)
    ]
    places = _Places(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return Records(shards, places, verify_crc=verify_crc)


def _mapped(folder: Path, shards: tuple[Shard, ...], number: int) -> Bytes:
    path = f"{folder}/{shards[number].name}"
    try:
        with open_regular(path) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: it is empty now
        raise DatasetError(path, f"cannot be read ({error})", way_out(folder)) from error
    check_size(path, len(mapped), shards[number].num_bytes, folder)
    return np.frombuffer(mapped, np.uint8)
