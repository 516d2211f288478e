"""List the members of one archive.

The name of a member is never used as a path. A damaged archive raises an error of zipfile or
tarfile, or a `SourceError` if these libraries do not detect the damage.
"""

from __future__ import annotations

import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from shardprep.errors import OptionName, SourceError, counted, shown
from shardprep.image.signatures import HEAD_BYTES, archive_type
from shardprep.source.byte_range import MOST_BYTES, PlainExtent, ZipExtent
from shardprep.source.members import PLACE, ZIP, Entry, Members, OrdinaryImages, are_ordinary
from shardprep.source.names import unsafe_name
from shardprep.source.string_column import Texts
from shardprep.source.unpack import Unpacker, Window, buffered
from shardprep.source.zip_directory import (
    BLOCK_BYTES,
    MOST_OFFSET,
    UTF8_FLAG,
    WINDOWS,
    ZipEntries,
    check_directory,
    check_end,
    read_end,
    read_entries,
)

_KIND_BITS = 0o170000
_MAX_HEADER_BYTES = 1 << 20
_MAX_GLOBAL_HEADERS = 1000
_SHOWN_NAME = 60
_LONG_NUMBER = re.compile(rb"\d{64}")


def entries(
    place: PlainExtent, name: str, kind: str, encoding: str | None, unpacker: Unpacker
) -> Iterator[Entry | OrdinaryImages]:
    """Yield the members of a "zip", "tar" or "7z"; a zip yields ordinary images first, as columns.

    `name` is used in errors. `encoding` applies to names in a zip that have no UTF-8 flag.
    """
    if kind == "zip":
        return _zip_entries(place, name, encoding, unpacker)
    if kind == "tar":
        return _tar_entries(place, name)
    try:
        from shardprep.source.sevenzip import sevenzip_entries  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        what = "is a 7z archive, which needs py7zr"
        raise SourceError(name, what, "pip install 'shardprep[7z]'") from error
    out = unpacker.new_file(name, place.num_bytes)
    return sevenzip_entries(place, name, out, unpacker.budget)


def _zip_entries(
    place: PlainExtent, name: str, encoding: str | None, unpacker: Unpacker
) -> Iterator[Entry | OrdinaryImages]:
    end = check_end(read_end(place), name)
    unpacker.budget.check_members(end.num_listed, name)
    start, found = end.directory, None
    if encoding is None and 0 <= end.shift <= start:
        found = read_entries(place, start, end.directory_stop, end.num_listed)
    if found is None:
        start, found, unclear = _by_zipfile(place, encoding)
        if unclear:
            what = f"{name}: {counted(len(unclear), 'name', 'is', 'are')} not UTF-8"
            hint = f"give their encoding with {OptionName('zip_encoding')}, such as cp932 or gbk"
            unpacker.notice(f"{what}, such as {shown(unclear[0], _SHOWN_NAME)}; {hint}")
    else:
        found.places["offset"] += end.shift
    check_directory(found, start, place, end, name)
    found.places["offset"] += place.offset
    members = _zip_members(found, place.file)
    del found  # millions of rows; from here on only the images reference them
    yield from members


def _by_zipfile(place: PlainExtent, encoding: str | None) -> tuple[int, ZipEntries, Sequence[str]]:
    """Return the offset where members end, the entries, and the names of unknown encoding."""
    with zipfile.ZipFile(buffered(place), metadata_encoding=encoding) as archive:
        infos = archive.infolist()
        found = [info.filename if encoding else _true_name(info) for info in infos]
        unclear = () if encoding else [name for name in found if isinstance(name, _Unclear)]
        names = Texts.of(map(_separated, infos, found))
        places, modes = np.zeros(len(infos), PLACE), np.empty(len(infos), np.uint16)
        for row, info in enumerate(infos):
            # Any number beyond the limit is an error later, so its exact value does not matter.
            places[row] = (
                ZIP, info.compress_type, info.flag_bits, 0, info.CRC,
                max(-MOST_OFFSET, min(info.header_offset, MOST_OFFSET)),
                min(info.compress_size, MOST_BYTES), min(info.file_size, MOST_BYTES),
            )  # fmt: skip
            modes[row] = info.external_attr >> 16
        return archive.start_dir, ZipEntries(names, places, modes), unclear


