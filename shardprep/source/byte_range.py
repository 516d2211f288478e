"""Extents: where the bytes of one member are, how they are compressed, and how to read them.

An extent is small and picklable, so workers can read members in place. A `MemberError` means that
the bytes are missing, truncated, damaged, encrypted, or compressed with an unknown method.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import os
import struct
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from shardprep.source import range_reads
from shardprep.storage.regular_file import Descriptor, read_at, regular_descriptor
from shardprep.storage.url import is_url

_Read = Callable[[int, int], bytes]

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature … name length, extra length (APPNOTE 4.3.7)
_MOST_HEADER_BYTES = 512
_ENCRYPTED = 0x1
_METHODS = {
    9: "Deflate64 (as Windows packs large zips; pack it again with 7-Zip)",
    95: "xz",
    97: "WavPack",
    98: "PPMd",
    99: "AES",
    93: "zstd",
}

UNPACK_ERRORS = (
    zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, ValueError, OverflowError,
    MemoryError,
)  # fmt: skip
_BZIP2, _LZMA = 12, 14
_SMALL_BYTES = 1 << 16
"""For reads up to this size, memory is allocated before the file's size is checked."""
_BLOCK_BYTES = 1 << 20
"""Stored bytes read for the head of a bzip2 or LZMA member: more than one whole bzip2 block."""

MOST_BYTES = 2**63 - 1
"""Largest size in bytes that fits in an item table; archives may state larger sizes."""


class MemberError(Exception):
    """The bytes of a member cannot be read. The message gives the reason without a name."""


def damaged(error: BaseException) -> MemberError:
    """Return a `MemberError` for an exception of a decompressor."""
    return MemberError(f"is damaged ({error})")


class PlainExtent(range_reads.Span):
    """Uncompressed bytes: a file, or a member of an uncompressed tar."""

    __slots__ = ()

    @classmethod
    def named(cls, file: str, num_bytes: int) -> PlainExtent:
        """Return the extent of a file that the user named; a link is followed."""
        is_link = os.path.islink(file)  # noqa: PTH114 - False for an address
        return cls(os.path.realpath(file) if is_link else file, 0, num_bytes)

    @property
    def span(self) -> PlainExtent:
        return self

    def read(self) -> bytes:
        return _reader(self.file)(self.offset, self.num_bytes)

    def read_into(self, buffer: memoryview) -> None:
        ahead = range_reads.open_file(self.file)
        num_read = 0
        end = self.offset + self.num_bytes
        if ahead is not None and hasattr(os, "preadv") and end <= ahead.num_bytes:
            with contextlib.suppress(OSError):
                num_read = os.preadv(ahead.number, [buffer], self.offset)
        if num_read < self.num_bytes:
            buffer[:] = self.read()  # raises the precise error, if any

    def read_head(self, num_bytes: int) -> bytes:
        """Return the first `num_bytes` bytes, or all if the member is shorter."""
        return self.read_range(0, num_bytes)

    def read_range(self, at: int, num_bytes: int) -> bytes:
        """Return `num_bytes` bytes from offset `at` on, or fewer if the member ends earlier."""
        left = max(0, self.num_bytes - at)
        return _reader(self.file)(self.offset + at, min(num_bytes, left))


class ZipExtent(NamedTuple):
    """A member of a zip; the fields come from its central directory."""

    file: str
    header_offset: int
    stored_bytes: int
    num_bytes: int
    crc32: int
    method: int
    flags: int

    @property
    def span(self) -> PlainExtent:
        """The range to read ahead: stored bytes and local header, whose size is estimated."""
        return PlainExtent(self.file, self.header_offset, self.stored_bytes + _MOST_HEADER_BYTES)

    def read(self) -> bytes:
        """Return the uncompressed bytes after checking size and CRC-32."""
        data = _inflate(self._stored_bytes(self.stored_bytes), self.method, self.num_bytes)
        if len(data) != self.num_bytes:
            raise MemberError(f"has {len(data):,} bytes, but the archive says {self.num_bytes:,}")
        crc32 = zlib.crc32(data)
        if crc32 != self.crc32:
            raise MemberError(f"has the CRC-32 {crc32:08x}, but the archive says {self.crc32:08x}")
        return data

    def read_head(self, num_bytes: int) -> bytes:
        enough = num_bytes + 512 if self.method in (0, zlib.DEFLATED) else _BLOCK_BYTES
        stored = self._stored_bytes(min(enough, self.stored_bytes))
        return _inflate(stored, self.method, num_bytes)[:num_bytes]

    @property
    def is_packed(self) -> bool:
        """True if the stored bytes are compressed or encrypted."""
        return self.method != 0 or bool(self.flags & _ENCRYPTED)

    def stored(self) -> PlainExtent:
        return PlainExtent(self.file, self._start(_reader(self.file)), self.stored_bytes)

    def _stored_bytes(self, num_bytes: int) -> bytes:
        read = _reader(self.file)
        return read(self._start(read), num_bytes)

    def _start(self, read: _Read) -> int:
        if self.flags & _ENCRYPTED:
            raise MemberError("is encrypted")
        header = read(self.header_offset, _LOCAL_HEADER.size)
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        if signature != b"PK\3\4":
            raise MemberError(f"has no local header at offset {self.header_offset:,}")
        return self.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)


