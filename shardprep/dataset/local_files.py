"""The files of a dataset in a folder, and a check that the dataset was not replaced.

A build with `--overwrite` replaces the folder of a dataset by a rename, so the same path can lead
to another dataset at any moment. Therefore the manifest is checked after a file was opened. If the
folder still has the same manifest, the file belongs to that dataset and stays readable while it is
open. Otherwise the check raises `ChangedError`. Object storage has ETags for the same purpose.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.folder import index_name
from shardprep.dataset.manifest import MANIFEST_FILE, REPACKED, Manifest, Shard, load_manifest
from shardprep.dataset.tfrecord import FRAME_BYTES
from shardprep.errors import DatasetError, RecordError, command_line, counted
from shardprep.storage.regular_file import (
    open_regular,
    opened_regular,
    read_at,
    read_open,
    read_regular,
    regular_size,
)
from shardprep.storage.store import changed
from shardprep.storage.url import is_url

ShardIndex = np.ndarray[Any, np.dtype[np.int64]]

_MAX_LINE_BYTES = 41
"""Maximum bytes of a line of an index: two 64-bit numbers, a space and the end of the line."""
_NUMERALS = b"0123456789 \n"


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(slots=True)
class LocalFiles:
    """The files of one dataset in a folder; its manifest identifies the dataset. Can be pickled."""

    folder: Path
    manifest_mark: str
    """SHA-256 of the manifest's file in hexadecimal, or "" if the file cannot be read."""
    _checked: tuple[int, ...] | None = field(default=None, compare=False)
    is_remote: ClassVar[bool] = False

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the files of the dataset that is now in a folder, even without a manifest."""
        files = cls(folder, "")
        files.manifest_mark = files._hash_manifest()
        return files

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def place(self) -> Path:
        return self.folder

    def with_manifest(self) -> tuple[Self, Manifest]:
        """Return new `LocalFiles`, identified by the current manifest, and this manifest."""
        manifest = load_manifest(self.folder)
        # `load_manifest` refuses a manifest whose bytes differ from its `text`.
        sha256 = hashlib.sha256(manifest.text().encode()).hexdigest()
        return type(self)(self.folder, sha256), manifest

    @contextlib.contextmanager
    def documents(self, manifest: Manifest, names: Sequence[str] = ()) -> Iterator[Path]:
        """Yield the folder. ChangedError after the block if the dataset was replaced."""
        del manifest, names  # a folder has all documents
        with self.unchanged():
            yield self.folder

    def check(self) -> None:
        """Raise ChangedError if the folder now has no manifest, or one with other bytes.

        The manifest is read again only if its inode, size or modification time changed.
        """
        with contextlib.suppress(OSError):
            if self._checked == _state(os.lstat(self.folder / MANIFEST_FILE)):
                return
        if self._hash_manifest() != self.manifest_mark:
            raise changed(str(self.folder))

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """After the block, even a failed one, raise ChangedError if the dataset was replaced."""
        try:
            yield
        except (DatasetError, RecordError, OSError):
            self.check()
            raise
        self.check()

    def _hash_manifest(self) -> str:
        self._checked = None
        try:
            with open_regular(self.folder / MANIFEST_FILE) as file:
                sha256 = hashlib.sha256(read_open(file, MAX_DOCUMENT_BYTES)).hexdigest()
                if sha256 == self.manifest_mark:
                    self._checked = _state(os.fstat(file.fileno()))
        except OSError:
            return ""
        return sha256

    def location(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def check_shards(self, shards: Sequence[Shard]) -> None:
        with self.unchanged():
            for shard in shards:
                check_shard(self.folder, shard)

    def read(self, shard: str, offset: int, num_bytes: int) -> bytes:
        """Return `num_bytes` of a shard from `offset`, or fewer if the shard ends before.

        ChangedError if the dataset was replaced, DatasetError if the shard cannot be read.
        """
        try:
            with self.unchanged(), open_regular(self.folder / shard) as file:
                num_bytes = min(num_bytes, os.fstat(file.fileno()).st_size)
                return read_at(file.fileno(), num_bytes, max(offset, 0))
        except OSError as error:
            raise _unreadable(f"{self.folder}/{shard}", error, self.folder) from error

    def blocks(self, shard: Shard, sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield a shard in blocks of these sizes, shorter at its end. Errors as in `read`."""
        with self.unchanged():
            descriptor = open_shard(self.folder, shard)
        with io.FileIO(descriptor, "rb") as raw, io.BufferedReader(raw) as file:
            for size in sizes:
                try:
                    yield file.read(size)
                except OSError as error:
                    raise _unreadable(f"{self.folder}/{shard.name}", error, self.folder) from error


