"""Lock of a folder, exclusive or shared (`flock` on a file in it).

The system releases the lock when the process ends, even if it is killed. After a process opens the
lock file, the previous owner may remove that file, and a third process may lock a new file of the
same name. So `has_name` is checked after the lock is taken.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from shardprep.errors import BuildError, BusyError, OptionName

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""Error numbers of file systems without locks: Lustre without `flock`, NFS without its daemon."""


@contextlib.contextmanager
def locked(
    folder: Path, *, alone: bool = True, who: str = "build", flag: str | OptionName = "folder"
) -> Iterator[bool]:
    """Lock a folder until the context ends, and create it if it is missing; BusyError if locked.

    With `alone`, the lock is exclusive. Yields False if the file system has no locks. BuildError if
    the folder cannot be written. `who` names the other process in errors, and `flag` the option for
    another folder. Network file systems lock other machines out only if the file is open for
    writing, so it is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise BuildError(
            str(folder),
            f"cannot be written ({error.strerror})",
            f"make it writable, or use another {flag}",
        ) from error
    try:
        try:
            is_held = take(descriptor, alone=alone)
        except BlockingIOError as error:
            also = " (or another part of this build)" if who == "build" else ""
            what = f"another {who}{also} is using this folder"
            raise BusyError(str(folder), what, f"wait until that {who} ends, or stop it") from error
        if not has_name(descriptor, folder / LOCK_FILE):
            raise BusyError(str(folder), f"another {who} has just finished here", "try again")
        yield is_held
    finally:
        os.close(descriptor)


def take(descriptor: int, *, alone: bool = True, waits: bool = False) -> bool:
    """Lock an open file until it is closed; return False if the system or disk has no locks.

    With `alone`, the lock is exclusive. If another process holds a conflicting lock, wait with
    `waits`, otherwise raise BlockingIOError.
    """
    if fcntl is None:
        return False
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, how if waits else how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def has_name(descriptor: int, path: Path) -> bool:
    """Return True if `path` is still the path of the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
