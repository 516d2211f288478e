"""Open archives as streams, or unpack them into numbered files in the work folder."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from shardprep.errors import OptionName, SourceError
from shardprep.source.byte_range import (
    UNPACK_ERRORS,
    MemberError,
    PlainExtent,
    StoredExtent,
    damaged,
    new_unpacker,
)
from shardprep.source.limits import Budget
from shardprep.storage.regular_file import open_regular
from shardprep.storage.space import megabytes, shortage
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK_BYTES = 1 << 20
_HEADER_BYTES = 64
"""Bytes read for the compression header of a member; no header is longer."""


class Window(io.RawIOBase):
    """A range of a file or an object, as a read-only file."""

    def __init__(self, place: PlainExtent) -> None:
        self._place = place
        is_here = not is_url(place.file) and hasattr(os, "preadv")
        self._file = open_regular(place.file) if is_here else None
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._place.num_bytes}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "negative position")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)[: max(0, self._place.num_bytes - self._at)]
        if self._file is None:
            data = self._place.read_range(self._at, len(view))
            num_bytes = len(data)
            view[:num_bytes] = data
        else:
            num_bytes = os.preadv(self._file.fileno(), [view], self._place.offset + self._at)
        self._at += num_bytes
        return num_bytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


class _Unpacked(io.RawIOBase):
    def __init__(self, stored: BinaryIO, unpacker: Any) -> None:
        self._stored = stored
        self._unpacker = unpacker

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._unpacker.eof:
            # zlib returns unused input; the other unpackers keep it.
            packed = getattr(self._unpacker, "unconsumed_tail", b"")
            is_full = not getattr(self._unpacker, "needs_input", True)
            if not packed and not is_full:
                packed = self._stored.read(_BLOCK_BYTES)
            try:
                block = self._unpacker.decompress(packed, len(view))
            except UNPACK_ERRORS as error:
                raise damaged(error) from error
            if block:
                view[: len(block)] = block
                return len(block)
            if not packed and not is_full:
                break
        return 0

    def close(self) -> None:
        self._stored.close()
        super().close()


def buffered(place: PlainExtent) -> BinaryIO:
    """Return an extent as a seekable, buffered stream."""
    return io.BufferedReader(Window(place), _BLOCK_BYTES)


def member_stream(extent: StoredExtent) -> BinaryIO:
    """Return a stream of the uncompressed bytes of a member."""
    if isinstance(extent, PlainExtent):
        return buffered(extent)
    stored = extent.stored()
    if extent.method == 0:
        return buffered(stored)
    unpacker, at = new_unpacker(extent.method, stored.read_head(_HEADER_BYTES))
    packed = PlainExtent(stored.file, stored.offset + at, stored.num_bytes - at)
    return io.BufferedReader(_Unpacked(buffered(packed), unpacker), _BLOCK_BYTES)


_OPEN: dict[str, Callable[..., Any]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}


def decompressed(packed: BinaryIO, kind: str) -> BinaryIO:
    """Return a stream of the uncompressed bytes of a "gz", "bz2" or "xz" stream."""
    return cast("BinaryIO", _OPEN[kind](packed))


_LONG_BYTES = 32 << 20


class Unpacker:
    """Unpacks whole archives into a folder, which the caller removes."""

    def __init__(self, folder: Path, notice: Callable[[str], None], budget: Budget) -> None:
        """`folder` is created when first needed. `notice` gets a line of text before slow work."""
        self._folder = folder
        self.notice = notice
        self.budget = budget
        self._num_files = 0

    def in_place(self, extent: StoredExtent, name: str, *, check: bool = False) -> PlainExtent:
        """Return an archive's bytes as an extent, unpacked first if they are compressed in a zip.

        SourceError if size or CRC-32 is wrong. With `check`, bytes that are not compressed are
        checked too, because a tar has no checksum.
        """
        if isinstance(extent, PlainExtent):
            return extent
        if not (extent.is_packed or check):
            return extent.stored()
        if extent.num_bytes > _LONG_BYTES:
            verb = "unpacking" if extent.is_packed else "checking"
            self.notice(f"{verb} {name} ({megabytes(extent.num_bytes)})")
        with member_stream(extent) as stream:
            if extent.is_packed:
                self.budget.check_ratio(extent.stored_bytes, extent.num_bytes, name)
                with closing(self.new_file(name, extent.stored_bytes, extent.num_bytes)) as out:
                    copied = _copy(stream, extent.num_bytes, out)
                place = out.place
            else:
                copied, place = _copy(stream, extent.num_bytes), extent.stored()
        if copied != (extent.num_bytes, extent.crc32):
            what = "its bytes do not match their size and CRC-32"
            raise SourceError(name, what, "download or pack it again")
        return place

    def unpack(self, stream: BinaryIO, packed_bytes: int, name: str) -> PlainExtent:
        self.notice(f"unpacking {name}")
        with closing(self.new_file(name, packed_bytes)) as out:
            _copy(stream, None, out)
        return out.place

    def join(self, volumes: Mapping[str, StoredExtent], name: str) -> PlainExtent:
        self.notice(f"joining {len(volumes)} volumes of {name}")
        num_bytes = sum(volume.num_bytes for volume in volumes.values())
        with closing(self.new_file(name, num_bytes, num_bytes)) as out:
            for part, volume in volumes.items():
                try:
                    with buffered(self.in_place(volume, part, check=True)) as stream:
                        _copy(stream, None, out)
                except MemberError as error:
                    raise SourceError(part, str(error), "download or pack it again") from error
        return out.place

    def new_file(self, name: str, packed_bytes: int, num_bytes: int = 0) -> UnpackedFile:
        """Return a new file for an unpacked archive. `num_bytes` is its size, or 0 if unknown."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._num_files += 1
        path = self._folder / f"{self._num_files:03d}"
        return UnpackedFile(path, name, (packed_bytes, num_bytes), self.budget)


