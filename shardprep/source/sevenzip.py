"""List the members of a 7z archive, after unpacking all into one file, never under their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import py7zr
from py7zr.io import Py7zIO, WriterFactory

from shardprep.errors import SourceError, shown
from shardprep.source.byte_range import PlainExtent
from shardprep.source.limits import Budget
from shardprep.source.members import Entry
from shardprep.source.names import unsafe_name
from shardprep.source.unpack import UnpackedFile, buffered

_SHOWN_ERROR = 100


class _EntryWriter(Py7zIO):
    def __init__(self, name: str, out: UnpackedFile) -> None:
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
        pass

    def size(self) -> int:
        return self.num_bytes


class _EntryWriters(WriterFactory):
    def __init__(self, out: UnpackedFile) -> None:
        self.entries: list[_EntryWriter] = []
        self._out = out

    def create(self, filename: str) -> Py7zIO:
        self.entries.append(_EntryWriter(filename, self._out))
        return self.entries[-1]


def sevenzip_entries(
    place: PlainExtent, name: str, out: UnpackedFile, budget: Budget
) -> Iterator[Entry]:
    """Unpack a 7z archive into `out`; yield its members as ranges of it. SourceError on failure."""
    try:
        with closing(out), py7zr.SevenZipFile(buffered(place)) as archive:
            if archive.needs_password():
                raise py7zr.PasswordRequired
            stated = archive.list()
            budget.check_members(len(stated), name)
            budget.check_ratio(place.num_bytes, sum(info.uncompressed for info in stated), name)
            writers = _EntryWriters(out)
            archive.extractall(factory=writers)  # the factory ignores paths
    except SourceError:
        raise
    except py7zr.PasswordRequired as error:
        raise SourceError(name, "is encrypted", "unpack it with its password first") from error
    except Exception as error:  # py7zr passes on any exception of its decoders
        why = shown(str(error), _SHOWN_ERROR)
        raise SourceError(name, f"cannot be unpacked ({why})", "download it again") from error
    for writer in writers.entries:
        problem = unsafe_name(writer.name)
        extent = PlainExtent(out.place.file, writer.offset, writer.num_bytes)
        yield Entry(
            writer.name.replace("\\", "/"), writer.num_bytes, None if problem else extent, problem
        )
