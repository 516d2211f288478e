"""The files of a dataset in a folder, and the check that they still belong to the same dataset.

A build with `--overwrite` replaces the folder of a dataset by a rename, so the same path can lead
to another dataset at any moment. For this reason the manifest is checked after a file was opened:
if the folder still has the same manifest then, the file belongs to that dataset, and it stays
readable while it is open. Object storage has ETags for the same purpose. Both raise
`ChangedError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.index import check_shard, open_shard, way_out
from shardprep.dataset.manifest import MANIFEST_FILE, Manifest, Shard, load_manifest
from shardprep.errors import DatasetError, RecordError
from shardprep.storage.regular_file import open_regular, read_at, read_open, regular_descriptor
from shardprep.storage.store import changed


class _FileStatus(NamedTuple):
    device: int
    inode: int
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(slots=True)
class LocalFiles:
    """The files of the dataset that a folder had when it was found. Can be pickled."""

    folder: Path
    sha256: str
    """SHA-256 of the manifest's file in hexadecimal, "" if it cannot be read."""
    _checked: _FileStatus | None = field(default=None, compare=False)
    """Status of the manifest's file when its hash was last compared."""
    is_remote: ClassVar[bool] = False

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the files that a folder has now, damaged or not."""
        files = cls(folder, "")
        files.sha256 = files._hash_manifest()
        return files

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> Self:
        """Return the files of the dataset whose manifest was read from a folder."""
        # A manifest whose text differs from what it would be written as is refused by the reader.
        return cls(folder, hashlib.sha256(manifest.text().encode()).hexdigest())

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def place(self) -> Path:
        """The dataset's folder."""
        return self.folder

    @property
    def manifest_mark(self) -> str:
        """Changes with the content of the manifest: its SHA-256."""
        return self.sha256

    def with_manifest(self) -> tuple[Self, Manifest]:
        """Read the manifest; return the files that belong to it, and the manifest."""
        manifest = load_manifest(self.folder)
        return self.of(self.folder, manifest), manifest

    @contextlib.contextmanager
    def documents(self, manifest: Manifest, names: Sequence[str] = ()) -> Iterator[Path]:
        """Give the folder that has the documents; open them in this block.

        Raises ChangedError if the dataset was replaced.
        """
        del manifest, names  # all are there
        with self.unchanged():
            yield self.folder

    def check(self) -> None:
        """Raise ChangedError if the folder has another dataset now, or none.

        Another file with the same bytes is the manifest of the same dataset.
        """
        with contextlib.suppress(OSError):
            if self._checked == _FileStatus.of(os.lstat(self.folder / MANIFEST_FILE)):
                return
        if self._hash_manifest() != self.sha256:
            raise changed(str(self.folder))

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise ChangedError after a block that opened files if the dataset was replaced.

        A missing or damaged file of a replaced dataset is reported as the replacement.
        """
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
                data = read_open(file, MAX_DOCUMENT_BYTES)
                sha256 = hashlib.sha256(data).hexdigest()
                if sha256 == self.sha256:
                    self._checked = _FileStatus.of(os.fstat(file.fileno()))
        except OSError:
            return ""
        return sha256

    def location(self, name: str) -> str:
        """Return the path of a file, which need not exist."""
        return str(self.folder / name)

    def check_shards(self, shards: Sequence[Shard]) -> None:
        """Raise DatasetError if a shard is missing or has another size than in the manifest."""
        with self.unchanged():
            for shard in shards:
                check_shard(self.folder, shard)

    def read(self, shard: str, offset: int, num_bytes: int) -> bytes:
        """Return bytes of a shard, fewer where it ends before. Neither number is trusted.

        Raises:
            ChangedError: the dataset was replaced.
            DatasetError: the shard cannot be read.

        """
        try:
            with self.unchanged():
                descriptor = regular_descriptor(self.folder / shard)
                try:
                    num_bytes = min(num_bytes, os.fstat(descriptor).st_size)
                    return read_at(descriptor, num_bytes, max(offset, 0))
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise self._unreadable(shard, error) from error

    def blocks(self, shard: Shard, sizes: Sequence[int]) -> Iterator[bytes]:
        """Yield a shard from its start in blocks of given sizes; shorter ones where it ends.

        Raises as `read`, and DatasetError if the shard has another size than in the manifest.
        """
        with self.unchanged():
            descriptor = open_shard(self.folder, shard)
        with io.FileIO(descriptor, "rb") as raw, io.BufferedReader(raw) as file:
            for size in sizes:
                try:
                    yield file.read(size)
                except OSError as error:
                    raise self._unreadable(shard.name, error) from error

    def _unreadable(self, shard: str, error: OSError) -> DatasetError:
        what = f"cannot be read ({error.strerror or error})"
        return DatasetError(f"{self.folder}/{shard}", what, way_out(self.folder))
