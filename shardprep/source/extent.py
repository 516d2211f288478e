"""Where the bytes of one member lie, and how to get them. Small, picklable, and read in a worker.

A member is never extracted under its own name: it is read in place, by file and offset.
"""

from __future__ import annotations

import bz2
import lzma
import os
import struct
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature … name length, extra length (APPNOTE 4.3.7)
_ENCRYPTED = 0x1
_METHODS = {
    9: "Deflate64 (as Windows packs large zips; pack it again with 7-Zip)",
    95: "xz",
    97: "WavPack",
    98: "PPMd",
    99: "AES",
    93: "zstd",
}


_UNPACK_ERRORS = (
    zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, ValueError, OverflowError,
    MemoryError,
)  # fmt: skip


class MemberError(Exception):
    """The bytes of one member cannot be had; the message says why, without naming it."""


@dataclass(frozen=True, slots=True)
class PlainExtent:
    """Bytes that lie as they are: a file, or a member of an uncompressed tar."""

    file: str
    offset: int
    num_bytes: int

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            MemberError: the file is gone or shorter than it was.

        """
        return _read_at(self.file, self.offset, self.num_bytes)

    def read_head(self, num_bytes: int) -> bytes:
        """Return the first `num_bytes`, fewer where there are not so many."""
        return _read_at(self.file, self.offset, min(num_bytes, self.num_bytes))


@dataclass(frozen=True, slots=True)
class ZipExtent:
    """A member of a zip, as its central directory describes it."""

    file: str
    header_offset: int
    """Of the local header, in the file that holds the zip."""
    stored_bytes: int
    num_bytes: int
    """Uncompressed."""
    crc32: int
    method: int
    flags: int

    def read(self) -> bytes:
        """Return the uncompressed bytes, checked against size and CRC-32.

        Raises:
            MemberError: encrypted, packed by an unknown method, damaged, or not as long as stated.

        """
        data = _inflate(self._stored(self.stored_bytes), self.method, self.num_bytes)
        if len(data) != self.num_bytes:
            message = f"holds {len(data):,} bytes, the archive says {self.num_bytes:,}"
            raise MemberError(message)
        if zlib.crc32(data) != self.crc32:
            message = f"CRC-32 is {zlib.crc32(data):08x}, the archive says {self.crc32:08x}"
            raise MemberError(message)
        return data

    def read_head(self, num_bytes: int) -> bytes:
        """Return the first `num_bytes` uncompressed bytes, fewer where there are not so many."""
        stored = self._stored(min(self.stored_bytes, num_bytes + 512))
        if self.method not in (0, zlib.DEFLATED):
            return self.read()[:num_bytes]
        return _inflate(stored, self.method, num_bytes, whole=False)[:num_bytes]

    @property
    def is_encrypted(self) -> bool:
        """Whether a password is needed, which we have no way to ask for."""
        return bool(self.flags & _ENCRYPTED)

    def data_offset(self) -> int:
        """Return where the stored bytes start in the file."""
        header = _read_at(self.file, self.header_offset, _LOCAL_HEADER.size)
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        if signature != b"PK\3\4":
            message = f"no local header at offset {self.header_offset:,}"
            raise MemberError(message)
        return self.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)

    def _stored(self, num_bytes: int) -> bytes:
        if self.is_encrypted:
            message = "is encrypted"
            raise MemberError(message)
        return _read_at(self.file, self.data_offset(), num_bytes)


Extent = PlainExtent | ZipExtent


def _inflate(stored: bytes, method: int, num_bytes: int, *, whole: bool = True) -> bytes:
    """Decompress at most one byte more than `num_bytes`: a bomb cannot grow past what it states."""
    limit = min(num_bytes, sys.maxsize - 1) + 1
    if method == 0:
        return stored
    try:
        if method == zlib.DEFLATED:
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)
            return inflater.decompress(stored, limit)
        unpack = _unpackers().get(method)
        if unpack is not None and whole:
            return unpack(stored, limit)
    except _UNPACK_ERRORS as error:
        message = f"is damaged ({error})"
        raise MemberError(message) from error
    message = f"is packed with {_METHODS.get(method, f'method {method}')}, which cannot be read"
    raise MemberError(message)


def _unpackers() -> dict[int, Callable[[bytes, int], bytes]]:
    return {12: lambda data, limit: bz2.BZ2Decompressor().decompress(data, limit), 14: _unpack_lzma}


def _unpack_lzma(data: bytes, limit: int) -> bytes:
    """Unpack method 14: version (2 bytes), properties size (2 bytes), properties, raw LZMA1."""
    size = struct.unpack("<H", data[2:4])[0]
    properties, dictionary = struct.unpack("<BI", data[4 : 4 + size])
    lzma1 = {
        "id": lzma.FILTER_LZMA1,
        "dict_size": dictionary,
        "lc": properties % 9,
        "lp": properties // 9 % 5,
        "pb": properties // 45,
    }
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[lzma1]).decompress(
        data[4 + size :], limit
    )


def _read_at(file: str, offset: int, num_bytes: int) -> bytes:
    """Read through a descriptor of its own: a cached one would show a file that was replaced."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            left = max(0, os.fstat(descriptor).st_size - offset)
            if left < num_bytes:
                message = f"is cut: {left:,} of {num_bytes:,} bytes are there"
                raise MemberError(message)
            data = os.pread(descriptor, num_bytes, offset)
        finally:
            os.close(descriptor)
    except (OSError, OverflowError) as error:
        message = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise MemberError(message) from error
    if len(data) < num_bytes:
        message = f"is cut: {len(data):,} of {num_bytes:,} bytes are there"
        raise MemberError(message)
    return data