def read_index(folder: Path, shard: Shard) -> ShardIndex:
    """Return offset and length in bytes of every frame of a shard, int64[records, 2].

    DatasetError if the index is missing or damaged, or its frames do not cover the whole shard.
    """
    path = f"{folder}/{index_name(shard.name)}"  # a thousand Path objects are slow
    try:
        text = read_regular(path, _MAX_LINE_BYTES * shard.num_records)
    except FileNotFoundError as error:
        raise DatasetError(path, "is missing", way_out(folder)) from error
    except OSError as error:
        raise _unreadable(path, error, folder) from error
    if text.translate(None, _NUMERALS):
        raise DatasetError(path, "is damaged: it must hold only numbers", way_out(folder))
    numbers = np.fromstring(text, np.int64, sep=" ") if text else np.empty(0, np.int64)
    frames = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
    if len(frames) != shard.num_records:
        what = f"has {counted(len(frames), 'record')}, but the manifest says {shard.num_records:,}"
        raise DatasetError(path, what, way_out(folder))
    if len(numbers) % 2 or not _is_chain(frames, shard.num_bytes):
        raise DatasetError(path, "is damaged: its records have gaps or overlap", way_out(folder))
    return frames


def _is_chain(frames: ShardIndex, num_bytes: int) -> bool:
    if not len(frames):
        return num_bytes == 0
    offsets, lengths = frames[:, 0], frames[:, 1]
    # Checked before the sums, because sums of untrusted numbers may exceed 64 bits.
    if frames.max() > num_bytes or lengths.min() < FRAME_BYTES:
        return False
    ends = offsets + lengths
    joined = (offsets[1:] == ends[:-1]).all()
    return bool(joined and offsets[0] == 0 and ends[-1] == num_bytes)


def check_shard(folder: Path, shard: Shard) -> None:
    """Raise DatasetError unless a shard is a regular file of the manifest's size."""
    path = f"{folder}/{shard.name}"
    try:
        size = regular_size(path)
    except OSError as error:
        raise _unreadable(path, error, folder) from error
    check_size(path, size, shard.num_bytes, folder)


def open_shard(folder: Path, shard: Shard) -> int:
    """Return a descriptor for reading a shard; the caller closes it. Errors as in `check_shard`."""
    path = f"{folder}/{shard.name}"
    try:
        descriptor, num_bytes = opened_regular(path)
    except FileNotFoundError:
        check_size(path, None, shard.num_bytes, folder)
        raise
    except OSError as error:
        raise _unreadable(path, error, folder) from error
    try:
        check_size(path, num_bytes, shard.num_bytes, folder)
    except DatasetError:
        os.close(descriptor)
        raise
    return descriptor


def _unreadable(path: str, error: OSError, dataset: Path) -> DatasetError:
    return DatasetError(path, f"cannot be read ({error.strerror or error})", way_out(dataset))


def way_out(dataset: Path | str) -> str:
    """Return the hint of an error on a missing or damaged shard or index."""
    repair = command_line("verify", dataset, "--repair --source SOURCE")
    again = "`shardprep repack` again with --overwrite"
    if is_url(str(dataset)):  # its manifest is not at hand
        repair += f" (a repacked dataset has no source: run {again})"
    elif _is_repacked(str(dataset)):
        repair = again
    return f"copy the dataset again, or run {repair}"


@functools.lru_cache(maxsize=8)
def _is_repacked(folder: str) -> bool:
    with contextlib.suppress(DatasetError):
        return REPACKED in load_manifest(Path(folder)).fingerprint.versions
    return False


def check_size(path: str, actual: int | None, expected: int, dataset: Path) -> None:
    """Raise DatasetError if sizes differ: a file cut between two records passes every checksum."""
    if actual != expected:
        what = "is missing" if actual is None else f"has {actual:,} bytes"
        raise DatasetError(
            path, f"{what}, but the manifest says {expected:,} bytes", way_out(dataset)
        )
