"""Where py7zr writes members: all into one file, whatever they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from py7zr.io import Py7zIO, WriterFactory

if TYPE_CHECKING:
    from shardprep.source.unpack import UnpackedFile


@dataclass(slots=True)
class Part:
    """One member in the common file."""

    name: str
    offset: int = 0
    num_bytes: int = 0


class _Appender(Py7zIO):
    """Writes one member behind those before it."""

    def __init__(self, out: UnpackedFile, part: Part) -> None:
        self.out = out
        self.part = part

    def write(self, s: bytes | bytearray) -> int:
        if self.part.num_bytes == 0:
            self.part.offset = self.out.place.num_bytes
        self.part.num_bytes += len(s)
        return self.out.write(s)

    def read(self, size: int | None = None) -> bytes:
        del size
        return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        del offset, whence
        return 0

    def flush(self) -> None:
        """Leave that to the end."""

    def size(self) -> int:
        return self.part.num_bytes


class AppendFactory(WriterFactory):
    """Hands py7zr a writer for each member; `parts` says where they went, in their order."""

    def __init__(self, out: UnpackedFile) -> None:
        """Append to `out`, which the caller closes."""
        self.out = out
        self.parts: list[Part] = []

    def create(self, filename: str) -> Py7zIO:
        """Return the writer of the next member."""
        part = Part(filename)
        self.parts.append(part)
        return _Appender(self.out, part)
