"""The work folder: what must be unpacked before it can be read lies here, under names of ours."""

from __future__ import annotations

import shutil
import zlib
from typing import TYPE_CHECKING

from shardprep.errors import SourceError
from shardprep.source.extent import Extent, PlainExtent
from shardprep.source.streams import buffered, unpacked_member

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import BinaryIO

_COPY_BYTES = 1 << 20
_LONG_BYTES = 32 << 20
_KEEP_FREE_BYTES = 256 << 20


class Workshop:
    """Unpacks whole archives into a folder that its owner removes."""

    def __init__(self, folder: Path, notice: Callable[[str], None]) -> None:
        """`folder` is made when it is first needed; `notice` hears of work that takes long."""
        self._folder = folder
        self._notice = notice
        self._num_files = 0

    def in_place(self, extent: Extent, name: str) -> PlainExtent:
        """Return where an archive lies uncompressed, unpacking it if its own archive packs it.

        Raises:
            SourceError: its bytes do not fit their size and CRC-32, or the disk is full.
            MemberError: it cannot be unpacked.

        """
        if isinstance(extent, PlainExtent):
            return extent
        if extent.method == 0 and not extent.is_encrypted:
            return PlainExtent(extent.file, extent.data_offset(), extent.stored_bytes)
        if extent.num_bytes > _LONG_BYTES:
            self._notice(f"unpacking {name} ({extent.num_bytes / 1e6:,.0f} MB)")
        with unpacked_member(extent) as stream:
            place, crc = self._copy([stream], name, extent.num_bytes)
        if (place.num_bytes, crc) != (extent.num_bytes, extent.crc32):
            raise SourceError(
                name, "its bytes do not fit their size and CRC-32", "download or pack it again"
            )
        return place

    def unpack(self, stream: BinaryIO, name: str) -> PlainExtent:
        """Write what a stream holds into a file; how much that is shows only at its end."""
        self._notice(f"unpacking {name}")
        return self._copy([stream], name)[0]

    def join(self, parts: Sequence[Extent], name: str) -> PlainExtent:
        """Write the parts one behind the other into a file."""
        self._notice(f"joining {len(parts)} parts of {name}")
        streams = [buffered(self.in_place(part, name)) for part in parts]
        return self._copy(streams, name)[0]

    def new_file(self) -> Path:
        """Return the path of a file that is not there yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._num_files += 1
        return self._folder / f"{self._num_files:03d}"

    def _copy(
        self, streams: Sequence[BinaryIO], name: str, most: int | None = None
    ) -> tuple[PlainExtent, int]:
        """Copy the streams, up to one block more than `most` bytes; return place and CRC-32."""
        path = self.new_file()
        crc = 0
        num_bytes = 0
        with path.open("wb") as out:
            for stream in streams:
                while block := stream.read(_COPY_BYTES):
                    crc = zlib.crc32(block, crc)
                    num_bytes += len(block)
                    if most is not None and num_bytes > most:
                        break
                    self._check_space(name)
                    out.write(block)
        return PlainExtent(str(path), 0, num_bytes), crc

    def _check_space(self, name: str) -> None:
        """Keep a bomb, or a set too large for the disk, from filling it to the last byte."""
        free = shutil.disk_usage(self._folder).free
        if free < _KEEP_FREE_BYTES:
            raise SourceError(
                name,
                f"does not fit: {self._folder} has {free / 1e6:,.0f} MB left",
                "free some space, or choose another --out",
            )
