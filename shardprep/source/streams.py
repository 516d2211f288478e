"""Archives as seekable or plain streams, for the libraries that want a file object."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.source.extent import MemberError, PlainExtent, ZipExtent

if TYPE_CHECKING:
    from typing import BinaryIO

    from typing_extensions import Buffer

_BLOCK_BYTES = 1 << 20


class Window(io.RawIOBase):
    """A part of a file, as a read-only file of its own."""

    def __init__(self, place: PlainExtent) -> None:
        """Open the file; closing the window closes it."""
        self._file = Path(place.file).open("rb", buffering=0)  # noqa: SIM115 - closed by close()
        self._start = place.offset
        self._size = place.num_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "negative position")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)[: max(0, self._size - self._at)]
        num_bytes = os.preadv(self._file.fileno(), [view], self._start + self._at)
        self._at += num_bytes
        return num_bytes

    def close(self) -> None:
        self._file.close()
        super().close()


class _Inflated(io.RawIOBase):
    """What a deflated zip member holds, block by block."""

    def __init__(self, extent: ZipExtent) -> None:
        stored = PlainExtent(extent.file, extent.data_offset(), extent.stored_bytes)
        self._stored = Window(stored)
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._inflater.eof:
            packed = self._inflater.unconsumed_tail or self._stored.read(_BLOCK_BYTES)
            try:
                block = self._inflater.decompress(packed, len(view))
            except zlib.error as error:
                message = f"is damaged ({error})"
                raise MemberError(message) from error
            if block:
                view[: len(block)] = block
                return len(block)
            if not packed:
                break
        return 0

    def close(self) -> None:
        self._stored.close()
        super().close()


def buffered(place: PlainExtent) -> BinaryIO:
    """Return the place as a seekable stream that reads ahead."""
    return io.BufferedReader(Window(place), _BLOCK_BYTES)


def stored_bytes(extent: PlainExtent | ZipExtent) -> BinaryIO:
    """Return the bytes of a member as a stream, uncompressed if its zip compresses it."""
    return buffered(extent) if isinstance(extent, PlainExtent) else unpacked_member(extent)


def unpacked_member(extent: ZipExtent) -> BinaryIO:
    """Return the uncompressed bytes of a zip member as a stream, however large they are."""
    if extent.method == zlib.DEFLATED and not extent.is_encrypted:
        return io.BufferedReader(_Inflated(extent))
    return io.BytesIO(extent.read())


def decompressed(packed: BinaryIO, kind: str) -> BinaryIO:
    """Return what a "gz", "bz2" or "xz" stream holds."""
    if kind == "gz":
        return gzip.GzipFile(fileobj=packed, mode="rb")  # type: ignore[return-value]
    if kind == "bz2":
        return bz2.BZ2File(packed)  # type: ignore[return-value]
    return lzma.LZMAFile(packed)  # type: ignore[return-value]
