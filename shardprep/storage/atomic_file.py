"""Files that are complete or absent: written beside their final name, synced, then renamed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO, Self

_PIECE_BYTES = 128 << 10
"""Number of bytes that are written at once. Linux finds room for a larger piece in memory that lies
in one, which takes ten times as long where there is little of that."""

_BUFFER_BYTES = 64 << 10
"""Number of bytes in which what is written in little is collected; less than a piece, which would
be copied."""


class DurableFile:
    """A file that exists under its name only after `commit`; the end of a context abandons it."""

    def __init__(self, path: Path, *, is_shared: bool = False, token: str = "") -> None:
        """Open a hidden sibling of `path` for writing, replacing one a dead run has left.

        One that `is_shared` has a name of its own: several processes may write the same file.
        With a token, that is the `sibling` of the token.
        """
        self.path = path
        self._temporary = sibling(path, token or (new_token() if is_shared else ""))
        self.stream: BinaryIO = self._temporary.open("wb", _BUFFER_BYTES)
        """For libraries that write to a file object; do not close it."""
        self._is_handed_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_handed_over:
            self.abandon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes."""
        write_pieces(self.stream, data)

    def commit(self) -> None:
        """Make the file durable and give it its name, atomically."""
        self._sync()
        self._temporary.replace(self.path)
        sync_folder(self.path.parent)

    def hand_over(self) -> Callable[[], None]:
        """Return what does `commit`, perhaps in a thread, and `abandon` where that fails.

        It must be called: the end of the context leaves the file to it.
        """
        self._is_handed_over = True

        def commit() -> None:
            try:
                self.commit()
            finally:
                self.abandon()

        return commit

    def commit_new(self) -> bool:
        """Do what `commit` does, but only where there is no such file; False where there is."""
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
        """Leave no trace; does nothing after `commit`."""
        self.stream.close()
        self._temporary.unlink(missing_ok=True)


def write_pieces(stream: BinaryIO, data: bytes | bytearray | memoryview) -> None:
    """Write bytes to a file, `_PIECE_BYTES` at a time."""
    if len(data) <= _PIECE_BYTES:
        stream.write(data)
        return
    whole = memoryview(data)
    starts = range(0, len(whole), _PIECE_BYTES)
    stream.writelines(whole[start : start + _PIECE_BYTES] for start in starts)


def new_token() -> str:
    """Return what tells a temporary file from all others."""
    return os.urandom(8).hex()


def sibling(path: Path, token: str) -> Path:
    """Return the name that a file has before it is complete."""
    return path.with_name(f".{path.name}{token and f'.{token}'}.tmp")


def write_durably(path: Path, data: bytes) -> None:
    """Write a whole file at once, complete or not at all."""
    with DurableFile(path) as file:
        file.write(data)
        file.commit()


def sync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut; Windows opens no folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
