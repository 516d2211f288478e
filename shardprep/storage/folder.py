"""A folder of named files, each complete or absent, on a disk or in object storage.

Names may contain slashes. A folder is a small value that can be sent to workers. Each process opens
its own connections.

On a disk, a file is written under a temporary name and renamed (`DurableFile`). An object needs no
temporary name: the store shows it only when its upload is complete. Its bytes are collected in a
local file first (`ObjectFile`), because a failed upload is repeated from the start.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from shardprep.errors import StorageError
from shardprep.storage import objects
from shardprep.storage.atomic_file import DurableFile, sibling, write_pieces
from shardprep.storage.regular_file import read_regular, sha256_of
from shardprep.storage.space import shortage
from shardprep.storage.url import ObjectUrl

_MAX_READ_BYTES = 4 << 30
"""Largest file that `LocalFolder.read` returns, in bytes; the receipts of a build can be large."""


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder on a disk."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def located(self, name: str) -> str:
        return str(self.path / name)

    def new_file(self, name: str, token: str = "") -> DurableFile:
        """Return an open temporary file, which `commit` renames to `name`; see also `abandon`."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return DurableFile(path, is_shared=True, token=token)

    def abandon(self, name: str, token: str) -> None:
        """Remove the temporary file that a dead process opened with this token."""
        sibling(self.path / name, token).unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        with self.new_file(name) as file:
            file.write(data)
            file.commit()

    def create(self, name: str, data: bytes) -> bool:
        """Write a file and return True; return False, without writing, if it exists already."""
        with self.new_file(name) as file:
            file.write(data)
            return file.commit_new()

    def read(self, name: str) -> bytes | None:
        try:
            return read_regular(self.path / name, _MAX_READ_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def holds(self, name: str, num_bytes: int, sha256: str, _etag: str) -> bool:
        """Return True if the file has this size in bytes and this SHA-256."""
        path = self.path / name
        is_as_long = path.is_file() and path.stat().st_size == num_bytes
        return is_as_long and self.sha256(name) == sha256

    def sha256(self, name: str) -> str:
        return sha256_of(self.path / name)

    def names(self) -> list[str]:
        files = (path for path in self.path.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.path).as_posix() for path in files)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def shortage(self, num_bytes: int) -> str:
        """Return a message if the disk cannot take `num_bytes` more, otherwise ""."""
        return shortage(self.path, num_bytes)


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """All objects below a key."""

    url: ObjectUrl
    below: ObjectUrl | None = None
    """Read-only fallback: names that are missing below `url` are read below this key."""

    def __str__(self) -> str:
        return str(self.url)

    def located(self, name: str) -> str:
        return str(self.url / name)

    def new_file(self, name: str, _token: str = "") -> ObjectFile:
        return ObjectFile(self.url / name)

    def abandon(self, _name: str, _token: str) -> None:
        """Do nothing: the system removed the temporary file of the dead process."""

    def write(self, name: str, data: bytes) -> None:
        objects.put(self.url / name, data)

    def create(self, name: str, data: bytes) -> bool:
        return objects.create(self.url / name, data)

    def read(self, name: str) -> bytes | None:
        found = objects.get(self.url / name)
        return objects.get(self.below / name) if found is None and self.below else found

    def holds(self, name: str, num_bytes: int, sha256: str, etag: str) -> bool:
        """Return True if size and SHA-256 are equal. An equal ETag proves this without reading."""
        facts = objects.head(self._found(name))
        if facts is None or facts.num_bytes != num_bytes:
            return False
        return facts.etag == etag != "" or self.sha256(name) == sha256

    def sha256(self, name: str) -> str:
        return objects.sha256(self._found(name))

    def _found(self, name: str) -> ObjectUrl:
        url = self.url / name
        return self.below / name if self.below and objects.head(url) is None else url

    def names(self) -> list[str]:
        return [facts.name for facts in objects.listing(self.url)]

    def remove(self, names: Sequence[str]) -> None:
        objects.delete([self.url / name for name in names])

    def shortage(self, _num_bytes: int) -> str:
        return ""


Folder = LocalFolder | ObjectFolder


class ObjectFile:
    """A new object, collected in an unnamed temporary file until `commit` uploads it."""

    def __init__(self, url: ObjectUrl) -> None:
        self._url = url
        with _spooling():
            self.stream: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `abandon`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with _spooling():
            write_pieces(self.stream, data)

    def commit(self) -> str:
        """Upload the object and return its ETag. The store shows only complete objects."""
        with _spooling():
            self.stream.flush()
        mark = objects.put(self._url, self.stream)
        self.stream.close()
        return mark

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # unwritten bytes are not needed
            self.stream.close()


@contextlib.contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            tempfile.gettempdir(),
            f"cannot be written ({error.strerror}), but shards are collected there before upload",
            "free some space there, or set TMPDIR to another folder",
        ) from error
