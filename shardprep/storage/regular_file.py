"""Open regular files only: a name from an untrusted folder may be a pipe, a device or a link.

Links are not followed and pipes are not waited for. The opened file is checked, not its name.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FLAGS = os.O_RDONLY | _NO_LINK
for _name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):  # Windows has the last alone
    _FLAGS |= getattr(os, _name, 0)
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class Descriptor:
    """A file descriptor that is closed when no reference to it is left."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def num_bytes(self) -> int:
        return os.fstat(self.number).st_size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)  # at the end of the program, `os` may already be gone


def regular_descriptor(path: Path | str) -> int:
    """Return a descriptor for reading a regular file; the caller closes it.

    Raises:
        OSError: the file is missing, unreadable or not a regular file.

    """
    return opened_regular(path)[0]


def opened_regular(path: Path | str) -> tuple[int, int]:
    """Return a descriptor, as `regular_descriptor` does, and the size of the file in bytes."""
    if not _NO_LINK:
        _check_regular(path, os.lstat(path))
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            _check_regular(path, os.lstat(path))
        raise
    try:
        status = os.fstat(descriptor)
        _check_regular(path, status)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def open_regular(path: Path | str) -> io.FileIO:
    """Open a regular file for reading, unbuffered. Raises as `regular_descriptor`."""
    return io.FileIO(regular_descriptor(path), "rb")


def _read_by_seeking(descriptor: int, num_bytes: int, offset: int) -> bytes:
    with _seeking:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, num_bytes)


_seeking = threading.Lock()
read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_by_seeking)
"""Return bytes of an open file: descriptor, number of bytes, offset. Threads may share the file."""


def read_regular(path: Path | str, most_bytes: int) -> bytes:
    """Return the bytes of a regular file; OSError if it is larger, or not a regular file."""
    with open_regular(path) as file:
        return read_open(file, most_bytes, path)


def read_open(file: io.FileIO, most_bytes: int, path: Path | str = "") -> bytes:
    """Return the bytes of a file from its position on; OSError about `path` if it is larger."""
    size = os.fstat(file.fileno()).st_size
    if size > most_bytes:
        what = f"{size:,} bytes, more than the allowed {most_bytes:,}"
        raise OSError(errno.EFBIG, what, str(path))
    stream = io.BufferedReader(file)
    try:
        return stream.read(size)
    finally:
        stream.detach()


def read_named(path: Path | str, most_bytes: int) -> bytes:
    """Return the bytes of a file named by the user, which may be a link."""
    return read_regular(os.path.realpath(path), most_bytes)


def sha256_of(path: Path | str) -> str:
    """Return the SHA-256 of a regular file in hexadecimal. Raises as `regular_descriptor`."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular_size(path: Path | str) -> int | None:
    """Return the size of a regular file in bytes, or None if it does not exist.

    Raises:
        OSError: it is not a regular file, or a folder above cannot be entered.

    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    _check_regular(path, status)
    return status.st_size


def _check_regular(path: Path | str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
