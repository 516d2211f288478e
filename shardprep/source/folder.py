"""The files below a folder, for whoever lists a source or tells whether it has changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class FoundFile(NamedTuple):
    """One name below a folder."""

    path: str
    relative: str
    """To the folder, POSIX."""
    status: os.stat_result | None
    """None where it is no regular file: a device, a link to nothing."""


def walk_files(root: Path, leave_out: Iterable[str] = ()) -> Iterator[FoundFile]:
    """Yield the files below a folder, sorted in each; links to folders are followed, each once.

    Args:
        root: where to begin.
        leave_out: folders below it that do not count: what is built from it may lie in it.

    Raises:
        SourceError: a folder cannot be read.

    """
    seen: set[tuple[int, int]] = set()
    seen.update(_identity(folder) for folder in leave_out if Path(folder).is_dir())
    seen.discard(_identity(root))
    top = str(root)
    for place, folders, files in os.walk(top, followlinks=True, onerror=_unreadable):
        identity = _identity(place)
        if identity in seen:
            folders.clear()
            continue
        seen.add(identity)
        folders.sort()
        # Strings, and once a folder what is the same for all in it: a million Paths are slow.
        below = "" if place == top else Path(place).relative_to(root).as_posix() + "/"
        within = os.path.join(place, "")  # noqa: PTH118
        for name in sorted(files):
            path = within + name
            yield FoundFile(path, below + name, _regular(path))


def _identity(folder: Path | str) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116 - os.walk hands out strings
    return status.st_dev, status.st_ino


def _regular(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _unreadable(error: OSError) -> None:
    raise SourceError(str(error.filename), f"cannot be read ({error.strerror})")
