"""List the files below a folder or an address, with marks that show changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from shardprep.errors import SourceError
from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl, parse_place

LEADS_OUTSIDE = "link that leads outside"
NOT_REGULAR = "not a regular file"
GIVE_A_SOURCE = "give a folder, a zip, or a tar (plain, .gz, .bz2, .xz)"


class FoundFile(NamedTuple):
    """A file below a folder or an address."""

    path: str
    """Path or address of the bytes (for a link, of its target). Folders above it may be links."""
    relative: str
    """Path below the source, with "/"; "" for the source itself."""
    num_bytes: int = 0
    mark: int | str = ""
    """Modification time in nanoseconds, or ETag of an object: shows that the content changed."""
    problem: str = ""
    """Reason not to read the file: `LEADS_OUTSIDE`, or `NOT_REGULAR` (a device, a broken link)."""


def find_files(
    source: Path | str, leave_out: Iterable[str] = (), *, follow_links: bool = False
) -> Iterable[FoundFile]:
    """Return the files below a folder or an address, or only the source if it is a file itself.

    Files of a folder are sorted by name. Each folder is visited once, even if links lead to it. A
    link that leads out of the source gets a `problem`, unless `follow_links` is set: a foreign
    folder must not decide which other files of this machine are read. `leave_out` has folders or
    addresses to ignore, such as a dataset built from the source. SourceError if the source does not
    exist.
    """
    place = parse_place(str(source))
    if isinstance(place, ObjectUrl):
        return _objects(str(source), place, leave_out)
    if place.is_dir():
        return _walk(place, leave_out, follow_links=follow_links)
    if not place.is_file():
        raise SourceError(str(place), "no such file or folder", GIVE_A_SOURCE)
    status = place.stat()
    return [FoundFile(str(place), "", status.st_size, status.st_mtime_ns)]


def _walk(root: Path, leave_out: Iterable[str], *, follow_links: bool) -> Iterator[FoundFile]:
    seen: set[tuple[int, int]] = set()
    seen.update(_identity(folder) for folder in leave_out if Path(folder).is_dir())
    seen.discard(_identity(root))
    top = str(root)
    inside = "/" if follow_links else os.path.join(os.path.realpath(top), "")  # noqa: PTH118
    for place, folders, files in os.walk(top, followlinks=True, onerror=_unreadable):
        identity = _identity(place)
        if identity in seen:
            folders.clear()
            continue
        seen.add(identity)
        # Strings, and values shared by a whole folder: a million Path objects are slow.
        below = "" if place == top else Path(place).relative_to(root).as_posix() + "/"
        within = os.path.join(place, "")  # noqa: PTH118
        outside = [name for name in folders if not _lies_in(inside, within + name)]
        folders[:] = sorted(set(folders).difference(outside))
        for name in outside:
            yield FoundFile(within + name, below + name, problem=LEADS_OUTSIDE)
        for name in sorted(files):
            yield _file(within + name, below + name, inside)


def _identity(folder: Path | str) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116 - os.walk returns strings
    return status.st_dev, status.st_ino


def _lies_in(inside: str, folder: str) -> bool:
    if inside == "/" or not os.path.islink(folder):  # noqa: PTH114 - as above
        return True
    return os.path.join(os.path.realpath(folder), "").startswith(inside)  # noqa: PTH118


def _file(path: str, relative: str, inside: str) -> FoundFile:
    try:
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):  # the usual case
            return FoundFile(path, relative, status.st_size, status.st_mtime_ns)
        if stat.S_ISLNK(status.st_mode):
            path = os.path.realpath(path)
            if not path.startswith(inside):
                return FoundFile(path, relative, problem=LEADS_OUTSIDE)
            status = os.lstat(path)
    except OSError:
        return FoundFile(path, relative, problem=NOT_REGULAR)
    if not stat.S_ISREG(status.st_mode):
        return FoundFile(path, relative, problem=NOT_REGULAR)
    return FoundFile(path, relative, status.st_size, status.st_mtime_ns)


def _unreadable(error: OSError) -> None:
    raise SourceError(str(error.filename), f"cannot be read ({error.strerror})")


def _objects(address: str, url: ObjectUrl, leave_out: Iterable[str]) -> list[FoundFile]:
    archive = objects.head(url) if url.key and not address.endswith("/") else None
    if archive is not None:
        return [FoundFile(str(url), "", archive.num_bytes, archive.etag)]
    out = {place.rstrip("/") for place in leave_out} - {str(url).rstrip("/")}
    left_out = tuple(f"{place}/" for place in out)
    below = [
        FoundFile(str(url / one.name), one.name, one.num_bytes, one.etag)
        for one in objects.listing(url)
        if one.name and not str(url / one.name).startswith(left_out)
    ]
    if not below:
        what = "there is no object at or below this address"
        hint = "give the address of an archive, or of a prefix of objects"
        raise SourceError(address, what, hint)
    return below
