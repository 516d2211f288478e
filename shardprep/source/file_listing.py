"""List the files below a folder or an address, with marks that show changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardprep.errors import SourceError
from shardprep.source.names import composed, without_archive_suffix
from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl, parse_place

LEADS_OUTSIDE = "link that leads outside"
NOT_REGULAR = "not a regular file"
NOT_BELOW = "not below --root"
UNREADABLE = "unreadable"
GIVE_A_SOURCE = "give a folder, a zip, a tar (plain, .gz, .bz2, .xz), a 7z or a file of arrays"


class FoundFile(NamedTuple):
    """A file below a folder or an address."""

    path: str
    """Path or address of the file; of the target if the file is a link. Parents may be links."""
    relative: str
    """Path below the source, with "/"; "" for the source itself."""
    num_bytes: int = 0
    mark: int | str = ""
    """Modification time in nanoseconds, or ETag of an object. Used to detect a changed file."""
    problem: str = ""
    """Reason not to read the file, such as `LEADS_OUTSIDE`; "" for a file to read."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a source that is used. The other parts are listed, but not opened."""

    leave_out: tuple[str, ...] = ()
    """Folders or addresses to ignore, such as a dataset built from the source."""
    root: str = ""
    """The only folder with wanted images, or "" for the whole source."""
    is_named: Callable[[str], bool] = lambda _: True
    """Tells whether a file that is not below `root` is needed, for example as a table."""
    unwanted: Callable[[str], str] = lambda _: ""
    """Returns why an archive that cannot be opened has no wanted image; "" if it may have one."""
    unopened: Callable[[str], str] = lambda _: ""
    """Returns why an archive is not opened; "" to open it."""
    is_sample: Callable[[str], bool] = lambda _: False
    """Tells whether an archive holds one sample, which is rejected if the archive is damaged."""
    files: tuple[str, ...] | None = None
    """The only files to use, without listing the folder; None for all files."""
    has_files: Callable[[str], bool | None] = lambda _: True
    """Tells whether a folder has files to list; None if its subfolders have no such file either."""

    def is_outside(self, key: str) -> bool:
        """Return True if `key` is neither in `root` nor a folder that contains `root`."""
        if not self.root.strip("/.") or any(mark in self.root for mark in "*?["):
            return False
        root, place = (
            f"{without_archive_suffix(composed(path.strip('/'))).lower()}/"
            for path in (self.root, key)
        )
        return not (place.startswith(root) or root.startswith(place))


EVERYTHING = Scope()


def find_files(
    source: Path | str, scope: Scope = EVERYTHING, *, follow_links: bool = False
) -> Iterable[FoundFile]:
    """Return the files below a folder or an address, or only the source if it is a file itself.

    Files of a folder are sorted by name. A folder is visited once, under its own path instead of
    the path of a link. A link that leads out of the source gets a `problem`, unless `follow_links`
    is set: an untrusted folder must not select other files of this machine. An unreadable folder
    outside of the scope gets a `problem`. Below "/", only the scope is listed. SourceError if the
    source does not exist, an address has no objects, or a folder of the scope cannot be read.
    """
    place = parse_place(str(source))
    if isinstance(place, ObjectUrl):
        return _objects(str(source), place, scope.leave_out)
    if place.is_dir() and scope.files is not None:
        return [_file(f"{place}{one}", one, str(place)) for one in scope.files]
    if place.is_dir():
        return _walk(place, scope, follow_links=follow_links)
    if not place.is_file():
        raise SourceError(str(place), "no such file or folder", GIVE_A_SOURCE)
    status = place.stat()
    return [FoundFile(str(place), "", status.st_size, status.st_mtime_ns)]


def _walk(root: Path, scope: Scope, *, follow_links: bool) -> Iterator[FoundFile]:
    seen: set[tuple[int, int]] = set()
    seen.update(_identity(folder) for folder in scope.leave_out if Path(folder).is_dir())
    seen.discard(_identity(root))
    top = str(root)
    lost: list[FoundFile] = []

    def unreadable(error: OSError) -> None:
        below = Path(error.filename).relative_to(root).as_posix()
        if not scope.is_outside(below):
            what = f"cannot be read ({error.strerror})"
            raise SourceError(str(error.filename), what, "make it readable")
        lost.append(FoundFile(error.filename, below, problem=UNREADABLE))

    real_top = os.path.join(os.path.realpath(top), "")  # noqa: PTH118
    inside = "/" if follow_links else real_top
    for place, folders, files in os.walk(top, followlinks=True, onerror=unreadable):
        try:
            identity = _identity(place)
        except OSError as error:  # removed since it was listed
            unreadable(error)
            folders.clear()
            continue
        if identity in seen:
            folders.clear()
            continue
        seen.add(identity)
        # Strings, and values shared by a whole folder: a million Path objects are slow.
        below = "" if place == top else Path(place).relative_to(root).as_posix() + "/"
        if top == "/":  # the rest of the machine is not a source
            for names in (folders, files):
                names[:] = [name for name in names if not scope.is_outside(below + name)]
        within = os.path.join(place, "")  # noqa: PTH118
        folders[:] = [name for name in folders if scope.has_files(below + name) is not None]
        links = [name for name in folders if os.path.islink(within + name)]  # noqa: PTH114
        outside = [name for name in links if not _leads_below(inside, within + name)]
        again = [name for name in links if _leads_below(real_top, within + name)]
        folders[:] = sorted(set(folders).difference(outside, again))
        for name in outside:
            yield FoundFile(within + name, below + name, problem=LEADS_OUTSIDE)
        for name in sorted(files) if scope.has_files(below[:-1]) else ():
            yield _file(within + name, below + name, inside)
    yield from lost


def _identity(folder: Path | str) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116 - os.walk returns strings
    return status.st_dev, status.st_ino


def _leads_below(top: str, link: str) -> bool:
    """Return whether a link leads to a folder below `top`, a real path that ends in a slash."""
    return os.path.join(os.path.realpath(link), "").startswith(top)  # noqa: PTH118


def _file(path: str, relative: str, inside: str) -> FoundFile:
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            path = os.path.realpath(path)
            if not path.startswith(inside):
                return FoundFile(path, relative, problem=LEADS_OUTSIDE)
            status = os.lstat(path)
    except OSError:
        return FoundFile(path, relative, problem=NOT_REGULAR)
    if stat.S_ISREG(status.st_mode):
        return FoundFile(path, relative, status.st_size, status.st_mtime_ns)
    return FoundFile(path, relative, problem=NOT_REGULAR)


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
