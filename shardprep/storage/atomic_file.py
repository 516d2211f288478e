"""Files that are complete or absent: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self

_PIECE_BYTES = 128 << 10
"""Bytes per write. Larger writes need contiguous memory, and may take ten times as long."""

_BUFFER_BYTES = 64 << 10
"""Size of the buffer, smaller than a piece: writes that fit into the buffer are copied first."""


class DurableFile:
    """A file that appears under its name at `commit`. The context removes an uncommitted file."""

    def __init__(self, path: Path, *, is_shared: bool = False, token: str = "") -> None:
        """Open a hidden temporary file next to `path`; IsADirectoryError if `path` is a folder.

        With `is_shared` or a token, its name is unique: several processes may write `path`.
        """
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self.path = path
        self._temporary = sibling(path, token or (new_token() if is_shared else ""))
        self.stream: BinaryIO = self._temporary.open("wb", _BUFFER_BYTES)
        """The open file, for libraries that write to a file object; do not close it."""
        self._is_handed_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_handed_over:
            self.abandon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        write_pieces(self.stream, data)

    def commit(self) -> None:
        """Make the file durable, then rename it to `path`, replacing an older file."""
        self._sync()
        self._temporary.replace(self.path)
        sync_folder(self.path.parent)

    def hand_over(self) -> Callable[[], None]:
        """Return a function that commits in any thread; the context no longer removes the file."""
        self._is_handed_over = True

        def commit() -> None:
            try:
                self.commit()
            finally:
                self.abandon()

        return commit

    def commit_new(self) -> bool:
        """Commit and return True; if `path` exists already, leave it unchanged and return False."""
        self._sync()
        try:
            self.path.hardlink_to(self._temporary)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if self.path.exists():
                return False
            self._temporary.replace(self.path)
        sync_folder(self.path.parent)
        return True

    def _sync(self) -> None:
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()

    def abandon(self) -> None:
        """Remove the temporary file; do nothing after `commit`."""
        self.stream.close()
        self._temporary.unlink(missing_ok=True)


def write_pieces(stream: BinaryIO, data: bytes | bytearray | memoryview) -> None:
    """Write data to a stream in pieces of `_PIECE_BYTES`."""
    if len(data) <= _PIECE_BYTES:
        stream.write(data)
        return
    whole = memoryview(data)
    starts = range(0, len(whole), _PIECE_BYTES)
    stream.writelines(whole[start : start + _PIECE_BYTES] for start in starts)


def new_token() -> str:
    """Return 16 random hexadecimal digits for the name of a temporary file."""
    return os.urandom(8).hex()


def sibling(path: Path, token: str) -> Path:
    """Return the temporary path of a file; `token` is "" or from `new_token`."""
    return path.with_name(f".{path.name}{token and f'.{token}'}.tmp")


def write_durably(path: Path, data: bytes) -> None:
    """Write or replace a file atomically, and sync it."""
    with DurableFile(path) as file:
        file.write(data)
        file.commit()


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames survive a power cut. Does nothing on Windows."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
