"""Free disk space: checks and messages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from shardprep.errors import BuildError

_KEPT_SHARE = 8
_LEAST_KEPT_BYTES = 1 << 20
_MOST_KEPT_BYTES = 64 << 20
"""Free space to leave on the disk: an eighth of the work's size, within these bounds."""


def shortage(folder: Path, num_bytes: int, num_written: int = 0) -> str:
    """Return a message if the disk of `folder` has no room for `num_bytes` and a reserve, else "".

    `num_written` is the number of bytes that the same work has written, which raises the reserve.
    """
    reserve = (num_written + num_bytes) // _KEPT_SHARE
    reserve = min(max(reserve, _LEAST_KEPT_BYTES), _MOST_KEPT_BYTES)
    free = shutil.disk_usage(folder).free
    if free >= num_bytes + reserve:
        return ""
    return (
        f"{megabytes(num_bytes)} are needed and {megabytes(reserve)} must stay free, "
        f"but the disk has {megabytes(free)} left"
    )


def megabytes(num_bytes: float) -> str:
    """Return a size with a decimal unit, such as "812 kB" or "45.5 MB"."""
    size, unit = num_bytes, "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    digits = 0 if unit == "B" or size >= 100 else 1
    return f"{size:.{digits}f} {unit}"


@contextlib.contextmanager
def resumable_writes(work: object) -> Iterator[None]:
    """Turn an OSError into a BuildError which says that the finished work is kept.

    The error names `work`, as text, if the OSError has no file.
    """
    try:
        yield
    except OSError as error:
        raise BuildError(
            str(error.filename or work),
            f"cannot be written ({error.strerror or error})",
            "the finished work is kept: free some space, or correct the permissions, and run the "
            "same command again",
        ) from error
