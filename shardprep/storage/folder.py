"""A folder of named files, each complete or absent, on a disk or in object storage.

Names may hold slashes. A folder is a small value that travels to workers; what it needs to reach
its files, each process makes for itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shardprep.errors import StorageError
from shardprep.storage import objects
from shardprep.storage.atomic_file import DurableFile
from shardprep.storage.regular_file import read_regular, sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from shardprep.storage.url import ObjectUrl

_MAX_READ_BYTES = 4 << 30
"""Size in bytes of a file that is read as a whole: what a build remembers of a shard."""


class Written(NamedTuple):
    """Size and hash of a file when it was completed."""

    num_bytes: int
    sha256: str
    """Hex."""
    mark: str
    """ETag of the object; "" on a disk."""


class NewFile(Protocol):
    """A file that exists under its name only after `commit`."""

    @property
    def stream(self) -> BinaryIO:
        """For libraries that write to a file object; do not close it."""

    def write(self, data: bytes | bytearray) -> None:
        """Append the bytes."""

    def commit(self) -> str | None:
        """Give the file its name, at once and for good.

        Returns what vouches for its content: an ETag, None where only its bytes do.
        """

    def abandon(self) -> None:
        """Leave no trace; does nothing after `commit`."""


class Folder(Protocol):
    """Named files."""

    def located(self, name: str) -> str:
        """Return where a file is, for people."""

    def new_file(self, name: str) -> NewFile:
        """Begin a file, to take the place of one of that name."""

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file at once, complete or not at all."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a whole file only where there is none; False where there is one."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, None where there is none."""

    def holds(self, name: str, written: Written) -> bool:
        """Tell whether a file is there with the content that was written."""

    def sha256(self, name: str) -> str:
        """Return the hash of a file that is there, hex."""

    def names(self) -> Sequence[str]:
        """Return the names of all files, sorted."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove files; those that are not there are no matter."""

    def free_bytes(self) -> int | None:
        """Return the room that is left, None where nothing says it."""


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder on a disk."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def located(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.path / name)

    def new_file(self, name: str) -> NewFile:
        """Begin a file beside its name, under one that no other process takes."""
        return self._new_file(name)

    def _new_file(self, name: str) -> DurableFile:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return DurableFile(path, os.urandom(4).hex())

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file durably."""
        file = self._new_file(name)
        try:
            file.write(data)
            file.commit()
        finally:
            file.abandon()

    def create(self, name: str, data: bytes) -> bool:
        """Write a whole file durably where there is none."""
        file = self._new_file(name)
        try:
            file.write(data)
            return file.commit_new()
        finally:
            file.abandon()

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, None where there is none."""
        try:
            return read_regular(self.path / name, _MAX_READ_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def holds(self, name: str, written: Written) -> bool:
        """Compare the bytes of a file."""
        path = self.path / name
        is_as_long = path.is_file() and path.stat().st_size == written.num_bytes
        return is_as_long and self.sha256(name) == written.sha256

    def sha256(self, name: str) -> str:
        """Return the hash of a file."""
        return sha256_of(self.path / name)

    def names(self) -> list[str]:
        """Return the paths of all files below."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.path)) for path in files)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        """Return what the disk has left."""
        return shutil.disk_usage(self.path).free


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """All objects below a key."""

    url: ObjectUrl

    def __str__(self) -> str:
        return str(self.url)

    def located(self, name: str) -> str:
        """Return the address of an object."""
        return str(self.url / name)

    def new_file(self, name: str) -> NewFile:
        """Begin an object on this machine's disk; it is sent when it is committed."""
        return _ObjectFile(self.url / name)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole object at once."""
        objects.put(self.url / name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only where there is none; False where there is one."""
        return objects.create(self.url / name, data)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of an object, None where there is none."""
        return objects.get(self.url / name)

    def holds(self, name: str, written: Written) -> bool:
        """Compare length and ETag with those at the end of the upload, only else the bytes.

        The same bytes have another ETag where another build, or another version, has sent them.
        """
        facts = objects.head(self.url / name)
        if facts is None or facts.num_bytes != written.num_bytes:
            return False
        return facts.etag == written.mark != "" or self.sha256(name) == written.sha256

    def sha256(self, name: str) -> str:
        """Return the hash of an object, all of which is read for it."""
        return objects.sha256(self.url / name)

    def names(self) -> list[str]:
        """Return the names of all objects below."""
        return [facts.name for facts in objects.listing(self.url)]

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""
        objects.delete([self.url / name for name in names])

    def free_bytes(self) -> int | None:
        """Return None: a bucket has no end."""
        return None


@dataclass(frozen=True, slots=True)
class LayeredFolder:
    """Objects below a key, and under them those of another one, of which none is ever changed."""

    above: ObjectFolder
    below: ObjectFolder

    def __str__(self) -> str:
        return str(self.above)

    def located(self, name: str) -> str:
        """Return the address that an object has, or would have, above."""
        return self.above.located(name)

    def new_file(self, name: str) -> NewFile:
        """Begin an object above."""
        return self.above.new_file(name)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole object above."""
        self.above.write(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object above where there is none; False where there is one."""
        return self.above.create(name, data)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of an object above, else of that below, None where there is none."""
        found = self.above.read(name)
        return self.below.read(name) if found is None else found

    def holds(self, name: str, written: Written) -> bool:
        """Compare an object as `ObjectFolder`; what lies below counts where nothing is above."""
        return self._layer(name).holds(name, written)

    def sha256(self, name: str) -> str:
        """Return the hash of an object, all of which is read for it."""
        return self._layer(name).sha256(name)

    def _layer(self, name: str) -> ObjectFolder:
        return self.below if objects.head(self.above.url / name) is None else self.above

    def names(self) -> list[str]:
        """Return the names of all objects above: those below are of another."""
        return self.above.names()

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects above."""
        self.above.remove(names)

    def free_bytes(self) -> int | None:
        """Return None: a bucket has no end."""
        return None


class _ObjectFile:
    """Bytes on their way to a store: kept on the disk, so that an upload can be tried again."""

    def __init__(self, url: ObjectUrl) -> None:
        self._url = url
        with _spooling():
            self._file = tempfile.NamedTemporaryFile(prefix="shardprep-")  # noqa: SIM115 - lives on
        self.stream: BinaryIO = self._file.file  # type: ignore[assignment]

    def write(self, data: bytes | bytearray) -> None:
        with _spooling():
            self.stream.write(data)

    def commit(self) -> str:
        with _spooling():
            self.stream.flush()
        mark = objects.put(self._url, Path(self._file.name))
        self._file.close()
        return mark

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # what was not written yet is not wanted
            self._file.close()


@contextlib.contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            tempfile.gettempdir(),
            f"cannot be written ({error.strerror}), and shards are kept there until they are sent",
            "free some space, or set TMPDIR to another folder",
        ) from error