class RefusedExtent(NamedTuple):
    """A member that is never read: each attempt raises a `MemberError` with `reason`."""

    num_bytes: int
    """Size stated in the archive, at most `MOST_BYTES`."""
    reason: str
    kind: str = "unreadable"

    @property
    def span(self) -> PlainExtent:
        return PlainExtent("", 0, 0)

    def read(self) -> bytes:
        raise MemberError(self.reason)

    def read_head(self, num_bytes: int) -> bytes:
        del num_bytes
        return self.read()


class HeldExtent(NamedTuple):
    """Bytes that are already in memory, such as the image in a record."""

    data: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    @property
    def span(self) -> PlainExtent:
        return PlainExtent("", 0, 0)

    def read(self) -> bytes:
        return self.data

    def read_head(self, num_bytes: int) -> bytes:
        return self.data[:num_bytes]


StoredExtent = PlainExtent | ZipExtent


def _inflate(stored: bytes, method: int, num_bytes: int) -> bytes:
    """Return at most `num_bytes` + 1 unpacked bytes, so that a bomb cannot fill the memory."""
    limit = min(num_bytes, sys.maxsize - 1) + 1
    if method == 0:
        return stored
    unpacker, at = new_unpacker(method, stored)
    try:
        data: bytes = unpacker.decompress(stored[at:], limit)
    except UNPACK_ERRORS as error:
        raise damaged(error) from error
    return data


def new_unpacker(method: int, head: bytes) -> tuple[Any, int]:
    """Return a decompressor for a zip method, and where its data starts; MemberError if unknown."""
    if method == zlib.DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS), 0
    if method == _BZIP2:
        return bz2.BZ2Decompressor(), 0
    if method == _LZMA:
        try:
            return _lzma_unpacker(head)
        except UNPACK_ERRORS as error:
            raise damaged(error) from error
    name = _METHODS.get(method, f"method {method}")
    raise MemberError(f"is packed with {name}, which cannot be read")


def _lzma_unpacker(head: bytes) -> tuple[Any, int]:
    """Return the decompressor of an LZMA member, and the length of its header."""
    # The header: version (2 bytes), size of the properties (2 bytes), properties of LZMA1.
    size = struct.unpack("<H", head[2:4])[0]
    properties, dictionary = struct.unpack("<BI", head[4 : 4 + size])
    lzma1 = {
        "id": lzma.FILTER_LZMA1,
        "dict_size": dictionary,
        "lc": properties % 9,
        "lp": properties // 9 % 5,
        "pb": properties // 45,
    }
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[lzma1]), 4 + size


def _reader(file: str) -> _Read:
    opened = range_reads.open_file(file)
    if opened is None and is_url(file):
        return partial(_read_object, file)
    if opened is None:  # opened anew: an older descriptor may belong to a replaced file
        try:
            opened = Descriptor(regular_descriptor(file))
        except OSError as error:
            raise _unreadable(error) from error
    return partial(_read_file, opened)


def _read_object(address: str, offset: int, num_bytes: int) -> bytes:
    try:
        data = range_reads.read_at(address, offset, num_bytes)
    except FileNotFoundError as error:
        raise MemberError("cannot be read (no such object)") from error
    except OverflowError as error:
        raise _unreadable(error) from error
    return _whole(data, num_bytes)


def _read_file(file: Descriptor, offset: int, num_bytes: int) -> bytes:
    # Checked before memory is allocated: an archive may state far more bytes than the file has.
    if num_bytes > _SMALL_BYTES:
        left = max(0, file.num_bytes - offset)
        if left < num_bytes:
            raise _truncated(left, num_bytes)
    try:
        data = read_at(file.number, num_bytes, offset)
        while len(data) < num_bytes:  # Linux reads at most 2.1 GB in one call
            more = read_at(file.number, num_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
    except (OSError, OverflowError) as error:
        raise _unreadable(error) from error
    return _whole(data, num_bytes)


def _whole(data: bytes, num_bytes: int) -> bytes:
    if len(data) < num_bytes:
        raise _truncated(len(data), num_bytes)
    return data


def _truncated(num_there: int, num_bytes: int) -> MemberError:
    return MemberError(f"is truncated: it has {num_there:,} of {num_bytes:,} bytes")


def _unreadable(error: Exception) -> MemberError:
    return MemberError(f"cannot be read ({getattr(error, 'strerror', None) or error})")
