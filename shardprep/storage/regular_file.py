"""Open regular files only: a name from an untrusted folder can be a pipe, a device or a link.

A link is not followed, and a pipe does not block. The opened file is checked, not its name.

Readers keep files open. The system limits the file descriptors of a process (`ulimit -n`). All
readers together may keep half of them open; the rest is for sockets, pipes and other libraries.
Each reader has an `OpenFiles`, and all share one order of use. At the limit, the least recently
used file of any reader is released. It is closed when no thread reads from it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

_MOST_WITHOUT_LIMIT = 512
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FLAGS = os.O_RDONLY | _NO_LINK
for _name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):  # Windows has only the last
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
    """A file descriptor that is closed with the last reference to it."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def num_bytes(self) -> int:
        return os.fstat(self.number).st_size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)  # at the end of the program, `os` may already be gone


def regular_descriptor(path: Path | str) -> int:
    """Return a descriptor of a file, which the caller closes; OSError if it is not regular."""
    return opened_regular(path)[0]


def opened_regular(path: Path | str) -> tuple[int, int]:
    """Return an open descriptor and the size in bytes of a file; OSError if it is not regular."""
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
    """Open a file for reading without a buffer; OSError if it is not regular."""
    return io.FileIO(regular_descriptor(path), "rb")


def _read_by_seeking(descriptor: int, num_bytes: int, offset: int) -> bytes:
    with _seeking:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, num_bytes)


_seeking = threading.Lock()
read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_by_seeking)
"""`read_at(descriptor, num_bytes, offset)` returns bytes of a file that threads may share."""


def read_regular(path: Path | str, most_bytes: int) -> bytes:
    """Return the bytes of a file; OSError if it has more than `most_bytes`, or is not regular."""
    with open_regular(path) as file:
        return read_open(file, most_bytes, path)


def read_open(file: io.FileIO, most_bytes: int, path: Path | str = "") -> bytes:
    """Return the rest of an open file; OSError naming `path` if it has more than `most_bytes`."""
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
    """Return the bytes of a file named by the user; follow links. Errors as in `read_regular`."""
    return read_regular(os.path.realpath(path), most_bytes)


def sha256_of(path: Path | str) -> str:
    """Return the SHA-256 of a file in hexadecimal; OSError if it is not regular."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular_size(path: Path | str) -> int | None:
    """Return the size of a file in bytes, or None if it is missing; OSError if not regular."""
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


def most_open() -> int:
    """Return the number of files that all readers of this process may keep open together."""
    if resource is None:
        return _MOST_WITHOUT_LIMIT
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_WITHOUT_LIMIT if limit == resource.RLIM_INFINITY else max(1, limit // 2)


class OpenFiles:
    """The open files of one reader, by name. Thread-safe."""

    def __init__(self, opened: Callable[[str], int]) -> None:
        """Begin without files. `opened` opens a file by its name and returns its descriptor."""
        self._opened = opened
        self._names: set[str] = set()

    def get(self, name: str) -> Descriptor:
        """Return the file, opened if necessary. It stays open while the caller keeps the result."""
        file = self.find(name)
        if file is not None:
            return file
        file = Descriptor(self._opened(name))  # slow, and may fail
        key = (id(self), name)
        with _lock:
            self._names.add(name)
            _files[key] = file
            _files.move_to_end(key)
            let_go = [_files.popitem(last=False) for _ in range(len(_files) - most_open())]
        del let_go  # closed without the lock
        return file

    def find(self, name: str) -> Descriptor | None:
        key = (id(self), name)
        file = _files.get(key)  # without the lock: each of the two calls is atomic
        if file is not None:
            try:  # noqa: SIM105 - called for each record; a context manager would double the time
                _files.move_to_end(key)
            except KeyError:  # released in between
                pass
        return file

    def drop(self, name: str) -> None:
        with _lock:
            self._names.discard(name)
            file = _files.pop((id(self), name), None)
        del file

    def close(self) -> None:
        for name in [*self._names]:
            self.drop(name)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # otherwise the globals of this module may already be gone
            self.close()


_files: OrderedDict[tuple[int, str], Descriptor] = OrderedDict()
"""(id of the `OpenFiles`, name) → file, least recently used first."""
_lock = threading.RLock()  # reentrant: `__del__` may run while it is held


def _renew() -> None:
    global _lock  # noqa: PLW0603 - another thread cannot release it
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
