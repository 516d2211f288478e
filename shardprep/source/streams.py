"""Archives as seekable or plain streams, for libraries that need a file object."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from shardprep.source.byte_range import (
    UNPACK_ERRORS,
    PlainExtent,
    StoredExtent,
    damaged,
    new_unpacker,
)
from shardprep.storage.regular_file import open_regular
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK_BYTES = 1 << 20
_HEADER_BYTES = 64
"""Bytes read for the header of a packed member, more than any header has."""


class Window(io.RawIOBase):
    """A range of a file or an object, as a read-only file."""

    def __init__(self, place: PlainExtent) -> None:
        """Open the file; `close` closes it."""
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
    """The uncompressed bytes of a zip member, block by block."""

    def __init__(self, stored: BinaryIO, unpacker: Any) -> None:
        """Read from `stored`; `close` closes it too."""
        self._stored = stored
        self._unpacker = unpacker

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._unpacker.eof:
            # zlib returns unused input, the others keep it
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
    """Return the bytes of a member as a stream, uncompressed if its zip compresses it."""
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
    """Return the uncompressed bytes of a "gz", "bz2" or "xz" stream."""
    return cast("BinaryIO", _OPEN[kind](packed))
