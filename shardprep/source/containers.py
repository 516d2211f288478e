"""What lies in one zip, tar or 7z: an `Entry` for every member, in the archive's own order.

No entry's name is used as a path here or anywhere.
"""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import SourceError
from shardprep.source.extent import Extent, PlainExtent, ZipExtent
from shardprep.source.streams import buffered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DRIVE = re.compile("[A-Za-z]:")
_UTF8_FLAG = 0x800


class Entry(NamedTuple):
    """One member that is not a folder."""

    name: str
    """As the archive has it."""
    num_bytes: int
    extent: Extent | None
    """None where there is a problem."""
    problem: str
    """Why it must not be used, "" for an ordinary member."""


def zip_entries(place: PlainExtent, encoding: str | None) -> Iterator[Entry]:
    """Yield the members of a zip; `encoding` is that of names without the UTF-8 flag.

    Raises:
        zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError: it cannot be read.

    """
    with zipfile.ZipFile(buffered(place), metadata_encoding=encoding) as archive:
        for info in archive.infolist():
            if not info.filename:
                yield Entry("", info.file_size, None, "no name")
                continue
            if info.is_dir():
                continue
            kind = stat.S_IFMT(info.external_attr >> 16)
            name = info.filename if encoding else _true_name(info)
            problem = unsafe_name(name)
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
            yield Entry(name, info.file_size, None if problem else extent, problem)


def _true_name(info: zipfile.ZipInfo) -> str:
    """Return a member's name as UTF-8 where that is what it is: many zips do not set the flag."""
    if info.flag_bits & _UTF8_FLAG or info.filename.isascii():
        return info.filename
    try:
        return info.filename.encode("cp437").decode()
    except UnicodeError:
        return info.filename


def tar_entries(place: PlainExtent, name: str) -> Iterator[Entry]:
    """Yield the members of an uncompressed tar that messages call `name`.

    Raises:
        tarfile.TarError: it cannot be read.
        SourceError: it is cut inside a member.

    """
    with tarfile.open(fileobj=buffered(place), mode="r:") as archive:
        for info in archive:
            if info.size < 0:  # tarfile would go round in circles
                raise SourceError(name, f"is damaged at {info.name!r} (negative size)")
            if info.isdir():
                continue
            problem = unsafe_name(info.name)
            if not info.isreg() or info.issparse():
                problem = "a link, a device or a sparse file"
            elif info.offset_data + info.size > place.num_bytes:
                raise SourceError(
                    name, f"is cut inside member {info.name!r}", "download or pack it again"
                )
            extent = PlainExtent(place.file, place.offset + info.offset_data, info.size)
            yield Entry(info.name, info.size, None if problem else extent, problem)
        _check_end(archive, place, name)


def _check_end(archive: tarfile.TarFile, place: PlainExtent, name: str) -> None:
    """See that the tar ends as tars do: tarfile takes any damage for the end."""
    left = place.num_bytes - archive.offset
    block = b""
    if left >= tarfile.BLOCKSIZE:
        at = place.offset + archive.offset
        block = PlainExtent(place.file, at, tarfile.BLOCKSIZE).read()
    if block != bytes(tarfile.BLOCKSIZE):
        raise SourceError(
            name, f"is cut or damaged at offset {archive.offset:,}", "download or pack it again"
        )


def sevenzip_entries(place: PlainExtent, name: str, into: Path) -> Iterator[Entry]:
    """Yield the members of a 7z, unpacked one behind the other into the file `into`.

    A 7z packs its members as one stream, so there is no reading them in place.

    Raises:
        SourceError: py7zr is not installed, or the archive is damaged or encrypted.

    """
    try:
        import py7zr  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise SourceError(
            name, "is a 7z archive, which needs py7zr", "pip install 'shardprep[7z]'"
        ) from error
    from shardprep.source.sevenzip import AppendFactory  # noqa: PLC0415 - needs py7zr

    try:
        with into.open("wb") as out, py7zr.SevenZipFile(buffered(place)) as archive:
            factory = AppendFactory(out)
            archive.extractall(factory=factory)  # noqa: S202 - the factory ignores paths
    except Exception as error:  # py7zr lets whatever its decoders meet through
        raise SourceError(name, f"cannot be unpacked ({error})", "download it again") from error
    for part in factory.parts:
        problem = unsafe_name(part.name)
        extent = PlainExtent(str(into), part.offset, part.num_bytes)
        yield Entry(part.name, part.num_bytes, None if problem else extent, problem)


def unsafe_name(name: str) -> str:
    """Return what is wrong with a member's name, "" for an ordinary one."""
    path = name.replace("\\", "/")
    if path.startswith("/") or _DRIVE.match(path):
        return "absolute path"
    if ".." in path.split("/"):
        return "path leads out of the archive"
    return "control character in the path" if "\0" in path or "\n" in path else ""
