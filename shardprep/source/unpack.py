"""The work folder for archives that must be unpacked. Its file names never come from an archive."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from shardprep.errors import OptionName, SourceError
from shardprep.source.byte_range import PlainExtent, StoredExtent
from shardprep.source.limits import Budget
from shardprep.source.streams import buffered, member_stream
from shardprep.storage.space import megabytes, shortage

_COPY_BYTES = 1 << 20
_LONG_BYTES = 32 << 20


class Unpacker:
    """Unpacks whole archives into a folder, which the caller removes.

    Raises `SourceError` if size or CRC-32 are wrong, a limit is exceeded or the disk is full.
    """

    def __init__(self, folder: Path, notice: Callable[[str], None], budget: Budget) -> None:
        """`folder` is created when first needed; `notice` is called with a line about slow work."""
        self._folder = folder
        self._notice = notice
        self.budget = budget
        self._num_files = 0

    def in_place(self, extent: StoredExtent, name: str, *, check: bool = False) -> PlainExtent:
        """Return the uncompressed extent of an archive, unpacking it if its outer archive packs it.

        With `check`, the CRC-32 of an unpacked one is checked too. Most kinds have checksums of
        their own.
        """
        if isinstance(extent, PlainExtent):
            return extent
        if not (extent.is_packed or check):
            return extent.stored()
        if extent.num_bytes > _LONG_BYTES:
            verb = "unpacking" if extent.is_packed else "checking"
            self._notice(f"{verb} {name} ({megabytes(extent.num_bytes)})")
        with member_stream(extent) as stream:
            if extent.is_packed:
                self.budget.check_ratio(extent.stored_bytes, extent.num_bytes, name)
                with closing(self.new_file(name, extent.stored_bytes, extent.num_bytes)) as out:
                    copied = _copy(stream, extent.num_bytes, out)
                place = out.place
            else:
                copied, place = _copy(stream, extent.num_bytes), extent.stored()
        if copied != (extent.num_bytes, extent.crc32):
            raise SourceError(
                name, "its bytes do not match their size and CRC-32", "download or pack it again"
            )
        return place

    def unpack(self, stream: BinaryIO, packed_bytes: int, name: str) -> PlainExtent:
        """Write a stream of unknown length into a file."""
        self._notice(f"unpacking {name}")
        with closing(self.new_file(name, packed_bytes)) as out:
            _copy(stream, None, out)
        return out.place

    def join(self, volumes: Sequence[StoredExtent], name: str) -> PlainExtent:
        """Join the volumes of a split archive in one file."""
        self._notice(f"joining {len(volumes)} volumes of {name}")
        num_bytes = sum(volume.num_bytes for volume in volumes)
        with closing(self.new_file(name, num_bytes, num_bytes)) as out:
            for volume in volumes:
                with buffered(self.in_place(volume, name, check=True)) as stream:
                    _copy(stream, None, out)
        return out.place

    def new_file(self, name: str, packed_bytes: int, num_bytes: int = 0) -> UnpackedFile:
        """Return a new file for the unpacked archive `name`; `num_bytes` is 0 if unknown."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._num_files += 1
        path = self._folder / f"{self._num_files:03d}"
        return UnpackedFile(path, name, (packed_bytes, num_bytes), self.budget)


class UnpackedFile:
    """A file that grows within the limits and the space of the disk."""

    def __init__(self, path: Path, name: str, sizes: tuple[int, int], budget: Budget) -> None:
        """Open the file; `name` is the archive's name in errors.

        `sizes` are the packed size of the archive and its stated unpacked size (0 if unknown).
        """
        self._path = path
        self._name = name
        self._packed_bytes, self._stated_bytes = sizes
        self._budget = budget
        self._num_bytes = 0
        self._file = path.open("wb")

    def close(self) -> None:
        self._file.close()

    @property
    def place(self) -> PlainExtent:
        """The extent of the closed file."""
        return PlainExtent(str(self._path), 0, self._num_bytes)

    def write(self, block: bytes | bytearray) -> int:
        """Append a block; `SourceError` if it exceeds a limit or the disk."""
        missing = max(len(block), self._stated_bytes - self._num_bytes)
        lacking = shortage(self._path.parent, missing, self._num_bytes)
        self._num_bytes += len(block)
        self._budget.unpack(len(block), self._name)
        self._budget.check_ratio(self._packed_bytes, self._num_bytes, self._name)
        if lacking:
            hint = f"free some space, or choose another {OptionName('out')}"
            raise SourceError(self._name, f"does not fit {self._path.parent}: {lacking}", hint)
        return self._file.write(block)


def _copy(stream: BinaryIO, most: int | None, out: UnpackedFile | None = None) -> tuple[int, int]:
    """Copy a stream, stopping at most one block after `most` bytes; return size and CRC-32."""
    crc = 0
    num_bytes = 0
    while block := stream.read(_COPY_BYTES):
        crc = zlib.crc32(block, crc)
        num_bytes += len(block)
        if most is not None and num_bytes > most:
            break
        if out is not None:
            out.write(block)
    return num_bytes, crc
