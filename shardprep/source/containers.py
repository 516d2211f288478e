"""The entries of one archive, in its order.

No entry's name is used as a path here or anywhere. Damage is an error of zipfile or tarfile, or a
`SourceError` where those libraries would not notice it.
"""

from __future__ import annotations

import io
import re
import stat
import tarfile
import zipfile
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import SourceError, shown
from shardprep.image.signatures import HEAD_BYTES, archive_type
from shardprep.source.extent import PlainExtent, StoredExtent, ZipExtent
from shardprep.source.names import unsafe_name
from shardprep.source.streams import Window, buffered
from shardprep.source.zip_directory import check_directory, check_end, read_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardprep.source.limits import Budget
    from shardprep.source.unpack import Unpacker

_UTF8_FLAG = 0x800
_MAX_HEADER_BYTES = 1 << 20
_MAX_GLOBAL_HEADERS = 1000
_BLOCK_BYTES = 1 << 20
_SHOWN_NAME = 60
_LONG_NUMBER = re.compile(rb"\d{64}")


class Entry(NamedTuple):
    """One member that is not a folder."""

    name: str
    """The name in the archive."""
    num_bytes: int
    extent: StoredExtent | None
    """None where there is a problem."""
    problem: str
    """The reason why it must not be used, "" for an ordinary member."""


def entries(
    place: PlainExtent, name: str, kind: str, encoding: str | None, unpacker: Unpacker
) -> Iterator[Entry]:
    """Return the members of a "zip", "tar" or "7z".

    Args:
        place: its bytes.
        name: what messages call it.
        kind: one of these.
        encoding: of member names of a zip that lack the UTF-8 flag.
        unpacker: unpacks a 7z.

    """
    if kind == "zip":
        return _zip_entries(place, name, encoding, unpacker.budget)
    if kind == "tar":
        return _tar_entries(place, name)
    try:
        from shardprep.source.sevenzip import sevenzip_entries  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SourceError(
            name, "is a 7z archive, which needs py7zr", "pip install 'shardprep[7z]'"
        ) from error
    out = unpacker.new_file(name, place.num_bytes)
    return sevenzip_entries(place, name, out, unpacker.budget)


def _zip_entries(
    place: PlainExtent, name: str, encoding: str | None, budget: Budget
) -> Iterator[Entry]:
    end = check_end(read_end(place), name)
    budget.check_members(end.num_listed, name)
    with zipfile.ZipFile(buffered(place), metadata_encoding=encoding) as archive:
        check_directory(archive, place, end, name)
        for info in archive.infolist():
            if not info.filename:
                yield Entry("", info.file_size, None, "no name")
                continue
            if info.is_dir():
                continue
            kind = stat.S_IFMT(info.external_attr >> 16)
            path = info.filename if encoding else _true_name(info)
            problem = unsafe_name(path)
            if kind not in (0, stat.S_IFREG):
                problem = "a link or a device"
            extent = ZipExtent(
                place.file,
                place.offset + info.header_offset,
                info.compress_size,
                info.file_size,
                info.CRC,
                info.compress_type,
                info.flag_bits,
            )
            yield Entry(path, info.file_size, None if problem else extent, problem)


def _true_name(info: zipfile.ZipInfo) -> str:
    """Return a member's name as UTF-8 where that is what it is: many zips do not set the flag."""
    if info.flag_bits & _UTF8_FLAG or info.filename.isascii():
        return info.filename
    try:
        return info.filename.encode("cp437").decode()
    except UnicodeError:
        return info.filename


class _Headers(io.BufferedReader):
    """A tar, for a library that reads its headers: they are small, or made to do harm."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.TarError(f"a header of {size:,} bytes")
        data = super().read(size)
        if size > tarfile.BLOCKSIZE and _LONG_NUMBER.search(data):  # tarfile's time is its square
            raise tarfile.TarError("a number of 64 digits in a header")
        return data


def _tar_entries(place: PlainExtent, name: str) -> Iterator[Entry]:
    with (
        _Headers(Window(place), _BLOCK_BYTES) as headers,
        tarfile.open(fileobj=headers, mode="r:") as archive,
    ):
        for info in archive:
            # It would keep them all, each with all global headers.
            archive.members.clear()  # type: ignore[attr-defined] # typeshed has no fields
            if len(archive.pax_headers) > _MAX_GLOBAL_HEADERS:
                raise SourceError(name, "is damaged, or a bomb: its global headers do not end")
            member = shown(info.name, _SHOWN_NAME)
            if info.size < 0:  # tarfile would go round in circles
                raise SourceError(name, f"is damaged at {member!r} (negative size)")
            if info.isdir():
                continue
            problem = unsafe_name(info.name)
            if not info.isreg() or info.issparse():
                problem = "a link, a device or a sparse file"
            elif info.offset_data + info.size > place.num_bytes:
                raise SourceError(
                    name, f"is cut inside member {member!r}", "download or pack it again"
                )
            extent = PlainExtent(place.file, place.offset + info.offset_data, info.size)
            yield Entry(info.name, info.size, None if problem else extent, problem)
        _check_end(place, archive.offset, name)


def _check_end(place: PlainExtent, at: int, name: str) -> None:
    """See that the tar ends as tars do, and all of it: tarfile takes any damage for the end."""
    is_end = False
    while data := place.read_range(at, _BLOCK_BYTES):
        blank = len(data) - len(data.lstrip(b"\0"))
        is_end = is_end or blank >= tarfile.BLOCKSIZE
        if blank < len(data):
            at += blank - blank % tarfile.BLOCKSIZE
            break
        at += len(data)
    if not is_end:
        what = f"is damaged at offset {at:,}"
        if at >= place.num_bytes:
            what = f"is cut: it stops at offset {at:,} without the blank block that ends a tar"
        raise SourceError(name, f"{what}, so members may be missing", "download or pack it again")
    if archive_type(place.read_range(at, HEAD_BYTES)) == "tar":
        raise SourceError(
            name,
            f"another tar follows at offset {at:,}, behind its end",
            "it is several tars in one file: unpack it with tar --ignore-zeros",
        )
