"""A folder of named files, each complete or absent, on a disk or in object storage.

Names may hold slashes. A folder is a small value that travels to workers; what it needs to reach
its files, each process makes for itself.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import StorageError
from shardprep.storage import objects
from shardprep.storage.atomic_file import DurableFile, sibling, write_pieces
from shardprep.storage.regular_file import read_regular, sha256_of
from shardprep.storage.space import shortage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, Self

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


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder on a disk."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def located(self, name: str) -> str:
        """Return where a file is, for people."""
        return str(self.path / name)

    def new_file(self, name: str, token: str = "") -> DurableFile:
        """Begin a file, to take the place of one of that name; by the token `abandon` finds it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return DurableFile(path, is_shared=True, token=token)

    def abandon(self, name: str, token: str) -> None:
        """Remove what a process has left of a file that has died before it was complete."""
        sibling(self.path / name, token).unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file at once, complete or not at all."""
        with self.new_file(name) as file:
            file.write(data)
            file.commit()

    def create(self, name: str, data: bytes) -> bool:
        """Write a whole file only where there is none; False where there is one."""
        with self.new_file(name) as file:
            file.write(data)
            return file.commit_new()

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, None where there is none."""
        try:
            return read_regular(self.path / name, _MAX_READ_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def holds(self, name: str, written: Written) -> bool:
        """Tell whether a file is there with the content that was written."""
        path = self.path / name
        is_as_long = path.is_file() and path.stat().st_size == written.num_bytes
        return is_as_long and self.sha256(name) == written.sha256

    def sha256(self, name: str) -> str:
        """Return the hash of a file that is there, hex."""
        return sha256_of(self.path / name)

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.path).as_posix() for path in files)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files; those that are not there are no matter."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def shortage(self, num_bytes: int) -> str:
        """Return in words the reason for which so many bytes do not fit, "" where they do."""
        return shortage(self.path, num_bytes)


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """All objects below a key."""

    url: ObjectUrl
    below: ObjectUrl | None = None
    """A key with objects that are read where there is none of their name; they are not changed."""

    def __str__(self) -> str:
        return str(self.url)

    def located(self, name: str) -> str:
        """Return the address that an object has, or would have."""
        return str(self.url / name)

    def new_file(self, name: str, _token: str = "") -> ObjectFile:
        """Begin an object, to take the place of one of that name."""
        return ObjectFile(self.url / name)

    def abandon(self, _name: str, _token: str) -> None:
        """Do nothing: what was not sent has gone with its process."""

    def write(self, name: str, data: bytes) -> None:
        """Write a whole object at once."""
        objects.put(self.url / name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only where there is none; False where there is another one."""
        return objects.create(self.url / name, data)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of an object, None where there is none."""
        found = objects.get(self.url / name)
        return objects.get(self.below / name) if found is None and self.below else found

    def holds(self, name: str, written: Written) -> bool:
        """Compare length and ETag with those at the end of the upload, only else the bytes.

        The same bytes have another ETag where another build, or another version, has sent them.
        """
        facts = objects.head(self._found(name))
        if facts is None or facts.num_bytes != written.num_bytes:
            return False
        return facts.etag == written.mark != "" or self.sha256(name) == written.sha256

    def sha256(self, name: str) -> str:
        """Return the hash of an object, all of which is read for it, hex."""
        return objects.sha256(self._found(name))

    def _found(self, name: str) -> ObjectUrl:
        """Return the address at which an object is read."""
        url = self.url / name
        return self.below / name if self.below and objects.head(url) is None else url

    def names(self) -> list[str]:
        """Return the names of all objects, without those `below`."""
        return [facts.name for facts in objects.listing(self.url)]

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects."""
        objects.delete([self.url / name for name in names])

    def shortage(self, _num_bytes: int) -> str:
        """Return "": a bucket has no end."""
        return ""


Folder = LocalFolder | ObjectFolder


class ObjectFile:
    """Bytes on their way to a store: kept on the disk, so that an upload can be tried again.

    Their file has no name, so that the system removes it with the process.
    """

    def __init__(self, url: ObjectUrl) -> None:
        """Begin without bytes; `stream` is for libraries that write to a file object."""
        self._url = url
        with _spooling():
            self.stream: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes."""
        with _spooling():
            write_pieces(self.stream, data)

    def commit(self) -> str:
        """Send the object, which exists from then on; return its ETag."""
        with _spooling():
            self.stream.flush()
        mark = objects.put(self._url, self.stream)
        self.stream.close()
        return mark

    def abandon(self) -> None:
        """Leave no trace; does nothing after `commit`."""
        with contextlib.suppress(OSError):  # what was not written yet is not wanted
            self.stream.close()


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
