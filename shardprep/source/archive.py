"""The members of a folder or an archive, to any sane depth. Nothing is written but whole archives.

Zip and tar members are described in place. Only what is compressed around an archive (an inner
zip that the outer one deflates, the .gz around a tar) is unpacked, once, as one file with a name
of ours in the work folder; no member's name ever becomes a path.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from shardprep.errors import SourceError
from shardprep.source.extent import Extent, MemberError, PlainExtent, ZipExtent
from shardprep.source.sniff import HEAD_BYTES, IMAGE_SUFFIXES, archive_type, is_image
from shardprep.source.streams import buffered, decompressed, unpacked_member

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

MAX_DEPTH = 8
"""Archives inside archives; real data has two or three."""

_JUNK_NAMES = frozenset((".DS_Store", "Thumbs.db", "desktop.ini"))
_COPY_BYTES = 1 << 20
_LONG_BYTES = 32 << 20
_KEEP_FREE_BYTES = 256 << 20
_DRIVE = re.compile("[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive, or one file of a folder."""

    key: str
    """Its full path from the root of the source, archives on the way included: unique."""
    extent: Extent


@dataclass(frozen=True, slots=True)
class Skipped:
    """A member that is left out before it could become an item."""

    key: str
    reason: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a source."""

    images: list[Member]
    others: list[Member]
    """Neither images nor archives: label tables, notes; skipped unless something asks for them."""
    skipped: list[Skipped]


def list_source(source: Path, work_dir: Path, notice: Callable[[str], None]) -> Listing:
    """Return all members of the source in the order of their keys.

    Args:
        source: a folder or an archive, told by content.
        work_dir: where compressed inner archives are unpacked; the caller removes it.
        notice: told, in one line, of work that takes long.

    Raises:
        SourceError: the source is missing, is no archive, is damaged or too deeply nested, or two
            members have one key.

    """
    walk = _Walk(work_dir, notice)
    if source.is_dir():
        walk.folder(source)
    elif source.is_file():
        extent = PlainExtent(str(source), 0, source.stat().st_size)
        if not walk.archive(extent, source.name, prefix="", depth=1):
            raise SourceError(
                str(source),
                "is neither a folder nor an archive that can be read",
                "give a folder, a zip, or a tar (plain, .gz, .bz2, .xz)",
            )
    else:
        raise SourceError(str(source), "no such file or folder", "give a folder, a zip or a tar")
    return walk.listing()


class _Walk:
    """Collects the members of one source."""

    def __init__(self, work_dir: Path, notice: Callable[[str], None]) -> None:
        self.work_dir = work_dir
        self.notice = notice
        self.num_unpacked = 0
        self.images: list[Member] = []
        self.others: list[Member] = []
        self.skipped: list[Skipped] = []

    def listing(self) -> Listing:
        """Return everything found, sorted by key; two members with one key are an error."""
        for members in (self.images, self.others):
            members.sort(key=lambda member: member.key)
        self.skipped.sort(key=lambda skipped: skipped.key)
        for one, two in zip(self.images, self.images[1:], strict=False):
            if one.key == two.key:
                raise SourceError(
                    one.key,
                    "two members of the source have this path",
                    "remove one of them from the archive",
                )
        return Listing(self.images, self.others, self.skipped)

    def folder(self, root: Path) -> None:
        """Add the files below a folder; links to folders are followed, each folder once."""
        seen: set[tuple[int, int]] = set()
        for place, folders, files in os.walk(root, followlinks=True):
            here = os.stat(place)  # noqa: PTH116 - os.walk hands out strings
            if (here.st_dev, here.st_ino) in seen:
                folders.clear()
                continue
            seen.add((here.st_dev, here.st_ino))
            folders.sort()
            for name in sorted(files):
                path = Path(place, name)
                key = path.relative_to(root).as_posix()
                status = path.stat() if path.exists() else None
                if status is None or not stat.S_ISREG(status.st_mode):
                    self.skipped.append(Skipped(key, "not a regular file", 0))
                    continue
                self.member(key, PlainExtent(str(path), 0, status.st_size), depth=1)

    def member(self, key: str, extent: Extent, depth: int) -> None:
        """Sort one member into images, archives (opened), junk, or others."""
        path = PurePosixPath(key)
        if _is_junk(path):
            self.skipped.append(Skipped(key, "junk", extent.num_bytes))
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            self.images.append(Member(key, extent))
        else:
            try:
                head = extent.read_head(HEAD_BYTES)
            except MemberError as error:
                self.skipped.append(Skipped(key, f"unreadable: {error}", extent.num_bytes))
                return
            if is_image(head):
                self.images.append(Member(key, extent))
            elif not self.archive(extent, key, prefix=f"{key}/", depth=depth + 1):
                self.others.append(Member(key, extent))

    def archive(self, extent: Extent, name: str, prefix: str, depth: int) -> bool:
        """Add the members of the archive that the extent holds; False where it holds none."""
        kind = archive_type(extent.read_head(HEAD_BYTES))
        if kind is None:
            return False
        if kind in ("7z", "rar"):
            raise SourceError(name, f"is a {kind} archive, which cannot be read", "unpack it first")
        if depth > MAX_DEPTH:
            raise SourceError(name, f"archives are nested more than {MAX_DEPTH} deep")
        try:
            if kind in ("gz", "bz2", "xz"):
                return self._compressed(extent, name, prefix, depth, kind)
            plain = self._in_place(extent, name)
            if kind == "zip":
                self._zip(plain, prefix, depth)
            else:
                self._tar(plain, name, prefix, depth)
        except (zipfile.BadZipFile, tarfile.TarError, NotImplementedError, MemberError) as error:
            raise SourceError(name, f"is damaged ({error})", "download or pack it again") from error
        except UnicodeDecodeError as error:
            raise SourceError(name, f"has a member name that is not UTF-8 ({error})") from error
        return True

    def _zip(self, place: PlainExtent, prefix: str, depth: int) -> None:
        with zipfile.ZipFile(buffered(place)) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                key = prefix + info.filename
                if reason := _unsafe(info.filename) or _not_a_file(info):
                    self.skipped.append(Skipped(key, reason, info.file_size))
                    continue
                extent = ZipExtent(
                    place.file,
                    place.offset + info.header_offset,
                    info.compress_size,
                    info.file_size,
                    info.CRC,
                    info.compress_type,
                    info.flag_bits,
                )
                self.member(_clean(key), extent, depth)

    def _tar(self, place: PlainExtent, name: str, prefix: str, depth: int) -> None:
        with tarfile.open(fileobj=buffered(place), mode="r:") as archive:
            for info in archive:
                if info.isdir():
                    continue
                key = prefix + info.name
                reason = _unsafe(info.name)
                if not info.isreg() or info.issparse():
                    reason = "a link, a device or a sparse file"
                if reason:
                    self.skipped.append(Skipped(key, reason, info.size))
                    continue
                if info.offset_data + info.size > place.num_bytes:
                    raise SourceError(
                        name, f"is cut inside member {info.name!r}", "download or pack it again"
                    )
                extent = PlainExtent(place.file, place.offset + info.offset_data, info.size)
                self.member(_clean(key), extent, depth)

    def _compressed(self, extent: Extent, name: str, prefix: str, depth: int, kind: str) -> bool:
        """Unpack what .gz, .bz2 or .xz holds and add its members, if it is an archive."""
        with buffered(self._in_place(extent, name)) as packed:
            try:
                stream = decompressed(packed, kind)
                if archive_type(stream.read(HEAD_BYTES)) is None:
                    return False
                stream.seek(0)
                place = self._unpack(stream, name)
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise SourceError(name, f"cannot be unpacked ({error.strerror})") from error
                raise SourceError(
                    name, f"is damaged ({error})", "download or pack it again"
                ) from error
        return self.archive(place, name, prefix, depth)

    def _in_place(self, extent: Extent, name: str) -> PlainExtent:
        """Return where an archive lies uncompressed, unpacking it if its own archive packs it."""
        if isinstance(extent, PlainExtent):
            return extent
        if extent.method == 0:
            return PlainExtent(extent.file, extent.data_offset(), extent.stored_bytes)
        return self._unpack(unpacked_member(extent), name, extent)

    def _unpack(
        self, stream: BinaryIO, name: str, expected: ZipExtent | None = None
    ) -> PlainExtent:
        if expected is None:
            self.notice(f"unpacking {name}")
        elif expected.num_bytes > _LONG_BYTES:
            self.notice(f"unpacking {name} ({expected.num_bytes / 1e6:,.0f} MB)")
        self.work_dir.mkdir(parents=True, exist_ok=True)
        path = self.work_dir / f"{self.num_unpacked:03d}"
        self.num_unpacked += 1
        crc = 0
        num_bytes = 0
        with path.open("wb") as out:
            while block := stream.read(_COPY_BYTES):
                crc = zlib.crc32(block, crc)
                num_bytes += len(block)
                if expected and num_bytes > expected.num_bytes:
                    break
                _check_space(self.work_dir, name)
                out.write(block)
        if expected and (num_bytes, crc) != (expected.num_bytes, expected.crc32):
            raise SourceError(
                name, "its bytes do not fit their size and CRC-32", "download or pack it again"
            )
        return PlainExtent(str(path), 0, num_bytes)


def _check_space(folder: Path, name: str) -> None:
    """Keep a bomb, or a set too large for the disk, from filling it to the last byte."""
    free = shutil.disk_usage(folder).free
    if free < _KEEP_FREE_BYTES:
        raise SourceError(
            name,
            f"does not fit: {folder} has {free / 1e6:,.0f} MB left",
            "free some space, or choose another --out",
        )


def _is_junk(path: PurePosixPath) -> bool:
    return path.name in _JUNK_NAMES or path.name.startswith("._") or "__MACOSX" in path.parts


def _not_a_file(info: zipfile.ZipInfo) -> str:
    """Return why a zip entry that Unix made is no regular file, "" where it is one."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    return "" if kind in (0, stat.S_IFREG) else "a link or a device"


def _unsafe(name: str) -> str:
    """Return what is wrong with a member's name, "" for an ordinary one."""
    path = name.replace("\\", "/")
    if path.startswith("/") or _DRIVE.match(path):
        return "absolute path"
    if ".." in path.split("/"):
        return "path leads out of the archive"
    return "control character in the path" if "\0" in path or "\n" in path else ""


def _clean(key: str) -> str:
    """Return the key as a POSIX path: Windows separators turned, "./" dropped."""
    return PurePosixPath(key.replace("\\", "/")).as_posix()