class UnpackedFile:
    """A new file for an unpacked archive; `write` checks the limits and the free disk space."""

    def __init__(self, path: Path, name: str, sizes: tuple[int, int], budget: Budget) -> None:
        """`sizes`: packed and unpacked bytes of the archive `name` (unpacked is 0 if unknown)."""
        self._path = path
        self._name = name
        self._packed_bytes, self._stated_bytes = sizes
        self._budget = budget
        self._num_bytes = 0
        self._file = path.open("wb")

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise self._unwritten(str(error.strerror)) from error

    def _unwritten(self, why: str) -> SourceError:
        hint = f"free some space, or use another disk: {OptionName('out')} (init, dry run: TMPDIR)"
        return SourceError(self._name, f"does not fit into {self._path.parent}: {why}", hint)

    @property
    def place(self) -> PlainExtent:
        return PlainExtent(str(self._path), 0, self._num_bytes)

    def write(self, block: bytes | bytearray) -> int:
        missing = max(len(block), self._stated_bytes - self._num_bytes)
        lacking = shortage(self._path.parent, missing, self._num_bytes)
        self._num_bytes += len(block)
        self._budget.unpack(len(block), self._name)
        self._budget.check_ratio(self._packed_bytes, self._num_bytes, self._name)
        if lacking:
            raise self._unwritten(lacking)
        try:
            return self._file.write(block)
        except OSError as error:
            raise self._unwritten(str(error.strerror)) from error


def _copy(stream: BinaryIO, most: int | None, out: UnpackedFile | None = None) -> tuple[int, int]:
    """Copy a stream to `out`; return its size and CRC-32. Stops soon after `most` bytes."""
    crc = 0
    num_bytes = 0
    while block := stream.read(_BLOCK_BYTES):
        crc = zlib.crc32(block, crc)
        num_bytes += len(block)
        if most is not None and num_bytes > most:
            break
        if out is not None:
            out.write(block)
    return num_bytes, crc