def _zip_members(columns: ZipEntries, file: str) -> Iterator[Entry | OrdinaryImages]:
    kinds = columns.modes & _KIND_BITS
    are_images = are_ordinary(columns.names) & ((kinds == 0) | (kinds == stat.S_IFREG))
    rows, left = np.flatnonzero(are_images), np.flatnonzero(~are_images)
    others = Members(columns.names.take(left), columns.places[left], (file,)).listed()
    modes = columns.modes[left].tolist()
    first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    images = OrdinaryImages(columns.names[first:last], columns.places[first:last], file)
    if len(rows) < last - first:
        images = OrdinaryImages(columns.names.take(rows), columns.places[rows], file)
    del columns
    yield images
    del images
    for (name, extent), mode in zip(others, modes, strict=True):
        yield from _zip_entry(name, cast("ZipExtent", extent), mode)


def _zip_entry(path: str, extent: ZipExtent, mode: int) -> Iterator[Entry]:
    if not path:
        yield Entry("", extent.num_bytes, None, "no name")
    elif not path.endswith("/"):
        problem = unsafe_name(path)
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            problem = "a link or a device"
        yield Entry(path, extent.num_bytes, None if problem else extent, problem)


class _Unclear(str):
    """A name that is not UTF-8, read as cp437."""

    __slots__ = ()


def _separated(info: zipfile.ZipInfo, name: str) -> str:
    """Return the name with "/" for the separators of Windows; other backslashes stay.

    In encodings such as Shift-JIS the second byte of a character may equal a backslash.
    """
    if info.create_system not in WINDOWS:
        return name
    separator = r"(?<![^\0-\x7f])\\" if isinstance(name, _Unclear) else r"\\"
    return re.sub(separator, "/", name) if "\\" in name else name


def _true_name(info: zipfile.ZipInfo) -> str:
    """Return the name, decoded as UTF-8 if valid: many zips have such names without the flag."""
    if info.flag_bits & UTF8_FLAG or info.filename.isascii():
        return info.filename
    try:
        return info.filename.encode("cp437").decode()
    except UnicodeError:
        return _Unclear(info.filename)


class _Headers(io.BufferedReader):
    """A tar stream that raises TarError for a huge header or number: only attackers write them."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.TarError(f"a header of {size:,} bytes")
        data = super().read(size)
        if size > tarfile.BLOCKSIZE and _LONG_NUMBER.search(data):  # quadratic time in tarfile
            raise tarfile.TarError("a number of 64 digits in a header")
        return data


def _tar_entries(place: PlainExtent, name: str) -> Iterator[Entry]:
    with (
        _Headers(Window(place), BLOCK_BYTES) as headers,
        tarfile.open(fileobj=headers, mode="r:") as archive,
    ):
        for info in archive:
            # tarfile would keep every member in memory, each with all global headers.
            archive.members.clear()  # type: ignore[attr-defined] # typeshed has no fields
            if len(archive.pax_headers) > _MAX_GLOBAL_HEADERS:
                what = f"has more than {_MAX_GLOBAL_HEADERS:,} global headers"
                raise SourceError(name, what, "download or pack it again")
            member = shown(info.name, _SHOWN_NAME)
            if info.size < 0:  # tarfile would loop forever
                what = f"is damaged at {member!r} (negative size)"
                raise SourceError(name, what, "download or pack it again")
            if info.isdir():
                continue
            problem = unsafe_name(info.name)
            if not info.isreg() or info.issparse():
                problem = "a link, a device or a sparse file"
            elif info.offset_data + info.size > place.num_bytes:
                what = f"is truncated inside member {member!r}"
                raise SourceError(name, what, "download or pack it again")
            extent = PlainExtent(place.file, place.offset + info.offset_data, info.size)
            yield Entry(
                info.name.replace("\\", "/"), info.size, None if problem else extent, problem
            )
        _check_end(place, archive.offset, name)


def _check_end(place: PlainExtent, at: int, name: str) -> None:
    """Raise SourceError if the end mark is missing or another tar follows: tarfile ignores both."""
    is_end = False
    while data := place.read_range(at, BLOCK_BYTES):
        blank = len(data) - len(data.lstrip(b"\0"))
        is_end = is_end or blank >= tarfile.BLOCKSIZE
        if blank < len(data):
            at += blank - blank % tarfile.BLOCKSIZE
            break
        at += len(data)
    if not is_end:
        what = f"is damaged at offset {at:,}"
        if at >= place.num_bytes:
            what = f"is truncated: it stops at offset {at:,} without the zero block that ends a tar"
        raise SourceError(name, f"{what}, so members may be missing", "download or pack it again")
    if archive_type(place.read_range(at, HEAD_BYTES)) == "tar":
        what = f"has a second tar at offset {at:,}, after the end of the first"
        hint = "unpack the file with tar --ignore-zeros -xf, and give the folder"
        raise SourceError(name, what, hint)
