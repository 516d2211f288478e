"""Check a downloaded archive: verify the checksums in it, or compare its files with their SHA-256.

The size proves nothing: kaggle 2.2.4 can leave a file of the right size with wrong bytes.
"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from lzma import LZMAError
from pathlib import Path
from typing import IO, BinaryIO

from shardprep.image.signatures import HEAD_BYTES, archive_type, is_page
from shardprep.progress import Watch
from shardprep.source.unpack import decompressed

WEB_PAGE = "it is a web page"
"""Problem text for a download that is a web page instead of an archive."""
_BLOCK_BYTES = 1 << 20
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, OSError)


def damage(path: Path, watcher: Watch) -> str:
    """Return the problem of an archive, or "" if none is found.

    Zip, gz, bz2 and xz are read whole; only headers of a tar and signatures of 7z and rar are
    checked. A notice counts zip members that are encrypted or packed with an unknown method.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        kind = archive_type(head)
        if is_page(head):
            return WEB_PAGE
        file.seek(0)
        watcher.start("checking", path.stat().st_size, "bytes")
        try:
            if kind == "zip":
                _read_zip(file, watcher)
            elif kind in ("gz", "bz2", "xz"):
                _read_all(decompressed(file, kind), file, watcher)
            elif kind == "tar":
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    archive.getmembers()
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:  # an error of the disk
                raise
            return str(error)
    return "" if kind else "it is not an archive"


def _read_zip(file: BinaryIO, watcher: Watch) -> None:
    num_unread = 0
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            try:
                with archive.open(info) as member:
                    _read_all(member, file, watcher)
            except (NotImplementedError, RuntimeError):  # an unknown method; encrypted
                num_unread += 1
            except _DAMAGE as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise zipfile.BadZipFile(f"member {info.filename!r}: {error}") from error
    if num_unread:
        why = "encrypted, or packed with an unknown method"
        watcher.notice(f"members not checked ({why}): {num_unread:,}")


def _read_all(stream: IO[bytes], file: BinaryIO, watcher: Watch) -> None:
    before = file.tell()
    while stream.read(_BLOCK_BYTES):
        now = file.tell()
        watcher.advance(now - before)
        before = now


def differences(path: Path, expected: Mapping[str, str], watcher: Watch) -> list[str]:
    """Return a line for each missing or different file. `expected` is path → SHA-256 in hex."""
    if not zipfile.is_zipfile(path):
        return ["it is not a zip"]
    problems = []
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        sizes = (members[name].file_size for name in expected if name in members)
        watcher.start("comparing", sum(sizes), "bytes")
        for name, sha256 in sorted(expected.items()):
            if name not in members:
                problems.append(f"{name} is missing")
                continue
            digest = hashlib.sha256()
            with archive.open(name) as member:
                while block := member.read(_BLOCK_BYTES):
                    digest.update(block)
                    watcher.advance(len(block))
            if digest.hexdigest() != sha256:
                problems.append(f"{name} has other bytes")
    return problems
