"""Members of a 7z for py7zr: all are written into one file, whatever they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py7zr.io import Py7zIO, WriterFactory

if TYPE_CHECKING:
    from shardprep.source.unpack import UnpackedFile


class _EntryWriter(Py7zIO):
    """Appends one member to the common file, and keeps its offset and size there in bytes."""

    def __init__(self, name: str, out: UnpackedFile) -> None:
        """Begin a member without bytes."""
        self.name = name
        self.offset = 0
        self.num_bytes = 0
        self._out = out

    def write(self, s: bytes | bytearray) -> int:
        if self.num_bytes == 0:
            self.offset = self._out.place.num_bytes
        self.num_bytes += len(s)
        return self._out.write(s)

    def read(self, size: int | None = None) -> bytes:
        del size
        return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        del offset, whence
        return 0

    def flush(self) -> None:
        """Leave that to the end."""

    def size(self) -> int:
        return self.num_bytes


class EntryWriters(WriterFactory):
    """The writers of all members, in the order of the archive."""

    def __init__(self, out: UnpackedFile) -> None:
        """Append to `out`, which the caller closes."""
        self.entries: list[_EntryWriter] = []
        self._out = out

    def create(self, filename: str) -> Py7zIO:
        """Return the writer of the next member."""
        self.entries.append(_EntryWriter(filename, self._out))
        return self.entries[-1]
